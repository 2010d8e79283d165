//! Test support: operation cases, tiny random models, error measures.
//!
//! Backends run [`cases::all`] against the scalar interpreter with [`check`]; a case that a backend must refuse, or
//! whose error is beyond its limit, is a failure with the case's name.
#![forbid(unsafe_code)]

pub mod cases;
mod memory;
pub mod models;
pub mod picks;
mod rng;
mod run;
mod snapshot;
pub mod tiny;
mod whole;

pub use memory::MemoryWeights;
pub use rng::Rng;
pub use run::{check, nmse, run_on, run_reference};
pub use snapshot::snapshot;
pub use whole::interpret;
