//! The candidates of one sampling step, on their way through the chain.

use std::cmp::Ordering;

use super::SampleError;
use super::mask::BitMask;
use super::mass::{self, Cut, Mass, Row};
use super::math::{exp_neg, ln};
use super::passes::Passes;
use super::rows::{self, BLOCK, Range, Score, block_total, max_and_nan, ordered};

/// Longest list that is put in order; order is a help to later samplers, not a duty.
pub(super) const SORTED: usize = 1024;

/// Candidates of a row that become a list when a sampler leaves no more.
const LISTED: usize = 4096;

/// Best candidates of a row that a sketch of it has to know.
const HEAVY: usize = 32;

/// A token that can still be picked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub(super) id: u32,
    /// Finite.
    pub(super) logit: f32,
}

/// Orders by logit, highest first, then by token, lowest first.
pub(super) fn better(a: &Candidate, b: &Candidate) -> Ordering {
    rank(b).cmp(&rank(a))
}

/// A number that is higher for a better candidate: comparing whole numbers takes no branches.
fn rank(candidate: &Candidate) -> u64 {
    // Adding 0 makes 0 of -0.
    u64::from(ordered(candidate.logit + 0.0)) << 32 | u64::from(!candidate.id)
}

/// Memory that outlives a step; a clone starts empty, because it holds nothing of value between steps.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    dense: Vec<f32>,
    /// The dense row before the last change of all of it.
    former: Vec<f32>,
    block_max: Vec<f32>,
    /// Other maxima: a copy to be put in order, or what they were before a change.
    heights: Vec<f32>,
    /// Sums of the weights of blocks; see [`Known`].
    block_sum: Vec<f64>,
    list: Vec<Candidate>,
    /// A copy to be torn apart while the list keeps its order.
    spare: Vec<Candidate>,
    /// Unscaled probabilities `e^(logit - max)` of the candidates.
    weights: Vec<f32>,
    /// Tokens in rising order that go with a [`Pending`] cut, though they are within its range.
    ties: Vec<u32>,
}

impl Clone for Buffers {
    fn clone(&self) -> Self {
        Self::default()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The caller's logits, one for each token; negative infinity is no candidate.
    Raw,
    /// The same, changed, in `Buffers::dense`.
    Edited,
    /// `Buffers::list`, in the order of [`better`] if sorted.
    List { sorted: bool },
}

/// What the buffers hold of the candidates of a row, beside them and the maxima of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Known {
    Maxima,
    Sums,
    /// And the sums.
    Weights,
}

/// A cut of a row that waits for the next look at all of it: a pick needs no more than one block.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Pending {
    /// Candidates within it stay, but for the ties.
    range: Range,
    /// Sums, where known, are those of what stays, of weights `e^(logit - reference)`. The maxima are from before.
    reference: f32,
}

impl Stage {
    /// The row of candidates that are no list.
    fn row<'r>(self, raw: &'r [f32], dense: &'r [f32]) -> &'r [f32] {
        if self == Stage::Raw { raw } else { dense }
    }
}

/// The candidates: a row of logits at first, a list once a sampler has left few of them.
pub(super) struct Work<'a> {
    raw: &'a [f32],
    passes: Passes<'a>,
    buffers: &'a mut Buffers,
    stage: Stage,
    known: Known,
    pending: Option<Pending>,
}

/// A picked token and its share of the candidates' probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Pick {
    pub(super) token: u32,
    pub(super) prob: f64,
    /// Position in the list, if the candidates are one.
    pub(super) index: usize,
}

impl<'a> Work<'a> {
    /// Takes a row of logits and finds the maximum of each block.
    pub(super) fn new(
        raw: &'a [f32],
        passes: Passes<'a>,
        buffers: &'a mut Buffers,
    ) -> Result<Self, SampleError> {
        if !passes.block_maxima(raw, &mut buffers.block_max) {
            let bad = raw.iter().position(|x| x.is_nan() || *x == f32::INFINITY).unwrap_or(0);
            return Err(SampleError::BadLogit { token: bad, value: raw[bad] });
        }
        Ok(Self { raw, passes, buffers, stage: Stage::Raw, known: Known::Maxima, pending: None })
    }

