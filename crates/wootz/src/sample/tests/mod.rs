//! The samplers against a naive oracle, known examples, distributions and bad input.

mod chain;
mod device;
mod draws;
mod dry;
mod edges;
mod golden;
mod known;
mod oracle;
mod reports;
mod steer;
mod threads;

use super::rng::Rng;
use super::{Sampler, SamplingParams, TokenLogprob, Vocab};

/// A vocabulary of given pieces that tokenizes by the longest piece.
pub(super) struct Pieces {
    pieces: Vec<Vec<u8>>,
    ends: Vec<u32>,
}

impl Pieces {
    pub(super) fn new(pieces: &[&str]) -> Self {
        Self { pieces: pieces.iter().map(|piece| piece.as_bytes().to_vec()).collect(), ends: Vec::new() }
    }

    /// A vocabulary of `n` tokens without text.
    pub(super) fn blank(n: usize) -> Self {
        Self { pieces: vec![Vec::new(); n], ends: Vec::new() }
    }

    pub(super) fn ending_with(mut self, ends: &[u32]) -> Self {
        self.ends = ends.to_vec();
        self
    }
}

impl Vocab for Pieces {
    fn n_tokens(&self) -> usize {
        self.pieces.len()
    }

    fn end_tokens(&self) -> &[u32] {
        &self.ends
    }

    fn piece(&self, token: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.pieces[token as usize]);
    }

    fn tokenize(&self, mut text: &[u8]) -> Vec<u32> {
        let mut tokens = Vec::new();
        while !text.is_empty() {
            let fits = |piece: &Vec<u8>| !piece.is_empty() && text.starts_with(piece);
            let best = (0..self.pieces.len()).filter(|&i| fits(&self.pieces[i]));
            let Some(best) = best.max_by_key(|&i| self.pieces[i].len()) else { break };
            tokens.push(best as u32);
            text = &text[self.pieces[best].len()..];
        }
        tokens
    }
}

/// A sampler over a vocabulary of `n` tokens without text.
pub(super) fn sampler(params: SamplingParams, n: usize) -> Sampler {
    Sampler::new(params, &Pieces::blank(n)).unwrap()
}

/// Every sampler off.
pub(super) fn off() -> SamplingParams {
    SamplingParams {
        seed: Some(1),
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        ..SamplingParams::default()
    }
}

/// What a sampler would pick from, as tokens.
pub(super) fn kept(params: SamplingParams, logits: &[f32]) -> Vec<u32> {
    let found = sampler(params, logits.len()).distribution(logits, None).unwrap();
    found.iter().map(|t| t.token).collect()
}

/// Logits whose softmax is the given probabilities.
pub(super) fn logits_of(probs: &[f32]) -> Vec<f32> {
    probs.iter().map(|p| p.ln()).collect()
}

/// Normally distributed logits, with some ties and some at negative infinity.
pub(super) fn random_logits(rng: &mut Rng, n: usize, spread: f32) -> Vec<f32> {
    let mut logits: Vec<f32> = (0..n)
        .map(|_| {
            let radius = (-2.0 * (1.0 - rng.next_f64()).ln()).sqrt();
            let normal = radius * (std::f64::consts::TAU * rng.next_f64()).cos();
            (normal as f32) * spread
        })
        .collect();
    for _ in 0..n / 10 {
        let [from, to, banned] = [(); 3].map(|()| (rng.next_u64() % n as u64) as usize);
        logits[to] = logits[from];
        logits[banned] = f32::NEG_INFINITY;
    }
    if logits.iter().all(|x| *x == f32::NEG_INFINITY) {
        logits[0] = 1.0;
    }
    logits
}

/// Below this a probability is as good as 0: f32 weights end there.
const NOTHING: f64 = 1e-30;

/// Fails unless both are the same tokens with nearly the same probabilities.
pub(super) fn assert_same(found: &[TokenLogprob], wanted: &[(u32, f64)], context: &dyn std::fmt::Debug) {
    let mut by_token: Vec<(u32, f64)> = found.iter().map(|t| (t.token, f64::from(t.logprob).exp())).collect();
    let mut wanted = wanted.to_vec();
    by_token.retain(|t| t.1 > NOTHING);
    wanted.retain(|t| t.1 > NOTHING);
    by_token.sort_by_key(|t| t.0);
    wanted.sort_by_key(|t| t.0);
    let tokens = |list: &[(u32, f64)]| list.iter().map(|t| t.0).collect::<Vec<_>>();
    assert_eq!(tokens(&by_token), tokens(&wanted), "other tokens with {context:#?}");
    for (found, wanted) in by_token.iter().zip(&wanted) {
        let near = (found.1 - wanted.1).abs() <= 2e-5 * wanted.1 + 1e-9;
        assert!(near, "token {}: {} for {} with {context:#?}", found.0, found.1, wanted.1);
    }
}
