//! Float weights: f32 multiply-adds, one row in a lane.
//!
//! Columns are taken in steps: one by one, or in pairs for BF16, where both products are added one after the other; a last
//! column without a partner is added to the total. Steps are taken in runs of 64, the last one shorter; in a run, four sums
//! from zero take every fourth step each, and are then added to the total in order. So a mat-vec has four independent
//! chains, and a tile with many tokens can do one chain after the other.

use super::tile::Format;
use crate::isa::element::Element;
use crate::isa::{LANES, Simd};
use std::marker::PhantomData;

const RUN: usize = 64;
const CHAINS: usize = 4;

/// What is added to a sum at once.
pub(super) trait Step {
    /// Columns.
    const COLUMNS: usize;
    /// Bytes of a weight.
    const BYTES: usize;

    /// Bytes of an activation.
    fn act_bytes<S: Simd>() -> usize;

    /// Adds the columns at `w` and `a` to the sums.
    ///
    /// # Safety
    /// The processor has `S`; both hold the columns of a step.
    unsafe fn add<S: Simd, const T: usize>(w: *const u8, a: *const u8, sums: &mut [S::F; T]);

    /// Adds one column, the last one where steps have more.
    ///
    /// # Safety
    /// The processor has `S`; both hold a column.
    unsafe fn add_alone<S: Simd, const T: usize>(w: *const u8, a: *const u8, sums: &mut [S::F; T]);
}

/// A column of a type whose elements are multiplied with f32.
pub(super) struct Column<E>(PhantomData<E>);

impl<E: Element> Step for Column<E> {
    const COLUMNS: usize = 1;
    const BYTES: usize = E::BYTES;

    #[inline(always)]
    fn act_bytes<S: Simd>() -> usize {
        4
    }

    #[inline(always)]
    unsafe fn add<S: Simd, const T: usize>(w: *const u8, a: *const u8, sums: &mut [S::F; T]) {
        // SAFETY: as the caller promises.
        unsafe {
            let weights = E::load::<S>(w);
            for t in 0..T {
                sums[t] = S::f_fma(weights, S::f_broadcast(a.add(4 * t)), sums[t]);
            }
        }
    }

    #[inline(always)]
    unsafe fn add_alone<S: Simd, const T: usize>(w: *const u8, a: *const u8, sums: &mut [S::F; T]) {
        // SAFETY: as the caller promises.
        unsafe { Self::add::<S, T>(w, a, sums) }
    }
}

/// A pair of columns of BF16; see [`bf16`](crate::bf16).
pub(super) struct Pair;

impl Step for Pair {
    const COLUMNS: usize = 2;
    const BYTES: usize = 2;

    #[inline(always)]
    fn act_bytes<S: Simd>() -> usize {
        S::BF16_BYTES
    }

    #[inline(always)]
    unsafe fn add<S: Simd, const T: usize>(w: *const u8, a: *const u8, sums: &mut [S::F; T]) {
        // SAFETY: as the caller promises.
        unsafe { S::add_bf16_pairs(sums, S::i_load(w), a) }
    }

    #[inline(always)]
    unsafe fn add_alone<S: Simd, const T: usize>(w: *const u8, a: *const u8, sums: &mut [S::F; T]) {
        // SAFETY: as the caller promises.
        unsafe {
            let weights = S::f_load_bf16(w);
            for t in 0..T {
                let x = if S::BF16_BYTES == 2 {
                    let bits = a.add(2 * t).cast::<u16>().read_unaligned();
                    S::f_splat(f32::from_bits(u32::from(bits) << 16))
                } else {
                    S::f_broadcast(a.add(4 * t))
                };
                sums[t] = S::f_fma(weights, x, sums[t]);
            }
        }
    }
}

/// The kernel of a float type.
pub(super) struct Float<K>(PhantomData<K>);

impl<K: Step> Format for Float<K> {
    const CODES: bool = false;

    #[inline(always)]
    unsafe fn row_group<S: Simd, const T: usize, const EXPANDED: bool>(
        w: *const u8,
        _codes: *const u8,
        a: *const u8,
        cols: usize,
        acc: &mut [S::F; T],
    ) {
        let steps = cols / K::COLUMNS;
        // SAFETY: `cols` columns lie in the group and in the tile.
        unsafe {
            for first in (0..steps).step_by(RUN) {
                let len = RUN.min(steps - first);
                let (w, a) = at::<S, K, T>(w, a, first * K::COLUMNS);
                if T == 1 {
                    together::<S, K, T>(w, a, len, acc);
                } else {
                    in_turn::<S, K, T>(w, a, len, acc);
                }
            }
            if cols > steps * K::COLUMNS {
                let (w, a) = at::<S, K, T>(w, a, steps * K::COLUMNS);
                K::add_alone::<S, T>(w, a, acc);
            }
        }
    }

    /// Floats have no codes.
    #[inline(always)]
    unsafe fn expand<S: Simd>(_w: *const u8, _cols: usize, _codes: *mut u8) {}
}

/// The weights and the activations from `column` on.
///
/// # Safety
/// Both have as many columns.
#[inline(always)]
unsafe fn at<S: Simd, K: Step, const T: usize>(
    w: *const u8,
    a: *const u8,
    column: usize,
) -> (*const u8, *const u8) {
    // SAFETY: as the caller promises.
    unsafe { (w.add(column * K::BYTES * LANES), a.add(column * K::act_bytes::<S>() * T)) }
}

/// All chains at once, reading strictly upwards.
///
/// # Safety
/// The processor has `S`; there are `len` steps.
#[inline(always)]
unsafe fn together<S: Simd, K: Step, const T: usize>(
    w: *const u8,
    a: *const u8,
    len: usize,
    acc: &mut [S::F; T],
) {
    // SAFETY: as the caller promises.
    unsafe {
        let mut sums = [[S::f_zero(); T]; CHAINS];
        let step = |k: usize, sum: &mut [S::F; T]| {
            let (w, a) = at::<S, K, T>(w, a, k * K::COLUMNS);
            K::add::<S, T>(w, a, sum);
        };
        for k in (0..len - len % CHAINS).step_by(CHAINS) {
            for (chain, sum) in sums.iter_mut().enumerate() {
                step(k + chain, sum);
            }
        }
        for k in len - len % CHAINS..len {
            step(k, &mut sums[k % CHAINS]);
        }
        for sum in sums {
            for t in 0..T {
                acc[t] = S::f_add(acc[t], sum[t]);
            }
        }
    }
}

/// One chain after the other, for tiles whose tokens are chains enough.
///
/// # Safety
/// The processor has `S`; there are `len` steps.
#[inline(always)]
unsafe fn in_turn<S: Simd, K: Step, const T: usize>(
    w: *const u8,
    a: *const u8,
    len: usize,
    acc: &mut [S::F; T],
) {
    for chain in 0..CHAINS {
        // SAFETY: as the caller promises.
        unsafe {
            let mut sum = [S::f_zero(); T];
            for k in (chain..len).step_by(CHAINS) {
                let (w, a) = at::<S, K, T>(w, a, k * K::COLUMNS);
                K::add::<S, T>(w, a, &mut sum);
            }
            for t in 0..T {
                acc[t] = S::f_add(acc[t], sum[t]);
            }
        }
    }
}
