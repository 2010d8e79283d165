//! What a backend offers: devices, kernels for graphs, and executors that run plans.

use std::sync::Arc;

use crate::cache::CacheLayout;
use crate::error::RunError;
use crate::graph::{Graph, NodeId, ValueId};
use crate::plan::Plan;
use crate::sampling::{Picked, Sampling};
use crate::step::{StepInputs, StepOutput};
use crate::weights::{WeightSource, WeightTable};

/// A kernel chosen for one or several nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    /// Kernel name, as plans and traces print it.
    pub kernel: &'static str,
    /// The nodes it runs, in graph order; the node asked about is the first.
    pub covers: Vec<NodeId>,
    /// Bytes of scratch memory for the largest step of the graph's key.
    pub scratch: usize,
    /// An input whose memory an output may take over, element by element.
    pub in_place: Option<(ValueId, ValueId)>,
}

impl Selection {
    /// A kernel for one node, with no scratch memory.
    pub fn single(kernel: &'static str, node: NodeId) -> Selection {
        Selection { kernel, covers: vec![node], scratch: 0, in_place: None }
    }
}

/// What kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// Processor cores.
    Cpu,
    /// A GPU that shares memory with the processor.
    UnifiedGpu,
    /// A GPU with its own memory.
    DiscreteGpu,
}

/// A device that a backend found.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Backend name and index, such as `cpu` or `metal:0`.
    pub id: String,
    /// The maker's name for it.
    pub name: String,
    /// Kind.
    pub kind: DeviceKind,
    /// Bytes of memory in all, where known.
    pub memory_total: Option<u64>,
    /// Bytes of memory free, where known.
    pub memory_free: Option<u64>,
    /// Capabilities that decide kernels, such as `avx2`.
    pub features: Vec<String>,
}

/// A family of devices with one set of kernels.
pub trait Backend: Send + Sync {
    /// Name, such as `cpu`.
    fn name(&self) -> &'static str;

    /// The kernel for a node and those that it can run together with it; `None` if there is none.
    ///
    /// Depends on the graph and the weights' types alone, so that plans can be made on any machine.
    fn select(&self, graph: &Graph, weights: &WeightTable, at: NodeId) -> Option<Selection>;

    /// The devices of this machine.
    ///
    /// # Errors
    /// The driver is there and fails.
    fn devices(&self) -> Result<Vec<DeviceInfo>, RunError>;

    /// Opens a device by its place in [`devices`](Self::devices).
    ///
    /// # Errors
    /// There is no such device, or it fails.
    fn open(&self, index: usize) -> Result<Arc<dyn Device>, RunError>;
}

/// What a device can do at most, measured on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceLimits {
    /// Bytes read from memory per second.
    pub bytes_per_second: f64,
    /// Multiplications and additions per second of the products that kernels use: of 8 bits on processors, 16 on GPUs.
    pub ops_per_second: f64,
}

/// Threads of the processor that share work.
pub trait Threads: Send + Sync {
    /// Calls `task` on the caller's thread, and on others that are free at the same time; returns when all calls have ended.
    ///
    /// The calls take parts of the work until none is left, so that one of them alone would do all of it. None may wait
    /// for another.
    fn run(&self, task: &(dyn Fn() + Sync));
}

/// The caller's thread alone.
#[derive(Clone, Copy, Debug)]
pub struct OneThread;

impl Threads for OneThread {
    fn run(&self, task: &(dyn Fn() + Sync)) {
        task();
    }
}

/// An open device.
pub trait Device: Send + Sync {
    /// What it is and how much memory is free now.
    fn info(&self) -> DeviceInfo;

    /// Measures what the device can do at most; takes about a second.
    ///
    /// # Errors
    /// The device fails.
    fn limits(&self) -> Result<DeviceLimits, RunError>;

    /// The threads that compute its steps, idle between them; `None` where they are no threads of the processor.
    fn threads(&self) -> Option<Arc<dyn Threads>> {
        None
    }

