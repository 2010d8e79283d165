//! The backend and its devices.

use std::sync::Arc;

use wootz_graph::{
    Backend, Device, DeviceInfo, DeviceLimits, Executor, Graph, LoadRequest, NodeId, RunError, Selection,
    WeightTable,
};

use crate::driver::{self, Gpu, Queue};
use crate::executor::CudaExecutor;
use crate::limits;
use crate::select::{self, Kernels};

/// Settings of the CUDA backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CudaOptions {
    /// Which kernels are chosen.
    pub kernels: Kernels,
}

/// The GPUs of this machine that NVIDIA's driver knows.
#[derive(Clone, Debug, Default)]
pub struct CudaBackend {
    options: CudaOptions,
}

impl CudaBackend {
    /// A backend with these settings.
    pub fn new(options: CudaOptions) -> CudaBackend {
        CudaBackend { options }
    }
}

impl Backend for CudaBackend {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn select(&self, graph: &Graph, weights: &WeightTable, at: NodeId) -> Option<Selection> {
        select::select(self.options.kernels, graph, weights, at)
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, RunError> {
        (0..driver::count()?).map(driver::describe_device).collect()
    }

    fn open(&self, index: usize) -> Result<Arc<dyn Device>, RunError> {
        Ok(Arc::new(CudaDevice { gpu: Gpu::open(index)?, options: self.options }))
    }
}

struct CudaDevice {
    gpu: Arc<Gpu>,
    options: CudaOptions,
}

impl Device for CudaDevice {
    fn info(&self) -> DeviceInfo {
        self.gpu.info()
    }

    fn limits(&self) -> Result<DeviceLimits, RunError> {
        limits::measure(Arc::new(Queue::new(self.gpu.clone())?))
    }

    fn load(
        &self,
        request: LoadRequest<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Box<dyn Executor>, RunError> {
        let queue = Arc::new(Queue::new(self.gpu.clone())?);
        Ok(Box::new(CudaExecutor::load(queue, self.options.kernels, request, progress)?))
    }
}
