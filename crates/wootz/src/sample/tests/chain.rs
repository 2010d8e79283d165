//! Every sampler and whole chains against the oracle.

use super::super::mass::STRIDE;
use super::super::rng::Rng;
use super::super::{Chain, LogitBias, Sampled, Sampler, SamplerKind, SamplingParams};
use super::{Pieces, assert_same, off, oracle, random_logits, sampler};

fn compare(params: &SamplingParams, logits: &[f32], history: &[u32]) {
    let mut found = sampler(params.clone(), logits.len());
    history.iter().for_each(|&token| found.accept(token));
    let chance = found.xtc_rng.clone().next_f64();
    let distribution = found.distribution(logits, None).unwrap();
    let wanted = oracle::run(params, logits, history, chance);
    assert_same(&distribution, &wanted, params);
    let sorted = distribution.is_sorted_by(|a, b| a.logprob >= b.logprob);
    assert!(sorted, "distribution is not in order with {params:#?}");
}

/// Sizes around those at which the work is done another way.
const SIZES: [usize; 9] = [1, 2, 3, 7, 64, 129, 1000, 3000, 20_000];

fn check_each(name: &str, change: impl Fn(&mut Rng) -> SamplingParams) {
    let mut rng = Rng::new(11, name.len() as u64);
    for size in SIZES {
        for round in 0..if size > 5000 { 2 } else { 12 } {
            let spread = [0.05, 1.0, 3.0, 10.0][round % 4];
            let logits = random_logits(&mut rng, size, spread);
            let history: Vec<u32> = (0..200).map(|_| (rng.next_u64() % size.min(30) as u64) as u32).collect();
            compare(&change(&mut rng), &logits, &history);
        }
    }
}

fn between(rng: &mut Rng, low: f32, high: f32) -> f32 {
    low + (high - low) * rng.next_f64() as f32
}

fn below(rng: &mut Rng, n: u64) -> u64 {
    rng.next_u64() % n
}

#[test]
fn top_k_is_the_oracles() {
    check_each("top_k", |rng| SamplingParams { top_k: below(rng, 60) as i32, ..off() });
    check_each("large k", |rng| SamplingParams { top_k: below(rng, 24_000) as i32, ..off() });
}

#[test]
fn top_p_is_the_oracles() {
    check_each("top_p", |rng| SamplingParams { top_p: between(rng, 0.0, 1.0), ..off() });
    check_each("min_keep", |rng| SamplingParams {
        top_p: between(rng, 0.0, 0.3),
        min_keep: below(rng, 50) as usize,
        ..off()
    });
}

#[test]
fn min_p_is_the_oracles() {
    check_each("min_p", |rng| SamplingParams {
        min_p: between(rng, 0.0, 0.6),
        min_keep: below(rng, 20) as usize,
        ..off()
    });
}

#[test]
fn typical_p_is_the_oracles() {
    check_each("typical", |rng| SamplingParams {
        typical_p: between(rng, 0.01, 0.99),
        min_keep: below(rng, 10) as usize,
        ..off()
    });
}

#[test]
fn rows_of_which_a_sketch_tells_the_wrong_thing_are_the_oracles() {
    let mut rng = Rng::new(29, 0);
    let mut check = |logits: &[f32]| {
        for p in [0.1, 0.3, 0.9, 0.999] {
            for min_keep in [0, below(&mut rng, logits.len() as u64) as usize] {
                compare(&SamplingParams { top_p: p, min_keep, ..off() }, logits, &[]);
                compare(&SamplingParams { typical_p: p, min_keep, ..off() }, logits, &[]);
            }
        }
    };
    for seen in [-9.0, -1.0, 2.0, f32::NEG_INFINITY] {
        let mut logits = random_logits(&mut Rng::new(29, 1), 20_000, 0.5);
        logits.iter_mut().step_by(STRIDE).for_each(|x| *x = seen);
        check(&logits);
    }
    check(&vec![0.5; 10_000]);
}

#[test]
fn top_n_sigma_is_the_oracles() {
    check_each("sigma", |rng| SamplingParams { top_n_sigma: between(rng, -0.5, 3.0), ..off() });
}

#[test]
fn xtc_is_the_oracles() {
    check_each("xtc", |rng| SamplingParams {
        xtc_probability: between(rng, 0.3, 1.0),
        xtc_threshold: between(rng, 0.0, 0.55),
        min_keep: below(rng, 4) as usize,
        ..off()
    });
}

#[test]
fn temperature_is_the_oracles() {
    check_each("temperature", |rng| SamplingParams { temperature: between(rng, -0.2, 3.0), ..off() });
    check_each("dynamic", |rng| SamplingParams {
        temperature: between(rng, 0.0, 2.0),
        dynatemp_range: between(rng, 0.1, 2.0),
        dynatemp_exponent: between(rng, 0.0, 3.0),
        ..off()
    });
}

#[test]
fn penalties_and_bias_are_the_oracles() {
    check_each("penalties", |rng| SamplingParams {
        repeat_last_n: below(rng, 210) as i32 - 1,
        repeat_penalty: between(rng, 0.5, 2.0),
        frequency_penalty: between(rng, -1.0, 1.0),
        presence_penalty: between(rng, -1.0, 1.0),
        logit_bias: vec![LogitBias { token: 0, bias: between(rng, -5.0, 5.0) }],
        ..off()
    });
}

