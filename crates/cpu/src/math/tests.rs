use super::*;
use crate::testing::{Random, bits, isas};

#[derive(Clone, Copy, Debug)]
enum Function {
    Exp,
    ExpOfNegative,
    Tanh,
    Sigmoid,
    Silu,
    Gelu,
    GeluErf,
    GeluQuick,
    Softplus,
}
use Function::*;

struct Apply<'a> {
    function: Function,
    x: &'a [f32],
    y: &'a mut [f32],
}

impl Op for Apply<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn call<S: Simd>(self) {
        for (x, y) in self.x.as_chunks::<LANES>().0.iter().zip(self.y.as_chunks_mut::<LANES>().0) {
            // SAFETY: both hold 16 elements.
            unsafe {
                let x = S::f_load(x.as_ptr());
                let value = match self.function {
                    Exp => exp::<S>(x),
                    ExpOfNegative => exp_of_negative::<S>(x),
                    Tanh => tanh::<S>(x),
                    Sigmoid => sigmoid::<S>(x),
                    Silu => silu::<S>(x),
                    Gelu => gelu::<S>(x),
                    GeluErf => gelu_erf::<S>(x),
                    GeluQuick => swish::<S>(x, 1.702),
                    Softplus => softplus::<S>(x),
                };
                S::f_store(y.as_mut_ptr(), value);
            }
        }
    }
}

/// The same for every instruction set.
fn apply(function: Function, x: &[f32]) -> Vec<f32> {
    assert!(x.len().is_multiple_of(LANES));
    let results: Vec<Vec<f32>> = isas()
        .into_iter()
        .map(|isa| {
            let mut y = vec![0.0; x.len()];
            isa.dispatch(Apply { function, x, y: &mut y });
            y
        })
        .collect();
    for other in &results[1..] {
        let differs =
            results[0].iter().zip(other).position(|(a, b)| a.to_bits() != b.to_bits() && !a.is_nan());
        assert_eq!(differs, None, "{function:?}");
    }
    results.into_iter().next().unwrap()
}

/// The upper tail of the normal distribution, by the trapezoid rule on a smooth integral over the whole line
/// (E. T. Goodwin 1949), which converges fast; its pole at `a = k h` is avoided by the choice of the step.
fn normal_tail(a: f64) -> f64 {
    assert!(a >= 0.0);
    if a < 1.0 {
        // The series of the distribution function around 0.
        let (mut term, mut sum) = (a, a);
        for n in 1..60 {
            term *= -a * a / (2 * n) as f64;
            sum += term / (2 * n + 1) as f64;
        }
        return 0.5 - sum / (2.0 * std::f64::consts::PI).sqrt();
    }
    // Laplace's continued fraction.
    let mut tail = a;
    for n in (1..2000).rev() {
        tail = a + f64::from(n) / tail;
    }
    (-a * a / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt() / tail
}

fn oracle(function: Function, x: f64) -> f64 {
    match function {
        Exp | ExpOfNegative => x.exp(),
        Tanh => x.tanh(),
        Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Silu => x / (1.0 + (-x).exp()),
        Gelu => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            x / (1.0 + (-2.0 * u).exp())
        }
        GeluErf if x < 0.0 => x * normal_tail(-x),
        GeluErf => x - x * normal_tail(x),
        GeluQuick => x / (1.0 + (-1.702 * x).exp()),
        Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
    }
}

/// Distance in units of the last place of the correctly rounded value (of the smallest normal number at least).
fn ulps(found: f32, exact: f64) -> f64 {
    let near = (exact as f32).abs().max(f32::MIN_POSITIVE);
    let unit = f64::from(f32::from_bits(near.to_bits() + 1)) - f64::from(near);
    (f64::from(found) - exact).abs() / unit
}

fn worst(function: Function, from: f32, to: f32) -> f64 {
    let n = 1 << 18;
    let mut x: Vec<f32> = (0..n).map(|i| from + (to - from) * i as f32 / n as f32).collect();
    // And tiny ones.
    if from < 0.0 && to > 0.0 {
        x.extend(
            (0..1024).map(|i| f32::from_bits(0x3f80_0000 - (i << 19)) * if i % 2 == 0 { 1.0 } else { -1.0 }),
        );
    }
    let y = apply(function, &x);
    x.iter().zip(&y).map(|(x, y)| ulps(*y, oracle(function, f64::from(*x)))).fold(0.0, f64::max)
}

