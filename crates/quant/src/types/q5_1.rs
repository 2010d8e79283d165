//! 32 elements: one scale and one minimum, codes of 5 bits.

use crate::bits::{pack_five, unpack_five};
use crate::block::*;

/// Offset of the f16 scale.
pub const D: usize = 0;
/// Offset of the f16 minimum.
pub const M: usize = 2;
/// Offset of the u32 whose bit `i` is bit 4 of code `i`.
pub const QH: usize = 4;
/// Offset of the low nibbles: low ones are elements 0..16, high ones 16..32.
pub const QS: usize = 8;

pub(crate) const INFO: Info = Info::codec::<Q5_1, 32, 24>();

struct Q5_1;

impl Block<32, 24> for Q5_1 {
    const ID: u32 = 7;
    const LAYOUT: Layout =
        Layout { mins: 1..=1, ..Layout::scaled(32, 5, Levels::Linear { zero: 0 }) };

    fn unpack(block: &[u8; 24], out: &mut Unpacked) {
        out.set_scale_and_min(f16_at(block, D), f16_at(block, M));
        unpack_five(block, QH, QS, out.block_codes());
    }
}

impl EncodeBlock<32, 24> for Q5_1 {
    fn encode(x: &[f32; 32], block: &mut [u8; 24]) -> Result<(), OutOfRange> {
        let (d, min) = span(x, 31.0);
        let id = inverse(d);
        pack_five(&x.map(|v| (((v - min) * id + 0.5) as u8).min(31)), block, QH, QS);
        put_f16(block, D, d)?;
        put_f16(block, M, min)
    }
}