#[test]
fn dry_is_the_oracles() {
    check_each("dry", |rng| SamplingParams {
        dry_multiplier: between(rng, 0.1, 2.0),
        dry_base: between(rng, 0.9, 1.6),
        dry_allowed_length: below(rng, 4) as u32,
        dry_penalty_last_n: below(rng, 210) as i32 - 1,
        ..off()
    });
}

fn random_params(rng: &mut Rng) -> SamplingParams {
    let mut kinds: Vec<SamplerKind> = SamplerKind::ALL[..9].to_vec();
    if below(rng, 2) == 0 {
        for i in (1..kinds.len()).rev() {
            kinds.swap(i, below(rng, i as u64 + 1) as usize);
        }
        kinds.truncate(3 + below(rng, 7) as usize);
    }
    // Each sampler is on half of the time.
    let mut on = |low, high, otherwise| {
        let value = between(rng, low, high);
        if below(rng, 2) == 0 { value } else { otherwise }
    };
    let mut params = SamplingParams {
        seed: Some(5),
        samplers: Chain(kinds),
        temperature: on(-0.1, 2.0, 1.0),
        dynatemp_range: on(0.1, 1.0, 0.0),
        dynatemp_exponent: on(0.5, 2.0, 1.0),
        top_p: on(0.3, 1.0, 1.0),
        min_p: on(0.0, 0.2, 0.0),
        typical_p: on(0.2, 1.0, 1.0),
        top_n_sigma: on(0.5, 4.0, -1.0),
        xtc_probability: on(0.5, 1.0, 0.0),
        xtc_threshold: on(0.02, 0.5, 0.1),
        repeat_penalty: on(0.8, 1.5, 1.0),
        frequency_penalty: on(-0.3, 0.3, 0.0),
        presence_penalty: on(-0.3, 0.3, 0.0),
        dry_multiplier: on(0.1, 1.0, 0.0),
        dry_base: on(1.0, 1.8, 1.75),
        ..SamplingParams::default()
    };
    params.top_k = [0, 1, 5, 40, 300][below(rng, 5) as usize];
    params.min_keep = [0, 0, 1, 3][below(rng, 4) as usize];
    params.repeat_last_n = below(rng, 80) as i32 - 1;
    params.dry_allowed_length = below(rng, 3) as u32;
    params
}

#[test]
fn random_chains_are_the_oracles() {
    let mut rng = Rng::new(2024, 0);
    for round in 0..3000 {
        let size = [1, 2, 10, 100, 700, 3000][round % 6];
        let spread = [0.3, 2.0, 6.0][round / 6 % 3];
        let logits = random_logits(&mut rng, size, spread);
        let history: Vec<u32> = (0..90).map(|_| below(&mut rng, size.min(12) as u64) as u32).collect();
        compare(&random_params(&mut rng), &logits, &history);
    }
}

fn generate(mut sampler: Sampler, rows: &[Vec<f32>]) -> Vec<Sampled> {
    rows.iter()
        .map(|row| {
            let sampled = sampler.sample(row, None).unwrap();
            sampler.accept(sampled.token);
            sampled
        })
        .collect()
}

#[test]
fn same_seed_same_tokens_clone_and_state_continue() {
    let mut rng = Rng::new(3, 3);
    for round in 0..200 {
        let mut params = random_params(&mut rng);
        params.mirostat = [0, 0, 1, 2][round % 4];
        params.n_probs = [None, Some(3)][round % 2];
        if round % 3 == 0 {
            params.samplers.0.push(SamplerKind::AdaptiveP);
            params.adaptive_target = 0.4;
        }
        let rows: Vec<Vec<f32>> = (0..20).map(|_| random_logits(&mut rng, 300, 2.0)).collect();
        let vocab = Pieces::blank(300);
        let whole = generate(Sampler::new(params.clone(), &vocab).unwrap(), &rows);
        assert_eq!(generate(Sampler::new(params.clone(), &vocab).unwrap(), &rows), whole);

        let mut first = Sampler::new(params.clone(), &vocab).unwrap();
        for (row, wanted) in rows[..10].iter().zip(&whole) {
            assert_eq!(&first.sample(row, None).unwrap(), wanted);
            first.accept(wanted.token);
        }
        assert_eq!(generate(first.clone(), &rows[10..]), whole[10..]);
        let mut restored = Sampler::new(SamplingParams { seed: Some(999), ..params }, &vocab).unwrap();
        restored.restore(first.state());
        assert_eq!(restored.seed(), first.seed());
        assert_eq!(generate(restored, &rows[10..]), whole[10..]);
    }
}

#[test]
fn greedy_is_the_best_token_after_penalties_in_any_order() {
    let mut rng = Rng::new(8, 1);
    for _ in 0..500 {
        let mut params = random_params(&mut rng);
        params.temperature = 0.0;
        let logits = random_logits(&mut rng, 400, 1.0);
        let history: Vec<u32> = (0..60).map(|_| below(&mut rng, 400) as u32).collect();
        compare(&params, &logits, &history);
    }
}
