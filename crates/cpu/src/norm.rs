//! Normalisation of rows, or of equal groups of each row.

use crate::isa::{LANES, Op, Simd};
use crate::{CpuError, Isa};
use wootz_graph::op::{Norm, NormKind};

/// Attributes of a norm with its vectors and the width of rows.
#[derive(Clone, Copy, Debug)]
pub struct NormParams<'a> {
    /// Formula, epsilon and groups; its weight numbers are not used.
    pub norm: Norm,
    /// Columns.
    pub cols: usize,
    /// Factors `[cols / groups]`.
    pub weight: Option<&'a [f32]>,
    /// Summands `[cols / groups]`.
    pub bias: Option<&'a [f32]>,
}

impl NormParams<'_> {
    fn check(&self, x: usize, out: usize) -> Result<(), CpuError> {
        let groups = self.norm.groups as usize;
        if groups == 0 || self.cols == 0 || !self.cols.is_multiple_of(groups) {
            let expected = self.cols.next_multiple_of(groups.max(1)).max(1);
            return Err(CpuError::Length { what: "columns in equal groups", expected, found: self.cols });
        }
        for vector in [self.weight, self.bias].into_iter().flatten() {
            CpuError::check("elements of a norm's vector", self.cols / groups, vector.len())?;
        }
        CpuError::check("elements of whole rows", x / self.cols * self.cols, x)?;
        CpuError::check("elements of the result", x, out)
    }
}

/// Norm of each row of `x` `[rows, cols]`.
///
/// # Errors
/// [`CpuError::Length`] where sizes do not fit.
pub fn norm(isa: Isa, params: &NormParams<'_>, x: &[f32], out: &mut [f32]) -> Result<(), CpuError> {
    params.check(x.len(), out.len())?;
    isa.dispatch(Rows { params, x: x.as_ptr(), out: out.as_mut_ptr(), len: x.len() });
    Ok(())
}

/// Replaces each row of `x` `[rows, cols]` by its norm.
///
/// # Errors
/// [`CpuError::Length`] where sizes do not fit.
pub fn norm_in_place(isa: Isa, params: &NormParams<'_>, x: &mut [f32]) -> Result<(), CpuError> {
    params.check(x.len(), x.len())?;
    isa.dispatch(Rows { params, x: x.as_ptr(), out: x.as_mut_ptr(), len: x.len() });
    Ok(())
}

/// Adds `summand` to the rows of `x` and writes the norm of the sums to `out`; all are `[rows, cols]`.
///
/// # Errors
/// [`CpuError::Length`] where sizes do not fit.
pub fn add_norm(
    isa: Isa,
    params: &NormParams<'_>,
    x: &mut [f32],
    summand: &[f32],
    out: &mut [f32],
) -> Result<(), CpuError> {
    params.check(x.len(), out.len())?;
    CpuError::check("summands", x.len(), summand.len())?;
    let cols = params.cols;
    for ((x, summand), out) in
        x.chunks_exact_mut(cols).zip(summand.chunks_exact(cols)).zip(out.chunks_exact_mut(cols))
    {
        crate::elementwise::add_in_place(isa, x, summand)?;
        isa.dispatch(Rows { params, x: x.as_ptr(), out: out.as_mut_ptr(), len: cols });
    }
    Ok(())
}

/// Norms `len` elements at `x`; `out` may be `x`.
struct Rows<'a> {
    params: &'a NormParams<'a>,
    x: *const f32,
    out: *mut f32,
    len: usize,
}

impl Op for Rows<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn call<S: Simd>(self) {
        let part = self.params.cols / self.params.norm.groups as usize;
        for first in (0..self.len).step_by(part) {
            // SAFETY: the public functions have checked that `len` is a multiple of `part` and that the vectors
            // have `part` elements; the processor has `S`.
            unsafe { self.group::<S>(self.x.add(first), self.out.add(first), part) };
        }
    }
}

