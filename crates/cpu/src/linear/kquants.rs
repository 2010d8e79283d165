//! Types with blocks of 256: sub-blocks with integer scales.
//!
//! Activations have blocks of 32, each with a scale of its own. The sums of 32 products, times the sub-blocks' integer
//! scales, are exact integers; the largest, of Q6_K, is 32 * 32 * 127 * 128, below 2^24, so f32 holds them exactly too.
//! Times the activations' scales they add up over the block; then comes one f32 step with the scale of the weights'
//! block (two with minimums).

use super::legacy::{IQ4_CODES, expanded_sums, fives, nibbles, sum_totals, wide_x};
use super::tile::Format;
use crate::act::{ActForm, BLOCK, field, group_at};
use crate::isa::{LANES, Simd};

const HALF: usize = 2 * LANES;

/// Bytes of a block of activations of one token.
const fn act_block<S: Simd>() -> usize {
    ActForm::Int8.block_bytes::<S>()
}

/// Adds `sums * d(activations)` of one block of activations to `totals`.
#[inline(always)]
unsafe fn add_block<S: Simd, const T: usize>(totals: &mut [S::F; T], sums: &[S::Block; T], a: *const u8) {
    for t in 0..T {
        // SAFETY: `a` is the block of activations.
        unsafe {
            let d = S::f_broadcast(a.add(field::D * T + 4 * t));
            totals[t] = S::f_fma(S::block_total(sums[t]), d, totals[t]);
        }
    }
}

/// Adds `totals * d(weights)` to `acc`.
#[inline(always)]
unsafe fn finish<S: Simd, const T: usize>(d: S::F, totals: &[S::F; T], acc: &mut [S::F; T]) {
    for t in 0..T {
        // SAFETY: the processor has `S`.
        unsafe { acc[t] = S::f_fma(totals[t], d, acc[t]) }
    }
}

/// Subtracts `totals * dmin(weights)` from `acc`.
#[inline(always)]
unsafe fn finish_min<S: Simd, const T: usize>(dmin: S::F, totals: &[S::F; T], acc: &mut [S::F; T]) {
    for t in 0..T {
        // SAFETY: the processor has `S`.
        unsafe { acc[t] = S::f_fnma(totals[t], dmin, acc[t]) }
    }
}

/// Multiplies code vector `at`, one of eight, with a block of activations; sums begin with it if it is `first`.
#[inline(always)]
unsafe fn dot<S: Simd, const T: usize>(
    sums: &mut [S::Sum; T],
    codes: S::Codes,
    a: *const u8,
    at: usize,
    first: bool,
) {
    for t in 0..T {
        // SAFETY: `a` is the block of activations.
        unsafe {
            let x = S::x_broadcast(a.add(group_at::<S>(at, T, t)));
            sums[t] = if first { S::dot_first(codes, x) } else { S::dot(sums[t], codes, x) };
        }
    }
}

#[inline(always)]
unsafe fn add_scaled<S: Simd, const T: usize>(
    totals: &mut [S::Block; T],
    sums: &[S::Sum; T],
    scale: S::Scale,
) {
    for t in 0..T {
        // SAFETY: the processor has `S`.
        unsafe { totals[t] = S::add_scaled(totals[t], sums[t], scale) }
    }
}

/// Code vector `at` of a run, one of 16: as expanded, or as `packed` gives it.
#[inline(always)]
unsafe fn code<S: Simd, const EXPANDED: bool>(
    codes: *const u8,
    at: usize,
    packed: impl FnOnce() -> S::I,
) -> S::I {
    // SAFETY: the caller passes the run's codes.
    if EXPANDED { unsafe { S::i_load(codes.add(64 * at)) } } else { packed() }
}

/// Q4_K, and with high bits Q5_K.
///
/// Sums of 32 codes of 4 bits reach 30480 in each half of a pair; of 5 bits only 16 codes fit, with 31496.
pub(super) struct FourK<const HIGH: bool>;

impl<const HIGH: bool> FourK<HIGH> {
    const BYTES: usize = if HIGH { 176 } else { 144 };
    /// Whether a sub-block needs two sums of 16 bits.
    const SPLIT: bool = HIGH;
    /// Bytes of a packed sub-block.
    const RUN: usize = if HIGH { 320 } else { 256 };

    /// Six-bit scales (`at` 0) or minimums (`at` 1) of the sub-blocks `4 * half..`, one in each byte.
    #[inline(always)]
    unsafe fn factors<S: Simd>(w: *const u8, at: usize, half: usize) -> S::I {
        // SAFETY: the 12 bytes lie behind the two f16.
        unsafe {
            let first = S::i_load(w.add(64 + 64 * at));
            if half == 0 {
                return S::i_and(first, S::i_splat(0x3f3f_3f3f));
            }
            let last = S::i_load(w.add(64 + 128));
            let last = if at == 0 { last } else { S::i_shr::<4>(last) };
            let low = S::i_and(last, S::i_splat(0x0f0f_0f0f));
            S::i_or(low, S::i_and(S::i_shr::<2>(first), S::i_splat(0x3030_3030)))
        }
    }

