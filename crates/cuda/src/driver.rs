//! Devices through NVIDIA's driver, which is loaded when it is first asked for.

use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, MutexGuard};

use cudarc::driver::sys;
use sys::CUresult;
use wootz_graph::{DeviceInfo, DeviceKind, RunError};

use crate::code;
use crate::machine::{Kernel, Launch, Machine, Mark, Properties, Recorded};

/// Least compute capability that kernels are built for.
const LEAST_CAPABILITY: u32 = 80;

/// An error of the driver, as one of a device.
fn failed(device: &str, what: &str, code: CUresult) -> RunError {
    let mut text = MaybeUninit::uninit();
    // SAFETY: the driver was loaded, since it returned the code; it writes a static string or an error.
    let reason = unsafe {
        match sys::cuGetErrorString(code, text.as_mut_ptr()) {
            CUresult::CUDA_SUCCESS => CStr::from_ptr(text.assume_init()).to_string_lossy().into_owned(),
            _ => format!("{code:?}"),
        }
    };
    RunError::Device { device: device.to_owned(), reason: format!("{what}: {reason}") }
}

fn check(device: &str, what: &str, code: CUresult) -> Result<(), RunError> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(failed(device, what, code)) }
}

/// A value that the driver writes through a pointer.
fn get<T>(device: &str, what: &str, call: impl FnOnce(*mut T) -> CUresult) -> Result<T, RunError> {
    let mut value = MaybeUninit::uninit();
    check(device, what, call(value.as_mut_ptr()))?;
    // SAFETY: the driver has written the value, since it reports success.
    Ok(unsafe { value.assume_init() })
}

/// Devices that the driver knows; none where there is no driver or no device.
pub(crate) fn count() -> Result<usize, RunError> {
    // SAFETY: looks the library up and calls nothing in it.
    if !unsafe { sys::is_culib_present() } {
        return Ok(0);
    }
    // SAFETY: the library is there; the first call that it must get.
    match unsafe { sys::cuInit(0) } {
        CUresult::CUDA_SUCCESS => {}
        CUresult::CUDA_ERROR_NO_DEVICE => return Ok(0),
        code => return Err(failed("cuda", "the driver does not start", code)),
    }
    // SAFETY: writes one number.
    let count = get("cuda", "counting devices", |n| unsafe { sys::cuDeviceGetCount(n) })?;
    Ok(count as usize)
}

/// A device's context, shared by all that use the device.
pub(crate) struct Gpu {
    id: String,
    device: sys::CUdevice,
    context: sys::CUcontext,
    properties: Properties,
    functions: Mutex<HashMap<Kernel, usize>>,
    modules: Mutex<HashMap<&'static str, usize>>,
}

impl Gpu {
    /// Opens a device by its number.
    pub(crate) fn open(index: usize) -> Result<Arc<Gpu>, RunError> {
        let id = format!("cuda:{index}");
        let devices = count()?;
        if index >= devices {
            return Err(RunError::Device { device: id, reason: format!("there are {devices} devices") });
        }
        // SAFETY: the driver runs, as `count` has found; each call writes one value.
        unsafe {
            let device = get(&id, "opening it", |d| sys::cuDeviceGet(d, index as c_int))?;
            let properties = properties(&id, device)?;
            if properties.capability < LEAST_CAPABILITY {
                let reason = format!(
                    "compute capability {}, kernels need {LEAST_CAPABILITY}, that of the Ampere generation",
                    properties.capability
                );
                return Err(RunError::Device { device: id, reason });
            }
            let context = get(&id, "making a context", |c| sys::cuDevicePrimaryCtxRetain(c, device))?;
            let (functions, modules) = Default::default();
            Ok(Arc::new(Gpu { id, device, context, properties, functions, modules }))
        }
    }

    /// What the device is; its memory where a context can be asked.
    pub(crate) fn info(&self) -> DeviceInfo {
        describe(&self.id, self.device, &self.properties, self.memory().ok())
    }

    /// Bytes free and in all.
    fn memory(&self) -> Result<(u64, u64), RunError> {
        self.enter()?;
        let mut total = 0;
        // SAFETY: writes two numbers.
        let free =
            get(&self.id, "asking for memory", |free| unsafe { sys::cuMemGetInfo_v2(free, &mut total) })?;
        Ok((free as u64, total as u64))
    }