    /// Does a cut that waits.
    fn settle(&mut self) {
        let Some(Pending { range, reference }) = self.pending.take() else { return };
        let Buffers { dense, former, block_max, ties, .. } = &mut *self.buffers;
        std::mem::swap(dense, former);
        self.passes.keep(self.stage.row(self.raw, former), range, dense, block_max);
        self.stage = Stage::Edited;
        for &token in ties.iter() {
            dense[token as usize] = f32::NEG_INFINITY;
        }
        renew_maxima(dense, block_max, ties.iter().copied());
        // What goes may be the best.
        let sums_hold = self.known >= Known::Sums && rows::max(block_max) == reference;
        self.known = if sums_hold { Known::Sums } else { Known::Maxima };
    }

    /// The logits by token, while no sampler has made a list of them.
    fn dense(&self) -> Option<&[f32]> {
        match self.stage {
            Stage::Raw => Some(self.raw),
            Stage::Edited => Some(&self.buffers.dense),
            Stage::List { .. } => None,
        }
    }

    /// The logits by token, to be changed.
    fn dense_mut(&mut self) -> &mut [f32] {
        self.settle();
        self.known = Known::Maxima;
        if self.stage == Stage::Raw {
            self.buffers.dense.clear();
            self.buffers.dense.extend_from_slice(self.raw);
            self.stage = Stage::Edited;
        }
        &mut self.buffers.dense
    }

    /// Leaves only the allowed tokens; the first thing that may happen to the logits.
    pub(super) fn restrict(&mut self, mask: &BitMask<'_>) {
        let dense = &mut self.buffers.dense;
        dense.clear();
        for (word, logits) in mask.words().zip(self.raw.chunks(32)) {
            match word {
                0 => dense.resize(dense.len() + logits.len(), f32::NEG_INFINITY),
                u32::MAX => dense.extend_from_slice(logits),
                _ => dense.extend(
                    logits
                        .iter()
                        .enumerate()
                        .map(|(bit, &logit)| if word >> bit & 1 == 1 { logit } else { f32::NEG_INFINITY }),
                ),
            }
        }
        dense.resize(self.raw.len(), f32::NEG_INFINITY);
        self.stage = Stage::Edited;
        self.known = Known::Maxima;
        for (block, max) in dense.chunks(BLOCK).zip(&mut self.buffers.block_max) {
            *max = max_and_nan(block).0;
        }
    }

    /// Changes the logits of some tokens, which must come in rising order; others are left alone.
    ///
    /// A change to negative infinity removes the token.
    pub(super) fn edit<T: Copy>(&mut self, edits: &[(u32, T)], change: impl Fn(f32, T) -> f32) {
        if edits.is_empty() {
            return;
        }
        if matches!(self.stage, Stage::List { .. }) {
            let list = &mut self.buffers.list;
            for candidate in list.iter_mut() {
                if let Ok(at) = edits.binary_search_by_key(&candidate.id, |edit| edit.0) {
                    candidate.logit = change(candidate.logit, edits[at].1);
                }
            }
            list.retain(|candidate| candidate.logit > f32::NEG_INFINITY);
            self.stage = Stage::List { sorted: false };
            return;
        }
        let dense = self.dense_mut();
        for &(token, value) in edits {
            if let Some(logit) = dense.get_mut(token as usize)
                && *logit > f32::NEG_INFINITY
            {
                *logit = change(*logit, value);
            }
        }
        let Buffers { dense, block_max, .. } = &mut *self.buffers;
        renew_maxima(dense, block_max, edits.iter().map(|edit| edit.0));
    }

