//! From logits to the next token.
//!
//! The samplers, their order, names, defaults and definitions are those of llama.cpp; the random numbers are
//! wootz's own. A [`Sampler`] belongs to one request: what it picks depends on its parameters, its seed, the
//! tokens it has accepted and the logits it is given, and on nothing else, neither other requests nor the
//! platform.
//!
//! One step does this, in this order: report the model's probabilities if asked, apply the mask of a grammar,
//! ban and bias tokens, run the chain (or mirostat), pick.
//!
//! Candidates are ordered by logit and, where equal, by token: a tie goes to the lowest token. A token whose
//! logit is negative infinity is no candidate and is counted by no sampler.
//!
//! ```
//! use wootz::sample::{Sampler, SamplingParams, Vocab};
//!
//! struct Letters;
//!
//! impl Vocab for Letters {
//!     fn n_tokens(&self) -> usize {
//!         26
//!     }
//!     fn end_tokens(&self) -> &[u32] {
//!         &[]
//!     }
//!     fn piece(&self, token: u32, out: &mut Vec<u8>) {
//!         out.push(b'a' + token as u8);
//!     }
//!     fn tokenize(&self, text: &[u8]) -> Vec<u32> {
//!         text.iter().map(|byte| u32::from(byte - b'a')).collect()
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let params = SamplingParams { seed: Some(42), top_k: 3, ..SamplingParams::default() };
//! let mut sampler = Sampler::new(params, &Letters)?;
//! let logits: Vec<f32> = (0..26).map(|i| i as f32).collect();
//! let sampled = sampler.sample(&logits, None)?;
//! assert!(sampled.token >= 23);
//! sampler.accept(sampled.token);
//! # Ok(())
//! # }
//! ```

mod device;
mod dry;
mod filters;
mod history;
mod mask;
mod mass;
mod math;
mod params;
mod passes;
mod rng;
mod rows;
mod steer;
#[cfg(test)]
mod tests;
mod work;

use std::sync::Arc;

pub use dry::Breakers;
pub use mask::BitMask;
pub use params::{Chain, LogitBias, MAX_BREAKER_BYTES, ParamError, SamplerKind, SamplingParams};
pub use rng::Rng;
pub use wootz_graph::{LogitEdit, OneThread, Picked, Sampling, Threads};

use history::{History, bounded};
use passes::Passes;
use steer::Steer;
use work::{Buffers, Pick, Work};

/// What the sampler must know about the model's tokens.
pub trait Vocab {
    /// Number of tokens, which is the number of logits in a row.
    fn n_tokens(&self) -> usize;

    /// The tokens that end a text.
    fn end_tokens(&self) -> &[u32];

    /// Appends the bytes of a token's text, of special tokens too.
    fn piece(&self, token: u32, out: &mut Vec<u8>);

    /// The tokens of a text, with nothing added and no special token recognised.
    fn tokenize(&self, text: &[u8]) -> Vec<u32>;
}

/// A vocabulary of so many tokens without texts, of which none ends one: for logits that come from no model.
#[derive(Clone, Copy, Debug)]
pub struct BlankVocab(pub usize);

impl Vocab for BlankVocab {
    fn n_tokens(&self) -> usize {
        self.0
    }

    fn end_tokens(&self) -> &[u32] {
        &[]
    }

    fn piece(&self, _token: u32, _out: &mut Vec<u8>) {}

    fn tokenize(&self, _text: &[u8]) -> Vec<u32> {
        Vec::new()
    }
}

/// A row of logits from which nothing can be picked.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// The row has another length than the vocabulary.
    #[error("{found} logits for a vocabulary of {expected} tokens")]
    Length {
        /// Number of logits.
        found: usize,
        /// Number of tokens.
        expected: usize,
    },
    /// A logit is not a number or positive infinity: the model's computation has failed.
    #[error("the logit of token {token} is {value}: expected a finite number or -inf")]
    BadLogit {
        /// The first such token.
        token: usize,
        /// Its logit.
        value: f32,
    },
    /// The mask speaks about more tokens than there are.
    #[error("a mask of {found} tokens for a vocabulary of {expected}")]
    MaskLength {
        /// Number of tokens in the mask.
        found: usize,
        /// Number of tokens.
        expected: usize,
    },
    /// Every token is excluded by its logit, the mask or a ban.
    #[error("no token can be picked: of {vocab}, {finite} have a finite logit and {allowed} are allowed")]
    NoCandidate {
        /// Number of tokens.
        vocab: usize,
        /// Tokens whose logit is finite.
        finite: usize,
        /// Tokens that the mask allows.
        allowed: usize,
    },
}