    /// Makes the context that of this thread.
    fn enter(&self) -> Result<(), RunError> {
        // SAFETY: the context is held as long as `self`.
        check(&self.id, "entering its context", unsafe { sys::cuCtxSetCurrent(self.context) })
    }

    fn function(&self, kernel: Kernel) -> Result<sys::CUfunction, RunError> {
        if let Some(function) = lock(&self.functions).get(&kernel) {
            return Ok(*function as sys::CUfunction);
        }
        let module = self.module(kernel.file)?;
        let name = std::ffi::CString::new(kernel.name)
            .map_err(|_| RunError::Plan(format!("a kernel named {:?}", kernel.name)))?;
        // SAFETY: the module lives as long as the context.
        let function =
            get(&self.id, kernel.name, |f| unsafe { sys::cuModuleGetFunction(f, module, name.as_ptr()) })?;
        let shared = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let fixed = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
        // SAFETY: `function` is one; shared memory beyond what a block can have is refused at its launch.
        unsafe {
            let fixed = get(&self.id, kernel.name, |n| sys::cuFuncGetAttribute(n, fixed, function))?;
            let most = self.properties.shared_per_block as c_int - fixed;
            check(&self.id, kernel.name, sys::cuFuncSetAttribute(function, shared, most))?;
        }
        lock(&self.functions).insert(kernel, function as usize);
        Ok(function)
    }

    fn module(&self, file: &'static str) -> Result<sys::CUmodule, RunError> {
        let mut modules = lock(&self.modules);
        if let Some(module) = modules.get(file) {
            return Ok(*module as sys::CUmodule);
        }
        let code =
            code::find(file).ok_or_else(|| RunError::Plan(format!("no code of kernels named {file}")))?;
        // SAFETY: a fat binary says itself where it ends.
        let module = get(&self.id, &format!("loading the kernels of {file}"), |m| unsafe {
            sys::cuModuleLoadData(m, code.as_ptr().cast())
        })?;
        modules.insert(file, module as usize);
        Ok(module)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: nothing uses the context any more. An error here has no one to hear it.
        unsafe {
            let _ = sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}

// SAFETY: contexts, modules and functions may be used from any thread.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// # Safety
/// The driver runs; `device` is one of its.
unsafe fn properties(id: &str, device: sys::CUdevice) -> Result<Properties, RunError> {
    use sys::CUdevice_attribute::*;
    let attribute = |attribute| {
        // SAFETY: by the caller.
        get(id, "asking for an attribute", |n| unsafe { sys::cuDeviceGetAttribute(n, attribute, device) })
    };
    let major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let multiprocessors = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    let shared = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
    Ok(Properties {
        capability: (10 * major + minor) as u32,
        multiprocessors: multiprocessors as u32,
        shared_per_block: shared as u32,
    })
}

/// What a device is, without a context on it.
pub(crate) fn describe_device(index: usize) -> Result<DeviceInfo, RunError> {
    let id = format!("cuda:{index}");
    // SAFETY: the driver runs, or the first call fails.
    unsafe {
        let device = get(&id, "finding it", |d| sys::cuDeviceGet(d, index as c_int))?;
        let total = get(&id, "asking for memory", |n| sys::cuDeviceTotalMem_v2(n, device))?;
        let info = describe(&id, device, &properties(&id, device)?, None);
        Ok(DeviceInfo { memory_total: Some(total as u64), ..info })
    }
}

fn describe(
    id: &str,
    device: sys::CUdevice,
    properties: &Properties,
    memory: Option<(u64, u64)>,
) -> DeviceInfo {
    let mut name = [0u8; 128];
    // SAFETY: the buffer has the length that is told; the driver ends the name with a zero.
    let found = unsafe { sys::cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as c_int, device) };
    let name = match (found, CStr::from_bytes_until_nul(&name)) {
        (CUresult::CUDA_SUCCESS, Ok(name)) => name.to_string_lossy().into_owned(),
        _ => "unknown".to_owned(),
    };
    DeviceInfo {
        id: id.to_owned(),
        name,
        kind: DeviceKind::DiscreteGpu,
        memory_total: memory.map(|m| m.1),
        memory_free: memory.map(|m| m.0),
        features: vec![
            format!("sm_{}", properties.capability),
            format!("{} multiprocessors", properties.multiprocessors),
        ],
    }
}

/// A stream of a device.
pub(crate) struct Queue {
    gpu: Arc<Gpu>,
    stream: sys::CUstream,
}

// SAFETY: a stream may be used from any thread.
unsafe impl Send for Queue {}
// SAFETY: as above; the driver orders what several threads queue.
unsafe impl Sync for Queue {}

impl Queue {
    pub(crate) fn new(gpu: Arc<Gpu>) -> Result<Queue, RunError> {
        gpu.enter()?;
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current.
        let stream = get(&gpu.id, "making a stream", |s| unsafe { sys::cuStreamCreate(s, flags) })?;
        Ok(Queue { gpu, stream })
    }

