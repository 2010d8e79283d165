//! A Metal device that runs on the host and checks what it runs.
//!
//! Kernels are compiled as C++ by clang and run thread by thread. Command buffers run late, when somebody waits for
//! them; what Metal leaves open (the order of threads, of threadgroups, of dispatches between two barriers) is taken
//! in the order of the [`Profile`]. A command buffer fails, with words that name the place, where a kernel touches
//! memory outside what was bound or without a barrier, where threads or threadgroups race, where a buffer was freed
//! or is not resident, and where a limit of the device is exceeded. The host reaches only the buffers that Metal would
//! let it reach.

mod memory;
mod profile;
mod queue;
mod runtime;
mod source;
mod toolchain;

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

pub use profile::{Order, Profile};
pub use source::Emulators;
pub use toolchain::Toolchain;

use crate::device::{
    Buffer, Caps, CommandBuffer, MetalDevice, MetalPipeline, Pipeline, Residency, StorageMode,
};
use crate::error::MetalError;
use crate::library::{Function, Sources};
use crate::signature::Signature;
use memory::{EmulatedBuffer, Memory};
use queue::Queue;
use runtime::{Entry, KernelLibrary};

/// A kernel in memory.
struct Compiled {
    library: KernelLibrary,
    entry: Entry,
}

// SAFETY: the entry is the address of a function in the library, which lives as long.
unsafe impl Send for Compiled {}
// SAFETY: as above.
unsafe impl Sync for Compiled {}

struct EmulatedPipeline {
    signature: Signature,
    label: String,
    compiled: Arc<Compiled>,
}

impl MetalPipeline for EmulatedPipeline {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn label(&self) -> &str {
        &self.label
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The emulated device.
pub struct EmulatedDevice {
    profile: Profile,
    toolchain: Toolchain,
    sources: Sources,
    queue: Arc<Queue>,
    allocated: Arc<AtomicU64>,
    pipelines: Mutex<HashMap<Function, Pipeline>>,
}

impl EmulatedDevice {
    /// A device with the kernels of this build.
    ///
    /// # Errors
    /// The processor lacks AVX2, which the compiled kernels use, or memory does not suffice.
    pub fn new(profile: Profile, toolchain: Toolchain) -> Result<EmulatedDevice, MetalError> {
        EmulatedDevice::with_sources(profile, toolchain, Sources::default())
    }

    /// A device with other kernels.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_sources(
        profile: Profile,
        toolchain: Toolchain,
        sources: Sources,
    ) -> Result<EmulatedDevice, MetalError> {
        if !has_instructions() {
            return Err(MetalError::Unavailable("the emulator needs a processor with AVX2 and F16C".into()));
        }
        let queue = Arc::new(Queue::new(profile.clone())?);
        Ok(EmulatedDevice {
            profile,
            toolchain,
            sources,
            queue,
            allocated: Arc::default(),
            pipelines: Mutex::default(),
        })
    }

    fn check_size(&self, bytes: u64, what: &str) -> Result<(), MetalError> {
        let limit = self.profile.caps.max_buffer;
        if bytes > limit {
            return Err(MetalError::BufferTooLarge { what: what.to_owned(), needed: bytes, limit });
        }
        Ok(())
    }
}

/// Whether the processor has the instructions that kernels are compiled to.
fn has_instructions() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("f16c")
        && std::arch::is_x86_feature_detected!("fma")
        && std::arch::is_x86_feature_detected!("bmi2")
}

impl MetalDevice for EmulatedDevice {
    fn caps(&self) -> &Caps {
        &self.profile.caps
    }

    fn buffer(&self, bytes: u64, mode: StorageMode, label: &str) -> Result<Buffer, MetalError> {
        self.check_size(bytes, label)?;
        if mode == StorageMode::Managed && self.profile.caps.unified {
            return Err(MetalError::Access {
                buffer: label.to_owned(),
                what: "a GPU with unified memory has no managed buffers".into(),
            });
        }
        Ok(Arc::new(EmulatedBuffer::new(bytes, mode, label, &self.allocated)?))
    }

    unsafe fn wrap(
        &self,
        base: *const u8,
        bytes: u64,
        owner: Arc<dyn Any + Send + Sync>,
        label: &str,
    ) -> Result<Buffer, MetalError> {
        self.check_size(bytes, label)?;
        Ok(Arc::new(EmulatedBuffer::wrapped(base, bytes, owner, label, &self.allocated)?))
    }

    fn pipeline(&self, function: &Function) -> Result<Pipeline, MetalError> {
        let mut made = self.pipelines.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(pipeline) = made.get(function) {
            return Ok(pipeline.clone());
        }
        let width = self.profile.caps.simd_width;
        if function.constants.get("simd_width") != Some(&width) {
            return Err(MetalError::Kernel {
                kernel: function.label(),
                reason: format!("it was not made for simdgroups of {width}"),
            });
        }
        let (signature, _) = self.sources.signature(function)?;
        let path = self.toolchain.library(&self.sources, function, self.profile.traced)?;
        let library = KernelLibrary::open(&path)?;
        let entry = library.symbol(&format!("emulator_entry_{}", function.name))?;
        let label = function.label();
        let compiled = Arc::new(Compiled { library, entry });
        let pipeline: Pipeline = Arc::new(EmulatedPipeline { signature, label, compiled });
        made.insert(function.clone(), pipeline.clone());
        Ok(pipeline)
    }

    fn command_buffer(&self, label: &str) -> Result<Box<dyn CommandBuffer>, MetalError> {
        Ok(self.queue.command_buffer(label))
    }

    fn keep_resident(&self, buffers: &[Buffer]) -> Result<Box<dyn Residency>, MetalError> {
        let own = buffers.iter().filter_map(|b| b.as_any().downcast_ref::<EmulatedBuffer>());
        let kept: Vec<Arc<Memory>> = own.map(|b| b.memory.clone()).collect();
        kept.iter().for_each(|m| {
            m.resident.fetch_add(1, Ordering::AcqRel);
        });
        Ok(Box::new(Kept(kept)))
    }

    fn allocated(&self) -> u64 {
        self.allocated.load(Ordering::Relaxed)
    }
}

/// Buffers of a residency set.
struct Kept(Vec<Arc<Memory>>);

impl Residency for Kept {}

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.iter().for_each(|m| {
            m.resident.fetch_sub(1, Ordering::AcqRel);
        });
    }
}
