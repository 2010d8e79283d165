//! What a device can do at most, measured on it.

use std::sync::Arc;

use wootz_graph::{DeviceLimits, RunError};

use crate::args::{Mut, ProductLimitArgs, Ptr, ReadLimitArgs};
use crate::machine::{DeviceBuffer, Kernel, Launch, Machine, OwnedMark};

/// Bytes read to measure memory: far more than caches hold.
const READ: usize = 2 << 30;
/// Rounds of products.
const ROUNDS: u32 = 20_000;
/// Runs of which the best counts.
const RUNS: usize = 5;

/// Bytes read, and multiplications and additions of 16-bit products (those that kernels use) per second.
pub(crate) fn measure(machine: Arc<dyn Machine>) -> Result<DeviceLimits, RunError> {
    let properties = machine.properties();
    // A quarter of what is free is enough of a small memory.
    let bytes = READ.min(machine.free_memory()? as usize / 4) / 4096 * 4096;
    let data = DeviceBuffer::new(&machine, bytes + 8, "memory to read")?;
    machine.clear(data.address(), bytes)?;
    let out = Mut::new(data.address() + bytes as u64);
    let read = ReadLimitArgs { data: Ptr::new(data.address()), out, bytes: bytes as u64 };
    let blocks = 4 * properties.multiprocessors;
    let read = Launch::new(Kernel::new("limits", "read_limit"), [blocks, 1, 1], 512, &read);
    let multiply = ProductLimitArgs { out, rounds: ROUNDS, unused: 0 };
    let multiply = Launch::new(Kernel::new("limits", "product_limit"), [blocks, 1, 1], 256, &multiply);
    // 8 warps of a block, 8 products of 16 x 16 x 8 a round.
    let operations = f64::from(blocks) * f64::from(ROUNDS) * 8.0 * 8.0 * (2 * 16 * 16 * 8) as f64;
    Ok(DeviceLimits {
        bytes_per_second: bytes as f64 / best(&machine, &read)?,
        ops_per_second: operations / best(&machine, &multiply)?,
    })
}

/// Seconds of the fastest of some runs.
fn best(machine: &Arc<dyn Machine>, launch: &Launch) -> Result<f64, RunError> {
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let start = OwnedMark::here(machine)?;
        machine.launch(launch)?;
        let end = OwnedMark::here(machine)?;
        end.wait()?;
        best = best.min(start.seconds_to(&end)?);
    }
    Ok(best)
}
