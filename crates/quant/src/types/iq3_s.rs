//! 256 elements in 8 groups: 4-bit scales, four magnitudes at a time from a codebook of 512, free signs.

use super::iq2_xs::odd_scales;
use crate::block::*;
use crate::grid::signed;
use crate::grids;

/// Offset of the f16 factor of the scales.
pub const D: usize = 0;
/// Offset of the low bytes of 64 codebook indices, one for four elements.
pub const QS: usize = 2;
/// Offset of bit 8 of the codebook indices, eight in a byte, lowest first.
pub const QH: usize = 66;
/// Offset of 32 bytes of signs, one for eight elements, the first element lowest.
pub const SIGNS: usize = 74;
/// Offset of the nibbles of the scales, low ones first.
pub const SCALES: usize = 106;

pub(crate) const INFO: Info = Info::decoder::<IQ3_S, 256, 110>();

#[allow(non_camel_case_types)]
struct IQ3_S;

impl Block<256, 110> for IQ3_S {
    const ID: u32 = 21;
    const LAYOUT: Layout =
        Layout { group: 32, bits: 8, levels: Levels::Linear { zero: 128 }, scales: 1..=31, mins: 0..=0 };

    fn unpack(block: &[u8; 110], out: &mut Unpacked) {
        out.d = f16_at(block, D);
        odd_scales(&block[SCALES..], &mut out.scales[..8]);
        for (i, codes) in out.codes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let high = usize::from(block[QH + i / 8] >> (i % 8) & 1);
            let signs = block[SIGNS + i / 2] >> (4 * (i % 2));
            signed(&grids::IQ3_S[usize::from(block[QS + i]) | high << 8], signs, codes);
        }
    }
}
