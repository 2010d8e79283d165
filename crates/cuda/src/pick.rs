//! Tokens picked on the device: launches after those of a step.

use std::sync::Arc;

use wootz_graph::{Picked, RunError, Sampling};

use crate::args::{Mut, PickArgs, PickEdit, PickRow, Ptr};
use crate::machine::{DeviceBuffer, HostBuffer, Kernel, Launch, Machine};

/// Rows of a step at most.
const MOST_ROWS: usize = 1 << 16;
/// Candidates of a row at most.
const MOST_KEPT: u32 = 128;
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
    /// Rows' parameters, then edits.
    inputs: DeviceBuffer,
    /// Candidates of slices, bad logits of slices, results.
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
    /// holds the parameters until it is over. Returns where the results come to.
    ///
    /// # Errors
    /// A row cannot be picked from so, or the device failed.
    pub(crate) fn start(
        &mut self,
        logits: u64,
        cols: u32,
        sampling: &[Sampling<'_>],
        staging: &mut HostBuffer,
    ) -> Result<u64, RunError> {
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
        let bytes = size_of_val(&*rows) + size_of_val(&*edits);
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
        let bad = 8 * rows.len() * slices as usize;
        let work = candidates + bad + 4 * WORDS * rows.len();
        for (buffer, bytes, what) in
            [(&mut self.inputs, bytes, "sampling"), (&mut self.work, work, "candidates")]
        {
            if buffer.bytes() < bytes {
                // Steps under way may use the old one.
                self.machine.finish()?;
                *buffer = DeviceBuffer::new(&self.machine, bytes.next_power_of_two(), what)?;
            }
        }
        // SAFETY: the staging buffer is the caller's until the step is over.
        unsafe { self.machine.copy_in(self.inputs.address(), &staging[..bytes])? };
        let picked = self.work.address() + (candidates + bad) as u64;
        let args = PickArgs {
            logits: Mut::new(logits),
            rows: Ptr::new(self.inputs.address()),
            edits: Ptr::new(self.inputs.address() + size_of_val(&*rows) as u64),
            parts: Mut::new(self.work.address()),
            bad: Mut::new(self.work.address() + candidates as u64),
            picked: Mut::new(picked),
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
            self.machine.launch(&launch("edit_logits", [count, 1, 1], EDIT_THREADS))?;
        }
        let keys = |n: u32| 8 * n as usize;
        self.machine.launch(&launch("pick_parts", [slices, count, 1], THREADS).shared(keys(slice)))?;
        self.machine.launch(&launch("pick_row", [count, 1, 1], THREADS).shared(keys(args.merged)))?;
        self.rows = rows.len();
        Ok(picked)
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use wootz_graph::{LogitEdit, sampling};

    /// Rows of logits and parameters of many kinds, on a device, against the definition.
    pub(crate) fn picks_agree(machine: &Arc<dyn Machine>) {
        let mut state = 7u64;
        let mut next = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as u32
        };
        let mut picker = Picker::new(machine).unwrap();
        for cols in [5u32, 1000, 5000] {
            let cases: Vec<(Vec<f32>, Vec<LogitEdit>, u32)> = (0..10)
                .map(|case| {
                    // Few different values, so that many are equal.
                    let steps = if case % 2 == 0 { 40 } else { 1 << 20 };
                    let mut logits: Vec<f32> =
                        (0..cols).map(|_| (next() % steps) as f32 / steps as f32 * 12.0 - 6.0).collect();
                    logits[(next() % cols) as usize] = f32::NEG_INFINITY;
                    let mut tokens: Vec<u32> = (0..case % 4 * 3).map(|_| next() % cols).collect();
                    tokens.sort();
                    tokens.dedup();
                    let bias = |n: u32| if n.is_multiple_of(3) { f32::NEG_INFINITY } else { n as f32 - 2.0 };
                    let edits = tokens
                        .iter()
                        .map(|t| LogitEdit { token: *t, bias: bias(t % 5), seen: t % 3 })
                        .collect();
                    match case {
                        7 => logits[(cols / 2) as usize] = f32::NAN,
                        8 => logits.fill(f32::NEG_INFINITY),
                        9 => logits[(cols - 1) as usize] = f32::INFINITY,
                        _ => {}
                    }
                    (logits, edits, next())
                })
                .collect();
            let rows: Vec<Sampling<'_>> = cases
                .iter()
                .enumerate()
                .map(|(i, (_, edits, random))| Sampling {
                    edits,
                    repeat_penalty: 1.1,
                    frequency_penalty: 0.1,
                    presence_penalty: 0.2,
                    top_k: [1, 2, 40, 128, 17][i % 5],
                    top_p: [1.0, 0.9, 0.5][i % 3],
                    min_p_below: [f32::NEG_INFINITY, -3.0][i % 2],
                    temperature: [0.7, 1.0, 1e-30, 1.5][i % 4],
                    uniform: f64::from(*random) / f64::from(1u32 << 31),
                })
                .collect();
            // All together, and one by one.
            for together in [rows.len(), 1] {
                for (cases, rows) in cases.chunks(together).zip(rows.chunks(together)) {
                    let all: Vec<f32> = cases.iter().flat_map(|(logits, ..)| logits).copied().collect();
                    let buffer = DeviceBuffer::new(machine, 4 * all.len(), "logits").unwrap();
                    // SAFETY: the copies are over before what they read is given back.
                    unsafe { machine.copy_in(buffer.address(), bytemuck::cast_slice(&all)).unwrap() };
                    machine.finish().unwrap();
                    let mut staging = HostBuffer::new(machine, 0).unwrap();
                    let at = picker.start(buffer.address(), cols, rows, &mut staging).unwrap();
                    let mut results = HostBuffer::new(machine, Picker::result_bytes(rows.len())).unwrap();
                    let pointer = results.pointer();
                    // SAFETY: the buffer has room, and is read after all is over.
                    unsafe { machine.copy_out(pointer, at, results.len()).unwrap() };
                    machine.finish().unwrap();
                    for (i, (found, (logits, ..))) in Picker::results(&results).iter().zip(cases).enumerate()
                    {
                        let expected = sampling::pick(logits, &rows[i]);
                        // Of a bad logit that is no number, the bits do not count.
                        let same = match (found, expected) {
                            (Picked::BadLogit { token, value }, Picked::BadLogit { token: t, value: v }) => {
                                *token == t && (*value == v || (value.is_nan() && v.is_nan()))
                            }
                            (found, expected) => *found == expected,
                        };
                        assert!(same, "{cols} tokens, {:?}: {found:?}, expected {expected:?}", rows[i]);
                    }
                }
            }
        }
    }

    #[test]
    fn a_gpu_picks_what_the_definition_says() {
        if crate::driver::count().unwrap() == 0 {
            eprintln!("NOT RUN: there is no GPU that NVIDIA's driver knows");
            return;
        }
        let gpu = crate::driver::Gpu::open(0).unwrap();
        let machine: Arc<dyn Machine> = Arc::new(crate::driver::Queue::new(gpu).unwrap());
        picks_agree(&machine);
    }
}
