//! Elementary functions on virtual vectors, and conversions of 16-bit floats.
//!
//! Every function is a fixed sequence of correctly rounded operations, so its results are the same bits for every
//! instruction set. The polynomials are own least-maximum fits.

use crate::isa::{LANES, Op, Simd};
use crate::{CpuError, Isa};

/// Adding it to a small number rounds that to an integer, which is then in the low bits.
const MAGIC: f32 = 12_582_912.0;
const LN_2_HIGH: f32 = std::f32::consts::LN_2;
/// What is left of ln 2.
const LN_2_LOW: f32 = -1.904_654_2e-9;

/// `exp(x) = 2^n * (1 + q)`: returns q and n, the latter as the bits of `MAGIC + n`.
///
/// # Safety
/// The processor has `S`.
#[inline(always)]
unsafe fn exp_parts<S: Simd>(x: S::F) -> (S::F, S::I) {
    // SAFETY: works on registers alone; the processor has `S`.
    unsafe {
        let shifted = S::f_fma(x, S::f_splat(std::f32::consts::LOG2_E), S::f_splat(MAGIC));
        let n = S::f_sub(shifted, S::f_splat(MAGIC));
        let r = S::f_fnma(n, S::f_splat(LN_2_HIGH), x);
        let r = S::f_fnma(n, S::f_splat(LN_2_LOW), r);
        // (exp(r) - 1 - r) / r², to 1.4e-8 of exp(r) - 1.
        let p = polynomial::<S, 5>(r, &[0.001_394_650_5, 0.008_366_61, 0.041_666_28, 0.166_665_43, 0.5]);
        (S::f_fma(S::f_mul(r, r), p, r), S::f_bits(shifted))
    }
}

/// The polynomial with these coefficients, that of the highest power first.
///
/// # Safety
/// The processor has `S`.
#[inline(always)]
unsafe fn polynomial<S: Simd, const N: usize>(x: S::F, coefficients: &[f32; N]) -> S::F {
    // SAFETY: works on registers alone; the processor has `S`.
    unsafe {
        let mut p = S::f_splat(coefficients[0]);
        for c in &coefficients[1..] {
            p = S::f_fma(p, x, S::f_splat(*c));
        }
        p
    }
}

/// `2^n` from the bits of `MAGIC + n`, for n in -126..=127.
///
/// # Safety
/// The processor has `S`.
#[inline(always)]
unsafe fn power_of_two<S: Simd>(n: S::I) -> S::F {
    // SAFETY: works on registers alone; the processor has `S`.
    unsafe { S::f_from_bits(S::i_add(S::i_shl::<23>(n), S::i_splat(1f32.to_bits() as i32))) }
}

/// `exp(x)` within 1.1 ulp: 0 below the smallest subnormal, infinity above the largest number.
///
/// # Safety
/// The processor has `S`.
#[inline(always)]
pub(crate) unsafe fn exp<S: Simd>(x: S::F) -> S::F {
    // SAFETY: works on registers alone; the processor has `S`.
    unsafe {
        // In this order NaN passes.
        let x = S::f_min(S::f_splat(89.0), S::f_max(S::f_splat(-104.0), x));
        let (q, bits) = exp_parts::<S>(x);
        // n is in -151..=129, beyond one exponent, so the power is made of two factors.
        let n = S::i_sub(bits, S::i_splat(MAGIC.to_bits() as i32 - 300));
        let half = S::i_shr::<1>(n);
        let power = |n: S::I| S::f_from_bits(S::i_shl::<23>(S::i_sub(n, S::i_splat(150 - 127))));
        let (first, second) = (power(half), power(S::i_sub(n, half)));
        S::f_mul(S::f_fma(first, q, first), second)
    }
}

/// `exp(x)` for x up to 0: 0 below -87, where results would soon be subnormal.
///
/// # Safety
/// The processor has `S`.
#[inline(always)]
pub(crate) unsafe fn exp_of_negative<S: Simd>(x: S::F) -> S::F {
    // SAFETY: works on registers alone; the processor has `S`.
    unsafe {
        let (q, n) = exp_parts::<S>(x);
        let power = power_of_two::<S>(n);
        S::f_where_lt(x, S::f_splat(-87.0), S::f_zero(), S::f_fma(power, q, power))
    }
}

