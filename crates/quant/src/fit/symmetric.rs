use super::group::{Group, Lanes};
use super::{check, factor, first_factor, limit, round};
use crate::block::{OutOfRange, extreme, inverse};
use std::ops::RangeInclusive;

/// The levels of a type's codes.
pub(crate) trait Grid: Copy {
    /// The lowest and the highest level.
    fn ends(self) -> [f32; 2];
    /// The level nearest to a number.
    fn level(self, v: f32) -> f32;
    /// The code of a level.
    fn code(self, level: f32) -> u8;
    /// The level of a code.
    fn level_of(self, code: u8) -> f32;
    /// How far from an end of the levels the largest magnitude may be put.
    const SLACK: f32;
}

/// Levels `-zero..zero`, with codes `zero` higher.
#[derive(Clone, Copy)]
pub(crate) struct Uniform {
    pub(crate) zero: f32,
}

impl Grid for Uniform {
    fn ends(self) -> [f32; 2] {
        [-self.zero, self.zero - 1.0]
    }

    #[inline(always)]
    fn level(self, v: f32) -> f32 {
        round(limit(v, -self.zero, self.zero - 1.0))
    }

    fn code(self, level: f32) -> u8 {
        (level + self.zero) as u8
    }

    fn level_of(self, code: u8) -> f32 {
        f32::from(code) - self.zero
    }

    const SLACK: f32 = 0.9;
}

/// Sixteen rising levels.
#[derive(Clone, Copy)]
pub(crate) struct Table(pub(crate) &'static [i8; 16]);

impl Grid for Table {
    fn ends(self) -> [f32; 2] {
        [self.0[0], self.0[15]].map(f32::from)
    }

    #[inline(always)]
    fn level(self, v: f32) -> f32 {
        let mut level = f32::from(self.0[0]);
        for pair in self.0.array_windows() {
            let [low, high] = pair.map(f32::from);
            if v > 0.5 * (low + high) {
                level = high;
            }
        }
        level
    }

    fn code(self, level: f32) -> u8 {
        self.0.iter().take_while(|&&l| f32::from(l) < level).count() as u8
    }

    fn level_of(self, code: u8) -> f32 {
        f32::from(self.0[usize::from(code & 15)])
    }

    const SLACK: f32 = 12.0;
}

/// Codes with `x = d * scale * level(code)`, the scale common to a group of elements.
pub(crate) struct Symmetric {
    pub(crate) d: f32,
    pub(crate) scales: [i32; 16],
    pub(crate) codes: [u8; 256],
}

/// Starting scales of a group for each end of the levels.
const STARTS: usize = 9;
/// Improvements of a group's best scale after that.
const REFINEMENTS: usize = 3;
/// Solutions for the factor of a block.
const ROUNDS: usize = 2;

/// The best scale found for a group.
fn fit_group<const C: usize, G: Grid>(group: &Group<C>, grid: G) -> f32 {
    let max = extreme(group.values());
    let (mut best, mut most) = (0.0, 0.0);
    for step in 0..2 * STARTS + REFINEMENTS {
        // The largest magnitude near the lowest level, then near the highest one.
        let inv = if step < 2 * STARTS {
            let slack = 2.0 * (step % STARTS) as f32 / (STARTS - 1) as f32 - 1.0;
            (grid.ends()[step / STARTS] + slack * G::SLACK) * inverse(max)
        } else {
            inverse(best)
        };
        let m = group.moments(|v| grid.level(v * inv));
        // What the best scale for these levels, `qx / qq`, takes off the squares.
        let gain = m.qx * m.qx / m.qq;
        if gain > most {
            (best, most) = (m.qx / m.qq, gain);
        }
    }
    best
}

impl Symmetric {
    /// Fits `E` elements in groups of `8 * C` with integer scales in `scales`, lowest first.
    pub(crate) fn fit<const C: usize, G: Grid>(
        x: &[f32],
        grid: G,
        scales: RangeInclusive<i32>,
    ) -> Result<Symmetric, OutOfRange> {
        let [low, high] = [*scales.start() as f32, *scales.end() as f32];
        let ends = [low, high];
        check(x, grid.ends()[0].abs() * low.abs().max(high))?;
        let groups: Vec<(Group<C>, f32)> = x
            .chunks_exact(8 * C)
            .map(|x| {
                let group = Group::new(x);
                let scale = fit_group(&group, grid);
                (group, scale)
            })
            .collect();
        let most = if low < 0.0 { low } else { high };
        let d = extreme(groups.iter().map(|g| g.1)) / most;
        let d = if low < high { first_factor(d)? } else { factor(d)? };
        let (mut best, mut least) = Self::round(&groups, grid, d, ends);
        for _ in 0..ROUNDS {
            let Ok(d) = factor(best.solve(&groups, grid)) else { break };
            let (fit, error) = Self::round(&groups, grid, d, ends);
            if error >= least {
                break;
            }
            (best, least) = (fit, error);
        }
        Ok(best)
    }

    /// Integer scales and codes under a given factor, and the error of all.
    fn round<const C: usize, G: Grid>(
        groups: &[(Group<C>, f32)],
        grid: G,
        d: f32,
        [low, high]: [f32; 2],
    ) -> (Symmetric, f32) {
        let mut fit = Symmetric { d, scales: [0; 16], codes: [0; 256] };
        let mut total = 0.0;
        for (g, ((group, scale), codes)) in groups.iter().zip(fit.codes.chunks_exact_mut(8 * C)).enumerate() {
            let centre = round((scale * inverse(d)).clamp(low, high));
            let mut best = (0.0, f32::INFINITY);
            for step in [0.0, -1.0, 1.0] {
                let scale = (centre + step).clamp(low, high);
                let (d, inv) = (d * scale, inverse(d * scale));
                let error = group.error(|v| d * grid.level(v * inv));
                if error < best.1 {
                    best = (scale, error);
                }
            }
            let inv = inverse(d * best.0);
            for (c, v) in codes.iter_mut().zip(group.values()) {
                *c = grid.code(grid.level(v * inv));
            }
            fit.scales[g] = best.0 as i32;
            total += best.1;
        }
        (fit, total)
    }

    /// The best factor for these codes and integer scales; 0 where they do not determine one.
    fn solve<const C: usize, G: Grid>(&self, groups: &[(Group<C>, f32)], grid: G) -> f32 {
        let [mut aa, mut ax] = [0.0f64; 2];
        for (g, ((group, _), codes)) in groups.iter().zip(self.codes.chunks_exact(8 * C)).enumerate() {
            let m = group.moments_of(codes.as_chunks().0.iter().map(|c| Lanes(c.map(|c| grid.level_of(c)))));
            let scale = f64::from(self.scales[g]);
            aa += scale * scale * f64::from(m.qq);
            ax += scale * f64::from(m.qx);
        }
        if aa > 0.0 { (ax / aa) as f32 } else { 0.0 }
    }
}
