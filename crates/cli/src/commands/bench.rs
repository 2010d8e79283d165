//! `wootz bench`

use serde_json::{Value, json};
use wootz::measure::{Measured, Test, measure};
use wootz::{ByteSize, ContextOptions};

use crate::args::{BenchArgs, Table};
use crate::output::Unit;
use crate::{common, output};

pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let model = common::open_model(&args.model)?;
    let tests = tests(args);
    anyhow::ensure!(!tests.is_empty(), "nothing to measure: give -p or -n a length above 0");
    let longest = tests.iter().map(Test::positions).max().unwrap_or(0);
    let sequences = tests.iter().map(|test| test.sequences).max().unwrap_or(1);
    let mut device = args.device.clone();
    device.ctx = Some(device.ctx.unwrap_or(longest).max(longest));
    let options = ContextOptions { sequences, ..common::context_options(&device) };
    let mut context = common::open_context(model.clone(), &options)?;
    let mut rows = Vec::new();
    let bar = output::progress("measuring", tests.len() as u64, Unit::Tests);
    for test in tests {
        bar.set_message(format!("measuring {}", test.name()));
        rows.push(measure(&mut context, test, args.repeats, !args.no_warmup)?);
        bar.inc(1);
    }
    output::clear_progress();
    let threads = context.device().features.last().cloned().unwrap_or_default();
    let shared = Shared {
        model: args.model.model.clone(),
        size: model.file().data_bytes(),
        parameters: model.file().elements(),
        backend: context.device().id.clone(),
        threads,
    };
    output::print(&match args.output {
        Table::Md => markdown(&shared, &rows),
        Table::Csv => csv(&shared, &rows),
        Table::Json => format!("{}\n", json(&shared, &rows)),
    })
}

fn tests(args: &BenchArgs) -> Vec<Test> {
    let mut tests = Vec::new();
    for depth in &args.depth {
        tests.extend(args.prompt.iter().filter(|n| **n > 0).map(|n| Test {
            prompt: *n,
            generate: 0,
            depth: *depth,
            sequences: 1,
        }));
        for sequences in &args.sequences {
            tests.extend(args.predict.iter().filter(|n| **n > 0).map(|n| Test {
                prompt: 0,
                generate: *n,
                depth: *depth,
                sequences: *sequences,
            }));
        }
    }
    tests
}

/// Columns that all rows share.
struct Shared {
    model: String,
    size: u64,
    parameters: u64,
    backend: String,
    threads: String,
}

fn markdown(shared: &Shared, rows: &[Measured]) -> String {
    let mut text = String::from(
        "| model | size | params | backend | test | t/s | median | first token | submit | checksum |\n\
         |---|---:|---:|---|---:|---:|---:|---:|---:|---|\n",
    );
    for row in rows {
        text.push_str(&format!(
            "| {} | {} | {:.2} M | {}, {} | {} | {:.2} ± {:.2} | {:.2} | {} | {} | {:016x} |\n",
            shared.model,
            ByteSize(shared.size),
            shared.parameters as f64 / 1e6,
            shared.backend,
            shared.threads,
            row.test.name(),
            row.mean(),
            row.deviation(),
            row.median(),
            output::seconds(row.first_token),
            submit_us(row).map_or_else(|| "–".to_owned(), |us| format!("{us:.0} µs")),
            row.checksum,
        ));
    }
    text
}

fn csv(shared: &Shared, rows: &[Measured]) -> String {
    let mut text = String::from(
        "model,size,params,backend,threads,test,median_ts,avg_ts,stddev_ts,first_token_ms,submit_us,checksum\n",
    );
    for row in rows {
        text.push_str(&format!(
            "{},{},{},{},{},{},{},{},{},{},{},{:016x}\n",
            quoted(&shared.model),
            shared.size,
            shared.parameters,
            shared.backend,
            quoted(&shared.threads),
            row.test.name(),
            row.median(),
            row.mean(),
            row.deviation(),
            row.first_token.as_secs_f64() * 1e3,
            submit_us(row).map(|us| us.to_string()).unwrap_or_default(),
            row.checksum,
        ));
    }
    text
}

/// Time of the host until a step is queued, in microseconds.
fn submit_us(row: &Measured) -> Option<f64> {
    row.submit.map(|time| time.as_secs_f64() * 1e6)
}

/// A field of RFC 4180.
fn quoted(field: &str) -> String {
    format!("\"{}\"", field.replace('"', "\"\""))
}

fn json(shared: &Shared, rows: &[Measured]) -> Value {
    rows.iter()
        .map(|row| {
            json!({
                "model": shared.model,
                "size": shared.size,
                "params": shared.parameters,
                "backend": shared.backend,
                "threads": shared.threads,
                "test": row.test.name(),
                "n_prompt": row.test.prompt,
                "n_gen": row.test.generate,
                "n_depth": row.test.depth,
                "n_sequences": row.test.sequences,
                "median_ts": row.median(),
                "avg_ts": row.mean(),
                "stddev_ts": row.deviation(),
                "samples_ts": row.speeds,
                "first_token_ms": row.first_token.as_secs_f64() * 1e3,
                "submit_us": submit_us(row),
                "checksum": format!("{:016x}", row.checksum),
            })
        })
        .collect()
}
