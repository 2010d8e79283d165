//! Searches for the scales of the K-quants.
//!
//! Each group is fitted on its own by weighted least squares, from several starting scales. The groups' scales are
//! then rounded to integers under common factors, looking at the neighbours too, and the factors are solved for
//! again with codes and integer scales held fixed. Elements weigh more the larger they are, since large weights
//! matter more to the outputs of a model than their share of the squares says.

use crate::block::{OutOfRange, extreme, inverse};
use half::f16;

const BLOCK: usize = 256;
/// Lanes of the sums, so that they can be vectorised; their order is fixed.
const LANES: usize = 8;

/// The nearest integer, ties to even, for magnitudes below 2^22; others are clamped to that.
pub(crate) fn nearest(x: f32) -> i32 {
    round(x.clamp(-4_194_304.0, 4_194_304.0)) as i32
}

/// The nearest whole number, ties to even, for magnitudes up to 2^22.
fn round(x: f32) -> f32 {
    // The sum has no bits left below 1. Unlike the library's function this needs no instruction beyond the
    // baseline of x86-64, and so vectorises.
    const SHIFT: f32 = 12_582_912.0;
    (x + SHIFT) - SHIFT
}

/// The f16 nearest to a factor.
fn factor(value: f32) -> Result<f32, OutOfRange> {
    let value = f16::from_f32(value);
    if value.is_finite() { Ok(value.to_f32()) } else { Err(OutOfRange) }
}

/// Sums of `N` terms each, in [`LANES`] partial sums.
fn sums<const N: usize, const K: usize>(terms: impl Fn(usize) -> [f32; K]) -> [f32; K] {
    let mut lanes = [[0.0; LANES]; K];
    for i in (0..N).step_by(LANES) {
        for lane in 0..LANES {
            let t = terms(i + lane);
            for (sum, t) in lanes.iter_mut().zip(t) {
                sum[lane] += t;
            }
        }
    }
    lanes.map(|lanes| lanes.iter().sum())
}

fn weights<const N: usize>(x: &[f32; N]) -> [f32; N] {
    let [squares] = sums::<N, 1>(|i| [x[i] * x[i]]);
    let rms = (squares / N as f32).sqrt();
    x.map(|v| rms + v.abs())
}

/// Codes `0..=top` with `x = d * scale * code - dmin * min`, scale and minimum common to a group of elements.
pub(crate) struct Affine {
    pub(crate) d: f32,
    pub(crate) dmin: f32,
    pub(crate) scales: [u8; 16],
    pub(crate) mins: [u8; 16],
    pub(crate) codes: [u8; BLOCK],
}

/// One group of an affine block.
struct AffineGroup<const N: usize> {
    x: [f32; N],
    w: [f32; N],
    top: f32,
}

/// A fit of a group: `x = scale * code + low`, with `low <= 0`.
#[derive(Clone, Copy)]
struct Line {
    scale: f32,
    low: f32,
}

impl<const N: usize> AffineGroup<N> {
    fn codes(&self, line: Line) -> [f32; N] {
        let inv = inverse(line.scale);
        self.x.map(|v| round(((v - line.low) * inv).clamp(0.0, self.top)))
    }

    /// The weighted squares of what `line` leaves over with the best codes for it.
    fn error(&self, line: Line) -> f32 {
        let q = self.codes(line);
        let [error] = sums::<N, 1>(|i| {
            let e = line.scale * q[i] + line.low - self.x[i];
            [self.w[i] * e * e]
        });
        error
    }

    /// The best line for given codes; `None` where they do not determine one.
    fn solve(&self, q: &[f32; N]) -> Option<Line> {
        let (x, w) = (&self.x, &self.w);
        let [sw, swq, swqq, swx, swqx] = sums::<N, 5>(|i| {
            let wq = w[i] * q[i];
            [w[i], wq, wq * q[i], w[i] * x[i], wq * x[i]]
        });
        let det = sw * swqq - swq * swq;
        let low = (swqq * swx - swq * swqx) / det;
        if det > 0.0 && low <= 0.0 {
            Some(Line { scale: (sw * swqx - swq * swx) / det, low })
        } else if swqq > 0.0 {
            Some(Line { scale: swqx / swqq, low: 0.0 })
        } else {
            None
        }
    }

    fn fit(&self) -> Line {
        let low = self.x.iter().copied().fold(0.0, f32::min);
        let high = self.x.iter().copied().fold(low, f32::max);
        let mut best = Line { scale: 0.0, low };
        if high == low {
            return best;
        }
        let mut least = f32::INFINITY;
        for step in -10..=10 {
            let mut line = Line { scale: (high - low) / (self.top + 0.1 * step as f32), low };
            // From the second solution on the codes are the best for the line before, and the error falls.
            for _ in 0..3 {
                let Some(solved) = self.solve(&self.codes(line)).filter(|l| l.scale > 0.0) else { break };
                line = solved;
                let error = self.error(line);
                if error >= least {
                    break;
                }
                (best, least) = (line, error);
            }
        }
        best
    }

