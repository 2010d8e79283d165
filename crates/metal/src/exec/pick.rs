//! The launches that pick tokens from output rows, and what they give.

use wootz_graph::{Picked, RunError, Sampling};

use super::launch::{ArgBytes, Call, Launch, Place, Shape};
use super::program::OutputPlace;
use super::step::{Counts, StepPart};
use crate::args::PickArgs;
use crate::device::MetalDevice;
use crate::library::{Function, Library};

/// Logits that a threadgroup looks at to find the best one; as in sampling.metal.
const REACH: u32 = 4096;
/// Candidates that a threadgroup sorts.
const SORTED: u32 = 1024;
/// Most candidates of a row that are kept.
const MAX_KEPT: u32 = 256;
/// Bytes of what a pick gives.
pub(super) const RESULT_BYTES: u64 = 16;

/// How many candidates of a row are kept, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reach(u32);

impl Reach {
    /// What these rows need; `None` where the kernels do not keep so many.
    pub(super) fn of(sampling: &[Sampling<'_>]) -> Option<Reach> {
        let most = sampling.iter().map(|s| s.top_k).max().unwrap_or(1);
        [1, 64, MAX_KEPT].into_iter().find(|reach| most <= *reach).map(Reach)
    }

    /// Candidates of a row after each launch that finds some, for a vocabulary.
    fn stages(self, vocab: u32) -> Vec<u32> {
        if self.0 == 1 {
            return vec![vocab.div_ceil(REACH)];
        }
        let mut counts = vec![vocab.div_ceil(SORTED) * self.0];
        while let Some(last) = counts.last().filter(|last| **last > SORTED) {
            counts.push(last.div_ceil(SORTED) * self.0);
        }
        counts
    }

    /// Candidates of a row that are kept in memory, for a vocabulary.
    pub(super) fn candidates(self, vocab: u32) -> u64 {
        self.stages(vocab).into_iter().map(u64::from).sum()
    }
}

/// The launches that pick tokens from a program's output.
pub(super) fn launches(
    device: &dyn MetalDevice,
    name: &str,
    output: OutputPlace,
    step: usize,
    reach: Reach,
) -> Result<Vec<Launch>, RunError> {
    let vocab = output.cols as u32;
    // The best candidates of each part of the best are looked for among at most as many as one threadgroup sorts.
    let stages = reach.stages(vocab);
    if stages.last().is_none_or(|last| *last > SORTED) {
        return Err(RunError::Plan(format!("a vocabulary of {vocab} tokens to pick from")));
    }
    let logits = Place::Output { rows: output.rows, row_bytes: 4 * output.cols as u64 };
    let threads = 256.min(device.caps().max_threads);
    let base = PickArgs { vocab, count: 0, kept: 0, edits: 0 };
    let call = |kernel: &'static str, from_keys: bool| {
        let function = Function::new(Library::plain("sampling"), kernel).set("from_keys", from_keys);
        Call::new(function, device.caps())
    };
    let mut launches = Vec::new();
    let edit = call("edit_logits", false)
        .bind("edits", Place::Step(StepPart::Edits))
        .bind("rows", Place::Step(StepPart::Picks))
        .bind("logits", logits.clone());
    launches.push(edit.launch(device, name, threads, move |c: Counts| Shape {
        args: ArgBytes::of(PickArgs { edits: c.edits, ..base }),
        grid: [c.edits.div_ceil(threads), 1, 1],
    })?);
    let mut found = Place::Nothing;
    let mut before = 0;
    for (i, count) in stages.iter().enumerate() {
        let to = Place::Candidates { before, count: u64::from(*count) };
        before += u64::from(*count);
        let (call, args, chunks) = if reach.0 == 1 {
            let call = call("best_of_chunk", false).bind("logits", logits.clone()).bind("keys", to.clone());
            (call, PickArgs { kept: *count, ..base }, *count)
        } else {
            let from = if i == 0 { vocab } else { stages[i - 1] };
            let place = if i == 0 { logits.clone() } else { Place::Nothing };
            let call = call("best_of_sorted", i > 0).bind("logits", place);
            let call = call.bind("keys", found).bind("to", to.clone());
            (call, PickArgs { count: from, kept: reach.0, ..base }, from.div_ceil(SORTED))
        };
        launches.push(call.launch(device, name, threads, move |c: Counts| Shape {
            args: ArgBytes::of(args),
            grid: [chunks, c.picks, 1],
        })?);
        found = to;
    }
    let count = stages.last().copied().unwrap_or(0);
    let draw = call("draw", false)
        .bind("keys", found)
        .bind("rows", Place::Step(StepPart::Picks))
        .bind("logits", logits)
        .bind("picked", Place::Picked);
    launches.push(draw.launch(device, name, threads, move |c: Counts| Shape {
        args: ArgBytes::of(PickArgs { count, ..base }),
        grid: [c.picks, 1, 1],
    })?);
    for launch in &mut launches {
        launch.step = step;
        // Each reads what the one before it has written.
        launch.barrier = true;
    }
    Ok(launches)
}

/// What the kernels say of each row.
pub(super) fn results(words: &[u32]) -> Vec<Picked> {
    words
        .as_chunks()
        .0
        .iter()
        .map(|[what, token, value, _]| Picked::from_words([*what, *token, *value]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_end_with_what_one_threadgroup_sorts() {
        let stages = |top_k: u32, vocab: u32| {
            Reach::of(&[Sampling { top_k, ..Sampling::GREEDY }]).unwrap().stages(vocab)
        };
        assert_eq!(stages(1, 152_000), [38]);
        assert_eq!(stages(40, 152_000), [9536, 640]);
        assert_eq!(stages(65, 152_000), [38_144, 9728, 2560, 768]);
        assert_eq!(stages(40, 288), [64]);
        assert_eq!(Reach::of(&[Sampling { top_k: 257, ..Sampling::GREEDY }]), None);
    }
}
