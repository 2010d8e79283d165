//! 256 elements: one f32 scale, signed bytes and their sums; a type of activations.

use crate::block::*;
use crate::fit::nearest;

/// Offset of the f32 scale.
pub const D: usize = 0;
/// Offset of the signed bytes.
pub const QS: usize = 4;
/// Offset of the sums of 16 bytes each, 16 of i16, which values do not depend on.
pub const SUMS: usize = 260;

pub(crate) const INFO: Info = Info::codec::<Q8_K, 256, 292>();

#[allow(non_camel_case_types)]
struct Q8_K;

impl Block<256, 292> for Q8_K {
    const ID: u32 = 15;
    const LAYOUT: Layout = Layout::scaled(256, 8, Levels::Linear { zero: 128 });

    fn unpack(block: &[u8; 292], out: &mut Unpacked) {
        out.set_scale(f32::from_le_bytes(*bytes(block, D)));
        out.codes = bytes::<256>(block, QS).map(|q| q ^ 128);
    }
}

impl EncodeBlock<256, 292> for Q8_K {
    fn encode(x: &[f32; 256], block: &mut [u8; 292]) -> Result<(), OutOfRange> {
        let max = extreme(*x);
        if max == 0.0 {
            block.fill(0);
            return Ok(());
        }
        let id = -127.0 / max;
        let q = x.map(|v| nearest(v * id).min(127) as i8);
        block[D..QS].copy_from_slice(&(1.0 / id).to_le_bytes());
        block[QS..SUMS].copy_from_slice(&q.map(|q| q as u8));
        for (sum, q) in block[SUMS..].as_chunks_mut().0.iter_mut().zip(q.chunks_exact(16)) {
            *sum = q.iter().map(|&q| i16::from(q)).sum::<i16>().to_le_bytes();
        }
        Ok(())
    }
}
