//! Operation graphs, the passes that compile them to plans, and a scalar interpreter.
//!
//! A model family builds a [`Graph`] with a [`GraphBuilder`], once for each [`GraphKey`]. The passes turn it into an
//! immutable [`Plan`]: [`select`](passes::select) asks the backend which kernel runs which nodes,
//! [`reorder`](passes::reorder) brings independent steps together, [`memory`](passes::memory) gives every value a
//! place in one arena, [`hazard`](passes::hazard) finds where a step must wait for those before it. An [`Executor`]
//! of a backend runs plans; the [`Interpreter`](interp::Interpreter) runs graphs, slowly and plainly, and is the
//! oracle of every backend.
#![forbid(unsafe_code)]

pub mod backend;
mod builder;
mod cache;
mod cost;
mod error;
mod graph;
pub mod interp;
mod key;
pub mod op;
pub mod passes;
mod plan;
mod rope;
pub mod sampling;
mod size;
mod split;
mod states;
mod step;
mod weights;

pub use backend::{
    Backend, Device, DeviceInfo, DeviceKind, DeviceLimits, Executor, LoadRequest, MemoryUse, OneThread,
    ProgramId, Selection, StepTime, Threads, Ticket,
};
pub use builder::GraphBuilder;
pub use cache::{BLOCK_TOKENS, CacheGroup, CacheId, CacheLayout, CacheSpec, KvType, Reach};
pub use cost::{Cost, StepCounts, cost};
pub use error::{GraphError, RunError};
pub use graph::{Elem, Graph, Node, NodeId, Output, Rows, Type, ValueId};
pub use key::{GraphKey, Outputs, Wants};
pub use op::Op;
pub use plan::{After, Plan, Region, Span, Step};
pub use sampling::{LogitEdit, Picked, Sampling};
pub use size::ByteSize;
pub use split::split;
pub use states::StateRun;
pub use step::{BlockTable, Entries, NO_BLOCK, StepInputs, StepOutput, TableSet, picked_token};
pub use weights::{SpecEntry, WeightId, WeightInfo, WeightSource, WeightSpec, WeightTable};