/// A picked token.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: u32,
    /// Its probability and those of the most likely tokens, if the parameters ask for them.
    pub logprobs: Option<Logprobs>,
}

/// Probabilities at one position.
///
/// With `post_sampling_probs` those after the chain; else the model's own, the log-softmax of its logits before
/// any mask, bias, penalty or temperature, as OpenAI defines them.
#[derive(Debug, Clone, PartialEq)]
pub struct Logprobs {
    /// The token picked.
    pub chosen: TokenLogprob,
    /// The most likely tokens, most likely first.
    pub top: Vec<TokenLogprob>,
}

/// A token and the natural logarithm of its probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: u32,
    /// Natural logarithm of the probability; negative infinity for 0.
    pub logprob: f32,
}

impl TokenLogprob {
    /// The probability.
    pub fn prob(&self) -> f32 {
        math::exp(f64::from(self.logprob)) as f32
    }
}

/// What never changes while a request runs.
#[derive(Debug)]
struct Plan {
    params: SamplingParams,
    n_tokens: usize,
    breakers: Arc<Breakers>,
    /// Rising tokens.
    biases: Vec<(u32, f32)>,
    /// Rising tokens.
    bans: Vec<(u32, ())>,
    /// The chain cannot but pick the best candidate.
    greedy: bool,
    /// Adaptive-p picks the token.
    adaptive: bool,
}

/// Everything that a request's sampler has learned; with the same parameters it continues the same way.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SamplerState {
    seed: u64,
    pick_rng: Rng,
    xtc_rng: Rng,
    steer: Steer,
    tokens: Vec<u32>,
}

/// Picks the tokens of one request; a clone continues as the original would have.
#[derive(Debug, Clone)]
pub struct Sampler {
    plan: Arc<Plan>,
    seed: u64,
    pick_rng: Rng,
    xtc_rng: Rng,
    steer: Steer,
    history: History,
    buffers: Buffers,
}

impl Sampler {
    /// A sampler at the start of its request.
    ///
    /// # Errors
    /// A parameter outside its range.
    pub fn new(params: SamplingParams, vocab: &dyn Vocab) -> Result<Self, ParamError> {
        let breakers = if dry::is_on(&params) {
            Breakers::new(&params.dry_sequence_breakers, vocab)
        } else {
            Breakers::default()
        };
        Self::with_breakers(params, vocab, Arc::new(breakers))
    }

    /// The same with breakers found before, since finding them reads the whole vocabulary.
    ///
    /// # Errors
    /// A parameter outside its range.
    pub fn with_breakers(
        params: SamplingParams,
        vocab: &dyn Vocab,
        breakers: Arc<Breakers>,
    ) -> Result<Self, ParamError> {
        params.validate()?;
        let n_tokens = vocab.n_tokens();
        let mut biases = std::collections::BTreeMap::<u32, f32>::new();
        for &LogitBias { token, bias } in &params.logit_bias {
            if token as usize >= n_tokens {
                let expected = format!("tokens below {n_tokens}");
                return Err(ParamError::new("logit_bias", format_args!("token {token}"), expected));
            }
            *biases.entry(token).or_default() += bias;
        }
        if params.ignore_eos {
            biases.extend(vocab.end_tokens().iter().map(|&token| (token, f32::NEG_INFINITY)));
        }
        let banned = |bias: f32| bias == f32::NEG_INFINITY;
        let bans = biases.iter().filter(|(_, bias)| banned(**bias)).map(|(&token, _)| (token, ())).collect();
        let biases = biases.into_iter().filter(|(_, bias)| !banned(*bias)).collect();

        let has = |kind| params.samplers.0.contains(&kind);
        let adaptive = params.mirostat == 0 && has(SamplerKind::AdaptiveP) && params.adaptive_target >= 0.0;
        let greedy = !adaptive && keeps_only_the_best(&params);
        let seed = params.seed.unwrap_or_else(rng::random_seed);
        Ok(Self {
            seed,
            pick_rng: Rng::new(seed, 0),
            xtc_rng: Rng::new(seed, 1),
            steer: Steer::new(&params),
            history: History::new(&params),
            buffers: Buffers::default(),
            plan: Arc::new(Plan { params, n_tokens, breakers, biases, bans, greedy, adaptive }),
        })
    }

    /// The parameters.
    pub fn params(&self) -> &SamplingParams {
        &self.plan.params
    }

    /// The seed in use, also when the parameters name none.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Takes note of a token of the text, of the prompt or picked, in order.
    pub fn accept(&mut self, token: u32) {
        self.history.push(token);
        self.steer.accept(&self.plan.params, self.plan.adaptive, token);
    }

