//! 32 elements: one scale, codes of 5 bits around 16.

use crate::bits::{pack_five, unpack_five};
use crate::block::*;

/// Offset of the f16 scale.
pub const D: usize = 0;
/// Offset of the u32 whose bit `i` is bit 4 of code `i`.
pub const QH: usize = 2;
/// Offset of the low nibbles: low ones are elements 0..16, high ones 16..32.
pub const QS: usize = 6;

pub(crate) const INFO: Info = Info::codec::<Q5_0, 32, 22>();

struct Q5_0;

impl Block<32, 22> for Q5_0 {
    const ID: u32 = 6;
    const LAYOUT: Layout = Layout::scaled(32, 5, Levels::Linear { zero: 16 });

    fn unpack(block: &[u8; 22], out: &mut Unpacked) {
        out.set_scale(f16_at(block, D));
        unpack_five(block, QH, QS, out.block_codes());
    }
}

impl EncodeBlock<32, 22> for Q5_0 {
    fn encode(x: &[f32; 32], block: &mut [u8; 22]) -> Result<(), OutOfRange> {
        let d = extreme(*x) / -16.0;
        let id = inverse(d);
        pack_five(&x.map(|v| ((v * id + 16.5) as u8).min(31)), block, QH, QS);
        put_f16(block, D, d)
    }
}
