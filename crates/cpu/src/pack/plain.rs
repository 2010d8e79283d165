//! F32, F16, BF16: blocks of one element.

use super::Lane;
use crate::isa::LANES;

/// Columns that are packed at a time: their part of the group stays in the fastest cache while all rows are written.
const COLUMNS: usize = 64;

/// Packs rows of elements of `N` bytes.
pub(super) fn pack<const N: usize>(rows: &[u8], row_bytes: usize, group: &mut [u8]) {
    for (b, columns) in group.chunks_mut(COLUMNS * LANES * N).enumerate() {
        let (columns, _) = columns.as_chunks_mut::<N>();
        let first = b * COLUMNS * N;
        for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
            let (elements, _) = row[first..].as_chunks::<N>();
            for (column, element) in columns.chunks_exact_mut(LANES).zip(elements) {
                column[lane] = *element;
            }
        }
    }
}

pub(super) fn unpack_4(lane: &Lane<'_>, dst: &mut [u8]) {
    dst.copy_from_slice(&lane.get32(0).to_le_bytes());
}

pub(super) fn unpack_2(lane: &Lane<'_>, dst: &mut [u8]) {
    dst.copy_from_slice(&lane.get16(0));
}