    fn check(&self, what: &str, code: CUresult) -> Result<(), RunError> {
        check(&self.gpu.id, what, code)
    }

    /// Queues a launch; with `overlap` it may begin while the one before it ends.
    fn start(&self, launch: &Launch, overlap: bool) -> Result<(), RunError> {
        // Such as of the outputs of a step without outputs: the driver refuses it.
        if launch.grid.contains(&0) {
            return Ok(());
        }
        let function = self.gpu.function(launch.kernel)?;
        use sys::CUlaunchAttributeID as Id;
        let attribute = |id, value| sys::CUlaunchAttribute { id, pad: [0; 4], value };
        let cluster = sys::CUlaunchAttributeValue {
            clusterDim: sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: launch.cluster, y: 1, z: 1 },
        };
        let overlaps = sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 };
        let mut attributes = [
            attribute(Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, cluster),
            attribute(Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, overlaps),
        ];
        let overlap = overlap && self.gpu.properties.capability >= 90;
        let first = usize::from(launch.cluster == 1);
        let used = &mut attributes[first..1 + usize::from(overlap)];
        let [x, y, z] = launch.grid;
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: launch.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared,
            hStream: self.stream,
            attrs: used.as_mut_ptr(),
            numAttrs: used.len() as u32,
        };
        let mut parameters = [launch.args() as *mut c_void];
        // SAFETY: a kernel has one parameter, the struct that its launch was made with; the driver copies it.
        let code = unsafe { sys::cuLaunchKernelEx(&config, function, parameters.as_mut_ptr(), null_mut()) };
        self.check(launch.kernel.name, code)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: the stream is owned. An error here has no one to hear it.
            unsafe {
                let _ = sys::cuStreamSynchronize(self.stream);
                let _ = sys::cuStreamDestroy_v2(self.stream);
            }
        }
    }
}

impl Machine for Queue {
    fn id(&self) -> &str {
        &self.gpu.id
    }

    fn properties(&self) -> Properties {
        self.gpu.properties
    }

    fn free_memory(&self) -> Result<u64, RunError> {
        Ok(self.gpu.memory()?.0)
    }

    fn allocate(&self, bytes: usize, what: &str) -> Result<u64, RunError> {
        self.gpu.enter()?;
        let mut address = 0;
        // SAFETY: writes one address.
        match unsafe { sys::cuMemAlloc_v2(&mut address, bytes) } {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(RunError::OutOfMemory {
                device: self.gpu.id.clone(),
                what: what.to_owned(),
                needed: bytes as u64,
                available: self.free_memory().ok(),
            }),
            code => self.check(what, code).map(|()| address),
        }
    }

    fn release(&self, address: u64) {
        if self.gpu.enter().is_ok() {
            // SAFETY: `address` came from `allocate`; the driver waits for work that uses it.
            unsafe {
                let _ = sys::cuMemFree_v2(address);
            }
        }
    }

    fn allocate_host(&self, bytes: usize) -> Result<NonNull<u8>, RunError> {
        self.gpu.enter()?;
        // SAFETY: writes one pointer.
        let memory =
            get(&self.gpu.id, "memory of the host", |p| unsafe { sys::cuMemHostAlloc(p, bytes, 0) })?;
        NonNull::new(memory.cast())
            .ok_or_else(|| failed(&self.gpu.id, "memory of the host", CUresult::CUDA_ERROR_OUT_OF_MEMORY))
    }

    fn release_host(&self, memory: NonNull<u8>, _bytes: usize) {
        if self.gpu.enter().is_ok() {
            // SAFETY: `memory` came from `allocate_host`.
            unsafe {
                let _ = sys::cuMemFreeHost(memory.as_ptr().cast());
            }
        }
    }