    /// Codes of nibble vector `v` of the sub-block at `q`.
    #[inline(always)]
    unsafe fn codes<S: Simd>(q: *const u8, v: usize, high: &mut S::I) -> (S::I, S::I) {
        // SAFETY: the caller passes a sub-block.
        unsafe { if HIGH { fives::<S>(q.add(64), v, high) } else { nibbles::<S>(q, v) } }
    }

    /// High bits of the sub-block at `q`, where there are any.
    #[inline(always)]
    unsafe fn high<S: Simd>(q: *const u8) -> S::I {
        // SAFETY: the caller passes a sub-block.
        unsafe { if HIGH { S::i_load(q) } else { S::i_zero() } }
    }

    /// Adds the nibble vectors `FIRST` and `FIRST + 1` of the sub-block at `q`; a sum begins with the first ones.
    #[inline(always)]
    unsafe fn half<S: Simd, const T: usize, const EXPANDED: bool, const FIRST: usize>(
        q: *const u8,
        codes: *const u8,
        a: *const u8,
        high: &mut S::I,
        sums: &mut [S::Sum; T],
    ) {
        let fresh = FIRST == 0 || Self::SPLIT && S::PAIRS;
        for v in FIRST..FIRST + 2 {
            // SAFETY: the caller passes a sub-block, its codes and its activations.
            unsafe {
                let (low, top) = if EXPANDED {
                    (S::i_load(codes.add(64 * v)), S::i_load(codes.add(64 * (4 + v))))
                } else {
                    Self::codes::<S>(q, v, high)
                };
                dot::<S, T>(sums, S::codes(low, 0), a, v, v == FIRST && fresh);
                dot::<S, T>(sums, S::codes(top, 0), a, 4 + v, false);
            }
        }
    }

    /// Minimums times the activations' sums of 32: integers up to 8 * 63 * 32767, below 2^24, times the sums' scale.
    #[inline(always)]
    unsafe fn min_sums<S: Simd, const T: usize>(w: *const u8, a: *const u8) -> [S::F; T] {
        // SAFETY: the caller passes a block and its eight blocks of activations.
        unsafe {
            let word = |i: usize, t: usize| a.add((i * act_block::<S>() + field::M) * T + 4 * t);
            let (mut sums, mut totals) = ([S::i_zero(); T], [S::f_zero(); T]);
            for half in 0..2 {
                let factors = Self::factors::<S>(w, 1, half);
                for (i, factors) in [factors, S::i_shr::<8>(factors)].into_iter().enumerate() {
                    let pairs = S::i_and(factors, S::i_splat(0x00ff_00ff));
                    for t in 0..T {
                        sums[t] = S::i_dot_pairs(sums[t], pairs, S::i_broadcast(word(2 * half + i, t)));
                    }
                }
            }
            for t in 0..T {
                totals[t] = S::f_mul(S::f_from_i32(sums[t]), S::f_broadcast(word(4, t)));
            }
            totals
        }
    }
}

impl<const HIGH: bool> Format for FourK<HIGH> {
    const CODES: bool = true;
    const MANY_STEPS: bool = HIGH;

    #[inline(always)]
    unsafe fn row_group<S: Simd, const T: usize, const EXPANDED: bool>(
        w: *const u8,
        codes: *const u8,
        a: *const u8,
        cols: usize,
        acc: &mut [S::F; T],
    ) {
        for b in 0..cols / 256 {
            // SAFETY: block `b` of the group and of the tile.
            unsafe {
                let (w, a) = (w.add(b * Self::BYTES * LANES), a.add(8 * b * act_block::<S>() * T));
                let codes = codes.wrapping_add(b * 256 * LANES);
                let mut totals = [S::f_zero(); T];
                for half in 0..2 {
                    let mut factors = Self::factors::<S>(w, 0, half);
                    for j in 4 * half..4 * half + 4 {
                        let (q, a) = (w.add(256 + Self::RUN * j), a.add(j * act_block::<S>() * T));
                        let codes = codes.wrapping_add(j * 32 * LANES);
                        let scale = S::scale_u8(factors);
                        factors = S::i_shr::<8>(factors);
                        let mut block = [S::block_zero(); T];
                        let sums = if let Some(sums) = expanded_sums::<S, T, EXPANDED, 4>(codes, a) {
                            sums
                        } else {
                            let (mut high, mut sums) = (Self::high::<S>(q), [S::sum_zero(); T]);
                            Self::half::<S, T, EXPANDED, 0>(q, codes, a, &mut high, &mut sums);
                            if Self::SPLIT && S::PAIRS {
                                add_scaled::<S, T>(&mut block, &sums, scale);
                            }
                            Self::half::<S, T, EXPANDED, 2>(q, codes, a, &mut high, &mut sums);
                            sums
                        };
                        add_scaled::<S, T>(&mut block, &sums, scale);
                        add_block::<S, T>(&mut totals, &block, a);
                    }
                }
                finish::<S, T>(S::f_load_f16(w), &totals, acc);
                finish_min::<S, T>(S::f_load_f16(w.add(HALF)), &Self::min_sums::<S, T>(w, a), acc);
            }
        }
    }

