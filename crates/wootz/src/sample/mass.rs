//! Keeping the best candidates that together hold a given probability.

use super::rows::{self, BLOCK, Score, block_total};
use super::work::{Candidate, SORTED, better};

/// Slots into which the scores of many candidates are counted.
const SLOTS: usize = 1024;

/// A score from which on a weight is 0, for scores that are distances between logits.
const FARTHEST: f32 = 87.0;

/// Of so many values of a row one is looked at to guess where the end lies.
pub(super) const STRIDE: usize = 29;

/// Guesses of where the end lies in a row; then all that may hold it is put in order.
const GUESSES: usize = 4;

/// How much weight is to be kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mass {
    /// Sum of weights.
    pub(super) needed: f64,
    /// Whether the sum must be exceeded.
    pub(super) strict: bool,
    /// Candidates kept at least.
    pub(super) min_keep: usize,
}

impl Mass {
    /// Whether this weight of so many candidates is enough.
    pub(super) fn is_reached(self, (sum, count): (f64, usize)) -> bool {
        let enough = if self.strict { sum > self.needed } else { sum >= self.needed };
        enough && count >= self.min_keep
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
        score < self.score || (score == self.score && better(candidate, &self.candidate).is_le())
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
    pub(super) weights: &'a [f32],
    /// Sum of the weights.
    pub(super) total: f64,
    /// Some of the best values, and all that are as good.
    pub(super) heavy: &'a [Candidate],
}

/// The last value of a row to keep, and the places of those with its score that go; none where there is no candidate.
///
/// A sketch of some of the values tells a short range of scores in which the end is likely to lie; a look at all of them
/// lists those within, and tells how much the sketch is off where it does not lie there.
pub(super) fn find_last_in_row(row: Row<'_>, score: Score, mass: Mass) -> Option<(Last, Vec<u32>)> {
    let sketch = Sketch::of(row, score);
    // Scores above `from` and up to `to`.
    let (mut from, mut to) = (f32::NEG_INFINITY, f32::MAX);
    let (mut missed, mut guesses) = (0.0, 0);
    let mut places = Vec::new();
    loop {
        let (low, high) = sketch.around(mass.needed - missed);
        let (mut low, mut high) = (low.max(from), high.min(to));
        if guesses == GUESSES || low >= high {
            (low, high) = (from, to);
        }
        guesses += 1;
        let below = rows::split(row.values, row.weights, score, low, high, &mut places);
        missed = below.0 - sketch.below(low);
        if low > from && mass.is_reached(below) {
            to = low;
            continue;
        }
        let list: Vec<Candidate> =
            places.iter().map(|&at| Candidate { id: at, logit: row.values[at as usize] }).collect();
        let own: Vec<f32> = places.iter().map(|&at| row.weights[at as usize]).collect();
        let sum: f64 = own.chunks(BLOCK).map(block_total).sum();
        if high < to && !mass.is_reached((below.0 + sum, below.1 + own.len())) {
            from = high;
            continue;
        }
        let last = find_last(&list, &own, score, mass, below)?;
        let goes = |c: &&Candidate| score.of(c.logit) == last.score && !last.keeps(last.score, c);
        return Some((last, list.iter().filter(goes).map(|c| c.id).collect()));
    }
}

/// The weights of a row in slots by score: exact ones of heavy values, those of the others from some of them.
struct Sketch {
    slots: Slots,
    /// Weight up to the end of each slot.
    sums: Vec<f64>,
    /// Variance of that, if it were estimated from what lies below alone.
    variances: Vec<f64>,
}

impl Sketch {
    fn of(row: Row<'_>, score: Score) -> Self {
        let lightest = row.heavy.iter().map(|c| c.logit).fold(f32::INFINITY, f32::min);
        let some = row.values.iter().zip(row.weights).step_by(STRIDE).filter(|(x, _)| **x < lightest);
        let light: Vec<(f32, f32)> = some.map(|(&x, &weight)| (score.of(x), weight)).collect();
        let heavy = row.heavy.iter().map(|c| (score.of(c.logit), row.weights[c.id as usize]));
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

    /// Weight below the slot in which a score lies.
    fn below(&self, score: f32) -> f64 {
        let slot = self.slots.of(score);
        if slot > 0 { self.sums[slot - 1] } else { 0.0 }
    }

    /// Scores between which the sum of weights is likely to reach so much.
    fn around(&self, sum: f64) -> (f32, f32) {
        /// Standard deviations to both sides.
        const OFFSET: f64 = 3.0;
        let slot = |sum: f64| self.sums.partition_point(|s| *s < sum);
        // As the sum of all is known, what lies above is as good an estimate as what lies below.
        let below = self.variances[slot(sum).min(SLOTS - 1)];
        let margin = OFFSET * below.min(self.variances[SLOTS - 1] - below).max(0.0).sqrt();
        let (first, last) = (slot(sum - margin), slot(sum + margin) + 1);
        let low = if first == 0 { f32::NEG_INFINITY } else { self.slots.start(first) };
        (low, if last >= SLOTS { f32::MAX } else { self.slots.start(last) })
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
