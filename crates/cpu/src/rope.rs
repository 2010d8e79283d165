//! Rotary position embedding, with sines and cosines computed once for a step.

use crate::isa::{Op, Simd};
use crate::{CpuError, Isa};
use std::f64::consts::PI;
use wootz_graph::op::{Rope, RopeStyle};

/// Positions in a row of the coarse table.
const FINE: usize = 256;

/// Sines and cosines of a step's positions, for all layers with the same attributes.
///
/// A position's values depend on the position alone: a coarse and a fine table (f64) are combined by the sum
/// formulas of sine and cosine.
#[derive(Clone, Debug)]
pub struct RopeTable {
    style: RopeStyle,
    /// Turn of each pair from one position to the next, in radians.
    turns: Vec<f64>,
    /// Factor on the rotated elements.
    magnitude: f64,
    /// (sine, cosine) `[FINE, pairs]`.
    fine: Vec<(f64, f64)>,
    /// (sine, cosine) of every multiple of `FINE`, `[_, pairs]`; grows.
    coarse: Vec<(f64, f64)>,
    /// `[rows, 2 * pairs]`: cosines, then sines.
    rows: Vec<f32>,
}

impl RopeTable {
    /// A table for `rope`, still without positions; `factors` are the frequency divisors `[dims / 2]`.
    ///
    /// # Errors
    /// [`CpuError::Length`] where `factors` or `dims` do not fit.
    pub fn new(rope: &Rope, factors: Option<&[f32]>) -> Result<RopeTable, CpuError> {
        let pairs = rope.dims as usize / 2;
        CpuError::check("rotated elements in pairs", 2 * pairs, rope.dims as usize)?;
        if rope.dims > rope.head_dim {
            let (expected, found) = (rope.head_dim as usize, rope.dims as usize);
            return Err(CpuError::Length { what: "rotated elements of a head, at most", expected, found });
        }
        if let Some(factors) = factors {
            CpuError::check("frequency factors", pairs, factors.len())?;
        }
        let (turns, magnitude) = turns(rope, factors);
        let fine = (0..FINE).flat_map(|p| turns.iter().map(move |t| (p as f64 * t).sin_cos())).collect();
        Ok(RopeTable { style: rope.style, turns, magnitude, fine, coarse: Vec::new(), rows: Vec::new() })
    }

    /// Takes the positions of a step's tokens.
    ///
    /// # Errors
    /// [`CpuError::Index`] for a negative position.
    pub fn set_positions(&mut self, positions: &[i32]) -> Result<(), CpuError> {
        let pairs = self.turns.len();
        if let Some(found) = positions.iter().find(|p| **p < 0) {
            let (what, found) = ("position", i64::from(*found));
            return Err(CpuError::Index { what, found, limit: i32::MAX as usize });
        }
        let last = positions.iter().max().map_or(0, |p| *p as usize / FINE + 1);
        for p in self.coarse.len() / pairs.max(1)..last {
            let angle = |t: &f64| ((p * FINE) as f64 * t).sin_cos();
            self.coarse.extend(self.turns.iter().map(angle));
        }
        self.rows.clear();
        self.rows.resize(positions.len() * 2 * pairs, 0.0);
        if pairs == 0 {
            return Ok(());
        }
        for (row, position) in self.rows.chunks_exact_mut(2 * pairs).zip(positions) {
            let (cosines, sines) = row.split_at_mut(pairs);
            let (high, low) = (*position as usize / FINE, *position as usize % FINE);
            let high = &self.coarse[high * pairs..][..pairs];
            let low = &self.fine[low * pairs..][..pairs];
            for ((cosine, sine), (a, b)) in cosines.iter_mut().zip(sines).zip(high.iter().zip(low)) {
                *sine = ((a.0 * b.1 + a.1 * b.0) * self.magnitude) as f32;
                *cosine = ((a.1 * b.1 - a.0 * b.0) * self.magnitude) as f32;
            }
        }
        Ok(())
    }

