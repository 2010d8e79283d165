//! The one product of attention: some rows of numbers times a panel, `out[r][c] += sum over i of a[r][i] m[i][c]`.
//!
//! Each result is one chain of multiply-adds over rising `i`, however many rows are computed together.

// Kernels index several arrays of registers by row and column at once.
#![allow(clippy::needless_range_loop)]

use crate::isa::element::Element;
use crate::isa::{LANES, Op, Simd};
use std::marker::PhantomData;

/// Most rows computed together.
pub(super) const fn most_rows<S: Simd>() -> usize {
    if S::SUMS >= 24 { 12 } else { 6 }
}

/// A matrix whose rows are `cols` vectors long.
#[derive(Clone, Copy)]
pub(super) struct Panel {
    pub(super) start: *const u8,
    /// Rows used, from the first.
    pub(super) rows: usize,
    /// Vectors in a row.
    pub(super) cols: usize,
}

/// Multiplies `rows` rows: row `r` is at `a(r)`, `panel.rows` elements, its results at `out(r)`, `panel.cols`
/// vectors, to which is added where `add`.
///
/// # Safety
/// The processor has `S`; `a` and `out` give pointers to as much as that, `panel` holds elements of type `E`.
#[inline(always)]
pub(super) unsafe fn multiply<S: Simd, E: Element>(
    rows: usize,
    a: impl Fn(usize) -> *const f32,
    panel: Panel,
    out: impl Fn(usize) -> *mut f32,
    add: bool,
) {
    let groups = rows.div_ceil(most_rows::<S>());
    let each = rows.div_ceil(groups.max(1));
    let wide = 2 * each <= S::SUMS;
    let mut col = 0;
    while col < panel.cols {
        let cols = if wide && col + 2 <= panel.cols { 2 } else { 1 };
        for first in (0..rows).step_by(each) {
            let count = each.min(rows - first);
            /// One call with the number of rows as a constant.
            macro_rules! with_rows {
                ($($n:literal)*) => { match count {
                    $($n if $n <= most_rows::<S>() => {
                        let a: [_; $n] = std::array::from_fn(|r| a(first + r));
                        // SAFETY: `col` is below the panel's vectors; the caller promises the rest.
                        unsafe {
                            let out: [_; $n] = std::array::from_fn(|r| out(first + r).add(col * LANES));
                            if cols == 2 && 2 * $n <= S::SUMS {
                                S::enter(Together::<E, $n, 2> { a, panel, col, out, add, element: PhantomData });
                            } else {
                                S::enter(Together::<E, $n, 1> { a, panel, col, out, add, element: PhantomData });
                            }
                        }
                    })*
                    _ => unreachable!("{count} rows at once"),
                } };
            }
            with_rows!(1 2 3 4 5 6 7 8 9 10 11 12);
        }
        col += cols;
    }
}

/// `R` rows times `C` vectors of columns from `col` on.
struct Together<E, const R: usize, const C: usize> {
    a: [*const f32; R],
    panel: Panel,
    col: usize,
    out: [*mut f32; R],
    add: bool,
    element: PhantomData<E>,
}

impl<E: Element, const R: usize, const C: usize> Op for Together<E, R, C> {
    type Output = ();

    #[inline(always)]
    unsafe fn call<S: Simd>(self) {
        // SAFETY: as the caller of `multiply` promises.
        unsafe {
            let mut sums = [[S::f_zero(); C]; R];
            if self.add {
                for r in 0..R {
                    for c in 0..C {
                        sums[r][c] = S::f_load(self.out[r].add(c * LANES));
                    }
                }
            }
            let step = self.panel.cols * LANES * E::BYTES;
            let mut m = self.panel.start.add(self.col * LANES * E::BYTES);
            for i in 0..self.panel.rows {
                let mut vectors = [S::f_zero(); C];
                for c in 0..C {
                    vectors[c] = E::load::<S>(m.add(c * LANES * E::BYTES));
                }
                for r in 0..R {
                    let x = S::f_broadcast(self.a[r].add(i).cast());
                    for c in 0..C {
                        sums[r][c] = S::f_fma(x, vectors[c], sums[r][c]);
                    }
                }
                m = m.wrapping_add(step);
            }
            for r in 0..R {
                for c in 0..C {
                    S::f_store(self.out[r].add(c * LANES), sums[r][c]);
                }
            }
        }
    }
}
