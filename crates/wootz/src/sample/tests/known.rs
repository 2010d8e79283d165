//! Examples worked out by hand, and the text forms of chains.

use super::super::{Chain, SamplerKind, SamplingParams};
use super::{kept, logits_of, off, sampler};

const TENTHS: [f32; 4] = [0.1, 0.2, 0.3, 0.4];

#[test]
fn defaults_are_llama_cpps() {
    let params = SamplingParams::default();
    assert_eq!(params.validate(), Ok(()));
    assert_eq!((params.temperature, params.top_k, params.top_p, params.min_p), (0.8, 40, 0.95, 0.05));
    assert_eq!((params.repeat_last_n, params.repeat_penalty, params.dry_penalty_last_n), (64, 1.0, 64));
    let names = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature";
    assert_eq!(params.samplers.to_string(), names);
    assert_eq!(Chain::from_letters("edskypmxt"), Ok(params.samplers));
}

#[test]
fn chains_are_read_from_names_and_letters() {
    use SamplerKind::*;
    let read = |text: &str| text.parse::<Chain>().map(|chain| chain.0);
    assert_eq!(read("top-k; nucleus ;temp"), Ok(vec![TopK, TopP, Temperature]));
    assert_eq!(read("xtc"), Ok(vec![Xtc]));
    assert_eq!(read("kt"), Ok(vec![TopK, Temperature]));
    assert_eq!(read("a"), Ok(vec![AdaptiveP]));
    assert_eq!(read(""), Ok(vec![]));
    let error = read("top_k;tail_free").unwrap_err().to_string();
    assert!(error.starts_with("samplers is \"tail_free\": expected penalties, dry"), "{error}");
    assert!(read("kz").is_err());
    for kind in SamplerKind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
        assert_eq!(Chain::from_letters(&kind.letter().to_string()), Ok(Chain(vec![kind])));
    }
}

#[test]
fn top_k_keeps_the_best_and_ties_go_to_the_lowest_token() {
    let logits = logits_of(&TENTHS);
    assert_eq!(kept(SamplingParams { top_k: 1, ..off() }, &logits), [3]);
    assert_eq!(kept(SamplingParams { top_k: 3, ..off() }, &logits), [3, 2, 1]);
    assert_eq!(kept(SamplingParams { top_k: 3, ..off() }, &[1.0; 500]), [0, 1, 2]);
    assert_eq!(kept(SamplingParams { top_k: 2, ..off() }, &[-0.0, 0.0, -0.0]), [0, 1]);
}

#[test]
fn top_p_includes_the_token_that_reaches_it() {
    let logits = logits_of(&TENTHS);
    let top_p = |p| kept(SamplingParams { top_p: p, ..off() }, &logits);
    assert_eq!(top_p(0.0), [3]);
    assert_eq!(top_p(0.39), [3]);
    assert_eq!(top_p(0.41), [3, 2]);
    assert_eq!(top_p(0.71), [3, 2, 1]);
    assert_eq!(top_p(1.0), [3, 2, 1, 0]);
    // Exactly reached: two equal tokens have exactly one half each.
    assert_eq!(kept(SamplingParams { top_p: 0.5, ..off() }, &[2.0, 2.0]), [0]);
    assert_eq!(kept(SamplingParams { top_p: 0.1, min_keep: 3, ..off() }, &logits), [3, 2, 1]);
}

#[test]
fn min_p_is_relative_to_the_best_and_spares_min_keep() {
    let logits = logits_of(&TENTHS);
    let min_p = |p, min_keep| kept(SamplingParams { min_p: p, min_keep, ..off() }, &logits);
    assert_eq!(min_p(0.24, 0), [3, 2, 1, 0]);
    assert_eq!(min_p(0.26, 0), [3, 2, 1]);
    assert_eq!(min_p(0.76, 0), [3]);
    assert_eq!(min_p(1.0, 0), [3]);
    assert_eq!(min_p(1.0, 2), [3, 2]);
    assert_eq!(min_p(1.0, 9), [3, 2, 1, 0]);
}