    #[inline(always)]
    unsafe fn expand<S: Simd>(w: *const u8, cols: usize, codes: *mut u8) {
        for j in 0..cols / 32 {
            // SAFETY: sub-block `j` of the group and of its codes.
            unsafe {
                let q = w.add(j / 8 * Self::BYTES * LANES + 256 + j % 8 * Self::RUN);
                let codes = codes.add(j * 32 * LANES);
                let mut high = Self::high::<S>(q);
                for v in [0, 2] {
                    let (low, top) = Self::codes::<S>(q, v, &mut high);
                    let (next_low, next_top) = Self::codes::<S>(q, v + 1, &mut high);
                    S::expand(codes.add(64 * v), [low, next_low], 0);
                    S::expand(codes.add(64 * (4 + v)), [top, next_top], 0);
                }
            }
        }
    }
}

/// Byte `N` of each lane, in the lowest byte.
#[inline(always)]
unsafe fn byte<S: Simd, const N: usize>(a: S::I) -> S::I {
    // SAFETY: the processor has `S`.
    unsafe {
        match N {
            0 => a,
            1 => S::i_shr::<8>(a),
            2 => S::i_shr::<16>(a),
            _ => S::i_shr::<24>(a),
        }
    }
}

/// Pair vector bits of part `PART`, in place: the two lowest bits of each byte.
#[inline(always)]
unsafe fn pairs<S: Simd, const PART: usize>(w: *const u8, v: usize) -> S::I {
    // SAFETY: the caller has four vectors at `w`.
    unsafe {
        let all = S::i_load(w.add(64 * v));
        let shifted = match PART {
            0 => all,
            1 => S::i_shr::<2>(all),
            2 => S::i_shr::<4>(all),
            _ => S::i_shr::<6>(all),
        };
        S::i_and(shifted, S::i_splat(0x0303_0303))
    }
}

/// The two blocks of activations of run `g`, 64 elements.
#[inline(always)]
unsafe fn run_blocks<S: Simd, const T: usize>(a: *const u8, g: usize) -> (*const u8, *const u8) {
    let bytes = act_block::<S>() * T;
    // SAFETY: the caller passes the eight blocks that belong to a block of weights.
    unsafe { (a.add(2 * g * bytes), a.add((2 * g + 1) * bytes)) }
}

/// Where a block of activations has the start value of token `t` for offset 32, for the 16 elements of an even or odd
/// part.
#[inline(always)]
unsafe fn start32<const T: usize, const PART: usize>(a: *const u8, t: usize) -> *const u8 {
    // SAFETY: the caller passes a block of activations and one of its tokens.
    unsafe { a.add(field::STARTS32 * T + (PART % 2 * T + t) * 4) }
}

/// The sums of part `PART` of a run, where the instruction set has its own way with expanded codes.
#[inline(always)]
unsafe fn part_sums<S: Simd, const T: usize, const EXPANDED: bool, const PART: usize>(
    codes: *const u8,
    a: *const u8,
) -> Option<[S::Sum; T]> {
    // SAFETY: the caller passes the codes of a run and the part's block of activations, in which an odd part is the
    // second half.
    unsafe {
        expanded_sums::<S, T, EXPANDED, 2>(codes.wrapping_add(256 * PART), a.add(PART % 2 * (BLOCK / 2 * T)))
    }
}

/// Writes the expanded codes of the vectors `v` and `v + 1` of part `PART` of a run.
#[inline(always)]
unsafe fn expand_part<S: Simd, const PART: usize>(
    codes: *mut u8,
    v: usize,
    offset: u8,
    mut vector: impl FnMut(usize) -> S::I,
) {
    // SAFETY: the caller has room for the codes of a run.
    unsafe { S::expand(codes.add(64 * (4 * PART + v)), [vector(v), vector(v + 1)], offset) }
}

