//! Tokens picked on a device, so that rows of logits need not leave it.
//!
//! The definition of picking is that of the engine's sampler. A device gives the same token, because every operation
//! is one that IEEE 754 rounds in one way:
//!
//! 1. Each of [`Sampling::edits`], for a logit that is finite: `x + bias`, kept between the least and the greatest
//!    finite number (a bias of negative infinity removes the token); then, if the token was seen,
//!    `(x <= 0 ? x * repeat : x / repeat) - (seen * frequency + presence)`, kept between the same bounds.
//! 2. The [`top_k`](Sampling::top_k) best candidates, sorted: by logit, highest first (0 and -0 are equal), then by
//!    token, lowest first. A logit of negative infinity is no candidate.
//! 3. Top-p, below 1: with weights `w = exp(x - best)` and their sum, both as below, the fewest candidates whose
//!    weights, added in order as f64, reach `f64(top_p) * sum`.
//! 4. Candidates with `x >= best + min_p_below`.
//! 5. Temperature: `x / temperature`, at least the least finite number; where `best / temperature` is not finite, the
//!    best candidate alone stays.
//! 6. Of weights as in 3 and `target = uniform * sum` in f64: the first candidate that takes `target - w` below 0, with
//!    `target` reduced by each candidate's weight before; the last of a weight above 0 if none does.
//!
//! The sum of weights: every 128 candidates in turn, from each 16 lanes of whole groups of 16 are added in f32; the
//! lanes, then what is left of the 128, are added in order in f64; the sums of 128 are added in f64. The exponential
//! is [`exp_neg`], in f32: no product is contracted with a sum. [`pick`] is all this in plain code.

use std::cmp::Ordering;

use crate::error::RunError;

/// A change of one logit before anything is picked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitEdit {
    /// The token.
    pub token: u32,
    /// Added; negative infinity removes the token.
    pub bias: f32,
    /// Times that the token was seen, for the penalties.
    pub seen: u32,
}

/// How the token of one row is picked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling<'a> {
    /// Changes of single logits, by rising token.
    pub edits: &'a [LogitEdit],
    /// Divides positive and multiplies other logits of tokens seen.
    pub repeat_penalty: f32,
    /// Taken from a token's logit for each time it was seen.
    pub frequency_penalty: f32,
    /// Taken from a token's logit if it was seen.
    pub presence_penalty: f32,
    /// Candidates kept, at least 1; with 1, the most likely token is picked.
    pub top_k: u32,
    /// Share of probability that is kept; 1 keeps all.
    pub top_p: f32,
    /// Natural logarithm of the least share of the best candidate's probability; negative infinity keeps all.
    pub min_p_below: f32,
    /// Divides logits; above 0.
    pub temperature: f32,
    /// A number of `[0, 1)` that decides: it depends on the request's seed and the token's place alone.
    pub uniform: f64,
}

impl Sampling<'_> {
    /// The most likely token.
    pub const GREEDY: Sampling<'static> = Sampling {
        edits: &[],
        repeat_penalty: 1.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
        top_k: 1,
        top_p: 1.0,
        min_p_below: f32::NEG_INFINITY,
        temperature: 1.0,
        uniform: 0.0,
    };
}

/// What a device picked from a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Picked {
    /// A token.
    Token(u32),
    /// Nothing: this logit, the first such, is not a number or positive infinity.
    BadLogit {
        /// Its token.
        token: u32,
        /// The logit.
        value: f32,
    },
    /// Nothing: no token has a finite logit.
    NoCandidate,
}

impl Picked {
    /// From what kernels write of a row: 0 for a token, 1 for a bad logit, else nothing; the token; the bits of the logit.
    pub fn from_words([what, token, value]: [u32; 3]) -> Picked {
        match what {
            0 => Picked::Token(token),
            1 => Picked::BadLogit { token, value: f32::from_bits(value) },
            _ => Picked::NoCandidate,
        }
    }
}