    /// The integers near `line`'s scale and minimum that leave the least error under the factors, and that error.
    fn quantise(&self, line: Line, d: f32, dmin: f32, most: f32) -> (u8, u8, f32) {
        let near = |value: f32| {
            let centre = round(value.clamp(0.0, most));
            [-1.0, 0.0, 1.0].map(|step| (centre + step).clamp(0.0, most))
        };
        let mut best = (0, 0, f32::INFINITY);
        for scale in near(line.scale * inverse(d)) {
            for min in near(-line.low * inverse(dmin)) {
                let error = self.error(Line { scale: d * scale, low: -dmin * min });
                if error < best.2 {
                    best = (scale as u8, min as u8, error);
                }
            }
        }
        best
    }
}

impl Affine {
    /// Fits codes `0..=top` in groups of `N` with integer scales and minimums `0..=most`.
    pub(crate) fn fit<const N: usize>(x: &[f32; BLOCK], top: u8, most: u8) -> Result<Affine, OutOfRange> {
        let (top, most) = (f32::from(top), f32::from(most));
        if extreme(x).abs() > f16::MAX.to_f32() * top * most {
            return Err(OutOfRange);
        }
        let groups: Vec<AffineGroup<N>> =
            x.as_chunks().0.iter().map(|x| AffineGroup { x: *x, w: weights(x), top }).collect();
        let lines: Vec<Line> = groups.iter().map(AffineGroup::fit).collect();
        let mut d = factor(lines.iter().map(|l| l.scale).fold(0.0, f32::max) / most)?;
        let mut dmin = factor(lines.iter().map(|l| -l.low).fold(0.0, f32::max) / most)?;
        let (mut best, mut least) = Self::round(&groups, &lines, d, dmin, most);
        for _ in 0..3 {
            let Some((next_d, next_dmin)) = best.solve(&groups) else { break };
            (d, dmin) = (factor(next_d)?, factor(next_dmin)?);
            let (fit, error) = Self::round(&groups, &lines, d, dmin, most);
            if error >= least {
                break;
            }
            (best, least) = (fit, error);
        }
        Ok(best)
    }

    /// Integer scales and codes under given factors, and the error of all.
    fn round<const N: usize>(
        groups: &[AffineGroup<N>],
        lines: &[Line],
        d: f32,
        dmin: f32,
        most: f32,
    ) -> (Affine, f32) {
        let mut fit = Affine { d, dmin, scales: [0; 16], mins: [0; 16], codes: [0; BLOCK] };
        let mut total = 0.0;
        for (g, ((group, line), codes)) in
            groups.iter().zip(lines).zip(fit.codes.chunks_exact_mut(N)).enumerate()
        {
            let (scale, min, error) = group.quantise(*line, d, dmin, most);
            let line = Line { scale: d * f32::from(scale), low: -dmin * f32::from(min) };
            codes.copy_from_slice(&group.codes(line).map(|q| q as u8));
            (fit.scales[g], fit.mins[g]) = (scale, min);
            total += error;
        }
        (fit, total)
    }

    /// The best factors for these codes and integer scales; `None` where they do not determine both.
    fn solve<const N: usize>(&self, groups: &[AffineGroup<N>]) -> Option<(f32, f32)> {
        let [mut aa, mut ab, mut bb, mut ax, mut bx] = [0.0f64; 5];
        for (g, (group, codes)) in groups.iter().zip(self.codes.chunks_exact(N)).enumerate() {
            let (scale, b) = (f64::from(self.scales[g]), -f64::from(self.mins[g]));
            for ((&x, &w), &q) in group.x.iter().zip(&group.w).zip(codes) {
                let (x, w, a) = (f64::from(x), f64::from(w), scale * f64::from(q));
                aa += w * a * a;
                ab += w * a * b;
                bb += w * b * b;
                ax += w * a * x;
                bx += w * b * x;
            }
        }
        let det = aa * bb - ab * ab;
        let (d, dmin) =
            if det > 0.0 { ((bb * ax - ab * bx) / det, (aa * bx - ab * ax) / det) } else { (ax / aa, 0.0) };
        (d > 0.0 && dmin >= 0.0).then_some((d as f32, dmin as f32))
    }
}

