//! Keeping the best candidates that together hold a given probability.

use super::work::{Candidate, SORTED, better};

/// Slots into which the scores of a long list are counted.
const SLOTS: usize = 4096;

/// A score from which on a weight is 0, for scores that are distances between logits.
const FARTHEST: f64 = 87.0;

/// Keeps the candidates of lowest score, ties as in [`better`], until `enough` holds of the sum of their
/// weights and `min_keep` are kept; leaves their order as it is.
///
/// A long list is not sorted: scores are counted in slots, and only the slot in which the end lies is looked at
/// more closely.
pub(super) fn keep_mass(
    list: &mut Vec<Candidate>,
    weights: &[f32],
    score: impl Fn(&Candidate) -> f64,
    enough: impl Fn(f64) -> bool,
    min_keep: usize,
) {
    let scale = slot_scale(list, &score);
    let slot = |candidate: &Candidate| ((score(candidate) * scale) as usize).min(SLOTS - 1);
    // With one slot there is nothing to find.
    let (last_slot, mut sum, mut kept) =
        if scale == 0.0 { (0, 0.0, 0) } else { find_slot(list, weights, &slot, &enough, min_keep) };
    let members = list.iter().zip(weights).filter(|(candidate, _)| slot(candidate) == last_slot);
    let mut members: Vec<(f64, Candidate, f32)> =
        members.map(|(c, &weight)| (score(c), *c, weight)).collect();
    members.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then_with(|| better(&a.1, &b.1)));
    let last = members.iter().find(|member| {
        sum += f64::from(member.2);
        kept += 1;
        enough(sum) && kept >= min_keep
    });
    if let Some(&(limit, last, _)) = last.or(members.last()) {
        list.retain(|candidate| {
            let found = score(candidate);
            found < limit || (found == limit && better(candidate, &last).is_le())
        });
    }
}

/// Slots for each unit of score; 0, which makes one slot of all, for a short list or equal scores.
fn slot_scale(list: &[Candidate], score: &impl Fn(&Candidate) -> f64) -> f64 {
    let farthest = if list.len() > SORTED { list.iter().map(score).fold(0.0, f64::max) } else { 0.0 };
    if farthest > 0.0 { SLOTS as f64 / farthest.min(FARTHEST) } else { 0.0 }
}

/// The slot in which the last candidate to keep lies, with the weight and the number of those before it.
fn find_slot(
    list: &[Candidate],
    weights: &[f32],
    slot: &impl Fn(&Candidate) -> usize,
    enough: &impl Fn(f64) -> bool,
    min_keep: usize,
) -> (usize, f64, usize) {
    let mut held = vec![(0.0, 0usize); SLOTS];
    for (candidate, &weight) in list.iter().zip(weights) {
        let slot = &mut held[slot(candidate)];
        slot.0 += f64::from(weight);
        slot.1 += 1;
    }
    let (mut sum, mut count) = (0.0, 0);
    for (at, slot) in held.iter().enumerate() {
        let (next_sum, next_count) = (sum + slot.0, count + slot.1);
        if next_count == list.len() || (enough(next_sum) && next_count >= min_keep && slot.1 > 0) {
            return (at, sum, count);
        }
        (sum, count) = (next_sum, next_count);
    }
    (0, 0.0, 0)
}
