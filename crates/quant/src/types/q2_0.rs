//! 64 elements: one scale, codes of 2 bits around 1.

use crate::block::*;

/// Offset of the f16 scale.
pub const D: usize = 0;
/// Offset of the codes: four consecutive elements in a byte, lowest bits first.
pub const QS: usize = 2;

pub(crate) const INFO: Info = Info::codec::<Q2_0, 64, 18>();

struct Q2_0;

impl Block<64, 18> for Q2_0 {
    const ID: u32 = 42;
    const LAYOUT: Layout = Layout::scaled(64, 2, Levels::Linear { zero: 1 });

    fn unpack(block: &[u8; 18], out: &mut Unpacked) {
        out.set_scale(f16_at(block, D));
        for (codes, &b) in out.block_codes::<64>().chunks_exact_mut(4).zip(&block[QS..]) {
            for (i, c) in codes.iter_mut().enumerate() {
                *c = b >> (2 * i) & 3;
            }
        }
    }
}

impl EncodeBlock<64, 18> for Q2_0 {
    fn encode(x: &[f32; 64], block: &mut [u8; 18]) -> Result<(), OutOfRange> {
        let d = extreme(*x).abs();
        let id = inverse(d);
        for (b, x) in block[QS..].iter_mut().zip(x.chunks_exact(4)) {
            *b = x.iter().enumerate().fold(0, |b, (i, &v)| b | (((v * id).round() + 1.0) as u8).min(3) << (2 * i));
        }
        put_f16(block, D, d)
    }
}