/// Checks that tokens can be picked from `rows` rows of `cols` logits.
///
/// # Errors
/// There are not as many entries as rows, or one changes a logit that a row does not have.
pub fn check(sampling: &[Sampling<'_>], rows: usize, cols: usize) -> Result<(), RunError> {
    if sampling.len() != rows {
        return Err(RunError::Input(format!("{} tokens to be picked from {rows} rows", sampling.len())));
    }
    let outside = |s: &Sampling<'_>| s.edits.iter().any(|e| e.token as usize >= cols);
    if sampling.iter().any(outside) {
        return Err(RunError::Input(format!("a logit beyond the {cols} of a row is changed")));
    }
    Ok(())
}

/// Natural exponential of `x <= 0`, relative error below 3e-7; 0 below -87.
///
/// Splits `x = n ln 2 + r` and evaluates the Taylor polynomial of `e^r` on `|r| <= ln 2 / 2`. IEEE additions and
/// multiplications only, so that it gives the same bits everywhere.
#[inline(always)]
pub fn exp_neg(x: f32) -> f32 {
    const LOWEST: f32 = -87.0;
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts; the first has few bits, so that its product with n is exact.
    const LN2_HIGH: f32 = 355.0 / 512.0;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let clamped = if x > LOWEST { x } else { LOWEST };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = clamped - n * LN2_HIGH - n * LN2_LOW;
    let tail = 1.0 / 6.0 + r * (1.0 / 24.0 + r * (1.0 / 120.0 + r * (1.0 / 720.0 + r * (1.0 / 5040.0))));
    let p = 1.0 + (r + r * r * (0.5 + r * tail));
    let scaled = f32::from_bits(p.to_bits().wrapping_add(shifted.to_bits() << 23));
    if x > LOWEST { scaled } else { 0.0 }
}

/// What a device picks from a row of logits: the oracle of every backend that picks.
pub fn pick(logits: &[f32], sampling: &Sampling<'_>) -> Picked {
    let is_bad = |x: f32| x.is_nan() || x == f32::INFINITY;
    if let Some(token) = logits.iter().position(|x| is_bad(*x)) {
        return Picked::BadLogit { token: token as u32, value: logits[token] };
    }
    let mut logits = logits.to_vec();
    for edit in sampling.edits {
        let Some(x) = logits.get_mut(edit.token as usize).filter(|x| x.is_finite()) else { continue };
        *x = edited(*x, edit, sampling);
    }
    let finite = logits.iter().enumerate().filter(|(_, x)| **x > f32::NEG_INFINITY);
    let mut list: Vec<(u32, f32)> = finite.map(|(token, x)| (token as u32, *x)).collect();
    list.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap_or(Ordering::Equal).then(a.0.cmp(&b.0)));
    list.truncate(sampling.top_k.max(1) as usize);
    let Some(&(_, best)) = list.first() else { return Picked::NoCandidate };
    if sampling.top_p < 1.0 {
        let (weights, sum) = weights(&list);
        let needed = f64::from(sampling.top_p) * sum;
        let mut held = 0.0;
        let reaches = weights.iter().position(|w| {
            held += f64::from(*w);
            held >= needed
        });
        list.truncate(reaches.map_or(list.len(), |at| at + 1));
    }
    list.retain(|(_, x)| *x >= best + sampling.min_p_below);
    if !(best / sampling.temperature).is_finite() {
        list.truncate(1);
    }
    list.iter_mut().for_each(|(_, x)| *x = (*x / sampling.temperature).max(f32::MIN));
    let (weights, sum) = weights(&list);
    let mut target = sampling.uniform * sum;
    let mut last = 0;
    for (at, weight) in weights.iter().enumerate().filter(|(_, w)| **w > 0.0) {
        last = at;
        target -= f64::from(*weight);
        if target < 0.0 {
            break;
        }
    }
    Picked::Token(list[last].0)
}

fn edited(x: f32, edit: &LogitEdit, sampling: &Sampling<'_>) -> f32 {
    if edit.bias == f32::NEG_INFINITY {
        return edit.bias;
    }
    let bounded = |x: f32| x.clamp(f32::MIN, f32::MAX);
    let x = bounded(x + edit.bias);
    if edit.seen == 0 {
        return x;
    }
    let repeated = if x <= 0.0 { x * sampling.repeat_penalty } else { x / sampling.repeat_penalty };
    bounded(repeated - (edit.seen as f32 * sampling.frequency_penalty + sampling.presence_penalty))
}

/// Weights of sorted candidates, and their sum.
fn weights(list: &[(u32, f32)]) -> (Vec<f32>, f64) {
    const SUMMED: usize = 128;
    const LANES: usize = 16;
    let best = list.first().map_or(0.0, |c| c.1);
    let weights: Vec<f32> = list.iter().map(|(_, x)| exp_neg(x - best)).collect();
    let sum = weights.chunks(SUMMED).map(|part| {
        let (groups, rest) = part.as_chunks::<LANES>();
        let mut lanes = [0.0f32; LANES];
        for group in groups {
            lanes.iter_mut().zip(group).for_each(|(lane, w)| *lane += w);
        }
        lanes.iter().chain(rest).map(|w| f64::from(*w)).sum::<f64>()
    });
    let sum = sum.sum();
    (weights, sum)
}
