//! Metal devices of macOS.

mod archive;
mod capture;
mod commands;
mod pipeline;

use std::any::Any;
use std::collections::HashMap;
use std::ffi::c_void;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2::sel;
use objc2_foundation::{NSRange, NSString};
use objc2_metal::{
    MTLAllocation, MTLBuffer, MTLCommandQueue, MTLCopyAllDevices, MTLDevice, MTLGPUFamily, MTLLibrary,
    MTLResidencySet, MTLResidencySetDescriptor, MTLResource, MTLResourceOptions,
};

use crate::backend::Source;
use crate::device::{
    Buffer, Caps, CommandBuffer, MetalBuffer, MetalDevice, Pipeline, Residency, StorageMode,
};
use crate::error::MetalError;
use crate::library::{Function, Library, Sources};
use archive::Archive;
use capture::Capture;
use commands::Recorder;

/// Bytes of a page of host memory.
const PAGE: u64 = if cfg!(target_arch = "aarch64") { 16 << 10 } else { 4 << 10 };

/// A Metal object that its own protocol does not declare free of threads.
struct Object<T: ?Sized>(Retained<ProtocolObject<T>>);

// SAFETY: Metal's buffers, command buffers and residency sets may be used from any thread; those that only one thread
// may use at a time are owned by one of our structs, whose methods take `&mut self`.
unsafe impl<T: ?Sized> Send for Object<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized> Sync for Object<T> {}

struct AppleBuffer {
    buffer: Object<dyn MTLBuffer>,
    mode: StorageMode,
    label: String,
    /// Memory that the buffer wraps: only read, and dropped after it.
    owner: Option<Arc<dyn Any + Send + Sync>>,
}

impl AppleBuffer {
    fn refused(&self, what: String) -> MetalError {
        MetalError::Access { buffer: self.label.clone(), what }
    }

    /// The host's bytes from `offset` on.
    fn host(&self, offset: u64, bytes: usize) -> Result<*mut u8, MetalError> {
        if self.mode == StorageMode::Private {
            return Err(self.refused("the host cannot reach private memory".into()));
        }
        if offset.checked_add(bytes as u64).is_none_or(|end| end > self.len()) {
            return Err(self.refused(format!("{bytes} bytes at {offset} of {}", self.len())));
        }
        // SAFETY: the offset lies inside the buffer, as just checked.
        Ok(unsafe { self.buffer.0.contents().as_ptr().cast::<u8>().add(offset as usize) })
    }
}

impl MetalBuffer for AppleBuffer {
    fn len(&self) -> u64 {
        self.buffer.0.length() as u64
    }

    fn mode(&self) -> StorageMode {
        self.mode
    }

