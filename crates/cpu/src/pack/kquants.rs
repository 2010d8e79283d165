//! Types with blocks of 256 elements.
//!
//! | type | fields of a packed block, each for 16 rows |
//! |---|---|
//! | Q4_K | `d` f16; `dmin` f16; the 12 scale bytes as 3 u32; for each 32 elements 4 nibble vectors |
//! | Q5_K | `d` f16; `dmin` f16; the 12 scale bytes as 3 u32; for each 32 elements high bits u32, 4 nibble vectors |
//! | Q6_K | `d` f16; for each 64 elements 4 scales i8, 4 times a nibble vector A, a pair vector, a nibble vector B |
//! | Q2_K | `d` f16; `dmin` f16; for each 64 elements 4 bytes of scale and minimum, 4 pair vectors |
//! | Q3_K | `d` f16; the 12 scale bytes as 3 u32; for each 64 elements high bits 2 u32, 4 pair vectors |
//! | IQ4_XS | `d` f16; high scale bits u16; low scale bits u32; for each 32 elements 4 nibble vectors |
//!
//! Nibble vectors of 32 elements and their high bits are as in the types with blocks of 32. In runs of 64
//! elements, four parts of 16: nibble vectors A hold parts 0 (low) and 2 (high), B parts 1 and 3; pair vector `v`
//! holds elements 4v.. of part `p` in bits 2p and 2p + 1 of each byte; bit `8c + k` of high-bit word `w` belongs
//! to element `c` of vector `8w + k`, counted over the four parts.

use super::{Lane, LaneMut, set_word, word};
use crate::isa::LANES;

const LOW: u32 = 0x0f0f_0f0f;
const PAIR: u32 = 0x0303_0303;
const BIT: u32 = 0x0101_0101;
const HALF: usize = 2 * LANES;

fn put_half(lane: &mut LaneMut<'_>, field: usize, src: &[u8], at: usize) {
    lane.put16(field, [src[at], src[at + 1]]);
}

fn get_half(lane: &Lane<'_>, field: usize, dst: &mut [u8], at: usize) {
    dst[at..at + 2].copy_from_slice(&lane.get16(field));
}

/// The 32 bytes at `at` with elements 0..32 in low and 32..64 in high nibbles, as two runs of nibble vectors.
fn pack_64_nibbles(src: &[u8], at: usize, lane: &mut LaneMut<'_>, first: usize, second: usize) {
    for v in 0..4 {
        let (a, b) = (word(src, at + 4 * v), word(src, at + 16 + 4 * v));
        lane.put32(first + 64 * v, (a & LOW) | ((b & LOW) << 4));
        lane.put32(second + 64 * v, ((a >> 4) & LOW) | (b & !LOW));
    }
}

fn unpack_64_nibbles(lane: &Lane<'_>, first: usize, second: usize, dst: &mut [u8], at: usize) {
    for v in 0..4 {
        let (a, b) = (lane.get32(first + 64 * v), lane.get32(second + 64 * v));
        set_word(dst, at + 4 * v, (a & LOW) | ((b & LOW) << 4));
        set_word(dst, at + 16 + 4 * v, ((a >> 4) & LOW) | (b & !LOW));
    }
}

/// Two-bit values of run `g` of 64 elements, vector `v` at `field(v)`: GGUF keeps 128 elements in 32 bytes at `at`, four
/// to a byte.
fn pack_pairs(src: &[u8], at: usize, g: usize, lane: &mut LaneMut<'_>, field: impl Fn(usize) -> usize) {
    let (at, shift) = (at + 32 * (g / 2), 4 * (g % 2));
    for v in 0..4 {
        let (a, b) = (word(src, at + 4 * v) >> shift, word(src, at + 16 + 4 * v) >> shift);
        let value = (a & PAIR) | ((b & PAIR) << 2) | (((a >> 2) & PAIR) << 4) | (((b >> 2) & PAIR) << 6);
        lane.put32(field(v), value);
    }
}

