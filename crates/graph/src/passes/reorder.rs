//! Brings steps that do not depend on each other together, so that fewer barriers are needed.

use crate::graph::Graph;
use crate::plan::Step;

/// How far a step may move ahead, in steps: a bound on work and on the lifetime of values.
const REACH: usize = 16;

/// Lets a step overtake others to join the steps that run since the last wait, where nothing it reads is made by them.
pub fn reorder(graph: &Graph, steps: Vec<Step>) -> Vec<Step> {
    // The step that makes each value, by value; values that no step makes are always ready.
    let mut maker = vec![None; graph.values.len()];
    for (i, step) in steps.iter().enumerate() {
        for node in &step.nodes {
            for value in &graph.node(*node).outs {
                maker[value.0 as usize] = Some(i);
            }
        }
    }
    let mut waiting: Vec<Option<Step>> = steps.into_iter().map(Some).collect();
    let mut done = vec![false; waiting.len()];
    let mut sorted = Vec::with_capacity(waiting.len());
    let mut first = 0;
    while first < waiting.len() {
        // Everything whose inputs were made before this wave belongs to the wave.
        let last = waiting.len().min(first + REACH);
        let wave: Vec<usize> = (first..last)
            .filter(|i| {
                waiting[*i]
                    .as_ref()
                    .is_some_and(|s| s.ins.iter().all(|v| maker[v.0 as usize].is_none_or(|m| done[m])))
            })
            .collect();
        // The first waiting step is always ready: steps arrive in an order in which they can run.
        for i in wave {
            done[i] = true;
            sorted.extend(waiting[i].take());
        }
        while first < waiting.len() && waiting[first].is_none() {
            first += 1;
        }
    }
    sorted
}
