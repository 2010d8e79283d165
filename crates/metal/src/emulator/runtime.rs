//! The structs of `emulator/runtime.h`, and libraries of compiled kernels.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex};

use crate::error::MetalError;

/// Stack of one thread, in bytes.
pub(super) const STACK_BYTES: usize = 64 << 10;
/// Threads of a threadgroup, at most.
pub(super) const MAX_THREADS: usize = 1024;

#[repr(C)]
pub(super) struct Binding {
    pub(super) first: *mut u8,
    pub(super) bytes: u64,
    pub(super) cells: *mut Cell,
    pub(super) writable: u32,
    pub(super) index: u32,
}

/// Who touched two bytes of a buffer.
#[repr(C)]
pub(super) struct Cell {
    interval: u32,
    writer: u32,
    reader: u32,
}

#[repr(C)]
#[derive(Default)]
pub(super) struct Report {
    pub(super) fault: u32,
    pub(super) index: u32,
    pub(super) offset: u64,
    pub(super) is_write: u32,
    pub(super) thread: u32,
    pub(super) threadgroup: [u32; 3],
}

/// What a fault number means.
pub(super) fn fault_text(fault: u32) -> &'static str {
    match fault {
        1 => "access outside every bound piece of memory",
        2 => "write to memory that is bound for reading",
        3 => "misaligned access",
        4 => "conflict with a dispatch that no barrier separates",
        5 => "race between threadgroups",
        6 => "race between threads of a threadgroup",
        7 => "too much threadgroup memory",
        8 => "simdgroup operation that not all of its threads do",
        9 => "barrier that not all threads reach",
        _ => "threads wait for each other for ever",
    }
}

/// A kernel's entry.
pub(super) type Entry = *const c_void;

#[repr(C)]
pub(super) struct RawDispatch {
    pub(super) entry: Entry,
    pub(super) buffers: *const *mut u8,
    pub(super) bindings: *const Binding,
    pub(super) binding_count: u32,
    pub(super) grid: [u32; 3],
    pub(super) threads: u32,
    pub(super) width: u32,
    pub(super) order: u32,
    pub(super) seed: u32,
    pub(super) shared_limit: u32,
    pub(super) interval: u32,
    pub(super) first_serial: u32,
    pub(super) stacks: *mut u8,
}

/// Held while a library runs, by its path: the kernels of one share the state of its runtime, and all devices of the
/// process share a library.
static RUNNING: LazyLock<Mutex<HashMap<PathBuf, Arc<Mutex<()>>>>> = LazyLock::new(Mutex::default);

/// A shared library with one kernel file and the runtime.
pub(super) struct KernelLibrary {
    handle: *mut c_void,
    running: Arc<Mutex<()>>,
}

// SAFETY: a handle of the dynamic linker may be used from any thread; dispatches hold the library's lock.
unsafe impl Send for KernelLibrary {}
// SAFETY: as above.
unsafe impl Sync for KernelLibrary {}

impl KernelLibrary {
    /// Loads a library that [`super::toolchain`] made.
    pub(super) fn open(path: &Path) -> Result<KernelLibrary, MetalError> {
        // The kernels call functions of the mathematical library, which a Rust program may not have loaded.
        // SAFETY: the name is a C string; loading a library of the system runs no code of ours.
        unsafe { libc::dlopen(c"libm.so.6".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        let name = CString::new(path.as_os_str().as_encoded_bytes())
            .map_err(|_| MetalError::Unavailable(format!("{} is no path", path.display())))?;
        // SAFETY: the library was made of our sources and has no code that runs at loading.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(MetalError::Unavailable(format!("{}: {}", path.display(), last_error())));
        }
        let mut locks = RUNNING.lock().unwrap_or_else(|e| e.into_inner());
        let running = locks.entry(path.to_owned()).or_default().clone();
        Ok(KernelLibrary { handle, running })
    }

    /// The address of a symbol.
    pub(super) fn symbol(&self, name: &str) -> Result<*const c_void, MetalError> {
        let missing =
            || MetalError::Unavailable(format!("the compiled kernels have no {name}: {}", last_error()));
        let name = CString::new(name).map_err(|_| missing())?;
        // SAFETY: the handle lives, the name is a C string.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        if address.is_null() { Err(missing()) } else { Ok(address) }
    }

    /// Runs a dispatch on the calling thread.
    ///
    /// # Safety
    /// The dispatch's pointers are valid, its entry is of this library, and no other thread uses its stacks.
    pub(super) unsafe fn run(&self, dispatch: &RawDispatch) -> Result<Report, MetalError> {
        let address = self.symbol("emulator_run")?;
        // SAFETY: the runtime's function has this signature.
        let run: extern "C" fn(*const RawDispatch, *mut Report) = unsafe { std::mem::transmute(address) };
        let mut report = Report::default();
        let _running = self.running.lock().unwrap_or_else(|e| e.into_inner());
        run(dispatch, &mut report);
        Ok(report)
    }
}

impl Drop for KernelLibrary {
    fn drop(&mut self) {
        // SAFETY: the handle was opened once, and nothing of the library is used any more.
        unsafe { libc::dlclose(self.handle) };
    }
}

fn last_error() -> String {
    // SAFETY: the returned text lives until the next call in this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return String::new();
    }
    // SAFETY: as above; it is a C string.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
