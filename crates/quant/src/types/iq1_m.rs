//! 256 elements in 16 groups: 3-bit scales, eight of -1, 0, 1 at a time from a codebook of 2048, shifted by an
//! eighth.

use super::iq1_s::shifted;
use crate::block::*;
use half::f16;

/// Offset of the low bytes of 32 codebook indices, one for eight elements.
pub const QS: usize = 0;
/// Offset of 32 nibbles, low ones first: the high 3 bits of a codebook index, and a bit that makes the shift
/// negative.
pub const QH: usize = 32;
/// Offset of four u16: each four 3-bit scales, lowest first, under 4 bits of the f16 factor, lowest first.
pub const SCALES: usize = 48;

pub(crate) const INFO: Info = Info::decoder::<IQ1_M, 256, 56>();

#[allow(non_camel_case_types)]
struct IQ1_M;

impl Block<256, 56> for IQ1_M {
    const ID: u32 = 29;
    const LAYOUT: Layout =
        Layout { group: 16, bits: 8, levels: Levels::Linear { zero: 128 }, scales: 1..=15, mins: 0..=0 };

    fn unpack(block: &[u8; 56], out: &mut Unpacked) {
        let mut d = 0;
        for (k, scales) in out.scales.chunks_exact_mut(4).enumerate() {
            let word = u16_at(block, SCALES + 2 * k);
            d |= word >> 12 << (4 * k);
            for (j, s) in scales.iter_mut().enumerate() {
                *s = i32::from(2 * (word >> (3 * j) & 7) + 1);
            }
        }
        // Levels are eighths.
        out.d = f16::from_bits(d).to_f32() / 8.0;
        for (i, codes) in out.codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let nibble = block[QH + i / 2] >> (4 * (i % 2)) & 15;
            shifted(usize::from(block[QS + i]) | usize::from(nibble & 7) << 8, nibble & 8 != 0, codes);
        }
    }
}
