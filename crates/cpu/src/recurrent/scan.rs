//! Selective scan of state-space models.

use std::ops::Range;

use wootz_graph::StateRun;
use wootz_graph::op::Scan;

use super::{Shared, StateCache, load, set_vector, spans, vector};
use crate::isa::{LANES, Op, Simd};
use crate::norm::store_part;
use crate::pool::Pool;
use crate::{CpuError, Isa, math};

/// Channels of an item.
const SPAN: usize = 2 * LANES;

/// Sums of a result that are kept apart, so that additions need not wait for each other.
const SUMS: usize = 4;

/// The shape and the weights of a scan. A channel is an element of a head.
#[derive(Clone, Debug, PartialEq)]
pub struct ScanWeights {
    heads: usize,
    head_dim: usize,
    state: usize,
    groups: usize,
    /// Rates `[state, channels]`, or `[1, channels]` where a head has one.
    a: Vec<f32>,
    /// `[channels]`
    d: Vec<f32>,
}

/// The inputs of a scan.
#[derive(Clone, Copy, Debug)]
pub struct ScanInputs<'a> {
    /// `[tokens, heads * head_dim]`
    pub x: &'a [f32],
    /// `[tokens, heads]`
    pub dt: &'a [f32],
    /// `[tokens, 2, groups, state]`
    pub bc: &'a [f32],
}

impl ScanWeights {
    /// The weights of `scan`: `a` is `[heads, state]` or `[heads, 1]`, `d` is `[heads]`.
    ///
    /// # Errors
    /// [`CpuError::Length`] where sizes do not fit.
    pub fn new(scan: &Scan, a: &[f32], d: &[f32]) -> Result<ScanWeights, CpuError> {
        let [heads, head_dim, state, groups] =
            [scan.heads, scan.head_dim, scan.state, scan.groups].map(|n| n as usize);
        let part = heads / groups.max(1);
        CpuError::check("heads in equal groups", part * groups, heads)?;
        CpuError::check("factors of a scan", heads, d.len())?;
        let rates = if a.len() == heads { 1 } else { state };
        CpuError::check("rates of a scan", heads * rates, a.len())?;
        let wide = |i: usize| (0..heads * head_dim).map(move |c| a[c / head_dim * rates + i]);
        let d = (0..heads * head_dim).map(|c| d[c / head_dim]).collect();
        Ok(ScanWeights { heads, head_dim, state, groups, a: (0..rates).flat_map(wide).collect(), d })
    }

    pub(super) fn channels(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Scans to `y` `[tokens, heads * head_dim]`, a run of tokens for each sequence; no run may use a state that another
    /// writes. A state is `[state, heads * head_dim]`.
    ///
    /// # Errors
    /// [`CpuError::Length`] where sizes do not fit; [`CpuError::Index`] for states and tokens that do not exist.
    pub fn run(
        &self,
        isa: Isa,
        pool: &Pool,
        states: &mut StateCache,
        runs: &[StateRun],
        inputs: ScanInputs<'_>,
        y: &mut [f32],
    ) -> Result<(), CpuError> {
        let channels = self.channels();
        let tokens = y.len() / channels.max(1);
        CpuError::check("inputs of a scan", y.len(), inputs.x.len())?;
        CpuError::check("time steps of a scan", tokens * self.heads, inputs.dt.len())?;
        CpuError::check("B and C of a scan", tokens * 2 * self.groups * self.state, inputs.bc.len())?;
        let shared = Shared::new(states, self.state * channels, runs, y, channels)?;
        let spans = spans(channels, self.groups, SPAN);
        shared.each(pool, &spans, 4 * self.state, self.state * LANES, |run, span, state| {
            isa.dispatch(Item { weights: self, shared: &shared, run, span, inputs, state });
        });
        Ok(())
    }
}

struct Item<'a> {
    weights: &'a ScanWeights,
    shared: &'a Shared<'a>,
    run: &'a StateRun,
    /// Channels of one group.
    span: Range<usize>,
    inputs: ScanInputs<'a>,
    /// The state of 16 channels.
    state: &'a mut [f32],
}