    unsafe fn copy_in(&self, to: u64, from: &[u8]) -> Result<(), RunError> {
        self.gpu.enter()?;
        // SAFETY: by the caller.
        let code = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), from.len(), self.stream) };
        self.check("copying to it", code)
    }

    unsafe fn copy_out(&self, to: NonNull<u8>, from: u64, bytes: usize) -> Result<(), RunError> {
        self.gpu.enter()?;
        // SAFETY: by the caller.
        let code = unsafe { sys::cuMemcpyDtoHAsync_v2(to.as_ptr().cast(), from, bytes, self.stream) };
        self.check("copying from it", code)
    }

    fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), RunError> {
        self.gpu.enter()?;
        // SAFETY: touches memory of the device alone.
        self.check("copying on it", unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.stream) })
    }

    fn clear(&self, to: u64, bytes: usize) -> Result<(), RunError> {
        self.gpu.enter()?;
        // SAFETY: touches memory of the device alone.
        self.check("clearing its memory", unsafe { sys::cuMemsetD8Async(to, 0, bytes, self.stream) })
    }

    fn launch(&self, launch: &Launch) -> Result<(), RunError> {
        self.gpu.enter()?;
        self.start(launch, false)
    }

    fn launch_early(&self, launch: &Launch) -> Result<(), RunError> {
        self.gpu.enter()?;
        self.start(launch, true)
    }

    fn record(&self, launches: &[Launch]) -> Result<Recorded, RunError> {
        self.gpu.enter()?;
        // Functions are looked up before: loading a module is not allowed while a stream records.
        for launch in launches {
            self.gpu.function(launch.kernel)?;
        }
        let id = &self.gpu.id;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is ours; the graph is destroyed once it is instantiated.
        unsafe {
            self.check("recording", sys::cuStreamBeginCapture_v2(self.stream, mode))?;
            let queued = launches.iter().try_for_each(|launch| self.start(launch, true));
            let graph = get(id, "recording", |g| sys::cuStreamEndCapture(self.stream, g));
            queued?;
            let graph = graph?;
            let made = get(id, "making a graph", |e| sys::cuGraphInstantiateWithFlags(e, graph, 0));
            let _ = sys::cuGraphDestroy(graph);
            made.map(|exec| Recorded(exec as u64))
        }
    }

    fn replay(&self, recorded: Recorded) -> Result<(), RunError> {
        self.gpu.enter()?;
        // SAFETY: `recorded` came from `record`.
        let code = unsafe { sys::cuGraphLaunch(recorded.0 as sys::CUgraphExec, self.stream) };
        self.check("running a graph", code)
    }

    fn forget(&self, recorded: Recorded) {
        if self.gpu.enter().is_ok() {
            // SAFETY: `recorded` came from `record` and is not used again.
            unsafe {
                let _ = sys::cuGraphExecDestroy(recorded.0 as sys::CUgraphExec);
            }
        }
    }

    fn mark(&self) -> Result<Mark, RunError> {
        self.gpu.enter()?;
        // SAFETY: writes one handle.
        let event = get(&self.gpu.id, "making an event", |e| unsafe { sys::cuEventCreate(e, 0) })?;
        Ok(Mark(event as u64))
    }

    fn set(&self, mark: Mark) -> Result<(), RunError> {
        self.gpu.enter()?;
        // SAFETY: `mark` came from `mark`.
        self.check("setting an event", unsafe { sys::cuEventRecord(mark.0 as sys::CUevent, self.stream) })
    }

    fn wait(&self, mark: Mark) -> Result<(), RunError> {
        self.gpu.enter()?;
        // SAFETY: `mark` came from `mark`.
        self.check("a step", unsafe { sys::cuEventSynchronize(mark.0 as sys::CUevent) })
    }

    fn seconds(&self, from: Mark, to: Mark) -> Result<f64, RunError> {
        self.gpu.enter()?;
        let mut milliseconds = 0f32;
        // SAFETY: both came from `mark`; writes one number.
        let code = unsafe {
            sys::cuEventElapsedTime(&mut milliseconds, from.0 as sys::CUevent, to.0 as sys::CUevent)
        };
        self.check("timing", code)?;
        Ok(f64::from(milliseconds) / 1e3)
    }

    fn drop_mark(&self, mark: Mark) {
        if self.gpu.enter().is_ok() {
            // SAFETY: `mark` came from `mark` and is not used again.
            unsafe {
                let _ = sys::cuEventDestroy_v2(mark.0 as sys::CUevent);
            }
        }
    }

    fn finish(&self) -> Result<(), RunError> {
        self.gpu.enter()?;
        // SAFETY: the stream is ours.
        self.check("a step", unsafe { sys::cuStreamSynchronize(self.stream) })
    }
}
