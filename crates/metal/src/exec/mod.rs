//! Runs plans on a Metal device.

mod frame;
mod heads;
mod launch;
mod measure;
mod pick;
mod products;
mod program;
mod recurrent;
mod rope;
mod step;
mod transfer;
mod weights;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use wootz_graph::op::Rope;
use wootz_graph::{
    CacheLayout, Executor, LoadRequest, MemoryUse, Picked, Plan, ProgramId, RunError, Sampling, StepInputs,
    StepOutput, StepTime, Ticket, sampling,
};

use crate::device::{Buffer, Completion, MetalDevice, Residency, Slice, StorageMode};
use crate::error::MetalError;
use frame::Frame;
pub(crate) use measure::limits;
use pick::{RESULT_BYTES, Reach};
use program::{CacheBuffers, Compiler, Program, RopeTables};
use transfer::{TIME_LIMIT, Transfer};
use weights::Weights;

/// Steps that may be under way at a time.
const IN_FLIGHT: usize = 2;

/// Settings of an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExecOptions {
    /// Whether dispatches that no barrier separates may run together.
    pub(crate) concurrent: bool,
    /// Command buffers encoded by further threads.
    pub(crate) command_buffers: usize,
    /// Whether weights are copied to private memory in any case.
    pub(crate) private_weights: bool,
}

/// A buffer that grows with the steps, and is resident while it is there.
struct Growing {
    buffer: Buffer,
    _resident: Box<dyn Residency>,
}

impl Growing {
    fn new(
        device: &dyn MetalDevice,
        bytes: u64,
        mode: StorageMode,
        label: &str,
    ) -> Result<Growing, MetalError> {
        let buffer = device.buffer(bytes, mode, label)?;
        let resident = device.keep_resident(std::slice::from_ref(&buffer))?;
        Ok(Growing { buffer, _resident: resident })
    }

    /// A larger one, unless this one is large enough; what is in it need not be kept.
    fn larger(&self, device: &dyn MetalDevice, bytes: u64) -> Result<Option<Growing>, MetalError> {
        if self.buffer.len() >= bytes {
            return Ok(None);
        }
        let bytes = bytes.next_power_of_two().min(device.caps().max_buffer).max(bytes);
        Growing::new(device, bytes, self.buffer.mode(), self.buffer.label()).map(Some)
    }
}

/// Buffers of one step under way.
struct Slot {
    /// Written by the host.
    inputs: Growing,
    /// Read by the host.
    outputs: Growing,
    /// Tokens that the step picked: the next step may read them.
    picked: Growing,
    /// Their number.
    picks: usize,
    running: Vec<Arc<dyn Completion>>,
}

/// A step that was submitted.
struct Pending {
    ticket: Ticket,
    slot: usize,
    rows: usize,
    cols: usize,
    picks: bool,
}

/// Step times, and when tracing began.
struct Trace {
    start: Instant,
    times: Vec<StepTime>,
}

/// One model on one Metal device.
pub(crate) struct MetalExecutor {
    device: Arc<dyn MetalDevice>,
    name: String,
    backend: &'static str,
    options: ExecOptions,
    weights: Weights,
    layout: CacheLayout,
    caches: Vec<CacheBuffers>,
    transfer: Transfer,
    ropes: Vec<(Rope, RopeTables)>,
    programs: Vec<Program>,
    arena: Growing,
    /// Candidates among which tokens are picked.
    candidates: Growing,
    /// The GPU's copy of step inputs, where it does not read the host's.
    staged: Option<Growing>,
    nothing: Buffer,
    slots: Vec<Slot>,
    pending: VecDeque<Pending>,
    submitted: u64,
    output: Vec<f32>,
    trace: Option<Trace>,
    /// Of the caches.
    _resident: Box<dyn Residency>,
}

