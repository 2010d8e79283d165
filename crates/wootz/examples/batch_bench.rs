//! Speed of generation for several sequences at once.
//!
//!     cargo run --release --example batch_bench -- MODEL [DEVICE] [SEQUENCES,…] [PROMPT] [STEPS]

use std::sync::Arc;
use std::time::Instant;

use wootz::{Context, ContextOptions, Error, Model, ModelOptions, RowsWanted, StepPart};

/// Tokens of a step of prompts.
const BATCH: usize = 512;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("give a model file")?;
    let device = args.next().unwrap_or_else(|| "auto".into());
    let counts = args.next().unwrap_or_else(|| "1,8,32,64".into());
    let counts: Vec<usize> = counts.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let prompt: usize = args.next().map_or(Ok(512), |n| n.parse())?;
    let steps: usize = args.next().map_or(Ok(64), |n| n.parse())?;
    let model = Arc::new(Model::open(path, &ModelOptions::default())?);
    let options = ContextOptions {
        device,
        context: Some((prompt + 2 * steps).next_multiple_of(32)),
        sequences: counts.iter().copied().max().unwrap_or(1),
        batch: BATCH,
        ..ContextOptions::default()
    };
    let mut context = Context::new(model, &options, &mut |_| ())?;
    println!("| sequences | tokens/s in all | ms a step |\n|---:|---:|---:|");
    for count in counts {
        let seconds = generate(&mut context, count, prompt, steps)?;
        println!(
            "| {count} | {:.0} | {:.3} |",
            (count * steps) as f64 / seconds,
            1e3 * seconds / steps as f64
        );
    }
    Ok(())
}

/// Seconds that `count` sequences take for some tokens each, after their prompts and as many tokens to warm up.
fn generate(context: &mut Context, count: usize, prompt: usize, steps: usize) -> Result<f64, Error> {
    let vocab = context.model().arch().hparams().vocab;
    let mut sequences = Vec::new();
    for sequence in 0..count {
        let tokens: Vec<u32> = (0..prompt).map(|i| (i * 31 + sequence * 7919) as u32 % vocab).collect();
        let (id, found) = context.open_prefix(&[])?;
        debug_assert_eq!(found, 0);
        for part in tokens.chunks(context.limits().batch) {
            context.step(&[StepPart { sequence: id, tokens: part, rows: RowsWanted::None }])?;
        }
        sequences.push(id);
    }
    let mut start = Instant::now();
    for step in 0..2 * steps {
        if step == steps {
            start = Instant::now();
        }
        let token = [(step * 17) as u32 % vocab];
        let part = |id: &_| StepPart { sequence: *id, tokens: &token, rows: RowsWanted::Last };
        let parts: Vec<StepPart<'_>> = sequences.iter().map(part).collect();
        context.step(&parts)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    sequences.into_iter().for_each(|id| context.close(id));
    Ok(seconds)
}
