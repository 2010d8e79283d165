//! Bad input and rare input.

use super::super::{BitMask, LogitBias, SampleError, Sampler, SamplingParams};
use super::{Pieces, kept, off, random_logits, sampler};
use crate::sample::Rng;

fn all_kinds() -> Vec<SamplingParams> {
    vec![
        SamplingParams::default(),
        SamplingParams::greedy(),
        off(),
        SamplingParams { mirostat: 1, ..off() },
        SamplingParams { mirostat: 2, ..off() },
        SamplingParams { samplers: "a".parse().unwrap(), adaptive_target: 0.3, ..off() },
        SamplingParams { top_n_sigma: 1.0, typical_p: 0.5, xtc_probability: 1.0, ..off() },
        SamplingParams { n_probs: Some(3), dynatemp_range: 0.5, ..off() },
    ]
}

#[test]
fn nothing_to_pick_from_is_an_error() {
    for params in all_kinds() {
        let mut empty = sampler(params.clone(), 0);
        let none = SampleError::NoCandidate { vocab: 0, finite: 0, allowed: 0 };
        assert_eq!(empty.sample(&[], None), Err(none));
        let mut three = sampler(params, 3);
        let none = SampleError::NoCandidate { vocab: 3, finite: 0, allowed: 3 };
        assert_eq!(three.sample(&[f32::NEG_INFINITY; 3], None), Err(none));
        let none = SampleError::NoCandidate { vocab: 3, finite: 3, allowed: 0 };
        assert_eq!(three.sample(&[1.0; 3], Some(&BitMask::none(3))), Err(none));
    }
}

#[test]
fn logits_that_are_no_numbers_are_named() {
    for params in all_kinds() {
        for at in [0, 17, 130, 299] {
            let mut logits = vec![0.5; 300];
            logits[at] = f32::NAN;
            let error = sampler(params.clone(), 300).sample(&logits, None).unwrap_err();
            assert!(matches!(error, SampleError::BadLogit { token, value } if token == at && value.is_nan()));
            logits[at] = f32::INFINITY;
            let error = sampler(params.clone(), 300).sample(&logits, None).unwrap_err();
            assert_eq!(error, SampleError::BadLogit { token: at, value: f32::INFINITY });
        }
    }
}

#[test]
fn wrong_lengths_are_refused() {
    let mut sampler = sampler(off(), 10);
    let error = sampler.sample(&[0.0; 9], None).unwrap_err();
    assert_eq!(error.to_string(), "9 logits for a vocabulary of 10 tokens");
    let error = sampler.sample(&[0.0; 10], Some(&BitMask::none(11))).unwrap_err();
    assert_eq!(error, SampleError::MaskLength { found: 11, expected: 10 });
}

#[test]
fn a_refused_row_leaves_the_sampler_as_it_was() {
    let mut rng = Rng::new(1, 1);
    let logits = random_logits(&mut rng, 200, 1.0);
    for params in all_kinds() {
        let mut sampler = sampler(SamplingParams { seed: Some(4), ..params }, 200);
        let before = sampler.state();
        sampler.sample(&[f32::NAN; 200], None).unwrap_err();
        sampler.sample(&logits, Some(&BitMask::none(200))).unwrap_err();
        assert_eq!(sampler.state(), before);
    }
}

#[test]
fn one_finite_logit_is_picked_by_all() {
    for params in all_kinds() {
        let mut logits = vec![f32::NEG_INFINITY; 300];
        logits[200] = -1e30;
        let mut sampler = sampler(params, 300);
        for _ in 0..20 {
            let token = sampler.sample(&logits, None).unwrap().token;
            assert_eq!(token, 200);
            sampler.accept(token);
        }
    }
}

#[test]
fn extreme_finite_logits_and_temperatures_are_fine() {
    for params in all_kinds() {
        for logits in [[f32::MAX, f32::MIN, 0.0], [f32::MIN; 3], [f32::MAX; 3], [1e-40, 0.0, -1e-40]] {
            for temperature in [1e-38, 1e-3, 1.0, 1e30] {
                let mut sampler = sampler(SamplingParams { temperature, ..params.clone() }, 3);
                let sampled = sampler.sample(&logits, None).unwrap();
                let total: f64 = sampler
                    .distribution(&logits, None)
                    .unwrap()
                    .iter()
                    .map(|t| f64::from(t.logprob).exp())
                    .sum();
                assert!((total - 1.0).abs() < 1e-5, "{total} with {logits:?}, {temperature}");
                assert!(sampled.token < 3);
            }
        }
    }
    assert_eq!(kept(SamplingParams { temperature: 1e-38, ..off() }, &[20.0, 30.0, 10.0]), [1]);
}

#[test]
fn greedy_takes_the_lowest_of_equal_tokens() {
    let mut logits = vec![-3.0; 5000];
    logits[4000] = 7.0;
    logits[1234] = 7.0;
    let mut greedy = sampler(SamplingParams::greedy(), 5000);
    assert_eq!(greedy.sample(&logits, None).unwrap().token, 1234);
    assert_eq!(kept(SamplingParams { temperature: 0.0, ..off() }, &[-0.0, 0.0]), [0]);
}