    fn label(&self) -> &str {
        &self.label
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), MetalError> {
        if self.owner.is_some() {
            return Err(self.refused("it wraps memory that is only read".into()));
        }
        let to = self.host(offset, bytes.len())?;
        // SAFETY: the range is inside, and the executor writes no buffer that commands in flight use.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        if self.mode == StorageMode::Managed {
            self.buffer.0.didModifyRange(NSRange::new(offset as usize, bytes.len()));
        }
        Ok(())
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MetalError> {
        let from = self.host(offset, bytes.len())?;
        // SAFETY: the range is inside, and the executor has waited for the commands that write it.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A GPU with its queue.
pub struct AppleDevice {
    device: Retained<ProtocolObject<dyn MTLDevice>>,
    queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    caps: Caps,
    sources: Sources,
    libraries: Mutex<HashMap<Library, Retained<ProtocolObject<dyn MTLLibrary>>>>,
    pipelines: Mutex<HashMap<Function, Pipeline>>,
    archive: Option<Mutex<Archive>>,
    capture: Option<Capture>,
}

impl AppleDevice {
    fn new(
        device: Retained<ProtocolObject<dyn MTLDevice>>,
        settings: &AppleDevices,
    ) -> Result<AppleDevice, MetalError> {
        let caps = caps(&device, pipeline::execution_width(&device)?);
        let queue = device
            .newCommandQueue()
            .ok_or_else(|| MetalError::Unavailable(format!("{}: no command queue", caps.name)))?;
        let sources = Sources::default();
        let file =
            settings.archives.as_ref().map(|folder| crate::archive::file(folder, &caps.name, &sources));
        // A device without archives compiles its kernels in every run.
        let archive = file.and_then(|file| Archive::open(&device, file).ok()).map(Mutex::new);
        Ok(AppleDevice {
            device,
            queue,
            caps,
            sources,
            libraries: Mutex::default(),
            pipelines: Mutex::default(),
            archive,
            capture: settings.capture.clone().map(Capture::new),
        })
    }

    fn check_size(&self, bytes: u64, what: &str) -> Result<(), MetalError> {
        let limit = self.caps.max_buffer;
        if bytes > limit {
            return Err(MetalError::BufferTooLarge { what: what.to_owned(), needed: bytes, limit });
        }
        Ok(())
    }

    fn finished(
        &self,
        buffer: Option<Retained<ProtocolObject<dyn MTLBuffer>>>,
        bytes: u64,
        (mode, label): (StorageMode, &str),
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Buffer, MetalError> {
        let out_of_memory = || MetalError::OutOfMemory { what: label.to_owned(), needed: bytes };
        let buffer = buffer.ok_or_else(out_of_memory)?;
        buffer.setLabel(Some(&NSString::from_str(label)));
        Ok(Arc::new(AppleBuffer { buffer: Object(buffer), mode, label: label.to_owned(), owner }))
    }
}

fn options(mode: StorageMode) -> MTLResourceOptions {
    match mode {
        StorageMode::Shared => MTLResourceOptions::StorageModeShared,
        StorageMode::Managed => MTLResourceOptions::StorageModeManaged,
        StorageMode::Private => MTLResourceOptions::StorageModePrivate,
    }
}

fn caps(device: &ProtocolObject<dyn MTLDevice>, simd_width: u32) -> Caps {
    let family = |f: MTLGPUFamily| device.supportsFamily(f);
    Caps {
        name: device.name().to_string(),
        unified: device.hasUnifiedMemory(),
        simd_width,
        simdgroup_matrix: family(MTLGPUFamily::Apple7) && simd_width == 32,
        bf16: family(MTLGPUFamily::Metal3) || family(MTLGPUFamily::Apple6),
        residency_sets: device.respondsToSelector(sel!(newResidencySetWithDescriptor:error:)),
        // Concurrent dispatches gave wrong results on other makers' GPUs.
        concurrent: family(MTLGPUFamily::Apple1),
        max_buffer: device.maxBufferLength() as u64,
        max_threadgroup_memory: device.maxThreadgroupMemoryLength() as u32,
        max_threads: device.maxThreadsPerThreadgroup().width.min(1024) as u32,
        page: PAGE,
        working_set: device.recommendedMaxWorkingSetSize(),
    }
}

impl MetalDevice for AppleDevice {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn buffer(&self, bytes: u64, mode: StorageMode, label: &str) -> Result<Buffer, MetalError> {
        self.check_size(bytes, label)?;
        let made = self.device.newBufferWithLength_options(bytes.max(1) as usize, options(mode));
        self.finished(made, bytes, (mode, label), None)
    }

    unsafe fn wrap(
        &self,
        base: *const u8,
        bytes: u64,
        owner: Arc<dyn Any + Send + Sync>,
        label: &str,
    ) -> Result<Buffer, MetalError> {
        let bytes = bytes.next_multiple_of(PAGE);
        self.check_size(bytes, label)?;
        let Some(base) = NonNull::new(base.cast_mut().cast::<c_void>()) else {
            return Err(MetalError::Access { buffer: label.to_owned(), what: "no memory to wrap".into() });
        };
        // SAFETY: the caller promises that these pages can be read while the owner lives, which the buffer keeps;
        // nothing writes the buffer.
        let made = unsafe {
            self.device.newBufferWithBytesNoCopy_length_options_deallocator(
                base,
                bytes as usize,
                options(StorageMode::Shared),
                None,
            )
        };
        self.finished(made, bytes, (StorageMode::Shared, label), Some(owner))
    }

    fn pipeline(&self, function: &Function) -> Result<Pipeline, MetalError> {
        let mut made = self.pipelines.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(pipeline) = made.get(function) {
            return Ok(pipeline.clone());
        }
        let mut libraries = self.libraries.lock().unwrap_or_else(|e| e.into_inner());
        let library = match libraries.get(&function.library) {
            Some(library) => library.clone(),
            None => {
                let library = pipeline::library(&self.device, &self.sources, &function.library)?;
                libraries.insert(function.library.clone(), library.clone());
                library
            }
        };
        let mut archive = self.archive.as_ref().map(|a| a.lock().unwrap_or_else(|e| e.into_inner()));
        let pipeline = pipeline::pipeline(
            &self.device,
            (&library, archive.as_deref_mut()),
            &self.sources,
            function,
            self.caps.simd_width,
        )?;
        made.insert(function.clone(), pipeline.clone());
        Ok(pipeline)
    }

    fn command_buffer(&self, label: &str) -> Result<Box<dyn CommandBuffer>, MetalError> {
        autoreleasepool(|_| Ok(Box::new(Recorder::new(&self.queue, &self.caps, label)?) as Box<_>))
    }

    fn keep_kernels(&self) -> Result<(), MetalError> {
        let archive = self.archive.as_ref().map(|a| a.lock().unwrap_or_else(|e| e.into_inner()));
        archive.map_or(Ok(()), |mut archive| autoreleasepool(|_| archive.keep()))
    }

    fn before_step(&self, number: u64) -> Result<(), MetalError> {
        let capture = self.capture.as_ref();
        capture.map_or(Ok(()), |capture| autoreleasepool(|_| capture.before_step(&self.queue, number)))
    }

    fn keep_resident(&self, buffers: &[Buffer]) -> Result<Box<dyn Residency>, MetalError> {
        if !self.caps.residency_sets || buffers.is_empty() {
            return Ok(Box::new(Kept { set: None }));
        }
        let set = self
            .device
            .newResidencySetWithDescriptor_error(&MTLResidencySetDescriptor::new())
            .map_err(|e| MetalError::Unavailable(e.localizedDescription().to_string()))?;
        for buffer in buffers {
            if let Some(own) = buffer.as_any().downcast_ref::<AppleBuffer>() {
                let allocation: &ProtocolObject<dyn MTLAllocation> = ProtocolObject::from_ref(&*own.buffer.0);
                set.addAllocation(allocation);
            }
        }
        set.commit();
        set.requestResidency();
        self.queue.addResidencySet(&set);
        Ok(Box::new(Kept { set: Some((Object(set), self.queue.clone())) }))
    }

    fn allocated(&self) -> u64 {
        self.device.currentAllocatedSize() as u64
    }
}

/// A residency set and the queue that uses it.
struct Kept {
    set: Option<(Object<dyn MTLResidencySet>, Retained<ProtocolObject<dyn MTLCommandQueue>>)>,
}

impl Residency for Kept {}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some((set, queue)) = &self.set {
            queue.removeResidencySet(&set.0);
            set.0.endResidency();
        }
    }
}

/// The GPUs of this Mac.
#[derive(Clone, Debug, Default)]
pub struct AppleDevices {
    /// Folder for compiled kernels; they are not kept without one.
    pub archives: Option<PathBuf>,
    /// File in which the first steps are recorded for Xcode.
    pub capture: Option<PathBuf>,
}

impl AppleDevices {
    /// The settings of the environment: `WOOTZ_METAL_ARCHIVES`, a folder, else one among the system's temporary files;
    /// `WOOTZ_METAL_CAPTURE`, a file.
    pub fn from_environment() -> AppleDevices {
        let path = |name: &str| std::env::var_os(name).map(PathBuf::from);
        let archives = path("WOOTZ_METAL_ARCHIVES").unwrap_or_else(|| std::env::temp_dir().join("wootz"));
        AppleDevices { archives: Some(archives), capture: path("WOOTZ_METAL_CAPTURE") }
    }
}

impl Source for AppleDevices {
    fn list(&self) -> Result<Vec<(String, Caps)>, MetalError> {
        autoreleasepool(|_| {
            let devices = MTLCopyAllDevices();
            devices
                .iter()
                .enumerate()
                .map(|(i, d)| Ok((format!("metal:{i}"), caps(&d, pipeline::execution_width(&d)?))))
                .collect()
        })
    }

    fn open(&self, index: usize) -> Result<Arc<dyn MetalDevice>, MetalError> {
        autoreleasepool(|_| {
            let device = MTLCopyAllDevices().iter().nth(index);
            let device = device
                .ok_or_else(|| MetalError::Unavailable(format!("there is no device number {index}")))?;
            Ok(Arc::new(AppleDevice::new(device, self)?) as Arc<dyn MetalDevice>)
        })
    }
}
