//! The same tokens on any number of threads.

use wootz_cpu::pool::Pool;

use super::super::{BitMask, Rng, SamplingParams};
use super::{off, random_logits, sampler};

#[test]
fn tokens_do_not_depend_on_the_number_of_threads() {
    let hot = |chain: &str| SamplingParams { samplers: chain.parse().unwrap(), temperature: 3.0, ..off() };
    let chains = [
        SamplingParams::greedy(),
        SamplingParams { seed: Some(1), repeat_penalty: 1.2, ..SamplingParams::default() },
        SamplingParams { n_probs: Some(20), ..off() },
        SamplingParams { n_probs: Some(9_000), post_sampling_probs: true, ..hot("temperature") },
        SamplingParams { top_k: 30_000, ..off() },
        SamplingParams { top_p: 0.95, ..hot("temperature;top_p") },
        SamplingParams { min_p: 0.002, ..hot("temperature;min_p") },
        SamplingParams { typical_p: 0.9, top_p: 0.8, ..hot("temperature;typ_p;top_p") },
        SamplingParams { xtc_probability: 1.0, xtc_threshold: 0.001, ..off() },
        SamplingParams { top_n_sigma: 3.0, ..hot("temperature;top_n_sigma") },
        SamplingParams { dynatemp_range: 0.5, ..off() },
        SamplingParams { adaptive_target: 0.5, ..hot("adaptive_p") },
        SamplingParams { mirostat: 2, ..off() },
    ];
    let pools = [1, 2, 3].map(|count| Pool::new(count).unwrap());
    let mut rng = Rng::new(9, 0);
    // The last piece, and its last block, are not whole.
    let rows = [(); 2].map(|()| random_logits(&mut rng, 100_003, 2.0));
    let mask = BitMask::from_tokens((0..100_003).filter(|token| token % 3 > 0), 100_003);
    for params in chains {
        let mut alone = sampler(params.clone(), rows[0].len());
        let mut shared = [(); 3].map(|()| alone.clone());
        for step in 0..12 {
            let (row, mask) = (&rows[step % 2], (step % 4 == 3).then_some(&mask));
            let wanted = alone.sample(row, mask).unwrap();
            alone.accept(wanted.token);
            for (sampler, pool) in shared.iter_mut().zip(&pools) {
                let found = sampler.sample_on(pool, row, mask).unwrap();
                assert_eq!(found, wanted, "{} threads, step {step} of {params:#?}", pool.workers());
                sampler.accept(found.token);
            }
        }
    }
}

#[test]
fn every_piece_is_checked_on_any_thread() {
    let pool = Pool::new(3).unwrap();
    for at in [0, 40_000, 99_999, 100_002] {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
            let mut row = vec![-1.0; 100_003];
            row[at] = bad;
            let mut sampler = sampler(off(), row.len());
            let error = sampler.sample_on(&pool, &row, None).unwrap_err().to_string();
            assert!(error.contains(&format!("token {at} ")), "{error}");
        }
    }
}