    /// Loads a model's weights and makes its caches; `progress` is told the bytes of weights done so far.
    ///
    /// # Errors
    /// A weight cannot be read, or the memory does not suffice.
    fn load(
        &self,
        request: LoadRequest<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Box<dyn Executor>, RunError>;
}

/// What to load on a device.
pub struct LoadRequest<'a> {
    /// Names, types and shapes.
    pub weights: Arc<WeightTable>,
    /// Where the bytes come from.
    pub source: Arc<dyn WeightSource>,
    /// The caches to make.
    pub caches: CacheLayout,
    /// A graph that uses every weight as later ones do: shows which are looked up by row and which multiply.
    pub graph: &'a Graph,
}

/// A compiled plan of one executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProgramId(pub u32);

/// A step that was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u64);

/// When a step of a plan ran.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepTime {
    /// The program.
    pub program: ProgramId,
    /// Index in [`Plan::steps`].
    pub step: u32,
    /// Seconds from the start of tracing.
    pub start: f64,
    /// Seconds.
    pub duration: f64,
    /// Kernels that the device was told to run.
    pub dispatches: u32,
}

/// Memory that an executor holds, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Weights.
    pub weights: u64,
    /// KV caches and states.
    pub caches: u64,
    /// Arenas of plans and scratch memory.
    pub scratch: u64,
}

/// One model on one device. Owned by one thread.
pub trait Executor: Send {
    /// Memory held.
    fn memory(&self) -> MemoryUse;

    /// Makes a plan ready to run.
    ///
    /// # Errors
    /// The plan holds a kernel that this device lacks, or memory does not suffice.
    fn compile(&mut self, plan: Plan) -> Result<ProgramId, RunError>;

    /// Starts a step. Steps run in the order in which they are submitted.
    ///
    /// # Errors
    /// The inputs do not fit the plan, or the device fails; no cache block other than those written by this step is
    /// changed by a failed step.
    fn submit(&mut self, program: ProgramId, inputs: &StepInputs<'_>) -> Result<Ticket, RunError>;

    /// Waits for a step and returns what it produced; without rows where the plan returns none.
    ///
    /// # Errors
    /// The device failed.
    fn wait(&mut self, ticket: Ticket) -> Result<StepOutput<'_>, RunError>;

    /// Whether [`submit_picking`](Self::submit_picking) can pick a token in this way; not every device can.
    ///
    /// Depends on the parameters alone, not on edits and the random number.
    fn can_pick(&self, _sampling: &Sampling<'_>) -> bool {
        false
    }

    /// Starts a step that picks a token from each output row instead of returning the rows; `sampling` has as many
    /// entries as there are rows. The tokens stay on the device as well: the next step may take them as its input, see
    /// [`StepInputs::tokens`].
    ///
    /// # Errors
    /// As [`submit`](Self::submit), or the device cannot pick so.
    fn submit_picking(
        &mut self,
        _program: ProgramId,
        _inputs: &StepInputs<'_>,
        _sampling: &[Sampling<'_>],
    ) -> Result<Ticket, RunError> {
        Err(RunError::Plan("this device picks no tokens".into()))
    }

    /// Waits for a step that picks tokens, and returns them in the order of the rows.
    ///
    /// # Errors
    /// The device failed.
    fn wait_picked(&mut self, _ticket: Ticket) -> Result<Vec<Picked>, RunError> {
        Err(RunError::Plan("this device picks no tokens".into()))
    }

    /// Starts or stops the timing of plan steps.
    fn set_tracing(&mut self, on: bool);

    /// The times of plan steps since the last call, where tracing is on.
    fn take_trace(&mut self) -> Vec<StepTime>;

    /// Copies physical cache blocks of a group: (source, destination).
    ///
    /// # Errors
    /// The device failed.
    fn copy_blocks(&mut self, group: u32, pairs: &[(u32, u32)]) -> Result<(), RunError>;

    /// Reads one physical block of every cache of a group, in a form that only this kind of executor understands.
    ///
    /// # Errors
    /// The device failed.
    fn read_block(&mut self, group: u32, block: u32, out: &mut Vec<u8>) -> Result<(), RunError>;

    /// Restores what [`read_block`](Self::read_block) returned.
    ///
    /// # Errors
    /// The bytes do not have the size of a block, or the device failed.
    fn write_block(&mut self, group: u32, block: u32, bytes: &[u8]) -> Result<(), RunError>;
}
