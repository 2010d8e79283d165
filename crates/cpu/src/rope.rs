//! Rotary position embedding, with sines and cosines computed once for a step.

use crate::isa::{Op, Simd};
use crate::{CpuError, Isa};
use wootz_graph::op::{Rope, RopeStyle, Sections};

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
    /// Positions of a token, and which of them turns each pair.
    width: usize,
    streams: Vec<u32>,
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
        let (turns, magnitude) = (rope.turns(factors), rope.gain());
        let fine = (0..FINE).flat_map(|p| turns.iter().map(move |t| (p as f64 * t).sin_cos())).collect();
        let width = if rope.sections.is_some() { Sections::STREAMS as usize } else { 1 };
        let (style, streams) = (rope.style, rope.streams());
        Ok(RopeTable { style, turns, magnitude, width, streams, fine, coarse: Vec::new(), rows: Vec::new() })
    }

    /// Takes the positions of a step's tokens: one of each, or with sections one of each stream.
    ///
    /// # Errors
    /// [`CpuError::Index`] for a negative position, [`CpuError::Length`] where some streams of a token are missing.
    pub fn set_positions(&mut self, positions: &[i32]) -> Result<(), CpuError> {
        let pairs = self.turns.len();
        if let Some(found) = positions.iter().find(|p| **p < 0) {
            let (what, found) = ("position", i64::from(*found));
            return Err(CpuError::Index { what, found, limit: i32::MAX as usize });
        }
        let rows = positions.len() / self.width;
        CpuError::check("positions of whole tokens", rows * self.width, positions.len())?;
        let last = positions.iter().max().map_or(0, |p| *p as usize / FINE + 1);
        for p in self.coarse.len() / pairs.max(1)..last {
            let angle = |t: &f64| ((p * FINE) as f64 * t).sin_cos();
            self.coarse.extend(self.turns.iter().map(angle));
        }
        self.rows.clear();
        self.rows.resize(rows * 2 * pairs, 0.0);
        if pairs == 0 {
            return Ok(());
        }
        for (row, positions) in self.rows.chunks_exact_mut(2 * pairs).zip(positions.chunks_exact(self.width))
        {
            let (cosines, sines) = row.split_at_mut(pairs);
            for (i, (cosine, sine)) in cosines.iter_mut().zip(sines).enumerate() {
                let position = positions[self.streams[i] as usize] as usize;
                let (a, b) =
                    (self.coarse[position / FINE * pairs + i], self.fine[position % FINE * pairs + i]);
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
