//! How well a model predicts a text.

use crate::context::{Context, RowsWanted, StepPart};
use crate::error::Error;

/// The log-likelihood of a text's tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Perplexity {
    /// Tokens predicted.
    pub count: usize,
    sum: f64,
    squares: f64,
}

impl Perplexity {
    /// Takes in the probability of one more token, as its negative natural logarithm.
    pub fn add(&mut self, nll: f64) {
        self.count += 1;
        self.sum += nll;
        self.squares += nll * nll;
    }

    /// `exp` of the mean negative log-likelihood.
    pub fn value(&self) -> f64 {
        (self.sum / self.count as f64).exp()
    }

    /// Standard error of [`value`](Self::value), where there are tokens enough to tell.
    pub fn error(&self) -> Option<f64> {
        let n = self.count as f64;
        let mean = self.sum / n;
        let variance = self.squares / n - mean * mean;
        (self.count > 1 && variance > 0.0).then(|| (variance / (n - 1.0)).sqrt() * self.value())
    }
}

/// Runs chunks of `size` tokens through the model, each on its own, and hands the logits of each chunk's second half
/// to `row` with the token that follows: `row(chunk, token, logits)`. The first error of `row` ends the run.
///
/// The first half is context only. Where the vocabulary begins texts with a token of its own, each chunk's first token
/// is replaced by it. This is how llama.cpp cuts a text, so that figures can be compared.
///
/// # Errors
/// The text is shorter than one chunk, a chunk does not fit the context, the model generates no text, a step fails, or
/// `row` does.
pub fn each_prediction<E: From<Error>>(
    context: &mut Context,
    tokens: &[u32],
    size: usize,
    mut row: impl FnMut(usize, u32, &[f32]) -> Result<(), E>,
) -> Result<(), E> {
    check_length(tokens, size)?;
    context.model().check_generates()?;
    let tokenizer = context.model().tokenizer();
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let batch = context.limits().batch;
    for (index, chunk) in tokens.chunks_exact(size).enumerate() {
        let mut chunk = chunk.to_vec();
        if let Some(bos) = bos {
            chunk[0] = bos;
        }
        let (sequence, _) = context.open_prefix(&[])?;
        // Rows before the middle are not needed: steps are cut there.
        let cuts = [(0, size / 2, RowsWanted::None), (size / 2, size, RowsWanted::All)];
        let result = cuts.into_iter().try_for_each(|(start, end, rows)| {
            for first in (start..end).step_by(batch) {
                let last = end.min(first + batch);
                let output = context.step(&[StepPart { sequence, tokens: &chunk[first..last], rows }])?;
                for at in (first..last).filter(|at| rows == RowsWanted::All && at + 1 < size) {
                    row(index, chunk[at + 1], output.row(at - first))?;
                }
            }
            Ok::<(), E>(())
        });
        context.close(sequence);
        result?;
    }
    Ok(())
}

/// Whether a text has tokens enough for one chunk of `size`.
///
/// # Errors
/// It has not.
pub fn check_length(tokens: &[u32], size: usize) -> Result<(), Error> {
    if tokens.len() < size || size < 4 {
        return Err(Error::TextTooShort { tokens: tokens.len(), chunk: size.max(4) });
    }
    Ok(())
}

/// Negative natural logarithm of a token's probability.
pub fn nll(logits: &[f32], token: u32) -> f64 {
    log_sum_exp(logits) - f64::from(logits[token as usize])
}

/// Natural logarithms of the probabilities.
pub fn log_softmax(logits: &[f32]) -> Vec<f32> {
    let norm = log_sum_exp(logits);
    logits.iter().map(|x| (f64::from(*x) - norm) as f32).collect()
}

/// `ln(sum(exp(x)))`.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from(x - max).exp()).sum();
    f64::from(max) + sum.ln()
}

/// Differences between a model's predictions and those of another, over a text.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Divergence {
    /// Tokens predicted.
    pub count: usize,
    /// Sum of the Kullback-Leibler divergences, in nats.
    pub sum: f64,
    /// The largest divergence.
    pub max: f64,
    /// Tokens for which both find the same token most likely.
    pub same_top: usize,
}

impl Divergence {
    /// Takes in one more token: log-probabilities of the reference, logits of the model.
    pub fn add(&mut self, reference: &[f32], logits: &[f32]) {
        let norm = log_sum_exp(logits);
        let pairs = reference.iter().zip(logits);
        let kl: f64 = pairs
            .filter(|(p, _)| p.is_finite())
            .map(|(p, q)| f64::from(*p).exp() * (f64::from(*p) - (f64::from(*q) - norm)))
            .sum();
        // A divergence is never negative; rounding can make it so.
        let kl = kl.max(0.0);
        self.count += 1;
        self.sum += kl;
        self.max = self.max.max(kl);
        self.same_top += usize::from(argmax(reference) == argmax(logits));
    }

    /// Mean divergence, in nats.
    pub fn mean(&self) -> f64 {
        self.sum / self.count as f64
    }
}

fn argmax(x: &[f32]) -> usize {
    x.iter().enumerate().fold(0, |best, (i, v)| if *v > x[best] { i } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uniform_model_has_the_vocabulary_as_perplexity() {
        let mut p = Perplexity::default();
        for token in 0..10 {
            p.add(nll(&[0.25; 50], token));
        }
        assert!((p.value() - 50.0).abs() < 1e-9);
        assert!(p.error().unwrap_or(0.0) < 1e-5);
    }

    #[test]
    fn divergence_is_zero_for_itself_and_known_for_a_coin() {
        let logits = [1.0, -2.0, 0.5];
        let norm = log_sum_exp(&logits) as f32;
        let own: Vec<f32> = logits.iter().map(|x| x - norm).collect();
        let mut d = Divergence::default();
        d.add(&own, &logits);
        assert!(d.mean().abs() < 1e-6 && d.same_top == 1);
        let mut d = Divergence::default();
        // Fair coin against one of 3 to 1: ln(2) - ln(3)/2.
        d.add(&[0.5f32.ln(), 0.5f32.ln()], &[3.0f32.ln(), 0.0]);
        assert!((d.mean() - (4.0f64 / 3.0).ln() / 2.0).abs() < 1e-6);
    }
}
