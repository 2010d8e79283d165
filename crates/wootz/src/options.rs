use wootz_graph::KvType;

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
    /// Tokens of a step at most.
    pub batch: usize,
    /// Bytes that weights and caches may take at most on a device; `None` for as many as are free.
    pub memory: Option<u64>,
    /// Type of cached keys.
    pub k_type: KvType,
    /// Type of cached values.
    pub v_type: KvType,
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
            batch: 512,
            memory: None,
            k_type: KvType::F16,
            v_type: KvType::F16,
        }
    }
}
