//! Devices that models can run on.

use std::sync::Arc;

use wootz_cpu::{CpuBackend, CpuOptions, Isa};
use wootz_cuda::{CudaBackend, CudaOptions, Kernels};
use wootz_graph::{Backend, Device, DeviceInfo, RunError};

use crate::error::Error;

/// The environment variable that hides instruction sets from the CPU backend: the name of the one to use.
const ISA_VARIABLE: &str = "WOOTZ_CPU_ISA";

/// The environment variable that makes the CUDA backend take its plain kernels, with the value `simple`.
const KERNELS_VARIABLE: &str = "WOOTZ_CUDA_KERNELS";

/// All backends of this build, the fastest first.
pub(crate) fn backends(threads: Option<usize>) -> Result<Vec<Arc<dyn Backend>>, Error> {
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
    Ok(vec![
        Arc::new(CudaBackend::new(CudaOptions { kernels })),
        Arc::new(CpuBackend::new(CpuOptions { threads, isa })),
    ])
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
    let list =
        backends(None)?.into_iter().map(|b| BackendDevices { backend: b.name(), devices: b.devices() });
    Ok(list.collect())
}

/// The backend with this name.
pub(crate) fn backend(name: &str) -> Result<Arc<dyn Backend>, Error> {
    let all = backends(None)?;
    let known = all.iter().map(|b| b.name()).collect::<Vec<_>>().join(", ");
    all.into_iter().find(|b| b.name() == name).ok_or_else(|| Error::NoDevice { name: name.to_owned(), known })
}

/// An open device with its backend.
pub(crate) type Opened = (Arc<dyn Backend>, Arc<dyn Device>);

/// Opens a device by its name; `auto` is the first one.
pub(crate) fn open(name: &str, threads: Option<usize>) -> Result<Opened, Error> {
    let mut known = Vec::new();
    for backend in backends(threads)? {
        let devices = match backend.devices() {
            Ok(devices) => devices,
            Err(e) if name.split(':').next() == Some(backend.name()) => return Err(e.into()),
            // A driver that fails is no reason to do without the other devices.
            Err(e) => {
                known.push(format!("{} ({e})", backend.name()));
                continue;
            }
        };
        for (index, info) in devices.into_iter().enumerate() {
            if name == "auto" || name == info.id {
                let device = backend.open(index)?;
                return Ok((backend, device));
            }
            known.push(info.id);
        }
    }
    Err(Error::NoDevice { name: name.to_owned(), known: known.join(", ") })
}
