//! `wootz trace`

use std::collections::BTreeMap;

use serde_json::json;
use wootz::measure::{Limits, TracedStep, trace};

use crate::args::TraceArgs;
use crate::{common, output};

pub(crate) fn run(args: &TraceArgs) -> anyhow::Result<()> {
    let model = common::open_model(&args.model)?;
    let mut device = args.device.clone();
    let positions = args.prompt + args.predict;
    device.ctx = Some(device.ctx.unwrap_or(positions).max(positions));
    let mut context = common::open_context(model, &common::context_options(&device))?;
    let traced = trace(&mut context, args.prompt, args.predict)?;
    if let Some(path) = &args.output {
        output::write_file(path, &chrome(&traced.steps).to_string())?;
    }
    let devices: Vec<(&str, Limits)> = context
        .placement()
        .iter()
        .zip(traced.limits)
        .map(|((info, _), limits)| (&*info.id, limits))
        .collect();
    let mut text = String::new();
    for (id, limits) in &devices {
        text.push_str(&format!(
            "limits measured on {id}: read {:.1} GB/s, products {:.0} Gop/s\n",
            limits.bytes_per_second / 1e9,
            limits.ops_per_second / 1e9
        ));
    }
    for (phase, title) in [(true, "prompt"), (false, "generation")] {
        let steps: Vec<&TracedStep> = traced.steps.iter().filter(|s| s.prompt == phase).collect();
        if !steps.is_empty() {
            text.push_str(&table(title, &steps, &devices));
            text.push_str(&fusion(&steps));
        }
    }
    output::print(&text)
}

/// Sums of the steps of a device with the same kernel and label.
#[derive(Default)]
struct Sum {
    count: usize,
    seconds: f64,
    bytes: f64,
    ops: f64,
}

fn table(title: &str, steps: &[&TracedStep], devices: &[(&str, Limits)]) -> String {
    let mut sums: BTreeMap<(usize, &str, &str), Sum> = BTreeMap::new();
    for step in steps {
        let sum = sums.entry((step.device, step.kernel.as_str(), step.label.as_str())).or_default();
        sum.count += 1;
        sum.seconds += step.duration;
        sum.bytes += step.bytes as f64;
        sum.ops += step.ops as f64;
    }
    let total: f64 = sums.values().map(|s| s.seconds).sum();
    let mut rows: Vec<_> = sums.into_iter().collect();
    rows.sort_by(|a, b| b.1.seconds.total_cmp(&a.1.seconds));
    let mut text = format!("\n{title}: {} steps in {:.2} ms\n", steps.len(), total * 1e3);
    text.push_str("   time    share  count    GB/s   Gop/s  of limit  kernel and nodes\n");
    for ((device, kernel, label), s) in rows {
        let (read, ops) = (s.bytes / s.seconds, s.ops / s.seconds);
        let (id, limits) = devices[device];
        let place = if devices.len() > 1 { format!(" on {id}") } else { String::new() };
        let share = (read / limits.bytes_per_second).max(ops / limits.ops_per_second);
        text.push_str(&format!(
            "{:>7.2} ms {:>5.1} % {:>6} {:>7.2} {:>7.1} {:>7.1} %  {kernel} {label}{place}\n",
            s.seconds * 1e3,
            100.0 * s.seconds / total,
            s.count,
            read / 1e9,
            ops / 1e9,
            100.0 * share,
        ));
    }
    text
}

/// How many operations ran together, by kernel.
fn fusion(steps: &[&TracedStep]) -> String {
    #[derive(Default)]
    struct Counts {
        steps: usize,
        operations: usize,
        dispatches: u32,
    }
    let (mut all, mut kernels) = (Counts::default(), BTreeMap::<&str, Counts>::new());
    for step in steps {
        for counts in [&mut all, kernels.entry(step.kernel.as_str()).or_default()] {
            counts.steps += 1;
            counts.operations += step.nodes;
            counts.dispatches += step.dispatches;
        }
    }
    let mut text = format!("\n{} operations in {} dispatches; fused:\n", all.operations, all.dispatches);
    text.push_str("  steps  operations  dispatches  kernel\n");
    for (kernel, c) in kernels.into_iter().filter(|(_, c)| c.operations > c.steps) {
        text.push_str(&format!("{:>7} {:>11} {:>11}  {kernel}\n", c.steps, c.operations, c.dispatches));
    }
    text
}

/// The event list of chrome://tracing and Perfetto; times in microseconds.
fn chrome(steps: &[TracedStep]) -> serde_json::Value {
    let events: Vec<_> = steps
        .iter()
        .map(|s| {
            json!({
                "name": format!("{} {}", s.kernel, s.label),
                "cat": if s.prompt { "prompt" } else { "generation" },
                "ph": "X",
                "ts": s.start * 1e6,
                "dur": s.duration * 1e6,
                "pid": 1,
                "tid": s.device + 1,
                "args": { "layer": s.layer, "bytes": s.bytes, "ops": s.ops, "operations": s.nodes, "dispatches": s.dispatches },
            })
        })
        .collect();
    json!({ "traceEvents": events, "displayTimeUnit": "ms" })
}
