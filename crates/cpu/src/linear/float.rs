//! Float weights: f32 multiply-adds, one row in a lane.
//!
//! Columns are taken in runs of 64, the last one shorter; in a run, four sums from zero take every fourth column
//! each, and are then added to the total in order. So a mat-vec has four independent chains, and a tile with many
//! tokens can do one chain after the other.

use super::tile::Format;
use crate::isa::element::Element;
use crate::isa::{LANES, Simd};

const RUN: usize = 64;
const CHAINS: usize = 4;

/// The kernel of a float type.
pub(super) struct Float<E>(std::marker::PhantomData<E>);

impl<E: Element> Format for Float<E> {
    const CODES: bool = false;

    #[inline(always)]
    unsafe fn row_group<S: Simd, const T: usize, const EXPANDED: bool>(
        w: *const u8,
        _codes: *const u8,
        a: *const u8,
        cols: usize,
        acc: &mut [S::F; T],
    ) {
        let mut first = 0;
        while first < cols {
            let len = RUN.min(cols - first);
            // SAFETY: `len` columns from `first` lie in the group and in the tile.
            unsafe {
                let (w, a) = (w.add(first * E::BYTES * LANES), a.add(first * 4 * T));
                if T == 1 {
                    together::<S, E, T>(w, a, len, acc);
                } else {
                    in_turn::<S, E, T>(w, a, len, acc);
                }
            }
            first += RUN;
        }
    }

    /// Floats have no codes.
    #[inline(always)]
    unsafe fn expand<S: Simd>(_w: *const u8, _cols: usize, _codes: *mut u8) {}
}

/// All chains at once, reading strictly upwards.
#[inline(always)]
unsafe fn together<S: Simd, E: Element, const T: usize>(
    w: *const u8,
    a: *const u8,
    len: usize,
    acc: &mut [S::F; T],
) {
    // SAFETY: the caller passes `len` columns.
    unsafe {
        let mut sums = [[S::f_zero(); T]; CHAINS];
        let step = |k: usize, sum: &mut [S::F; T]| {
            let weights = E::load::<S>(w.add(k * E::BYTES * LANES));
            for t in 0..T {
                sum[t] = S::f_fma(weights, S::f_broadcast(a.add((k * T + t) * 4)), sum[t]);
            }
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
#[inline(always)]
unsafe fn in_turn<S: Simd, E: Element, const T: usize>(
    w: *const u8,
    a: *const u8,
    len: usize,
    acc: &mut [S::F; T],
) {
    for chain in 0..CHAINS {
        // SAFETY: the caller passes `len` columns.
        unsafe {
            let mut sum = [S::f_zero(); T];
            let mut k = chain;
            while k < len {
                let weights = E::load::<S>(w.add(k * E::BYTES * LANES));
                for t in 0..T {
                    sum[t] = S::f_fma(weights, S::f_broadcast(a.add((k * T + t) * 4)), sum[t]);
                }
                k += CHAINS;
            }
            for t in 0..T {
                acc[t] = S::f_add(acc[t], sum[t]);
            }
        }
    }
}
