//! Devices that models can run on.

use std::sync::Arc;

use wootz_cpu::{CpuBackend, CpuOptions, Isa};
use wootz_graph::{Backend, Device, DeviceInfo, RunError};

use crate::error::Error;

/// The environment variable that hides instruction sets from the CPU backend: the name of the one to use.
const ISA_VARIABLE: &str = "WOOTZ_CPU_ISA";

/// All backends of this build.
pub(crate) fn backends(threads: Option<usize>) -> Result<Vec<Arc<dyn Backend>>, Error> {
    let isa = match std::env::var(ISA_VARIABLE) {
        Ok(name) => Some(Isa::from_name(&name).map_err(|e| RunError::Device {
            device: "cpu".into(),
            reason: format!("{ISA_VARIABLE}: {e}"),
        })?),
        Err(_) => None,
    };
    Ok(vec![Arc::new(CpuBackend::new(CpuOptions { threads, isa }))])
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
        for (index, info) in backend.devices()?.into_iter().enumerate() {
            if name == "auto" || name == info.id {
                let device = backend.open(index)?;
                return Ok((backend, device));
            }
            known.push(info.id);
        }
    }
    Err(Error::NoDevice { name: name.to_owned(), known: known.join(", ") })
}
