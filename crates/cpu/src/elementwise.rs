//! Operations element by element, on any part of a matrix.

use crate::isa::{LANES, Op, Simd};
use crate::norm::{load_part, store_part};
use crate::{CpuError, Isa, math};
use wootz_graph::op::{Activation, ClampedGlu};

/// Result `[n]` of `function` applied to `x` `[n]`.
///
/// # Errors
/// [`CpuError::Length`] where the lengths differ.
pub fn activate(isa: Isa, function: Activation, x: &[f32], out: &mut [f32]) -> Result<(), CpuError> {
    CpuError::check("elements of the result", x.len(), out.len())?;
    with_activation(isa, function, Alone, Place::apart(x, x, out));
    Ok(())
}

/// Replaces `x` by `function` applied to it.
pub fn activate_in_place(isa: Isa, function: Activation, x: &mut [f32]) {
    with_activation(isa, function, Alone, Place::within(x));
}

/// `function(gate) * up`, all of one length.
///
/// # Errors
/// [`CpuError::Length`] where the lengths differ.
pub fn glu(
    isa: Isa,
    function: Activation,
    gate: &[f32],
    up: &[f32],
    out: &mut [f32],
) -> Result<(), CpuError> {
    CpuError::check("elements to be gated", gate.len(), up.len())?;
    CpuError::check("elements of the result", gate.len(), out.len())?;
    with_activation(isa, function, Gated, Place::apart(gate, up, out));
    Ok(())
}

/// Replaces `gate` by `function(gate) * up`.
///
/// # Errors
/// [`CpuError::Length`] where the lengths differ.
pub fn glu_in_place(isa: Isa, function: Activation, gate: &mut [f32], up: &[f32]) -> Result<(), CpuError> {
    CpuError::check("elements to be gated", gate.len(), up.len())?;
    with_activation(isa, function, Gated, Place::onto_first(gate, up));
    Ok(())
}

/// The gated unit of gpt-oss, see [`wootz_graph::op::Op::GluClamped`]; all of one length.
///
/// # Errors
/// [`CpuError::Length`] where the lengths differ.
pub fn glu_clamped(
    isa: Isa,
    unit: ClampedGlu,
    gate: &[f32],
    up: &[f32],
    out: &mut [f32],
) -> Result<(), CpuError> {
    apart(isa, unit, "elements to be gated", [gate, up], out)
}

/// `a + b`.
///
/// # Errors
/// [`CpuError::Length`] where the lengths differ.
pub fn add(isa: Isa, a: &[f32], b: &[f32], out: &mut [f32]) -> Result<(), CpuError> {
    apart(isa, Sum, "summands", [a, b], out)
}

/// `a * b`.
///
/// # Errors
/// [`CpuError::Length`] where the lengths differ.
pub fn mul(isa: Isa, a: &[f32], b: &[f32], out: &mut [f32]) -> Result<(), CpuError> {
    apart(isa, Product, "factors", [a, b], out)
}

/// `f` of two operands, called `what` where their lengths differ, to a place of its own.
fn apart<F: Function>(
    isa: Isa,
    f: F,
    what: &'static str,
    [a, b]: [&[f32]; 2],
    out: &mut [f32],
) -> Result<(), CpuError> {
    CpuError::check(what, a.len(), b.len())?;
    CpuError::check("elements of the result", a.len(), out.len())?;
    isa.dispatch(Elements { f, place: Place::apart(a, b, out) });
    Ok(())
}

/// Adds `b` to `a`.
///
/// # Errors
/// [`CpuError::Length`] where the lengths differ.
pub fn add_in_place(isa: Isa, a: &mut [f32], b: &[f32]) -> Result<(), CpuError> {
    CpuError::check("summands", a.len(), b.len())?;
    isa.dispatch(Elements { f: Sum, place: Place::onto_first(a, b) });
    Ok(())
}

/// `x * factor`.
///
/// # Errors
/// [`CpuError::Length`] where the lengths differ.
pub fn scale(isa: Isa, factor: f32, x: &[f32], out: &mut [f32]) -> Result<(), CpuError> {
    CpuError::check("elements of the result", x.len(), out.len())?;
    isa.dispatch(Elements { f: Times(factor), place: Place::apart(x, x, out) });
    Ok(())
}

