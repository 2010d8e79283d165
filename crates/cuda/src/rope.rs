//! Frequencies of rotary position embedding.

use std::f64::consts::TAU;

use wootz_graph::op::Rope;

/// Turns of each pair at position 1, and the factor on sines and cosines; see [`Rope`] for the formulas.
pub(crate) fn turns(rope: &Rope, factors: Option<&[f32]>) -> (Vec<f64>, f32) {
    let dims = f64::from(rope.dims);
    let base = f64::from(rope.freq_base);
    let scale = f64::from(rope.freq_scale);
    let plain = |i: usize| base.powf(-2.0 * i as f64 / dims) / factors.map_or(1.0, |f| f64::from(f[i]));
    let pairs = rope.dims as usize / 2;
    let Some(yarn) = rope.yarn else {
        return ((0..pairs).map(|i| plain(i) * scale / TAU).collect(), rope.magnitude);
    };
    // The dimension whose wave makes `beta` turns within the original context.
    let dimension = |beta: f32| {
        let turns = f64::from(yarn.original_context) / (f64::from(beta) * TAU);
        dims * turns.ln() / (2.0 * base.ln())
    };
    let low = dimension(yarn.beta_fast).floor().max(0.0);
    let high = dimension(yarn.beta_slow).ceil().min(dims - 1.0);
    let turn = |i: usize| {
        let ramp = 1.0 - ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
        let unscaled = ramp * f64::from(yarn.ext_factor);
        plain(i) * (scale * (1.0 - unscaled) + unscaled) / TAU
    };
    let grown = if yarn.ext_factor == 0.0 { 1.0 } else { 1.0 + 0.1 * (1.0 / scale).ln() };
    ((0..pairs).map(turn).collect(), (f64::from(rope.magnitude) * grown) as f32)
}
