//! 32 elements of 4-bit floats (E2M1) under one power of two (E8M0), as in the OCP microscaling formats.

use crate::bits::{pack_nibbles, unpack_nibbles};
use crate::block::*;

/// Offset of the exponent byte: the scale of the doubled values is 2 to its power less 128.
pub const E: usize = 0;
/// Offset of the nibbles: low ones are elements 0..16, high ones 16..32.
pub const QS: usize = 1;
/// Twice the values of the 16 codes.
pub static LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

pub(crate) const INFO: Info = Info::codec::<MXFP4, 32, 17>();

struct MXFP4;

impl Block<32, 17> for MXFP4 {
    const ID: u32 = 39;
    const LAYOUT: Layout = Layout::scaled(32, 4, Levels::Table(&LEVELS));

    fn unpack(block: &[u8; 17], out: &mut Unpacked) {
        out.set_scale(scale(block[E]));
        unpack_nibbles(bytes(block, QS), out.block_codes());
    }
}

impl EncodeBlock<32, 17> for MXFP4 {
    fn encode(x: &[f32; 32], block: &mut [u8; 17]) -> Result<(), OutOfRange> {
        // The largest value has the exponent of the largest level, 8 (of doubled values).
        let exponent = (extreme(*x).abs().to_bits() >> 23) as u8;
        let e = exponent.saturating_sub(2);
        let d = scale(e);
        block[E] = e;
        pack_nibbles(&x.map(|v| nearest_code(v, d)), &mut block[QS..]);
        Ok(())
    }
}

/// Two to the power `e - 128`.
fn scale(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { u32::from(e - 1) << 23 })
}

/// The code whose value under scale `d` is nearest to `v`, of equals the one of smaller magnitude.
pub(super) fn nearest_code(v: f32, d: f32) -> u8 {
    let (mut best, mut least) = (0, v.abs());
    for (code, &level) in (1..8).zip(&LEVELS[1..8]) {
        let error = (d * f32::from(level) - v.abs()).abs();
        if error < least {
            (best, least) = (code, error);
        }
    }
    if v < 0.0 && best != 0 { best + 8 } else { best }
}
