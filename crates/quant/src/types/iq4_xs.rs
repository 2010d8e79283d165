//! 256 elements in 8 groups: signed 6-bit scales, codes of 4 bits into the table of IQ4_NL.

use super::iq4_nl::LEVELS;
use crate::bits::{pack_nibble_runs, unpack_nibble_runs};
use crate::block::*;
use crate::fit::{Symmetric, Table};

/// Offset of the f16 factor of the scales.
pub const D: usize = 0;
/// Offset of the u16 of the scales' high 2 bits, group 0 lowest.
pub const SCALES_HIGH: usize = 2;
/// Offset of the 4 bytes of the scales' low 4 bits, low nibbles first; scales are stored 32 too high.
pub const SCALES_LOW: usize = 4;
/// Offset of the nibbles: 16 bytes a group, low ones are its elements 0..16, high ones 16..32.
pub const QS: usize = 8;

pub(crate) const INFO: Info = Info::codec::<IQ4_XS, 256, 136>();

#[allow(non_camel_case_types)]
struct IQ4_XS;

impl Block<256, 136> for IQ4_XS {
    const ID: u32 = 23;
    const LAYOUT: Layout =
        Layout { group: 32, bits: 4, levels: Levels::Table(&LEVELS), scales: -32..=31, mins: 0..=0 };

    fn unpack(block: &[u8; 136], out: &mut Unpacked) {
        out.d = f16_at(block, D);
        let high = u16_at(block, SCALES_HIGH);
        for (g, s) in out.scales[..8].iter_mut().enumerate() {
            let low = block[SCALES_LOW + g / 2] >> (4 * (g % 2)) & 15;
            *s = i32::from(u16::from(low) | (high >> (2 * g) & 3) << 4) - 32;
        }
        unpack_nibble_runs::<16>(&block[QS..], &mut out.codes);
    }
}

impl EncodeBlock<256, 136> for IQ4_XS {
    fn encode(x: &[f32; 256], block: &mut [u8; 136]) -> Result<(), OutOfRange> {
        let fit = Symmetric::fit::<4, _>(x, Table(&LEVELS), Self::LAYOUT.scales)?;
        let scales = fit.scales.first_chunk::<8>().expect("there are 16").map(|s| (s + 32) as u16);
        let high = scales.iter().enumerate().fold(0, |high, (g, s)| high | s >> 4 << (2 * g));
        block[SCALES_HIGH..SCALES_LOW].copy_from_slice(&high.to_le_bytes());
        for (b, pair) in block[SCALES_LOW..QS].iter_mut().zip(scales.as_chunks::<2>().0) {
            *b = (pair[0] & 15 | (pair[1] & 15) << 4) as u8;
        }
        pack_nibble_runs::<16>(&fit.codes, &mut block[QS..]);
        put_f16(block, D, fit.d)
    }
}
