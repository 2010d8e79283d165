//! 32 elements: one scale, codes of 4 bits into a table of levels that are denser around 0.

use crate::bits::{pack_nibbles, unpack_nibbles};
use crate::block::*;
use crate::fit::{Symmetric, Table};

/// Offset of the f16 scale.
pub const D: usize = 0;
/// Offset of the nibbles: low ones are elements 0..16, high ones 16..32.
pub const QS: usize = 2;
/// The levels of the 16 codes.
pub static LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

pub(crate) const INFO: Info = Info::codec::<IQ4_NL, 32, 18>();

#[allow(non_camel_case_types)]
struct IQ4_NL;

impl Block<32, 18> for IQ4_NL {
    const ID: u32 = 20;
    const LAYOUT: Layout = Layout::scaled(32, 4, Levels::Table(&LEVELS));

    fn unpack(block: &[u8; 18], out: &mut Unpacked) {
        out.set_scale(f16_at(block, D));
        unpack_nibbles(bytes(block, QS), out.block_codes());
    }
}

impl EncodeBlock<32, 18> for IQ4_NL {
    fn encode(x: &[f32; 32], block: &mut [u8; 18]) -> Result<(), OutOfRange> {
        let fit = Symmetric::fit::<4, _>(x, Table(&LEVELS), Self::LAYOUT.scales)?;
        pack_nibbles(bytes(&fit.codes, 0), &mut block[QS..]);
        put_f16(block, D, fit.d)
    }
}
