//! 256 elements in 8 groups: 4-bit scales, eight magnitudes at a time from a codebook of 256.

use crate::block::*;
use crate::grid::{even_signs, signed};
use crate::grids;

/// Offset of the f16 factor of the scales.
pub const D: usize = 0;
/// Offset of the groups, 8 bytes each: 4 codebook indices, then a u32 of four 7-bit sign indices, lowest first,
/// and the scale in its top 4 bits.
pub const QS: usize = 2;

pub(crate) const INFO: Info = Info::decoder::<IQ2_XXS, 256, 66>();

#[allow(non_camel_case_types)]
struct IQ2_XXS;

impl Block<256, 66> for IQ2_XXS {
    const ID: u32 = 16;
    const LAYOUT: Layout =
        Layout { group: 32, bits: 8, levels: Levels::Linear { zero: 128 }, scales: 1..=31, mins: 0..=0 };

    fn unpack(block: &[u8; 66], out: &mut Unpacked) {
        // A group's scale is `(s + 1/2) / 4`, kept in eighths.
        out.d = f16_at(block, D) / 8.0;
        let groups = block[QS..].as_chunks::<8>().0.iter();
        for ((group, codes), scale) in groups.zip(out.codes.chunks_exact_mut(32)).zip(&mut out.scales) {
            let word = u32_at(group, 4);
            *scale = (2 * (word >> 28) + 1) as i32;
            for (k, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                signed(&grids::IQ2_XXS[usize::from(group[k])], even_signs(word >> (7 * k)), codes);
            }
        }
    }
}
