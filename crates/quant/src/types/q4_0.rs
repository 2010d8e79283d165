//! 32 elements: one scale, codes of 4 bits around 8.

use crate::bits::{pack_nibbles, unpack_nibbles};
use crate::block::*;

/// Offset of the f16 scale.
pub const D: usize = 0;
/// Offset of the nibbles: low ones are elements 0..16, high ones 16..32.
pub const QS: usize = 2;

pub(crate) const INFO: Info = Info::codec::<Q4_0, 32, 18>();

struct Q4_0;

impl Block<32, 18> for Q4_0 {
    const ID: u32 = 2;
    const LAYOUT: Layout = Layout::scaled(32, 4, Levels::Linear { zero: 8 });

    fn unpack(block: &[u8; 18], out: &mut Unpacked) {
        out.set_scale(f16_at(block, D));
        unpack_nibbles(bytes(block, QS), out.block_codes());
    }
}

impl EncodeBlock<32, 18> for Q4_0 {
    fn encode(x: &[f32; 32], block: &mut [u8; 18]) -> Result<(), OutOfRange> {
        let d = extreme(*x) / -8.0;
        let id = inverse(d);
        pack_nibbles(&x.map(|v| ((v * id + 8.5) as u8).min(15)), &mut block[QS..]);
        put_f16(block, D, d)
    }
}
