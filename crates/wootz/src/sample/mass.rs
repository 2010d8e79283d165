//! Keeping the best candidates that together hold a given probability.

use super::passes::Passes;
use super::rows::{BLOCK, Score, block_total, only_if};
use super::work::{Candidate, SORTED, better};

/// Slots into which the scores of many candidates are counted.
const SLOTS: usize = 1024;

/// A score from which on a weight is 0, for scores that are distances between logits.
const FARTHEST: f32 = 87.0;

/// Of so many values of a row one is looked at to guess where the end lies.
pub(super) const STRIDE: usize = 61;

/// Guesses of where the end lies in a row; the last one is all that may hold it.
const GUESSES: usize = 4;

/// How much weight is to be kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mass {
    /// Sum of weights.
    pub(super) needed: f64,
    /// Whether the sum must be exceeded.
    pub(super) strict: bool,
    /// Candidates kept at least; one in any case.
    pub(super) min_keep: usize,
}

impl Mass {
    /// Whether this weight of so many candidates is enough.
    pub(super) fn is_reached(self, (sum, count): (f64, usize)) -> bool {
        let enough = if self.strict { sum > self.needed } else { sum >= self.needed };
        enough && count >= self.min_keep.max(1)
    }
}

/// The last candidate that is kept: those of lower score stay, and of the same score those that are no worse.
#[derive(Clone, Copy, Debug)]
pub(super) struct Last {
    pub(super) score: f32,
    pub(super) candidate: Candidate,
    /// Candidates kept.
    pub(super) count: usize,
}

impl Last {
    pub(super) fn keeps(&self, score: f32, candidate: &Candidate) -> bool {
        // No branch for the first: whether a score near the end is lower is hard to foresee.
        (score < self.score) | (score == self.score && better(candidate, &self.candidate).is_le())
    }
}

/// Keeps the candidates of lowest score, ties as in [`better`], until the mass is reached; leaves their order as it is.
pub(super) fn keep_mass(list: &mut Vec<Candidate>, weights: &[f32], score: Score, mass: Mass) {
    if let Some(last) = find_last(list, weights, score, mass, (0.0, 0)) {
        list.retain(|candidate| last.keeps(score.of(candidate.logit), candidate));
    }
}

/// The last candidate to keep, where others of lower scores hold `before` (weight and number); none of an empty list.
///
/// A long list is not sorted: scores are counted in slots, and only the slot in which the end lies is looked at more
/// closely.
fn find_last(
    list: &[Candidate],
    weights: &[f32],
    score: Score,
    mass: Mass,
    before: (f64, usize),
) -> Option<Last> {
    let scores = list.iter().map(|c| score.of(c.logit));
    let (low, high) =
        scores.fold((f32::INFINITY, 0.0), |(low, high): (f32, f32), s| (low.min(s), high.max(s)));
    let width = high.min(low + FARTHEST) - low;
    let slots = Slots { low, scale: SLOTS as f32 / width };
    // With one slot there is nothing to find.
    let (last_slot, mut held) = if list.len() > SORTED && width > 0.0 {
        let slot = find_slot(list, weights, score, slots, mass, before);
        (Some(slot.0), slot.1)
    } else {
        (None, before)
    };
    let ours = |c: &Candidate| last_slot.is_none_or(|slot| slots.of(score.of(c.logit)) == slot);
    let members = list.iter().zip(weights).filter(|(candidate, _)| ours(candidate));
    let mut members: Vec<(f32, Candidate, f32)> =
        members.map(|(c, &weight)| (score.of(c.logit), *c, weight)).collect();
    members.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then_with(|| better(&a.1, &b.1)));
    let last = members.iter().find(|member| {
        held = (held.0 + f64::from(member.2), held.1 + 1);
        mass.is_reached(held)
    });
    last.or(members.last()).map(|&(score, candidate, _)| Last { score, candidate, count: held.1 })
}

