//! Times one sampling step on rows like those of large vocabularies.
//!
//! `cargo run --release -p wootz --example sample_bench [PART_OF_A_NAME] [THREADS]`

use std::hint::black_box;
use std::time::Instant;

use wootz::sample::{BitMask, BlankVocab, Rng, Sampler, SamplingParams, Threads};
use wootz_cpu::pool::{Pool, default_workers};

/// Normally distributed logits with a few that stand out, as models give them.
fn row(rng: &mut Rng, n: usize) -> Vec<f32> {
    let mut logits: Vec<f32> = (0..n)
        .map(|_| {
            let sum: f64 = (0..6).map(|_| rng.next_f64()).sum();
            ((sum - 3.0) * 3.0) as f32
        })
        .collect();
    for step in 0..30 {
        let at = (rng.next_u64() % n as u64) as usize;
        logits[at] = 18.0 - step as f32 * 0.4;
    }
    logits
}

/// A step's time in microseconds that one in ten steps undercuts: a busy machine disturbs it little.
fn time(threads: &dyn Threads, params: SamplingParams, rows: &[Vec<f32>], mask: Option<&BitMask<'_>>) -> f64 {
    let vocab = BlankVocab(rows[0].len());
    let mut sampler =
        Sampler::new(SamplingParams { seed: Some(1), ..params }, &vocab).expect("good parameters");
    for token in 0..64 {
        sampler.accept(token * 7);
    }
    let mut times: Vec<f64> = (0..200)
        .map(|i| {
            let start = Instant::now();
            let sampled =
                sampler.sample_on(threads, black_box(&rows[i % rows.len()]), mask).expect("a token");
            let time = start.elapsed().as_secs_f64() * 1e6;
            sampler.accept(black_box(sampled.token));
            time
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 10]
}

fn main() {
    let whole = SamplingParams { top_k: 0, top_p: 1.0, min_p: 0.0, ..SamplingParams::default() };
    // Temperature first, and so high that what follows keeps most of the vocabulary.
    let hot = |chain: &str| SamplingParams {
        samplers: chain.parse().expect("a chain"),
        temperature: 3.0,
        ..whole.clone()
    };
    let cases = [
        ("greedy", SamplingParams::greedy()),
        ("default", SamplingParams::default()),
        ("default, penalties", SamplingParams { repeat_penalty: 1.1, ..SamplingParams::default() }),
        ("default, dry", SamplingParams { dry_multiplier: 0.8, ..SamplingParams::default() }),
        ("default, 20 logprobs", SamplingParams { n_probs: Some(20), ..SamplingParams::default() }),
        ("top_k 1000", SamplingParams { top_k: 1000, ..whole.clone() }),
        ("top_k 10000", SamplingParams { top_k: 10_000, ..whole.clone() }),
        ("top_k 100000", SamplingParams { top_k: 100_000, ..whole.clone() }),
        ("top_p alone", SamplingParams { top_p: 0.95, ..whole.clone() }),
        ("top_p alone, hot", SamplingParams { top_p: 0.95, ..hot("temperature;top_p") }),
        ("min_p alone", SamplingParams { min_p: 0.05, ..whole.clone() }),
        ("min_p alone, hot", SamplingParams { min_p: 0.002, ..hot("temperature;min_p") }),
        ("temperature alone", whole.clone()),
        ("dynamic temperature", SamplingParams { dynatemp_range: 0.5, ..whole.clone() }),
        ("top_n_sigma alone", SamplingParams { top_n_sigma: 1.0, ..whole.clone() }),
        ("top_n_sigma 8, hot", SamplingParams { top_n_sigma: 8.0, ..hot("temperature;top_n_sigma") }),
        ("typical alone", SamplingParams { typical_p: 0.9, ..whole.clone() }),
        ("typical alone, hot", SamplingParams { typical_p: 0.9, ..hot("temperature;typ_p") }),
        ("xtc alone", SamplingParams { xtc_probability: 1.0, ..whole.clone() }),
        ("adaptive_p alone", SamplingParams { adaptive_target: 0.5, ..hot("adaptive_p") }),
        ("mirostat 1", SamplingParams { mirostat: 1, ..whole.clone() }),
        ("mirostat 2", SamplingParams { mirostat: 2, ..whole.clone() }),
    ];
    println!(
        "{:<24}{:>12}{:>12}   microseconds, the 20th of 200 sorted times",
        "vocabulary", "151936", "262144"
    );
    let mut rng = Rng::new(1, 0);
    let sizes = [151_936, 262_144].map(|n| (0..4).map(|_| row(&mut rng, n)).collect::<Vec<_>>());
    let only = std::env::args().nth(1);
    let threads = std::env::args().nth(2).map_or_else(default_workers, |n| n.parse().expect("a number"));
    let pool = Pool::new(threads).expect("threads");
    for (name, params) in cases.into_iter().filter(|c| only.as_deref().is_none_or(|only| c.0.contains(only)))
    {
        let [small, large] = [0, 1].map(|i| time(&pool, params.clone(), &sizes[i], None));
        println!("{name:<24}{small:>12.1}{large:>12.1}");
    }
    for (name, share) in [("default, mask of half", 2), ("default, mask of 1 %", 100)] {
        let [small, large] = [0, 1].map(|i| {
            let n = sizes[i][0].len();
            let mask =
                BitMask::from_tokens((0..n as u32).filter(|t| t.wrapping_mul(2_654_435_761) % share == 0), n);
            time(&pool, SamplingParams::default(), &sizes[i], Some(&mask))
        });
        println!("{name:<24}{small:>12.1}{large:>12.1}");
    }
}
