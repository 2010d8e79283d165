//! Language models on Metal.
//!
//! Kernels are written in Metal Shading Language (`kernels/`) and compiled on first use, for the type and the
//! constants that a plan needs. The [`device::MetalDevice`] trait is what the backend needs of a device; on Linux an
//! emulated device stands in for it, runs the same kernels and checks what they do.

#[cfg(target_os = "macos")]
pub mod apple;
pub mod archive;
pub mod args;
mod backend;
pub mod device;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod emulator;
mod error;
mod exec;
pub mod library;
mod select;
pub mod signature;

pub use backend::{MetalBackend, MetalOptions, NoDevices, Source};
pub use error::MetalError;
pub use select::{barriers, dispatches};
