//! Types with blocks of 32: an exact integer sum for each block, then one f32 step (two with a minimum).

use super::tile::Format;
use crate::act::{ActForm, field, group_at};
use crate::isa::{LANES, Simd};
use std::marker::PhantomData;
use wootz_quant::WeightType;

/// What a type with blocks of 32 has of its own.
pub(super) trait Block32 {
    /// Bytes of a GGUF block.
    const BYTES: usize;
    /// Offset of the codes.
    const OFFSET: u8;
    /// Field of the activations with the start values for that offset.
    const START: usize;
    /// Whether a minimum follows the scale.
    const MIN: bool = false;
    /// Whether the sum of a whole block needs more than 16 bits.
    const LONG: bool = false;

    /// The scales of 16 rows.
    ///
    /// # Safety
    /// As [`Format::row_group`]; `w` is a packed block.
    #[inline(always)]
    unsafe fn scale<S: Simd>(w: *const u8) -> S::F {
        // SAFETY: the block starts with 16 f16.
        unsafe { S::f_load_f16(w) }
    }

    /// High bits of the codes, where the type has any.
    ///
    /// # Safety
    /// As [`scale`](Block32::scale).
    #[inline(always)]
    unsafe fn high<S: Simd>(_w: *const u8) -> S::I {
        // SAFETY: the processor has `S`.
        unsafe { S::i_zero() }
    }

    /// Two code vectors, given how many were read before, and their places among the eight.
    ///
    /// # Safety
    /// As [`scale`](Block32::scale); `step` is below 4.
    unsafe fn codes<S: Simd>(w: *const u8, step: usize, high: &mut S::I) -> [(usize, S::I); 2];
}

/// Nibble vector `step` at `w`, as its low and its high nibbles.
#[inline(always)]
pub(super) unsafe fn nibbles<S: Simd>(w: *const u8, step: usize) -> (S::I, S::I) {
    // SAFETY: the caller has four vectors at `w`.
    unsafe {
        let (both, mask) = (S::i_load(w.add(64 * step)), S::i_splat(0x0f0f_0f0f));
        (S::i_and(both, mask), S::i_and(S::i_shr::<4>(both), mask))
    }
}

/// Nibble vector `step` at `w` with fifth bits from `high`, which moves on by one vector.
#[inline(always)]
pub(super) unsafe fn fives<S: Simd>(w: *const u8, step: usize, high: &mut S::I) -> (S::I, S::I) {
    // SAFETY: the caller has four vectors at `w`.
    unsafe {
        let (low, top) = nibbles::<S>(w, step);
        let mask = S::i_splat(0x1010_1010);
        // Bits `step` and `4 + step` of each byte: for the vectors `step` and `4 + step`.
        let (a, b) = (S::i_and(S::i_shl::<4>(*high), mask), S::i_and(*high, mask));
        *high = S::i_shr::<1>(*high);
        (S::i_or(low, a), S::i_or(top, b))
    }
}

pub(super) struct Q8_0;
impl Block32 for Q8_0 {
    const BYTES: usize = 34;
    const OFFSET: u8 = 128;
    const START: usize = field::START128;

    #[inline(always)]
    unsafe fn codes<S: Simd>(w: *const u8, step: usize, _: &mut S::I) -> [(usize, S::I); 2] {
        // SAFETY: eight vectors follow the scales.
        unsafe {
            let w = w.add(2 * LANES + 128 * step);
            [(2 * step, S::i_load(w)), (2 * step + 1, S::i_load(w.add(64)))]
        }
    }
}

