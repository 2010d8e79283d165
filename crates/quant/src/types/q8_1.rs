//! 32 elements: one scale, signed bytes and their scaled sum; a type of activations.

use crate::block::*;

/// Offset of the f16 scale.
pub const D: usize = 0;
/// Offset of the f16 sum of the bytes times the scale, which values do not depend on.
pub const S: usize = 2;
/// Offset of the signed bytes.
pub const QS: usize = 4;

pub(crate) const INFO: Info = Info::codec::<Q8_1, 32, 36>();

struct Q8_1;

impl Block<32, 36> for Q8_1 {
    const ID: u32 = 9;
    const LAYOUT: Layout = Layout::scaled(32, 8, Levels::Linear { zero: 128 });

    fn unpack(block: &[u8; 36], out: &mut Unpacked) {
        out.set_scale(f16_at(block, D));
        *out.block_codes() = bytes::<32>(block, QS).map(|q| q ^ 128);
    }
}

impl EncodeBlock<32, 36> for Q8_1 {
    fn encode(x: &[f32; 32], block: &mut [u8; 36]) -> Result<(), OutOfRange> {
        let d = extreme(*x).abs() / 127.0;
        let id = inverse(d);
        let q = x.map(|v| (v * id).round() as i8);
        block[QS..].copy_from_slice(&q.map(|q| q as u8));
        put_f16(block, D, d)?;
        put_f16(block, S, q.iter().map(|&q| i32::from(q)).sum::<i32>() as f32 * d)
    }
}
