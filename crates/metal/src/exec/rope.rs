//! Frequencies of rotary embeddings, as the kernel takes them.

use wootz_graph::op::Rope;

/// Whole turns that each pair makes per position, each as a float and what it leaves out: `[dims / 2, 2]`.
///
/// The formula is that of [`Rope`]; the angle is proportional to the position.
pub(super) fn turns(r: &Rope, factors: Option<&[f32]>) -> Vec<f32> {
    let dims = f64::from(r.dims);
    let base = f64::from(r.freq_base);
    let mut list = Vec::new();
    for i in 0..r.dims as usize / 2 {
        let plain = base.powf(-2.0 * i as f64 / dims) / factors.map_or(1.0, |f| f64::from(f[i]));
        let scaled = plain * f64::from(r.freq_scale);
        let angle = match r.yarn {
            None => scaled,
            Some(yarn) => {
                // The dimension at which a wave makes `beta` turns within the original context.
                let turn = |beta: f32| {
                    let waves =
                        f64::from(yarn.original_context) / (f64::from(beta) * 2.0 * std::f64::consts::PI);
                    dims * waves.ln() / (2.0 * base.ln())
                };
                let low = turn(yarn.beta_fast).floor().max(0.0);
                let high = turn(yarn.beta_slow).ceil().min(dims - 1.0);
                let ramp = 1.0 - ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                let mix = ramp * f64::from(yarn.ext_factor);
                scaled * (1.0 - mix) + plain * mix
            }
        };
        let turns = angle / (2.0 * std::f64::consts::PI);
        let large = turns as f32;
        list.extend([large, (turns - f64::from(large)) as f32]);
    }
    list
}

/// Factor on rotated elements.
pub(super) fn magnitude(r: &Rope) -> f32 {
    let yarn = r.yarn.filter(|y| y.ext_factor != 0.0);
    let grown = yarn.map_or(1.0, |_| 1.0 + 0.1 * (1.0 / f64::from(r.freq_scale)).ln());
    (f64::from(r.magnitude) * grown) as f32
}
