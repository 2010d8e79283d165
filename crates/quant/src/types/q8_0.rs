//! 32 elements: one scale, signed bytes.

use crate::block::*;

/// Offset of the f16 scale.
pub const D: usize = 0;
/// Offset of the signed bytes.
pub const QS: usize = 2;

pub(crate) const INFO: Info = Info::codec::<Q8_0, 32, 34>();

struct Q8_0;

impl Block<32, 34> for Q8_0 {
    const ID: u32 = 8;
    const LAYOUT: Layout = Layout::scaled(32, 8, Levels::Linear { zero: 128 });

    fn unpack(block: &[u8; 34], out: &mut Unpacked) {
        out.set_scale(f16_at(block, D));
        *out.block_codes() = bytes::<32>(block, QS).map(|q| q ^ 128);
    }
}

impl EncodeBlock<32, 34> for Q8_0 {
    fn encode(x: &[f32; 32], block: &mut [u8; 34]) -> Result<(), OutOfRange> {
        let d = extreme(*x).abs() / 127.0;
        let id = inverse(d);
        block[QS..].copy_from_slice(&x.map(|v| (v * id).round() as i8 as u8));
        put_f16(block, D, d)
    }
}