#[test]
fn functions_are_accurate() {
    for (function, from, to, limit) in [
        (Exp, -87.0, 88.7, 1.1),
        (ExpOfNegative, -87.0, 0.0, 1.1),
        (Tanh, -12.0, 12.0, 2.2),
        (Sigmoid, -80.0, 80.0, 2.5),
        (Silu, -80.0, 80.0, 3.0),
        // The exponent's rounding is multiplied by the exponent, here up to 10, for tiny results.
        (Gelu, -3.0, 10.0, 16.0),
        (GeluErf, -12.0, 12.0, 7.0),
        (GeluQuick, -5.0, 20.0, 8.0),
        (Softplus, -87.0, 87.0, 4.0),
    ] {
        let found = worst(function, from, to);
        assert!(found <= limit, "{function:?}: {found} ulp");
    }
}

#[test]
fn exp_keeps_its_limits() {
    let mut x =
        [f32::NEG_INFINITY, -1e30, -104.0, -103.5, -88.0, -0.0, 0.0, 88.8, 1e30, f32::INFINITY, f32::NAN]
            .to_vec();
    x.resize(16, 1.0);
    let y = apply(Exp, &x);
    assert_eq!(y[..3], [0.0; 3]);
    for (x, y) in x[3..5].iter().zip(&y[3..5]) {
        let exact = f64::from(*x).exp();
        assert!((f64::from(*y) - exact).abs() <= f64::from(f32::from_bits(1)), "{x}: {y}");
        assert!(*y > 0.0);
    }
    assert_eq!(y[5..7], [1.0; 2]);
    assert_eq!(y[7..10], [f32::INFINITY; 3]);
    assert!(y[10].is_nan());

    let y = apply(ExpOfNegative, &x);
    assert_eq!(bits(&y[..3]), [0; 3]);
    assert_eq!(y[5..7], [1.0; 2]);
    assert!(y[10].is_nan());
}

#[test]
fn odd_inputs_stay_odd() {
    let inf = f32::INFINITY;
    let mut x = vec![f32::NAN, inf, -inf, 1e38, -1e38, 0.0, -0.0, 1e-40];
    x.resize(16, 0.5);
    for function in [Tanh, Sigmoid, Silu, Gelu, GeluErf, GeluQuick] {
        let y = apply(function, &x);
        assert!(y[0].is_nan(), "{function:?}");
        let top = if matches!(function, Tanh | Sigmoid) { 1.0 } else { 1e38 };
        assert_eq!(y[3], top, "{function:?}");
        assert_eq!(y[4], if matches!(function, Tanh) { -1.0 } else { 0.0 }, "{function:?}");
        assert_eq!(y[5], if matches!(function, Sigmoid) { 0.5 } else { 0.0 }, "{function:?}");
    }
    assert_eq!(apply(Tanh, &x)[1..3], [1.0, -1.0]);
    assert_eq!(apply(Sigmoid, &x)[1..3], [1.0, 0.0]);
    assert_eq!(apply(GeluErf, &x)[1], inf);
    let softplus = apply(Softplus, &x);
    assert!(softplus[0].is_nan());
    assert_eq!(softplus[1..5], [inf, 0.0, 1e38, 0.0]);
}

#[test]
fn halves_convert_as_the_half_crate_does() {
    let all: Vec<u16> = (0..=u16::MAX).collect();
    let mut random = Random::new(5);
    let floats: Vec<f32> = (0..100_001).map(|_| f32::from_bits(random.next() as u32)).collect();
    let near: Vec<f32> = all
        .iter()
        .map(|h| half::f16::from_bits(*h).to_f32())
        .flat_map(|f| [f, f32::from_bits(f.to_bits() + 0x0fff), f32::from_bits(f.to_bits() + 0x1000)])
        .collect();
    for isa in isas() {
        for kind in [Half::F16, Half::BF16] {
            let to_f32 = |h: u16| match kind {
                Half::F16 => half::f16::from_bits(h).to_f32(),
                Half::BF16 => half::bf16::from_bits(h).to_f32(),
            };
            let to_half = |x: f32| match kind {
                Half::F16 => half::f16::from_f32(x).to_bits(),
                Half::BF16 => half::bf16::from_f32(x).to_bits(),
            };
            for range in [0..all.len(), 3..3 + 16 * 7 + 5, 9..10, 4..4] {
                let mut out = vec![0.0; range.len()];
                widen(isa, kind, &all[range.clone()], &mut out).unwrap();
                let expected: Vec<f32> = all[range].iter().map(|h| to_f32(*h)).collect();
                assert!(
                    out.iter()
                        .zip(&expected)
                        .all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan())
                );
            }
            for x in [&floats, &near] {
                let mut out = vec![0; x.len()];
                narrow(isa, kind, x, &mut out).unwrap();
                for (x, h) in x.iter().zip(&out) {
                    assert!(*h == to_half(*x) || x.is_nan() && to_f32(*h).is_nan(), "{isa} {kind:?} {x}");
                }
            }
            assert!(widen(isa, kind, &all[..3], &mut [0.0; 2]).is_err());
            assert!(narrow(isa, kind, &[0.0; 3], &mut [0; 2]).is_err());
        }
    }
}
