//! F32 and F16: blocks of one element. BF16: words of two columns, the first in the high half; a last column without a
//! partner lies by itself.

use super::Lane;
use crate::bf16;
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

/// Packs rows of BF16, tiny elements as zero.
pub(super) fn pack_bf16(rows: &[u8], row_bytes: usize, group: &mut [u8]) {
    let paired = row_bytes / 4 * 4;
    let (pairs, alone) = group.split_at_mut(paired * LANES);
    for (b, columns) in pairs.chunks_mut(COLUMNS * LANES * 2).enumerate() {
        let (words, _) = columns.as_chunks_mut::<4>();
        let first = b * COLUMNS * 2;
        for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
            let mut elements = [[0; 2]; COLUMNS];
            for (to, bits) in elements.iter_mut().zip(row[first..].as_chunks().0) {
                *to = bf16::weight(*bits);
            }
            for (word, [[a, b], [c, d]]) in
                words[lane..].iter_mut().step_by(LANES).zip(elements.as_chunks().0)
            {
                *word = [*c, *d, *a, *b];
            }
        }
    }
    for (to, row) in alone.as_chunks_mut().0.iter_mut().zip(rows.chunks_exact(row_bytes)) {
        *to = bf16::weight([row[paired], row[paired + 1]]);
    }
}

/// Reads the row of a lane of a group of BF16.
pub(super) fn unpack_bf16(group: &[u8], lane: usize, row: &mut [u8]) {
    let (words, _) = group.as_chunks::<4>();
    let (pairs, alone) = row.as_chunks_mut::<4>();
    let paired = pairs.len() * LANES;
    for (pair, [c, d, a, b]) in pairs.iter_mut().zip(words[..paired].iter().skip(lane).step_by(LANES)) {
        *pair = [*a, *b, *c, *d];
    }
    let (column, _) = group[4 * paired..].as_chunks::<2>();
    if let Some(element) = column.get(lane) {
        alone.copy_from_slice(element);
    }
}
