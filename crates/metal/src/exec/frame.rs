//! Encodes the commands of one step.

use std::sync::Arc;
use std::time::Instant;

use wootz_graph::{ProgramId, Rows, StepTime};

use super::MetalExecutor;
use super::launch::{Launch, Place};
use super::pick::RESULT_BYTES;
use super::program::Program;
use super::step::{Counts, StepPart};
use super::transfer::TIME_LIMIT;
use crate::device::{Buffer, CommandBuffer, Completion, Dispatch, Pass, Slice, StorageMode};
use crate::error::MetalError;

/// Command buffers of a step, and the times of the plan's steps where tracing is on.
pub(super) type Submitted = (Vec<Arc<dyn Completion>>, Vec<StepTime>);

/// One step that is being encoded.
pub(super) struct Frame<'a> {
    pub(super) executor: &'a MetalExecutor,
    pub(super) program: &'a Program,
    /// What picks tokens from the output rows; nothing where the rows are returned.
    pub(super) picks: &'a [Launch],
    pub(super) counts: Counts,
    pub(super) slot: usize,
    /// The slot of the step before.
    pub(super) slot_before: usize,
    /// Bytes of the step's inputs.
    pub(super) total: u64,
    pub(super) output_bytes: u64,
}

impl Frame<'_> {
    /// Encodes the step and hands it to the GPU.
    pub(super) fn submit(&self, id: ProgramId) -> Result<Submitted, MetalError> {
        if self.executor.trace.is_some() {
            return self.submit_traced(id);
        }
        let launches: Vec<&Launch> = self.program.launches.iter().chain(self.picks).collect();
        let threads = self.executor.options.command_buffers.min(launches.len() / 64);
        // Command buffers run in the order in which they are made, whoever encodes them.
        let mut buffers = (0..=threads)
            .map(|i| self.executor.device.command_buffer(&format!("step {}, part {i}", id.0)))
            .collect::<Result<Vec<_>, _>>()?;
        // The first part is short, so that the GPU starts early.
        let first = launches.len().min(if threads == 0 { launches.len() } else { launches.len() / 10 + 16 });
        let (head, rest) = launches.split_at(first);
        let mut parts: Vec<&[&Launch]> = vec![head];
        if threads > 0 {
            parts.extend(rest.chunks(rest.len().div_ceil(threads).max(1)));
        }
        buffers.truncate(parts.len());
        let last = parts.len() - 1;
        let completions = std::thread::scope(|scope| {
            let mut jobs = Vec::new();
            let mut first = None;
            for (i, (buffer, part)) in buffers.into_iter().zip(parts).enumerate() {
                let encode = move || self.encode(buffer, part, i == 0, i == last);
                if i == 0 {
                    first = Some(encode);
                } else {
                    jobs.push(scope.spawn(encode));
                }
            }
            let mut results: Vec<Result<Arc<dyn Completion>, MetalError>> = Vec::new();
            results.extend(first.map(|encode| encode()));
            results.extend(jobs.into_iter().map(|job| {
                job.join().unwrap_or_else(|_| {
                    Err(MetalError::Unavailable("a thread that encodes commands panicked".into()))
                })
            }));
            results.into_iter().collect::<Result<Vec<_>, _>>()
        })?;
        Ok((completions, Vec::new()))
    }

    /// Every step of the plan by itself, with its time.
    fn submit_traced(&self, id: ProgramId) -> Result<Submitted, MetalError> {
        let Some(trace) = &self.executor.trace else { return Ok(Default::default()) };
        let mut times = Vec::new();
        let launches: Vec<&Launch> = self.program.launches.iter().chain(self.picks).collect();
        let mut at = 0;
        while at < launches.len() {
            let step = launches[at].step;
            let count = launches[at..].iter().take_while(|l| l.step == step).count();
            let buffer = self.executor.device.command_buffer(&format!("step {}, {step}", id.0))?;
            let part = &launches[at..at + count];
            let dispatches = part.iter().filter(|l| !(l.shape)(self.counts).grid.contains(&0)).count();
            let start = Instant::now();
            at += count;
            self.encode(buffer, part, step == launches[0].step, at == launches.len())?.wait(TIME_LIMIT)?;
            // The launches that pick tokens are no step of the plan.
            if step < self.program.plan.steps.len() {
                times.push(StepTime {
                    program: id,
                    step: step as u32,
                    start: (start - trace.start).as_secs_f64(),
                    duration: start.elapsed().as_secs_f64(),
                    dispatches: dispatches as u32,
                });
            }
        }
        Ok((Vec::new(), times))
    }

    /// Writes a part of the step's commands and hands them over.
    fn encode(
        &self,
        mut commands: Box<dyn CommandBuffer>,
        launches: &[&Launch],
        is_first: bool,
        is_last: bool,
    ) -> Result<Arc<dyn Completion>, MetalError> {
        let executor = self.executor;
        let slot = &executor.slots[self.slot];
        if let (true, Some(staged)) = (is_first, &executor.staged) {
            let piece = |buffer: &Buffer| Slice { buffer: buffer.clone(), offset: 0, bytes: self.total };
            commands.begin(Pass::Copy);
            commands.copy(&piece(&slot.inputs.buffer), &piece(&staged.buffer))?;
        }
        commands.begin(Pass::Compute { concurrent: executor.options.concurrent });
        for launch in launches {
            if launch.barrier && executor.options.concurrent {
                commands.barrier();
            }
            let shape = (launch.shape)(self.counts);
            if shape.grid.contains(&0) {
                continue;
            }
            let buffers: Vec<(u32, Slice)> =
                launch.buffers.iter().map(|(index, place)| (*index, self.slice(place))).collect();
            commands.dispatch(&Dispatch {
                pipeline: &launch.pipeline,
                args: shape.args.bytes(),
                buffers: &buffers,
                grid: shape.grid,
                threads: launch.threads,
            })?;
        }
        let result = match self.picks {
            [] => self.output_in_arena(self.output_bytes),
            _ => Some(self.picked(self.slot)),
        };
        if let Some(from) = result.filter(|_| is_last && !executor.unified() && self.output_bytes > 0) {
            let to = Slice { buffer: slot.outputs.buffer.clone(), offset: 0, bytes: self.output_bytes };
            commands.begin(Pass::Copy);
            commands.copy(&from, &to)?;
            if to.buffer.mode() == StorageMode::Managed {
                commands.synchronize(&to.buffer)?;
            }
        }
        commands.commit()
    }

    /// The output's place in the arena: where it is written when the host cannot reach what the GPU writes.
    fn output_in_arena(&self, bytes: u64) -> Option<Slice> {
        let region = self.program.plan.region(self.program.output?.value)?;
        let buffer = self.executor.arena.buffer.clone();
        Some(Slice { buffer, offset: region.offset as u64, bytes })
    }

    fn slice(&self, place: &Place) -> Slice {
        let executor = self.executor;
        let rows = |rows: &Rows| match rows {
            Rows::Tokens => u64::from(self.counts.tokens),
            Rows::Outputs => u64::from(self.counts.outputs),
        };
        match place {
            Place::Fixed(slice) => slice.clone(),
            Place::Value { offset, rows: kind, row_bytes } => Slice {
                buffer: executor.arena.buffer.clone(),
                offset: *offset,
                bytes: rows(kind) * row_bytes,
            },
            Place::Scratch { region, first } => Slice {
                buffer: executor.arena.buffer.clone(),
                offset: (region.offset + first) as u64,
                bytes: (region.bytes - first) as u64,
            },
            Place::Step(part) => self.step_part(*part),
            Place::Output { rows: kind, row_bytes } => {
                let bytes = rows(kind) * row_bytes;
                let outputs = executor.slots[self.slot].outputs.buffer.clone();
                match self.output_in_arena(bytes) {
                    Some(slice) if !executor.unified() => slice,
                    _ => Slice { buffer: outputs, offset: 0, bytes },
                }
            }
            Place::Candidates { before, count } => {
                let rows = u64::from(self.counts.picks);
                let buffer = executor.candidates.buffer.clone();
                Slice { buffer, offset: 8 * rows * before, bytes: 8 * rows * count }
            }
            Place::Picked => self.picked(self.slot),
            Place::PickedBefore => Slice::whole(&executor.slots[self.slot_before].picked.buffer),
            Place::Nothing => Slice { buffer: executor.nothing.clone(), offset: 0, bytes: 0 },
        }
    }

    /// The tokens that a step in a slot picks.
    fn picked(&self, slot: usize) -> Slice {
        let buffer = self.executor.slots[slot].picked.buffer.clone();
        Slice { buffer, offset: 0, bytes: RESULT_BYTES * u64::from(self.counts.picks) }
    }

    fn step_part(&self, part: StepPart) -> Slice {
        let layout = &self.program.layout;
        let inputs = &self.executor.slots[self.slot].inputs;
        let buffer = self.executor.staged.as_ref().unwrap_or(inputs).buffer.clone();
        Slice { buffer, offset: layout.offset(part, self.counts), bytes: layout.bytes(part, self.counts) }
    }
}
