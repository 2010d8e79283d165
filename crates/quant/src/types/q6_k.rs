//! 256 elements in 16 groups: signed 8-bit scales, codes of 6 bits around 32.

use crate::bits::{pack_crumbs, pack_nibble_runs, unpack_crumbs, unpack_nibble_runs};
use crate::block::*;
use crate::fit::{Symmetric, Uniform};

/// Offset of the low nibbles: from each 64 bytes two runs of 64 elements, low nibbles first.
pub const QL: usize = 0;
/// Offset of the high two bits: from each 32 bytes four runs of 32 elements, lowest bits first.
pub const QH: usize = 128;
/// Offset of the 16 signed bytes of scales.
pub const SCALES: usize = 192;
/// Offset of the f16 factor of the scales.
pub const D: usize = 208;

pub(crate) const INFO: Info = Info::codec::<Q6_K, 256, 210>();

#[allow(non_camel_case_types)]
struct Q6_K;

impl Block<256, 210> for Q6_K {
    const ID: u32 = 14;
    const LAYOUT: Layout =
        Layout { group: 16, bits: 6, levels: Levels::Linear { zero: 32 }, scales: -128..=127, mins: 0..=0 };

    fn unpack(block: &[u8; 210], out: &mut Unpacked) {
        out.d = f16_at(block, D);
        out.scales = bytes::<16>(block, SCALES).map(|s| i32::from(s as i8));
        let mut high = [0; 256];
        unpack_crumbs(bytes(block, QH), &mut high);
        unpack_nibble_runs::<64>(&block[QL..QH], &mut out.codes);
        for (c, h) in out.codes.iter_mut().zip(high) {
            *c |= h << 4;
        }
    }
}

impl EncodeBlock<256, 210> for Q6_K {
    fn encode(x: &[f32; 256], block: &mut [u8; 210]) -> Result<(), OutOfRange> {
        let fit = Symmetric::fit::<2, _>(x, Uniform { zero: 32.0 }, Self::LAYOUT.scales)?;
        pack_nibble_runs::<64>(&fit.codes, &mut block[QL..QH]);
        pack_crumbs(&fit.codes.map(|c| c >> 4), &mut block[QH..SCALES]);
        block[SCALES..D].copy_from_slice(&fit.scales.map(|s| s as i8 as u8));
        put_f16(block, D, fit.d)
    }
}