/// A type with a scale for each 16 elements, read in runs of four such parts.
trait Parts {
    /// Part `PART` of a run; its scale is byte `PART` of `scales`.
    ///
    /// # Safety
    /// The processor has `S`; `run` and `codes` are those of a run, `a` is the part's block of activations.
    unsafe fn part<S: Simd, const T: usize, const EXPANDED: bool, const PART: usize>(
        run: *const u8,
        codes: *const u8,
        a: *const u8,
        scales: S::I,
        block: &mut [S::Block; T],
    );
}

/// Adds run `g` of a block to `totals`, which the scale of the block is still to multiply.
#[inline(always)]
unsafe fn add_run<P: Parts, S: Simd, const T: usize, const EXPANDED: bool>(
    run: *const u8,
    codes: *const u8,
    a: *const u8,
    g: usize,
    scales: S::I,
    totals: &mut [S::F; T],
) {
    // SAFETY: the caller passes a run, its codes and the activations of the run's block.
    unsafe {
        let (even, odd) = run_blocks::<S, T>(a, g);
        let mut block = [S::block_zero(); T];
        P::part::<S, T, EXPANDED, 0>(run, codes, even, scales, &mut block);
        P::part::<S, T, EXPANDED, 1>(run, codes, even, scales, &mut block);
        add_block::<S, T>(totals, &block, even);
        let mut block = [S::block_zero(); T];
        P::part::<S, T, EXPANDED, 2>(run, codes, odd, scales, &mut block);
        P::part::<S, T, EXPANDED, 3>(run, codes, odd, scales, &mut block);
        add_block::<S, T>(totals, &block, odd);
    }
}

/// Q6_K: with offset 32 a sum of 16 codes ends within 16 * 32 * 127 / 2 = 32512 in each half of a pair.
pub(super) struct Q6K;

impl Q6K {
    /// Codes of vector `v` of part `PART` of the run at `run`.
    #[inline(always)]
    unsafe fn codes<S: Simd, const PART: usize>(run: *const u8, v: usize) -> S::I {
        // SAFETY: the caller passes a run.
        unsafe {
            let vectors = run.add(64 + 192 * v);
            let both = S::i_load(vectors.add(128 * (PART % 2)));
            let low = if PART < 2 { both } else { S::i_shr::<4>(both) };
            let low = S::i_and(low, S::i_splat(0x0f0f_0f0f));
            let high = S::i_load(vectors.add(64));
            let high = match PART {
                0 => S::i_shl::<4>(high),
                1 => S::i_shl::<2>(high),
                2 => high,
                _ => S::i_shr::<2>(high),
            };
            S::i_or(low, S::i_and(high, S::i_splat(0x3030_3030)))
        }
    }
}

impl Q6K {
    /// Adds run `g` of a block for one token, vector after vector: its bytes are read in order, as memory is fastest, and
    /// the four parts' sums do not wait for each other.
    #[inline(always)]
    unsafe fn add_run_of_one<S: Simd>(
        run: *const u8,
        a: *const u8,
        g: usize,
        scales: S::I,
        totals: &mut [S::F; 1],
    ) {
        // SAFETY: the caller passes a run and the activations of the run's block.
        unsafe {
            let (even, odd) = run_blocks::<S, 1>(a, g);
            let start = |a, part: bool| {
                let at = if part { start32::<1, 1>(a, 0) } else { start32::<1, 0>(a, 0) };
                [S::sum_start(at)]
            };
            let mut sums = [start(even, false), start(even, true), start(odd, false), start(odd, true)];
            for v in 0..4 {
                dot::<S, 1>(&mut sums[0], S::codes(Self::codes::<S, 0>(run, v), 32), even, v, false);
                dot::<S, 1>(&mut sums[2], S::codes(Self::codes::<S, 2>(run, v), 32), odd, v, false);
                dot::<S, 1>(&mut sums[1], S::codes(Self::codes::<S, 1>(run, v), 32), even, 4 + v, false);
                dot::<S, 1>(&mut sums[3], S::codes(Self::codes::<S, 3>(run, v), 32), odd, 4 + v, false);
            }
            let mut block = [S::block_zero()];
            add_scaled::<S, 1>(&mut block, &sums[0], S::scale_i8(byte::<S, 0>(scales)));
            add_scaled::<S, 1>(&mut block, &sums[1], S::scale_i8(byte::<S, 1>(scales)));
            add_block::<S, 1>(totals, &block, even);
            let mut block = [S::block_zero()];
            add_scaled::<S, 1>(&mut block, &sums[2], S::scale_i8(byte::<S, 2>(scales)));
            add_scaled::<S, 1>(&mut block, &sums[3], S::scale_i8(byte::<S, 3>(scales)));
            add_block::<S, 1>(totals, &block, odd);
        }
    }
}

