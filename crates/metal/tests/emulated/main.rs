//! The Metal backend on emulated devices.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod address_spaces;
mod cases;
mod common;
mod executor;
mod model;
mod models;
mod mutants;
mod picks;
mod sweeps;
mod table;