/// Adds the two-bit values of run `g` to bytes that start as zero.
fn unpack_pairs(lane: &Lane<'_>, field: impl Fn(usize) -> usize, dst: &mut [u8], at: usize, g: usize) {
    let (at, shift) = (at + 32 * (g / 2), 4 * (g % 2));
    for v in 0..4 {
        let value = lane.get32(field(v));
        let a = (value & PAIR) | (((value >> 4) & PAIR) << 2);
        let b = ((value >> 2) & PAIR) | (((value >> 6) & PAIR) << 2);
        for (at, bits) in [(at + 4 * v, a), (at + 16 + 4 * v, b)] {
            let old = word(dst, at);
            set_word(dst, at, old | (bits << shift));
        }
    }
}

pub(super) fn pack_q4(src: &[u8], lane: &mut LaneMut<'_>) {
    pack_scales(src, lane);
    for g in 0..4 {
        pack_64_nibbles(src, 16 + 32 * g, lane, 256 + 512 * g, 512 + 512 * g);
    }
}

pub(super) fn unpack_q4(lane: &Lane<'_>, dst: &mut [u8]) {
    unpack_scales(lane, dst);
    for g in 0..4 {
        unpack_64_nibbles(lane, 256 + 512 * g, 512 + 512 * g, dst, 16 + 32 * g);
    }
}

/// Of Q4_K and Q5_K: `d`, `dmin`, 12 bytes.
fn pack_scales(src: &[u8], lane: &mut LaneMut<'_>) {
    put_half(lane, 0, src, 0);
    put_half(lane, HALF, src, 2);
    for i in 0..3 {
        lane.put32(64 + 64 * i, word(src, 4 + 4 * i));
    }
}

fn unpack_scales(lane: &Lane<'_>, dst: &mut [u8]) {
    get_half(lane, 0, dst, 0);
    get_half(lane, HALF, dst, 2);
    for i in 0..3 {
        set_word(dst, 4 + 4 * i, lane.get32(64 + 64 * i));
    }
}

/// Field of the high bits of the 32 elements `j` of Q5_K; the nibbles follow.
const fn q5_run(j: usize) -> usize {
    256 + 320 * j
}

pub(super) fn pack_q5(src: &[u8], lane: &mut LaneMut<'_>) {
    pack_scales(src, lane);
    for j in 0..8 {
        let bits = (0..8).fold(0, |bits, v| bits | (((word(src, 16 + 4 * v) >> j) & BIT) << v));
        lane.put32(q5_run(j), bits);
    }
    for g in 0..4 {
        pack_64_nibbles(src, 48 + 32 * g, lane, q5_run(2 * g) + 64, q5_run(2 * g + 1) + 64);
    }
}

pub(super) fn unpack_q5(lane: &Lane<'_>, dst: &mut [u8]) {
    unpack_scales(lane, dst);
    for v in 0..8 {
        let bits = (0..8).fold(0, |bits, j| bits | (((lane.get32(q5_run(j)) >> v) & BIT) << j));
        set_word(dst, 16 + 4 * v, bits);
    }
    for g in 0..4 {
        unpack_64_nibbles(lane, q5_run(2 * g) + 64, q5_run(2 * g + 1) + 64, dst, 48 + 32 * g);
    }
}

/// Field of the scales of run `g` of Q6_K.
const fn q6_run(g: usize) -> usize {
    HALF + 832 * g
}

/// Fields of the vectors A, pairs and B with elements `4 * v..` of each part, in a run of Q6_K.
const fn q6_vectors(run: usize, v: usize) -> [usize; 3] {
    let first = run + 64 + 192 * v;
    [first, first + 64, first + 128]
}

pub(super) fn pack_q6(src: &[u8], lane: &mut LaneMut<'_>) {
    put_half(lane, 0, src, 208);
    for g in 0..4 {
        let run = q6_run(g);
        lane.put32(run, word(src, 192 + 4 * g));
        // 128 elements lie in 64 bytes: the low nibbles hold the first 64, the high nibbles the others.
        let (at, shift) = (64 * (g / 2), 4 * (g % 2));
        for v in 0..4 {
            let part = |p: usize| (word(src, at + 16 * p + 4 * v) >> shift) & LOW;
            let [a, _, b] = q6_vectors(run, v);
            lane.put32(a, part(0) | (part(2) << 4));
            lane.put32(b, part(1) | (part(3) << 4));
        }
        pack_pairs(src, 128, g, lane, |v| q6_vectors(run, v)[1]);
    }
}