impl Parts for Q6K {
    #[inline(always)]
    unsafe fn part<S: Simd, const T: usize, const EXPANDED: bool, const PART: usize>(
        run: *const u8,
        codes: *const u8,
        a: *const u8,
        scales: S::I,
        block: &mut [S::Block; T],
    ) {
        // SAFETY: the caller passes a run, its codes and the part's block of activations.
        unsafe {
            let run = S::again::<PART>(run);
            let sums = if let Some(sums) = part_sums::<S, T, EXPANDED, PART>(codes, a) {
                sums
            } else {
                let mut sums = [S::sum_zero(); T];
                for t in 0..T {
                    sums[t] = S::sum_start(start32::<T, PART>(a, t));
                }
                for v in 0..4 {
                    let vector = code::<S, EXPANDED>(codes, 4 * PART + v, || Self::codes::<S, PART>(run, v));
                    dot::<S, T>(&mut sums, S::codes(vector, 32), a, 4 * (PART % 2) + v, false);
                }
                sums
            };
            add_scaled::<S, T>(block, &sums, S::scale_i8(byte::<S, PART>(scales)));
        }
    }
}

impl Format for Q6K {
    const CODES: bool = true;
    const MANY_STEPS: bool = true;

    #[inline(always)]
    unsafe fn row_group<S: Simd, const T: usize, const EXPANDED: bool>(
        w: *const u8,
        codes: *const u8,
        a: *const u8,
        cols: usize,
        acc: &mut [S::F; T],
    ) {
        for b in 0..cols / 256 {
            // SAFETY: block `b` of the group and of the tile.
            unsafe {
                let (w, a) = (w.add(b * 210 * LANES), a.add(8 * b * act_block::<S>() * T));
                let codes = codes.wrapping_add(b * 256 * LANES);
                let mut totals = [S::f_zero(); T];
                for g in 0..4 {
                    let (run, codes) = (w.add(HALF + 832 * g), codes.wrapping_add(64 * g * LANES));
                    let scales = S::i_load(run);
                    if let Ok(total) = <&mut [S::F; 1]>::try_from(&mut totals[..])
                        && !EXPANDED
                    {
                        Self::add_run_of_one::<S>(run, a, g, scales, total);
                    } else {
                        add_run::<Self, S, T, EXPANDED>(run, codes, a, g, scales, &mut totals);
                    }
                }
                finish::<S, T>(S::f_load_f16(w), &totals, acc);
            }
        }
    }

    #[inline(always)]
    unsafe fn expand<S: Simd>(w: *const u8, cols: usize, codes: *mut u8) {
        for g in 0..cols / 64 {
            // SAFETY: run `g` of the group and of its codes.
            unsafe {
                let run = w.add(g / 4 * 210 * LANES + HALF + 832 * (g % 4));
                let codes = codes.add(g * 64 * LANES);
                for v in [0, 2] {
                    expand_part::<S, 0>(codes, v, 32, |v| Self::codes::<S, 0>(run, v));
                    expand_part::<S, 1>(codes, v, 32, |v| Self::codes::<S, 1>(run, v));
                    expand_part::<S, 2>(codes, v, 32, |v| Self::codes::<S, 2>(run, v));
                    expand_part::<S, 3>(codes, v, 32, |v| Self::codes::<S, 3>(run, v));
                }
            }
        }
    }
}

/// Q2_K: codes of two bits, and minimums for each 16 elements.
pub(super) struct Q2K;

impl Q2K {
    /// Part `PART` of a run; byte `PART` of `bytes` has its scale in the low and its minimum in the high nibble.
    ///
    /// The sums of 16 activations are the start values for offset 32, so the minimums' total is -32 times too
    /// large: an exact integer, at most 32 * 15 * 32 * 127, below 2^24.
    #[inline(always)]
    unsafe fn part<S: Simd, const T: usize, const EXPANDED: bool, const PART: usize>(
        run: *const u8,
        codes: *const u8,
        a: *const u8,
        bytes: S::I,
        block: &mut [S::Block; T],
        mins: &mut [S::Block; T],
    ) {
        // SAFETY: the caller passes a run, its codes and the part's block of activations.
        unsafe {
            let run = S::again::<PART>(run);
            let (bytes, mask) = (byte::<S, PART>(bytes), S::i_splat(15));
            let sums = if let Some(sums) = part_sums::<S, T, EXPANDED, PART>(codes, a) {
                sums
            } else {
                let mut sums = [S::sum_zero(); T];
                for v in 0..4 {
                    let vector =
                        code::<S, EXPANDED>(codes, 4 * PART + v, || pairs::<S, PART>(run.add(64), v));
                    dot::<S, T>(&mut sums, S::codes(vector, 0), a, 4 * (PART % 2) + v, v == 0);
                }
                sums
            };
            add_scaled::<S, T>(block, &sums, S::scale_u8(S::i_and(bytes, mask)));
            let min = S::i_and(S::i_shr::<4>(bytes), mask);
            for t in 0..T {
                let x = S::sum_at(start32::<T, PART>(a, t));
                mins[t] = S::add_scaled(mins[t], x, S::scale_u8(min));
            }
        }
    }
}

