use super::group::{Group, Lanes};
use super::{check, factor, first_factor, limit, round};
use crate::block::{OutOfRange, inverse};

/// Codes `0..=top` with `x = d * scale * code - dmin * min`, scale and minimum common to a group of elements.
pub(crate) struct Affine {
    pub(crate) d: f32,
    pub(crate) dmin: f32,
    pub(crate) scales: [u8; 16],
    pub(crate) mins: [u8; 16],
    pub(crate) codes: [u8; 256],
}

/// A fit of a group: `x = scale * code + low`, with `low <= 0`.
#[derive(Clone, Copy)]
struct Line {
    scale: f32,
    low: f32,
}

impl Line {
    /// The code nearest to a value.
    #[inline(always)]
    fn code(self, top: f32) -> impl Fn(f32) -> f32 {
        let inv = inverse(self.scale);
        move |v| round(limit((v - self.low) * inv, 0.0, top))
    }

    /// The error of a group with the best codes for this line.
    #[inline(always)]
    fn error<const C: usize>(self, group: &Group<C>, top: f32) -> f32 {
        let code = self.code(top);
        group.error(|v| self.scale * code(v) + self.low)
    }

    /// The best line for the codes that this one gives; `None` where they do not determine a rising one.
    fn improve<const C: usize>(self, group: &Group<C>, top: f32) -> Option<Line> {
        let m = group.moments(self.code(top));
        let det = group.sw * m.qq - m.q * m.q;
        let low = (m.qq * group.swx - m.q * m.qx) / det;
        let line = if det > 0.0 && low <= 0.0 {
            Line { scale: (group.sw * m.qx - m.q * group.swx) / det, low }
        } else {
            Line { scale: m.qx / m.qq, low: 0.0 }
        };
        (line.scale > 0.0).then_some(line)
    }

    /// The best line found for a group.
    fn fit<const C: usize>(group: &Group<C>, top: f32) -> Line {
        let low = group.values().fold(0.0, f32::min);
        let high = group.values().fold(low, f32::max);
        let (mut best, mut least) = (Line { scale: 0.0, low }, f32::INFINITY);
        let mut start = best;
        for step in 0..STARTS + REFINEMENTS {
            if step < STARTS {
                start.scale = (high - low) / (top - 1.0 + 2.0 * step as f32 / (STARTS - 1) as f32);
            } else {
                start = best;
            }
            let Some(line) = start.improve(group, top) else { continue };
            let error = line.error(group, top);
            if error < least {
                (best, least) = (line, error);
            }
        }
        best
    }

    /// The integers near this line's scale and minimum that leave the least error under the factors, and that error.
    fn quantise<const C: usize>(
        self,
        group: &Group<C>,
        top: f32,
        factors: Factors,
        most: f32,
    ) -> (u8, u8, f32) {
        let near = |value: f32| {
            let centre = round(value.clamp(0.0, most));
            [-1.0, 0.0, 1.0].map(|step| (centre + step).clamp(0.0, most))
        };
        let mut best = (0, 0, f32::INFINITY);
        for scale in near(self.scale * inverse(factors.d)) {
            for min in near(-self.low * inverse(factors.dmin)) {
                let error = factors.line(scale, min).error(group, top);
                if error < best.2 {
                    best = (scale as u8, min as u8, error);
                }
            }
        }
        best
    }
}

/// The factors of a block, rounded to f16.
#[derive(Clone, Copy)]
struct Factors {
    d: f32,
    dmin: f32,
}

impl Factors {
    fn line(self, scale: f32, min: f32) -> Line {
        Line { scale: self.d * scale, low: -(self.dmin * min) }
    }
}

/// Starting scales of a group: from one code more to one code less than the range asks for.
const STARTS: usize = 9;
/// Improvements of a group's best line after that.
const REFINEMENTS: usize = 3;
/// Solutions for the factors of a block.
const ROUNDS: usize = 2;

impl Affine {
    /// Fits codes `0..=top` in groups of `8 * C` with integer scales and minimums `0..=most`.
    pub(crate) fn fit<const C: usize>(x: &[f32; 256], top: u8, most: u8) -> Result<Affine, OutOfRange> {
        let (top, most) = (f32::from(top), f32::from(most));
        check(x, top * most)?;
        let groups: Vec<(Group<C>, Line)> = x
            .chunks_exact(8 * C)
            .map(|x| {
                let group = Group::new(x);
                let line = Line::fit(&group, top);
                (group, line)
            })
            .collect();
        let scale = groups.iter().map(|(_, l)| l.scale).fold(0.0, f32::max);
        let min = groups.iter().map(|(_, l)| -l.low).fold(0.0, f32::max);
        let factors = Factors { d: first_factor(scale / most)?, dmin: first_factor(min / most)? };
        let (mut best, mut least) = Self::round(&groups, top, factors, most);
        for _ in 0..ROUNDS {
            let Some((d, dmin)) = best.solve(&groups) else { break };
            let (Ok(d), Ok(dmin)) = (factor(d), factor(dmin)) else { break };
            let factors = Factors { d, dmin };
            let (fit, error) = Self::round(&groups, top, factors, most);
            if error >= least {
                break;
            }
            (best, least) = (fit, error);
        }
        Ok(best)
    }

    /// Integer scales and codes under given factors, and the error of all.
    fn round<const C: usize>(
        groups: &[(Group<C>, Line)],
        top: f32,
        factors: Factors,
        most: f32,
    ) -> (Affine, f32) {
        let Factors { d, dmin } = factors;
        let mut fit = Affine { d, dmin, scales: [0; 16], mins: [0; 16], codes: [0; 256] };
        let mut total = 0.0;
        for (g, ((group, line), codes)) in groups.iter().zip(fit.codes.chunks_exact_mut(8 * C)).enumerate() {
            let (scale, min, error) = line.quantise(group, top, factors, most);
            let code = factors.line(f32::from(scale), f32::from(min)).code(top);
            for (c, v) in codes.iter_mut().zip(group.values()) {
                *c = code(v) as u8;
            }
            (fit.scales[g], fit.mins[g]) = (scale, min);
            total += error;
        }
        (fit, total)
    }

    /// The best factors for these codes and integer scales; `None` where they do not determine both.
    fn solve<const C: usize>(&self, groups: &[(Group<C>, Line)]) -> Option<(f32, f32)> {
        let [mut aa, mut ab, mut bb, mut ax, mut bx] = [0.0f64; 5];
        for (g, ((group, _), codes)) in groups.iter().zip(self.codes.chunks_exact(8 * C)).enumerate() {
            let m = group.moments_of(codes.as_chunks().0.iter().map(|c| Lanes(c.map(f32::from))));
            // Elements are `d * scale * q - dmin * min`.
            let (scale, min) = (f64::from(self.scales[g]), f64::from(self.mins[g]));
            aa += scale * scale * f64::from(m.qq);
            ab -= scale * min * f64::from(m.q);
            bb += min * min * f64::from(group.sw);
            ax += scale * f64::from(m.qx);
            bx -= min * f64::from(group.swx);
        }
        let det = aa * bb - ab * ab;
        let (d, dmin) =
            if det > 0.0 { ((bb * ax - ab * bx) / det, (aa * bx - ab * ax) / det) } else { (ax / aa, 0.0) };
        (d > 0.0 && dmin >= 0.0).then_some((d as f32, dmin as f32))
    }
}
