//! Buffers of the emulated device: the host's copy and the GPU's are apart where the device says so.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::runtime::Cell;
use crate::device::{MetalBuffer, StorageMode};
use crate::error::MetalError;

/// Anonymous memory, zero at first.
pub(super) struct Mapping {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the memory belongs to the mapping alone; who reads and writes it agree on when.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(super) fn new(bytes: usize, what: &str) -> Result<Mapping, MetalError> {
        let bytes = bytes.max(1);
        // SAFETY: a new mapping touches no memory that is in use.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(MetalError::OutOfMemory { what: what.to_owned(), needed: bytes as u64 });
        }
        Ok(Mapping { base: base.cast(), bytes })
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.base
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and nobody has a pointer into it any more.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

/// Where the GPU's copy lies.
enum Place {
    Own(Mapping),
    /// Memory of somebody else, which is only read.
    Wrapped {
        base: *const u8,
        _owner: Arc<dyn Any + Send + Sync>,
    },
}

/// The memory of a buffer, which commands refer to without keeping it alive.
pub(super) struct Memory {
    pub(super) label: String,
    pub(super) bytes: u64,
    pub(super) mode: StorageMode,
    place: Place,
    /// The host's copy of a managed buffer.
    host: Option<Mapping>,
    cells: Mapping,
    /// Command buffers that use it and have not run.
    pub(super) pending: AtomicUsize,
    /// Residency sets that hold it.
    pub(super) resident: AtomicUsize,
    allocated: Arc<AtomicU64>,
}

// SAFETY: as for `Mapping`; wrapped memory is only read.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// The GPU's copy.
    pub(super) fn gpu(&self) -> *mut u8 {
        match &self.place {
            Place::Own(mapping) => mapping.base(),
            Place::Wrapped { base, .. } => base.cast_mut(),
        }
    }

    pub(super) fn is_wrapped(&self) -> bool {
        matches!(self.place, Place::Wrapped { .. })
    }

    /// What the emulator knows of every two bytes.
    pub(super) fn cells(&self) -> *mut Cell {
        self.cells.base().cast()
    }

    /// Brings what the GPU wrote to the host's copy.
    pub(super) fn synchronize(&self) {
        if let Some(host) = &self.host {
            // SAFETY: both copies have this length and do not overlap; the queue's lock is held.
            unsafe { std::ptr::copy_nonoverlapping(self.gpu(), host.base(), self.bytes as usize) };
        }
    }

    fn host_copy(&self) -> Result<*mut u8, MetalError> {
        match (self.mode, &self.host) {
            (StorageMode::Private, _) => Err(self.refused("the host cannot reach private memory")),
            (_, Some(host)) => Ok(host.base()),
            (_, None) => Ok(self.gpu()),
        }
    }

    fn refused(&self, what: &str) -> MetalError {
        MetalError::Access { buffer: self.label.clone(), what: what.to_owned() }
    }

    fn check(&self, offset: u64, bytes: usize) -> Result<(), MetalError> {
        if offset.checked_add(bytes as u64).is_none_or(|end| end > self.bytes) {
            return Err(self.refused(&format!("{bytes} bytes at {offset} of {}", self.bytes)));
        }
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.allocated.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A buffer.
pub(super) struct EmulatedBuffer {
    pub(super) memory: Arc<Memory>,
}

/// Larger buffers are not filled with what is no number.
const POISON: u64 = 256 << 20;

impl EmulatedBuffer {
    pub(super) fn new(
        bytes: u64,
        mode: StorageMode,
        label: &str,
        allocated: &Arc<AtomicU64>,
    ) -> Result<EmulatedBuffer, MetalError> {
        let mapping = Mapping::new(bytes as usize, label)?;
        if bytes <= POISON {
            // SAFETY: the mapping has this length and nobody else knows it.
            unsafe { std::ptr::write_bytes(mapping.base(), 0xff, bytes as usize) };
        }
        let host = match mode {
            StorageMode::Managed => Some(Mapping::new(bytes as usize, label)?),
            _ => None,
        };
        EmulatedBuffer::with(bytes, mode, label, allocated, Place::Own(mapping), host)
    }

    pub(super) fn wrapped(
        base: *const u8,
        bytes: u64,
        owner: Arc<dyn Any + Send + Sync>,
        label: &str,
        allocated: &Arc<AtomicU64>,
    ) -> Result<EmulatedBuffer, MetalError> {
        let place = Place::Wrapped { base, _owner: owner };
        EmulatedBuffer::with(bytes, StorageMode::Shared, label, allocated, place, None)
    }

    fn with(
        bytes: u64,
        mode: StorageMode,
        label: &str,
        allocated: &Arc<AtomicU64>,
        place: Place,
        host: Option<Mapping>,
    ) -> Result<EmulatedBuffer, MetalError> {
        let cells = Mapping::new((bytes as usize / 2 + 1) * size_of::<Cell>(), label)?;
        allocated.fetch_add(bytes, Ordering::Relaxed);
        let memory = Memory {
            label: label.to_owned(),
            bytes,
            mode,
            place,
            host,
            cells,
            pending: AtomicUsize::new(0),
            resident: AtomicUsize::new(0),
            allocated: allocated.clone(),
        };
        Ok(EmulatedBuffer { memory: Arc::new(memory) })
    }
}

impl MetalBuffer for EmulatedBuffer {
    fn len(&self) -> u64 {
        self.memory.bytes
    }

    fn mode(&self) -> StorageMode {
        self.memory.mode
    }

    fn label(&self) -> &str {
        &self.memory.label
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), MetalError> {
        let memory = &self.memory;
        memory.check(offset, bytes.len())?;
        let base = memory.host_copy()?;
        if memory.is_wrapped() {
            return Err(memory.refused("it wraps memory that is only read"));
        }
        if memory.pending.load(Ordering::Acquire) > 0 {
            return Err(memory.refused("the host writes what commands in flight use"));
        }
        // SAFETY: the range is inside, as just checked; no command that uses the buffer runs.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), base.add(offset as usize), bytes.len()) };
        if memory.host.is_some() {
            // SAFETY: as above: the GPU's copy has the same length.
            unsafe {
                let to = memory.gpu().add(offset as usize);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            }
        }
        Ok(())
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MetalError> {
        self.memory.check(offset, bytes.len())?;
        let base = self.memory.host_copy()?;
        // SAFETY: the range is inside, as just checked.
        unsafe { std::ptr::copy_nonoverlapping(base.add(offset as usize), bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
