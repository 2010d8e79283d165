use wootz_graph::{DeviceInfo, DeviceKind, KvType};

pub use wootz_cpu::Repack;

/// How a context is set up on a device.
#[derive(Clone, Debug, PartialEq)]
pub struct ContextOptions {
    /// Device name, such as `cpu`; `auto` for the best one. Several, with commas between them, each compute some of the
    /// model's layers, one device after the other.
    pub device: String,
    /// Layers of each of several devices, in proportion; `None` to go by their free memory.
    pub split: Option<Vec<u32>>,
    /// Threads of the CPU; `None` for one a core.
    pub threads: Option<usize>,
    /// Whether the CPU brings matrices into its kernels' order.
    pub repack: Repack,
    /// Positions of a sequence; `None` for the model's own, as far as memory allows.
    pub context: Option<usize>,
    /// Sequences that the cache has room for at full length.
    pub sequences: usize,
    /// Tokens of a step at most; `None` for 2,048 where all layers lie on GPUs of at least 16 GiB of their own together,
    /// else 512.
    pub batch: Option<usize>,
    /// Bytes that weights and caches may take at most on a device; `None` for as many as are free.
    pub memory: Option<u64>,
    /// Type of cached keys.
    pub k_type: KvType,
    /// Type of cached values.
    pub v_type: KvType,
}

/// Tokens of a step at most, where nothing else is said: enough for the speed of a processor, and for that of a GPU, whose
/// values then take four times the memory.
const BATCH: usize = 512;
const GPU_BATCH: usize = 2048;
/// Memory of GPUs that long steps are for.
const GPU_BATCH_MEMORY: u64 = 16 << 30;

impl ContextOptions {
    /// Tokens of a step at most; on a device, or on one that is not chosen yet.
    pub(crate) fn batch_on(&self, device: Option<&DeviceInfo>) -> usize {
        let large = |device: &DeviceInfo| {
            device.kind == DeviceKind::DiscreteGpu
                && device.memory_total.is_some_and(|m| m >= GPU_BATCH_MEMORY)
        };
        let usual = if device.is_some_and(large) { GPU_BATCH } else { BATCH };
        self.batch.unwrap_or(usual).max(1)
    }
}

impl Default for ContextOptions {
    fn default() -> Self {
        ContextOptions {
            device: "auto".into(),
            split: None,
            threads: None,
            repack: Repack::Auto,
            context: None,
            sequences: 1,
            batch: None,
            memory: None,
            k_type: KvType::F16,
            v_type: KvType::F16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_long_on_gpus_with_memory_for_them() {
        let device = |kind, gib: u64| DeviceInfo {
            id: String::new(),
            name: String::new(),
            kind,
            memory_total: Some(gib << 30),
            memory_free: None,
            features: Vec::new(),
        };
        let usual = ContextOptions::default();
        assert_eq!(usual.batch_on(None), BATCH);
        assert_eq!(usual.batch_on(Some(&device(DeviceKind::Cpu, 64))), BATCH);
        assert_eq!(usual.batch_on(Some(&device(DeviceKind::UnifiedGpu, 64))), BATCH);
        assert_eq!(usual.batch_on(Some(&device(DeviceKind::DiscreteGpu, 8))), BATCH);
        assert_eq!(usual.batch_on(Some(&device(DeviceKind::DiscreteGpu, 16))), GPU_BATCH);
        let given = ContextOptions { batch: Some(64), ..usual };
        assert_eq!(given.batch_on(Some(&device(DeviceKind::DiscreteGpu, 16))), 64);
    }
}
