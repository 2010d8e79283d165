//! Bit fields of codes: how the formats pack them, and back.

use crate::block::bytes;

/// For each bit, lowest first, 255 where it is set and 0 where not.
#[inline(always)]
pub(crate) fn masks(bits: u8) -> [u8; 8] {
    // Comparisons with constants are vector instructions where shifts of bytes are not.
    [1, 2, 4, 8, 16, 32, 64, 128].map(|bit: u8| if bits & bit != 0 { 255 } else { 0 })
}

/// Low nibbles of `packed` to `low`, high nibbles to `high`.
pub(crate) fn split_nibbles(packed: &[u8], low: &mut [u8], high: &mut [u8]) {
    for ((&b, l), h) in packed.iter().zip(low).zip(high) {
        *l = b & 15;
        *h = b >> 4;
    }
}

/// The nibbles of a 32-element block: low ones are the first half, high ones the second.
pub(crate) fn unpack_nibbles(packed: &[u8; 16], codes: &mut [u8; 32]) {
    let (low, high) = codes.split_at_mut(16);
    split_nibbles(packed, low, high);
}

/// The inverse of [`unpack_nibbles`]; only the low four bits of the codes are stored.
pub(crate) fn pack_nibbles(codes: &[u8; 32], packed: &mut [u8]) {
    let (low, high) = codes.split_at(16);
    for ((p, &l), &h) in packed.iter_mut().zip(low).zip(high) {
        *p = l & 15 | h << 4;
    }
}

/// Two-bit fields of `packed` in the order of the K-quants: from each 32 bytes four runs of 32 elements, lowest
/// bits first.
pub(crate) fn unpack_crumbs(packed: &[u8; 64], codes: &mut [u8; 256]) {
    for (packed, codes) in packed.chunks_exact(32).zip(codes.chunks_exact_mut(128)) {
        for (k, run) in codes.chunks_exact_mut(32).enumerate() {
            for (c, &p) in run.iter_mut().zip(packed) {
                *c = p >> (2 * k) & 3;
            }
        }
    }
}

/// The inverse of [`unpack_crumbs`]; only the low two bits of the codes are stored.
pub(crate) fn pack_crumbs(codes: &[u8; 256], packed: &mut [u8]) {
    for (packed, codes) in packed.chunks_exact_mut(32).zip(codes.chunks_exact(128)) {
        packed.fill(0);
        for (k, run) in codes.chunks_exact(32).enumerate() {
            for (p, &c) in packed.iter_mut().zip(run) {
                *p |= (c & 3) << (2 * k);
            }
        }
    }
}

/// Bit `bit` of each code to the bit planes of the K-quants: run `k` of 32 elements is bit `k` of 32 bytes.
pub(crate) fn pack_plane(codes: &[u8; 256], bit: u32, plane: &mut [u8]) {
    plane.fill(0);
    for (k, run) in codes.chunks_exact(32).enumerate() {
        for (p, &c) in plane.iter_mut().zip(run) {
            *p |= (c >> bit & 1) << k;
        }
    }
}

/// Adds the bit planes of [`pack_plane`] to codes whose bit `bit` is clear.
pub(crate) fn unpack_plane(plane: &[u8; 32], bit: u32, codes: &mut [u8; 256]) {
    for (k, run) in codes.chunks_exact_mut(32).enumerate() {
        for (c, &p) in run.iter_mut().zip(plane) {
            *c |= (p >> k & 1) << bit;
        }
    }
}

/// Five-bit codes: nibbles at `qs`, the fifth bits in the u32 at `qh`.
pub(crate) fn unpack_five(block: &[u8], qh: usize, qs: usize, codes: &mut [u8; 32]) {
    unpack_nibbles(bytes(block, qs), codes);
    for (codes, &high) in codes.as_chunks_mut::<8>().0.iter_mut().zip(bytes::<4>(block, qh)) {
        for (c, set) in codes.iter_mut().zip(masks(high)) {
            *c |= set & 16;
        }
    }
}

/// The inverse of [`unpack_five`].
pub(crate) fn pack_five(codes: &[u8; 32], block: &mut [u8], qh: usize, qs: usize) {
    let high = codes.iter().enumerate().fold(0, |high, (i, &c)| high | u32::from(c >> 4) << i);
    block[qh..qh + 4].copy_from_slice(&high.to_le_bytes());
    pack_nibbles(codes, &mut block[qs..]);
}

/// Nibbles in runs: from each `RUN` bytes `RUN` elements of low nibbles, then `RUN` of high ones.
pub(crate) fn unpack_nibble_runs<const RUN: usize>(packed: &[u8], codes: &mut [u8; 256]) {
    for (packed, codes) in packed.as_chunks::<RUN>().0.iter().zip(codes.chunks_exact_mut(2 * RUN)) {
        let (low, high) = codes.split_at_mut(RUN);
        split_nibbles(packed, low, high);
    }
}

/// The inverse of [`unpack_nibble_runs`]; only the low four bits of the codes are stored.
pub(crate) fn pack_nibble_runs<const RUN: usize>(codes: &[u8; 256], packed: &mut [u8]) {
    for (packed, codes) in packed.chunks_exact_mut(RUN).zip(codes.chunks_exact(2 * RUN)) {
        let (low, high) = codes.split_at(RUN);
        for ((p, &l), &h) in packed.iter_mut().zip(low).zip(high) {
            *p = l & 15 | h << 4;
        }
    }
}

/// The 6-bit scales and minimums of Q4_K and Q5_K; see [`SCALES`](crate::types::q4_k::SCALES).
pub(crate) fn unpack_scales_and_mins(packed: &[u8; 12], scales: &mut [i32; 16], mins: &mut [i32; 16]) {
    for g in 0..4 {
        let (s, m, low) = (packed[g], packed[g + 4], packed[g + 8]);
        scales[g] = i32::from(s & 63);
        mins[g] = i32::from(m & 63);
        scales[g + 4] = i32::from(low & 15 | s >> 6 << 4);
        mins[g + 4] = i32::from(low >> 4 | m >> 6 << 4);
    }
}

/// The inverse of [`unpack_scales_and_mins`].
pub(crate) fn pack_scales_and_mins(scales: &[u8; 16], mins: &[u8; 16], packed: &mut [u8]) {
    for g in 0..4 {
        packed[g] = scales[g] | scales[g + 4] >> 4 << 6;
        packed[g + 4] = mins[g] | mins[g + 4] >> 4 << 6;
        packed[g + 8] = scales[g + 4] & 15 | mins[g + 4] << 4;
    }
}