/// `tanh(x)` within 2.2 ulp.
///
/// # Safety
/// The processor has `S`.
#[inline(always)]
pub(crate) unsafe fn tanh<S: Simd>(x: S::F) -> S::F {
    // SAFETY: works on registers alone; the processor has `S`.
    unsafe {
        let sign = S::i_and(S::f_bits(x), S::i_splat(i32::MIN));
        // From 10 on the result is 1. In this order NaN passes.
        let a = S::f_min(S::f_splat(10.0), abs::<S>(x));
        let (q, n) = exp_parts::<S>(S::f_add(a, a));
        let power = power_of_two::<S>(n);
        // exp(2a) - 1 without cancellation.
        let e = S::f_fma(power, q, S::f_sub(power, S::f_splat(1.0)));
        let y = S::f_div(e, S::f_add(e, S::f_splat(2.0)));
        S::f_from_bits(S::i_or(S::f_bits(y), sign))
    }
}

/// `1 / (1 + exp(-x))`.
///
/// # Safety
/// The processor has `S`.
#[inline(always)]
pub(crate) unsafe fn sigmoid<S: Simd>(x: S::F) -> S::F {
    // SAFETY: works on registers alone; the processor has `S`.
    unsafe { over_one_plus_exp::<S>(S::f_splat(1.0), S::f_sub(S::f_zero(), x)) }
}

/// `ln(1 + exp(x))`.
///
/// # Safety
/// The processor has `S`.
#[inline(always)]
pub(crate) unsafe fn softplus<S: Simd>(x: S::F) -> S::F {
    // SAFETY: works on registers alone; the processor has `S`.
    unsafe {
        // max(x, 0) + ln(1 + u) with u = exp(-|x|), and ln(1 + u) = 2 artanh(s) with s = u / (2 + u) up to 1/3, by the
        // series of artanh: the term left out is below 1e-9 of the sum.
        let u = exp_of_negative::<S>(S::f_sub(S::f_zero(), abs::<S>(x)));
        let s = S::f_div(u, S::f_add(u, S::f_splat(2.0)));
        let z = S::f_mul(s, s);
        let series = [1.0 / 17.0, 1.0 / 15.0, 1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 0.2, 1.0 / 3.0];
        let p = polynomial::<S, 8>(z, &series);
        let twice = S::f_add(s, s);
        let logarithm = S::f_fma(S::f_mul(twice, z), p, twice);
        // In this order NaN passes.
        S::f_add(S::f_max(S::f_zero(), x), logarithm)
    }
}

/// `x / (1 + exp(-x))`.
///
/// # Safety
/// The processor has `S`.
#[inline(always)]
pub(crate) unsafe fn silu<S: Simd>(x: S::F) -> S::F {
    // SAFETY: works on registers alone; the processor has `S`.
    unsafe { over_one_plus_exp::<S>(x, S::f_sub(S::f_zero(), x)) }
}

/// `x / (1 + exp(-alpha x))`.
///
/// # Safety
/// The processor has `S`.
#[inline(always)]
pub(crate) unsafe fn swish<S: Simd>(x: S::F, alpha: f32) -> S::F {
    // SAFETY: works on registers alone; the processor has `S`.
    unsafe { over_one_plus_exp::<S>(x, S::f_mul(x, S::f_splat(-alpha))) }
}

/// Gelu by its tanh approximation: `0.5 x (1 + tanh(u)) = x / (1 + exp(-2u))`, `u = sqrt(2/π) (x + 0.044715 x³)`.
///
/// # Safety
/// The processor has `S`.
#[inline(always)]
pub(crate) unsafe fn gelu<S: Simd>(x: S::F) -> S::F {
    // -2 sqrt(2/π)
    const C: f32 = -1.595_769;
    // SAFETY: works on registers alone; the processor has `S`.
    unsafe {
        let factor = S::f_fma(S::f_mul(x, x), S::f_splat(C * 0.044_715), S::f_splat(C));
        over_one_plus_exp::<S>(x, S::f_mul(x, factor))
    }
}

/// Gelu by erf: `max(x, 0) - |x| Q(|x|)`, where Q is the normal distribution's upper tail.
///
/// # Safety
/// The processor has `S`.
#[inline(always)]
pub(crate) unsafe fn gelu_erf<S: Simd>(x: S::F) -> S::F {
    // SAFETY: works on registers alone; the processor has `S`.
    unsafe {
        // From 20 on the tail is 0. In this order NaN passes.
        let a = S::f_min(S::f_splat(20.0), abs::<S>(x));
        // exp(-a²/2), with what the rounding of a² lost.
        let square = S::f_mul(a, a);
        let lost = S::f_fma(a, a, S::f_sub(S::f_zero(), square));
        let e = exp::<S>(S::f_mul(square, S::f_splat(-0.5)));
        let e = S::f_fnma(S::f_mul(e, S::f_splat(0.5)), lost, e);
        // exp(a²/2) Q(a) as a polynomial in t = 1 / (1 + 0.3 a), to 3.4e-9, without its constant term, 0.
        let t = S::f_div(S::f_splat(1.0), S::f_fma(a, S::f_splat(0.3), S::f_splat(1.0)));
        let p = polynomial::<S, 10>(
            t,
            &[
                -0.020_621_717,
                0.112_422_2,
                -0.228_171_96,
                0.191_714_18,
                -0.079_351_51,
                0.096_110_344,
                0.078_408_64,
                0.110_230_684,
                0.119_572_47,
                0.119_686_65,
            ],
        );
        let tail = S::f_mul(a, S::f_mul(e, S::f_mul(t, p)));
        S::f_sub(S::f_max(S::f_zero(), x), tail)
    }
}