/// Sums of 4-bit codes: 32 * 15 * 127 / 2 = 30480 in each half of a pair.
macro_rules! nibble_type {
    ($name:ident, $bytes:literal, offset $offset:literal $start:ident, min $min:literal, scales $scales:literal) => {
        pub(super) struct $name;
        impl Block32 for $name {
            const BYTES: usize = $bytes;
            const OFFSET: u8 = $offset;
            const START: usize = field::$start;
            const MIN: bool = $min;

            #[inline(always)]
            unsafe fn codes<S: Simd>(w: *const u8, step: usize, _: &mut S::I) -> [(usize, S::I); 2] {
                // SAFETY: four nibble vectors follow the scales.
                let (low, high) = unsafe { nibbles::<S>(w.add($scales * LANES), step) };
                [(step, low), (step + 4, high)]
            }
        }
    };
}
nibble_type!(Q4_0, 18, offset 8 START8, min false, scales 2);
nibble_type!(Q4_1, 20, offset 0 START8, min true, scales 4);

/// Sums of 5-bit codes: with offset 16 each half of a pair ends within 32 * 16 * 127 / 2 = 32512, whatever it
/// wraps to on the way; without an offset it may reach 62992, so such a block is summed in two parts.
macro_rules! five_type {
    ($name:ident, $bytes:literal, offset $offset:literal, min $min:literal, scales $scales:literal) => {
        pub(super) struct $name;
        impl Block32 for $name {
            const BYTES: usize = $bytes;
            const OFFSET: u8 = $offset;
            const START: usize = field::START16;
            const MIN: bool = $min;
            const LONG: bool = $offset == 0;

            #[inline(always)]
            unsafe fn high<S: Simd>(w: *const u8) -> S::I {
                // SAFETY: the high bits follow the scales.
                unsafe { S::i_load(w.add($scales * LANES)) }
            }

            #[inline(always)]
            unsafe fn codes<S: Simd>(w: *const u8, step: usize, high: &mut S::I) -> [(usize, S::I); 2] {
                // SAFETY: four nibble vectors follow the high bits.
                let (low, top) = unsafe { fives::<S>(w.add(($scales + 4) * LANES), step, high) };
                [(step, low), (step + 4, top)]
            }
        }
    };
}
five_type!(Q5_0, 22, offset 16, min false, scales 2);
five_type!(Q5_1, 24, offset 0, min true, scales 4);

/// The levels of a type with a table, plus `offset`.
const fn offset_levels(ty: WeightType, offset: u8) -> [u8; 16] {
    let mut codes = [0; 16];
    if let Some(layout) = ty.layout() {
        let mut i = 0;
        while i < 16 {
            codes[i] = (layout.level(i as u8) as u8).wrapping_add(offset);
            i += 1;
        }
    }
    codes
}

/// Codes of IQ4_NL and IQ4_XS, with offset 128.
pub(super) const IQ4_CODES: [u8; 16] = offset_levels(WeightType::IQ4_NL, 128);
/// Codes of MXFP4, twice its values, with offset 16.
const MXFP4_CODES: [u8; 16] = offset_levels(WeightType::MXFP4, 16);

pub(super) struct Iq4Nl;
impl Block32 for Iq4Nl {
    const BYTES: usize = 18;
    const OFFSET: u8 = 128;
    const START: usize = field::START128;

    #[inline(always)]
    unsafe fn codes<S: Simd>(w: *const u8, step: usize, _: &mut S::I) -> [(usize, S::I); 2] {
        // SAFETY: four nibble vectors follow the scales.
        unsafe {
            let (low, high) = nibbles::<S>(w.add(2 * LANES), step);
            [(step, S::i_lookup(&IQ4_CODES, low)), (step + 4, S::i_lookup(&IQ4_CODES, high))]
        }
    }
}

/// Sums end within 32 * 12 * 127 / 2 = 24384 in each half of a pair.
pub(super) struct Mxfp4;
impl Block32 for Mxfp4 {
    const BYTES: usize = 17;
    const OFFSET: u8 = 16;
    const START: usize = field::START16;

