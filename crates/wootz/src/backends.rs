//! Devices that models can run on.

use std::sync::Arc;

use wootz_cpu::{CpuBackend, CpuOptions, Isa};
use wootz_cuda::{CudaBackend, CudaOptions, Kernels};
use wootz_graph::{Backend, Device, DeviceInfo, RunError};
use wootz_metal::{MetalBackend, MetalOptions, Source};

use crate::error::Error;

/// The environment variable that hides instruction sets from the CPU backend: the name of the one to use.
const ISA_VARIABLE: &str = "WOOTZ_CPU_ISA";

/// The environment variable that makes the CUDA backend take its plain kernels, with the value `simple`.
const KERNELS_VARIABLE: &str = "WOOTZ_CUDA_KERNELS";

/// The name of the emulated Metal devices.
const EMULATOR: &str = "metal-emulator";

/// The environment variable that chooses a Metal device by its number.
const METAL_VARIABLE: &str = "WOOTZ_METAL_DEVICE";

/// All backends of this build, in the order in which `auto` looks for a device.
///
/// Metal comes last, to be taken only by name, until its kernels have run on Apple hardware.
pub(crate) fn backends(cpu: CpuOptions) -> Result<Vec<Arc<dyn Backend>>, Error> {
    let isa = match std::env::var(ISA_VARIABLE) {
        Ok(name) => Some(Isa::from_name(&name).map_err(|e| RunError::Device {
            device: "cpu".into(),
            reason: format!("{ISA_VARIABLE}: {e}"),
        })?),
        Err(_) => None,
    };
    let kernels = match std::env::var(KERNELS_VARIABLE).as_deref() {
        Ok("simple") => Kernels::Simple,
        _ => Kernels::Fast,
    };
    let metal = MetalBackend::new("metal", MetalOptions::from_environment(), metal_devices());
    Ok(vec![
        Arc::new(CudaBackend::new(CudaOptions { kernels })),
        Arc::new(CpuBackend::new(CpuOptions { isa, ..cpu })),
        Arc::new(metal),
    ])
}

/// The GPUs of a Mac.
#[cfg(target_os = "macos")]
fn metal_devices() -> Arc<dyn Source> {
    Arc::new(wootz_metal::apple::AppleDevices::from_environment())
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

/// What a backend found on this machine.
pub struct BackendDevices {
    /// The backend's name.
    pub backend: &'static str,
    /// Its devices, or how its driver fails.
    pub devices: Result<Vec<DeviceInfo>, RunError>,
}

/// The devices of this machine, by backend.
///
/// # Errors
/// The environment names an unknown setting.
pub fn devices() -> Result<Vec<BackendDevices>, Error> {
    let list = backends(CpuOptions::default())?
        .into_iter()
        .map(|b| BackendDevices { backend: b.name(), devices: b.devices() });
    Ok(list.collect())
}

/// The backend with this name.
pub(crate) fn backend(name: &str) -> Result<Arc<dyn Backend>, Error> {
    let mut all = backends(CpuOptions::default())?;
    all.extend(emulator());
    let known = all.iter().map(|b| b.name()).collect::<Vec<_>>().join(", ");
    all.into_iter().find(|b| b.name() == name).ok_or_else(|| Error::NoDevice { name: name.to_owned(), known })
}

/// An open device with its backend.
pub(crate) type Opened = (Arc<dyn Backend>, Arc<dyn Device>);

/// Opens a device by its name or its backend's, which stands for the first; `auto` is the first one whose backend
/// `suits`, `metal` the Metal device that the environment chooses or the one with the largest memory.
pub(crate) fn open(
    name: &str,
    cpu: CpuOptions,
    suits: &dyn Fn(&dyn Backend) -> bool,
) -> Result<Opened, Error> {
    let mut all = backends(cpu)?;
    if name.split(':').next() == Some(EMULATOR) {
        all.extend(emulator());
    }
    let mut known = Vec::new();
    for backend in all {
        let devices = match backend.devices() {
            Ok(devices) => devices,
            Err(e) if name.split(':').next() == Some(backend.name()) => return Err(e.into()),
            // A driver that fails is no reason to do without the other devices.
            Err(e) => {
                known.push(format!("{} ({e})", backend.name()));
                continue;
            }
        };
        let chosen = match (name, backend.name()) {
            ("metal", "metal") => preferred_metal(&devices),
            ("auto", _) if !devices.is_empty() && suits(&*backend) => Some(0),
            (name, own) if name == own && !devices.is_empty() => Some(0),
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
