//! The penalty on repetitions: examples and breakers.

use std::sync::Arc;

use super::super::{Breakers, Sampler, SamplingParams};
use super::{Pieces, off};

/// How far each of `n` equal logits is lowered after these tokens.
fn lowered(params: SamplingParams, breakers: Breakers, n: usize, text: &[u32]) -> Vec<f32> {
    let vocab = Pieces::blank(n + 1);
    let mut sampler = Sampler::with_breakers(params, &vocab, Arc::new(breakers)).unwrap();
    text.iter().for_each(|&token| sampler.accept(token));
    let logits = vec![0.0; n + 1];
    let mut found = sampler.distribution(&logits, None).unwrap();
    found.sort_by_key(|t| t.token);
    // The last token stands in no text.
    let reference = found[n].logprob;
    found[..n].iter().map(|t| ((reference - t.logprob) * 1000.0).round() / 1000.0).collect()
}

fn params() -> SamplingParams {
    SamplingParams { dry_multiplier: 1.0, dry_base: 1.5, dry_allowed_length: 2, ..off() }
}

#[test]
fn only_a_long_repetition_is_penalized_and_the_more_the_longer() {
    let none = Breakers::default;
    // "0 1 2 0 1": 2 would continue a repetition of two tokens.
    assert_eq!(lowered(params(), none(), 3, &[0, 1, 2, 0, 1]), [0.0, 0.0, 1.0]);
    // One token is not enough.
    assert_eq!(lowered(params(), none(), 3, &[0, 1, 2, 0]), [0.0, 0.0, 0.0]);
    // Three tokens: 1.5 to the power 1.
    assert_eq!(lowered(params(), none(), 4, &[0, 1, 2, 3, 0, 1, 2]), [0.0, 0.0, 0.0, 1.5]);
    let allowed = |n| SamplingParams { dry_allowed_length: n, ..params() };
    assert_eq!(lowered(allowed(3), none(), 4, &[0, 1, 2, 3, 0, 1, 2]), [0.0, 0.0, 0.0, 1.0]);
    assert_eq!(lowered(allowed(4), none(), 4, &[0, 1, 2, 3, 0, 1, 2]), [0.0; 4]);
    // The longest of two repetitions counts, for each token that continues one.
    let text = [0, 1, 2, 5, 9, 1, 2, 6, 0, 1, 2];
    let found = lowered(params(), none(), 10, &text);
    assert_eq!((found[5], found[6]), (1.5, 1.0));
}

#[test]
fn the_window_limits_what_is_seen() {
    let text = [0, 1, 2, 3, 3, 3, 0, 1];
    let window = |n| SamplingParams { dry_penalty_last_n: n, ..params() };
    assert_eq!(lowered(window(-1), Breakers::default(), 3, &text)[2], 1.0);
    assert_eq!(lowered(window(8), Breakers::default(), 3, &text)[2], 1.0);
    assert_eq!(lowered(window(7), Breakers::default(), 3, &text)[2], 0.0);
    assert_eq!(lowered(window(0), Breakers::default(), 3, &text)[2], 0.0);
}

#[test]
fn nothing_is_repeated_across_a_breaker() {
    let text = [0, 1, 2, 3, 0, 1, 2];
    let with = |sequences: &[Vec<u32>]| lowered(params(), Breakers::from_tokens(sequences), 4, &text);
    // Only "1 2" follows the last 0: a repetition of two.
    assert_eq!(with(&[vec![0]]), [0.0, 0.0, 0.0, 1.0]);
    assert_eq!(with(&[vec![1]]), [0.0; 4]);
    // A breaker of two tokens leaves one.
    assert_eq!(with(&[vec![0, 1]]), [0.0; 4]);
    // One that does not stand there leaves all.
    assert_eq!(with(&[vec![0, 2]]), [0.0, 0.0, 0.0, 1.5]);
    // A breaker itself is never penalized.
    assert_eq!(with(&[vec![3]]), [0.0; 4]);
    // A longer breaker that starts the same way wins.
    assert_eq!(with(&[vec![0], vec![0, 1]]), [0.0; 4]);
}

#[test]
fn breakers_are_found_in_pieces() {
    let vocab = Pieces::new(&["a", "x\ny", "\n", "::", "qe", "e", "n", "d", "nd", "", "end"]);
    let texts = |texts: &[&str]| texts.iter().map(|t| t.to_string()).collect::<Vec<_>>();
    let single = Breakers::from_tokens(&[vec![1], vec![2], vec![3]]);
    assert_eq!(Breakers::new(&texts(&["\n", ":"]), &vocab), single);
    // "qe" and "e" start "end"; "nd" must follow.
    let split = Breakers::from_tokens(&[vec![4, 8], vec![5, 8], vec![10]]);
    assert_eq!(Breakers::new(&texts(&["end"]), &vocab), split);
    assert_eq!(Breakers::new(&texts(&[]), &vocab), Breakers::default());
}

#[test]
fn the_samplers_own_breakers_are_used() {
    let vocab = Pieces::new(&["a", "b", "c", "d", "\n", "-"]);
    let found = |text: &[u32]| {
        let mut sampler = Sampler::new(params(), &vocab).unwrap();
        text.iter().for_each(|&token| sampler.accept(token));
        let found = sampler.distribution(&[0.0; 6], None).unwrap();
        found[0].logprob - found[5].logprob
    };
    assert!(found(&[0, 1, 2, 3, 0, 1, 2]) > 1.4);
    assert_eq!(found(&[0, 1, 2, 3, 0, 1, 4, 2]), 0.0);
}

#[test]
fn a_huge_penalty_stays_finite_and_bans_nothing() {
    let params = SamplingParams { dry_base: 50.0, dry_penalty_last_n: -1, dry_multiplier: f32::MAX, ..off() };
    let vocab = Pieces::blank(1);
    let mut sampler = Sampler::with_breakers(params, &vocab, Arc::default()).unwrap();
    (0..300).for_each(|_| sampler.accept(0));
    assert_eq!(sampler.sample(&[1.0], None).unwrap().token, 0);
}