#[test]
fn typical_p_keeps_what_is_near_the_entropy() {
    let typical = |p, probs: &[f32]| kept(SamplingParams { typical_p: p, ..off() }, &logits_of(probs));
    assert_eq!(typical(0.5, &[0.97, 0.01, 0.01, 0.01]), [0]);
    // Entropy 1.19 nats; surprises 0.92, 0.92, 1.61, 2.30.
    let mut found = typical(0.5, &[0.4, 0.2, 0.2, 0.2]);
    found.sort();
    assert_eq!(found, [1, 2, 3]);
}

#[test]
fn top_n_sigma_measures_from_the_best_logit() {
    // Mean 5, deviation 5.
    let logits = [10.0, 10.0, 0.0, 0.0];
    let sigma = |n| kept(SamplingParams { top_n_sigma: n, ..off() }, &logits);
    assert_eq!(sigma(1.9), [0, 1]);
    assert_eq!(sigma(2.0), [0, 1, 2, 3]);
    assert_eq!(sigma(0.0), [0, 1, 2, 3]);
    // A banned token has no part in the deviation.
    assert_eq!(kept(SamplingParams { top_n_sigma: 1.9, ..off() }, &[10.0, f32::NEG_INFINITY, 0.0]), [0]);
}

#[test]
fn xtc_leaves_the_least_likely_of_the_likely() {
    let logits = logits_of(&TENTHS);
    let xtc = |threshold, min_keep| {
        let params = SamplingParams { xtc_probability: 1.0, xtc_threshold: threshold, min_keep, ..off() };
        kept(params, &logits)
    };
    assert_eq!(xtc(0.09, 0), [0]);
    assert_eq!(xtc(0.15, 0), [1, 0]);
    assert_eq!(xtc(0.25, 0), [2, 1, 0]);
    assert_eq!(xtc(0.35, 0), [3, 2, 1, 0], "one likely token always stays");
    assert_eq!(xtc(0.51, 0), [3, 2, 1, 0], "off above one half");
    assert_eq!(xtc(0.09, 2), [3, 2, 1, 0], "too few would stay");
    // Equal tokens: the highest stays, as the last in order.
    let params = SamplingParams { xtc_probability: 1.0, xtc_threshold: 0.2, ..off() };
    assert_eq!(kept(params, &[1.0, 1.0, 1.0]), [2]);
}

#[test]
fn penalties_lower_positive_and_negative_logits() {
    let params = SamplingParams {
        repeat_penalty: 2.0,
        frequency_penalty: 0.5,
        presence_penalty: 0.25,
        n_probs: Some(4),
        post_sampling_probs: true,
        ..off()
    };
    let mut sampler = sampler(params, 4);
    for token in [0, 1, 1] {
        sampler.accept(token);
    }
    let found = sampler.distribution(&[4.0, -1.0, 0.0, 2.0], None).unwrap();
    let logit_above_token_2 = |token: u32| {
        let of = |t| found.iter().find(|x| x.token == t).unwrap().logprob;
        of(token) - of(2)
    };
    assert!((logit_above_token_2(0) - (4.0 / 2.0 - 0.5 - 0.25)).abs() < 1e-5);
    assert!((logit_above_token_2(1) - (-2.0 - 2.0 * 0.5 - 0.25)).abs() < 1e-5);
    assert!((logit_above_token_2(3) - 2.0).abs() < 1e-5);
}

#[test]
fn order_matters() {
    // Temperature 0.1 before top-p leaves one token; after it, two.
    let order = |samplers: &str| {
        let params =
            SamplingParams { samplers: samplers.parse().unwrap(), temperature: 0.1, top_p: 0.6, ..off() };
        kept(params, &logits_of(&[0.2, 0.35, 0.45]))
    };
    assert_eq!(order("temperature;top_p"), [2]);
    assert_eq!(order("top_p;temperature"), [2, 1]);
    // A sampler that is not in the chain does nothing.
    assert_eq!(order("temperature"), [2, 1, 0]);
}

#[test]
fn a_cold_chain_without_temperature_is_not_greedy() {
    let params = SamplingParams { samplers: Chain(vec![SamplerKind::TopK]), temperature: 0.0, ..off() };
    assert_eq!(kept(params, &[1.0, 2.0]), [1, 0]);
}