/// Equal ranges of scores.
#[derive(Clone, Copy)]
struct Slots {
    low: f32,
    /// Slots for each unit of score.
    scale: f32,
}

impl Slots {
    fn of(self, score: f32) -> usize {
        (((score - self.low) * self.scale) as usize).min(SLOTS - 1)
    }

    /// Where a slot begins.
    fn start(self, slot: usize) -> f32 {
        self.low + slot as f32 / self.scale
    }

    /// The same, but that nothing lies before the first slot and after the last one.
    fn edge(self, slot: usize) -> f32 {
        match slot {
            0 => f32::NEG_INFINITY,
            SLOTS.. => f32::INFINITY,
            _ => self.start(slot),
        }
    }
}

/// The slot in which the last candidate to keep lies, with the weight and the number of those before it.
fn find_slot(
    list: &[Candidate],
    weights: &[f32],
    score: Score,
    slots: Slots,
    mass: Mass,
    before: (f64, usize),
) -> (usize, (f64, usize)) {
    let mut held = vec![(0.0, 0usize); SLOTS];
    for (candidate, &weight) in list.iter().zip(weights) {
        let slot = &mut held[slots.of(score.of(candidate.logit))];
        *slot = (slot.0 + f64::from(weight), slot.1 + 1);
    }
    let (mut sum, all) = (before, before.1 + list.len());
    for (at, slot) in held.iter().enumerate() {
        let next = (sum.0 + slot.0, sum.1 + slot.1);
        if next.1 == all || (slot.1 > 0 && mass.is_reached(next)) {
            return (at, sum);
        }
        sum = next;
    }
    (0, before)
}

/// A row of candidates; negative infinity is none.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) values: &'a [f32],
    /// Each value's weight, or none if it is 1.
    pub(super) weights: Option<&'a [f32]>,
    /// Sum of the weights.
    pub(super) total: f64,
    /// Some of the best values, and all that are as good.
    pub(super) heavy: &'a [Candidate],
}

impl Row<'_> {
    pub(super) fn weight(&self, at: usize) -> f32 {
        self.weights.map_or(1.0, |weights| weights[at])
    }
}

/// Where a row is cut.
pub(super) struct Cut {
    pub(super) last: Last,
    /// The places of values with the last one's score that go.
    pub(super) ties: Vec<u32>,
}

/// Where a row is cut for the values of lowest score to hold the mass; nowhere if there is no candidate. Leaves the sums
/// of the kept weights of blocks in `sums`, if the row has weights.
///
/// A sketch of some of the values tells where the end is likely to lie. One look at all of them finds what lies below
/// that, from which the sketch tells a short range of scores that are likely to hold the end; another one lists those
/// within.
pub(super) fn cut_row(
    passes: Passes<'_>,
    row: Row<'_>,
    score: Score,
    mass: Mass,
    sums: &mut Vec<f64>,
) -> Option<Cut> {
    let sketch = Sketch::of(passes, row, score);
    let mut slot = sketch.reach(mass.needed);
    let mut held = passes.sum_below(row.values, row.weights, score, sketch.slots.edge(slot), sums);
    for guesses in 1.. {
        // Whether what lies below the slot is too little, so that more is to be kept.
        let more = !mass.is_reached(held);
        let (mut first, mut last) = sketch.around(slot, mass.needed - held.0, more);
        if guesses >= GUESSES {
            (first, last) = if more { (slot, SLOTS) } else { (0, slot) };
        }
        let (low, high) = (sketch.slots.edge(first), sketch.slots.edge(last));
        let (list, own) = passes.between(row, score, low, high);
        let (sum, count) = (own.chunks(BLOCK).map(block_total).sum::<f64>(), own.len());
        let below = if more { held } else { (held.0 - sum, held.1 - count) };
        let above = if more { (held.0 + sum, held.1 + count) } else { held };
        let mut change = |candidate: &Candidate, weight: f32| {
            if let Some(sum) = sums.get_mut(candidate.id as usize / BLOCK) {
                *sum += f64::from(if more { weight } else { -weight });
            }
        };
        let is_beyond =
            if more { last < SLOTS && !mass.is_reached(above) } else { first > 0 && mass.is_reached(below) };
        if is_beyond {
            list.iter().zip(&own).for_each(|(candidate, &weight)| change(candidate, weight));
            (slot, held) = if more { (last, above) } else { (first, below) };
            continue;
        }
        let last = find_last(&list, &own, score, mass, below)?;
        let mut ties = Vec::new();
        for (candidate, &weight) in list.iter().zip(&own) {
            let found = score.of(candidate.logit);
            let stays = last.keeps(found, candidate);
            change(candidate, only_if(stays == more, weight));
            if !stays && found == last.score {
                ties.push(candidate.id);
            }
        }
        return Some(Cut { last, ties });
    }
    None
}

