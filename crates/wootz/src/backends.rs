//! Devices that models can run on.

use std::sync::Arc;

use wootz_cpu::{CpuBackend, CpuOptions, Isa};
use wootz_graph::{Backend, Device, DeviceInfo, RunError};
use wootz_metal::{MetalBackend, MetalOptions, Source};

use crate::error::Error;

/// The environment variable that hides instruction sets from the CPU backend: the name of the one to use.
const ISA_VARIABLE: &str = "WOOTZ_CPU_ISA";

/// The name of the emulated Metal devices.
const EMULATOR: &str = "metal-emulator";

/// The environment variable that chooses a Metal device by its number.
const METAL_VARIABLE: &str = "WOOTZ_METAL_DEVICE";

/// All backends of this build.
pub(crate) fn backends(threads: Option<usize>) -> Result<Vec<Arc<dyn Backend>>, Error> {
    let isa = match std::env::var(ISA_VARIABLE) {
        Ok(name) => Some(Isa::from_name(&name).map_err(|e| RunError::Device {
            device: "cpu".into(),
            reason: format!("{ISA_VARIABLE}: {e}"),
        })?),
        Err(_) => None,
    };
    let metal = MetalBackend::new("metal", MetalOptions::from_environment(), metal_devices());
    Ok(vec![Arc::new(CpuBackend::new(CpuOptions { threads, isa })), Arc::new(metal)])
}

/// The GPUs of a Mac.
#[cfg(target_os = "macos")]
fn metal_devices() -> Arc<dyn Source> {
    Arc::new(wootz_metal::apple::AppleDevices)
}

/// No device, though plans can be made.
#[cfg(not(target_os = "macos"))]
fn metal_devices() -> Arc<dyn Source> {
    Arc::new(wootz_metal::NoDevices)
}

/// The emulated Metal devices, which are there only for who asks for them by name.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn emulator() -> Option<Arc<dyn Backend>> {
    // In a checkout of wootz, its own cache, where a compiler may have been fetched to.
    let here = std::env::current_dir().unwrap_or_default();
    let own = here.ancestors().map(|d| d.join(".cache")).find(|d| d.join("platforms").is_dir());
    let folder = own.unwrap_or_else(|| std::env::temp_dir().join("wootz"));
    let source = Arc::new(wootz_metal::emulator::Emulators::new(folder));
    Some(Arc::new(MetalBackend::new(EMULATOR, MetalOptions::from_environment(), source)))
}

/// The emulator runs on Linux alone.
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn emulator() -> Option<Arc<dyn Backend>> {
    None
}

/// The devices of this machine.
///
/// # Errors
/// A driver is there and fails.
pub fn devices() -> Result<Vec<DeviceInfo>, Error> {
    let mut list = Vec::new();
    for backend in backends(None)? {
        list.extend(backend.devices()?);
    }
    Ok(list)
}

/// The backend with this name.
pub(crate) fn backend(name: &str) -> Result<Arc<dyn Backend>, Error> {
    let mut all = backends(None)?;
    all.extend(emulator());
    let known = all.iter().map(|b| b.name()).collect::<Vec<_>>().join(", ");
    all.into_iter().find(|b| b.name() == name).ok_or_else(|| Error::NoDevice { name: name.to_owned(), known })
}

/// An open device with its backend.
pub(crate) type Opened = (Arc<dyn Backend>, Arc<dyn Device>);

/// Opens a device by its name; `auto` is the first one, `metal` the Metal device that the environment chooses or the
/// one with the largest memory.
pub(crate) fn open(name: &str, threads: Option<usize>) -> Result<Opened, Error> {
    let mut all = backends(threads)?;
    if name.split(':').next() == Some(EMULATOR) {
        all.extend(emulator());
    }
    let mut known = Vec::new();
    for backend in all {
        let devices = backend.devices()?;
        let chosen = match (name, backend.name()) {
            ("metal", "metal") => preferred_metal(&devices),
            ("auto", _) if !devices.is_empty() => Some(0),
            _ => devices.iter().position(|info| info.id == name),
        };
        if let Some(index) = chosen {
            let device = backend.open(index)?;
            return Ok((backend, device));
        }
        known.extend(devices.into_iter().map(|info| info.id));
    }
    Err(Error::NoDevice { name: name.to_owned(), known: known.join(", ") })
}

/// The Metal device that the environment chooses, or the one with the largest memory.
fn preferred_metal(devices: &[DeviceInfo]) -> Option<usize> {
    let chosen = std::env::var(METAL_VARIABLE).ok().and_then(|v| v.parse().ok());
    let largest = || (0..devices.len()).max_by_key(|i| devices[*i].memory_total);
    chosen.filter(|i| *i < devices.len()).or_else(largest)
}
