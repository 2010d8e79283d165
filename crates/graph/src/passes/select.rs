//! Which kernel runs which nodes.

use std::collections::BTreeSet;

use crate::backend::{Backend, Selection};
use crate::error::GraphError;
use crate::graph::{Graph, NodeId, ValueId};
use crate::op::Op;
use crate::plan::{After, Region, Step};
use crate::weights::WeightTable;

/// Asks the backend for kernels until every node is covered, and orders the steps by their dependencies.
///
/// Input nodes become no steps: the engine writes their values.
///
/// # Errors
/// A node has no kernel, or a selection's nodes depend on each other through nodes outside it.
pub fn select(graph: &Graph, weights: &WeightTable, backend: &dyn Backend) -> Result<Vec<Step>, GraphError> {
    let mut covered = vec![false; graph.nodes.len()];
    let mut chosen: Vec<Selection> = Vec::new();
    for (id, node) in graph.iter() {
        if covered[id.0 as usize] || matches!(node.op, Op::Input(_)) {
            continue;
        }
        let selection = backend.select(graph, weights, id).ok_or_else(|| GraphError::NoKernel {
            backend: backend.name(),
            op: node.op.name(),
            node: id,
            label: node.label,
            weight: node.op.weights().next().map(|w| weights.info(w).ty),
        })?;
        let bad = GraphError::BadSelection { backend: backend.name(), kernel: selection.kernel };
        if selection.covers.first() != Some(&id) {
            return Err(bad);
        }
        for node in &selection.covers {
            if std::mem::replace(&mut covered[node.0 as usize], true) {
                return Err(bad);
            }
        }
        chosen.push(selection);
    }
    let steps: Vec<Step> = chosen.into_iter().map(|s| step(graph, s)).collect();
    order(graph, steps, backend.name())
}

/// A selection with the values that enter and leave it.
fn step(graph: &Graph, selection: Selection) -> Step {
    let inside: BTreeSet<NodeId> = selection.covers.iter().copied().collect();
    let made: BTreeSet<ValueId> =
        selection.covers.iter().flat_map(|n| graph.node(*n).outs.iter().copied()).collect();
    let mut ins = Vec::new();
    for value in selection.covers.iter().flat_map(|n| graph.node(*n).ins.iter()) {
        if !made.contains(value) && !ins.contains(value) {
            ins.push(*value);
        }
    }
    let outs = made
        .into_iter()
        .filter(|v| {
            let mut readers = graph.readers(*v).peekable();
            // What nothing reads is written all the same.
            graph.is_output(*v) || readers.peek().is_none() || readers.any(|n| !inside.contains(&n))
        })
        .collect();
    Step {
        kernel: selection.kernel,
        nodes: selection.covers,
        ins,
        outs,
        // The place is found by the memory pass.
        scratch: (selection.scratch > 0).then_some(Region { offset: 0, bytes: selection.scratch }),
        in_place: selection.in_place,
        reads: Vec::new(),
        writes: Vec::new(),
        after: After::Free,
    }
}

/// Orders steps so that each follows what it reads, otherwise in the order of their first nodes.
fn order(graph: &Graph, steps: Vec<Step>, backend: &'static str) -> Result<Vec<Step>, GraphError> {
    let mut ready = vec![true; graph.values.len()];
    for step in &steps {
        for node in &step.nodes {
            for value in &graph.node(*node).outs {
                ready[value.0 as usize] = false;
            }
        }
    }
    let mut waiting: Vec<Option<Step>> = steps.into_iter().map(Some).collect();
    let mut sorted = Vec::with_capacity(waiting.len());
    let mut first = 0;
    while first < waiting.len() {
        let next = (first..waiting.len())
            .find(|i| waiting[*i].as_ref().is_some_and(|s| s.ins.iter().all(|v| ready[v.0 as usize])));
        let Some(step) = next.and_then(|i| waiting[i].take()) else {
            let kernel = waiting[first].as_ref().map_or("", |s| s.kernel);
            return Err(GraphError::BadSelection { backend, kernel });
        };
        for node in &step.nodes {
            for value in &graph.node(*node).outs {
                ready[value.0 as usize] = true;
            }
        }
        sorted.push(step);
        while first < waiting.len() && waiting[first].is_none() {
            first += 1;
        }
    }
    Ok(sorted)
}
