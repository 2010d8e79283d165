//! What an executor needs of a device: memory, copies, launches, graphs, events.
//!
//! The driver implements it for real devices; tests implement it on the processor, so that everything but the driver
//! runs on every machine.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use wootz_graph::RunError;

use crate::args::Args;

/// A kernel: the file that holds it, and its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kernel {
    pub(crate) file: &'static str,
    pub(crate) name: &'static str,
}

impl Kernel {
    pub(crate) const fn new(file: &'static str, name: &'static str) -> Kernel {
        Kernel { file, name }
    }
}

/// One launch of a kernel.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) kernel: Kernel,
    /// Blocks.
    pub(crate) grid: [u32; 3],
    /// Threads of a block.
    pub(crate) block: u32,
    /// Bytes of dynamic shared memory.
    pub(crate) shared: u32,
    /// Blocks along the first dimension that are a cluster; 1 for none.
    pub(crate) cluster: u32,
    /// The argument struct, in words so that it is aligned.
    args: Vec<u64>,
}

impl Launch {
    pub(crate) fn new<A: Args>(kernel: Kernel, grid: [u32; 3], block: u32, args: &A) -> Launch {
        let bytes = args.bytes();
        let mut words = vec![0u64; bytes.len().div_ceil(8)];
        bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..bytes.len()].copy_from_slice(bytes);
        Launch { kernel, grid, block, shared: 0, cluster: 1, args: words }
    }

    /// The same launch with so many bytes of dynamic shared memory.
    pub(crate) fn shared(self, bytes: usize) -> Launch {
        Launch { shared: bytes as u32, ..self }
    }

    /// The same launch with clusters of so many blocks.
    pub(crate) fn clusters(self, blocks: u32) -> Launch {
        Launch { cluster: blocks, ..self }
    }

    /// The argument struct.
    pub(crate) fn args(&self) -> *const u64 {
        self.args.as_ptr()
    }
}

/// What kernels are chosen by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Properties {
    /// Compute capability, such as 90 for 9.0.
    pub(crate) capability: u32,
    pub(crate) multiprocessors: u32,
    /// Bytes of shared memory that a block can have.
    pub(crate) shared_per_block: u32,
}

/// A recorded sequence of launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recorded(pub(crate) u64);

/// A point in the order of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark(pub(crate) u64);

/// One queue of work on one device. Everything that is queued runs in order.
pub(crate) trait Machine: Send + Sync {
    /// The device's name, such as `cuda:0`.
    fn id(&self) -> &str;

    fn properties(&self) -> Properties;

    /// Bytes of memory that are free.
    fn free_memory(&self) -> Result<u64, RunError>;

    /// Memory on the device, aligned to 256 bytes at least; `what` is what it is for, in errors.
    fn allocate(&self, bytes: usize, what: &str) -> Result<u64, RunError>;

    /// Gives memory back. Work that uses it must be over.
    fn release(&self, address: u64);

    /// Memory of the host that the device copies from and to, and kernels read and write, while the host goes on.
    fn allocate_host(&self, bytes: usize) -> Result<NonNull<u8>, RunError>;

    /// Gives memory of the host back. Copies that use it must be over.
    fn release_host(&self, memory: NonNull<u8>, bytes: usize);

    /// Queues a copy to the device.
    ///
    /// # Safety
    /// `from` is not written or given back before the copy is over; `to` has room for it.
    unsafe fn copy_in(&self, to: u64, from: &[u8]) -> Result<(), RunError>;

    /// Queues a copy from the device.
    ///
    /// # Safety
    /// `to` points to so many bytes, which nobody reads, writes or gives back before the copy is over; so many bytes
    /// of the device's memory begin at `from`.
    unsafe fn copy_out(&self, to: NonNull<u8>, from: u64, bytes: usize) -> Result<(), RunError>;

