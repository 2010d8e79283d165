//! The backend: devices, and which kernels run which nodes.

use std::sync::Arc;

use wootz_graph::{
    Backend, Device, DeviceInfo, DeviceKind, DeviceLimits, Executor, Graph, LoadRequest, NodeId, RunError,
    Selection, WeightTable,
};

use crate::device::{Caps, MetalDevice};
use crate::error::MetalError;
use crate::exec::{self, ExecOptions, MetalExecutor};
use crate::select;

/// Settings of the Metal backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetalOptions {
    /// Whether several operations run as one kernel.
    pub fusion: bool,
    /// Whether dispatches may run together, where the device does that right.
    pub concurrency: bool,
    /// Command buffers encoded by further threads; `None` for 1 on unified memory and 2 on discrete GPUs.
    pub command_buffers: Option<usize>,
    /// Whether weights are copied to private memory even where the GPU shares the host's.
    pub private_weights: bool,
}

impl Default for MetalOptions {
    fn default() -> MetalOptions {
        MetalOptions { fusion: true, concurrency: true, command_buffers: None, private_weights: false }
    }
}

impl MetalOptions {
    /// The settings of the environment: `WOOTZ_METAL_NO_FUSION`, `WOOTZ_METAL_NO_CONCURRENCY`, `WOOTZ_METAL_N_CB`,
    /// `WOOTZ_METAL_FORCE_PRIVATE`.
    pub fn from_environment() -> MetalOptions {
        let is_set = |name: &str| std::env::var(name).is_ok_and(|v| v == "1");
        MetalOptions {
            fusion: !is_set("WOOTZ_METAL_NO_FUSION"),
            concurrency: !is_set("WOOTZ_METAL_NO_CONCURRENCY"),
            command_buffers: std::env::var("WOOTZ_METAL_N_CB").ok().and_then(|v| v.parse().ok()),
            private_weights: is_set("WOOTZ_METAL_FORCE_PRIVATE"),
        }
    }
}

/// Where a backend's devices come from.
pub trait Source: Send + Sync {
    /// Identity and capabilities of each device.
    ///
    /// # Errors
    /// The driver is there and fails.
    fn list(&self) -> Result<Vec<(String, Caps)>, MetalError>;

    /// Opens a device by its place in the list.
    ///
    /// # Errors
    /// There is no such device, or it fails.
    fn open(&self, index: usize) -> Result<Arc<dyn MetalDevice>, MetalError>;
}

/// No devices: plans for Metal can be made on any machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoDevices;

impl Source for NoDevices {
    fn list(&self) -> Result<Vec<(String, Caps)>, MetalError> {
        Ok(Vec::new())
    }

    fn open(&self, index: usize) -> Result<Arc<dyn MetalDevice>, MetalError> {
        Err(MetalError::Unavailable(format!("there is no device number {index}")))
    }
}

/// Metal devices, real or emulated, as a backend.
pub struct MetalBackend {
    name: &'static str,
    options: MetalOptions,
    source: Arc<dyn Source>,
}

impl MetalBackend {
    /// A backend of this name with the devices of a source.
    pub fn new(name: &'static str, options: MetalOptions, source: Arc<dyn Source>) -> MetalBackend {
        MetalBackend { name, options, source }
    }

    fn failed(&self, e: MetalError) -> RunError {
        e.on(self.name)
    }
}

impl Backend for MetalBackend {
    fn name(&self) -> &'static str {
        self.name
    }

    fn select(&self, graph: &Graph, weights: &WeightTable, at: NodeId) -> Option<Selection> {
        select::select(graph, weights, at, self.options.fusion)
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, RunError> {
        let list = self.source.list().map_err(|e| self.failed(e))?;
        Ok(list.into_iter().map(|(id, caps)| info(id, &caps, 0)).collect())
    }

    fn open(&self, index: usize) -> Result<Arc<dyn Device>, RunError> {
        let list = self.source.list().map_err(|e| self.failed(e))?;
        let (id, _) = list.into_iter().nth(index).ok_or_else(|| RunError::Device {
            device: self.name.to_owned(),
            reason: format!("there is no device number {index}"),
        })?;
        let device = self.source.open(index).map_err(|e| e.on(&id))?;
        Ok(Arc::new(OpenDevice { id, backend: self.name, options: self.options, device }))
    }
}

fn info(id: String, caps: &Caps, allocated: u64) -> DeviceInfo {
    DeviceInfo {
        id,
        name: caps.name.clone(),
        kind: if caps.unified { DeviceKind::UnifiedGpu } else { DeviceKind::DiscreteGpu },
        memory_total: Some(caps.working_set),
        memory_free: Some(caps.working_set.saturating_sub(allocated)),
        features: caps.features(),
    }
}

struct OpenDevice {
    id: String,
    backend: &'static str,
    options: MetalOptions,
    device: Arc<dyn MetalDevice>,
}

impl OpenDevice {
    fn exec_options(&self) -> ExecOptions {
        let caps = self.device.caps();
        ExecOptions {
            concurrent: self.options.concurrency && caps.concurrent,
            command_buffers: self.options.command_buffers.unwrap_or(if caps.unified { 1 } else { 2 }),
            private_weights: self.options.private_weights,
        }
    }
}

impl Device for OpenDevice {
    fn info(&self) -> DeviceInfo {
        info(self.id.clone(), self.device.caps(), self.device.allocated())
    }

    fn limits(&self) -> Result<DeviceLimits, RunError> {
        exec::limits(&self.device, &self.id, self.exec_options())
    }

    fn load(
        &self,
        request: LoadRequest<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Box<dyn Executor>, RunError> {
        let options = self.exec_options();
        let (device, backend) = (self.device.clone(), self.backend);
        Ok(Box::new(MetalExecutor::load(device, &self.id, backend, options, request, progress)?))
    }
}
