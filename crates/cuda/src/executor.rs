//! One model on one device.

use std::cell::RefCell;
use std::sync::Arc;

use wootz_graph::op::Op;
use wootz_graph::{
    CacheLayout, Entries, Executor, LoadRequest, MemoryUse, Picked, Plan, ProgramId, Rows, RunError,
    Sampling, StepInputs, StepOutput, StepTime, Ticket, sampling,
};

use crate::machine::{DeviceBuffer, HostBuffer, Launch, Machine, OwnedMark, Recorded};
use crate::pick::Picker;
use crate::program::{self, Forms, Resolver, RopeSlot, TAIL_BUFFERS, Value, Workspace};
use crate::rope;
use crate::select::Kernels;
use crate::step::{self, StepPlaces};
use crate::weights::Weights;

/// Steps that may be under way at once.
const SLOTS: usize = 4;

/// A plan that is ready to run.
struct Program {
    plan: Plan,
    places: StepPlaces,
    /// The inputs of the step that runs.
    inputs: DeviceBuffer,
    ropes: Vec<RopeSlot>,
    forms: Forms,
    /// Second summands of values.
    tails: DeviceBuffer,
    /// For tokens of different sequences, where attention has kernels for such; for all others last.
    variants: Vec<Variant>,
    output: Option<Value>,
    /// Entries of the smallest table that tokens are looked up in.
    entries: Entries,
}

/// The launches of each step of a plan.
struct Variant {
    launches: Vec<Vec<Launch>>,
    recorded: Option<Recorded>,
}

/// A step under way, or the room for one.
struct Slot {
    inputs: HostBuffer,
    /// Parameters of picking.
    sampling: HostBuffer,
    /// Rows, or what was picked from them.
    output: HostBuffer,
    done: OwnedMark,
    ticket: Option<Ticket>,
    picks: bool,
    rows: usize,
    cols: usize,
}

/// Marks around a step of a plan.
struct Traced {
    program: ProgramId,
    step: u32,
    start: OwnedMark,
    end: OwnedMark,
    launches: usize,
}

/// Steps that were timed since tracing began.
struct Trace {
    start: OwnedMark,
    steps: Vec<Traced>,
}

/// One model on one device.
pub(crate) struct CudaExecutor {
    machine: Arc<dyn Machine>,
    kernels: Kernels,
    weights: Weights,
    layout: CacheLayout,
    caches: Vec<DeviceBuffer>,
    /// Values of the plan that runs; plans run one after the other and share it.
    arena: DeviceBuffer,
    /// Parts of results of the kernel that runs, and counters.
    partial: DeviceBuffer,
    counters: DeviceBuffer,
    /// Summands and images of activations that a step leaves to the next.
    summands: DeviceBuffer,
    images: DeviceBuffer,
    programs: Vec<Program>,
    picker: Picker,
    slots: Vec<Slot>,
    submitted: u64,
    trace: Option<Trace>,
}