/// The weights of a row in slots by score: exact ones of heavy values, those of the others from some of them.
struct Sketch {
    slots: Slots,
    /// Weight up to the end of each slot.
    sums: Vec<f64>,
    /// Variance of that, estimated from what lies below.
    variances: Vec<f64>,
}

impl Sketch {
    fn of(passes: Passes<'_>, row: Row<'_>, score: Score) -> Self {
        let lightest = row.heavy.iter().map(|c| c.logit).fold(f32::INFINITY, f32::min);
        let light = passes.some_below(row, score, lightest);
        let heavy = row.heavy.iter().map(|c| (score.of(c.logit), row.weight(c.id as usize)));
        let scores =
            light.iter().copied().chain(heavy.clone()).map(|s| if s.0 < FARTHEST { s.0 } else { 0.0 });
        let slots = Slots { low: 0.0, scale: SLOTS as f32 / scores.fold(f32::MIN_POSITIVE, f32::max) };
        let (mut sums, mut variances) = (vec![0.0; SLOTS], vec![0.0; SLOTS]);
        for (score, weight) in light {
            let (slot, weight) = (slots.of(score), f64::from(weight));
            sums[slot] += weight;
            variances[slot] += weight * weight;
        }
        // The light ones stand for all that is not heavy.
        let rest = row.total - heavy.clone().map(|h| f64::from(h.1)).sum::<f64>();
        let sampled: f64 = sums.iter().sum();
        let scale = if sampled > 0.0 { rest / sampled } else { 0.0 };
        sums.iter_mut().for_each(|sum| *sum *= scale);
        variances.iter_mut().for_each(|variance| *variance *= scale * scale);
        heavy.for_each(|(score, weight)| sums[slots.of(score)] += f64::from(weight));
        running(&mut sums);
        running(&mut variances);
        Self { slots, sums, variances }
    }

    /// The slot in which the sum of weights reaches so much.
    fn reach(&self, sum: f64) -> usize {
        self.sums.partition_point(|s| *s < sum)
    }

    /// The slots from and up to which the end is likely to lie, of which one is `slot`; `missing` is what is to come,
    /// below 0 if what lies below the slot is too much.
    fn around(&self, slot: usize, missing: f64, more: bool) -> (usize, usize) {
        /// Standard deviations.
        const OFFSET: f64 = 3.0;
        let below = |of: &[f64], slot: usize| if slot > 0 { of[slot - 1] } else { 0.0 };
        let sum = below(&self.sums, slot) + missing;
        let variance = below(&self.variances, self.reach(sum)) - below(&self.variances, slot);
        let margin = OFFSET * variance.abs().sqrt();
        if more {
            (slot, self.reach(sum + margin).max(slot) + 2)
        } else {
            (self.reach(sum - margin).min(slot).saturating_sub(2), slot)
        }
    }
}

/// Replaces numbers by their running sums.
fn running(numbers: &mut [f64]) {
    let mut sum = 0.0;
    for number in numbers {
        sum += *number;
        *number = sum;
    }
}
