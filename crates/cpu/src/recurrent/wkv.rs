//! Recurrences of RWKV.

use std::ops::Range;

use wootz_graph::StateRun;

use super::{Shared, StateCache, load, set_vector, spans, vector};
use crate::isa::{LANES, Op, Simd};
use crate::norm::store_part;
use crate::pool::Pool;
use crate::{CpuError, Isa, math};

/// Sums that are kept apart, so that additions need not wait for each other.
const SUMS: usize = 4;

/// What a recurrence takes, beside its state; see [`wootz_graph::op::WkvRule`] for the formulas. All are
/// `[tokens, heads * head_dim]`.
#[derive(Clone, Copy, Debug)]
pub struct WkvInputs<'a> {
    /// What is read with.
    pub r: &'a [f32],
    /// Keys.
    pub k: &'a [f32],
    /// Values.
    pub v: &'a [f32],
    /// What decays are made of.
    pub d: &'a [f32],
}

/// The rule, with what it takes besides.
#[derive(Clone, Copy, Debug)]
pub enum WkvWith<'a> {
    /// RWKV 6.
    Six {
        /// Factors `[heads, head_dim]` of what a token reads of itself.
        first: &'a [f32],
    },
    /// RWKV 7.
    Seven {
        /// What is looked up to be taken away, `[tokens, heads * head_dim]`.
        a: &'a [f32],
        /// Where it is taken away, `[tokens, heads * head_dim]`.
        b: &'a [f32],
    },
}

/// Runs a recurrence of `heads` heads to `y` `[tokens, heads * head_dim]`, a run of tokens for each sequence; no run may
/// use a state that another writes. A state is `[heads, head_dim, head_dim]`.
///
/// # Errors
/// [`CpuError::Length`] where sizes do not fit; [`CpuError::Index`] for states and tokens that do not exist.
#[allow(clippy::too_many_arguments)]
pub fn wkv(
    isa: Isa,
    pool: &Pool,
    states: &mut StateCache,
    runs: &[StateRun],
    (heads, channels): (usize, usize),
    with: WkvWith<'_>,
    inputs: WkvInputs<'_>,
    y: &mut [f32],
) -> Result<(), CpuError> {
    let n = channels / heads.max(1);
    CpuError::check("columns in equal heads", n * heads, channels)?;
    for input in [inputs.r, inputs.k, inputs.v, inputs.d] {
        CpuError::check("inputs of a recurrence", y.len(), input.len())?;
    }
    match with {
        WkvWith::Six { first } => CpuError::check("factors of a recurrence", channels, first.len())?,
        WkvWith::Seven { a, b } => {
            CpuError::check("inputs of a recurrence", y.len(), a.len())?;
            CpuError::check("inputs of a recurrence", y.len(), b.len())?;
        }
    }
    let shared = Shared::new(states, channels * n, runs, y, channels)?;
    let wide = n.next_multiple_of(LANES);
    shared.each(pool, &spans(channels, heads, n), 4 * n, (n + 1) * wide, |run, span, scratch| {
        let (state, decay) = scratch.split_at_mut(n * wide);
        isa.dispatch(Item { shared: &shared, run, span, with, inputs, state, decay });
    });
    Ok(())
}

/// One head of one run.
struct Item<'a> {
    shared: &'a Shared<'a>,
    run: &'a StateRun,
    /// The head's channels.
    span: Range<usize>,
    with: WkvWith<'a>,
    inputs: WkvInputs<'a>,
    /// The head's state, in rows of whole vectors.
    state: &'a mut [f32],
    /// Decays of a token.
    decay: &'a mut [f32],
}