impl CudaExecutor {
    /// Loads weights and makes caches.
    pub(crate) fn load(
        machine: Arc<dyn Machine>,
        kernels: Kernels,
        request: LoadRequest<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<CudaExecutor, RunError> {
        let LoadRequest { weights, source, caches: layout, graph } = request;
        check_heads(&layout)?;
        let mut weights = Weights::new(machine.clone(), kernels, weights, source);
        weights.load(graph, layout.total_bytes(), progress)?;
        let mut caches = Vec::new();
        for spec in &layout.caches {
            let blocks = layout.groups[spec.group as usize].blocks as usize;
            let bytes = blocks * spec.block_bytes(layout.k_type, layout.v_type);
            let buffer = DeviceBuffer::new(&machine, bytes, &format!("the cache of layer {}", spec.layer))?;
            machine.clear(buffer.address(), bytes)?;
            caches.push(buffer);
        }
        let slot = || -> Result<Slot, RunError> {
            Ok(Slot {
                inputs: HostBuffer::new(&machine, 0)?,
                sampling: HostBuffer::new(&machine, 0)?,
                output: HostBuffer::new(&machine, 0)?,
                done: OwnedMark::here(&machine)?,
                ticket: None,
                picks: false,
                rows: 0,
                cols: 0,
            })
        };
        let slots = (0..SLOTS).map(|_| slot()).collect::<Result<_, _>>()?;
        Ok(CudaExecutor {
            kernels,
            weights,
            layout,
            caches,
            arena: DeviceBuffer::new(&machine, 0, "values")?,
            partial: DeviceBuffer::new(&machine, 0, "parts of sums")?,
            counters: DeviceBuffer::new(&machine, 0, "counters")?,
            summands: DeviceBuffer::new(&machine, 0, "summands")?,
            images: DeviceBuffer::new(&machine, 0, "images of activations")?,
            programs: Vec::new(),
            picker: Picker::new(&machine)?,
            slots,
            submitted: 0,
            trace: None,
            machine,
        })
    }

    /// The tables of a plan's rotary embeddings.
    fn ropes(&self, plan: &Plan) -> Result<Vec<RopeSlot>, RunError> {
        let mut slots: Vec<RopeSlot> = Vec::new();
        for node in &plan.graph.nodes {
            let Op::Rope(rope) = &node.op else { continue };
            if slots.iter().any(|slot| slot.serves(rope)) {
                continue;
            }
            let factors = rope.factors.map(|w| self.weights.elements(w)).transpose()?;
            let turns = rope::turns(rope, factors.as_deref());
            let on_device = DeviceBuffer::new(&self.machine, 8 * turns.len(), "frequencies")?;
            self.put(on_device.address(), bytemuck::cast_slice(&turns))?;
            let streams = match rope.sections {
                Some(_) => {
                    let buffer = DeviceBuffer::new(&self.machine, 4 * turns.len(), "streams")?;
                    self.put(buffer.address(), bytemuck::cast_slice(&rope.streams()))?;
                    Some(buffer)
                }
                None => None,
            };
            let table = 8 * turns.len() * plan.graph.key.tokens as usize;
            let table = DeviceBuffer::new(&self.machine, table, "rotations")?;
            slots.push(RopeSlot::new(rope, on_device, streams, table));
        }
        Ok(slots)
    }

    /// Copies bytes to the device and waits for it.
    fn put(&self, to: u64, bytes: &[u8]) -> Result<(), RunError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let mut buffer = HostBuffer::new(&self.machine, bytes.len())?;
        buffer.copy_from_slice(bytes);
        // SAFETY: the buffer lives until the copy is over.
        unsafe { self.machine.copy_in(to, &buffer)? };
        self.machine.finish()
    }

    /// Resolves a program's launches, with the workspace that they need.
    fn resolve(&self, program: &mut Program) -> Result<[usize; 4], RunError> {
        let [_, places @ ..] = self.shared_places();
        let workspace = Workspace::new(places);
        let mut variants = Vec::new();
        for apart in [true, false] {
            let resolver = Resolver {
                plan: &program.plan,
                kernels: self.kernels,
                apart,
                forms: &program.forms,
                tails: program.tails.address(),
                parts: RefCell::default(),
                added: RefCell::default(),
                workspace: &workspace,
                properties: self.machine.properties(),
                weights: &self.weights,
                arena: self.arena.address(),
                inputs: program.inputs.address(),
                places: &program.places,
                layout: &self.layout,
                caches: &self.caches,
                ropes: &program.ropes,
                picked: self.picker.tokens(),
            };
            // Most plans do the same for both.
            if apart && !resolver.depends_on_sequences() {
                continue;
            }
            let output = program.plan.graph.outputs.first().map(|(_, value)| resolver.value(*value));
            program.output = output.transpose()?;
            variants.push(Variant { launches: resolver.launches()?, recorded: None });
        }
        for old in std::mem::replace(&mut program.variants, variants) {
            if let Some(recorded) = old.recorded {
                self.machine.forget(recorded);
            }
        }
        Ok(workspace.needed())
    }

    /// Where the memory that plans share lies.
    fn shared_places(&self) -> [u64; 5] {
        [&self.arena, &self.partial, &self.counters, &self.summands, &self.images].map(DeviceBuffer::address)
    }

