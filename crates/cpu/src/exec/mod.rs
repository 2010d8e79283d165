//! Runs plans on the processor.

mod arena;
mod caches;
mod program;
mod rows;
mod run;
mod select;
mod weights;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use wootz_graph::{
    Backend, Device, DeviceInfo, DeviceKind, DeviceLimits, Executor, Graph, LoadRequest, MemoryUse, NodeId,
    Plan, ProgramId, RunError, Selection, StateRun, StepInputs, StepOutput, StepTime, Threads, Ticket,
    WeightTable,
};

use crate::attention::AttentionScratch;
use crate::pool::{Pool, default_workers};
use crate::{Isa, limits};
use arena::Arena;
use caches::Caches;
use program::{Place, Program};
use rows::ActivationPool;
use run::{AttentionSlot, RopeSlot, Scratch};
use weights::Weights;

/// Whether matrices are brought into the kernels' order once, in memory of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Repack {
    /// As far as they fit the free memory; the rest is read from the file at each product.
    #[default]
    Auto,
    /// None: all are read from the file at each product, which is slow and takes little memory.
    Off,
}

/// Free memory that is left to other programs, as a share: one part of so many.
const SPARED: u64 = 16;

/// Settings of the CPU backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads, the caller's included; `None` for one a core.
    pub threads: Option<usize>,
    /// Instruction set; `None` for the best that the processor has.
    pub isa: Option<Isa>,
    /// Whether matrices are repacked.
    pub repack: Repack,
}

/// The processor as a backend with one device.
#[derive(Clone, Debug, Default)]
pub struct CpuBackend {
    options: CpuOptions,
}

