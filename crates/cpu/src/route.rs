//! Choice of experts, and the weighted sum of what they return.

use crate::isa::{Op, Simd};
use crate::{CpuError, Isa};
use wootz_graph::op::{Gating, Route};

/// Chooses experts by the rows of `scores` `[rows, experts]`: `ids` and `weights` are `[rows, used]`, the best
/// first, of equals the lower number; `bias` `[experts]` takes part in the choice alone.
///
/// # Errors
/// [`CpuError::Length`] where sizes do not fit.
pub fn route(
    route: &Route,
    experts: usize,
    scores: &[f32],
    bias: Option<&[f32]>,
    ids: &mut [i32],
    weights: &mut [f32],
) -> Result<(), CpuError> {
    let used = route.used as usize;
    if used == 0 || used > experts {
        return Err(CpuError::Length {
            what: "experts, at least as many as are used",
            expected: used,
            found: experts,
        });
    }
    let rows = scores.len() / experts;
    CpuError::check("scores of whole rows", rows * experts, scores.len())?;
    CpuError::check("chosen experts", rows * used, ids.len())?;
    CpuError::check("weights of chosen experts", rows * used, weights.len())?;
    if let Some(bias) = bias {
        CpuError::check("summands of the choice", experts, bias.len())?;
    }
    let mut gates = vec![0.0; experts];
    let mut choice = vec![0.0; experts];
    let outs = ids.chunks_exact_mut(used).zip(weights.chunks_exact_mut(used));
    for (scores, (ids, weights)) in scores.chunks_exact(experts).zip(outs) {
        for (gate, score) in gates.iter_mut().zip(scores) {
            *gate = f64::from(*score);
        }
        match route.gating {
            Gating::Softmax => softmax(&mut gates),
            Gating::Sigmoid => gates.iter_mut().for_each(|g| *g = 1.0 / (1.0 + (-*g).exp())),
            Gating::SoftmaxChosen => (),
        }
        choice.copy_from_slice(&gates);
        if let Some(bias) = bias {
            choice.iter_mut().zip(bias).for_each(|(c, b)| *c += f64::from(*b));
        }
        let mut chosen = vec![0.0; used];
        for (id, weight) in ids.iter_mut().zip(&mut chosen) {
            let mut best = 0;
            for (i, c) in choice.iter().enumerate() {
                if c.total_cmp(&choice[best]).is_gt() {
                    best = i;
                }
            }
            *id = best as i32;
            *weight = gates[best];
            // Below every other number in the total order.
            choice[best] = -f64::NAN;
        }
        if route.gating == Gating::SoftmaxChosen {
            softmax(&mut chosen);
        }
        if route.normalize {
            let sum: f64 = chosen.iter().sum();
            chosen.iter_mut().for_each(|w| *w /= sum);
        }
        for (weight, chosen) in weights.iter_mut().zip(&chosen) {
            *weight = (chosen * f64::from(route.scale)) as f32;
        }
    }
    Ok(())
}

fn softmax(list: &mut [f64]) {
    let max = list.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    list.iter_mut().for_each(|x| *x = (*x - max).exp());
    let sum: f64 = list.iter().sum();
    list.iter_mut().for_each(|x| *x /= sum);
}

/// Weighted sums of expert outputs: `y` `[rows, used * cols]` and `weights` `[rows, used]` to `out` `[rows, cols]`.
///
/// # Errors
/// [`CpuError::Length`] where sizes do not fit.
pub fn combine(
    isa: Isa,
    cols: usize,
    used: usize,
    y: &[f32],
    weights: &[f32],
    out: &mut [f32],
) -> Result<(), CpuError> {
    let rows = out.len() / cols.max(1);
    CpuError::check("elements of whole rows", rows * cols, out.len())?;
    CpuError::check("expert outputs", rows * used * cols, y.len())?;
    CpuError::check("expert weights", rows * used, weights.len())?;
    if rows * used == 0 {
        out.fill(0.0);
        return Ok(());
    }
    isa.dispatch(Combine { cols, used, y, weights, out });
    Ok(())
}

struct Combine<'a> {
    cols: usize,
    used: usize,
    y: &'a [f32],
    weights: &'a [f32],
    out: &'a mut [f32],
}

impl Op for Combine<'_> {
    type Output = ();

    /// Plain code: the loop vectorises, and each element has its own sequence of operations, the same everywhere.
    #[inline(always)]
    unsafe fn call<S: Simd>(self) {
        let rows = self.y.chunks_exact(self.used * self.cols).zip(self.weights.chunks_exact(self.used));
        for (out, (y, weights)) in self.out.chunks_exact_mut(self.cols).zip(rows) {
            out.fill(0.0);
            for (y, weight) in y.chunks_exact(self.cols).zip(weights) {
                for (out, y) in out.iter_mut().zip(y) {
                    *out = y.mul_add(*weight, *out);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