/// Codes `0..2 * zero` with `x = d * scale * (code - zero)`, the scale common to a group of 16 elements.
pub(crate) struct Symmetric {
    pub(crate) d: f32,
    pub(crate) scales: [i32; 16],
    pub(crate) codes: [u8; BLOCK],
}

/// One group of a symmetric block.
struct SymmetricGroup {
    x: [f32; 16],
    w: [f32; 16],
    zero: f32,
}

impl SymmetricGroup {
    fn levels(&self, inv: f32) -> [f32; 16] {
        self.x.map(|v| round((v * inv).clamp(-self.zero, self.zero - 1.0)))
    }

    /// Weighted sums of `x * q` and `q * q`.
    fn products(&self, q: &[f32; 16]) -> [f32; 2] {
        sums::<16, 2>(|i| [self.w[i] * self.x[i] * q[i], self.w[i] * q[i] * q[i]])
    }

    fn error(&self, scale: f32) -> f32 {
        let q = self.levels(inverse(scale));
        let [error] = sums::<16, 1>(|i| {
            let e = scale * q[i] - self.x[i];
            [self.w[i] * e * e]
        });
        error
    }

    fn fit(&self) -> f32 {
        let max = extreme(&self.x);
        let mut best = 0.0;
        if max == 0.0 {
            return best;
        }
        let mut most = 0.0;
        // The largest magnitude near the lowest level, or near the highest one.
        for end in [-self.zero, self.zero - 1.0] {
            for step in -9..=9 {
                let mut inv = (end + 0.1 * step as f32) / max;
                for _ in 0..3 {
                    let [xq, qq] = self.products(&self.levels(inv));
                    // What the best scale for these levels, `xq / qq`, takes off the squares.
                    let gain = xq * xq / qq;
                    if gain.is_nan() || gain <= most {
                        break;
                    }
                    (best, most) = (xq / qq, gain);
                    inv = inverse(best);
                }
            }
        }
        best
    }
}

impl Symmetric {
    /// Fits codes below `2 * zero` with integer scales `-most..most`.
    pub(crate) fn fit(x: &[f32; BLOCK], zero: u8, most: i32) -> Result<Symmetric, OutOfRange> {
        let (zero, most) = (f32::from(zero), most as f32);
        if extreme(x).abs() > f16::MAX.to_f32() * zero * most {
            return Err(OutOfRange);
        }
        let groups: Vec<SymmetricGroup> =
            x.as_chunks().0.iter().map(|x| SymmetricGroup { x: *x, w: weights(x), zero }).collect();
        let scales: Vec<f32> = groups.iter().map(SymmetricGroup::fit).collect();
        let mut d = factor(extreme(&scales) / -most)?;
        let (mut best, mut least) = Self::round(&groups, &scales, d, most);
        for _ in 0..3 {
            d = factor(best.solve(&groups))?;
            let (fit, error) = Self::round(&groups, &scales, d, most);
            if error >= least {
                break;
            }
            (best, least) = (fit, error);
        }
        Ok(best)
    }

    /// Integer scales and codes under a given factor, and the error of all.
    fn round(groups: &[SymmetricGroup], scales: &[f32], d: f32, most: f32) -> (Symmetric, f32) {
        let mut fit = Symmetric { d, scales: [0; 16], codes: [0; BLOCK] };
        let mut total = 0.0;
        for (g, ((group, scale), codes)) in
            groups.iter().zip(scales).zip(fit.codes.chunks_exact_mut(16)).enumerate()
        {
            let centre = round((scale * inverse(d)).clamp(-most, most - 1.0));
            let mut least = f32::INFINITY;
            for step in [0.0, -1.0, 1.0] {
                let scale = (centre + step).clamp(-most, most - 1.0);
                let error = group.error(d * scale);
                if error < least {
                    least = error;
                    fit.scales[g] = scale as i32;
                }
            }
            let levels = group.levels(inverse(d * fit.scales[g] as f32));
            codes.copy_from_slice(&levels.map(|q| (q + group.zero) as u8));
            total += least;
        }
        (fit, total)
    }

    /// The best factor for these codes and integer scales; 0 where they do not determine one.
    fn solve(&self, groups: &[SymmetricGroup]) -> f32 {
        let [mut aa, mut ax] = [0.0f64; 2];
        for (g, (group, codes)) in groups.iter().zip(self.codes.chunks_exact(16)).enumerate() {
            for ((&x, &w), &q) in group.x.iter().zip(&group.w).zip(codes) {
                let a = f64::from(self.scales[g]) * (f64::from(q) - f64::from(group.zero));
                aa += f64::from(w) * a * a;
                ax += f64::from(w) * a * f64::from(x);
            }
        }
        if aa > 0.0 { (ax / aa) as f32 } else { 0.0 }
    }
}
