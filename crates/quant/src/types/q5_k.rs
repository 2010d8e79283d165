//! 256 elements in 8 groups: 6-bit scales and minimums, codes of 5 bits.

use crate::bits::{
    pack_nibble_runs, pack_plane, pack_scales_and_mins, unpack_nibble_runs, unpack_plane, unpack_scales_and_mins,
};
use crate::block::*;
use crate::fit::Affine;

/// Offset of the f16 factor of the scales.
pub const D: usize = 0;
/// Offset of the f16 factor of the minimums, which are subtracted.
pub const DMIN: usize = 2;
/// Offset of 12 bytes of scales and minimums, as in [`q4_k::SCALES`](super::q4_k::SCALES).
pub const SCALES: usize = 4;
/// Offset of the planes of bit 4: group `k` is bit `k` of 32 bytes.
pub const QH: usize = 16;
/// Offset of the low nibbles of the codes: from each 32 bytes two groups, low nibbles first.
pub const QS: usize = 48;

pub(crate) const INFO: Info = Info::codec::<Q5_K, 256, 176>();

#[allow(non_camel_case_types)]
struct Q5_K;

impl Block<256, 176> for Q5_K {
    const ID: u32 = 13;
    const LAYOUT: Layout =
        Layout { group: 32, bits: 5, levels: Levels::Linear { zero: 0 }, scales: 0..=63, mins: 0..=63 };

    fn unpack(block: &[u8; 176], out: &mut Unpacked) {
        out.d = f16_at(block, D);
        out.m = -f16_at(block, DMIN);
        unpack_scales_and_mins(bytes(block, SCALES), &mut out.scales, &mut out.mins);
        unpack_nibble_runs::<32>(&block[QS..], &mut out.codes);
        unpack_plane(bytes(block, QH), 4, &mut out.codes);
    }
}

impl EncodeBlock<256, 176> for Q5_K {
    fn encode(x: &[f32; 256], block: &mut [u8; 176]) -> Result<(), OutOfRange> {
        let fit = Affine::fit::<4>(x, 31, 63)?;
        pack_scales_and_mins(&fit.scales, &fit.mins, &mut block[SCALES..QH]);
        pack_plane(&fit.codes, 4, &mut block[QH..QS]);
        pack_nibble_runs::<32>(&fit.codes, &mut block[QS..]);
        put_f16(block, D, fit.d)?;
        put_f16(block, DMIN, fit.dmin)
    }
}
