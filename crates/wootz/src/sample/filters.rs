//! The samplers that drop candidates or reshape their probabilities, with llama.cpp's definitions.

use super::mass::keep_mass;
use super::math::{ln, pow};
use super::work::{Candidate, Work, better};

/// Distances below the best logit at which [`top_p`] looks for enough probability, nearest first.
const TOP_P_DEPTHS: [f32; 4] = [4.0, 8.0, 16.0, f32::INFINITY];

/// Keeps the fewest best candidates whose probabilities reach `p`, and at least `min_keep`.
pub(super) fn top_p(work: &mut Work<'_>, p: f32, min_keep: usize) {
    if p >= 1.0 {
        return;
    }
    let max = work.max();
    let needed = f64::from(p) * work.total(max);
    if work.dense().is_some() {
        // Few tokens hold most of the probability, so the sort need not see the whole vocabulary.
        TOP_P_DEPTHS.iter().any(|&depth| work.narrow(max, depth, needed, min_keep));
    }
    let (list, weights, _) = work.weighted();
    let below = |candidate: &Candidate| f64::from(max) - f64::from(candidate.logit);
    keep_mass(list, weights, below, |sum| sum >= needed, min_keep);
}

/// Keeps candidates of at least `p` times the best one's probability, and at least `min_keep`.
pub(super) fn min_p(work: &mut Work<'_>, p: f32, min_keep: usize) {
    if p > 0.0 {
        let limit = work.max() + ln(f64::from(p)) as f32;
        work.keep_from(limit, min_keep);
    }
}

/// Keeps candidates within `n` standard deviations of the best logit.
///
/// Tang et al., "Top-nσ: not all logits are you need", 2024.
pub(super) fn top_n_sigma(work: &mut Work<'_>, n: f32) {
    if n > 0.0 && work.count() > 1 {
        let deviation = work.deviation() as f32;
        work.keep_from(work.max() - n * deviation, 1);
    }
}

/// Keeps the candidates whose surprise is nearest to the entropy until their probabilities exceed `p`.
///
/// Meister et al., "Locally typical sampling", 2022.
pub(super) fn typical_p(work: &mut Work<'_>, p: f32, min_keep: usize) {
    if p >= 1.0 {
        return;
    }
    let max = work.max();
    let (list, weights, total) = work.weighted();
    let log_total = ln(total);
    let surprise = |candidate: &Candidate| log_total - f64::from(candidate.logit - max);
    let entropy: f64 =
        list.iter().zip(weights.iter()).map(|(c, &w)| f64::from(w) / total * surprise(c)).sum();
    let distance = |candidate: &Candidate| (surprise(candidate) - entropy).abs();
    keep_mass(list, weights, distance, |sum| sum > f64::from(p) * total, min_keep);
}

/// Of the candidates with at least the probability `threshold`, drops all but the least likely one;
/// does nothing if fewer than `min_keep` would be left.
pub(super) fn xtc(work: &mut Work<'_>, threshold: f32, min_keep: usize) {
    let (list, weights, total) = work.weighted();
    let limit = f64::from(threshold) * total;
    let likely = |weight: f32| f64::from(weight) >= limit;
    let dropped = weights.iter().filter(|w| likely(**w)).count().saturating_sub(1);
    if dropped == 0 || list.len() - dropped < min_keep {
        return;
    }
    let stays = list.iter().zip(weights.iter()).filter(|(_, w)| likely(**w)).map(|(c, _)| *c).max_by(better);
    let mut weights = weights.iter();
    list.retain(|candidate| {
        let weight = weights.next().copied().unwrap_or(0.0);
        !likely(weight) || Some(candidate.id) == stays.map(|c| c.id)
    });
}

/// Divides the logits by the temperature; at 0 or less keeps only the best candidate.
pub(super) fn temperature(work: &mut Work<'_>, temperature: f32) {
    if temperature <= 0.0 {
        work.greedy();
    } else if temperature != 1.0 {
        work.scale(temperature);
    }
}

/// Divides the logits by a temperature between `middle - range` and `middle + range`, the higher the more
/// even the probabilities are.
pub(super) fn dynamic_temperature(work: &mut Work<'_>, middle: f32, range: f32, exponent: f32) {
    let count = work.count();
    if count <= 1 {
        return;
    }
    let max = work.max();
    let (list, weights, total) = work.weighted();
    let log_total = ln(total);
    let entropy: f64 = list
        .iter()
        .zip(weights.iter())
        .map(|(c, &w)| f64::from(w) / total * (log_total - f64::from(c.logit - max)))
        .sum();
    let evenness = (entropy / ln(count as f64)).clamp(0.0, 1.0);
    let (low, high) = ((middle - range).max(0.0), middle + range);
    let found = f64::from(low) + f64::from(high - low) * pow(evenness, f64::from(exponent));
    temperature(work, found as f32);
}
