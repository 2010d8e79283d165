//! Where a step must wait for the steps before it.

use crate::graph::{Type, ValueId};
use crate::plan::{After, Plan, Span, Step};

/// Fills in what every step reads and writes, and puts a barrier before each step that touches bytes which a step
/// since the last barrier writes, or writes bytes that one reads.
pub fn solve(plan: &mut Plan) {
    let spans: Vec<(Vec<Span>, Vec<Span>)> = plan.steps.iter().map(|s| touched(plan, s)).collect();
    let mut running: Vec<usize> = Vec::new();
    for (i, (reads, writes)) in spans.iter().enumerate() {
        let conflict = running.iter().any(|j| {
            let (other_reads, other_writes) = &spans[*j];
            hit(writes, other_writes) || hit(writes, other_reads) || hit(reads, other_writes)
        });
        plan.steps[i].after = if conflict { After::Barrier } else { After::Free };
        if conflict {
            running.clear();
        }
        running.push(i);
    }
    for (step, (reads, writes)) in plan.steps.iter_mut().zip(spans) {
        step.reads = reads;
        step.writes = writes;
    }
}

fn hit(a: &[Span], b: &[Span]) -> bool {
    a.iter().any(|x| b.iter().any(|y| x.overlaps(y)))
}

/// The memory that a step reads and writes.
fn touched(plan: &Plan, step: &Step) -> (Vec<Span>, Vec<Span>) {
    let place = |v: &ValueId| match plan.graph.ty(*v) {
        Type::State => None,
        Type::Matrix { .. } => plan.region(*v).filter(|r| r.bytes > 0).map(Span::Arena),
    };
    let mut reads: Vec<Span> = step.ins.iter().filter_map(place).collect();
    let mut writes: Vec<Span> = step.outs.iter().filter_map(place).collect();
    writes.extend(step.scratch.map(Span::Arena));
    for node in &step.nodes {
        let op = &plan.graph.node(*node).op;
        match op.writes() {
            Some(cache) => writes.push(Span::Cache(cache)),
            None => reads.extend(op.cache().map(Span::Cache)),
        }
    }
    (reads, writes)
}