    /// Makes room for a program's values and workspace; what was there is lost, and all programs are resolved again.
    fn reserve(&mut self, program: &mut Program) -> Result<(), RunError> {
        let arena = program.plan.arena_bytes;
        let [partial, counters, summands, images] = self.resolve(program)?;
        let before = self.shared_places();
        let mut refused = None;
        for (buffer, bytes, what) in [
            (&mut self.arena, arena, "values of a plan"),
            (&mut self.partial, partial, "parts of sums"),
            (&mut self.counters, counters, "counters"),
            (&mut self.summands, summands, "summands"),
            (&mut self.images, images, "images of activations"),
        ] {
            let old = buffer.bytes();
            if old >= bytes {
                continue;
            }
            self.machine.finish()?;
            // The old memory is given back first: the new one may need it.
            *buffer = DeviceBuffer::new(&self.machine, 0, what)?;
            *buffer = match DeviceBuffer::new(&self.machine, bytes, what) {
                Ok(buffer) => buffer,
                Err(e) => {
                    // The programs that are there go on with what they had.
                    refused = Some(e);
                    DeviceBuffer::new(&self.machine, old, what)?
                }
            };
            self.machine.clear(buffer.address(), buffer.bytes())?;
        }
        if before == self.shared_places() {
            return refused.map_or(Ok(()), Err);
        }
        let mut programs = std::mem::take(&mut self.programs);
        let moved = programs.iter_mut().chain([program]).try_for_each(|p| self.resolve(p).map(drop));
        self.programs = programs;
        moved.and(refused.map_or(Ok(()), Err))
    }

    /// Queues a step that returns rows or, with `sampling`, tokens picked from them.
    fn start(
        &mut self,
        id: ProgramId,
        inputs: &StepInputs<'_>,
        sampling: Option<&[Sampling<'_>]>,
    ) -> Result<Ticket, RunError> {
        let program = self.programs.get(id.0 as usize);
        let program = program.ok_or_else(|| RunError::Plan(format!("there is no program {}", id.0)))?;
        inputs.check_entries(program.entries, self.picker.rows())?;
        inputs.check_states(&self.layout.groups)?;
        let outputs = inputs.output_rows(&program.plan.graph.key);
        let slot = &mut self.slots[self.submitted as usize % SLOTS];
        slot.done.wait()?;
        slot.ticket = None;
        let (rows, cols) = match program.output {
            Some(Value { rows: Rows::Tokens, cols, .. }) => (inputs.tokens.len(), cols as usize),
            Some(Value { rows: Rows::Outputs, cols, .. }) => (outputs, cols as usize),
            None => (0, 0),
        };
        if let Some(sampling) = sampling {
            sampling::check(sampling, rows, cols)?;
        }
        let in_bytes = program.places.bytes();
        let out_bytes = if sampling.is_some() { Picker::result_bytes(rows) } else { 4 * rows * cols };
        for (buffer, bytes) in [(&mut slot.inputs, in_bytes), (&mut slot.output, out_bytes)] {
            if buffer.len() < bytes {
                *buffer = HostBuffer::new(&self.machine, bytes.next_power_of_two())?;
            }
        }
        let blocks: Vec<u32> = self.layout.groups.iter().map(|g| g.blocks).collect();
        program.places.fill(inputs, outputs, &blocks, &mut slot.inputs)?;
        // The buffer is written again only after the step's mark is reached.
        self.machine.launch_early(&step::take(&slot.inputs, program.inputs.address(), in_bytes))?;
        let output = program.output;
        // Tokens of one sequence stand together.
        let apart = inputs.sequences.array_windows().all(|[a, b]| a != b);
        self.run(id, apart)?;
        let slot = &mut self.slots[self.submitted as usize % SLOTS];
        self.picker.skip();
        // The output's buffer has room, and is read or written only after the step's mark is reached.
        match output.filter(|_| out_bytes > 0).map(|value| (value, sampling)) {
            Some((value, Some(sampling))) => {
                let Slot { sampling: staging, output, .. } = slot;
                self.picker.start(value.address, value.cols, sampling, staging, output)?;
            }
            // SAFETY: as said above.
            Some((value, None)) => unsafe {
                self.machine.copy_out(slot.output.pointer(), value.address, out_bytes)?;
            },
            None => {}
        }
        slot.done.set()?;
        self.submitted += 1;
        let ticket = Ticket(self.submitted);
        (slot.ticket, slot.picks, slot.rows, slot.cols) = (Some(ticket), sampling.is_some(), rows, cols);
        Ok(ticket)
    }

    /// The slot of a step that is over, which returns rows or picks tokens.
    fn finished(&self, ticket: Ticket, picks: bool) -> Result<&Slot, RunError> {
        let slot = self.slots.iter().find(|slot| slot.ticket == Some(ticket) && slot.picks == picks);
        let slot = slot.ok_or_else(|| {
            let what = if picks { "of those that picked tokens" } else { "of those that return rows" };
            RunError::Input(format!("step {} is not among the last {SLOTS} submitted, {what}", ticket.0))
        })?;
        slot.done.wait()?;
        Ok(slot)
    }

    /// Queues the launches of a program; `apart` says that all tokens are of different sequences.
    fn run(&mut self, id: ProgramId, apart: bool) -> Result<(), RunError> {
        let variants = &mut self.programs[id.0 as usize].variants;
        let last = variants.len() - 1;
        let variant = &mut variants[if apart { 0 } else { last }];
        if let Some(trace) = &mut self.trace {
            for (step, launches) in variant.launches.iter().enumerate() {
                let start = OwnedMark::here(&self.machine)?;
                launches.iter().try_for_each(|launch| self.machine.launch(launch))?;
                let end = OwnedMark::here(&self.machine)?;
                let launches = launches.len();
                trace.steps.push(Traced { program: id, step: step as u32, start, end, launches });
            }
            return Ok(());
        }
        let recorded = match variant.recorded {
            Some(recorded) => recorded,
            None => {
                let launches: Vec<Launch> = variant.launches.iter().flatten().cloned().collect();
                *variant.recorded.insert(self.machine.record(&launches)?)
            }
        };
        self.machine.replay(recorded)
    }

    /// Caches of a group with the bytes of their blocks.
    fn group(&self, group: u32) -> impl Iterator<Item = (&DeviceBuffer, usize)> {
        let (k, v) = (self.layout.k_type, self.layout.v_type);
        let caches = self.caches.iter().zip(&self.layout.caches);
        caches.filter(move |(_, spec)| spec.group == group).map(move |(c, spec)| (c, spec.block_bytes(k, v)))
    }

    /// Checks the number of a block of a group.
    fn check_block(&self, group: u32, block: u32) -> Result<(), RunError> {
        let blocks = self.layout.groups.get(group as usize).map_or(0, |g| g.blocks);
        if block < blocks { Ok(()) } else { Err(RunError::Input(format!("cache block {block} of {blocks}"))) }
    }
}

/// Quantised caches hold whole groups of 32 elements.
fn check_heads(layout: &CacheLayout) -> Result<(), RunError> {
    for spec in &layout.caches {
        for (dim, ty) in [(spec.k_dim, layout.k_type), (spec.v_dim, layout.v_type)] {
            let grouped = matches!(ty, wootz_graph::KvType::Q8_0 | wootz_graph::KvType::Q4_0);
            if grouped && !dim.is_multiple_of(32) {
                let ty = ty.name();
                return Err(RunError::Plan(format!(
                    "{ty} caches need heads of a multiple of 32 elements, found {dim}"
                )));
            }
        }
    }
    Ok(())
}

impl Executor for CudaExecutor {
    fn memory(&self) -> MemoryUse {
        let programs = self.programs.iter().map(|p| {
            let ropes: usize = p.ropes.iter().map(|r| r.turns.bytes() + r.table.bytes()).sum();
            p.inputs.bytes() + p.tails.bytes() + ropes
        });
        MemoryUse {
            weights: self.weights.bytes(),
            caches: self.caches.iter().map(|c| c.bytes() as u64).sum(),
            scratch: (self.arena.bytes()
                + self.partial.bytes()
                + self.counters.bytes()
                + self.summands.bytes()
                + self.images.bytes()
                + self.picker.bytes()
                + programs.sum::<usize>()) as u64,
        }
    }

