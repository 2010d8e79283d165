//! 256 elements in 16 groups: signed 6-bit scales, codes of 3 bits around 4.

use crate::bits::{pack_crumbs, pack_plane, unpack_crumbs, unpack_plane};
use crate::block::*;
use crate::fit::{Symmetric, Uniform};

/// Offset of the planes of bit 2: run `k` of 32 elements is bit `k` of 32 bytes.
pub const HMASK: usize = 0;
/// Offset of the low two bits: from each 32 bytes four runs of 32 elements, lowest bits first.
pub const QS: usize = 32;
/// Offset of 12 bytes of scales, each 32 too high: low nibbles of 8 bytes are the low 4 bits of scales 0..8, high
/// ones of 8..16; bits `2 * (i / 4)` of byte `8 + i % 4` are the high 2 bits of scale `i`.
pub const SCALES: usize = 96;
/// Offset of the f16 factor of the scales.
pub const D: usize = 108;

pub(crate) const INFO: Info = Info::codec::<Q3_K, 256, 110>();

#[allow(non_camel_case_types)]
struct Q3_K;

impl Block<256, 110> for Q3_K {
    const ID: u32 = 11;
    const LAYOUT: Layout =
        Layout { group: 16, bits: 3, levels: Levels::Linear { zero: 4 }, scales: -32..=31, mins: 0..=0 };

    fn unpack(block: &[u8; 110], out: &mut Unpacked) {
        out.d = f16_at(block, D);
        let packed = bytes::<12>(block, SCALES);
        for (i, s) in out.scales.iter_mut().enumerate() {
            let low = packed[i % 8] >> (4 * (i / 8)) & 15;
            let high = packed[8 + i % 4] >> (2 * (i / 4)) & 3;
            *s = i32::from(low | high << 4) - 32;
        }
        unpack_crumbs(bytes(block, QS), &mut out.codes);
        unpack_plane(bytes(block, HMASK), 2, &mut out.codes);
    }
}

impl EncodeBlock<256, 110> for Q3_K {
    fn encode(x: &[f32; 256], block: &mut [u8; 110]) -> Result<(), OutOfRange> {
        let fit = Symmetric::fit::<2, _>(x, Uniform { zero: 4.0 }, Self::LAYOUT.scales)?;
        let packed = &mut block[SCALES..D];
        packed.fill(0);
        for (i, s) in fit.scales.iter().enumerate() {
            let s = (s + 32) as u8;
            packed[i % 8] |= (s & 15) << (4 * (i / 8));
            packed[8 + i % 4] |= s >> 4 << (2 * (i / 4));
        }
        pack_crumbs(&fit.codes, &mut block[QS..SCALES]);
        pack_plane(&fit.codes, 2, &mut block[HMASK..QS]);
        put_f16(block, D, fit.d)
    }
}
