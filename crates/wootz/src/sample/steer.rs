//! The samplers that steer towards a target over many tokens: mirostat and adaptive-p.

use super::math::{exp, ln, pow};
use super::params::SamplingParams;
use super::work::Work;

/// Tokens from which mirostat 1 estimates the shape of the distribution; llama.cpp's number.
const MIROSTAT_SAMPLE: usize = 100;

/// The state of the steering samplers.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Steer {
    /// Mirostat's limit on the surprise, in bits.
    #[cfg_attr(feature = "serde", serde(with = "as_bits"))]
    mu: f64,
    /// Adaptive-p's sum of the probabilities of past tokens, the older the less.
    #[cfg_attr(feature = "serde", serde(with = "as_bits"))]
    weighted_sum: f64,
    /// The sum of those weights.
    #[cfg_attr(feature = "serde", serde(with = "as_bits"))]
    total_weight: f64,
    /// The token picked last and its probability, until it is accepted.
    pending: Option<Pending>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Pending {
    token: u32,
    #[cfg_attr(feature = "serde", serde(with = "as_bits"))]
    prob: f64,
}

/// Keeps every bit of a number in text formats, whose parsers may round.
#[cfg(feature = "serde")]
mod as_bits {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(number: &f64, out: S) -> Result<S::Ok, S::Error> {
        number.to_bits().serialize(out)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        u64::deserialize(from).map(f64::from_bits)
    }
}

impl Steer {
    pub(super) fn new(params: &SamplingParams) -> Self {
        // As if the target had always been met, so that the start is not biased.
        let total_weight = 1.0 / (1.0 - f64::from(params.adaptive_decay));
        Self {
            mu: 2.0 * f64::from(params.mirostat_tau),
            weighted_sum: f64::from(params.adaptive_target) * total_weight,
            total_weight,
            pending: None,
        }
    }

    /// Learns from a token, if it is the one picked last.
    pub(super) fn accept(&mut self, params: &SamplingParams, adaptive: bool, token: u32) {
        let Some(Pending { token: picked, prob }) = self.pending.take() else { return };
        if picked != token {
            return;
        }
        if params.mirostat > 0 {
            let error = surprise(prob) - f64::from(params.mirostat_tau);
            self.mu -= f64::from(params.mirostat_eta) * error;
        } else if adaptive {
            let decay = f64::from(params.adaptive_decay);
            self.weighted_sum = prob + decay * self.weighted_sum;
            self.total_weight = 1.0 + decay * self.total_weight;
        }
    }

    /// Remembers the token picked and its probability, for [`Steer::accept`].
    pub(super) fn picked(&mut self, token: u32, prob: f64) {
        self.pending = Some(Pending { token, prob });
    }

    /// Cuts the candidates to those that mirostat allows.
    ///
    /// Basu et al., "Mirostat: a neural text decoding algorithm that directly controls perplexity", 2021.
    pub(super) fn mirostat(&self, work: &mut Work<'_>, version: u8, vocab: usize) {
        if version == 1 {
            let k = self.mirostat_k(work, vocab);
            work.top_k(k);
        } else {
            // Surprise -log2 p at most mu: a limit on the logit.
            let max = work.max();
            let log_total = ln(work.total());
            let below = log_total - self.mu * std::f64::consts::LN_2;
            if below > 0.0 {
                // Even the best token is too surprising.
                work.greedy();
            } else {
                work.keep_from(max + below as f32, 1);
            }
        }
    }

    /// Number of candidates whose expected surprise is `mu`, if probabilities fall like Zipf's law.
    fn mirostat_k(&self, work: &mut Work<'_>, vocab: usize) -> usize {
        let best = work.best(MIROSTAT_SAMPLE);
        let (mut upper, mut lower) = (0.0, 0.0);
        for (i, pair) in best.windows(2).enumerate() {
            let t = ln((i + 2) as f64 / (i + 1) as f64);
            upper += t * f64::from(pair[0].logit - pair[1].logit);
            lower += t * t;
        }
        if best.len() < 2 {
            return 1;
        }
        let s = upper / lower;
        let epsilon = s - 1.0;
        // epsilon / (1 - vocab^-epsilon) tends to 1 / ln vocab.
        let spread = epsilon * ln(vocab as f64);
        let ratio = if spread.abs() < 1e-9 { 1.0 / ln(vocab as f64) } else { epsilon / (1.0 - exp(-spread)) };
        let k = pow(ratio * exp(self.mu * std::f64::consts::LN_2), 1.0 / s);
        if k >= vocab as f64 { vocab } else { (k as usize).max(1) }
    }

    /// Reshapes the probabilities so that those near the target are favoured; returns the sum of the old weights, which
    /// [`Work::old_weight`] knows.
    ///
    /// The definition is that of llama.cpp, pull request 17927: the target moves against the average of the
    /// past, and a token's logit is `5 - 10 d^2 / (1 + d)` with `d` its distance from it in units of 0.3.
    pub(super) fn adaptive_p(&self, work: &mut Work<'_>, target: f32) -> f64 {
        let target = f64::from(target);
        let moved = (2.0 * target - self.weighted_sum / self.total_weight).clamp(0.0, 1.0);
        work.favour(moved)
    }
}

/// Surprise of a probability, in bits.
fn surprise(prob: f64) -> f64 {
    -ln(prob) / std::f64::consts::LN_2
}
