//! Convolution over the last tokens.

use std::ops::Range;

use wootz_graph::StateRun;

use super::{Shared, StateCache, load, set_vector, spans, vector};
use crate::isa::{LANES, Op, Simd};
use crate::norm::store_part;
use crate::pool::Pool;
use crate::{CpuError, Isa};

/// Channels of an item.
const SPAN: usize = 8 * LANES;

/// The weights of a convolution.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvWeights {
    channels: usize,
    width: usize,
    /// `[width, channels]`
    taps: Vec<f32>,
    /// `[channels]`
    bias: Vec<f32>,
}

impl ConvWeights {
    /// Factors `[channels, width]` and summands `[channels]`.
    ///
    /// # Errors
    /// [`CpuError::Length`] where sizes do not fit.
    pub fn new(weight: &[f32], width: usize, bias: Option<&[f32]>) -> Result<ConvWeights, CpuError> {
        let channels = weight.len() / width.max(1);
        CpuError::check("factors of a convolution", channels * width, weight.len())?;
        CpuError::check("tokens of a convolution, at least", width.max(2), width)?;
        if let Some(bias) = bias {
            CpuError::check("summands of a convolution", channels, bias.len())?;
        }
        let taps = (0..width).flat_map(|j| (0..channels).map(move |c| weight[c * width + j])).collect();
        let bias = bias.map_or_else(|| vec![0.0; channels], <[f32]>::to_vec);
        Ok(ConvWeights { channels, width, taps, bias })
    }

    /// Elements of the state: `[width - 1, channels]`, the oldest row first.
    pub fn state(&self) -> usize {
        (self.width - 1) * self.channels
    }

    /// Convolves `x` `[tokens, channels]` to `y`, a run of tokens for each sequence; no run may use a state that another
    /// writes.
    ///
    /// # Errors
    /// [`CpuError::Length`] where sizes do not fit; [`CpuError::Index`] for states and tokens that do not exist.
    pub fn run(
        &self,
        isa: Isa,
        pool: &Pool,
        states: &mut StateCache,
        runs: &[StateRun],
        x: &[f32],
        y: &mut [f32],
    ) -> Result<(), CpuError> {
        CpuError::check("elements of the result", x.len(), y.len())?;
        let shared = Shared::new(states, self.state(), runs, y, self.channels)?;
        let scratch = (self.width - 1) * LANES;
        shared.each(pool, &spans(self.channels, 1, SPAN), self.width, scratch, |run, span, before| {
            isa.dispatch(Item { weights: self, shared: &shared, run, span, x, before });
        });
        Ok(())
    }
}

struct Item<'a> {
    weights: &'a ConvWeights,
    shared: &'a Shared<'a>,
    run: &'a StateRun,
    span: Range<usize>,
    x: &'a [f32],
    /// Rows of `x` before the run, 16 channels at a time.
    before: &'a mut [f32],
}

impl Op for Item<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn call<S: Simd>(self) {
        let Item { weights, shared, run, span, x, before } = self;
        let (n, kept, start) = (weights.channels, weights.width - 1, run.tokens.start);
        for c in span.clone().step_by(LANES) {
            let count = LANES.min(span.end - c);
            // SAFETY: `Shared::new` has checked runs and blocks, `ConvWeights` its lengths; `x` is as long as `y`. The
            // channels are this item's alone. The processor has `S`.
            unsafe {
                for j in 0..kept {
                    let row = match run.from {
                        Some(block) => load::<S>(shared.state(block, j * n + c), count),
                        None => S::f_zero(),
                    };
                    set_vector::<S>(before, j, row);
                }
                // Row `t - kept + j` of the sequence, `t` counted from the start of the run.
                let row = |before: &[f32], t: usize, j: usize| match (t + j).checked_sub(kept) {
                    Some(t) => load::<S>(x.as_ptr().add((start + t) * n + c), count),
                    None => vector::<S>(before, t + j),
                };
                let mut t = 0;
                for (end, block) in &run.writes {
                    while start + t < *end {
                        let mut sum = load::<S>(weights.bias.as_ptr().add(c), count);
                        for j in 0..=kept {
                            let tap = load::<S>(weights.taps.as_ptr().add(j * n + c), count);
                            sum = S::f_fma(row(before, t, j), tap, sum);
                        }
                        store_part::<S>(shared.y.add((start + t) * n + c), count, sum);
                        t += 1;
                    }
                    for j in 0..kept {
                        store_part::<S>(shared.state(*block, j * n + c), count, row(before, t, j));
                    }
                }
            }
        }
    }
}
