//! Types with blocks of 32 elements.
//!
//! | type | fields of a packed block, each for 16 rows |
//! |---|---|
//! | Q8_0 | `d` f16; 8 code vectors, code = value + 128 |
//! | Q4_0, IQ4_NL | `d` f16; 4 nibble vectors |
//! | Q4_1 | `d` f16; `m` f16; 4 nibble vectors |
//! | Q5_0 | `d` f16; high bits u32; 4 nibble vectors |
//! | Q5_1 | `d` f16; `m` f16; high bits u32; 4 nibble vectors |
//! | MXFP4 | exponent u8; 4 nibble vectors |
//!
//! Nibble vector `v` holds elements 4v.. in its low and 16 + 4v.. in its high nibbles, which are the GGUF bytes
//! 4v.. as they are. Bit `8c + v` of the high bits belongs to element `4v + c`.

use super::{Lane, LaneMut, set_word, word};
use crate::isa::LANES;

pub(super) fn pack_q8_0(src: &[u8], lane: &mut LaneMut<'_>) {
    lane.put16(0, [src[0], src[1]]);
    for v in 0..8 {
        lane.put32(2 * LANES + 64 * v, word(src, 2 + 4 * v) ^ 0x8080_8080);
    }
}

pub(super) fn unpack_q8_0(lane: &Lane<'_>, dst: &mut [u8]) {
    dst[..2].copy_from_slice(&lane.get16(0));
    for v in 0..8 {
        set_word(dst, 2 + 4 * v, lane.get32(2 * LANES + 64 * v) ^ 0x8080_8080);
    }
}

/// Scales of `SCALES` bytes (one exponent, or one or two f16), then nibbles.
pub(super) fn pack_nibbles<const SCALES: usize>(src: &[u8], lane: &mut LaneMut<'_>) {
    pack_scales::<SCALES>(src, lane);
    for v in 0..4 {
        lane.put32(SCALES * LANES + 64 * v, word(src, SCALES + 4 * v));
    }
}

pub(super) fn unpack_nibbles<const SCALES: usize>(lane: &Lane<'_>, dst: &mut [u8]) {
    unpack_scales::<SCALES>(lane, dst);
    for v in 0..4 {
        set_word(dst, SCALES + 4 * v, lane.get32(SCALES * LANES + 64 * v));
    }
}

/// Scales of `SCALES` bytes, then high bits, then nibbles.
pub(super) fn pack_five<const SCALES: usize>(src: &[u8], lane: &mut LaneMut<'_>) {
    pack_scales::<SCALES>(src, lane);
    lane.put32(SCALES * LANES, SWAPS.into_iter().fold(word(src, SCALES), swap));
    for v in 0..4 {
        lane.put32((SCALES + 4) * LANES + 64 * v, word(src, SCALES + 4 + 4 * v));
    }
}

pub(super) fn unpack_five<const SCALES: usize>(lane: &Lane<'_>, dst: &mut [u8]) {
    unpack_scales::<SCALES>(lane, dst);
    set_word(dst, SCALES, SWAPS.into_iter().rev().fold(lane.get32(SCALES * LANES), swap));
    for v in 0..4 {
        set_word(dst, SCALES + 4 + 4 * v, lane.get32((SCALES + 4) * LANES + 64 * v));
    }
}

fn pack_scales<const SCALES: usize>(src: &[u8], lane: &mut LaneMut<'_>) {
    if SCALES == 1 {
        lane.put8(0, src[0]);
    } else {
        for i in 0..SCALES / 2 {
            lane.put16(2 * LANES * i, [src[2 * i], src[2 * i + 1]]);
        }
    }
}

fn unpack_scales<const SCALES: usize>(lane: &Lane<'_>, dst: &mut [u8]) {
    if SCALES == 1 {
        dst[0] = lane.get8(0);
    } else {
        for i in 0..SCALES / 2 {
            dst[2 * i..2 * i + 2].copy_from_slice(&lane.get16(2 * LANES * i));
        }
    }
}

/// Digits of the numbers of bits that change places, one pair after the other, to bring bit `4v + c` to `8c + v`.
const SWAPS: [(u32, u32); 4] = [(1, 4), (0, 3), (1, 2), (0, 1)];

/// Exchanges each bit whose number has binary digit `a` but not `b` with the one whose number has `b` but not `a`.
fn swap(bits: u32, (a, b): (u32, u32)) -> u32 {
    /// Bits whose number has a digit.
    const WITH: [u32; 5] = [0xaaaa_aaaa, 0xcccc_cccc, 0xf0f0_f0f0, 0xff00_ff00, 0xffff_0000];
    let shift = (1 << b) - (1 << a);
    let differ = (bits ^ (bits >> shift)) & WITH[a as usize] & !WITH[b as usize];
    bits ^ differ ^ (differ << shift)
}