    /// Picks the next token from the model's logits, one for each token of the vocabulary.
    ///
    /// # Errors
    /// Logits or a mask that do not fit the vocabulary or leave no candidate; the sampler is then as it was.
    pub fn sample(&mut self, logits: &[f32], mask: Option<&BitMask<'_>>) -> Result<Sampled, SampleError> {
        self.sample_on(&OneThread, logits, mask)
    }

    /// The same on several threads, of which a long row uses as many as are free; the token does not depend on them.
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    pub fn sample_on(
        &mut self,
        threads: &dyn Threads,
        logits: &[f32],
        mask: Option<&BitMask<'_>>,
    ) -> Result<Sampled, SampleError> {
        let plan = Arc::clone(&self.plan);
        let mut buffers = std::mem::take(&mut self.buffers);
        let sampled = self.step(&plan, Passes::new(threads), logits, mask, &mut buffers);
        self.buffers = buffers;
        sampled
    }

    /// The probabilities from which [`Sampler::sample`] would pick, most likely first.
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    pub fn distribution(
        &mut self,
        logits: &[f32],
        mask: Option<&BitMask<'_>>,
    ) -> Result<Vec<TokenLogprob>, SampleError> {
        let plan = Arc::clone(&self.plan);
        let mut buffers = std::mem::take(&mut self.buffers);
        let result = open(&plan, Passes::new(&OneThread), logits, &mut buffers).and_then(|mut work| {
            prepare(&plan, &mut work, logits, mask)?;
            self.run_chain(&plan, &mut work);
            Ok(LogScale::of(&mut work).top(&mut work, usize::MAX))
        });
        self.buffers = buffers;
        result
    }

    /// What has been learned so far, to be continued by [`Sampler::restore`].
    pub fn state(&self) -> SamplerState {
        SamplerState {
            seed: self.seed,
            pick_rng: self.pick_rng.clone(),
            xtc_rng: self.xtc_rng.clone(),
            steer: self.steer,
            tokens: self.history.kept().to_vec(),
        }
    }

    /// Continues from a state that a sampler with the same parameters had.
    pub fn restore(&mut self, state: SamplerState) {
        self.history = History::new(&self.plan.params);
        state.tokens.iter().for_each(|&token| self.history.push(token));
        self.seed = state.seed;
        self.pick_rng = state.pick_rng;
        self.xtc_rng = state.xtc_rng;
        self.steer = state.steer;
    }

    fn step(
        &mut self,
        plan: &Plan,
        passes: Passes<'_>,
        logits: &[f32],
        mask: Option<&BitMask<'_>>,
        buffers: &mut Buffers,
    ) -> Result<Sampled, SampleError> {
        let params = &plan.params;
        let wanted = params.n_probs;
        let mut work = open(plan, passes, logits, buffers)?;
        let reported = match wanted {
            Some(n) if !params.post_sampling_probs => {
                let scale = LogScale::of(&mut work);
                Some((scale, scale.top(&mut work, n)))
            }
            _ => None,
        };
        prepare(plan, &mut work, logits, mask)?;
        let original = self.run_chain(plan, &mut work);
        let uniform = self.pick_rng.next_f64();
        let pick = work.pick(uniform).ok_or_else(|| no_candidate(logits, mask))?;
        let Pick { token, prob, index } = pick;
        let seen = original.map_or(prob, |total| f64::from((work.old_weight(index) / total) as f32));
        self.steer.picked(token, seen);
        let logprobs = match (reported, wanted) {
            (Some((scale, top)), _) => {
                Some(Logprobs { chosen: scale.logprob(token, logits[token as usize]), top })
            }
            (None, Some(n)) => {
                let chosen = TokenLogprob { token, logprob: math::ln(prob) as f32 };
                Some(Logprobs { chosen, top: LogScale::of(&mut work).top(&mut work, n) })
            }
            (None, None) => None,
        };
        Ok(Sampled { token, logprobs })
    }

