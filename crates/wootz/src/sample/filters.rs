//! The samplers that drop candidates or reshape their probabilities, with llama.cpp's definitions.

use super::mass::Mass;
use super::math::{ln, pow};
use super::rows::Score;
use super::work::Work;

/// Keeps the fewest best candidates whose probabilities reach `p`, and at least `min_keep`.
pub(super) fn top_p(work: &mut Work<'_>, p: f32, min_keep: usize) {
    if p >= 1.0 {
        return;
    }
    let max = work.max();
    let score = Score { max, center: 0.0 };
    let mass = |total: f64| Mass { needed: f64::from(p) * total, strict: false, min_keep };
    if let Some(depth) = work.shallow(max) {
        // Few tokens are that near to the best, and they may hold enough.
        let mass = mass(work.total());
        if work.narrow(depth, score, mass) {
            return work.keep_mass(score, mass);
        }
    }
    let mass = mass(work.weigh());
    work.keep_mass(score, mass);
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
        let limit = work.max() - n * deviation;
        work.keep_from(limit, 1);
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
    let total = work.weigh();
    // A candidate's surprise is the logarithm of the total plus its depth below the best; the entropy is the mean of
    // that, so their distance is the one between the candidate's depth and the mean depth.
    let center = work.mean_depth(max, total) as f32;
    let score = Score { max, center };
    let mass = Mass { needed: f64::from(p) * total, strict: true, min_keep };
    if let Some(depth) = work.shallow(max) {
        work.narrow(depth, score, mass);
    }
    work.keep_mass(score, mass);
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
    let total = work.weigh();
    let entropy = ln(total) + work.mean_depth(max, total);
    let evenness = (entropy / ln(count as f64)).clamp(0.0, 1.0);
    let (low, high) = ((middle - range).max(0.0), middle + range);
    let found = f64::from(low) + f64::from(high - low) * pow(evenness, f64::from(exponent));
    temperature(work, found as f32);
}
