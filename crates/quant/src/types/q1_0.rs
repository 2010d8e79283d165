//! 128 elements: one scale, the sign of each.

use crate::bits::masks;
use crate::block::*;

/// Offset of the f16 scale.
pub const D: usize = 0;
/// Offset of the bits, lowest first; a set bit is the scale, a clear one its negative.
pub const QS: usize = 2;

pub(crate) const INFO: Info = Info::codec::<Q1_0, 128, 18>();

struct Q1_0;

impl Block<128, 18> for Q1_0 {
    const ID: u32 = 41;
    // Codes are 0 and 2, so that levels are -1 and 1.
    const LAYOUT: Layout = Layout::scaled(128, 2, Levels::Linear { zero: 1 });

    fn unpack(block: &[u8; 18], out: &mut Unpacked) {
        out.set_scale(f16_at(block, D));
        for (codes, &b) in out.block_codes::<128>().as_chunks_mut().0.iter_mut().zip(&block[QS..]) {
            *codes = masks(b).map(|set| set & 2);
        }
    }
}

impl EncodeBlock<128, 18> for Q1_0 {
    fn encode(x: &[f32; 128], block: &mut [u8; 18]) -> Result<(), OutOfRange> {
        for (b, x) in block[QS..].iter_mut().zip(x.chunks_exact(8)) {
            *b = x.iter().enumerate().fold(0, |b, (i, &v)| b | u8::from(v >= 0.0) << i);
        }
        put_f16(block, D, x.iter().fold(0.0, |sum, v| sum + v.abs()) / 128.0)
    }
}
