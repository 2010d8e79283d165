//! What the backend needs of a Metal device. The objc2 layer and the emulated device implement it alike.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use crate::error::MetalError;
use crate::library::Function;
use crate::signature::Signature;

/// Who can reach a buffer, and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StorageMode {
    /// One copy that host and GPU both reach.
    Shared,
    /// A copy for the host and one for the GPU: what the host wrote, and what the GPU wrote, reaches the other side
    /// by an explicit step. Only GPUs with memory of their own have it.
    Managed,
    /// The GPU's memory; the host cannot reach it.
    Private,
}

/// Capabilities that decide kernels and storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caps {
    /// The maker's name.
    pub name: String,
    /// Whether the GPU shares the host's memory.
    pub unified: bool,
    /// Threads of a simdgroup.
    pub simd_width: u32,
    /// Whether it multiplies matrices held by simdgroups.
    pub simdgroup_matrix: bool,
    /// Whether the shading language has bf16.
    pub bf16: bool,
    /// Whether allocations can be kept resident.
    pub residency_sets: bool,
    /// Whether dispatches may run together: wrong results on some GPUs of others than Apple.
    pub concurrent: bool,
    /// Largest buffer in bytes.
    pub max_buffer: u64,
    /// Threadgroup memory in bytes.
    pub max_threadgroup_memory: u32,
    /// Threads of a threadgroup.
    pub max_threads: u32,
    /// Bytes of a page of host memory.
    pub page: u64,
    /// Bytes that the GPU works with well.
    pub working_set: u64,
}

impl Caps {
    /// The capabilities in words, as `wootz devices` prints them.
    pub fn features(&self) -> Vec<String> {
        let mut list = vec![format!("simdgroups of {}", self.simd_width)];
        let named = [
            (self.unified, "unified memory"),
            (self.simdgroup_matrix, "simdgroup matrices"),
            (self.bf16, "bf16"),
            (self.residency_sets, "residency sets"),
            (self.concurrent, "concurrent dispatch"),
        ];
        list.extend(named.iter().filter(|(has, _)| *has).map(|(_, name)| (*name).to_owned()));
        list
    }
}

/// A buffer of a device.
pub trait MetalBuffer: Send + Sync {
    /// Bytes.
    fn len(&self) -> u64;

    /// Whether it holds no byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Storage mode.
    fn mode(&self) -> StorageMode;

    /// What it is for.
    fn label(&self) -> &str;

    /// Copies host bytes into a shared or managed buffer.
    ///
    /// # Errors
    /// The buffer is private, or the range is outside.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), MetalError>;

    /// Copies bytes of a shared or managed buffer to the host.
    ///
    /// # Errors
    /// The buffer is private, or the range is outside.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MetalError>;

    /// The implementation's own type.
    fn as_any(&self) -> &dyn Any;
}

/// A shared handle of a buffer.
pub type Buffer = Arc<dyn MetalBuffer>;

/// A compiled kernel.
pub trait MetalPipeline: Send + Sync {
    /// Its arguments.
    fn signature(&self) -> &Signature;

    /// Its name with constants.
    fn label(&self) -> &str;

    /// The implementation's own type.
    fn as_any(&self) -> &dyn Any;
}

/// A shared handle of a pipeline.
pub type Pipeline = Arc<dyn MetalPipeline>;

/// A piece of a buffer.
#[derive(Clone)]
pub struct Slice {
    /// The buffer.
    pub buffer: Buffer,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Slice {
    /// A whole buffer.
    pub fn whole(buffer: &Buffer) -> Slice {
        Slice { buffer: buffer.clone(), offset: 0, bytes: buffer.len() }
    }

    /// A piece of this piece.
    pub fn part(&self, offset: u64, bytes: u64) -> Slice {
        debug_assert!(offset + bytes <= self.bytes, "a part beyond its slice");
        Slice { buffer: self.buffer.clone(), offset: self.offset + offset, bytes }
    }
}

impl std::fmt::Debug for Slice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}[{}..{}]", self.buffer.label(), self.offset, self.offset + self.bytes)
    }
}

/// A kernel with everything it is started with.
pub struct Dispatch<'a> {
    /// The kernel.
    pub pipeline: &'a Pipeline,
    /// Bytes of the struct at buffer 0.
    pub args: &'a [u8],
    /// Buffers by index.
    pub buffers: &'a [(u32, Slice)],
    /// Threadgroups.
    pub grid: [u32; 3],
    /// Threads of a threadgroup, in one dimension.
    pub threads: u32,
}

/// What the commands after [`CommandBuffer::begin`] are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Dispatches; with `concurrent`, those between two barriers may run together.
    Compute {
        /// Whether dispatches may run together.
        concurrent: bool,
    },
    /// Copies.
    Copy,
}

