//! 256 elements in 8 groups: 4-bit scales, four magnitudes at a time from a codebook of 256.

use crate::block::*;
use crate::grid::{even_signs, signed};
use crate::grids;

/// Offset of the f16 factor of the scales.
pub const D: usize = 0;
/// Offset of 64 codebook indices, one for four elements.
pub const QS: usize = 2;
/// Offset of a u32 for each group: four 7-bit sign indices, lowest first, and the scale in the top 4 bits.
pub const SIGNS: usize = 66;

pub(crate) const INFO: Info = Info::decoder::<IQ3_XXS, 256, 98>();

#[allow(non_camel_case_types)]
struct IQ3_XXS;

impl Block<256, 98> for IQ3_XXS {
    const ID: u32 = 18;
    const LAYOUT: Layout =
        Layout { group: 32, bits: 8, levels: Levels::Linear { zero: 128 }, scales: 1..=31, mins: 0..=0 };

    fn unpack(block: &[u8; 98], out: &mut Unpacked) {
        // A group's scale is `(s + 1/2) / 2`, kept in quarters.
        out.d = f16_at(block, D) / 4.0;
        for (i, codes) in out.codes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let word = u32_at(block, SIGNS + i / 8 * 4);
            out.scales[i / 8] = (2 * (word >> 28) + 1) as i32;
            let signs = even_signs(word >> (7 * (i / 2 % 4))) >> (4 * (i % 2));
            signed(&grids::IQ3_XXS[usize::from(block[QS + i])], signs, codes);
        }
    }
}
