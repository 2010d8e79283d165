//! 256 elements in 16 groups: 4-bit scales, eight magnitudes at a time from a codebook of 1024, free signs.

use super::iq2_xs::odd_scales;
use crate::block::*;
use crate::grid::signed;
use crate::grids;

/// Offset of the f16 factor of the scales.
pub const D: usize = 0;
/// Offset of the low bytes of 32 codebook indices, one for eight elements.
pub const QS: usize = 2;
/// Offset of 32 bytes of signs, one for eight elements, the first element lowest.
pub const SIGNS: usize = 34;
/// Offset of the high 2 bits of the codebook indices, four in a byte, lowest first.
pub const QH: usize = 66;
/// Offset of the nibbles of the scales, low ones first.
pub const SCALES: usize = 74;

pub(crate) const INFO: Info = Info::decoder::<IQ2_S, 256, 82>();

#[allow(non_camel_case_types)]
struct IQ2_S;

impl Block<256, 82> for IQ2_S {
    const ID: u32 = 22;
    const LAYOUT: Layout =
        Layout { group: 16, bits: 8, levels: Levels::Linear { zero: 128 }, scales: 1..=31, mins: 0..=0 };

    fn unpack(block: &[u8; 82], out: &mut Unpacked) {
        // A group's scale is `(s + 1/2) / 4`, kept in eighths.
        out.d = f16_at(block, D) / 8.0;
        odd_scales(&block[SCALES..], &mut out.scales);
        for (i, codes) in out.codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let high = usize::from(block[QH + i / 4] >> (2 * (i % 4)) & 3);
            signed(&grids::IQ2_S[usize::from(block[QS + i]) | high << 8], block[SIGNS + i], codes);
        }
    }
}