impl CpuBackend {
    /// A backend with these settings.
    pub fn new(options: CpuOptions) -> CpuBackend {
        CpuBackend { options }
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn select(&self, graph: &Graph, _weights: &WeightTable, at: NodeId) -> Option<Selection> {
        select::select(graph, at)
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, RunError> {
        Ok(vec![info(self.options)])
    }

    fn open(&self, index: usize) -> Result<Arc<dyn Device>, RunError> {
        if index != 0 {
            return Err(RunError::Plan(format!("there is one cpu device, not number {index}")));
        }
        let isa = Isa::select(self.options.isa)?;
        let pool = Pool::new(self.options.threads.unwrap_or_else(default_workers)).map_err(|e| {
            RunError::Device { device: "cpu".into(), reason: format!("cannot start threads: {e}") }
        })?;
        Ok(Arc::new(CpuDevice { options: self.options, isa, pool: Arc::new(pool) }))
    }
}

fn info(options: CpuOptions) -> DeviceInfo {
    let memory = crate::host::memory();
    let mut features: Vec<String> =
        Isa::ALL.iter().filter(|isa| isa.is_available()).map(|isa| isa.name().to_owned()).collect();
    features.push(format!("{} threads", options.threads.unwrap_or_else(default_workers)));
    DeviceInfo {
        id: "cpu".into(),
        name: crate::host::processor_name(),
        kind: DeviceKind::Cpu,
        memory_total: memory.map(|m| m.total),
        memory_free: memory.map(|m| m.available),
        features,
    }
}

struct CpuDevice {
    options: CpuOptions,
    isa: Isa,
    pool: Arc<Pool>,
}

impl Device for CpuDevice {
    fn info(&self) -> DeviceInfo {
        info(self.options)
    }

    fn limits(&self) -> Result<DeviceLimits, RunError> {
        let bytes_per_second = limits::read_bandwidth(&self.pool)?;
        // Without an instruction of its own, the peak of the plain code is not known: no share is claimed.
        let ops_per_second = limits::int8_peak(&self.pool, self.isa, false).unwrap_or(f64::INFINITY);
        Ok(DeviceLimits { bytes_per_second, ops_per_second })
    }

    fn threads(&self) -> Option<Arc<dyn Threads>> {
        Some(self.pool.clone())
    }

    fn load(
        &self,
        request: LoadRequest<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Box<dyn Executor>, RunError> {
        let LoadRequest { weights, source, caches, graph } = request;
        let room = match (self.options.repack, crate::host::memory()) {
            (Repack::Off, _) => 0,
            (Repack::Auto, None) => u64::MAX,
            (Repack::Auto, Some(memory)) => {
                (memory.available - memory.available / SPARED).saturating_sub(caches.total_bytes())
            }
        };
        let weights = Weights::load(weights, source, graph, room, &self.pool, progress)?;
        let caches = Caches::new(caches)?;
        let scratch = (0..self.pool.workers()).map(|_| Mutex::default()).collect();
        Ok(Box::new(CpuExecutor {
            isa: self.isa,
            pool: self.pool.clone(),
            weights,
            caches,
            programs: Vec::new(),
            arena: Arena::new()?,
            activations: HashMap::new(),
            ropes: Vec::new(),
            attentions: Vec::new(),
            state_runs: Vec::new(),
            attention_scratch: AttentionScratch::new()?,
            expert_results: Vec::new(),
            scratch,
            submitted: 0,
            finished: None,
            trace: None,
        }))
    }
}

/// Step times, and when tracing began.
struct Trace {
    start: Instant,
    times: Vec<StepTime>,
}

/// One model on the processor.
struct CpuExecutor {
    isa: Isa,
    pool: Arc<Pool>,
    weights: Weights,
    caches: Caches,
    programs: Vec<Program>,
    arena: Arena,
    /// Quantised rows, by form and columns, with room for the largest step.
    activations: ActivationPool,
    ropes: Vec<RopeSlot>,
    /// Tiles of the step that runs.
    attentions: Vec<AttentionSlot>,
    /// Where the states of the step that runs come from and go to, by group.
    state_runs: Vec<Vec<StateRun>>,
    attention_scratch: AttentionScratch,
    /// Products of experts, in the order of the experts.
    expert_results: Vec<f32>,
    /// Buffers of each worker.
    scratch: Vec<Mutex<Scratch>>,
    submitted: u64,
    /// The last step, its output and the rows of it.
    finished: Option<(Ticket, Option<(Place, usize)>)>,
    trace: Option<Trace>,
}

impl Executor for CpuExecutor {
    fn memory(&self) -> MemoryUse {
        MemoryUse {
            weights: self.weights.bytes(),
            caches: self.caches.bytes(),
            scratch: (self.arena.bytes()
                + self.attention_scratch.bytes()
                + 4 * self.expert_results.capacity()) as u64,
        }
    }

    fn compile(&mut self, plan: Plan) -> Result<ProgramId, RunError> {
        if plan.backend != "cpu" {
            return Err(RunError::Plan(format!("it was made for {}", plan.backend)));
        }
        self.arena.reserve(plan.arena_bytes)?;
        let program = Program::new(plan, &mut self.weights)?;
        self.prepare(&program)?;
        self.programs.push(program);
        Ok(ProgramId(self.programs.len() as u32 - 1))
    }

    fn submit(&mut self, program: ProgramId, inputs: &StepInputs<'_>) -> Result<Ticket, RunError> {
        let output = self.run(program, inputs)?;
        self.submitted += 1;
        let ticket = Ticket(self.submitted);
        self.finished = Some((ticket, output));
        Ok(ticket)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<StepOutput<'_>, RunError> {
        match self.finished {
            Some((last, output)) if last == ticket => Ok(match output {
                Some((place, rows)) => {
                    StepOutput { rows, cols: place.cols, data: self.arena.read(&place, rows) }
                }
                None => StepOutput { rows: 0, cols: 0, data: &[] },
            }),
            _ => Err(RunError::Input(format!("step {} is not the last one submitted", ticket.0))),
        }
    }

    fn set_tracing(&mut self, on: bool) {
        self.trace = on.then(|| Trace { start: Instant::now(), times: Vec::new() });
    }

    fn take_trace(&mut self) -> Vec<StepTime> {
        self.trace.as_mut().map(|t| std::mem::take(&mut t.times)).unwrap_or_default()
    }

    fn copy_blocks(&mut self, group: u32, pairs: &[(u32, u32)]) -> Result<(), RunError> {
        self.caches.copy_blocks(group, pairs)
    }

    fn read_block(&mut self, group: u32, block: u32, out: &mut Vec<u8>) -> Result<(), RunError> {
        self.caches.read_block(group, block, out)
    }

    fn write_block(&mut self, group: u32, block: u32, bytes: &[u8]) -> Result<(), RunError> {
        self.caches.write_block(group, block, bytes)
    }
}
