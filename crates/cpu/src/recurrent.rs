//! Operations that take a recurrent state from token to token.
//!
//! Work is cut into items: some channels of one sequence. A channel's arithmetic depends on the channel alone, sixteen
//! of them stand in the lanes of a vector, and tokens come one after the other. So the bits are the same however a
//! prompt is cut, whatever else runs in a step and whichever thread takes an item.

mod conv;
mod scan;
mod shift;
mod wkv;

pub use conv::ConvWeights;
pub use scan::{ScanInputs, ScanWeights};
pub use shift::shift;
pub use wkv::{WkvInputs, WkvWith, wkv};

use std::ops::Range;

use wootz_graph::StateRun;

use crate::CpuError;
use crate::blocks::Blocks;
use crate::isa::{LANES, Simd};
use crate::pool::{Chunks, Pool};

/// The recurrent states of one layer, a state a block.
#[derive(Debug)]
pub struct StateCache {
    elements: usize,
    blocks: Blocks,
}

impl StateCache {
    /// `blocks` states of `elements` f32, all zero.
    ///
    /// # Errors
    /// [`CpuError::OutOfMemory`] where the system refuses.
    pub fn new(elements: usize, blocks: usize) -> Result<StateCache, CpuError> {
        Ok(StateCache { elements, blocks: Blocks::new(blocks, size_of::<f32>() * elements)? })
    }

    /// The states as blocks.
    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// The states as blocks, to be written.
    pub fn blocks_mut(&mut self) -> &mut Blocks {
        &mut self.blocks
    }
}

/// Elements of work that are worth another thread: some microseconds.
const WORTH_A_THREAD: usize = 16 << 10;

/// What the items of a step share: states that they read and write, and the value that they make.
struct Shared<'a> {
    states: *mut f32,
    /// Elements of a state.
    elements: usize,
    /// `[tokens, channels]`
    y: *mut f32,
    channels: usize,
    runs: &'a [StateRun],
}

// SAFETY: items have channels of runs of their own: they touch different elements of `y` and, as no run uses a state
// that another writes, different elements of states. A state's elements belong to channels.
unsafe impl Sync for Shared<'_> {}

impl<'a> Shared<'a> {
    /// Checks that runs lie in the step and their blocks in the cache.
    fn new(
        states: &'a mut StateCache,
        elements: usize,
        runs: &'a [StateRun],
        y: &'a mut [f32],
        channels: usize,
    ) -> Result<Shared<'a>, CpuError> {
        CpuError::check("elements of a state", elements, states.elements)?;
        let tokens = y.len() / channels.max(1);
        CpuError::check("elements of whole rows", tokens * channels, y.len())?;
        for run in runs {
            for block in run.from.iter().chain(run.writes.iter().map(|(_, block)| block)) {
                states.blocks.check(*block)?;
            }
            let last = run.writes.last().map_or(run.tokens.start, |(end, _)| *end);
            let ordered = run.writes.is_sorted_by(|a, b| a.0 < b.0)
                && run.writes.first().is_none_or(|(end, _)| *end > run.tokens.start);
            if last != run.tokens.end || !ordered || last > tokens {
                let found = last as i64;
                return Err(CpuError::Index { what: "end of a sequence's tokens", found, limit: tokens });
            }
        }
        let states = states.blocks.all_mut().as_mut_ptr().cast();
        Ok(Shared { states, elements, y: y.as_mut_ptr(), channels, runs })
    }

    /// The state of a block, from its element `first` on.
    ///
    /// # Safety
    /// The block was checked, and the state has such an element.
    unsafe fn state(&self, block: u32, first: usize) -> *mut f32 {
        // SAFETY: as the caller promises.
        unsafe { self.states.add(block as usize * self.elements + first) }
    }

    /// Calls `work` with the channels of each item, on the pool where `cost` elements a channel make it worth it. `work`
    /// has a scratch of `scratch` elements.
    fn each(
        &self,
        pool: &Pool,
        spans: &[Range<usize>],
        cost: usize,
        scratch: usize,
        work: impl Fn(&StateRun, Range<usize>, &mut [f32]) + Sync,
    ) {
        let chunks = Chunks::new(self.runs.len() * spans.len(), 1);
        let share = || {
            let mut scratch = vec![0.0; scratch];
            while let Some(items) = chunks.take() {
                for item in items {
                    let (run, span) = (&self.runs[item / spans.len()], &spans[item % spans.len()]);
                    work(run, span.clone(), &mut scratch);
                }
            }
        };
        let tokens: usize = self.runs.iter().map(|run| run.tokens.len()).sum();
        if tokens.saturating_mul(cost).saturating_mul(self.channels) < WORTH_A_THREAD {
            share();
        } else {
            pool.run(&|_| share());
        }
    }
}

/// Equal parts of `channels`, cut into spans of at most `most`.
fn spans(channels: usize, parts: usize, most: usize) -> Vec<Range<usize>> {
    let part = channels / parts;
    let cut = |first: usize| {
        (first..first + part).step_by(most).map(move |start| start..(start + most).min(first + part))
    };
    (0..parts).flat_map(|p| cut(p * part)).collect()
}

/// The first `count` (at most 16) lanes from `p`, the others 0.
///
/// # Safety
/// `count` elements can be read at `p`; the processor has `S`.
#[inline(always)]
unsafe fn load<S: Simd>(p: *const f32, count: usize) -> S::F {
    // SAFETY: as the caller promises.
    unsafe { crate::norm::load_part::<S>(p, count, 0.0) }
}

/// Vectors of 16 lanes in a scratch.
///
/// # Safety
/// As [`Simd`]; the scratch has a vector `index`.
#[inline(always)]
unsafe fn vector<S: Simd>(scratch: &[f32], index: usize) -> S::F {
    debug_assert!((index + 1) * LANES <= scratch.len());
    // SAFETY: as the caller promises.
    unsafe { S::f_load(scratch.as_ptr().add(index * LANES)) }
}

/// Writes a vector of a scratch.
///
/// # Safety
/// As [`vector`].
#[inline(always)]
unsafe fn set_vector<S: Simd>(scratch: &mut [f32], index: usize, value: S::F) {
    debug_assert!((index + 1) * LANES <= scratch.len());
    // SAFETY: as the caller promises.
    unsafe { S::f_store(scratch.as_mut_ptr().add(index * LANES), value) }
}

#[cfg(test)]
mod tests;