/// Multiplies `x` by `factor`.
pub fn scale_in_place(isa: Isa, factor: f32, x: &mut [f32]) {
    isa.dispatch(Elements { f: Times(factor), place: Place::within(x) });
}

/// `cap * tanh(x / cap)`.
///
/// # Errors
/// [`CpuError::Length`] where the lengths differ.
pub fn softcap(isa: Isa, cap: f32, x: &[f32], out: &mut [f32]) -> Result<(), CpuError> {
    CpuError::check("elements of the result", x.len(), out.len())?;
    isa.dispatch(Elements { f: Softcap(cap), place: Place::apart(x, x, out) });
    Ok(())
}

/// Replaces `x` by `cap * tanh(x / cap)`.
pub fn softcap_in_place(isa: Isa, cap: f32, x: &mut [f32]) {
    isa.dispatch(Elements { f: Softcap(cap), place: Place::within(x) });
}

/// `1 / (1 + exp(-x))`.
///
/// # Errors
/// [`CpuError::Length`] where the lengths differ.
pub fn sigmoid(isa: Isa, x: &[f32], out: &mut [f32]) -> Result<(), CpuError> {
    CpuError::check("elements of the result", x.len(), out.len())?;
    isa.dispatch(Elements { f: Sigmoid(Alone), place: Place::apart(x, x, out) });
    Ok(())
}

/// `x + (y - x) * m`, where m is the sum of what there is; all of one length.
///
/// # Errors
/// [`CpuError::Length`] where the lengths differ.
pub fn lerp(
    isa: Isa,
    x: &[f32],
    y: &[f32],
    by: [Option<&[f32]>; 2],
    out: &mut [f32],
) -> Result<(), CpuError> {
    CpuError::check("elements to go to", x.len(), y.len())?;
    CpuError::check("elements of the result", x.len(), out.len())?;
    for m in by.into_iter().flatten() {
        CpuError::check("elements to go by", x.len(), m.len())?;
    }
    isa.dispatch(Between { x, y, by, out });
    Ok(())
}

/// `v` `[heads * head_dim]` times the score of each head, the sum of `a * b * weight` over its elements.
///
/// # Errors
/// [`CpuError::Length`] where the lengths differ or do not divide into heads.
pub fn bonus(
    isa: Isa,
    heads: usize,
    [a, b, v]: [&[f32]; 3],
    weight: &[f32],
    out: &mut [f32],
) -> Result<(), CpuError> {
    let n = v.len() / heads.max(1);
    CpuError::check("elements of equal heads", n * heads, v.len())?;
    for other in [a, b, weight, out] {
        CpuError::check("elements of a head's score", v.len(), other.len())?;
    }
    isa.dispatch(Scores { n, a, b, v, weight, out });
    Ok(())
}

/// Copies rows of `x` `[_, cols]` by their numbers: `out` is `[rows.len(), cols]`.
///
/// # Errors
/// [`CpuError::Length`] where `out` has another size; [`CpuError::Index`] for a row that does not exist.
pub fn gather<T: Copy>(x: &[T], cols: usize, rows: &[i32], out: &mut [T]) -> Result<(), CpuError> {
    CpuError::check("gathered elements", rows.len() * cols, out.len())?;
    for (row, out) in rows.iter().zip(out.chunks_exact_mut(cols.max(1))) {
        let index = usize::try_from(*row).ok();
        let source = index.and_then(|r| x.get(r.checked_mul(cols)?..)?.get(..cols));
        let source = source.ok_or(CpuError::Index {
            what: "row",
            found: i64::from(*row),
            limit: x.len() / cols.max(1),
        })?;
        out.copy_from_slice(source);
    }
    Ok(())
}

/// A function of two elements; some use the first alone.
trait Function: Copy {
    /// # Safety
    /// The processor has `S`.
    unsafe fn apply<S: Simd>(self, a: S::F, b: S::F) -> S::F;
}

/// What becomes of an activation's result.
trait Finish: Copy {
    /// # Safety
    /// The processor has `S`.
    unsafe fn finish<S: Simd>(self, y: S::F, b: S::F) -> S::F;
}

#[derive(Clone, Copy)]
struct Alone;
impl Finish for Alone {
    #[inline(always)]
    unsafe fn finish<S: Simd>(self, y: S::F, _: S::F) -> S::F {
        y
    }
}

