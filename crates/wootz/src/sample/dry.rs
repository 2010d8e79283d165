//! Penalty on continuing a repetition ("don't repeat yourself", proposed by p-e-w for
//! text-generation-webui, pull request 5677), with llama.cpp's definitions.

use std::collections::BTreeMap;

use super::Vocab;
use super::history::{History, bounded, window};
use super::math::{ln, powi};
use super::params::SamplingParams;
use super::work::Work;

/// Longest rest of a breaker that is looked for after its first token.
const MAX_TAIL_TOKENS: usize = 20;

/// Token sequences across which no repetition is seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Breakers {
    /// For a first token the tokens that must follow it; none of them if it breaks alone.
    tails: BTreeMap<u32, Vec<Vec<u32>>>,
}

impl Breakers {
    /// Finds every token of the vocabulary that holds a breaker or the start of one; reads the whole
    /// vocabulary, so keep the result.
    pub fn new(texts: &[String], vocab: &dyn Vocab) -> Self {
        let mut breakers = Self::default();
        let mut piece = Vec::new();
        for token in 0..vocab.n_tokens() as u32 {
            piece.clear();
            vocab.piece(token, &mut piece);
            for text in texts.iter().map(String::as_bytes).filter(|text| !text.is_empty()) {
                if piece.windows(text.len()).any(|part| part == text) {
                    breakers.add(token, Vec::new());
                    continue;
                }
                // The end of the piece may be the start of the text: the rest must follow.
                let longest = piece.len().min(text.len() - 1);
                for shared in (1..=longest).filter(|&n| piece.ends_with(&text[..n])) {
                    let mut tail = vocab.tokenize(&text[shared..]);
                    tail.truncate(MAX_TAIL_TOKENS);
                    breakers.add(token, tail);
                }
            }
        }
        breakers
    }

    /// Breakers given as token sequences.
    pub fn from_tokens(sequences: &[Vec<u32>]) -> Self {
        let mut breakers = Self::default();
        for sequence in sequences {
            if let Some((&head, tail)) = sequence.split_first() {
                breakers.add(head, tail.to_vec());
            }
        }
        breakers
    }

    fn add(&mut self, head: u32, tail: Vec<u32>) {
        let tails = self.tails.entry(head).or_default();
        if !tails.contains(&tail) {
            tails.push(tail);
        }
    }

    /// Number of tokens at the end of `tokens` that stand after the last breaker.
    fn unbroken(&self, tokens: &[u32]) -> usize {
        for at in (0..tokens.len()).rev() {
            let Some(tails) = self.tails.get(&tokens[at]) else { continue };
            let after = &tokens[at + 1..];
            let longest = tails.iter().filter(|tail| after.starts_with(tail)).map(Vec::len).max();
            if let Some(tail) = longest {
                return after.len() - tail;
            }
        }
        tokens.len()
    }

    fn breaks_alone(&self, token: u32) -> bool {
        self.tails.get(&token).is_some_and(|tails| tails.iter().any(Vec::is_empty))
    }
}

/// Tells whether the parameters ask for the penalty.
pub(super) fn is_on(params: &SamplingParams) -> bool {
    params.dry_multiplier != 0.0 && params.dry_base >= 1.0 && params.dry_penalty_last_n != 0
}

/// Lowers the logit of every token that would make a repetition longer.
pub(super) fn penalize(work: &mut Work<'_>, params: &SamplingParams, breakers: &Breakers, history: &History) {
    if !is_on(params) {
        return;
    }
    let allowed = params.dry_allowed_length as usize;
    let longest = repetitions(history.last(window(params.dry_penalty_last_n)), allowed, breakers);
    let base = f64::from(params.dry_base);
    // A higher power of the base is no finite f32.
    let most = if base > 1.000_001 { (ln(f64::from(f32::MAX)) / ln(base)) as u32 } else { u32::MAX };
    let edits: Vec<(u32, f32)> = longest
        .into_iter()
        .filter(|(token, _)| !breakers.breaks_alone(*token))
        .map(|(token, length)| {
            let power = powi(base, ((length - allowed) as u32).min(most));
            (token, (f64::from(params.dry_multiplier) * power) as f32)
        })
        .collect();
    work.edit(&edits, |logit, penalty| bounded(logit - penalty));
}

/// For each token that would continue a repetition, the longest one of at least `allowed` tokens.
fn repetitions(tokens: &[u32], allowed: usize, breakers: &Breakers) -> BTreeMap<u32, usize> {
    let mut longest = BTreeMap::new();
    if tokens.len() <= allowed {
        return longest;
    }
    let limit = breakers.unbroken(tokens);
    if limit < allowed {
        return longest;
    }
    let lengths = shared_suffixes(tokens);
    for back in 1..tokens.len() {
        let length = lengths[back].min(limit);
        if length >= allowed {
            let next = tokens[tokens.len() - back];
            let known = longest.entry(next).or_insert(length);
            *known = length.max(*known);
        }
    }
    longest
}

/// For each `k`, how many tokens the end of `tokens` shares with the end of `tokens` without its last `k`:
/// the Z function of the reversed sequence, in linear time.
fn shared_suffixes(tokens: &[u32]) -> Vec<usize> {
    let n = tokens.len();
    let back = |i: usize| tokens[n - 1 - i];
    let mut z = vec![0; n];
    // [left, right) is the match found so far that reaches furthest.
    let (mut left, mut right) = (0, 0);
    for k in 1..n {
        let mut length = if k < right { z[k - left].min(right - k) } else { 0 };
        while k + length < n && back(length) == back(k + length) {
            length += 1;
        }
        z[k] = length;
        if k + length > right {
            (left, right) = (k, k + length);
        }
    }
    z
}
