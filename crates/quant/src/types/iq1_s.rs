//! 256 elements in 8 groups: 3-bit scales, eight of -1, 0, 1 at a time from a codebook of 2048, all shifted by an
//! eighth.

use crate::block::*;
use crate::grids;

/// Offset of the f16 factor of the scales.
pub const D: usize = 0;
/// Offset of the low bytes of 32 codebook indices, one for eight elements.
pub const QS: usize = 2;
/// Offset of a u16 for each group: the high 3 bits of its four codebook indices, lowest first, 3 bits of scale, and
/// a bit that makes the shift negative.
pub const QH: usize = 34;

pub(crate) const INFO: Info = Info::decoder::<IQ1_S, 256, 50>();

#[allow(non_camel_case_types)]
struct IQ1_S;

impl Block<256, 50> for IQ1_S {
    const ID: u32 = 19;
    const LAYOUT: Layout =
        Layout { group: 32, bits: 8, levels: Levels::Linear { zero: 128 }, scales: 1..=15, mins: 0..=0 };

    fn unpack(block: &[u8; 50], out: &mut Unpacked) {
        // Levels are eighths.
        out.d = f16_at(block, D) / 8.0;
        for (i, codes) in out.codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let word = u16_at(block, QH + i / 4 * 2);
            out.scales[i / 4] = i32::from(2 * (word >> 12 & 7) + 1);
            let high = usize::from(word >> (3 * (i % 4)) & 7);
            shifted(usize::from(block[QS + i]) | high << 8, word & 0x8000 != 0, codes);
        }
    }
}

/// Writes eight codes of the codebook, less an eighth or more by one.
pub(super) fn shifted(index: usize, less: bool, codes: &mut [u8; 8]) {
    let zero = if less { 127 } else { 129u8 };
    for (c, &v) in codes.iter_mut().zip(&grids::IQ1_S[index]) {
        *c = zero.wrapping_add(v as u8);
    }
}