    /// Queues a copy on the device.
    fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), RunError>;

    /// Queues the writing of zeros.
    fn clear(&self, to: u64, bytes: usize) -> Result<(), RunError>;

    /// Queues a launch.
    fn launch(&self, launch: &Launch) -> Result<(), RunError>;

    /// Queues a launch that may begin while the one before it ends: its kernel waits where it must.
    fn launch_early(&self, launch: &Launch) -> Result<(), RunError>;

    /// Records launches, to be replayed; each may begin while the one before it ends.
    fn record(&self, launches: &[Launch]) -> Result<Recorded, RunError>;

    /// Queues recorded launches.
    fn replay(&self, recorded: Recorded) -> Result<(), RunError>;

    /// Gives recorded launches back. Work that uses them must be over.
    fn forget(&self, recorded: Recorded);

    /// A new mark, at no point yet.
    fn mark(&self) -> Result<Mark, RunError>;

    /// Puts a mark at the end of what is queued.
    fn set(&self, mark: Mark) -> Result<(), RunError>;

    /// Waits until everything before a mark is done.
    fn wait(&self, mark: Mark) -> Result<(), RunError>;

    /// Seconds between two marks that were reached.
    fn seconds(&self, from: Mark, to: Mark) -> Result<f64, RunError>;

    /// Gives a mark back.
    fn drop_mark(&self, mark: Mark);

    /// Waits until everything that was queued is done.
    fn finish(&self) -> Result<(), RunError>;
}

/// Memory on a device.
pub(crate) struct DeviceBuffer {
    machine: Arc<dyn Machine>,
    address: u64,
    bytes: usize,
}

impl DeviceBuffer {
    pub(crate) fn new(
        machine: &Arc<dyn Machine>,
        bytes: usize,
        what: &str,
    ) -> Result<DeviceBuffer, RunError> {
        let address = if bytes == 0 { 0 } else { machine.allocate(bytes, what)? };
        Ok(DeviceBuffer { machine: machine.clone(), address, bytes })
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.machine.release(self.address);
        }
    }
}

/// Memory of the host that a device can copy from and to, and its kernels read and write.
pub(crate) struct HostBuffer {
    machine: Arc<dyn Machine>,
    memory: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory is owned.
unsafe impl Send for HostBuffer {}

impl HostBuffer {
    pub(crate) fn new(machine: &Arc<dyn Machine>, bytes: usize) -> Result<HostBuffer, RunError> {
        let memory =
            if bytes == 0 { NonNull::<u64>::dangling().cast() } else { machine.allocate_host(bytes)? };
        // SAFETY: just allocated, `bytes` long.
        unsafe { memory.write_bytes(0, bytes) };
        Ok(HostBuffer { machine: machine.clone(), memory, bytes })
    }

    pub(crate) fn pointer(&mut self) -> NonNull<u8> {
        self.memory
    }

    /// Where kernels find the memory: host and devices share one space of addresses.
    pub(crate) fn address(&self) -> u64 {
        self.memory.as_ptr().expose_provenance() as u64
    }
}

impl Deref for HostBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: owned, initialised at allocation; who queues a copy into it waits before it reads.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.bytes) }
    }
}

impl DerefMut for HostBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.bytes) }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.machine.release_host(self.memory, self.bytes);
        }
    }
}

/// A mark that is given back when it is no longer used.
pub(crate) struct OwnedMark {
    machine: Arc<dyn Machine>,
    mark: Mark,
}

impl OwnedMark {
    pub(crate) fn new(machine: &Arc<dyn Machine>) -> Result<OwnedMark, RunError> {
        Ok(OwnedMark { mark: machine.mark()?, machine: machine.clone() })
    }

    /// A new mark at the end of what is queued.
    pub(crate) fn here(machine: &Arc<dyn Machine>) -> Result<OwnedMark, RunError> {
        let mark = OwnedMark::new(machine)?;
        mark.set()?;
        Ok(mark)
    }

    pub(crate) fn set(&self) -> Result<(), RunError> {
        self.machine.set(self.mark)
    }

    pub(crate) fn wait(&self) -> Result<(), RunError> {
        self.machine.wait(self.mark)
    }

    /// Seconds from this mark to a later one.
    pub(crate) fn seconds_to(&self, later: &OwnedMark) -> Result<f64, RunError> {
        self.machine.seconds(self.mark, later.mark)
    }
}

impl Drop for OwnedMark {
    fn drop(&mut self) {
        self.machine.drop_mark(self.mark);
    }
}
