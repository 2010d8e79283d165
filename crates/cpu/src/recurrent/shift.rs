//! The rows of the tokens before.

use std::ops::Range;

use wootz_graph::StateRun;

use super::{Shared, StateCache, spans};
use crate::CpuError;
use crate::isa::LANES;
use crate::pool::Pool;

/// Channels of an item.
const SPAN: usize = 32 * LANES;

/// Gives each row of `x` `[tokens, channels]` the place of the one after it in `y`, a run of tokens for each sequence; no
/// run may use a state that another writes. The state is the last row of a sequence, and zero before its first.
///
/// # Errors
/// [`CpuError::Length`] where sizes do not fit; [`CpuError::Index`] for states and tokens that do not exist.
pub fn shift(
    pool: &Pool,
    states: &mut StateCache,
    runs: &[StateRun],
    channels: usize,
    x: &[f32],
    y: &mut [f32],
) -> Result<(), CpuError> {
    CpuError::check("elements of the result", x.len(), y.len())?;
    let shared = Shared::new(states, channels, runs, y, channels)?;
    shared.each(pool, &spans(channels, 1, SPAN), 1, 0, |run, span, _| {
        let Range { start, end } = span;
        let count = end - start;
        // SAFETY: `Shared::new` has checked runs and blocks; `x` is as long as `y`. The channels are this item's alone,
        // and a state is read before it is written.
        unsafe {
            let row = |t: usize| x.as_ptr().add(t * channels + start);
            let first = shared.y.add(run.tokens.start * channels + start);
            match run.from {
                Some(block) => first.copy_from_nonoverlapping(shared.state(block, start), count),
                None => first.write_bytes(0, count),
            }
            for t in run.tokens.start + 1..run.tokens.end {
                shared.y.add(t * channels + start).copy_from_nonoverlapping(row(t - 1), count);
            }
            for (end, block) in &run.writes {
                shared.state(*block, start).copy_from_nonoverlapping(row(end - 1), count);
            }
        }
    });
    Ok(())
}