    /// Rotates the heads of some rows in place: `x` is `[_, heads * head_dim]`, its first row the step's `first`.
    ///
    /// # Errors
    /// [`CpuError::Length`] where sizes do not fit; [`CpuError::Index`] for rows without a position.
    pub fn rotate(
        &self,
        isa: Isa,
        first: usize,
        heads: usize,
        head_dim: usize,
        x: &mut [f32],
    ) -> Result<(), CpuError> {
        let (pairs, cols) = (self.turns.len(), heads * head_dim);
        if 2 * pairs > head_dim {
            let what = "elements of a head, at least";
            return Err(CpuError::Length { what, expected: 2 * pairs, found: head_dim });
        }
        if cols == 0 || pairs == 0 {
            return Ok(());
        }
        let rows = x.len() / cols;
        CpuError::check("elements of whole rows", rows * cols, x.len())?;
        let limit = self.rows.len() / (2 * pairs);
        if first > limit || rows > limit - first {
            let found = first.saturating_add(rows) as i64;
            return Err(CpuError::Index { what: "row with a position", found, limit });
        }
        let angles = &self.rows[first * 2 * pairs..][..rows * 2 * pairs];
        isa.dispatch(Rotate { style: self.style, pairs, cols, head_dim, angles, x });
        Ok(())
    }
}

/// The turn of each pair from one position to the next, and the magnitude.
///
/// The formulas are those of [`Rope`]; all angles are proportional to the position.
fn turns(rope: &Rope, factors: Option<&[f32]>) -> (Vec<f64>, f64) {
    let dims = f64::from(rope.dims);
    let base = f64::from(rope.freq_base);
    let plain = |i: usize| base.powf(-2.0 * i as f64 / dims) / factors.map_or(1.0, |f| f64::from(f[i]));
    let scale = f64::from(rope.freq_scale);
    let pairs = rope.dims as usize / 2;
    let magnitude = f64::from(rope.magnitude);
    let Some(yarn) = rope.yarn else {
        return ((0..pairs).map(|i| plain(i) * scale).collect(), magnitude);
    };
    // The dimension whose wave makes `beta` turns within the original context.
    let turning = |beta: f32| {
        let waves = f64::from(yarn.original_context) / (f64::from(beta) * 2.0 * PI);
        dims * waves.ln() / (2.0 * base.ln())
    };
    let low = turning(yarn.beta_fast).floor().max(0.0);
    let high = turning(yarn.beta_slow).ceil().min(dims - 1.0);
    let extrapolate = f64::from(yarn.ext_factor);
    let blended = |i: usize| {
        let ramp = 1.0 - ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
        let mix = ramp * extrapolate;
        plain(i) * (scale * (1.0 - mix) + mix)
    };
    let gain = if yarn.ext_factor == 0.0 { 1.0 } else { 1.0 - 0.1 * scale.ln() };
    ((0..pairs).map(blended).collect(), magnitude * gain)
}

struct Rotate<'a> {
    style: RopeStyle,
    pairs: usize,
    cols: usize,
    head_dim: usize,
    angles: &'a [f32],
    x: &'a mut [f32],
}

impl Op for Rotate<'_> {
    type Output = ();

    /// Plain code: the loops vectorise, and each element has its own sequence of operations, the same everywhere.
    #[inline(always)]
    unsafe fn call<S: Simd>(self) {
        let rows = self.x.chunks_exact_mut(self.cols).zip(self.angles.chunks_exact(2 * self.pairs));
        for (row, angles) in rows {
            let (cosines, sines) = angles.split_at(self.pairs);
            for head in row.chunks_exact_mut(self.head_dim) {
                let head = &mut head[..2 * self.pairs];
                match self.style {
                    RopeStyle::Halves => {
                        let (low, high) = head.split_at_mut(self.pairs);
                        for (((p, q), c), s) in low.iter_mut().zip(high).zip(cosines).zip(sines) {
                            (*p, *q) = turn(*p, *q, *c, *s);
                        }
                    }
                    RopeStyle::Adjacent => {
                        for ((pair, c), s) in head.as_chunks_mut::<2>().0.iter_mut().zip(cosines).zip(sines) {
                            (pair[0], pair[1]) = turn(pair[0], pair[1], *c, *s);
                        }
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn turn(p: f32, q: f32, cosine: f32, sine: f32) -> (f32, f32) {
    ((-q).mul_add(sine, p * cosine), p.mul_add(sine, q * cosine))
}

#[cfg(test)]
mod tests;
