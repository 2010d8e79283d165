//! Reported probabilities, and the serialized forms.

use super::super::{BitMask, LogitBias, SamplingParams};
use super::{logits_of, off, random_logits, sampler};
use crate::sample::Rng;

#[test]
fn model_logprobs_are_the_log_softmax_of_the_raw_logits() {
    let mut rng = Rng::new(12, 0);
    for size in [2, 50, 1000, 9000] {
        let logits = random_logits(&mut rng, size, 3.0);
        let total: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
        let of = |token: u32| (f64::from(logits[token as usize]) - total.ln()) as f32;
        let mut order: Vec<u32> = (0..size as u32).collect();
        order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));

        // Nothing that changes the picks changes the report.
        let params = SamplingParams {
            n_probs: Some(20),
            temperature: 0.3,
            repeat_penalty: 3.0,
            logit_bias: vec![LogitBias { token: order[0], bias: f32::NEG_INFINITY }],
            ..SamplingParams::default()
        };
        let mut sampler = sampler(params, size);
        sampler.accept(order[1]);
        let mask = BitMask::from_tokens(order.iter().copied().skip(1).step_by(2), size);
        let sampled = sampler.sample(&logits, Some(&mask)).unwrap();
        let found = sampled.logprobs.unwrap();
        assert!(mask.allows(sampled.token) && sampled.token != order[0]);
        assert_eq!(found.chosen.token, sampled.token);
        assert!((found.chosen.logprob - of(sampled.token)).abs() < 1e-5);
        let finite = logits.iter().filter(|l| l.is_finite()).count();
        assert_eq!(found.top.len(), finite.min(20));
        for (top, &token) in found.top.iter().zip(&order) {
            assert_eq!(top.token, token);
            assert!((top.logprob - of(token)).abs() < 1e-5);
        }
    }
}

#[test]
fn reports_are_made_only_when_asked_for() {
    let logits = logits_of(&[0.1, 0.2, 0.7]);
    let report = |n_probs| {
        let params = SamplingParams { n_probs, ..SamplingParams::greedy() };
        sampler(params, 3).sample(&logits, None).unwrap().logprobs
    };
    assert_eq!(report(None), None);
    let only_chosen = report(Some(0)).unwrap();
    assert_eq!((only_chosen.chosen.token, only_chosen.top.len()), (2, 0));
    assert!((only_chosen.chosen.prob() - 0.7).abs() < 1e-6, "greedy still reports the model's probability");
    assert_eq!(report(Some(99)).unwrap().top.len(), 3);
}

#[test]
fn post_sampling_probs_are_those_of_the_candidates() {
    let logits = logits_of(&[0.1, 0.2, 0.3, 0.4]);
    let params =
        SamplingParams { top_k: 2, n_probs: Some(9), post_sampling_probs: true, seed: Some(3), ..off() };
    let found = sampler(params.clone(), 4).sample(&logits, None).unwrap();
    let report = found.logprobs.unwrap();
    let top: Vec<u32> = report.top.iter().map(|t| t.token).collect();
    assert_eq!(top, [3, 2]);
    assert!((report.top[0].prob() - 4.0 / 7.0).abs() < 1e-6);
    let chosen = report.top.iter().find(|t| t.token == found.token).unwrap();
    assert!((chosen.logprob - report.chosen.logprob).abs() < 1e-6);

    let greedy = SamplingParams { temperature: 0.0, ..params };
    let report = sampler(greedy, 4).sample(&logits, None).unwrap().logprobs.unwrap();
    assert_eq!((report.chosen.token, report.chosen.prob(), report.top.len()), (3, 1.0, 1));
}

#[cfg(feature = "serde")]
mod serialized {
    use super::super::super::{SamplerState, SamplingParams};
    use super::{LogitBias, off, sampler};

    #[test]
    fn parameters_survive_json_and_take_defaults() {
        let params = SamplingParams {
            seed: Some(u64::MAX),
            samplers: "top_p;temperature".parse().unwrap(),
            logit_bias: vec![
                LogitBias { token: 7, bias: f32::NEG_INFINITY },
                LogitBias { token: 9, bias: -1.5 },
            ],
            n_probs: Some(4),
            ..SamplingParams::default()
        };
        let json = serde_json::to_string(&params).unwrap();
        assert_eq!(serde_json::from_str::<SamplingParams>(&json).unwrap(), params);
        assert!(json.contains(r#""samplers":["top_p","temperature"]"#), "{json}");
        assert!(json.contains(r#"{"token":7,"bias":null}"#), "{json}");
        assert_eq!(serde_json::from_str::<SamplingParams>("{}").unwrap(), SamplingParams::default());
        let letters: SamplingParams = serde_json::from_str(r#"{"samplers":"kpt"}"#).unwrap();
        assert_eq!(letters.samplers.to_string(), "top_k;top_p;temperature");
        for wrong in [r#"{"temprature":1}"#, r#"{"samplers":["nope"]}"#, r#"{"top_k":"a"}"#] {
            assert!(serde_json::from_str::<SamplingParams>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_state_survives_json() {
        let params = SamplingParams { repeat_penalty: 1.2, mirostat: 2, ..off() };
        let logits = [0.5, 0.1, 0.9, 0.4];
        let mut first = sampler(params.clone(), 4);
        for _ in 0..30 {
            let token = first.sample(&logits, None).unwrap().token;
            first.accept(token);
        }
        let json = serde_json::to_string(&first.state()).unwrap();
        let state: SamplerState = serde_json::from_str(&json).unwrap();
        assert_eq!(state, first.state());
        let mut second = sampler(params, 4);
        second.restore(state);
        for _ in 0..30 {
            let token = first.sample(&logits, None).unwrap().token;
            assert_eq!(second.sample(&logits, None).unwrap().token, token);
            first.accept(token);
            second.accept(token);
        }
    }
}