impl MetalExecutor {
    /// Brings a model to a device.
    pub(crate) fn load(
        device: Arc<dyn MetalDevice>,
        name: &str,
        backend: &'static str,
        options: ExecOptions,
        request: LoadRequest<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<MetalExecutor, RunError> {
        let LoadRequest { weights, source, caches: layout, graph } = request;
        check_cache_types(&layout)?;
        let width = device.caps().simd_width;
        if !matches!(width, 32 | 64) {
            let reason = format!("simdgroups of {width} threads: the kernels take 32 or 64");
            return Err(RunError::Device { device: name.to_owned(), reason });
        }
        let mut transfer = Transfer::new(device.clone());
        let weights = Weights::load(
            device.clone(),
            name,
            (weights, source),
            graph,
            (&mut transfer, options.private_weights),
            progress,
        )?;
        let on = |e: MetalError| e.on(name);
        let mut caches = Vec::new();
        let mut buffers = Vec::new();
        for spec in &layout.caches {
            let blocks = u64::from(layout.groups[spec.group as usize].blocks);
            if spec.is_state() {
                let label = format!("state of layer {}", spec.layer);
                let bytes = blocks * size_of::<f32>() as u64 * u64::from(spec.state);
                let buffer = device.buffer(bytes, transfer.gpu_mode(), &label).map_err(on)?;
                buffers.push(buffer.clone());
                caches.push(CacheBuffers::State(Slice::whole(&buffer)));
                continue;
            }
            let positions = blocks * u64::from(spec.kv_heads) * wootz_graph::BLOCK_TOKENS as u64;
            let mut make = |ty: wootz_graph::KvType, dim: u32, what: &str| {
                let bytes = positions * ty.bytes(dim as usize) as u64;
                let label = format!("{what} of layer {}", spec.layer);
                let buffer = device.buffer(bytes, transfer.gpu_mode(), &label)?;
                buffers.push(buffer.clone());
                Ok(Slice::whole(&buffer))
            };
            let k = make(layout.k_type, spec.k_dim, "keys").map_err(on)?;
            let v = make(layout.v_type, spec.v_dim, "values").map_err(on)?;
            caches.push(CacheBuffers::KeysValues { k, v });
        }
        let growing = |mode, label: &str| Growing::new(&*device, 1, mode, label);
        let arena = growing(transfer.gpu_mode(), "arena").map_err(on)?;
        let candidates = growing(transfer.gpu_mode(), "candidates").map_err(on)?;
        let staged = match device.caps().unified {
            true => None,
            false => Some(growing(transfer.gpu_mode(), "staged step inputs").map_err(on)?),
        };
        let nothing = device.buffer(16, transfer.gpu_mode(), "nothing").map_err(on)?;
        let resident = device.keep_resident(&buffers).map_err(on)?;
        let slots = (0..IN_FLIGHT)
            .map(|_| {
                Ok(Slot {
                    inputs: growing(transfer.upload_mode(), "step inputs")?,
                    outputs: growing(transfer.readback_mode(), "step outputs")?,
                    picked: growing(transfer.picked_mode(), "picked tokens")?,
                    picks: 0,
                    running: Vec::new(),
                })
            })
            .collect::<Result<_, _>>()
            .map_err(on)?;
        Ok(MetalExecutor {
            device,
            name: name.to_owned(),
            backend,
            options,
            weights,
            layout,
            caches,
            transfer,
            ropes: Vec::new(),
            programs: Vec::new(),
            arena,
            candidates,
            staged,
            nothing,
            slots,
            pending: VecDeque::new(),
            submitted: 0,
            output: Vec::new(),
            trace: None,
            _resident: resident,
        })
    }

    fn failed(&self, e: MetalError) -> RunError {
        e.on(&self.name)
    }

    /// Waits for all steps under way; their results stay to be asked for.
    fn drain(&mut self) -> Result<(), RunError> {
        let mut result = Ok(());
        for slot in &self.slots {
            for completion in &slot.running {
                result = result.and(completion.wait(TIME_LIMIT));
            }
        }
        result.map_err(|e| self.failed(e))
    }

    /// Whether the GPU reads the host's memory itself.
    fn unified(&self) -> bool {
        self.device.caps().unified
    }

    fn run(
        &mut self,
        id: ProgramId,
        inputs: &StepInputs<'_>,
        sampling: Option<&[Sampling<'_>]>,
    ) -> Result<Ticket, RunError> {
        let mut programs = std::mem::take(&mut self.programs);
        let result = match programs.get_mut(id.0 as usize) {
            Some(program) => self.run_program(id, program, inputs, sampling),
            None => Err(RunError::Plan(format!("there is no program {}", id.0))),
        };
        self.programs = programs;
        let pending = result?;
        let ticket = pending.ticket;
        // A slot holds the results of its last step alone.
        self.pending.retain(|p| p.slot != pending.slot);
        self.pending.push_back(pending);
        Ok(ticket)
    }

    fn run_program(
        &mut self,
        id: ProgramId,
        program: &mut Program,
        inputs: &StepInputs<'_>,
        sampling: Option<&[Sampling<'_>]>,
    ) -> Result<Pending, RunError> {
        let key = program.plan.graph.key;
        inputs.check(&key)?;
        inputs.check_states(&self.layout.groups)?;
        let outputs = inputs.output_rows(&key);
        let reach = sampling.map(|sampling| self.pick_launches(program, sampling, outputs)).transpose()?;
        let program = &*program;
        let before = (self.submitted as usize).wrapping_sub(1) % self.slots.len();
        let at = (self.submitted as usize) % self.slots.len();
        let sizes = (program.entries, self.slots[before].picks, outputs);
        let (data, counts) = program.layout.pack(inputs, sampling.unwrap_or(&[]), sizes)?;
        // The slot's last step must be over before its buffers are written again; whoever waits for it hears of other
        // failures.
        for completion in &self.slots[at].running {
            if let Err(e @ MetalError::TimedOut { .. }) = completion.wait(TIME_LIMIT) {
                return Err(self.failed(e));
            }
        }
        self.slots[at].running.clear();
        let cols = program.output.map_or(0, |o| o.cols);
        let rows = program.output.map_or(0, |o| match o.rows {
            wootz_graph::Rows::Tokens => counts.tokens,
            wootz_graph::Rows::Outputs => counts.outputs,
        });
        let row_bytes = 4 * u64::from(rows) * cols as u64;
        self.reserve(at, data.len() as u64, row_bytes)?;
        let picks: &[launch::Launch] = match reach {
            Some(reach) => {
                self.reserve_picks(at, u64::from(counts.picks), reach.candidates(cols as u32))?;
                program.picks.iter().find(|(r, _)| *r == reach).map_or(&[], |(_, launches)| launches)
            }
            None => &[],
        };
        self.device.before_step(self.submitted).map_err(|e| self.failed(e))?;
        self.slots[at].picks = counts.picks as usize;
        self.slots[at].inputs.buffer.write(0, &data).map_err(|e| self.failed(e))?;
        let output_bytes = if picks.is_empty() { row_bytes } else { RESULT_BYTES * u64::from(counts.picks) };
        let frame = Frame {
            executor: self,
            program,
            picks,
            counts,
            slot: at,
            slot_before: before,
            total: data.len() as u64,
            output_bytes,
        };
        let (running, times) = frame.submit(id).map_err(|e| self.failed(e))?;
        self.slots[at].running = running;
        if let Some(trace) = &mut self.trace {
            trace.times.extend(times);
        }
        self.submitted += 1;
        let (rows, picks) = (rows as usize, !picks.is_empty());
        Ok(Pending { ticket: Ticket(self.submitted), slot: at, rows, cols, picks })
    }

    /// Makes the launches that pick tokens, unless they are there.
    fn pick_launches(
        &self,
        program: &mut Program,
        sampling: &[Sampling<'_>],
        outputs: usize,
    ) -> Result<Reach, RunError> {
        let output = program.output.filter(|_| outputs > 0);
        let (Some(output), Some(reach)) = (output, Reach::of(sampling)) else {
            let what = format!("{} tokens to be picked from {outputs} rows", sampling.len());
            return Err(RunError::Input(what));
        };
        sampling::check(sampling, outputs, output.cols)?;
        if program.picks.iter().all(|(r, _)| *r != reach) {
            let step = program.plan.steps.len();
            let launches = pick::launches(&*self.device, &self.name, output, step, reach)?;
            program.picks.push((reach, launches));
        }
        Ok(reach)
    }

    /// Makes room for a step's inputs and outputs.
    fn reserve(&mut self, at: usize, inputs: u64, outputs: u64) -> Result<(), RunError> {
        let device = self.device.clone();
        let larger = self.slots[at].inputs.larger(&*device, inputs).map_err(|e| self.failed(e))?;
        if let Some(larger) = larger {
            self.slots[at].inputs = larger;
        }
        let larger = self.slots[at].outputs.larger(&*device, outputs).map_err(|e| self.failed(e))?;
        if let Some(larger) = larger {
            self.slots[at].outputs = larger;
        }
        let larger = self.staged.as_ref().map(|s| s.larger(&*device, inputs)).transpose();
        if let Some(larger) = larger.map_err(|e| self.failed(e))?.flatten() {
            // Steps under way use the old one.
            self.drain()?;
            self.staged = Some(larger);
        }
        Ok(())
    }

    /// Makes room for tokens picked from so many rows, with so many candidates of each.
    fn reserve_picks(&mut self, at: usize, rows: u64, candidates: u64) -> Result<(), RunError> {
        let device = self.device.clone();
        let larger =
            self.slots[at].picked.larger(&*device, RESULT_BYTES * rows).map_err(|e| self.failed(e))?;
        if let Some(larger) = larger {
            // The step of the other slot may read the old one.
            self.drain()?;
            self.slots[at].picked = larger;
        }
        let larger =
            self.slots[at].outputs.larger(&*device, RESULT_BYTES * rows).map_err(|e| self.failed(e))?;
        if let Some(larger) = larger {
            self.slots[at].outputs = larger;
        }
        let larger = self.candidates.larger(&*device, 8 * rows * candidates).map_err(|e| self.failed(e))?;
        if let Some(larger) = larger {
            self.drain()?;
            self.candidates = larger;
        }
        Ok(())
    }

    /// Waits for a step, which leaves the list of those under way.
    fn finish(&mut self, ticket: Ticket, picks: bool) -> Result<Pending, RunError> {
        let at = self.pending.iter().position(|p| p.ticket == ticket && p.picks == picks);
        let Some(pending) = at.and_then(|at| self.pending.remove(at)) else {
            return Err(RunError::Input(format!("step {} is not under way", ticket.0)));
        };
        let mut result = Ok(());
        for completion in &self.slots[pending.slot].running {
            result = result.and(completion.wait(TIME_LIMIT));
        }
        result.map_err(|e| self.failed(e))?;
        Ok(pending)
    }

    /// The pieces of all caches of a group that hold one block.
    fn block_pieces(&self, group: u32, block: u32) -> Result<Vec<Slice>, RunError> {
        let blocks = self.layout.groups.get(group as usize).map_or(0, |g| g.blocks);
        if block >= blocks {
            return Err(RunError::Input(format!("block {block} of {blocks} in group {group}")));
        }
        let own = self.caches.iter().zip(&self.layout.caches).filter(|(_, s)| s.group == group);
        let pieces = own.flat_map(|(cache, _)| {
            cache.pieces().map(|s| {
                let bytes = s.bytes / u64::from(blocks);
                s.part(u64::from(block) * bytes, bytes)
            })
        });
        Ok(pieces.collect())
    }
}

/// Quantised caches hold whole groups of 32 elements.
fn check_cache_types(layout: &CacheLayout) -> Result<(), RunError> {
    use wootz_graph::KvType::{Q4_0, Q8_0};
    for spec in &layout.caches {
        for (ty, dim) in [(layout.k_type, spec.k_dim), (layout.v_type, spec.v_dim)] {
            if matches!(ty, Q8_0 | Q4_0) && !dim.is_multiple_of(32) {
                let what = format!("heads of {dim} elements in a cache of type {}", ty.name());
                return Err(RunError::Plan(what));
            }
        }
    }
    Ok(())
}

impl Executor for MetalExecutor {
    fn memory(&self) -> MemoryUse {
        let buffers = |slot: &Slot| slot.inputs.buffer.len() + slot.outputs.buffer.len();
        let staged = self.staged.as_ref().map_or(0, |b| b.buffer.len());
        MemoryUse {
            weights: self.weights.bytes(),
            caches: self.caches.iter().flat_map(CacheBuffers::pieces).map(|s| s.bytes).sum(),
            scratch: self.arena.buffer.len() + staged + self.slots.iter().map(buffers).sum::<u64>(),
        }
    }

    fn compile(&mut self, plan: Plan) -> Result<ProgramId, RunError> {
        if plan.backend != self.backend {
            return Err(RunError::Plan(format!("it was made for {}", plan.backend)));
        }
        let larger = self.arena.larger(&*self.device, plan.arena_bytes as u64);
        if let Some(larger) = larger.map_err(|e| self.failed(e))? {
            // Steps under way use the old one.
            self.drain()?;
            self.arena = larger;
        }
        let mut compiler = Compiler {
            device: &self.device,
            name: &self.name,
            weights: &self.weights,
            transfer: &mut self.transfer,
            caches: &self.caches,
            layout: &self.layout,
            ropes: &mut self.ropes,
        };
        self.programs.push(compiler.program(plan)?);
        // Kernels that could not be kept are compiled again by the next run.
        let _ = self.device.keep_kernels();
        Ok(ProgramId(self.programs.len() as u32 - 1))
    }

    fn submit(&mut self, program: ProgramId, inputs: &StepInputs<'_>) -> Result<Ticket, RunError> {
        self.run(program, inputs, None)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<StepOutput<'_>, RunError> {
        let pending = self.finish(ticket, false)?;
        self.output.resize(pending.rows * pending.cols, 0.0);
        let outputs = self.slots[pending.slot].outputs.buffer.clone();
        outputs.read(0, bytemuck::cast_slice_mut(&mut self.output)).map_err(|e| self.failed(e))?;
        Ok(StepOutput { rows: pending.rows, cols: pending.cols, data: &self.output })
    }

    fn can_pick(&self, sampling: &Sampling<'_>) -> bool {
        Reach::of(std::slice::from_ref(sampling)).is_some()
    }

    fn submit_picking(
        &mut self,
        program: ProgramId,
        inputs: &StepInputs<'_>,
        sampling: &[Sampling<'_>],
    ) -> Result<Ticket, RunError> {
        self.run(program, inputs, Some(sampling))
    }

    fn wait_picked(&mut self, ticket: Ticket) -> Result<Vec<Picked>, RunError> {
        let pending = self.finish(ticket, true)?;
        let slot = &self.slots[pending.slot];
        let from = if self.unified() { &slot.picked } else { &slot.outputs };
        let mut words = vec![0u32; 4 * slot.picks];
        from.buffer.read(0, bytemuck::cast_slice_mut(&mut words)).map_err(|e| self.failed(e))?;
        Ok(pick::results(&words))
    }

    fn set_tracing(&mut self, on: bool) {
        self.trace = on.then(|| Trace { start: Instant::now(), times: Vec::new() });
    }

    fn take_trace(&mut self) -> Vec<StepTime> {
        self.trace.as_mut().map(|t| std::mem::take(&mut t.times)).unwrap_or_default()
    }

    fn copy_blocks(&mut self, group: u32, pairs: &[(u32, u32)]) -> Result<(), RunError> {
        let mut copies = Vec::new();
        for (from, to) in pairs {
            copies.extend(self.block_pieces(group, *from)?.into_iter().zip(self.block_pieces(group, *to)?));
        }
        if copies.is_empty() {
            return Ok(());
        }
        self.transfer.copy_now(&copies, None).map_err(|e| self.failed(e))
    }

    fn read_block(&mut self, group: u32, block: u32, out: &mut Vec<u8>) -> Result<(), RunError> {
        for piece in self.block_pieces(group, block)? {
            let at = out.len();
            out.resize(at + piece.bytes as usize, 0);
            let read = self.transfer.read(&piece, &mut out[at..]);
            read.map_err(|e| e.on(&self.name))?;
        }
        Ok(())
    }

    fn write_block(&mut self, group: u32, block: u32, bytes: &[u8]) -> Result<(), RunError> {
        let pieces = self.block_pieces(group, block)?;
        let expected: u64 = pieces.iter().map(|p| p.bytes).sum();
        if bytes.len() as u64 != expected {
            return Err(RunError::Input(format!("a block has {expected} bytes, not {}", bytes.len())));
        }
        let mut rest = bytes;
        for piece in pieces {
            let (own, after) = rest.split_at(piece.bytes as usize);
            self.transfer.write(&piece, own).map_err(|e| e.on(&self.name))?;
            rest = after;
        }
        Ok(())
    }
}

impl Drop for MetalExecutor {
    /// The GPU may still use the buffers.
    fn drop(&mut self) {
        // There is nobody left to tell of a failure.
        let _ = self.drain();
    }
}