/// Commands for the GPU. Passes run one after the other.
pub trait CommandBuffer: Send {
    /// Ends the pass at hand and starts another.
    fn begin(&mut self, pass: Pass);

    /// Starts a kernel.
    ///
    /// # Errors
    /// The dispatch contradicts the kernel's signature or the device's limits.
    fn dispatch(&mut self, dispatch: &Dispatch<'_>) -> Result<(), MetalError>;

    /// Dispatches after it wait for those before it, and see what they wrote.
    fn barrier(&mut self);

    /// Copies bytes between buffers of equal length.
    ///
    /// # Errors
    /// The lengths differ or are outside, or no copy pass was begun.
    fn copy(&mut self, from: &Slice, to: &Slice) -> Result<(), MetalError>;

    /// Makes what the GPU wrote to a managed buffer visible to the host.
    ///
    /// # Errors
    /// No copy pass was begun.
    fn synchronize(&mut self, buffer: &Buffer) -> Result<(), MetalError>;

    /// Hands the commands to the GPU.
    ///
    /// # Errors
    /// The driver refuses.
    fn commit(self: Box<Self>) -> Result<Arc<dyn Completion>, MetalError>;
}

/// A command buffer that was handed over.
pub trait Completion: Send + Sync {
    /// Waits for it.
    ///
    /// # Errors
    /// It failed, or the time is over.
    fn wait(&self, limit: Duration) -> Result<(), MetalError>;
}

/// Keeps buffers resident while it lives.
pub trait Residency: Send + Sync {}

/// A Metal device with its queue.
pub trait MetalDevice: Send + Sync {
    /// Capabilities.
    fn caps(&self) -> &Caps;

    /// Makes a buffer; what it holds is not defined.
    ///
    /// # Errors
    /// It is too large, or memory does not suffice.
    fn buffer(&self, bytes: u64, mode: StorageMode, label: &str) -> Result<Buffer, MetalError>;

    /// Makes a shared buffer of memory that is there, without a copy.
    ///
    /// # Safety
    /// `base` is aligned to a page, the whole pages from it on that hold `bytes` bytes can be read while `owner`
    /// lives, and nobody writes them.
    ///
    /// # Errors
    /// It is too large, or the driver refuses.
    unsafe fn wrap(
        &self,
        base: *const u8,
        bytes: u64,
        owner: Arc<dyn Any + Send + Sync>,
        label: &str,
    ) -> Result<Buffer, MetalError>;

    /// Compiles a kernel; the same one is compiled once.
    ///
    /// # Errors
    /// It does not compile.
    fn pipeline(&self, function: &Function) -> Result<Pipeline, MetalError>;

    /// An empty command buffer. They run in the order in which they were made.
    ///
    /// # Errors
    /// The driver refuses.
    fn command_buffer(&self, label: &str) -> Result<Box<dyn CommandBuffer>, MetalError>;

    /// Keeps kernels compiled since the last call for later runs, where the device has a place for them.
    ///
    /// # Errors
    /// They cannot be written.
    fn keep_kernels(&self) -> Result<(), MetalError> {
        Ok(())
    }

    /// Told before the commands of a model's step, counted from 0: a device that records commands begins or ends then.
    ///
    /// # Errors
    /// Commands are to be recorded, and cannot be.
    fn before_step(&self, _number: u64) -> Result<(), MetalError> {
        Ok(())
    }

    /// Keeps buffers resident; does nothing where the device has no residency sets.
    ///
    /// # Errors
    /// The driver refuses.
    fn keep_resident(&self, buffers: &[Buffer]) -> Result<Box<dyn Residency>, MetalError>;

    /// Bytes of buffers that live.
    fn allocated(&self) -> u64;
}

/// Checks what every implementation demands of a dispatch.
///
/// # Errors
/// As [`CommandBuffer::dispatch`].
pub fn check_dispatch(caps: &Caps, d: &Dispatch<'_>) -> Result<(), MetalError> {
    let bad = |reason: String| Err(MetalError::Dispatch { kernel: d.pipeline.label().to_owned(), reason });
    if d.grid.contains(&0) || d.threads == 0 {
        return bad(format!("an empty grid {:?} of {} threads", d.grid, d.threads));
    }
    if d.threads > caps.max_threads || !d.threads.is_multiple_of(caps.simd_width) {
        return bad(format!("{} threads: at most {}, in whole simdgroups", d.threads, caps.max_threads));
    }
    for parameter in d.pipeline.signature().buffers().filter(|p| p.index != 0) {
        if !d.buffers.iter().any(|(index, _)| *index == parameter.index) {
            return bad(format!("nothing is bound to {}", parameter.name));
        }
    }
    for (_, slice) in d.buffers {
        if slice.offset.checked_add(slice.bytes).is_none_or(|end| end > slice.buffer.len()) {
            return bad(format!("{slice:?} of {} bytes", slice.buffer.len()));
        }
    }
    Ok(())
}
