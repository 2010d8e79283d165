//! From a graph to a plan. Each pass is a pure function.

pub mod hazard;
pub mod memory;
pub mod reorder;
pub mod select;

use crate::backend::Backend;
use crate::error::GraphError;
use crate::graph::Graph;
use crate::plan::Plan;
use crate::weights::WeightTable;

/// Compiles a graph for a backend.
///
/// # Errors
/// The backend has no kernel for a node, or its choices contradict each other.
pub fn compile(graph: Graph, weights: &WeightTable, backend: &dyn Backend) -> Result<Plan, GraphError> {
    let steps = select::select(&graph, weights, backend)?;
    let steps = reorder::reorder(&graph, steps);
    let mut plan = memory::place(graph, steps, backend.name())?;
    hazard::solve(&mut plan);
    Ok(plan)
}

#[cfg(test)]
mod tests;
