//! Exponential and logarithm made of IEEE additions, multiplications and divisions only.
//!
//! The platform's own functions differ in the last bit between systems, and one bit can change a token.
//! These give the same bits everywhere, as `exp_neg` of `wootz_graph` does.

pub(crate) use wootz_graph::sampling::exp_neg;

/// Values handled side by side in loops that the compiler turns into vector code.
///
/// The order of every sum follows from this number, so it is the same for any vector width.
pub(crate) const LANES: usize = 16;

/// Natural exponential, relative error below 1e-14; saturates to 0 and infinity.
pub(crate) fn exp(x: f64) -> f64 {
    const LN2_HIGH: f64 = 0.693_147_180_369_123_8;
    const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    if x.is_nan() {
        return x;
    }
    if x < -708.0 {
        return 0.0;
    }
    if x > 709.0 {
        return f64::INFINITY;
    }
    let n = (x * std::f64::consts::LOG2_E).round();
    let r = x - n * LN2_HIGH - n * LN2_LOW;
    let mut p = 1.0;
    for k in (1..=14).rev() {
        p = 1.0 + r * p / f64::from(k);
    }
    // |n| <= 1023, so both halves of the exponent are normal numbers.
    let n = n as i64;
    let half = n / 2;
    p * pow2(half) * pow2(n - half)
}

/// `2^n` for `|n| <= 1022`.
fn pow2(n: i64) -> f64 {
    f64::from_bits(((1023 + n) as u64) << 52)
}

/// Natural logarithm, relative error below 1e-14; -infinity at 0, NaN below.
///
/// Splits `x = m 2^e` with `m` near 1 and sums `ln m = 2 artanh((m - 1) / (m + 1))`.
pub(crate) fn ln(x: f64) -> f64 {
    if x == 0.0 {
        return f64::NEG_INFINITY;
    }
    if x.is_nan() || x < 0.0 {
        return f64::NAN;
    }
    if x == f64::INFINITY {
        return x;
    }
    if x < f64::MIN_POSITIVE {
        // Lift subnormal numbers into the normal range first.
        return ln(x * pow2(60)) - 60.0 * std::f64::consts::LN_2;
    }
    let bits = x.to_bits();
    let mut e = (bits >> 52) as i64 - 1023;
    let mut m = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if m > std::f64::consts::SQRT_2 {
        m *= 0.5;
        e += 1;
    }
    let s = (m - 1.0) / (m + 1.0);
    let s2 = s * s;
    let mut sum = 0.0;
    for k in (0..=12).rev() {
        sum = sum * s2 + 1.0 / f64::from(2 * k + 1);
    }
    2.0 * s * sum + e as f64 * std::f64::consts::LN_2
}

/// `base` to the power `exponent` for a base of at least 0.
pub(crate) fn pow(base: f64, exponent: f64) -> f64 {
    if exponent == 0.0 {
        return 1.0;
    }
    if base == 0.0 {
        return if exponent > 0.0 { 0.0 } else { f64::INFINITY };
    }
    exp(exponent * ln(base))
}

/// `base` to a whole power, by repeated squaring.
pub(crate) fn powi(base: f64, mut exponent: u32) -> f64 {
    let (mut result, mut square) = (1.0, base);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= square;
        }
        square *= square;
        exponent >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relative(found: f64, wanted: f64) -> f64 {
        (found - wanted).abs() / wanted.abs().max(f64::MIN_POSITIVE)
    }

    #[test]
    fn exp_neg_is_close_to_the_platforms_f64_exp() {
        let mut x = 0.0f32;
        while x > -87.0 {
            let error = relative(f64::from(exp_neg(x)), f64::from(x).exp());
            assert!(error < 3e-7, "exp_neg({x}) is off by {error:e}");
            x -= 0.000_97;
        }
        assert_eq!(exp_neg(0.0), 1.0);
        for far in [-87.001, -200.0, f32::MIN, f32::NEG_INFINITY] {
            assert_eq!(exp_neg(far), 0.0);
        }
    }

    #[test]
    fn exp_ln_and_pow_are_close_to_the_platforms() {
        for i in -70_000..70_000 {
            let x = f64::from(i) * 0.01;
            assert!(relative(exp(x), x.exp()) < 1e-14, "exp({x})");
        }
        for i in 1..100_000 {
            let x = f64::from(i) * 0.003;
            let error = (ln(x) - x.ln()).abs();
            assert!(error <= 2e-15 * x.ln().abs().max(0.05), "ln({x}) off by {error:e}");
        }
        for x in [1e-310, 1e-300, 5e-324, 1e300, f64::MAX] {
            assert!(relative(ln(x), x.ln()) < 1e-14, "ln({x})");
        }
        for (b, e) in [(0.3, 2.5), (7.0, -1.25), (2.0, 10.0), (1e-9, 0.5)] {
            assert!(relative(pow(b, e), b.powf(e)) < 1e-13, "pow({b}, {e})");
        }
        assert_eq!((pow(0.0, 2.0), pow(0.0, 0.0), ln(0.0)), (0.0, 1.0, f64::NEG_INFINITY));
        assert_eq!((powi(1.75, 0), powi(1.75, 3), powi(2.0, 100)), (1.0, 5.359_375, 2f64.powi(100)));
        assert!(ln(-1.0).is_nan() && exp(f64::NAN).is_nan());
    }

    #[test]
    fn functions_give_the_same_bits_on_every_platform() {
        // Found by the same steps in another language, each rounded to f32.
        let bits = |x: f32| exp_neg(x).to_bits();
        assert_eq!([bits(-0.5), bits(-1.0), bits(-20.25)], [0x3f1b_4598, 0x3ebc_5ab2, 0x30dc_9ef1]);
    }
}