impl Format for Q2K {
    const CODES: bool = true;

    #[inline(always)]
    unsafe fn row_group<S: Simd, const T: usize, const EXPANDED: bool>(
        w: *const u8,
        codes: *const u8,
        a: *const u8,
        cols: usize,
        acc: &mut [S::F; T],
    ) {
        for b in 0..cols / 256 {
            // SAFETY: block `b` of the group and of the tile.
            unsafe {
                let (w, a) = (w.add(b * 84 * LANES), a.add(8 * b * act_block::<S>() * T));
                let codes = codes.wrapping_add(b * 256 * LANES);
                let (mut totals, mut all_mins) = ([S::f_zero(); T], [S::f_zero(); T]);
                for g in 0..4 {
                    let (run, codes) = (w.add(2 * HALF + 320 * g), codes.wrapping_add(64 * g * LANES));
                    let bytes = S::i_load(run);
                    let (even, odd) = run_blocks::<S, T>(a, g);
                    let (mut block, mut mins) = ([S::block_zero(); T], [S::block_zero(); T]);
                    Self::part::<S, T, EXPANDED, 0>(run, codes, even, bytes, &mut block, &mut mins);
                    Self::part::<S, T, EXPANDED, 1>(run, codes, even, bytes, &mut block, &mut mins);
                    add_block::<S, T>(&mut totals, &block, even);
                    add_block::<S, T>(&mut all_mins, &mins, even);
                    let (mut block, mut mins) = ([S::block_zero(); T], [S::block_zero(); T]);
                    Self::part::<S, T, EXPANDED, 2>(run, codes, odd, bytes, &mut block, &mut mins);
                    Self::part::<S, T, EXPANDED, 3>(run, codes, odd, bytes, &mut block, &mut mins);
                    add_block::<S, T>(&mut totals, &block, odd);
                    add_block::<S, T>(&mut all_mins, &mins, odd);
                }
                finish::<S, T>(S::f_load_f16(w), &totals, acc);
                // Minus the minimums is plus a 32nd of `mins`; scaling by a power of two is exact for every f16.
                let dmin =
                    S::f_mul(S::f_load_f16(w.add(HALF)), S::f_from_bits(S::i_splat(0xbd00_0000u32 as i32)));
                finish_min::<S, T>(dmin, &all_mins, acc);
            }
        }
    }

    #[inline(always)]
    unsafe fn expand<S: Simd>(w: *const u8, cols: usize, codes: *mut u8) {
        for g in 0..cols / 64 {
            // SAFETY: run `g` of the group and of its codes.
            unsafe {
                let run = w.add(g / 4 * 84 * LANES + 2 * HALF + 320 * (g % 4) + 64);
                let codes = codes.add(g * 64 * LANES);
                for v in [0, 2] {
                    expand_part::<S, 0>(codes, v, 0, |v| pairs::<S, 0>(run, v));
                    expand_part::<S, 1>(codes, v, 0, |v| pairs::<S, 1>(run, v));
                    expand_part::<S, 2>(codes, v, 0, |v| pairs::<S, 2>(run, v));
                    expand_part::<S, 3>(codes, v, 0, |v| pairs::<S, 3>(run, v));
                }
            }
        }
    }
}

/// Q3_K: codes of three bits with offset 4.
pub(super) struct Q3K;

impl Q3K {
    /// High bits of part `PART`, those of its first vector at bit 2 of each byte.
    #[inline(always)]
    unsafe fn high<S: Simd, const PART: usize>(run: *const u8) -> S::I {
        // SAFETY: the caller passes a run.
        unsafe {
            let bits = S::i_load(run.add(64 * (PART / 2)));
            if PART.is_multiple_of(2) { S::i_shl::<2>(bits) } else { S::i_shr::<2>(bits) }
        }
    }

    /// Codes of vector `v` of part `PART`; `high` moves on by one vector.
    #[inline(always)]
    unsafe fn codes<S: Simd, const PART: usize>(run: *const u8, v: usize, high: &mut S::I) -> S::I {
        // SAFETY: the caller passes a run.
        unsafe {
            let vector = S::i_or(pairs::<S, PART>(run.add(128), v), S::i_and(*high, S::i_splat(0x0404_0404)));
            *high = S::i_shr::<1>(*high);
            vector
        }
    }

