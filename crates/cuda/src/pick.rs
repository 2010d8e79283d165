//! Tokens picked on the device: launches after those of a step.

use std::sync::Arc;

use wootz_graph::{Picked, RunError, Sampling};

use crate::args::{Mut, PickArgs, PickEdit, PickRow, Ptr};
use crate::machine::{DeviceBuffer, HostBuffer, Kernel, Launch, Machine};
use crate::step;

/// Rows of a step at most.
const MOST_ROWS: usize = 1 << 16;
/// Candidates of a row at most.
pub(crate) const MOST_KEPT: u32 = 128;
/// Slices of the tokens at most, and tokens of a slice at least.
const MOST_SLICES: u32 = 64;
const LEAST_SLICE: u32 = 1024;
/// Threads of a block, and of one that changes logits.
const THREADS: u32 = 512;
const EDIT_THREADS: u32 = 256;
/// Words of a result: what became of the row, its token, its bad logit.
const WORDS: usize = 3;

/// What picks tokens, and where picked ones lie.
pub(crate) struct Picker {
    machine: Arc<dyn Machine>,
    /// The tokens that the last step picked: at one address, which recorded launches read.
    tokens: DeviceBuffer,
    /// Rows' parameters, then edits; and what was copied there last.
    inputs: DeviceBuffer,
    sent: Vec<u8>,
    /// Candidates of slices.
    work: DeviceBuffer,
    /// Rows of the last step, if it picked.
    rows: usize,
}

impl Picker {
    pub(crate) fn new(machine: &Arc<dyn Machine>) -> Result<Picker, RunError> {
        let tokens = DeviceBuffer::new(machine, 4 * MOST_ROWS, "picked tokens")?;
        machine.clear(tokens.address(), tokens.bytes())?;
        Ok(Picker {
            machine: machine.clone(),
            tokens,
            inputs: DeviceBuffer::new(machine, 0, "sampling")?,
            sent: Vec::new(),
            work: DeviceBuffer::new(machine, 0, "candidates")?,
            rows: 0,
        })
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> usize {
        self.tokens.bytes() + self.inputs.bytes() + self.work.bytes()
    }

    /// Whether a token can be picked so.
    pub(crate) fn can_pick(sampling: &Sampling<'_>) -> bool {
        (1..=MOST_KEPT).contains(&sampling.top_k)
    }

    /// Where picked tokens lie.
    pub(crate) fn tokens(&self) -> u64 {
        self.tokens.address()
    }

    /// Rows of the last step, if it picked tokens.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Takes note of a step that picks none.
    pub(crate) fn skip(&mut self) {
        self.rows = 0;
    }

    /// Queues the picking of a token from each of the rows of `cols` logits at an address, which are changed; `staging`
    /// holds the parameters until it is over. `results` gets what became of the rows, [`Picker::result_bytes`].
    ///
    /// # Errors
    /// A row cannot be picked from so, or the device failed.
    pub(crate) fn start(
        &mut self,
        logits: u64,
        cols: u32,
        sampling: &[Sampling<'_>],
        staging: &mut HostBuffer,
        results: &HostBuffer,
    ) -> Result<(), RunError> {
        if sampling.len() > MOST_ROWS || !sampling.iter().all(Picker::can_pick) {
            return Err(RunError::Plan("the device picks no tokens in this way".into()));
        }
        let mut edits: Vec<PickEdit> = Vec::new();
        let row = |s: &Sampling<'_>| {
            let first_edit = edits.len() as u32;
            edits.extend(s.edits.iter().map(|e| PickEdit { token: e.token, bias: e.bias, seen: e.seen }));
            PickRow {
                uniform: s.uniform,
                repeat: s.repeat_penalty,
                frequency: s.frequency_penalty,
                presence: s.presence_penalty,
                top_k: s.top_k,
                top_p: s.top_p,
                min_p_below: s.min_p_below,
                temperature: s.temperature,
                first_edit,
                edits: s.edits.len() as u32,
                unused: 0,
            }
        };
        let rows: Vec<PickRow> = sampling.iter().map(row).collect();
        let bytes = (size_of_val(&*rows) + size_of_val(&*edits)).next_multiple_of(8);
        if staging.len() < bytes {
            *staging = HostBuffer::new(&self.machine, bytes.next_power_of_two())?;
        }
        let parts =
            rows.iter().map(crate::args::Args::bytes).chain(edits.iter().map(crate::args::Args::bytes));
        let mut at = 0;
        for part in parts {
            staging[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        let kept = sampling.iter().map(|s| s.top_k).max().unwrap_or(1);
        let slice = cols.div_ceil(MOST_SLICES).next_power_of_two().max(LEAST_SLICE);
        let slices = cols.div_ceil(slice);
        let candidates = 8 * rows.len() * (slices * kept) as usize;
        for (buffer, bytes, what) in
            [(&mut self.inputs, bytes, "sampling"), (&mut self.work, candidates, "candidates")]
        {
            if buffer.bytes() < bytes {
                // Steps under way may use the old one.
                self.machine.finish()?;
                *buffer = DeviceBuffer::new(&self.machine, bytes.next_power_of_two(), what)?;
                self.sent.clear();
            }
        }
        // Greedy steps have the same parameters again and again. The staging buffer is the caller's until the step is over.
        if self.sent != staging[..bytes] {
            self.machine.launch_early(&step::take(staging, self.inputs.address(), bytes))?;
            self.sent.clear();
            self.sent.extend_from_slice(&staging[..bytes]);
        }
        let args = PickArgs {
            logits: Mut::new(logits),
            rows: Ptr::new(self.inputs.address()),
            edits: Ptr::new(self.inputs.address() + size_of_val(&*rows) as u64),
            parts: Mut::new(self.work.address()),
            picked: Mut::new(results.address()),
            tokens: Mut::new(self.tokens.address()),
            cols,
            slice,
            slices,
            kept,
            merged: (slices * kept).next_power_of_two(),
            unused: 0,
        };
        let count = rows.len() as u32;
        let launch = |name, grid, threads| Launch::new(Kernel::new("pick", name), grid, threads, &args);
        if !edits.is_empty() {
            self.machine.launch_early(&launch("edit_logits", [count, 1, 1], EDIT_THREADS))?;
        }
        let keys = |n: u32| 8 * n as usize;
        let sorted = if kept > 1 { keys(slice) } else { 0 };
        self.machine.launch_early(&launch("pick_parts", [slices, count, 1], THREADS).shared(sorted))?;
        self.machine.launch_early(&launch("pick_row", [count, 1, 1], THREADS).shared(keys(args.merged)))?;
        self.rows = rows.len();
        Ok(())
    }

    /// Bytes of the results of so many rows.
    pub(crate) fn result_bytes(rows: usize) -> usize {
        4 * WORDS * rows
    }

    /// What became of rows.
    pub(crate) fn results(bytes: &[u8]) -> Vec<Picked> {
        let words: Vec<u32> = bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        words.as_chunks::<WORDS>().0.iter().map(|words| Picked::from_words(*words)).collect()
    }
}