impl Op for Item<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn call<S: Simd>(mut self) {
        let (n, channels, start) = (self.span.len(), self.shared.channels, self.span.start);
        let vectors = n.div_ceil(LANES);
        // Element (i, j) of the head in a state.
        let place = |i: usize, j: usize| (start + i) * n + j;
        let parts = || (0..n).flat_map(|i| (0..vectors).map(move |part| (i, part)));
        // SAFETY: `Shared::new` has checked runs and blocks, `wkv` the lengths of inputs. The head is this item's alone.
        // The processor has `S`.
        unsafe {
            for (i, part) in parts() {
                let count = LANES.min(n - part * LANES);
                let lanes = match self.run.from {
                    Some(block) => load::<S>(self.shared.state(block, place(i, part * LANES)), count),
                    None => S::f_zero(),
                };
                set_vector::<S>(self.state, i * vectors + part, lanes);
            }
            let mut t = self.run.tokens.start;
            for (end, block) in &self.run.writes {
                while t < *end {
                    self.token::<S>(t * channels + start);
                    t += 1;
                }
                for (i, part) in parts() {
                    let count = LANES.min(n - part * LANES);
                    let lanes = vector::<S>(self.state, i * vectors + part);
                    store_part::<S>(self.shared.state(*block, place(i, part * LANES)), count, lanes);
                }
            }
        }
    }
}

impl Item<'_> {
    /// Takes the head through the token whose elements begin at `at`.
    ///
    /// # Safety
    /// The token is one of the item's; the processor has `S`.
    #[inline(always)]
    unsafe fn token<S: Simd>(&mut self, at: usize) {
        let Item { ref span, with, inputs, .. } = *self;
        let (n, own) = (span.len(), at..at + span.len());
        let vectors = n.div_ceil(LANES);
        let (r, k) = (&inputs.r[own.clone()], &inputs.k[own.clone()]);
        // SAFETY: as the caller promises.
        unsafe {
            for part in 0..vectors {
                let count = LANES.min(n - part * LANES);
                let d = load::<S>(inputs.d.as_ptr().add(at + part * LANES), count);
                let exponent = match with {
                    WkvWith::Six { .. } => S::f_sub(S::f_zero(), math::exp::<S>(d)),
                    // exp(-1/2), as the model has it.
                    WkvWith::Seven { .. } => S::f_mul(S::f_splat(-0.606_530_66), math::sigmoid::<S>(d)),
                };
                set_vector::<S>(self.decay, part, math::exp_of_negative::<S>(exponent));
            }
            for part in 0..vectors {
                let count = LANES.min(n - part * LANES);
                let v = load::<S>(inputs.v.as_ptr().add(at + part * LANES), count);
                let mut sums = [S::f_zero(); SUMS];
                match with {
                    WkvWith::Six { first } => {
                        let first = &first[span.clone()];
                        for i in 0..n {
                            let state = vector::<S>(self.state, i * vectors + part);
                            let new = S::f_mul(S::f_splat(k[i]), v);
                            let seen = S::f_fma(S::f_splat(first[i]), new, state);
                            sums[i % SUMS] = S::f_fma(S::f_splat(r[i]), seen, sums[i % SUMS]);
                            let next = S::f_fma(state, S::f_splat(self.decay[i]), new);
                            set_vector::<S>(self.state, i * vectors + part, next);
                        }
                    }
                    WkvWith::Seven { a, b } => {
                        let (a, b) = (&a[own.clone()], &b[own.clone()]);
                        let mut removed = [S::f_zero(); SUMS];
                        for i in 0..n {
                            let state = vector::<S>(self.state, i * vectors + part);
                            removed[i % SUMS] = S::f_fma(S::f_splat(a[i]), state, removed[i % SUMS]);
                        }
                        let removed = total::<S>(removed);
                        for i in 0..n {
                            let state = vector::<S>(self.state, i * vectors + part);
                            let new = S::f_fma(S::f_splat(b[i]), removed, S::f_mul(S::f_splat(k[i]), v));
                            let next = S::f_fma(state, S::f_splat(self.decay[i]), new);
                            set_vector::<S>(self.state, i * vectors + part, next);
                            sums[i % SUMS] = S::f_fma(S::f_splat(r[i]), next, sums[i % SUMS]);
                        }
                    }
                }
                store_part::<S>(self.shared.y.add(at + part * LANES), count, total::<S>(sums));
            }
        }
    }
}

/// # Safety
/// The processor has `S`.
#[inline(always)]
unsafe fn total<S: Simd>(sums: [S::F; SUMS]) -> S::F {
    // SAFETY: as the caller promises.
    unsafe { S::f_add(S::f_add(sums[0], sums[1]), S::f_add(sums[2], sums[3])) }
}