pub(super) fn unpack_q6(lane: &Lane<'_>, dst: &mut [u8]) {
    dst.fill(0);
    get_half(lane, 0, dst, 208);
    for g in 0..4 {
        let run = q6_run(g);
        set_word(dst, 192 + 4 * g, lane.get32(run));
        let (at, shift) = (64 * (g / 2), 4 * (g % 2));
        for v in 0..4 {
            let [a, _, b] = q6_vectors(run, v).map(|field| lane.get32(field));
            for (p, bits) in [a & LOW, b & LOW, (a >> 4) & LOW, (b >> 4) & LOW].into_iter().enumerate() {
                let at = at + 16 * p + 4 * v;
                let old = word(dst, at);
                set_word(dst, at, old | (bits << shift));
            }
        }
        unpack_pairs(lane, |v| q6_vectors(run, v)[1], dst, 128, g);
    }
}

/// Field of the scales of run `g` of Q2_K; the pairs follow.
const fn q2_run(g: usize) -> usize {
    2 * HALF + 320 * g
}

pub(super) fn pack_q2(src: &[u8], lane: &mut LaneMut<'_>) {
    put_half(lane, 0, src, 80);
    put_half(lane, HALF, src, 82);
    for g in 0..4 {
        lane.put32(q2_run(g), word(src, 4 * g));
        pack_pairs(src, 16, g, lane, |v| q2_run(g) + 64 + 64 * v);
    }
}

pub(super) fn unpack_q2(lane: &Lane<'_>, dst: &mut [u8]) {
    dst.fill(0);
    get_half(lane, 0, dst, 80);
    get_half(lane, HALF, dst, 82);
    for g in 0..4 {
        set_word(dst, 4 * g, lane.get32(q2_run(g)));
        unpack_pairs(lane, |v| q2_run(g) + 64 + 64 * v, dst, 16, g);
    }
}

/// Field of the high bits of run `g` of Q3_K; the pairs follow.
const fn q3_run(g: usize) -> usize {
    HALF + 192 + 384 * g
}

/// Where the high bit of vector `8w + k` of run `g` lies in GGUF: the word, and the bit of each byte.
const fn q3_high(g: usize, w: usize, k: usize) -> (usize, usize) {
    (4 * k, 2 * g + w)
}

pub(super) fn pack_q3(src: &[u8], lane: &mut LaneMut<'_>) {
    put_half(lane, 0, src, 108);
    for i in 0..3 {
        lane.put32(HALF + 64 * i, word(src, 96 + 4 * i));
    }
    for g in 0..4 {
        for w in 0..2 {
            let bits = (0..8).fold(0, |bits, k| {
                let (at, bit) = q3_high(g, w, k);
                bits | (((word(src, at) >> bit) & BIT) << k)
            });
            lane.put32(q3_run(g) + 64 * w, bits);
        }
        pack_pairs(src, 32, g, lane, |v| q3_run(g) + 128 + 64 * v);
    }
}

pub(super) fn unpack_q3(lane: &Lane<'_>, dst: &mut [u8]) {
    dst.fill(0);
    get_half(lane, 0, dst, 108);
    for i in 0..3 {
        set_word(dst, 96 + 4 * i, lane.get32(HALF + 64 * i));
    }
    for g in 0..4 {
        for w in 0..2 {
            let bits = lane.get32(q3_run(g) + 64 * w);
            for k in 0..8 {
                let (at, bit) = q3_high(g, w, k);
                let old = word(dst, at);
                set_word(dst, at, old | (((bits >> k) & BIT) << bit));
            }
        }
        unpack_pairs(lane, |v| q3_run(g) + 128 + 64 * v, dst, 32, g);
    }
}

pub(super) fn pack_iq4_xs(src: &[u8], lane: &mut LaneMut<'_>) {
    put_half(lane, 0, src, 0);
    put_half(lane, HALF, src, 2);
    lane.put32(2 * HALF, word(src, 4));
    for v in 0..32 {
        lane.put32(128 + 64 * v, word(src, 8 + 4 * v));
    }
}

pub(super) fn unpack_iq4_xs(lane: &Lane<'_>, dst: &mut [u8]) {
    get_half(lane, 0, dst, 0);
    get_half(lane, HALF, dst, 2);
    set_word(dst, 4, lane.get32(2 * HALF));
    for v in 0..32 {
        set_word(dst, 8 + 4 * v, lane.get32(128 + 64 * v));
    }
}
