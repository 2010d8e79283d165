//! What of a request's sampling a device can do: the usual chain, over a short list of candidates.

use std::collections::BTreeMap;

use wootz_graph::{LogitEdit, Picked, Sampling};

use super::history::penalties_are_on;
use super::work::SORTED;
use super::{SampleError, Sampler, SamplerKind, dry, math, xtc_is_on};

/// The place of a sampler in the only order that devices know; none for one that they do not.
fn place(kind: SamplerKind) -> Option<u32> {
    match kind {
        SamplerKind::Penalties => Some(0),
        SamplerKind::TopK => Some(1),
        SamplerKind::TopP => Some(2),
        SamplerKind::MinP => Some(3),
        SamplerKind::Temperature => Some(4),
        _ => None,
    }
}

impl Sampler {
    /// How a device picks the token that [`sample`](Self::sample) would pick from the same logits without a mask, if a
    /// device can: `None` for samplers other than penalties, top-k, top-p, min-p and temperature, for those in another
    /// order, and where probabilities are to be reported.
    ///
    /// `ahead` is the number of tokens to be picked before this one: 0 for the next. `edits` holds the changes of
    /// logits.
    pub fn on_device<'a>(&self, ahead: usize, edits: &'a mut Vec<LogitEdit>) -> Option<Sampling<'a>> {
        let (plan, params) = (&*self.plan, &self.plan.params);
        let penalizes = penalties_are_on(params) && params.samplers.0.contains(&SamplerKind::Penalties);
        let unknown_history = penalizes && ahead > 0;
        if params.n_probs.is_some() || params.mirostat > 0 || plan.adaptive || unknown_history {
            return None;
        }
        let greedy = plan.greedy;
        let acts = |kind: &SamplerKind| match kind {
            SamplerKind::Penalties => penalizes,
            SamplerKind::Dry => dry::is_on(params),
            SamplerKind::AdaptiveP => false,
            _ if greedy => false,
            SamplerKind::TopNSigma => params.top_n_sigma > 0.0,
            SamplerKind::TopK => params.top_k > 0,
            SamplerKind::TypicalP => params.typical_p < 1.0,
            SamplerKind::TopP => params.top_p < 1.0,
            SamplerKind::MinP => params.min_p > 0.0,
            SamplerKind::Xtc => xtc_is_on(params),
            SamplerKind::Temperature => true,
        };
        let acting: Vec<SamplerKind> = params.samplers.0.iter().copied().filter(acts).collect();
        let places: Vec<u32> = acting.iter().map(|kind| place(*kind)).collect::<Option<_>>()?;
        let acts = |kind: SamplerKind| acting.contains(&kind);
        let in_order = places.is_sorted_by(|a, b| a < b);
        let fits = greedy
            || (acts(SamplerKind::TopK)
                && params.top_k.unsigned_abs() as usize <= SORTED
                && params.min_keep <= 1
                && params.dynatemp_range <= 0.0
                && params.temperature > 0.0);
        if !in_order || !fits {
            return None;
        }
        self.edits(penalizes, edits);
        let mut sampling = Sampling {
            edits,
            repeat_penalty: params.repeat_penalty,
            frequency_penalty: params.frequency_penalty,
            presence_penalty: params.presence_penalty,
            ..Sampling::GREEDY
        };
        let mut rng = self.pick_rng.clone();
        for _ in 0..=ahead {
            sampling.uniform = rng.next_f64();
        }
        if !greedy {
            sampling.top_k = params.top_k.unsigned_abs();
        }
        if acts(SamplerKind::TopP) {
            sampling.top_p = params.top_p;
        }
        if acts(SamplerKind::MinP) {
            sampling.min_p_below = math::ln(f64::from(params.min_p)) as f32;
        }
        if acts(SamplerKind::Temperature) {
            sampling.temperature = params.temperature;
        }
        Some(sampling)
    }

    /// Lists bans, biases and, with `penalizes`, tokens seen.
    fn edits(&self, penalizes: bool, edits: &mut Vec<LogitEdit>) {
        let mut all: BTreeMap<u32, (f32, u32)> = BTreeMap::new();
        all.extend(self.plan.biases.iter().map(|(token, bias)| (*token, (*bias, 0))));
        all.extend(self.plan.bans.iter().map(|(token, ())| (*token, (f32::NEG_INFINITY, 0))));
        if penalizes {
            for (token, seen) in self.history.counts() {
                all.entry(token).or_default().1 = seen;
            }
        }
        edits.clear();
        edits.extend(all.into_iter().map(|(token, (bias, seen))| LogitEdit { token, bias, seen }));
    }

    /// Takes note that a device picked a token as [`on_device`](Self::on_device) said for the next one; the caller
    /// still has to [`accept`](Self::accept) it.
    ///
    /// # Errors
    /// The device picked none; the sampler is then as it was.
    pub fn picked(&mut self, picked: Picked) -> Result<u32, SampleError> {
        let vocab = self.plan.n_tokens;
        match picked {
            Picked::Token(token) => {
                // As `sample` does, so that the next draw is the same.
                self.pick_rng.next_f64();
                Ok(token)
            }
            Picked::BadLogit { token, value } => Err(SampleError::BadLogit { token: token as usize, value }),
            Picked::NoCandidate => {
                let allowed = vocab - self.plan.bans.len();
                Err(SampleError::NoCandidate { vocab, finite: 0, allowed })
            }
        }
    }
}