    /// 2^(e - 128), since the values are doubled: the product of two powers of two that are both normal numbers.
    #[inline(always)]
    unsafe fn scale<S: Simd>(w: *const u8) -> S::F {
        // SAFETY: the block starts with 16 exponents.
        unsafe {
            let exponent = S::i_load_u8(w);
            let half = S::i_shr::<1>(exponent);
            let power = |e| S::f_from_bits(S::i_shl::<23>(S::i_add(e, S::i_splat(63))));
            S::f_mul(power(half), power(S::i_sub(exponent, half)))
        }
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(w: *const u8, step: usize, _: &mut S::I) -> [(usize, S::I); 2] {
        // SAFETY: four nibble vectors follow the exponents.
        unsafe {
            let (low, high) = nibbles::<S>(w.add(LANES), step);
            [(step, S::i_lookup(&MXFP4_CODES, low)), (step + 4, S::i_lookup(&MXFP4_CODES, high))]
        }
    }
}

/// The kernel of a [`Block32`] type.
pub(super) struct Legacy<B>(PhantomData<B>);

impl<B: Block32> Format for Legacy<B> {
    const CODES: bool = true;

    #[inline(always)]
    unsafe fn row_group<S: Simd, const T: usize, const EXPANDED: bool>(
        w: *const u8,
        codes: *const u8,
        a: *const u8,
        cols: usize,
        acc: &mut [S::F; T],
    ) {
        for b in 0..cols / 32 {
            // SAFETY: block `b` of the group, of its codes and of the tile.
            unsafe {
                let w = w.add(b * B::BYTES * LANES);
                let codes = codes.wrapping_add(b * 32 * LANES);
                let a = a.add(b * ActForm::Int8.block_bytes::<S>() * T);
                let sums = if let Some(sums) = expanded_sums::<S, T, EXPANDED, 4>(codes, a) {
                    sum_totals::<S, T>(sums)
                } else if B::OFFSET == 128 {
                    wide_sums::<S, B, T, EXPANDED>(w, codes, a)
                } else if B::LONG && S::PAIRS {
                    narrow_sums::<S, B, T, EXPANDED, 2>(w, codes, a)
                } else {
                    narrow_sums::<S, B, T, EXPANDED, 1>(w, codes, a)
                };
                let d = B::scale::<S>(w);
                for t in 0..T {
                    let scale = S::f_mul(d, S::f_broadcast(a.add(field::D16 * T + 4 * t)));
                    acc[t] = S::f_fma(S::f_from_i32(sums[t]), scale, acc[t]);
                }
                if B::MIN {
                    let m = S::f_load_f16(w.add(2 * LANES));
                    for t in 0..T {
                        acc[t] = S::f_fma(m, S::f_broadcast(a.add(field::S16 * T + 4 * t)), acc[t]);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn expand<S: Simd>(w: *const u8, cols: usize, codes: *mut u8) {
        for b in 0..cols / 32 {
            // SAFETY: block `b` of the group and of its codes.
            unsafe {
                let (w, codes) = (w.add(b * B::BYTES * LANES), codes.add(b * 32 * LANES));
                let (mut high, mut vectors) = (B::high::<S>(w), [S::i_zero(); 8]);
                for step in 0..4 {
                    for (at, vector) in B::codes::<S>(w, step, &mut high) {
                        vectors[at] = vector;
                    }
                }
                for (i, pair) in vectors.as_chunks().0.iter().enumerate() {
                    S::expand(codes.add(128 * i), *pair, B::OFFSET);
                }
            }
        }
    }
}

/// The sums of `8 * N` columns where the instruction set has its own way with expanded codes.
#[inline(always)]
pub(super) unsafe fn expanded_sums<S: Simd, const T: usize, const EXPANDED: bool, const N: usize>(
    codes: *const u8,
    a: *const u8,
) -> Option<[S::Sum; T]> {
    // SAFETY: the caller passes the expanded codes and the activations of these columns.
    if EXPANDED { unsafe { S::expanded_sums::<T, N>(codes, a) } } else { None }
}

/// What the sums amount to.
#[inline(always)]
pub(super) unsafe fn sum_totals<S: Simd, const T: usize>(sums: [S::Sum; T]) -> [S::I; T] {
    // SAFETY: the processor has `S`.
    unsafe {
        let mut totals = [S::i_zero(); T];
        for t in 0..T {
            totals[t] = S::sum_total(sums[t]);
        }
        totals
    }
}

/// Two code vectors with their places: from the packed block, or as expanded.
#[inline(always)]
unsafe fn two<S: Simd, B: Block32, const EXPANDED: bool>(
    w: *const u8,
    codes: *const u8,
    step: usize,
    high: &mut S::I,
) -> [(usize, S::I); 2] {
    // SAFETY: the caller passes a block, or its codes.
    unsafe {
        if EXPANDED {
            let load = |at: usize| (at, S::i_load(codes.add(64 * at)));
            [load(2 * step), load(2 * step + 1)]
        } else {
            B::codes::<S>(w, step, high)
        }
    }
}

/// Sums of codes of at most six bits, in `PARTS` parts.
#[inline(always)]
unsafe fn narrow_sums<S: Simd, B: Block32, const T: usize, const EXPANDED: bool, const PARTS: usize>(
    w: *const u8,
    codes: *const u8,
    a: *const u8,
) -> [S::I; T] {
    // SAFETY: the caller passes a packed block, its codes and its activations.
    unsafe {
        let mut high = B::high::<S>(w);
        let mut totals = [S::i_zero(); T];
        for part in 0..PARTS {
            let mut sums = [S::sum_zero(); T];
            if B::OFFSET != 0 {
                for t in 0..T {
                    sums[t] = S::sum_start(a.add(B::START * T + 4 * t));
                }
            }
            for step in part * 4 / PARTS..(part + 1) * 4 / PARTS {
                let pair = two::<S, B, EXPANDED>(w, codes, step, &mut high);
                for i in 0..2 {
                    let (at, codes) = (pair[i].0, S::codes(pair[i].1, B::OFFSET));
                    let fresh = B::OFFSET == 0 && step == part * 4 / PARTS && i == 0;
                    for t in 0..T {
                        let x = S::x_broadcast(a.add(group_at::<S>(at, T, t)));
                        sums[t] = if fresh { S::dot_first(codes, x) } else { S::dot(sums[t], codes, x) };
                    }
                }
            }
            for t in 0..T {
                let total = S::sum_total(sums[t]);
                totals[t] = if PARTS == 1 { total } else { S::i_add(totals[t], total) };
            }
        }
        totals
    }
}

/// Four activations of token `t` for a wide product with code vector `at`, one of eight.
#[inline(always)]
pub(super) unsafe fn wide_x<S: Simd, const T: usize>(a: *const u8, at: usize, t: usize) -> S::WideX {
    // SAFETY: the caller passes a block of activations; the fields beyond are read only where they are.
    unsafe {
        let x = a.add(group_at::<S>(at, T, t));
        S::wide_x(x, x.wrapping_add(field::ABS * T), x.wrapping_add(field::FLIP * T))
    }
}

/// Sums of codes of eight bits.
#[inline(always)]
unsafe fn wide_sums<S: Simd, B: Block32, const T: usize, const EXPANDED: bool>(
    w: *const u8,
    codes: *const u8,
    a: *const u8,
) -> [S::I; T] {
    // SAFETY: the caller passes a packed block, its codes and its activations.
    unsafe {
        let mut none = S::i_zero();
        let mut sums = [S::i_zero(); T];
        for t in 0..T {
            sums[t] = S::wide_start(a.add(B::START * T + 4 * t));
        }
        for step in 0..4 {
            let pair = two::<S, B, EXPANDED>(w, codes, step, &mut none);
            for i in 0..2 {
                let (at, codes) = (pair[i].0, S::wide(pair[i].1));
                for t in 0..T {
                    sums[t] = S::dot_wide(sums[t], codes, wide_x::<S, T>(a, at, t));
                }
            }
        }
        sums
    }
}
