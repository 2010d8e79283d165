//! Frequencies of picked tokens against their probabilities, by chi-square with fixed seeds.

use super::super::{Sampler, SamplingParams};
use super::{Pieces, logits_of, off, sampler};

const DRAWS: usize = 60_000;

/// Chi-square of picks against the sampler's own distribution, which other tests check; tokens with fewer
/// than 5 expected picks share a bin.
fn check(params: SamplingParams, logits: &[f32], accept: bool) {
    let mut picker = sampler(params.clone(), logits.len());
    let wanted = picker.distribution(logits, None).unwrap();
    let mut counts = vec![0u32; logits.len()];
    for _ in 0..DRAWS {
        let token = picker.sample(logits, None).unwrap().token;
        counts[token as usize] += 1;
        if accept {
            picker.accept(token);
        }
    }
    let (mut chi2, mut bins) = (0.0, 0.0);
    let mut rare = (0.0, 0.0);
    let mut allowed = 0;
    for token in &wanted {
        let expected = f64::from(token.logprob).exp() * DRAWS as f64;
        let found = f64::from(counts[token.token as usize]);
        allowed += counts[token.token as usize];
        if expected < 5.0 {
            rare = (rare.0 + expected, rare.1 + found);
        } else {
            chi2 += (found - expected).powi(2) / expected;
            bins += 1.0;
        }
    }
    assert_eq!(allowed as usize, DRAWS, "a token outside the distribution was picked");
    if rare.0 >= 5.0 {
        chi2 += (rare.1 - rare.0).powi(2) / rare.0;
        bins += 1.0;
    }
    // Mean n, deviation sqrt(2 n): five deviations for any n.
    let n: f64 = (bins - 1.0f64).max(1.0);
    assert!(chi2 < n + 5.0 * (2.0 * n).sqrt(), "chi-square {chi2} of {n} degrees with {params:?}");
}

#[test]
fn picks_follow_the_probabilities() {
    let few = logits_of(&[0.05, 0.5, 0.0001, 0.1499, 0.3]);
    let many: Vec<f32> = (0..700).map(|i| -((i % 97) as f32) * 0.05).collect();
    for logits in [few, many] {
        check(off(), &logits, false);
        check(SamplingParams { temperature: 2.5, ..off() }, &logits, false);
        check(SamplingParams { top_k: 3, ..off() }, &logits, false);
        check(SamplingParams { top_p: 0.8, ..off() }, &logits, false);
        check(SamplingParams { seed: Some(7), ..SamplingParams::default() }, &logits, false);
    }
}

#[test]
fn picks_from_unlisted_rows_reach_every_block() {
    // No sampler makes a list here; the row spans several blocks, one of them banned.
    let mut logits: Vec<f32> = (0..1000).map(|i| ((i * 37) % 11) as f32 * 0.3).collect();
    logits[128..256].fill(f32::NEG_INFINITY);
    check(off(), &logits, false);
    check(SamplingParams { temperature: 0.5, ..off() }, &logits, false);
}

#[test]
fn xtc_acts_as_often_as_asked() {
    let params = SamplingParams { xtc_probability: 0.25, xtc_threshold: 0.1, ..off() };
    let mut sampler = sampler(params, 2);
    // Acting removes token 0, so it is picked only by three quarters of the steps.
    let logits = [50.0, 50.0 - 0.5];
    let first = (0..DRAWS).filter(|_| sampler.sample(&logits, None).unwrap().token == 0).count();
    let p = 0.75 / (1.0 + (-0.5f64).exp());
    let deviation = (DRAWS as f64 * p * (1.0 - p)).sqrt();
    assert!((first as f64 - p * DRAWS as f64).abs() < 4.0 * deviation, "{first} of {DRAWS}");
}

#[test]
fn seeds_differ_and_a_missing_seed_is_random() {
    let logits = vec![0.0; 1000];
    let picks = |seed: Option<u64>| {
        let params = SamplingParams { seed, ..off() };
        let mut sampler = Sampler::new(params, &Pieces::blank(1000)).unwrap();
        let tokens: Vec<u32> = (0..20).map(|_| sampler.sample(&logits, None).unwrap().token).collect();
        (sampler.seed(), tokens)
    };
    assert_eq!(picks(Some(1)), picks(Some(1)));
    assert_ne!(picks(Some(1)).1, picks(Some(2)).1);
    let (seed, tokens) = picks(None);
    assert_ne!(picks(None).1, tokens);
    assert_eq!(picks(Some(seed)).1, tokens, "the seed in use can be asked for and used again");
}

#[test]
fn a_seed_gives_these_tokens_on_every_platform() {
    let logits: Vec<f32> =
        (0..5000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 20) as f32 / 500.0).collect();
    let picks = |params: SamplingParams| -> Vec<u32> {
        let mut sampler = sampler(SamplingParams { seed: Some(42), ..params }, logits.len());
        (0..6)
            .map(|_| {
                let token = sampler.sample(&logits, None).unwrap().token;
                sampler.accept(token);
                token
            })
            .collect()
    };
    assert_eq!(picks(SamplingParams::default()), [4469, 4935, 3249, 898, 288, 4702]);
    assert_eq!(picks(off()), [4074, 1595, 4922, 3503, 3967, 2943]);
    assert_eq!(picks(SamplingParams { mirostat: 2, ..off() }), [4079, 1584, 4935, 3571, 3859, 2961]);
}
