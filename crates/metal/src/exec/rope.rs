//! Frequencies of rotary embeddings, as the kernel takes them.

use std::f64::consts::TAU;

use wootz_graph::op::Rope;

/// Whole turns that each pair makes per position, each as a float and what it leaves out: `[dims / 2, 2]`.
pub(super) fn turns(rope: &Rope, factors: Option<&[f32]>) -> Vec<f32> {
    let split = |radians: f64| {
        let turns = radians / TAU;
        let large = turns as f32;
        [large, (turns - f64::from(large)) as f32]
    };
    rope.turns(factors).into_iter().flat_map(split).collect()
}
