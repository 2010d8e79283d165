//! F32, F16, BF16: blocks of one element.

use super::{Lane, LaneMut, word};

pub(super) fn pack_4(src: &[u8], lane: &mut LaneMut<'_>) {
    lane.put32(0, word(src, 0));
}

pub(super) fn unpack_4(lane: &Lane<'_>, dst: &mut [u8]) {
    dst.copy_from_slice(&lane.get32(0).to_le_bytes());
}

pub(super) fn pack_2(src: &[u8], lane: &mut LaneMut<'_>) {
    lane.put16(0, [src[0], src[1]]);
}

pub(super) fn unpack_2(lane: &Lane<'_>, dst: &mut [u8]) {
    dst.copy_from_slice(&lane.get16(0));
}
