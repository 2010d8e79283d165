//! Passes over whole rows of logits, shared out over threads where the row is long.
//!
//! A row is cut into pieces at fixed places, and what was found in each is put together in their order, so nothing
//! depends on the number of threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use wootz_graph::Threads;

use super::mass::{Row, STRIDE};
use super::rows::{self, BLOCK, Range, Score, TILE};
use super::work::Candidate;

/// Values that one thread works on before it takes more.
const PIECE: usize = 8 * TILE;

/// Values from which on a row is shared: the quickest pass takes about 5 µs for so many, several times what it takes
/// until another thread helps.
const SHARED: usize = 4 * PIECE;

/// Does passes on some threads.
#[derive(Clone, Copy)]
pub(super) struct Passes<'a> {
    threads: &'a dyn Threads,
}

impl<'a> Passes<'a> {
    pub(super) fn new(threads: &'a dyn Threads) -> Self {
        Self { threads }
    }

    /// Does `pass` with each of the pieces of a row of so many values.
    fn each<T>(self, len: usize, pieces: impl Iterator<Item = T> + Send, pass: impl Fn(T) + Sync) {
        if len < SHARED {
            return pieces.for_each(pass);
        }
        let pieces = Mutex::new(pieces);
        // Nothing under the lock panics but an iterator of slices, which does not.
        let next = || pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
        self.threads.run(&|| {
            while let Some(piece) = next() {
                pass(piece);
            }
        });
    }

    /// Sum of what `count` finds in each of the pieces of a row.
    fn sum<T>(
        self,
        len: usize,
        pieces: impl Iterator<Item = T> + Send,
        count: impl Fn(T) -> usize + Sync,
    ) -> usize {
        let sum = AtomicUsize::new(0);
        self.each(len, pieces, |piece| {
            sum.fetch_add(count(piece), Ordering::Relaxed);
        });
        sum.into_inner()
    }

    /// Maximum of each block; tells whether no value is NaN or positive infinity.
    pub(super) fn block_maxima(self, values: &[f32], maxima: &mut Vec<f32>) -> bool {
        maxima.resize(blocks(values), 0.0);
        let sound = AtomicBool::new(true);
        self.each(values.len(), of(values).zip(of_blocks(maxima)), |(values, maxima)| {
            if !rows::block_maxima(values, maxima) {
                sound.store(false, Ordering::Relaxed);
            }
        });
        sound.into_inner()
    }

    /// Sum of `e^(x - max)` of each block; none is above `max`.
    pub(super) fn block_sums(self, values: &[f32], max: f32, sums: &mut Vec<f64>) {
        sums.resize(blocks(values), 0.0);
        self.each(values.len(), of(values).zip(of_blocks(sums)), |(values, sums)| {
            rows::block_sums(values, max, sums);
        });
    }

    /// `e^(x - max)` of each value, and the sums of blocks, as [`block_sums`](Self::block_sums) finds them.
    pub(super) fn weigh(self, values: &[f32], max: f32, weights: &mut Vec<f32>, sums: &mut Vec<f64>) {
        weights.resize(values.len(), 0.0);
        sums.resize(blocks(values), 0.0);
        let pieces = of(values).zip(of_mut(weights)).zip(of_blocks(sums));
        self.each(values.len(), pieces, |((values, weights), sums)| rows::weigh(values, max, weights, sums));
    }

    /// Sum of each weight times the distance of its value from `max`.
    pub(super) fn weighted_depth(self, values: &[f32], weights: &[f32], max: f32) -> f64 {
        let mut sums = vec![0.0; blocks(values)];
        let pieces = of(values).zip(of(weights)).zip(of_blocks(&mut sums));
        self.each(values.len(), pieces, |((values, weights), sums)| {
            rows::weighted_depths(values, weights, max, sums);
        });
        sums.iter().sum()
    }

    /// Sum of the weights, and number, of values, but negative infinity, whose score is at most `limit`; `sums` are those
    /// of blocks. Without weights each value has weight 1, and no sums are found.
    pub(super) fn sum_below(
        self,
        values: &[f32],
        weights: Option<&[f32]>,
        score: Score,
        limit: f32,
        sums: &mut Vec<f64>,
    ) -> (f64, usize) {
        sums.clear();
        let Some(weights) = weights else {
            let count = self.sum(values.len(), of(values), |values| rows::count_below(values, score, limit));
            return (count as f64, count);
        };
        sums.resize(blocks(values), 0.0);
        let pieces = of(values).zip(of(weights)).zip(of_blocks(sums));
        let count = self.sum(values.len(), pieces, |((values, weights), sums)| {
            rows::sum_below(values, weights, score, limit, sums)
        });
        (sums.iter().sum(), count)
    }

