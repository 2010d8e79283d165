//! CPU backend: thread pool and vector kernels.

mod act;
mod bf16;
mod blocks;
mod error;
mod exec;
mod host;
mod isa;
mod linear;
mod math;
mod pack;
#[cfg(test)]
mod testing;
mod vectorize;

pub mod attention;
pub mod elementwise;
pub mod kv;
pub mod limits;
pub mod memory;
pub mod norm;
pub mod pool;
pub mod recurrent;
pub mod rope;
pub mod route;

pub use act::{ActForm, ActRows, ActTokens, Activations};
pub use blocks::Blocks;
pub use error::CpuError;
pub use exec::{CpuBackend, CpuOptions, Repack};
pub use isa::Isa;
pub use linear::{Linear, LinearSet, StoredMatrix, Weights, linear};
pub use math::{Half, narrow, widen};
pub use pack::{PackedMatrix, RowGroupsMut};
pub use vectorize::{Loops, vectorize};
