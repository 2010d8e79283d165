//! CPU backend: thread pool and vector kernels.

mod act;
mod error;
mod isa;
mod linear;
mod pack;

pub mod memory;
pub mod pool;

pub use act::{ActForm, Activations};
pub use error::CpuError;
pub use isa::Isa;
pub use linear::{Linear, LinearSet, linear};
pub use pack::{PackedMatrix, RowGroupsMut};
