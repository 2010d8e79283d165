//! 64 elements of 4-bit floats (E2M1) in 4 groups with unsigned 8-bit float scales (E4M3).

use super::mxfp4::{LEVELS, nearest_code};
use crate::bits::split_nibbles;
use crate::block::*;

/// Offset of the four scales: 4 bits of exponent (bias 7) and 3 of fraction; 0x7F is 0.
pub const D: usize = 0;
/// Offset of the nibbles: 8 bytes a group, low ones are its elements 0..8, high ones 8..16.
pub const QS: usize = 4;

pub(crate) const INFO: Info = Info::codec::<NVFP4, 64, 36>();

struct NVFP4;

/// Half the least scale above 0, as levels are doubled.
const UNIT: f32 = 1.0 / 1024.0;

impl Block<64, 36> for NVFP4 {
    const ID: u32 = 40;
    const LAYOUT: Layout =
        Layout { group: 16, bits: 4, levels: Levels::Table(&LEVELS), scales: 0..=15 << 14, mins: 0..=0 };

    fn unpack(block: &[u8; 36], out: &mut Unpacked) {
        out.d = UNIT;
        for (s, &e) in out.scales.iter_mut().zip(bytes::<4>(block, D)) {
            *s = units(e);
        }
        let groups = out.block_codes::<64>().chunks_exact_mut(16);
        for (codes, packed) in groups.zip(block[QS..].chunks_exact(8)) {
            let (low, high) = codes.split_at_mut(8);
            split_nibbles(packed, low, high);
        }
    }
}

impl EncodeBlock<64, 36> for NVFP4 {
    fn encode(x: &[f32; 64], block: &mut [u8; 36]) -> Result<(), OutOfRange> {
        for (g, x) in x.chunks_exact(16).enumerate() {
            let e = nearest_scale(extreme(x.iter().copied()).abs() / 6.0)?;
            let d = UNIT * units(e) as f32;
            block[D + g] = e;
            let (low, high) = x.split_at(8);
            for ((b, &l), &h) in block[QS + 8 * g..].iter_mut().zip(low).zip(high) {
                *b = nearest_code(l, d) | nearest_code(h, d) << 4;
            }
        }
        Ok(())
    }
}

/// A scale in multiples of its least value above 0.
fn units(scale: u8) -> i32 {
    let (exponent, fraction) = (scale >> 3 & 15, i32::from(scale & 7));
    match (scale, exponent) {
        (0x7F, _) => 0,
        (_, 0) => fraction,
        _ => (8 + fraction) << (exponent - 1),
    }
}

/// The scale nearest to `value`, ties upwards; the largest is 448.
fn nearest_scale(value: f32) -> Result<u8, OutOfRange> {
    const LEAST: f32 = 1.0 / 512.0;
    const MOST: f32 = 448.0;
    // Eight units of the least value are the least normal one.
    if value < 8.0 * LEAST {
        return Ok((value / LEAST + 0.5) as u8);
    }
    // Adding half a unit of the fraction carries into the exponent where it should.
    let rounded = (value.to_bits() + (1 << 19)) >> 20;
    let scale = rounded - ((127 - 7) << 3);
    if value <= MOST { Ok(scale as u8) } else { Err(OutOfRange) }
}