#[derive(Clone, Copy)]
struct Gated;
impl Finish for Gated {
    #[inline(always)]
    unsafe fn finish<S: Simd>(self, y: S::F, b: S::F) -> S::F {
        // SAFETY: as the caller promises.
        unsafe { S::f_mul(y, b) }
    }
}

/// Declares types that apply an expression.
macro_rules! functions {
    ($($name:ident: $x:ident => $body:expr;)*) => { $(
        #[derive(Clone, Copy)]
        struct $name<E>(E);
        impl<E: Finish> Function for $name<E> {
            #[inline(always)]
            unsafe fn apply<S: Simd>(self, $x: S::F, b: S::F) -> S::F {
                // SAFETY: as the caller promises.
                unsafe { self.0.finish::<S>($body, b) }
            }
        }
    )* };
}

functions! {
    Sigmoid: x => math::sigmoid::<S>(x);
    Silu: x => math::silu::<S>(x);
    Gelu: x => math::gelu::<S>(x);
    GeluErf: x => math::gelu_erf::<S>(x);
    GeluQuick: x => math::swish::<S>(x, 1.702);
    Relu: x => math::relu::<S>(x);
    ReluSquared: x => { let y = math::relu::<S>(x); S::f_mul(y, y) };
}

#[derive(Clone, Copy)]
struct Sum;
impl Function for Sum {
    #[inline(always)]
    unsafe fn apply<S: Simd>(self, a: S::F, b: S::F) -> S::F {
        // SAFETY: as the caller promises.
        unsafe { S::f_add(a, b) }
    }
}

#[derive(Clone, Copy)]
struct Product;
impl Function for Product {
    #[inline(always)]
    unsafe fn apply<S: Simd>(self, a: S::F, b: S::F) -> S::F {
        // SAFETY: as the caller promises.
        unsafe { S::f_mul(a, b) }
    }
}

#[derive(Clone, Copy)]
struct Times(f32);
impl Function for Times {
    #[inline(always)]
    unsafe fn apply<S: Simd>(self, a: S::F, _: S::F) -> S::F {
        // SAFETY: as the caller promises.
        unsafe { S::f_mul(a, S::f_splat(self.0)) }
    }
}

#[derive(Clone, Copy)]
struct Softcap(f32);
impl Function for Softcap {
    #[inline(always)]
    unsafe fn apply<S: Simd>(self, a: S::F, _: S::F) -> S::F {
        // SAFETY: as the caller promises.
        unsafe {
            let cap = S::f_splat(self.0);
            S::f_mul(cap, math::tanh::<S>(S::f_div(a, cap)))
        }
    }
}

impl Function for ClampedGlu {
    #[inline(always)]
    unsafe fn apply<S: Simd>(self, gate: S::F, up: S::F) -> S::F {
        // SAFETY: as the caller promises.
        unsafe {
            // In this order NaN passes.
            let limit = S::f_splat(self.limit);
            let gate = S::f_min(limit, gate);
            let up = S::f_min(limit, S::f_max(S::f_splat(-self.limit), up));
            S::f_mul(math::swish::<S>(gate, self.alpha), S::f_add(up, S::f_splat(1.0)))
        }
    }
}

struct Between<'a> {
    x: &'a [f32],
    y: &'a [f32],
    by: [Option<&'a [f32]>; 2],
    out: &'a mut [f32],
}

impl Op for Between<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn call<S: Simd>(self) {
        let Between { x, y, by, out } = self;
        for i in (0..x.len()).step_by(LANES) {
            let count = LANES.min(x.len() - i);
            // SAFETY: `lerp` has checked that all have one length; the processor has `S`.
            unsafe {
                let at = |v: &[f32]| load_part::<S>(v.as_ptr().add(i), count, 0.0);
                let m = match by.map(|m| m.map(at)) {
                    [Some(m), Some(row)] => S::f_add(m, row),
                    [Some(m), None] | [None, Some(m)] => m,
                    [None, None] => S::f_zero(),
                };
                let result = S::f_fma(S::f_sub(at(y), at(x)), m, at(x));
                store_part::<S>(out.as_mut_ptr().add(i), count, result);
            }
        }
    }
}

