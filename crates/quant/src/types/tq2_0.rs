//! 256 ternary elements: one scale, codes of 2 bits around 1.

use super::tq1_0::ternary;
use crate::bits::{pack_crumbs, unpack_crumbs};
use crate::block::*;

/// Offset of the codes: from each 32 bytes four runs of 32 elements, lowest bits first.
pub const QS: usize = 0;
/// Offset of the f16 scale.
pub const D: usize = 64;

pub(crate) const INFO: Info = Info::codec::<TQ2_0, 256, 66>();

#[allow(non_camel_case_types)]
struct TQ2_0;

impl Block<256, 66> for TQ2_0 {
    const ID: u32 = 35;
    const LAYOUT: Layout = Layout::scaled(256, 2, Levels::Linear { zero: 1 });

    fn unpack(block: &[u8; 66], out: &mut Unpacked) {
        out.set_scale(f16_at(block, D));
        unpack_crumbs(bytes(block, QS), &mut out.codes);
    }
}

impl EncodeBlock<256, 66> for TQ2_0 {
    fn encode(x: &[f32; 256], block: &mut [u8; 66]) -> Result<(), OutOfRange> {
        let (d, codes) = ternary(x);
        pack_crumbs(&codes, &mut block[QS..D]);
        put_f16(block, D, d)
    }
}
