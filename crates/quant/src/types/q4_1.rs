//! 32 elements: one scale and one minimum, codes of 4 bits.

use crate::bits::{pack_nibbles, unpack_nibbles};
use crate::block::*;

/// Offset of the f16 scale.
pub const D: usize = 0;
/// Offset of the f16 minimum.
pub const M: usize = 2;
/// Offset of the nibbles: low ones are elements 0..16, high ones 16..32.
pub const QS: usize = 4;

pub(crate) const INFO: Info = Info::codec::<Q4_1, 32, 20>();

struct Q4_1;

impl Block<32, 20> for Q4_1 {
    const ID: u32 = 3;
    const LAYOUT: Layout =
        Layout { mins: 1..=1, ..Layout::scaled(32, 4, Levels::Linear { zero: 0 }) };

    fn unpack(block: &[u8; 20], out: &mut Unpacked) {
        out.set_scale_and_min(f16_at(block, D), f16_at(block, M));
        unpack_nibbles(bytes(block, QS), out.block_codes());
    }
}

impl EncodeBlock<32, 20> for Q4_1 {
    fn encode(x: &[f32; 32], block: &mut [u8; 20]) -> Result<(), OutOfRange> {
        let (d, min) = span(x, 15.0);
        let id = inverse(d);
        pack_nibbles(&x.map(|v| (((v - min) * id + 0.5) as u8).min(15)), &mut block[QS..]);
        put_f16(block, D, d)?;
        put_f16(block, M, min)
    }
}
