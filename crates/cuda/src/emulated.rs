//! The kernels on the processor: a device for tests, on machines without a GPU.

use std::collections::HashMap;
use std::ffi::{CStr, c_char};
use std::path::PathBuf;
use std::process::Command;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock};

use libloading::{Library, Symbol};
use wootz_graph::{Device, DeviceInfo, DeviceKind, DeviceLimits, Executor, LoadRequest, RunError};

use crate::executor::CudaExecutor;
use crate::machine::{Launch, Machine, Mark, Properties, Recorded};
use crate::select::Kernels;
use crate::testing::folder;

/// A kernel with its arguments and shape: an error, or null.
type Emulate = unsafe extern "C" fn(*const u64, *const u32) -> *const c_char;

/// The kernels as a library of the host, if there is a C++ compiler.
fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    // Fibers are written for Linux.
    LIBRARY.get_or_init(|| if cfg!(target_os = "linux") { compile() } else { None }).as_ref()
}

/// Compiles the kernels; `None` where no compiler is found.
///
/// # Panics
/// The compiler refuses the kernels.
fn compile() -> Option<Library> {
    let named = std::env::var("CXX").ok();
    let compiler = named
        .into_iter()
        .chain(["c++", "g++", "clang++"].map(str::to_owned))
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success()))?;
    let out = std::env::temp_dir().join(format!("wootz-kernels-{}", std::process::id()));
    std::fs::create_dir_all(&out).unwrap();
    let library = out.join("kernels.so");
    let mut sources: Vec<PathBuf> =
        std::fs::read_dir(folder().join("kernels")).unwrap().map(|e| e.unwrap().path()).collect();
    sources.retain(|path| path.extension().is_some_and(|e| e == "cu"));
    sources.sort();
    let mut command = Command::new(&compiler);
    command.args(["-std=c++17", "-O2", "-g1", "-fPIC", "-shared", "-ffp-contract=off", "-Wall", "-Werror"]);
    // Fibers jump between stacks, which the checks of longjmp take for a mistake.
    command.args(["-U_FORTIFY_SOURCE", "-DWOOTZ_EMULATE", "-x", "c++", "-I"]);
    command.arg(folder().join("emulator")).args(sources).arg("-o").arg(&library);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{compiler}: {}", String::from_utf8_lossy(&output.stderr));
    // SAFETY: the library was just made from our sources; loading it runs nothing of ours.
    let loaded = unsafe { Library::new(&library) }.unwrap();
    // The library stays loaded without its file.
    std::fs::remove_dir_all(out).unwrap();
    Some(loaded)
}

/// Memory and work of a device that is none.
#[derive(Default)]
struct Emulated {
    /// Memory by address, in words so that it is aligned.
    memory: Mutex<HashMap<u64, Vec<[u64; 32]>>>,
    recorded: Mutex<Vec<Vec<Launch>>>,
}

/// One launch at a time: fibers and shared memory are global.
static RUNNING: Mutex<()> = Mutex::new(());

impl Machine for Emulated {
    fn id(&self) -> &str {
        "emulated"
    }

    fn properties(&self) -> Properties {
        Properties { capability: 80, multiprocessors: 4, shared_per_block: 99 << 10 }
    }

    fn free_memory(&self) -> Result<u64, RunError> {
        Ok(1 << 30)
    }

    fn allocate(&self, bytes: usize, _what: &str) -> Result<u64, RunError> {
        // What nobody has written shows: all ones are no number.
        let memory = vec![[u64::MAX; 32]; bytes.div_ceil(256)];
        let address = memory.as_ptr().addr() as u64;
        self.memory.lock().unwrap().insert(address, memory);
        Ok(address)
    }

    fn release(&self, address: u64) {
        assert!(self.memory.lock().unwrap().remove(&address).is_some(), "released twice");
    }

    fn allocate_host(&self, bytes: usize) -> Result<NonNull<u8>, RunError> {
        let address = self.allocate(bytes, "")?;
        Ok(NonNull::new(address as *mut u8).unwrap())
    }

    fn release_host(&self, memory: NonNull<u8>, _bytes: usize) {
        self.release(memory.as_ptr().addr() as u64);
    }

    unsafe fn copy_in(&self, to: u64, from: &[u8]) -> Result<(), RunError> {
        // SAFETY: by the caller.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to as *mut u8, from.len()) };
        Ok(())
    }

    unsafe fn copy_out(&self, to: NonNull<u8>, from: u64, bytes: usize) -> Result<(), RunError> {
        // SAFETY: by the caller.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to.as_ptr(), bytes) };
        Ok(())
    }

    fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), RunError> {
        // SAFETY: addresses come from `allocate`.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
        Ok(())
    }

    fn clear(&self, to: u64, bytes: usize) -> Result<(), RunError> {
        // SAFETY: as above.
        unsafe { std::ptr::write_bytes(to as *mut u8, 0, bytes) };
        Ok(())
    }

    fn launch_early(&self, launch: &Launch) -> Result<(), RunError> {
        self.launch(launch)
    }

    fn launch(&self, launch: &Launch) -> Result<(), RunError> {
        let library = library().expect("a device is made only where there is a compiler");
        let name = format!("emulate_{}", launch.kernel.name);
        let failed = |reason: String| RunError::Device { device: name.clone(), reason };
        // SAFETY: every kernel has this type.
        let kernel: Symbol<'_, Emulate> =
            unsafe { library.get(name.as_bytes()) }.map_err(|e| failed(e.to_string()))?;
        let [x, y, z] = launch.grid;
        let shape = [x, y, z, launch.block, launch.shared];
        let _running = RUNNING.lock().unwrap();
        // SAFETY: the arguments are those that the launch was made with.
        let error = unsafe { kernel(launch.args(), shape.as_ptr()) };
        if error.is_null() {
            return Ok(());
        }
        // SAFETY: an error is a string that lives for ever.
        Err(failed(unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned()))
    }

    fn record(&self, launches: &[Launch]) -> Result<Recorded, RunError> {
        let mut recorded = self.recorded.lock().unwrap();
        recorded.push(launches.to_vec());
        Ok(Recorded(recorded.len() as u64 - 1))
    }

    fn replay(&self, recorded: Recorded) -> Result<(), RunError> {
        let launches = self.recorded.lock().unwrap()[recorded.0 as usize].clone();
        launches.iter().try_for_each(|launch| self.launch(launch))
    }

    fn forget(&self, recorded: Recorded) {
        self.recorded.lock().unwrap()[recorded.0 as usize].clear();
    }

    fn mark(&self) -> Result<Mark, RunError> {
        Ok(Mark(0))
    }

    fn set(&self, _mark: Mark) -> Result<(), RunError> {
        Ok(())
    }

    fn wait(&self, _mark: Mark) -> Result<(), RunError> {
        Ok(())
    }

    fn seconds(&self, _from: Mark, _to: Mark) -> Result<f64, RunError> {
        Ok(0.0)
    }

    fn drop_mark(&self, _mark: Mark) {}

    fn finish(&self) -> Result<(), RunError> {
        Ok(())
    }
}

/// A device that runs the plain kernels on the processor.
struct EmulatedDevice;

impl Device for EmulatedDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            id: "emulated".into(),
            name: "emulated".into(),
            kind: DeviceKind::Cpu,
            memory_total: None,
            memory_free: None,
            features: Vec::new(),
        }
    }

    fn limits(&self) -> Result<DeviceLimits, RunError> {
        Ok(DeviceLimits { bytes_per_second: f64::INFINITY, ops_per_second: f64::INFINITY })
    }

    fn load(
        &self,
        request: LoadRequest<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Box<dyn Executor>, RunError> {
        let machine = Arc::new(Emulated::default());
        Ok(Box::new(CudaExecutor::load(machine, Kernels::Simple, request, progress)?))
    }
}

/// A device that runs the plain kernels, or a message where it cannot be made.
fn device() -> Option<impl Device> {
    if library().is_none() {
        eprintln!(
            "NOT RUN: there is no C++ compiler (CXX, c++, g++ or clang++) to run kernels on the processor"
        );
    }
    library().map(|_| EmulatedDevice)
}

mod tests {
    use wootz_testkit::picks;

    use super::*;
    use crate::pick::MOST_KEPT;
    use crate::{CudaBackend, CudaOptions};

    fn backend() -> CudaBackend {
        CudaBackend::new(CudaOptions { kernels: Kernels::Simple })
    }

    #[test]
    fn cases_agree_with_the_interpreter() {
        let Some(device) = device() else { return };
        let cases = wootz_testkit::cases::all();
        let failures: Vec<String> = cases
            .into_iter()
            .filter_map(|case| wootz_testkit::check(&backend(), &device, &case).err())
            .collect();
        assert!(failures.is_empty(), "{} cases failed:\n{}", failures.len(), failures.join("\n"));
    }

    #[test]
    fn picked_tokens_are_those_of_the_definition() {
        let Some(device) = device() else { return };
        for case in picks::all() {
            let picks = case.candidates() <= MOST_KEPT;
            assert_eq!(picks::check_picks(&backend(), &device, &case), Ok(picks), "{}", case.name);
        }
        assert_eq!(picks::check_fed_picks(&backend(), &device), Ok(true));
    }
}
