//! 256 elements in 8 groups: 6-bit scales and minimums, codes of 4 bits.

use crate::bits::{pack_nibble_runs, pack_scales_and_mins, unpack_nibble_runs, unpack_scales_and_mins};
use crate::block::*;
use crate::fit::Affine;

/// Offset of the f16 factor of the scales.
pub const D: usize = 0;
/// Offset of the f16 factor of the minimums, which are subtracted.
pub const DMIN: usize = 2;
/// Offset of 12 bytes of scales and minimums. Those of groups 0..4 are the low 6 bits of bytes 0..4 and 4..8; the
/// low 4 bits of those of groups 4..8 are the nibbles of bytes 8..12, and their high 2 bits are the top of bytes
/// 0..4 and 4..8.
pub const SCALES: usize = 4;
/// Offset of the nibbles: from each 32 bytes two groups, low nibbles first.
pub const QS: usize = 16;

pub(crate) const INFO: Info = Info::codec::<Q4_K, 256, 144>();

#[allow(non_camel_case_types)]
struct Q4_K;

impl Block<256, 144> for Q4_K {
    const ID: u32 = 12;
    const LAYOUT: Layout =
        Layout { group: 32, bits: 4, levels: Levels::Linear { zero: 0 }, scales: 0..=63, mins: 0..=63 };

    fn unpack(block: &[u8; 144], out: &mut Unpacked) {
        out.d = f16_at(block, D);
        out.m = -f16_at(block, DMIN);
        unpack_scales_and_mins(bytes(block, SCALES), &mut out.scales, &mut out.mins);
        unpack_nibble_runs::<32>(&block[QS..], &mut out.codes);
    }
}

impl EncodeBlock<256, 144> for Q4_K {
    fn encode(x: &[f32; 256], block: &mut [u8; 144]) -> Result<(), OutOfRange> {
        let fit = Affine::fit::<4>(x, 15, 63)?;
        pack_scales_and_mins(&fit.scales, &fit.mins, &mut block[SCALES..QS]);
        pack_nibble_runs::<32>(&fit.codes, &mut block[QS..]);
        put_f16(block, D, fit.d)?;
        put_f16(block, DMIN, fit.dmin)
    }
}
