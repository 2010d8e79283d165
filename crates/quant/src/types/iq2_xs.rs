//! 256 elements in 16 groups: 4-bit scales, eight magnitudes at a time from a codebook of 512.

use crate::block::*;
use crate::grid::{even_signs, signed};
use crate::grids;

/// Offset of the f16 factor of the scales.
pub const D: usize = 0;
/// Offset of 32 u16, one for eight elements: a 9-bit codebook index under a 7-bit sign index.
pub const QS: usize = 2;
/// Offset of the nibbles of the scales, low ones first.
pub const SCALES: usize = 66;

pub(crate) const INFO: Info = Info::decoder::<IQ2_XS, 256, 74>();

#[allow(non_camel_case_types)]
struct IQ2_XS;

impl Block<256, 74> for IQ2_XS {
    const ID: u32 = 17;
    const LAYOUT: Layout =
        Layout { group: 16, bits: 8, levels: Levels::Linear { zero: 128 }, scales: 1..=31, mins: 0..=0 };

    fn unpack(block: &[u8; 74], out: &mut Unpacked) {
        // A group's scale is `(s + 1/2) / 4`, kept in eighths.
        out.d = f16_at(block, D) / 8.0;
        odd_scales(&block[SCALES..], &mut out.scales);
        for (q, codes) in block[QS..SCALES].as_chunks().0.iter().zip(out.codes.as_chunks_mut::<8>().0) {
            let q = u16::from_le_bytes(*q);
            signed(&grids::IQ2_XS[usize::from(q & 511)], even_signs(u32::from(q >> 9)), codes);
        }
    }
}

/// Scales `2 s + 1` from nibbles `s`, low ones first.
pub(super) fn odd_scales(packed: &[u8], scales: &mut [i32]) {
    for (pair, &b) in scales.chunks_exact_mut(2).zip(packed) {
        pair[0] = i32::from(2 * (b & 15) + 1);
        pair[1] = i32::from(2 * (b >> 4) + 1);
    }
}
