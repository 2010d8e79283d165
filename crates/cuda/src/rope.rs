//! Frequencies of rotary position embedding.

use std::f64::consts::TAU;

use wootz_graph::op::Rope;

/// Whole turns of each pair per position.
pub(crate) fn turns(rope: &Rope, factors: Option<&[f32]>) -> Vec<f64> {
    rope.turns(factors).into_iter().map(|radians| radians / TAU).collect()
}
