//! 256 elements in 16 groups: 4-bit scales and minimums, codes of 2 bits.

use crate::bits::{pack_crumbs, unpack_crumbs};
use crate::block::*;
use crate::fit::Affine;

/// Offset of the 16 bytes of scales (low nibbles) and minimums (high nibbles).
pub const SCALES: usize = 0;
/// Offset of the codes: from each 32 bytes four runs of 32 elements, lowest bits first.
pub const QS: usize = 16;
/// Offset of the f16 factor of the scales.
pub const D: usize = 80;
/// Offset of the f16 factor of the minimums, which are subtracted.
pub const DMIN: usize = 82;

pub(crate) const INFO: Info = Info::codec::<Q2_K, 256, 84>();

#[allow(non_camel_case_types)]
struct Q2_K;

impl Block<256, 84> for Q2_K {
    const ID: u32 = 10;
    const LAYOUT: Layout =
        Layout { group: 16, bits: 2, levels: Levels::Linear { zero: 0 }, scales: 0..=15, mins: 0..=15 };

    fn unpack(block: &[u8; 84], out: &mut Unpacked) {
        out.d = f16_at(block, D);
        out.m = -f16_at(block, DMIN);
        for ((s, m), &b) in out.scales.iter_mut().zip(&mut out.mins).zip(bytes::<16>(block, SCALES)) {
            *s = i32::from(b & 15);
            *m = i32::from(b >> 4);
        }
        unpack_crumbs(bytes(block, QS), &mut out.codes);
    }
}

impl EncodeBlock<256, 84> for Q2_K {
    fn encode(x: &[f32; 256], block: &mut [u8; 84]) -> Result<(), OutOfRange> {
        let fit = Affine::fit::<2>(x, 3, 15)?;
        for (b, (s, m)) in block[SCALES..QS].iter_mut().zip(fit.scales.iter().zip(&fit.mins)) {
            *b = s | m << 4;
        }
        pack_crumbs(&fit.codes, &mut block[QS..D]);
        put_f16(block, D, fit.d)?;
        put_f16(block, DMIN, fit.dmin)
    }
}
