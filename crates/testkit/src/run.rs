use std::sync::Arc;

use wootz_graph::interp::Interpreter;
use wootz_graph::{
    BLOCK_TOKENS, Backend, BlockTable, CacheGroup, CacheLayout, CacheSpec, Device, DeviceKind, Graph,
    GraphBuilder, GraphKey, LoadRequest, NO_BLOCK, Outputs, Reach, StepInputs, TableSet, WeightTable, passes,
};

use crate::cases::{Case, CaseStep};

/// `sum((a - b)²) / sum(b²)`; infinite where a number is not finite or lengths differ.
pub fn nmse(found: &[f32], expected: &[f32]) -> f64 {
    if found.len() != expected.len() || found.iter().any(|x| !x.is_finite()) {
        return f64::INFINITY;
    }
    let square = |x: f64| x * x;
    let error: f64 = found.iter().zip(expected).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    let size: f64 = expected.iter().map(|b| square(f64::from(*b))).sum();
    if size == 0.0 { error } else { error / size }
}

fn layout(case: &Case) -> CacheLayout {
    let blocks = case.sequences() * case.blocks_per_sequence();
    let reach = if case.caches.iter().any(CacheSpec::is_state) { Reach::State } else { Reach::Full };
    CacheLayout {
        caches: case.caches.clone(),
        groups: vec![CacheGroup { reach, blocks: blocks as u32 }],
        k_type: case.kv_type,
        v_type: case.kv_type,
    }
}

fn graph(case: &Case, table: &WeightTable, step: &CaseStep) -> Graph {
    let outputs = match &step.outputs {
        None => Outputs::All,
        Some(rows) if rows.is_empty() => Outputs::None,
        Some(rows) => Outputs::Some(rows.len() as u32),
    };
    let key = GraphKey {
        tokens: step.tokens.len() as u32,
        seqs: case.sequences() as u32,
        outputs,
        kv_span: (case.blocks_per_sequence() * BLOCK_TOKENS) as u32,
        wants: wootz_graph::Wants::Hidden,
    };
    let mut builder = GraphBuilder::new(key, table, case.caches.clone());
    (case.build)(&mut builder);
    builder.finish().unwrap_or_else(|e| panic!("{}: {e}", case.name))
}

/// Calls `run` with the inputs of a step. Blocks of a sequence are scattered, so that a table that is not used shows.
fn with_inputs<R>(case: &Case, step: &CaseStep, run: impl FnOnce(&StepInputs<'_>) -> R) -> R {
    let (sequences, per) = (case.sequences(), case.blocks_per_sequence());
    let mut blocks: Vec<Vec<u32>> =
        (0..sequences).map(|s| (0..per).rev().map(|b| (b * sequences + s) as u32).collect()).collect();
    if case.caches.iter().any(CacheSpec::is_state) {
        leave_out(step, &mut blocks);
    }
    let tables: Vec<BlockTable<'_>> = blocks.iter().map(|b| BlockTable { first: 0, blocks: b }).collect();
    let groups = [TableSet { tables: &tables }];
    run(&StepInputs {
        tokens: &step.tokens,
        positions: &step.positions,
        streams: &step.streams,
        sequences: &step.sequences,
        outputs: step.outputs.as_deref().unwrap_or(&[]),
        groups: &groups,
        hidden: &step.hidden,
    })
}

/// Leaves some of the states out that a step passes and no later one needs.
fn leave_out(step: &CaseStep, blocks: &mut [Vec<u32>]) {
    for (sequence, table) in blocks.iter_mut().enumerate() {
        let own = step.sequences.iter().zip(&step.positions).filter(|(s, _)| **s as usize == sequence);
        let positions: Vec<usize> = own.map(|(_, p)| *p as usize).collect();
        let (Some(first), Some(last)) = (positions.first(), positions.last()) else { continue };
        let needed = [first.saturating_sub(1) / BLOCK_TOKENS, last / BLOCK_TOKENS];
        let odd = table.iter_mut().enumerate().filter(|(at, _)| at % 2 == 1 && !needed.contains(at));
        odd.for_each(|(_, block)| *block = NO_BLOCK);
    }
}

/// What the interpreter makes of a case: the output of each step.
///
/// # Panics
/// The case is wrong.
pub fn run_reference(case: &Case) -> Vec<Vec<f32>> {
    let table = case.weights.table();
    let mut interpreter = Interpreter::new(table.clone(), Arc::new(case.weights.clone()), layout(case));
    let mut results = Vec::new();
    for step in &case.steps {
        let graph = graph(case, &table, step);
        let outputs = with_inputs(case, step, |inputs| interpreter.run(&graph, inputs));
        let outputs = outputs.unwrap_or_else(|e| panic!("{}: {e}", case.name));
        results.push(outputs.into_iter().next().map(|(_, data)| data).unwrap_or_default());
    }
    results
}

/// What a device makes of a case: the output of each step.
///
/// # Errors
/// A message: the device fails, or the backend has no kernel.
pub fn run_on(backend: &dyn Backend, device: &dyn Device, case: &Case) -> Result<Vec<Vec<f32>>, String> {
    let failed = |e: &dyn std::fmt::Display| format!("{}: {e}", case.name);
    let table = case.weights.table();
    let request = LoadRequest {
        weights: table.clone(),
        source: Arc::new(case.weights.clone()),
        caches: layout(case),
        graph: &graph(case, &table, &case.steps[0]),
    };
    let mut executor = device.load(request, &mut |_| ()).map_err(|e| failed(&e))?;
    let mut results = Vec::new();
    for step in &case.steps {
        let plan = passes::compile(graph(case, &table, step), &table, backend).map_err(|e| failed(&e))?;
        let program = executor.compile(plan).map_err(|e| failed(&e))?;
        let ticket = with_inputs(case, step, |inputs| executor.submit(program, inputs));
        let output = ticket.and_then(|t| executor.wait(t)).map_err(|e| failed(&e))?;
        results.push(output.data.to_vec());
    }
    Ok(results)
}

/// Compares a device with the interpreter; a message for a case beyond its limit.
pub fn check(backend: &dyn Backend, device: &dyn Device, case: &Case) -> Result<f64, String> {
    let (found, expected) = (run_on(backend, device, case)?, run_reference(case));
    let limit = match device.info().kind {
        DeviceKind::Cpu => case.limit,
        DeviceKind::UnifiedGpu | DeviceKind::DiscreteGpu => case.limit_half,
    };
    let mut worst = 0.0f64;
    for (step, (f, e)) in found.iter().zip(&expected).enumerate() {
        let error = nmse(f, e);
        if error > limit {
            return Err(format!("{}, step {step}: error {error:.2e}, limit {limit:.0e}", case.name));
        }
        worst = worst.max(error);
    }
    Ok(worst)
}