impl Rows<'_> {
    /// # Safety
    /// `n` elements can be read at `x` and written at `out`; the processor has `S`.
    #[inline(always)]
    unsafe fn group<S: Simd>(&self, x: *const f32, out: *mut f32, n: usize) {
        let Norm { kind, eps, .. } = self.params.norm;
        // SAFETY: as the caller promises.
        unsafe {
            let mean = match kind {
                NormKind::Rms | NormKind::L2 => 0.0,
                NormKind::Layer => total::<S>(x, n, 0.0, |v| v) / n as f32,
            };
            let centre = S::f_splat(mean);
            let squares = match kind {
                NormKind::Rms | NormKind::L2 => total::<S>(x, n, 0.0, |v| S::f_mul(v, v)),
                NormKind::Layer => total::<S>(x, n, mean, |v| {
                    let v = S::f_sub(v, centre);
                    S::f_mul(v, v)
                }),
            };
            let divisor = match kind {
                NormKind::Rms | NormKind::Layer => (squares / n as f32 + eps).sqrt(),
                NormKind::L2 => squares.sqrt().max(eps),
            };
            let inverse = S::f_splat(1.0 / divisor);
            let mut i = 0;
            while i < n {
                let count = LANES.min(n - i);
                let mut y = load_part::<S>(x.add(i), count, 0.0);
                if kind == NormKind::Layer {
                    y = S::f_sub(y, centre);
                }
                y = S::f_mul(y, inverse);
                let vector = |v: &[f32]| load_part::<S>(v.as_ptr().add(i), count, 0.0);
                y = match (self.params.weight.map(vector), self.params.bias.map(vector)) {
                    (Some(w), Some(b)) => S::f_fma(y, w, b),
                    (Some(w), None) => S::f_mul(y, w),
                    (None, Some(b)) => S::f_add(y, b),
                    (None, None) => y,
                };
                store_part::<S>(out.add(i), count, y);
                i += LANES;
            }
        }
    }
}

/// The sum of `f` over `n` elements, in two chains of 16 lanes; `f(fill)` is 0.
///
/// # Safety
/// `n` elements can be read at `x`; the processor has `S`.
#[inline(always)]
unsafe fn total<S: Simd>(x: *const f32, n: usize, fill: f32, f: impl Fn(S::F) -> S::F) -> f32 {
    // SAFETY: as the caller promises.
    unsafe {
        let mut sums = [S::f_zero(); 2];
        let mut i = 0;
        while i + 2 * LANES <= n {
            sums[0] = S::f_add(sums[0], f(S::f_load(x.add(i))));
            sums[1] = S::f_add(sums[1], f(S::f_load(x.add(i + LANES))));
            i += 2 * LANES;
        }
        while i < n {
            sums[0] = S::f_add(sums[0], f(load_part::<S>(x.add(i), LANES.min(n - i), fill)));
            i += LANES;
        }
        S::f_sum(S::f_add(sums[0], sums[1]))
    }
}

/// The first `count` (at most 16) lanes from `p`, the others `fill`.
///
/// # Safety
/// `count` elements can be read at `p`; the processor has `S`.
#[inline(always)]
pub(crate) unsafe fn load_part<S: Simd>(p: *const f32, count: usize, fill: f32) -> S::F {
    // SAFETY: as the caller promises.
    unsafe {
        if count == LANES {
            return S::f_load(p);
        }
        let mut lanes = [fill; LANES];
        p.copy_to_nonoverlapping(lanes.as_mut_ptr(), count);
        S::f_load(lanes.as_ptr())
    }
}

/// Writes the first `count` (at most 16) lanes.
///
/// # Safety
/// `count` elements can be written at `p`; the processor has `S`.
#[inline(always)]
pub(crate) unsafe fn store_part<S: Simd>(p: *mut f32, count: usize, a: S::F) {
    // SAFETY: as the caller promises.
    unsafe {
        if count == LANES {
            return S::f_store(p, a);
        }
        let mut lanes = [0.0; LANES];
        S::f_store(lanes.as_mut_ptr(), a);
        p.copy_from_nonoverlapping(lanes.as_ptr(), count);
    }
}

#[cfg(test)]
mod tests;
