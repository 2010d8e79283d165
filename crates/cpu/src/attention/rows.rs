//! The one product of attention: some rows of numbers times a matrix, `out[r][c] += sum over i of a[r][i] m[i][c]`.
//!
//! Each result is one chain of multiply-adds over rising `i`, however many rows are computed together.

use crate::isa::element::Element;
use crate::isa::{LANES, Op, Simd};
use std::marker::PhantomData;

/// Most parts of a matrix.
pub(super) const PARTS: usize = super::SEGMENT / LANES;

/// Rows of numbers, the next one `stride` elements on.
#[derive(Clone, Copy)]
pub(super) struct Rows<P> {
    pub(super) start: P,
    pub(super) stride: usize,
}

/// A matrix in pieces of memory, in each of which vectors of one column follow each other.
#[derive(Clone, Copy)]
pub(super) enum Matrix {
    /// Vector columns, each a piece of `len` rows.
    Columns {
        /// Start of each column.
        starts: [*const u8; PARTS],
        /// Rows.
        len: usize,
    },
    /// Pieces of `rows` rows below each other; in a piece, one column follows the other.
    Blocks {
        /// Start of each piece.
        starts: [*const u8; PARTS],
        /// Rows of a piece.
        rows: usize,
        /// First row used, in the first piece.
        first: usize,
        /// Number of rows used.
        len: usize,
    },
}

/// Multiplies `count` rows `a` with the matrix `m` of `cols` vector columns, and writes to (or, if `add`, adds to)
/// rows `out` of `cols` vectors.
///
/// Running it is undefined where pointers do not fit the sizes.
pub(super) struct Product<E> {
    pub(super) count: usize,
    pub(super) a: Rows<*const f32>,
    pub(super) m: Matrix,
    pub(super) cols: usize,
    pub(super) out: Rows<*mut f32>,
    pub(super) add: bool,
    pub(super) element: PhantomData<E>,
}

impl<E: Element> Op for Product<E> {
    type Output = ();

    #[inline(always)]
    unsafe fn call<S: Simd>(self) {
        let groups = self.count.div_ceil(S::ROWS[0]);
        let wide = self.count.div_ceil(groups.max(1)) <= S::ROWS[1];
        let mut col = 0;
        while col < self.cols {
            let cols = if wide && col + 2 <= self.cols { 2 } else { 1 };
            let mut first = 0;
            for left in (1..=groups).rev() {
                // The columns stay in the first-level cache while all rows use them.
                let count = (self.count - first).div_ceil(left);
                /// One call with the number of rows as a constant.
                macro_rules! with_rows {
                    ($($n:literal)*) => { match count {
                        $($n if $n <= S::ROWS[0] => {
                            // SAFETY: the rows from `first` on and the columns from `col` on are part of the product.
                            unsafe {
                                if cols == 2 && $n <= S::ROWS[1] {
                                    self.together::<S, $n, 2>(first, col);
                                } else {
                                    self.together::<S, $n, 1>(first, col);
                                }
                            }
                        })*
                        _ => unreachable!("{count} rows at once"),
                    } };
                }
                with_rows!(1 2 3 4 5 6 7 8 9 10 11 12);
                first += count;
            }
            col += cols;
        }
    }
}

impl<E: Element> Product<E> {
    /// `R` rows from `first` on times `C` vector columns from `col` on.
    ///
    /// # Safety
    /// The processor has `S`; the rows and columns are part of the product.
    #[inline(always)]
    unsafe fn together<S: Simd, const R: usize, const C: usize>(&self, first: usize, col: usize) {
        // SAFETY: as the caller promises.
        unsafe {
            let a = self.a.start.add(first * self.a.stride);
            let a: [*const f32; R] = std::array::from_fn(|r| a.add(r * self.a.stride));
            let out = self.out.start.add(first * self.out.stride + col * LANES);
            let out: [*mut f32; R] = std::array::from_fn(|r| out.add(r * self.out.stride));
            let mut sums = [[S::f_zero(); C]; R];
            if self.add {
                for (sums, out) in sums.iter_mut().zip(out) {
                    for (c, sum) in sums.iter_mut().enumerate() {
                        *sum = S::f_load(out.add(c * LANES));
                    }
                }
            }
            match &self.m {
                Matrix::Columns { starts, len } => {
                    let m: [*const u8; C] = std::array::from_fn(|c| starts[col + c]);
                    piece::<S, E, R, C>(&a, 0, m, *len, &mut sums);
                }
                Matrix::Blocks { starts, rows, first, len } => {
                    let (mut at, mut done) = (*first, 0);
                    for start in starts {
                        let count = (rows - at).min(len - done);
                        let m = std::array::from_fn(|c| {
                            start.wrapping_add(((col + c) * rows + at) * LANES * E::BYTES)
                        });
                        piece::<S, E, R, C>(&a, done, m, count, &mut sums);
                        (at, done) = (0, done + count);
                        if done == *len {
                            break;
                        }
                    }
                }
            }
            for (sums, out) in sums.iter().zip(out) {
                for (c, sum) in sums.iter().enumerate() {
                    S::f_store(out.add(c * LANES), *sum);
                }
            }
        }
    }
}

/// Adds the products of the elements of `a` from `at` on with `len` vectors at each of `m`.
///
/// # Safety
/// The processor has `S`; there are so many elements.
#[inline(always)]
unsafe fn piece<S: Simd, E: Element, const R: usize, const C: usize>(
    a: &[*const f32; R],
    at: usize,
    mut m: [*const u8; C],
    len: usize,
    sums: &mut [[S::F; C]; R],
) {
    for i in at..at + len {
        // SAFETY: as the caller promises.
        unsafe {
            let mut vectors = [S::f_zero(); C];
            for c in 0..C {
                vectors[c] = E::load::<S>(m[c]);
                m[c] = m[c].add(LANES * E::BYTES);
            }
            for r in 0..R {
                let x = S::f_broadcast(a[r].add(i).cast());
                for c in 0..C {
                    sums[r][c] = S::f_fma(x, vectors[c], sums[r][c]);
                }
            }
        }
    }
}
