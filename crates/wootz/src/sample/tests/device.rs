//! What a device is asked to do, done in plain code, picks the same tokens as the sampler.

use wootz_graph::{Picked, sampling};

use super::super::rng::Rng;
use super::super::{Chain, LogitBias, SampleError, Sampler, SamplingParams};
use super::{Pieces, off, random_logits, sampler};

/// Parameters that devices take.
fn taken() -> Vec<SamplingParams> {
    let default = SamplingParams { seed: Some(5), ..SamplingParams::default() };
    let biased = vec![
        LogitBias { token: 3, bias: f32::NEG_INFINITY },
        LogitBias { token: 1, bias: 2.5 },
        LogitBias { token: 2, bias: f32::MAX },
    ];
    let penalties = SamplingParams {
        repeat_penalty: 1.3,
        frequency_penalty: 0.25,
        presence_penalty: -0.5,
        repeat_last_n: 20,
        ..default.clone()
    };
    vec![
        SamplingParams::greedy(),
        SamplingParams { logit_bias: biased.clone(), ..SamplingParams::greedy() },
        SamplingParams { temperature: 0.0, ..penalties.clone() },
        default.clone(),
        SamplingParams { top_k: 1, ..default.clone() },
        SamplingParams { top_k: 7, top_p: 0.5, ..default.clone() },
        SamplingParams { top_k: 200, top_p: 1.0, min_p: 0.0, temperature: 3.0, ..default.clone() },
        SamplingParams { top_k: 100, top_p: 0.999, min_p: 1e-6, temperature: 40.0, ..default.clone() },
        SamplingParams { top_k: 1024, top_p: 0.0, ..default.clone() },
        SamplingParams { min_p: 1.0, ..default.clone() },
        SamplingParams { temperature: 1e-38, ..default.clone() },
        SamplingParams { logit_bias: biased, ignore_eos: true, ..penalties.clone() },
        SamplingParams { repeat_last_n: -1, top_k: 64, temperature: 2.0, ..penalties },
        SamplingParams { samplers: Chain::from_letters("kt").unwrap(), ..default.clone() },
        SamplingParams { samplers: Chain::from_letters("k").unwrap(), ..default },
    ]
}

#[test]
fn plain_code_picks_what_the_sampler_picks() {
    let mut rng = Rng::new(11, 0);
    let mut edits = Vec::new();
    for params in taken() {
        for n in [1, 5, 40, 700, 5000] {
            let vocab = Pieces::blank(n).ending_with(&[0]);
            if params.logit_bias.iter().any(|b| b.token as usize >= n) || (n == 1 && params.ignore_eos) {
                continue;
            }
            let mut host = Sampler::new(params.clone(), &vocab).unwrap();
            let mut device = host.clone();
            for spread in [0.01, 1.0, 5.0, 1e20, 3e37] {
                for _ in 0..8 {
                    let logits = random_logits(&mut rng, n, spread);
                    let expected = host.sample(&logits, None);
                    let sampling = device.on_device(0, &mut edits).expect("a chain that devices know");
                    let picked = sampling::pick(&logits, &sampling);
                    let Ok(expected) = expected else {
                        assert_eq!(picked, Picked::NoCandidate, "{params:?}");
                        continue;
                    };
                    assert_eq!(picked, Picked::Token(expected.token), "{n} logits, {params:?}");
                    let token = device.picked(picked).unwrap();
                    host.accept(token);
                    device.accept(token);
                }
            }
            assert_eq!(host.state(), device.state(), "{params:?}");
        }
    }
}

#[test]
fn tokens_ahead_take_later_random_numbers() {
    let logits: Vec<f32> = (0..500).map(|i| (i % 83) as f32 * 0.1).collect();
    let params = SamplingParams { top_p: 1.0, min_p: 0.0, seed: Some(3), ..SamplingParams::default() };
    let mut host = sampler(params, logits.len());
    let mut edits = Vec::new();
    let ahead: Vec<Picked> =
        (0..6).map(|ahead| sampling::pick(&logits, &host.on_device(ahead, &mut edits).unwrap())).collect();
    for picked in ahead {
        assert_eq!(picked, Picked::Token(host.sample(&logits, None).unwrap().token));
    }
}

#[test]
fn what_devices_do_not_know_is_left_to_the_host() {
    let mut edits = Vec::new();
    let known = SamplingParams { seed: Some(1), ..SamplingParams::default() };
    let chain = |letters: &str| Chain::from_letters(letters).unwrap();
    let unknown = [
        off(),
        SamplingParams { top_k: 1025, ..known.clone() },
        SamplingParams { mirostat: 2, ..known.clone() },
        SamplingParams { n_probs: Some(0), ..known.clone() },
        SamplingParams { top_n_sigma: 1.0, ..known.clone() },
        SamplingParams { typical_p: 0.9, ..known.clone() },
        SamplingParams { xtc_probability: 0.5, ..known.clone() },
        SamplingParams { dry_multiplier: 0.8, ..known.clone() },
        SamplingParams { dynatemp_range: 0.5, ..known.clone() },
        SamplingParams { min_keep: 2, ..known.clone() },
        SamplingParams { samplers: chain("tkpm"), ..known.clone() },
        SamplingParams { samplers: chain("kpa"), adaptive_target: 0.5, ..known.clone() },
        SamplingParams { samplers: chain("kept"), repeat_penalty: 1.5, ..known.clone() },
        SamplingParams { dry_multiplier: 0.8, ..SamplingParams::greedy() },
    ];
    for params in unknown {
        assert_eq!(sampler(params.clone(), 10).on_device(0, &mut edits), None, "{params:?}");
    }
    let penalties = SamplingParams { presence_penalty: 0.5, ..known };
    assert!(sampler(penalties.clone(), 10).on_device(0, &mut edits).is_some());
    assert_eq!(sampler(penalties, 10).on_device(1, &mut edits), None, "the token between is not known");
}

#[test]
fn rows_without_a_token_are_errors() {
    let mut sampler = sampler(SamplingParams::greedy(), 3);
    let bad = sampling::pick(&[0.0, f32::INFINITY, f32::NAN], &wootz_graph::Sampling::GREEDY);
    assert_eq!(sampler.picked(bad), Err(SampleError::BadLogit { token: 1, value: f32::INFINITY }));
    let none = sampling::pick(&[f32::NEG_INFINITY; 3], &wootz_graph::Sampling::GREEDY);
    assert_eq!(sampler.picked(none), Err(SampleError::NoCandidate { vocab: 3, finite: 0, allowed: 3 }));
}