    /// Scales of run `g`, one in each byte: low nibbles in the first eight bytes, high pairs in the last four.
    #[inline(always)]
    unsafe fn scales<S: Simd>(w: *const u8, g: usize) -> S::I {
        // SAFETY: the caller passes a block.
        unsafe {
            let (mut low, high) = (S::i_load(w.add(HALF + 64 * (g % 2))), S::i_load(w.add(HALF + 128)));
            if g >= 2 {
                low = S::i_shr::<4>(low);
            }
            let high = match g {
                0 => S::i_shl::<4>(high),
                1 => S::i_shl::<2>(high),
                2 => high,
                _ => S::i_shr::<2>(high),
            };
            let low = S::i_and(low, S::i_splat(0x0f0f_0f0f));
            let scales = S::i_or(low, S::i_and(high, S::i_splat(0x3030_3030)));
            S::i_add_bytes(scales, S::i_splat(i32::from_le_bytes([224; 4])))
        }
    }
}

impl Parts for Q3K {
    #[inline(always)]
    unsafe fn part<S: Simd, const T: usize, const EXPANDED: bool, const PART: usize>(
        run: *const u8,
        codes: *const u8,
        a: *const u8,
        scales: S::I,
        block: &mut [S::Block; T],
    ) {
        // SAFETY: the caller passes a run, its codes and the part's block of activations.
        unsafe {
            let run = S::again::<PART>(run);
            let sums = if let Some(sums) = part_sums::<S, T, EXPANDED, PART>(codes, a) {
                sums
            } else {
                let mut sums = [S::sum_zero(); T];
                for t in 0..T {
                    sums[t] = S::sum_start_eighth(start32::<T, PART>(a, t));
                }
                let mut high = Self::high::<S, PART>(run);
                for v in 0..4 {
                    let packed = || Self::codes::<S, PART>(run, v, &mut high);
                    let vector = code::<S, EXPANDED>(codes, 4 * PART + v, packed);
                    dot::<S, T>(&mut sums, S::codes(vector, 4), a, 4 * (PART % 2) + v, false);
                }
                sums
            };
            add_scaled::<S, T>(block, &sums, S::scale_i8(byte::<S, PART>(scales)));
        }
    }
}

impl Format for Q3K {
    const CODES: bool = true;
    const MANY_STEPS: bool = true;

    #[inline(always)]
    unsafe fn row_group<S: Simd, const T: usize, const EXPANDED: bool>(
        w: *const u8,
        codes: *const u8,
        a: *const u8,
        cols: usize,
        acc: &mut [S::F; T],
    ) {
        for b in 0..cols / 256 {
            // SAFETY: block `b` of the group and of the tile.
            unsafe {
                let (w, a) = (w.add(b * 110 * LANES), a.add(8 * b * act_block::<S>() * T));
                let codes = codes.wrapping_add(b * 256 * LANES);
                let mut totals = [S::f_zero(); T];
                for g in 0..4 {
                    let (run, codes) = (w.add(HALF + 192 + 384 * g), codes.wrapping_add(64 * g * LANES));
                    let scales = Self::scales::<S>(w, g);
                    add_run::<Self, S, T, EXPANDED>(run, codes, a, g, scales, &mut totals);
                }
                finish::<S, T>(S::f_load_f16(w), &totals, acc);
            }
        }
    }

    #[inline(always)]
    unsafe fn expand<S: Simd>(w: *const u8, cols: usize, codes: *mut u8) {
        for g in 0..cols / 64 {
            // SAFETY: run `g` of the group and of its codes.
            unsafe {
                let run = w.add(g / 4 * 110 * LANES + HALF + 192 + 384 * (g % 4));
                let codes = codes.add(g * 64 * LANES);
                let (mut h0, mut h1) = (Self::high::<S, 0>(run), Self::high::<S, 1>(run));
                let (mut h2, mut h3) = (Self::high::<S, 2>(run), Self::high::<S, 3>(run));
                for v in [0, 2] {
                    expand_part::<S, 0>(codes, v, 4, |v| Self::codes::<S, 0>(run, v, &mut h0));
                    expand_part::<S, 1>(codes, v, 4, |v| Self::codes::<S, 1>(run, v, &mut h1));
                    expand_part::<S, 2>(codes, v, 4, |v| Self::codes::<S, 2>(run, v, &mut h2));
                    expand_part::<S, 3>(codes, v, 4, |v| Self::codes::<S, 3>(run, v, &mut h3));
                }
            }
        }
    }
}

/// IQ4_XS: codes of eight bits from a table, six-bit scales for each 32 elements.
pub(super) struct Iq4Xs;