    fn compile(&mut self, plan: Plan) -> Result<ProgramId, RunError> {
        if plan.backend != "cuda" {
            return Err(RunError::Plan(format!("it was made for {}", plan.backend)));
        }
        self.weights.load(&plan.graph, 0, &mut |_| ())?;
        let places = StepPlaces::new(&plan.graph, self.layout.groups.len());
        let inputs = DeviceBuffer::new(&self.machine, places.bytes(), "the inputs of a step")?;
        self.machine.clear(inputs.address(), places.bytes())?;
        let entries = plan.graph.entries(self.weights.table());
        let ropes = self.ropes(&plan)?;
        let fast_attend = program::has_fast_attend(&plan, &self.layout);
        let forms = Forms::new(&plan, self.weights.table(), fast_attend, self.layout.v_type);
        let tails = DeviceBuffer::new(&self.machine, TAIL_BUFFERS * forms.tail_bytes, "second summands")?;
        let mut program = Program {
            plan,
            places,
            inputs,
            ropes,
            forms,
            tails,
            variants: Vec::new(),
            output: None,
            entries,
        };
        self.reserve(&mut program)?;
        self.programs.push(program);
        Ok(ProgramId(self.programs.len() as u32 - 1))
    }

    fn submit(&mut self, id: ProgramId, inputs: &StepInputs<'_>) -> Result<Ticket, RunError> {
        self.start(id, inputs, None)
    }