/// `max(x, 0)`.
///
/// # Safety
/// The processor has `S`.
#[inline(always)]
pub(crate) unsafe fn relu<S: Simd>(x: S::F) -> S::F {
    // SAFETY: works on registers alone; the processor has `S`.
    unsafe { S::f_max(S::f_zero(), x) }
}

/// `x / (1 + exp(y))`.
#[inline(always)]
unsafe fn over_one_plus_exp<S: Simd>(x: S::F, y: S::F) -> S::F {
    // SAFETY: works on registers alone; the processor has `S`.
    unsafe { S::f_div(x, S::f_add(S::f_splat(1.0), exp::<S>(y))) }
}

#[inline(always)]
unsafe fn abs<S: Simd>(x: S::F) -> S::F {
    // SAFETY: works on registers alone; the processor has `S`.
    unsafe { S::f_from_bits(S::i_and(S::f_bits(x), S::i_splat(i32::MAX))) }
}

/// A float type of 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    BF16,
}

/// Converts to f32: `halves` are bit patterns.
///
/// # Errors
/// [`CpuError::Length`] where the lengths differ.
pub fn widen(isa: Isa, half: Half, halves: &[u16], out: &mut [f32]) -> Result<(), CpuError> {
    CpuError::check("f32 for 16-bit floats", halves.len(), out.len())?;
    isa.dispatch(Widen { half, halves, out });
    Ok(())
}

/// Converts from f32, to the nearest, ties to even.
///
/// # Errors
/// [`CpuError::Length`] where the lengths differ.
pub fn narrow(isa: Isa, half: Half, x: &[f32], out: &mut [u16]) -> Result<(), CpuError> {
    CpuError::check("16-bit floats for f32", x.len(), out.len())?;
    isa.dispatch(Narrow { half, x, out });
    Ok(())
}

struct Widen<'a> {
    half: Half,
    halves: &'a [u16],
    out: &'a mut [f32],
}

impl Op for Widen<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn call<S: Simd>(self) {
        let (halves, rest) = self.halves.as_chunks::<LANES>();
        let (out, out_rest) = self.out.as_chunks_mut::<LANES>();
        for (halves, out) in halves.iter().zip(out) {
            // SAFETY: both hold 16 elements; the processor has `S`.
            unsafe {
                let p = halves.as_ptr().cast();
                let values = match self.half {
                    Half::F16 => S::f_load_f16(p),
                    Half::BF16 => S::f_load_bf16(p),
                };
                S::f_store(out.as_mut_ptr(), values);
            }
        }
        for (half, out) in rest.iter().zip(out_rest) {
            *out = match self.half {
                Half::F16 => half::f16::from_bits(*half).to_f32(),
                Half::BF16 => half::bf16::from_bits(*half).to_f32(),
            };
        }
    }
}

/// Narrows `x` to `out`, which has as many elements.
pub(crate) struct Narrow<'a> {
    pub(crate) half: Half,
    pub(crate) x: &'a [f32],
    pub(crate) out: &'a mut [u16],
}

impl Op for Narrow<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn call<S: Simd>(self) {
        if self.half == Half::BF16 {
            for (x, out) in self.x.iter().zip(self.out) {
                *out = half::bf16::from_f32(*x).to_bits();
            }
            return;
        }
        let (x, rest) = self.x.as_chunks::<LANES>();
        let (out, out_rest) = self.out.as_chunks_mut::<LANES>();
        for (x, out) in x.iter().zip(out) {
            // SAFETY: both hold 16 elements; the processor has `S`.
            unsafe { S::f_store_f16(out.as_mut_ptr().cast(), S::f_load(x.as_ptr())) };
        }
        for (x, out) in rest.iter().zip(out_rest) {
            *out = half::f16::from_f32(*x).to_bits();
        }
    }
}

#[cfg(test)]
mod tests;
