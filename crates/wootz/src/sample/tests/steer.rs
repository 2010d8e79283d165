//! Mirostat and adaptive-p against the same steps done naively in f64.

use super::super::rng::Rng;
use super::super::{Chain, SamplerKind, SamplingParams};
use super::oracle::softmax;
use super::{assert_same, off, random_logits, sampler};

fn sorted(logits: &[f32], temperature: f64) -> Vec<(u32, f64)> {
    let finite = logits.iter().enumerate().filter(|(_, l)| l.is_finite());
    let mut c: Vec<(u32, f64)> = finite.map(|(i, &l)| (i as u32, f64::from(l) / temperature)).collect();
    c.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    c
}

fn probabilities(c: Vec<(u32, f64)>) -> Vec<(u32, f64)> {
    let probs = softmax(&c);
    c.iter().zip(probs).map(|(x, p)| (x.0, p)).collect()
}

fn prob_of(list: &[(u32, f64)], token: u32) -> f64 {
    list.iter().find(|x| x.0 == token).unwrap().1
}

#[test]
fn mirostat_1_follows_its_definition() {
    for (seed, tau) in [(1, 5.0), (2, 2.0), (3, 8.0)] {
        let params =
            SamplingParams { seed: Some(seed), mirostat: 1, mirostat_tau: tau, temperature: 0.9, ..off() };
        let mut sampler = sampler(params.clone(), 2000);
        let mut rng = Rng::new(seed, 9);
        let mut mu = 2.0 * f64::from(tau);
        for _ in 0..60 {
            let logits = random_logits(&mut rng, 2000, 2.0);
            let c = sorted(&logits, f64::from(params.temperature));
            let (mut upper, mut lower) = (0.0, 0.0);
            for i in 0..99 {
                let t = ((i + 2) as f64 / (i + 1) as f64).ln();
                upper += t * (c[i].1 - c[i + 1].1);
                lower += t * t;
            }
            let s: f64 = upper / lower;
            let k = ((s - 1.0) * 2f64.powf(mu) / (1.0 - 2000f64.powf(1.0 - s))).powf(1.0 / s);
            let kept = probabilities(c[..(k as usize).clamp(1, c.len())].to_vec());
            assert_same(&sampler.distribution(&logits, None).unwrap(), &kept, &(s, k, mu));
            let token = sampler.sample(&logits, None).unwrap().token;
            sampler.accept(token);
            mu -= f64::from(params.mirostat_eta) * (-prob_of(&kept, token).log2() - f64::from(tau));
        }
    }
}

#[test]
fn mirostat_2_follows_its_definition() {
    for (seed, tau) in [(1, 5.0), (2, 1.0), (3, 9.0)] {
        let params =
            SamplingParams { seed: Some(seed), mirostat: 2, mirostat_tau: tau, temperature: 1.3, ..off() };
        let mut sampler = sampler(params.clone(), 2000);
        let mut rng = Rng::new(seed, 10);
        let mut mu = 2.0 * f64::from(tau);
        for _ in 0..60 {
            let logits = random_logits(&mut rng, 2000, 2.0);
            let c = sorted(&logits, f64::from(params.temperature));
            let all = softmax(&c);
            let kept = all.iter().take_while(|p| -p.log2() <= mu).count().max(1);
            let kept = probabilities(c[..kept].to_vec());
            assert_same(&sampler.distribution(&logits, None).unwrap(), &kept, &mu);
            let token = sampler.sample(&logits, None).unwrap().token;
            sampler.accept(token);
            mu -= f64::from(params.mirostat_eta) * (-prob_of(&kept, token).log2() - f64::from(tau));
        }
    }
}

#[test]
fn mirostat_holds_the_surprise_at_its_target() {
    for mirostat in [1, 2] {
        let params = SamplingParams { mirostat, mirostat_tau: 3.0, ..off() };
        let mut sampler = sampler(params, 1000);
        let logits: Vec<f32> = (1..=1000).map(|i| -1.1 * (i as f32).ln()).collect();
        let mut total = 0.0;
        for step in 0..3000 {
            let found = sampler.distribution(&logits, None).unwrap();
            let token = sampler.sample(&logits, None).unwrap().token;
            sampler.accept(token);
            if step >= 1000 {
                let logprob = found.iter().find(|t| t.token == token).unwrap().logprob;
                total -= f64::from(logprob) / std::f64::consts::LN_2;
            }
        }
        let mean = total / 2000.0;
        assert!((mean - 3.0).abs() < 0.1, "mirostat {mirostat}: {mean} bits");
    }
}

#[test]
fn mirostat_ignores_chain_and_tokens_not_its_own() {
    let params = SamplingParams { mirostat: 2, top_k: 1, repeat_penalty: 9.0, ..off() };
    let mut sampler = sampler(params, 100);
    let logits: Vec<f32> = (0..100).map(|i| i as f32 * 0.01).collect();
    assert_eq!(sampler.distribution(&logits, None).unwrap().len(), 100);
    let before = sampler.state();
    (0..5).for_each(|token| sampler.accept(token));
    assert_eq!(sampler.state().steer, before.steer, "a prompt teaches nothing");
}

#[test]
fn adaptive_p_follows_its_definition() {
    for (seed, target) in [(1, 0.3f32), (2, 0.0), (3, 0.8), (4, 1.0)] {
        let params = SamplingParams {
            seed: Some(seed),
            samplers: Chain(vec![SamplerKind::AdaptiveP, SamplerKind::MinP]),
            adaptive_target: target,
            min_p: 0.01,
            ..off()
        };
        let mut sampler = sampler(params.clone(), 300);
        let mut rng = Rng::new(seed, 11);
        let decay = f64::from(params.adaptive_decay);
        let mut total = 1.0 / (1.0 - decay);
        let mut sum = f64::from(target) * total;
        for _ in 0..60 {
            let logits = random_logits(&mut rng, 300, 2.0);
            let mut c = probabilities(sorted(&logits, 1.0));
            let best = c[0].1;
            c.retain(|x| x.1 >= 0.01 * best);
            let scale: f64 = c.iter().map(|x| x.1).sum();
            c.iter_mut().for_each(|x| x.1 /= scale);
            let moved = (2.0 * f64::from(target) - sum / total).clamp(0.0, 1.0);
            let bent = c.iter().map(|x| {
                let d = ((x.1 - moved) / 0.3).abs();
                (x.0, 5.0 - 10.0 * d * d / (1.0 + d))
            });
            let wanted = probabilities(bent.collect());
            assert_same(&sampler.distribution(&logits, None).unwrap(), &wanted, &(target, moved));
            let token = sampler.sample(&logits, None).unwrap().token;
            sampler.accept(token);
            sum = prob_of(&c, token) + decay * sum;
            total = 1.0 + decay * total;
        }
    }
}

#[test]
fn adaptive_p_without_target_changes_nothing() {
    let params = SamplingParams { samplers: "ka".parse().unwrap(), top_k: 3, ..off() };
    let logits = [0.1, 0.4, 0.3, 0.2];
    let plain = SamplingParams { samplers: "k".parse().unwrap(), ..params.clone() };
    let both = [params, plain].map(|p| sampler(p, 4).distribution(&logits, None).unwrap());
    assert_eq!(both[0], both[1]);
}
