//! CUDA backend: NVIDIA GPUs of the Ampere generation and later.
//!
//! Kernels are written in CUDA C++ (`kernels/`), compiled beforehand by `scripts/build-cuda` and embedded; building
//! this crate needs no toolkit. The driver's library is loaded when devices are asked for; a machine without one has
//! no devices. Plans are made on any machine.

mod args;
mod backend;
mod code;
mod driver;
mod executor;
mod experts;
mod fuse;
mod limits;
mod machine;
mod pick;
mod program;
mod rope;
mod select;
mod step;
mod tiles;
mod weights;

#[cfg(test)]
mod emulated;
#[cfg(test)]
mod testing;

pub use backend::{CudaBackend, CudaOptions};
pub use select::Kernels;
