use wootz_quant::WeightType;

use crate::graph::{NodeId, ValueId};
use crate::size::ByteSize;

/// Why a graph could not be built or compiled to a plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// A node's input has another shape than its operation takes.
    #[error("{op}: input {input} is {found}, expected {expected}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// Which input, counted from 0.
        input: usize,
        /// The shape found.
        found: String,
        /// The shape expected.
        expected: String,
    },
    /// A weight that the model file lacks.
    #[error("tensor {name} is missing")]
    MissingWeight {
        /// Tensor name.
        name: String,
    },
    /// A weight whose shape does not fit the model's hyperparameters.
    #[error("tensor {name} is {found_rows} x {found_cols}, expected {rows} x {cols}")]
    WeightShape {
        /// Tensor name.
        name: String,
        /// Rows found.
        found_rows: u64,
        /// Columns found.
        found_cols: u64,
        /// Rows expected.
        rows: u64,
        /// Columns expected.
        cols: u64,
    },
    /// No kernel of the backend can run a node.
    #[error("{backend} has no kernel for {op}{} (node {}, {label})", weight.map(|w| format!(" with {w} weights")).unwrap_or_default(), node.0)]
    NoKernel {
        /// Backend name.
        backend: &'static str,
        /// Operation name.
        op: &'static str,
        /// The node.
        node: NodeId,
        /// The node's label.
        label: &'static str,
        /// Type of the weight, if the operation has one.
        weight: Option<WeightType>,
    },
    /// A backend selected nodes that cannot run as one step.
    #[error("{backend}: kernel {kernel} covers nodes that depend on each other through other nodes")]
    BadSelection {
        /// Backend name.
        backend: &'static str,
        /// Kernel name.
        kernel: &'static str,
    },
    /// A graph cannot be cut between two layers.
    #[error("the model cannot be cut before layer {layer}: {reason}")]
    Split {
        /// The first layer after the cut.
        layer: usize,
        /// What is in the way.
        reason: String,
    },
    /// A value is read that no node produces.
    #[error("value {} is read but never produced", value.0)]
    Dangling {
        /// The value.
        value: ValueId,
    },
}

/// Why a step could not be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The device has not enough memory.
    #[error("out of memory on {device}: {what} needs {}{}", ByteSize(*needed), available.map(|a| format!(", {} are free", ByteSize(a))).unwrap_or_default())]
    OutOfMemory {
        /// Device name.
        device: String,
        /// What the memory was for.
        what: String,
        /// Bytes asked for.
        needed: u64,
        /// Bytes free, where the device tells.
        available: Option<u64>,
    },
    /// The step's inputs contradict each other or the plan.
    #[error("bad step input: {0}")]
    Input(String),
    /// A weight could not be read from its file.
    #[error("cannot read tensor {name}: {source}")]
    ReadWeight {
        /// Tensor name.
        name: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The device failed; requests that were running on it are lost, the process is not.
    #[error("{device} failed: {reason}")]
    Device {
        /// Device name.
        device: String,
        /// The driver's words.
        reason: String,
    },
    /// The plan holds a kernel or weight that this executor does not have.
    #[error("plan does not fit the executor: {0}")]
    Plan(String),
}