    fn can_pick(&self, sampling: &Sampling<'_>) -> bool {
        Picker::can_pick(sampling)
    }

    fn submit_picking(
        &mut self,
        id: ProgramId,
        inputs: &StepInputs<'_>,
        sampling: &[Sampling<'_>],
    ) -> Result<Ticket, RunError> {
        self.start(id, inputs, Some(sampling))
    }

    fn wait(&mut self, ticket: Ticket) -> Result<StepOutput<'_>, RunError> {
        let slot = self.finished(ticket, false)?;
        let data = bytemuck::cast_slice(&slot.output[..4 * slot.rows * slot.cols]);
        Ok(StepOutput { rows: slot.rows, cols: slot.cols, data })
    }

    fn wait_picked(&mut self, ticket: Ticket) -> Result<Vec<Picked>, RunError> {
        let slot = self.finished(ticket, true)?;
        Ok(Picker::results(&slot.output[..Picker::result_bytes(slot.rows)]))
    }

    fn set_tracing(&mut self, on: bool) {
        // Without a mark to begin at, no step is timed.
        let start = OwnedMark::here(&self.machine).ok().filter(|_| on);
        self.trace = start.map(|start| Trace { start, steps: Vec::new() });
    }

    fn take_trace(&mut self) -> Vec<StepTime> {
        let Some(trace) = &mut self.trace else { return Vec::new() };
        let steps = std::mem::take(&mut trace.steps);
        let time = |traced: &Traced| {
            traced.end.wait()?;
            Ok::<_, RunError>(StepTime {
                program: traced.program,
                step: traced.step,
                start: trace.start.seconds_to(&traced.start)?,
                duration: traced.start.seconds_to(&traced.end)?,
                dispatches: traced.launches as u32,
            })
        };
        // A device that fails has no times to tell; the step itself reports the failure.
        steps.iter().filter_map(|traced| time(traced).ok()).collect()
    }

    fn copy_blocks(&mut self, group: u32, pairs: &[(u32, u32)]) -> Result<(), RunError> {
        for (from, to) in pairs {
            self.check_block(group, *from)?;
            self.check_block(group, *to)?;
            for (cache, bytes) in self.group(group) {
                let at = |block: u32| cache.address() + u64::from(block) * bytes as u64;
                self.machine.copy(at(*to), at(*from), bytes)?;
            }
        }
        Ok(())
    }

    fn read_block(&mut self, group: u32, block: u32, out: &mut Vec<u8>) -> Result<(), RunError> {
        self.check_block(group, block)?;
        let total = self.group(group).map(|(_, bytes)| bytes).sum();
        let mut buffer = HostBuffer::new(&self.machine, total)?;
        let mut at = 0;
        for (cache, bytes) in self.group(group) {
            let from = cache.address() + u64::from(block) * bytes as u64;
            // SAFETY: `total` is the sum of what is copied; the buffer is read after all is over.
            unsafe { self.machine.copy_out(buffer.pointer().add(at), from, bytes)? };
            at += bytes;
        }
        self.machine.finish()?;
        out.extend_from_slice(&buffer);
        Ok(())
    }

    fn write_block(&mut self, group: u32, block: u32, bytes: &[u8]) -> Result<(), RunError> {
        self.check_block(group, block)?;
        let expected: usize = self.group(group).map(|(_, bytes)| bytes).sum();
        if bytes.len() != expected {
            return Err(RunError::Input(format!("a block has {expected} bytes, not {}", bytes.len())));
        }
        let mut buffer = HostBuffer::new(&self.machine, bytes.len())?;
        buffer.copy_from_slice(bytes);
        let mut rest = &buffer[..];
        for (cache, bytes) in self.group(group) {
            let (own, after) = rest.split_at(bytes);
            // SAFETY: the buffer lives until `finish` below.
            unsafe { self.machine.copy_in(cache.address() + u64::from(block) * bytes as u64, own)? };
            rest = after;
        }
        self.machine.finish()
    }
}

impl Drop for CudaExecutor {
    fn drop(&mut self) {
        // Work under way uses what is given back next.
        let _ = self.machine.finish();
        let variants = self.programs.iter_mut().flat_map(|p| &mut p.variants);
        for recorded in variants.filter_map(|v| v.recorded.take()) {
            self.machine.forget(recorded);
        }
    }
}