    /// The highest logit; negative infinity if there is no candidate.
    pub(super) fn max(&mut self) -> f32 {
        // The best goes at the upper end alone.
        if self.pending.is_some_and(|cut| cut.range.high < f32::INFINITY) {
            self.settle();
        }
        let Buffers { block_max, list, .. } = &*self.buffers;
        match self.stage {
            Stage::List { sorted: true } => list.first().map_or(f32::NEG_INFINITY, |c| c.logit),
            Stage::List { sorted: false } => {
                list.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, |max, x| if x > max { x } else { max })
            }
            _ => rows::max(block_max),
        }
    }

    /// Keeps the `k` best candidates.
    pub(super) fn top_k(&mut self, k: usize) {
        let k = k.max(1);
        self.settle();
        if k > SORTED && self.dense().is_some() {
            return self.cut_to(k);
        }
        let Buffers { dense, block_max, list, spare, heights, .. } = &mut *self.buffers;
        let mut sorted = false;
        match self.stage {
            Stage::Raw => reach(self.raw, block_max, k, heights, list),
            Stage::Edited => reach(dense, block_max, k, heights, list),
            Stage::List { sorted: before } => sorted = before,
        }
        if sorted {
            list.truncate(k);
        } else if k <= SORTED {
            keep_best(list, k);
            sorted = true;
        } else if k < list.len() {
            spare.clone_from(list);
            let worst = *spare.select_nth_unstable_by(k - 1, better).1;
            list.retain(|candidate| better(candidate, &worst).is_le());
        }
        self.stage = Stage::List { sorted };
    }

    /// Keeps the `k` best candidates of a row.
    fn cut_to(&mut self, k: usize) {
        let count = self.count();
        if k >= count {
            return;
        }
        let score = Score { max: self.max(), center: 0.0 };
        let Buffers { dense, block_sum, .. } = &mut *self.buffers;
        let values = self.stage.row(self.raw, dense);
        let row = Row { values, weights: None, total: count as f64, heavy: &[] };
        let mass = Mass { needed: k as f64, strict: false, min_keep: k };
        let cut = mass::cut_row(self.passes, row, score, mass, block_sum);
        self.known = Known::Maxima;
        self.cut(cut, score);
    }

    /// Leaves what a cut keeps: a list where that is little.
    fn cut(&mut self, cut: Option<Cut>, score: Score) {
        let Some(Cut { last, ties }) = cut else { return };
        self.buffers.ties = ties;
        self.pending = Some(Pending { range: score.range(last.candidate.logit), reference: score.max });
        if last.count <= LISTED {
            self.list();
        }
    }

    /// The `n` best candidates, sorted; changes nothing.
    pub(super) fn best(&mut self, n: usize) -> Vec<Candidate> {
        let mut best = Vec::new();
        if n == 0 {
            return best;
        }
        self.settle();
        let Buffers { dense, block_max, list, heights, .. } = &mut *self.buffers;
        match self.stage {
            Stage::Raw => reach(self.raw, block_max, n, heights, &mut best),
            Stage::Edited => reach(dense, block_max, n, heights, &mut best),
            Stage::List { .. } => best.clone_from(list),
        }
        keep_best(&mut best, n);
        best
    }

    /// Keeps the best candidate alone.
    pub(super) fn greedy(&mut self) {
        self.settle();
        let max = self.max();
        let best = match self.dense() {
            Some(dense) => {
                let block = self.buffers.block_max.iter().position(|&m| m == max).unwrap_or(0);
                let start = block * BLOCK;
                let at = dense[start..].iter().position(|&x| x == max).unwrap_or(0);
                Some(Candidate { id: (start + at) as u32, logit: max })
            }
            None => self.buffers.list.iter().copied().min_by(better),
        };
        self.buffers.list.clear();
        self.buffers.list.extend(best);
        self.stage = Stage::List { sorted: true };
    }

    /// Keeps candidates whose logit is at least `limit`, and the `min_keep` best in any case.
    pub(super) fn keep_from(&mut self, limit: f32, min_keep: usize) {
        match self.stage {
            Stage::Raw | Stage::Edited => {
                self.settle();
                let Buffers { dense, block_max, ties, .. } = &mut *self.buffers;
                let blocks = block_max.iter().filter(|max| **max >= limit).count();
                // A list where that is short; counting takes a look at all of the row.
                if blocks * BLOCK > 4 * LISTED.max(min_keep) {
                    let count = self.passes.count_from(self.stage.row(self.raw, dense), limit);
                    if count > LISTED.max(min_keep) {
                        ties.clear();
                        let range = Range { low: limit, high: f32::INFINITY };
                        self.pending = Some(Pending { range, reference: self.max() });
                        self.known = Known::Maxima;
                        return;
                    }
                }
                self.gather(limit);
                if self.buffers.list.len() < min_keep {
                    self.top_k(min_keep);
                } else {
                    self.stage = Stage::List { sorted: false };
                }
            }
            Stage::List { sorted: true } => {
                let list = &mut self.buffers.list;
                let reach = list.partition_point(|c| c.logit >= limit);
                list.truncate(reach.max(min_keep));
            }
            Stage::List { sorted: false } => {
                let list = &mut self.buffers.list;
                if list.iter().filter(|c| c.logit >= limit).count() >= min_keep {
                    list.retain(|c| c.logit >= limit);
                } else {
                    self.top_k(min_keep);
                }
            }
        }
    }

    /// Copies the candidates with at least this logit from the row into the list buffer.
    fn gather(&mut self, limit: f32) {
        self.settle();
        let Buffers { dense, block_max, list, .. } = &mut *self.buffers;
        let values = self.stage.row(self.raw, dense);
        rows::collect(values, block_max, Range { low: limit, high: f32::INFINITY }, list);
    }

    /// The candidates as a list, in an order that does not matter to the caller.
    pub(super) fn list(&mut self) -> &mut Vec<Candidate> {
        if !matches!(self.stage, Stage::List { .. }) {
            if let Some(Pending { range, .. }) = self.pending.take() {
                let Buffers { dense, block_max, list, ties, .. } = &mut *self.buffers;
                rows::collect(self.stage.row(self.raw, dense), block_max, range, list);
                if !ties.is_empty() {
                    list.retain(|candidate| ties.binary_search(&candidate.id).is_err());
                }
            } else {
                self.gather(f32::NEG_INFINITY);
            }
            self.stage = Stage::List { sorted: false };
        }
        &mut self.buffers.list
    }

    /// The list with the unscaled probabilities `e^(logit - max)` of its members, and their sum.
    pub(super) fn weighted(&mut self) -> (&mut Vec<Candidate>, &mut [f32], f64) {
        self.list();
        let max = self.max();
        let Buffers { list, weights, .. } = &mut *self.buffers;
        weights.clear();
        weights.extend(list.iter().map(|c| exp_neg(c.logit - max)));
        let total = weights.chunks(BLOCK).map(block_total).sum();
        (list, weights, total)
    }

    /// A distance from the highest logit of a row within which few blocks have any; none of a list.
    pub(super) fn shallow(&mut self, max: f32) -> Option<f32> {
        const DEPTHS: [f32; 3] = [16.0, 8.0, 4.0];
        self.settle();
        self.dense()?;
        let maxima = &self.buffers.block_max;
        let near = |depth: f32| maxima.iter().filter(|m| max - **m <= depth).count();
        DEPTHS.into_iter().find(|&depth| near(depth) <= maxima.len() / 16)
    }

    /// Makes a list of the candidates at most `depth` below `max`, if those of the lowest scores, all of which must be
    /// among them, hold the mass; tells whether it did.
    pub(super) fn narrow(&mut self, depth: f32, score: Score, mass: Mass) -> bool {
        let limit = score.max - depth;
        self.gather(limit);
        let complete = if depth > score.center { score.of(limit) } else { 0.0 };
        let members = self.buffers.list.iter().filter(|c| score.of(c.logit) < complete);
        let held = members
            .fold((0.0, 0), |(sum, count), c| (sum + f64::from(exp_neg(c.logit - score.max)), count + 1));
        let enough = mass.is_reached(held);
        if enough {
            self.stage = Stage::List { sorted: false };
        }
        enough
    }

    /// Sum of the probabilities `e^(logit - max)` of all candidates, each of which [`keep_mass`](Self::keep_mass) and
    /// [`mean_depth`](Self::mean_depth) then find computed.
    pub(super) fn weigh(&mut self) -> f64 {
        if matches!(self.stage, Stage::List { .. }) {
            return self.weighted().2;
        }
        self.settle();
        if self.known < Known::Weights {
            let max = self.max();
            let Buffers { dense, weights, block_sum, .. } = &mut *self.buffers;
            self.passes.weigh(self.stage.row(self.raw, dense), max, weights, block_sum);
            self.known = Known::Weights;
        }
        self.buffers.block_sum.iter().sum()
    }

    /// Mean distance of logits from `max` over the probabilities that [`weigh`](Self::weigh) has just computed.
    pub(super) fn mean_depth(&self, max: f32, total: f64) -> f64 {
        let Buffers { list, weights, .. } = &*self.buffers;
        let sum = match self.dense() {
            Some(values) => self.passes.weighted_depth(values, weights, max),
            None => list.iter().zip(weights).map(|(c, &w)| f64::from(w) * f64::from(max - c.logit)).sum(),
        };
        sum / total
    }

    /// Keeps the candidates of lowest score until their probabilities reach the mass.
    pub(super) fn keep_mass(&mut self, score: Score, mass: Mass) {
        let total = self.weigh();
        let Buffers { dense, block_max, block_sum, list, weights, heights, .. } = &mut *self.buffers;
        if let Stage::List { .. } = self.stage {
            return mass::keep_mass(list, weights, score, mass);
        }
        let values = self.stage.row(self.raw, dense);
        reach(values, block_max, HEAVY, heights, list);
        let row = Row { values, weights: Some(weights), total, heavy: list };
        let cut = mass::cut_row(self.passes, row, score, mass, block_sum);
        self.known = Known::Sums;
        self.cut(cut, score);
    }

    /// Of the candidates with at least the probability `threshold`, drops all but the least likely one; does nothing if
    /// fewer than `min_keep` would be left.
    pub(super) fn drop_likely(&mut self, threshold: f32, min_keep: usize) {
        let max = self.max();
        let limit = f64::from(threshold) * self.total();
        let is_likely = |logit: f32| f64::from(exp_neg(logit - max)) >= limit;
        // A little lower than the limit, as weights are rounded; the likely ones are then told exactly.
        let near = max + ln(limit) as f32 - 1e-3;
        let mut likely = match self.stage {
            Stage::List { .. } => self.buffers.list.clone(),
            _ => {
                self.gather(near);
                std::mem::take(&mut self.buffers.list)
            }
        };
        likely.retain(|c| is_likely(c.logit));
        let dropped = likely.len().saturating_sub(1);
        if dropped == 0 || !self.has(dropped + min_keep) {
            return;
        }
        let stays = likely.iter().copied().max_by(better);
        likely.retain(|c| Some(c.id) != stays.map(|c| c.id));
        let mut ids: Vec<u32> = likely.iter().map(|c| c.id).collect();
        ids.sort_unstable();
        self.drop_tokens(&ids);
    }

    /// Removes tokens, given in rising order.
    fn drop_tokens(&mut self, ids: &[u32]) {
        let edits: Vec<(u32, ())> = ids.iter().map(|&id| (id, ())).collect();
        self.edit(&edits, |_, ()| f32::NEG_INFINITY);
    }

    /// Gives each candidate the logit that adaptive-p has for its probability; returns the sum of the weights before.
    pub(super) fn favour(&mut self, target: f64) -> f64 {
        let total = self.weigh();
        let Buffers { dense, former, block_max, list, weights, .. } = &mut *self.buffers;
        if let Stage::List { .. } = self.stage {
            for (candidate, &weight) in list.iter_mut().zip(&*weights) {
                candidate.logit = rows::favoured(weight, 1.0 / total, target);
            }
            self.stage = Stage::List { sorted: false };
        } else {
            std::mem::swap(dense, former);
            self.passes.favour(
                self.stage.row(self.raw, former),
                weights,
                1.0 / total,
                target,
                dense,
                block_max,
            );
            self.stage = Stage::Edited;
            self.known = Known::Maxima;
        }
        std::mem::swap(weights, former);
        total
    }

    /// The weight, before [`favour`](Self::favour), of the candidate at a position that was picked after it.
    pub(super) fn old_weight(&self, index: usize) -> f64 {
        f64::from(self.buffers.former[index])
    }

    /// Number of candidates.
    pub(super) fn count(&mut self) -> usize {
        self.settle();
        match self.dense() {
            Some(dense) => self.passes.count(dense),
            None => self.buffers.list.len(),
        }
    }

    /// Tells whether there are so many candidates.
    pub(super) fn has(&mut self, number: usize) -> bool {
        self.settle();
        match self.dense() {
            Some(dense) => {
                let mut left = number;
                let mut blocks = dense.chunks(BLOCK);
                while left > 0 {
                    let Some(block) = blocks.next() else { return false };
                    left = left.saturating_sub(rows::count(block));
                }
                true
            }
            None => self.buffers.list.len() >= number,
        }
    }

    /// Sum of `e^(logit - max)` over all candidates.
    pub(super) fn total(&mut self) -> f64 {
        if matches!(self.stage, Stage::List { .. }) {
            return self.weighted().2;
        }
        self.settle();
        if self.known < Known::Sums {
            let max = self.max();
            let Buffers { dense, block_sum, .. } = &mut *self.buffers;
            self.passes.block_sums(self.stage.row(self.raw, dense), max, block_sum);
            self.known = Known::Sums;
        }
        self.buffers.block_sum.iter().sum()
    }

    /// Standard deviation of the logits.
    pub(super) fn deviation(&mut self) -> f64 {
        let count = self.count().max(1) as f64;
        let mean = self.moment(0.0, false) / count;
        (self.moment(mean, true) / count).sqrt()
    }

    /// Sum of the distances of logits from `center`, or of their squares.
    fn moment(&self, center: f64, square: bool) -> f64 {
        let Some(values) = self.dense() else {
            let distances = self.buffers.list.iter().map(|c| f64::from(c.logit) - center);
            return distances.map(|d| if square { d * d } else { d }).sum();
        };
        rows::moment(values, center, square)
    }

    /// Divides the logits by a temperature above 0.
    pub(super) fn scale(&mut self, temperature: f32) {
        if !(self.max() / temperature).is_finite() {
            // So near to 0 that only the best token has a chance.
            return self.greedy();
        }
        if let Stage::List { .. } = self.stage {
            for candidate in &mut self.buffers.list {
                candidate.logit = (candidate.logit / temperature).max(f32::MIN);
            }
            return;
        }
        self.settle();
        let Buffers { dense, former, block_max, heights, .. } = &mut *self.buffers;
        std::mem::swap(dense, former);
        self.passes.divide(self.stage.row(self.raw, former), temperature, dense);
        // Division keeps the order, so the maxima stay the maxima.
        std::mem::swap(block_max, heights);
        self.passes.divide(heights, temperature, block_max);
        self.stage = Stage::Edited;
        self.known = Known::Maxima;
    }

    /// Picks a candidate by its probability, given a number of `[0, 1)`.
    pub(super) fn pick(&mut self, uniform: f64) -> Option<Pick> {
        if matches!(self.stage, Stage::List { .. }) {
            let (list, weights, total) = self.weighted();
            let index = walk(weights.iter().copied(), uniform * total)?;
            let prob = f64::from(weights[index]) / total;
            return Some(Pick { token: list[index].id, prob, index });
        }
        // After a cut whose sums are known, only one block has to be cut.
        let cut = self.pending.filter(|_| self.known >= Known::Sums);
        let (max, total) = match cut {
            Some(cut) => (cut.reference, self.buffers.block_sum.iter().sum()),
            None => (self.max(), self.total()),
        };
        let Buffers { dense, block_sum, ties, .. } = &*self.buffers;
        let values = self.stage.row(self.raw, dense);
        let mut target = uniform * total;
        let mut block = 0;
        let last = block_sum.iter().rposition(|&sum| sum > 0.0)?;
        while block < last && target >= block_sum[block] {
            target -= block_sum[block];
            block += 1;
        }
        let stays = |at: usize| {
            cut.is_none_or(|cut| cut.range.holds(values[at]) && ties.binary_search(&(at as u32)).is_err())
        };
        let within = |block: usize| {
            let tokens = block * BLOCK..values.len().min((block + 1) * BLOCK);
            let weights = tokens.clone().map(|at| if stays(at) { exp_neg(values[at] - max) } else { 0.0 });
            walk(weights, target).map(|index| tokens.start + index)
        };
        // Where all of a block went, rounding may have left a sum.
        let index = (block..block_sum.len()).chain((0..block).rev()).find_map(within)?;
        Some(Pick { token: index as u32, prob: f64::from(exp_neg(values[index] - max)) / total, index })
    }
}