    /// Runs the samplers; returns the sum of the weights before adaptive-p, if it is on.
    fn run_chain(&mut self, plan: &Plan, work: &mut Work<'_>) -> Option<f64> {
        let params = &plan.params;
        if params.mirostat > 0 {
            filters::temperature(work, params.temperature);
            self.steer.mirostat(work, params.mirostat, plan.n_tokens);
            return None;
        }
        for &kind in &params.samplers.0 {
            match kind {
                SamplerKind::Penalties => history::penalize(work, params, &self.history),
                SamplerKind::Dry => dry::penalize(work, params, &plan.breakers, &self.history),
                // The best candidate stays the best in all that follows.
                _ if plan.greedy => {}
                SamplerKind::TopNSigma => filters::top_n_sigma(work, params.top_n_sigma),
                SamplerKind::TopK => {
                    if let Ok(k @ 1..) = usize::try_from(params.top_k) {
                        work.top_k(k);
                    }
                }
                SamplerKind::TypicalP => filters::typical_p(work, params.typical_p, params.min_keep),
                SamplerKind::TopP => filters::top_p(work, params.top_p, params.min_keep),
                SamplerKind::MinP => filters::min_p(work, params.min_p, params.min_keep),
                SamplerKind::Xtc => {
                    if xtc_is_on(params)
                        && work.has(2)
                        && self.xtc_rng.next_f64() < f64::from(params.xtc_probability)
                    {
                        work.drop_likely(params.xtc_threshold, params.min_keep);
                    }
                }
                SamplerKind::Temperature if params.dynatemp_range > 0.0 => filters::dynamic_temperature(
                    work,
                    params.temperature,
                    params.dynatemp_range,
                    params.dynatemp_exponent,
                ),
                SamplerKind::Temperature => filters::temperature(work, params.temperature),
                SamplerKind::AdaptiveP => {}
            }
        }
        if plan.greedy {
            work.greedy();
        }
        plan.adaptive.then(|| self.steer.adaptive_p(work, params.adaptive_target))
    }
}

/// Tells whether the chain leaves just the candidate that is best after penalties.
fn keeps_only_the_best(params: &SamplingParams) -> bool {
    let cold = params.temperature <= 0.0 && params.temperature + params.dynatemp_range <= 0.0;
    let chain = &params.samplers.0;
    let penalizes = |kind: &SamplerKind| matches!(kind, SamplerKind::Penalties | SamplerKind::Dry);
    // A penalty on a list that is already short does not see the whole vocabulary.
    let penalized_first = chain.iter().skip_while(|kind| penalizes(kind)).all(|kind| !penalizes(kind));
    // These can drop the best candidate.
    let typical = chain.contains(&SamplerKind::TypicalP) && params.typical_p < 1.0;
    cold && chain.contains(&SamplerKind::Temperature)
        && penalized_first
        && !typical
        && !xtc_is_on(params)
        && params.mirostat == 0
}

fn xtc_is_on(params: &SamplingParams) -> bool {
    let wanted = params.samplers.0.contains(&SamplerKind::Xtc);
    wanted && params.xtc_probability > 0.0 && params.xtc_threshold <= 0.5
}

/// Checks the row of logits.
fn open<'a>(
    plan: &Plan,
    passes: Passes<'a>,
    logits: &'a [f32],
    buffers: &'a mut Buffers,
) -> Result<Work<'a>, SampleError> {
    if logits.len() != plan.n_tokens {
        return Err(SampleError::Length { found: logits.len(), expected: plan.n_tokens });
    }
    let mut work = Work::new(logits, passes, buffers)?;
    if work.max() == f32::NEG_INFINITY { Err(no_candidate(logits, None)) } else { Ok(work) }
}

/// Applies mask, bans and biases.
fn prepare(
    plan: &Plan,
    work: &mut Work<'_>,
    logits: &[f32],
    mask: Option<&BitMask<'_>>,
) -> Result<(), SampleError> {
    if let Some(mask) = mask {
        if mask.len() > logits.len() {
            return Err(SampleError::MaskLength { found: mask.len(), expected: logits.len() });
        }
        work.restrict(mask);
    }
    work.edit(&plan.bans, |_, ()| f32::NEG_INFINITY);
    work.edit(&plan.biases, |logit, bias| bounded(logit + bias));
    if work.max() == f32::NEG_INFINITY { Err(no_candidate(logits, mask)) } else { Ok(()) }
}

fn no_candidate(logits: &[f32], mask: Option<&BitMask<'_>>) -> SampleError {
    SampleError::NoCandidate {
        vocab: logits.len(),
        finite: logits.iter().filter(|logit| logit.is_finite()).count(),
        allowed: mask.map_or(logits.len(), BitMask::count),
    }
}

/// What makes a logarithm of a probability of a logit.
#[derive(Clone, Copy)]
struct LogScale {
    max: f32,
    log_total: f64,
}

impl LogScale {
    fn of(work: &mut Work<'_>) -> Self {
        let max = work.max();
        Self { max, log_total: math::ln(work.total()) }
    }

    fn logprob(self, token: u32, logit: f32) -> TokenLogprob {
        // The difference first: it is exact where the logits are near each other.
        let logprob = f64::from(logit) - f64::from(self.max) - self.log_total;
        TokenLogprob { token, logprob: logprob as f32 }
    }

    fn top(self, work: &mut Work<'_>, n: usize) -> Vec<TokenLogprob> {
        work.best(n).iter().map(|c| self.logprob(c.id, c.logit)).collect()
    }
}