    /// Scores and weights of candidates below `limit` at every [`STRIDE`]th place, by token.
    pub(super) fn some_below(self, row: Row<'_>, score: Score, limit: f32) -> Vec<(f32, f32)> {
        let mut found = vec![Vec::new(); row.values.len().div_ceil(PIECE)];
        self.each(
            row.values.len(),
            of(row.values).zip(&mut found).enumerate(),
            |(piece, (values, found))| {
                let start = piece * PIECE;
                let places = (start.next_multiple_of(STRIDE)..start + values.len()).step_by(STRIDE);
                let some = places
                    .map(|at| (at, row.values[at]))
                    .filter(|(_, x)| *x < limit && *x > f32::NEG_INFINITY);
                found.extend(some.map(|(at, x)| (score.of(x), row.weight(at))));
            },
        );
        found.concat()
    }

    /// Candidates whose score is above `from` and up to `to`, by token, and their weights.
    pub(super) fn between(
        self,
        row: Row<'_>,
        score: Score,
        from: f32,
        to: f32,
    ) -> (Vec<Candidate>, Vec<f32>) {
        let Row { values, weights, .. } = row;
        let mut found = vec![Vec::new(); values.len().div_ceil(PIECE)];
        self.each(values.len(), of(values).zip(&mut found).enumerate(), |(at, (values, found))| {
            let start = at * PIECE;
            let weights = weights.map(|weights| &weights[start..start + values.len()]);
            rows::between(values, weights, start, score, from, to, found);
        });
        found.into_iter().flatten().unzip()
    }

    /// Number of values of at least `limit`.
    pub(super) fn count_from(self, values: &[f32], limit: f32) -> usize {
        self.sum(values.len(), of(values), |values| rows::count_from(values, limit))
    }

    /// Number of values above negative infinity.
    pub(super) fn count(self, values: &[f32]) -> usize {
        self.sum(values.len(), of(values), rows::count)
    }

    /// Copies values to `out` without those out of a range; renews the maxima of blocks.
    pub(super) fn keep(self, values: &[f32], range: Range, out: &mut Vec<f32>, maxima: &mut [f32]) {
        out.resize(values.len(), 0.0);
        let pieces = of(values).zip(of_mut(out)).zip(of_blocks(maxima));
        self.each(values.len(), pieces, |((values, out), maxima)| rows::keep(values, range, out, maxima));
    }

    /// The logits of [`rows::favoured`] for weights of values, and the maxima of blocks.
    pub(super) fn favour(
        self,
        values: &[f32],
        weights: &[f32],
        scale: f64,
        target: f64,
        out: &mut Vec<f32>,
        maxima: &mut [f32],
    ) {
        out.resize(values.len(), 0.0);
        let pieces = of(values).zip(of(weights)).zip(of_mut(out)).zip(of_blocks(maxima));
        self.each(values.len(), pieces, |(((values, weights), out), maxima)| {
            rows::favour(values, weights, scale, target, out, maxima);
        });
    }

    /// Each value divided by a temperature above 0: the least finite number at least, where it was finite.
    pub(super) fn divide(self, values: &[f32], temperature: f32, out: &mut Vec<f32>) {
        out.resize(values.len(), 0.0);
        let pieces = of(values).zip(of_mut(out));
        self.each(values.len(), pieces, |(values, out)| rows::divide(values, temperature, out));
    }
}

/// Number of the blocks of a row.
fn blocks(values: &[f32]) -> usize {
    values.len().div_ceil(BLOCK)
}

/// The pieces of a row.
fn of(values: &[f32]) -> std::slice::Chunks<'_, f32> {
    values.chunks(PIECE)
}

/// The pieces of a row, to be written.
fn of_mut(values: &mut [f32]) -> std::slice::ChunksMut<'_, f32> {
    values.chunks_mut(PIECE)
}

/// What belongs to the blocks of each piece of a row.
fn of_blocks<T>(values: &mut [T]) -> std::slice::ChunksMut<'_, T> {
    values.chunks_mut(PIECE / BLOCK)
}