impl Op for Item<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn call<S: Simd>(mut self) {
        let (channels, n) = (self.weights.channels(), self.weights.state);
        for c in self.span.clone().step_by(LANES) {
            let count = LANES.min(self.span.end - c);
            // SAFETY: `Shared::new` has checked runs and blocks, `ScanWeights` the lengths of weights and inputs. The
            // channels are this item's alone. The processor has `S`.
            unsafe {
                for i in 0..n {
                    let lanes = match self.run.from {
                        Some(block) => load::<S>(self.shared.state(block, i * channels + c), count),
                        None => S::f_zero(),
                    };
                    set_vector::<S>(self.state, i, lanes);
                }
                let mut t = self.run.tokens.start;
                for (end, block) in &self.run.writes {
                    while t < *end {
                        let y = self.token::<S>(t, c, count);
                        store_part::<S>(self.shared.y.add(t * channels + c), count, y);
                        t += 1;
                    }
                    for i in 0..n {
                        let lanes = vector::<S>(self.state, i);
                        store_part::<S>(self.shared.state(*block, i * channels + c), count, lanes);
                    }
                }
            }
        }
    }
}

impl Item<'_> {
    /// Takes `count` channels from `c` on through token `t`.
    ///
    /// # Safety
    /// The token and the channels are those of the item; the processor has `S`.
    #[inline(always)]
    unsafe fn token<S: Simd>(&mut self, t: usize, c: usize, count: usize) -> S::F {
        let ScanWeights { heads, head_dim, state: n, groups, ref a, ref d } = *self.weights;
        let (channels, rates) = (heads * head_dim, a.len() / (heads * head_dim));
        let group = c / (channels / groups) * n;
        let (b, cs) = self.inputs.bc[t * 2 * groups * n..][..2 * groups * n].split_at(groups * n);
        let (b, cs) = (&b[group..group + n], &cs[group..group + n]);
        // SAFETY: as the caller promises.
        unsafe {
            let x = load::<S>(self.inputs.x.as_ptr().add(t * channels + c), count);
            let delta = math::softplus::<S>(self.delta::<S>(t, c, count));
            let step = S::f_mul(delta, x);
            let rate = |i: usize| load::<S>(a.as_ptr().add(i * channels + c), count);
            let decay = |rate: S::F| math::exp_of_negative::<S>(S::f_mul(delta, rate));
            let shared = decay(rate(0));
            let mut sums = [S::f_zero(); SUMS];
            sums[0] = S::f_mul(x, load::<S>(d.as_ptr().add(c), count));
            for i in 0..n {
                let decay = if rates == 1 { shared } else { decay(rate(i)) };
                let input = S::f_mul(step, S::f_splat(b[i]));
                let next = S::f_fma(vector::<S>(self.state, i), decay, input);
                set_vector::<S>(self.state, i, next);
                sums[i % SUMS] = S::f_fma(next, S::f_splat(cs[i]), sums[i % SUMS]);
            }
            S::f_add(S::f_add(sums[0], sums[1]), S::f_add(sums[2], sums[3]))
        }
    }

    /// The time steps of `count` channels from `c` on.
    ///
    /// # Safety
    /// As [`token`](Self::token).
    #[inline(always)]
    unsafe fn delta<S: Simd>(&self, t: usize, c: usize, count: usize) -> S::F {
        let ScanWeights { heads, head_dim, .. } = *self.weights;
        let dt = &self.inputs.dt[t * heads..(t + 1) * heads];
        // SAFETY: as the caller promises: the channels' heads have time steps.
        unsafe {
            if head_dim == 1 {
                return load::<S>(dt.as_ptr().add(c), count);
            }
            if c % head_dim + count <= head_dim {
                return S::f_splat(dt[c / head_dim]);
            }
            let mut lanes = [0.0; LANES];
            for (lane, value) in lanes[..count].iter_mut().enumerate() {
                *value = dt[(c + lane) / head_dim];
            }
            S::f_load(lanes.as_ptr())
        }
    }
}