/// The first position at which the running sum exceeds `target`; the last one of weight if none does.
fn walk(weights: impl Iterator<Item = f32>, mut target: f64) -> Option<usize> {
    let mut last = None;
    for (i, weight) in weights.enumerate().filter(|(_, weight)| *weight > 0.0) {
        last = Some(i);
        target -= f64::from(weight);
        if target < 0.0 {
            break;
        }
    }
    last
}

/// Finds the maxima of the blocks of changed tokens, given in rising order, anew.
fn renew_maxima(values: &[f32], block_max: &mut [f32], changed: impl Iterator<Item = u32>) {
    let mut done = usize::MAX;
    for token in changed {
        let at = token as usize / BLOCK;
        if at != done
            && let Some(block) = values.chunks(BLOCK).nth(at)
        {
            block_max[at] = max_and_nan(block).0;
        }
        done = at;
    }
}

/// Candidates of a row among which the `k` best are, by token.
fn reach(values: &[f32], block_max: &[f32], k: usize, scratch: &mut Vec<f32>, out: &mut Vec<Candidate>) {
    let mut limit = f32::NEG_INFINITY;
    if k < block_max.len() {
        // The k-th highest block maximum: k logits reach it, so the k-th best is no lower.
        scratch.clear();
        scratch.extend_from_slice(block_max);
        let by_height = |a: &f32, b: &f32| b.partial_cmp(a).unwrap_or(Ordering::Equal);
        limit = *scratch.select_nth_unstable_by(k - 1, by_height).1;
    }
    rows::collect(values, block_max, Range { low: limit, high: f32::INFINITY }, out);
}

/// Cuts a list to its `k` best members, sorted.
fn keep_best(list: &mut Vec<Candidate>, k: usize) {
    if k < list.len() {
        list.select_nth_unstable_by(k - 1, better);
        list.truncate(k);
    }
    list.sort_unstable_by(better);
}
