//! How much of a plain read of memory the generation of tokens reaches, on a machine whose memory changes its speed.
//!
//! `cargo run --release -p wootz --example read_share -- MODEL [ROUNDS [THREADS]]`
//!
//! Plain reads and steps take turns within tenths of a second, so that neighbours meet the same memory. Printed are
//! medians over all rounds of the ratios between neighbours: of whole steps, and of their matrices alone, as a trace
//! times them.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wootz::measure::{Test, measure, trace};
use wootz::{Context, ContextOptions, Model, ModelOptions};
use wootz_cpu::limits::read;
use wootz_cpu::memory::Buffer;
use wootz_cpu::pool::{Pool, default_workers};

/// Bytes of a plain read at most; the caches hold a small part of it.
const MOST: u64 = 1 << 30;

/// Time in which the waiting threads of one pool leave the processor to those of the other.
const PAUSE: Duration = Duration::from_millis(5);

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Bytes per second of a plain read.
fn plain(pool: &Pool, buffer: &Buffer) -> f64 {
    std::thread::sleep(PAUSE);
    let start = Instant::now();
    read(pool, buffer);
    let speed = buffer.len() as f64 / start.elapsed().as_secs_f64();
    std::thread::sleep(PAUSE);
    speed
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("which model?")?;
    let rounds = args.next().map_or(Ok(15), |rounds| rounds.parse::<usize>())?;
    let threads = args.next().map_or(Ok(default_workers()), |threads| threads.parse())?;
    let model = Arc::new(Model::open(&path, &ModelOptions::default())?);
    let options = ContextOptions {
        device: "cpu".into(),
        threads: Some(threads),
        context: Some(512),
        ..ContextOptions::default()
    };
    let mut context = Context::new(model, &options, &mut |_| {})?;
    let step = Test { prompt: 0, generate: 1, depth: 0, sequences: 1 };
    let is_product = |kernel: &str| kernel.contains("linear");

    let steps = trace(&mut context, 0, 1)?.steps;
    let bytes: u64 = steps.iter().filter(|step| is_product(&step.kernel)).map(|step| step.bytes).sum();
    let pool = Pool::new(threads)?;
    let mut buffer = Buffer::zeroed(bytes.min(MOST) as usize)?;
    // Untouched pages are all the same one.
    buffer.fill(1);

    let (mut speeds, mut whole, mut products, mut parts) = (vec![], vec![], vec![], vec![]);
    let mut labels = BTreeMap::<String, (u64, Vec<f64>)>::new();
    for _ in 0..rounds.max(1) {
        let before = plain(&pool, &buffer);
        let speed = measure(&mut context, step, 1, false)?.speeds[0] * bytes as f64;
        let after = plain(&pool, &buffer);
        speeds.push(after);
        whole.push(speed * 2.0 / (before + after));
        let traced = trace(&mut context, 0, 1)?.steps;
        let after = plain(&pool, &buffer);
        let all: f64 = traced.iter().map(|step| step.duration).sum();
        let own: f64 = traced.iter().filter(|step| is_product(&step.kernel)).map(|step| step.duration).sum();
        products.push(bytes as f64 / own / after);
        let mut kinds = BTreeMap::<&str, (u64, f64)>::new();
        for step in traced.iter().filter(|step| is_product(&step.kernel)) {
            let kind = kinds.entry(&step.label).or_default();
            *kind = (kind.0 + step.bytes, kind.1 + step.duration);
        }
        for (label, (bytes, time)) in kinds {
            let kind = labels.entry(label.to_owned()).or_insert((bytes, Vec::new()));
            kind.1.push(bytes as f64 / time / after);
        }
        parts.push(own / all);
    }
    let least = speeds.iter().copied().fold(f64::INFINITY, f64::min);
    let most = speeds.iter().copied().fold(0.0, f64::max);
    println!("{path}: {:.0} MB of matrices a token, {threads} threads, {rounds} rounds", bytes as f64 / 1e6);
    println!("plain read: {:.1} GB/s ({:.1} to {:.1})", median(&mut speeds) / 1e9, least / 1e9, most / 1e9);
    println!("whole steps: {:.1} % of a plain read", 100.0 * median(&mut whole));
    println!(
        "matrices alone: {:.1} %; they take {:.1} % of a step",
        100.0 * median(&mut products),
        100.0 * median(&mut parts)
    );
    for (label, (bytes, mut shares)) in labels {
        println!("{:>8.1} MB at {:>5.1} %: {label}", bytes as f64 / 1e6, 100.0 * median(&mut shares));
    }
    Ok(())
}