#[test]
fn masks_bans_and_biases_decide() {
    let logits = [5.0, 4.0, 3.0, 2.0];
    let pick = |params: SamplingParams, allowed: &[u32]| {
        let vocab = Pieces::blank(4).ending_with(&[0, 1]);
        let mut sampler = Sampler::new(params, &vocab).unwrap();
        let mask = BitMask::from_tokens(allowed.iter().copied(), 4);
        sampler.sample(&logits, Some(&mask)).map(|sampled| sampled.token)
    };
    let bias = |list: &[(u32, f32)]| {
        let logit_bias = list.iter().map(|&(token, bias)| LogitBias { token, bias }).collect();
        SamplingParams { logit_bias, ..SamplingParams::greedy() }
    };
    assert_eq!(pick(SamplingParams::greedy(), &[0, 1, 2, 3]), Ok(0));
    assert_eq!(pick(SamplingParams::greedy(), &[2, 3]), Ok(2));
    assert_eq!(pick(bias(&[(3, 2.0)]), &[2, 3]), Ok(3));
    assert_eq!(pick(bias(&[(3, 1.0), (3, 1.0)]), &[2, 3]), Ok(3), "biases of one token add up");
    assert_eq!(pick(bias(&[(0, f32::NEG_INFINITY), (0, 100.0)]), &[0, 1]), Ok(1), "a ban is final");
    assert_eq!(pick(bias(&[(1, f32::MAX), (1, f32::MAX)]), &[0, 1]), Ok(1));
    assert_eq!(pick(bias(&[(0, f32::MAX)]), &[1, 2]), Ok(1), "no bias overrules the mask");
    let no_end = SamplingParams { ignore_eos: true, ..SamplingParams::greedy() };
    assert_eq!(pick(no_end.clone(), &[0, 1, 2, 3]), Ok(2));
    let none = SampleError::NoCandidate { vocab: 4, finite: 4, allowed: 2 };
    assert_eq!(pick(no_end, &[0, 1]), Err(none));
    // A mask that ends early allows nothing after its end.
    let mut greedy = sampler(SamplingParams::greedy(), 4);
    let short = BitMask::from_tokens([1], 2);
    assert_eq!(greedy.sample(&logits, Some(&short)).unwrap().token, 1);
}

#[test]
fn a_masked_row_is_the_row_with_those_tokens_gone() {
    let mut rng = Rng::new(6, 0);
    for params in all_kinds() {
        let logits = random_logits(&mut rng, 777, 2.0);
        let allowed: Vec<u32> = (0..700).filter(|_| !rng.next_u64().is_multiple_of(3)).collect();
        let mask = BitMask::from_tokens(allowed, 777);
        let without: Vec<f32> = (0u32..)
            .zip(&logits)
            .map(|(token, &logit)| if mask.allows(token) { logit } else { f32::NEG_INFINITY })
            .collect();
        let params = SamplingParams { seed: Some(3), n_probs: None, ..params };
        let (mut masked, mut plain) = (sampler(params.clone(), 777), sampler(params, 777));
        for _ in 0..10 {
            let token = masked.sample(&logits, Some(&mask)).unwrap().token;
            assert_eq!(token, plain.sample(&without, None).unwrap().token);
            masked.accept(token);
            plain.accept(token);
        }
    }
}

#[test]
fn parameters_outside_their_range_are_named() {
    type Change = fn(&mut SamplingParams);
    let cases: [(&str, Change); 22] = [
        ("temperature", |p| p.temperature = f32::NAN),
        ("dynatemp_range", |p| p.dynatemp_range = -0.1),
        ("dynatemp_exponent", |p| p.dynatemp_exponent = f32::INFINITY),
        ("top_p", |p| p.top_p = 1.1),
        ("min_p", |p| p.min_p = -0.1),
        ("typical_p", |p| p.typical_p = f32::NAN),
        ("top_n_sigma", |p| p.top_n_sigma = f32::INFINITY),
        ("xtc_probability", |p| p.xtc_probability = 2.0),
        ("xtc_threshold", |p| p.xtc_threshold = -1.0),
        ("repeat_last_n", |p| p.repeat_last_n = -2),
        ("repeat_penalty", |p| p.repeat_penalty = 0.0),
        ("frequency_penalty", |p| p.frequency_penalty = f32::NAN),
        ("presence_penalty", |p| p.presence_penalty = f32::INFINITY),
        ("dry_multiplier", |p| p.dry_multiplier = -1.0),
        ("dry_base", |p| p.dry_base = f32::NAN),
        ("dry_penalty_last_n", |p| p.dry_penalty_last_n = -7),
        ("dry_sequence_breakers", |p| p.dry_sequence_breakers.push(String::new())),
        ("adaptive_target", |p| p.adaptive_target = 1.5),
        ("adaptive_decay", |p| p.adaptive_decay = 1.0),
        ("mirostat", |p| p.mirostat = 3),
        ("mirostat_tau", |p| p.mirostat_tau = -1.0),
        ("logit_bias", |p| p.logit_bias.push(LogitBias { token: 0, bias: f32::INFINITY })),
    ];
    for (field, change) in cases {
        let mut params = SamplingParams::default();
        change(&mut params);
        let error = Sampler::new(params, &Pieces::blank(5)).unwrap_err();
        assert_eq!(error.field, field);
    }
    let far = SamplingParams { logit_bias: vec![LogitBias { token: 5, bias: 1.0 }], ..off() };
    let error = Sampler::new(far, &Pieces::blank(5)).unwrap_err();
    assert_eq!(error.to_string(), "logit_bias is token 5: expected tokens below 5");
}
