//! Keeping the best candidates that together hold a given probability.

use super::rows::{self, Score};
use super::work::{Candidate, SORTED, better};

/// Slots into which the scores of many candidates are counted.
const SLOTS: usize = 1024;

/// A score from which on a weight is 0, for scores that are distances between logits.
const FARTHEST: f32 = 87.0;

/// Of so many values of a row one is looked at to guess where the end lies.
const STRIDE: usize = 17;

/// Candidates that are looked at one by one.
const FEW: usize = 8192;

/// Looks at a whole row, each of which narrows the end down to a third at most; then it is taken as it is.
const LOOKS: usize = 16;

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

/// The last value of a row to keep, each a candidate unless it is negative infinity; none where there is no candidate.
///
/// A guess from some of the values, and a few looks at all of them, leave a short range of scores in which the end
/// must lie.
pub(super) fn find_last_in_row(values: &[f32], weights: &[f32], score: Score, mass: Mass) -> Option<Last> {
    // Scores above `from` and up to `to`; what lies below, and up to there.
    let (mut from, mut to) = (f32::NEG_INFINITY, f32::MAX);
    let (mut below, mut within) = ((0.0, 0), values.len());
    let mut limits = guess(values, weights, score, mass);
    for _ in 0..LOOKS {
        for (limit, held) in limits.into_iter().zip(rows::masses(values, weights, score, limits)) {
            if mass.is_reached(held) {
                (to, within) = (limit, held.1 - below.1);
                break;
            }
            (from, below) = (limit, held);
            within = values.len() - held.1;
        }
        let (low, high) = (from.max(0.0), to.min(FARTHEST));
        if within <= FEW || high <= low {
            break;
        }
        let part = (high - low) / 5.0;
        limits = [1.0, 2.0, 3.0, 4.0].map(|n| low + n * part);
    }
    let mut places = Vec::new();
    rows::between(values, score, from, to, &mut places);
    let list: Vec<Candidate> =
        places.iter().map(|&at| Candidate { id: at, logit: values[at as usize] }).collect();
    let own: Vec<f32> = places.iter().map(|&at| weights[at as usize]).collect();
    find_last(&list, &own, score, mass, below)
}

/// Four rising scores, between which the end of a row's kept values is likely to lie, from some of the values.
fn guess(values: &[f32], weights: &[f32], score: Score, mass: Mass) -> [f32; 4] {
    // Standard deviations from the mean of the guess.
    const OFFSETS: [f64; 4] = [-3.0, -0.6, 0.6, 3.0];
    let sample = || values.iter().zip(weights).step_by(STRIDE).map(|(&x, &w)| (score.of(x), f64::from(w)));
    let farthest = sample().map(|(s, _)| s).filter(|s| s.is_finite()).fold(0.0, f32::max).min(FARTHEST);
    let slots = Slots { low: 0.0, scale: SLOTS as f32 / farthest.max(f32::MIN_POSITIVE) };
    // Weights, and their squares, which make the variance of the guess.
    let mut held = vec![(0.0, 0.0); SLOTS];
    for (s, w) in sample().filter(|(s, _)| s.is_finite()) {
        let slot = &mut held[slots.of(s)];
        *slot = (slot.0 + w, slot.1 + w * w);
    }
    let stride = STRIDE as f64;
    let (mut sum, mut squares) = (0.0, 0.0);
    let sums: Vec<(f64, f64)> = held
        .iter()
        .map(|slot| {
            (sum, squares) = (sum + stride * slot.0, squares + slot.1);
            (sum, stride * squares.sqrt())
        })
        .collect();
    let first_reaching = |target: f64| sums.iter().position(|(sum, _)| *sum >= target).unwrap_or(SLOTS - 1);
    let deviation = sums[first_reaching(mass.needed)].1;
    OFFSETS.map(|offset| {
        let slot = first_reaching(mass.needed + offset * deviation);
        slots.start(if offset > 0.0 { slot + 1 } else { slot })
    })
}