impl Iq4Xs {
    /// Codes of nibble vector `v` of the sub-block at `q`.
    #[inline(always)]
    unsafe fn codes<S: Simd>(q: *const u8, v: usize) -> (S::I, S::I) {
        // SAFETY: the caller passes a sub-block.
        unsafe {
            let (low, top) = nibbles::<S>(q, v);
            (S::i_lookup(&IQ4_CODES, low), S::i_lookup(&IQ4_CODES, top))
        }
    }

    /// Scales of the even and of the odd sub-blocks, one in each byte.
    #[inline(always)]
    unsafe fn scales<S: Simd>(w: *const u8) -> [S::I; 2] {
        // SAFETY: the caller passes a block.
        unsafe {
            let (low, high) = (S::i_load(w.add(2 * HALF)), S::i_load_u16(w.add(HALF)));
            // Two bits for each sub-block: nibble `b` moves to byte `b`.
            let high = S::i_and(S::i_or(high, S::i_shl::<8>(high)), S::i_splat(0x00ff_00ff));
            let high = S::i_and(S::i_or(high, S::i_shl::<4>(high)), S::i_splat(0x0f0f_0f0f));
            let (nibble, pair) = (S::i_splat(0x0f0f_0f0f), S::i_splat(0x3030_3030));
            let offset = S::i_splat(i32::from_le_bytes([224; 4]));
            let even = S::i_or(S::i_and(low, nibble), S::i_and(S::i_shl::<4>(high), pair));
            let odd = S::i_or(S::i_and(S::i_shr::<4>(low), nibble), S::i_and(S::i_shl::<2>(high), pair));
            [S::i_add_bytes(even, offset), S::i_add_bytes(odd, offset)]
        }
    }
}

impl Format for Iq4Xs {
    const CODES: bool = true;

    #[inline(always)]
    unsafe fn row_group<S: Simd, const T: usize, const EXPANDED: bool>(
        w: *const u8,
        codes: *const u8,
        a: *const u8,
        cols: usize,
        acc: &mut [S::F; T],
    ) {
        for b in 0..cols / 256 {
            // SAFETY: block `b` of the group and of the tile.
            unsafe {
                let (w, a) = (w.add(b * 136 * LANES), a.add(8 * b * act_block::<S>() * T));
                let codes = codes.wrapping_add(b * 256 * LANES);
                let mut totals = [S::f_zero(); T];
                let [mut even, mut odd] = Self::scales::<S>(w);
                for j in 0..8 {
                    let (q, a) = (w.add(128 + 256 * j), a.add(j * act_block::<S>() * T));
                    let codes = codes.wrapping_add(j * 32 * LANES);
                    let sums = if let Some(sums) = expanded_sums::<S, T, EXPANDED, 4>(codes, a) {
                        sum_totals::<S, T>(sums)
                    } else {
                        let mut sums = [S::i_zero(); T];
                        for t in 0..T {
                            sums[t] = S::wide_start(a.add(field::START128 * T + 4 * t));
                        }
                        for v in 0..4 {
                            let (low, top) = if EXPANDED {
                                (S::i_load(codes.add(64 * v)), S::i_load(codes.add(64 * (4 + v))))
                            } else {
                                Self::codes::<S>(q, v)
                            };
                            let (low, top) = (S::wide(low), S::wide(top));
                            for t in 0..T {
                                sums[t] = S::dot_wide(sums[t], low, wide_x::<S, T>(a, v, t));
                                sums[t] = S::dot_wide(sums[t], top, wide_x::<S, T>(a, v + 4, t));
                            }
                        }
                        sums
                    };
                    let scale = S::scale_i8(even);
                    (even, odd) = (odd, S::i_shr::<8>(even));
                    let mut block = [S::block_zero(); T];
                    for t in 0..T {
                        block[t] = S::add_scaled_wide(block[t], sums[t], scale);
                    }
                    add_block::<S, T>(&mut totals, &block, a);
                }
                finish::<S, T>(S::f_load_f16(w), &totals, acc);
            }
        }
    }

    #[inline(always)]
    unsafe fn expand<S: Simd>(w: *const u8, cols: usize, codes: *mut u8) {
        for j in 0..cols / 32 {
            // SAFETY: sub-block `j` of the group and of its codes.
            unsafe {
                let q = w.add(j / 8 * 136 * LANES + 128 + j % 8 * 256);
                let codes = codes.add(j * 32 * LANES);
                for v in [0, 2] {
                    let ((low, top), (next_low, next_top)) =
                        (Self::codes::<S>(q, v), Self::codes::<S>(q, v + 1));
                    S::expand(codes.add(64 * v), [low, next_low], 128);
                    S::expand(codes.add(64 * (4 + v)), [top, next_top], 128);
                }
            }
        }
    }
}