struct Scores<'a> {
    n: usize,
    a: &'a [f32],
    b: &'a [f32],
    v: &'a [f32],
    weight: &'a [f32],
    out: &'a mut [f32],
}

impl Op for Scores<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn call<S: Simd>(self) {
        let Scores { n, a, b, v, weight, out } = self;
        for first in (0..v.len()).step_by(n.max(1)) {
            // SAFETY: `bonus` has checked that all have one length, a multiple of `n`; the processor has `S`.
            unsafe {
                let at =
                    |v: &[f32], i: usize| load_part::<S>(v.as_ptr().add(first + i), LANES.min(n - i), 0.0);
                let mut sum = S::f_zero();
                for i in (0..n).step_by(LANES) {
                    sum = S::f_fma(S::f_mul(at(a, i), at(b, i)), at(weight, i), sum);
                }
                let score = S::f_splat(S::f_sum(sum));
                for i in (0..n).step_by(LANES) {
                    let to = out.as_mut_ptr().add(first + i);
                    store_part::<S>(to, LANES.min(n - i), S::f_mul(at(v, i), score));
                }
            }
        }
    }
}

fn with_activation(isa: Isa, function: Activation, end: impl Finish, place: Place<'_>) {
    match function {
        Activation::Silu => isa.dispatch(Elements { f: Silu(end), place }),
        Activation::Gelu => isa.dispatch(Elements { f: Gelu(end), place }),
        Activation::GeluErf => isa.dispatch(Elements { f: GeluErf(end), place }),
        Activation::GeluQuick => isa.dispatch(Elements { f: GeluQuick(end), place }),
        Activation::Relu => isa.dispatch(Elements { f: Relu(end), place }),
        Activation::ReluSquared => isa.dispatch(Elements { f: ReluSquared(end), place }),
        Activation::Sigmoid => isa.dispatch(Elements { f: Sigmoid(end), place }),
    }
}

/// Two operands and a result of `len` elements; the result may lie on an operand, element on element.
struct Place<'a> {
    a: *const f32,
    b: *const f32,
    out: *mut f32,
    len: usize,
    _borrow: std::marker::PhantomData<&'a mut [f32]>,
}

impl<'a> Place<'a> {
    fn apart(a: &'a [f32], b: &'a [f32], out: &'a mut [f32]) -> Place<'a> {
        assert!(a.len() == out.len() && b.len() == out.len());
        Place {
            a: a.as_ptr(),
            b: b.as_ptr(),
            out: out.as_mut_ptr(),
            len: out.len(),
            _borrow: Default::default(),
        }
    }

    fn within(x: &'a mut [f32]) -> Place<'a> {
        let out = x.as_mut_ptr();
        Place { a: out, b: out, out, len: x.len(), _borrow: Default::default() }
    }

    fn onto_first(a: &'a mut [f32], b: &'a [f32]) -> Place<'a> {
        assert_eq!(a.len(), b.len());
        let out = a.as_mut_ptr();
        Place { a: out, b: b.as_ptr(), out, len: a.len(), _borrow: Default::default() }
    }
}

struct Elements<'a, F> {
    f: F,
    place: Place<'a>,
}

impl<F: Function> Op for Elements<'_, F> {
    type Output = ();

    #[inline(always)]
    unsafe fn call<S: Simd>(self) {
        let Place { a, b, out, len, .. } = self.place;
        let whole = len - len % LANES;
        // SAFETY: all three hold `len` elements, and every element is read before its place is written; the
        // processor has `S`.
        unsafe {
            for i in (0..whole).step_by(LANES) {
                S::f_store(out.add(i), self.f.apply::<S>(S::f_load(a.add(i)), S::f_load(b.add(i))));
            }
            if whole < len {
                let mut last = [[0.0f32; LANES]; 2];
                a.add(whole).copy_to_nonoverlapping(last[0].as_mut_ptr(), len - whole);
                b.add(whole).copy_to_nonoverlapping(last[1].as_mut_ptr(), len - whole);
                let y = self.f.apply::<S>(S::f_load(last[0].as_ptr()), S::f_load(last[1].as_ptr()));
                S::f_store(last[0].as_mut_ptr(), y);
                out.add(whole).copy_from_nonoverlapping(last[0].as_ptr(), len - whole);
            }
        }
    }
}

#[cfg(test)]
mod tests;
