/// Positions in one physical block of a KV cache.
pub const BLOCK_TOKENS: usize = 32;

/// One KV cache of a graph, usually one a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheId(pub u32);

/// Element type of cached keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum KvType {
    F32,
    F16,
    BF16,
    Q8_0,
    Q4_0,
}

impl KvType {
    /// Every type.
    pub const ALL: [KvType; 5] = [KvType::F32, KvType::F16, KvType::BF16, KvType::Q8_0, KvType::Q4_0];

    /// The name that command lines use.
    pub fn name(self) -> &'static str {
        match self {
            KvType::F32 => "f32",
            KvType::F16 => "f16",
            KvType::BF16 => "bf16",
            KvType::Q8_0 => "q8_0",
            KvType::Q4_0 => "q4_0",
        }
    }

    /// Bytes of `n` elements (`n` a multiple of 32 for the quantised types).
    pub fn bytes(self, n: usize) -> usize {
        match self {
            KvType::F32 => 4 * n,
            KvType::F16 | KvType::BF16 => 2 * n,
            KvType::Q8_0 => n / 32 * 34,
            KvType::Q4_0 => n / 32 * 18,
        }
    }
}

/// The shape of one KV cache.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheSpec {
    /// The layer it belongs to.
    pub layer: u16,
    /// The block-table group: caches of one group share block tables.
    pub group: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Elements of a key head.
    pub k_dim: u32,
    /// Elements of a value head.
    pub v_dim: u32,
}

impl CacheSpec {
    /// Bytes of one block of [`BLOCK_TOKENS`] positions, keys and values together.
    pub fn block_bytes(&self, k: KvType, v: KvType) -> usize {
        let heads = self.kv_heads as usize;
        BLOCK_TOKENS * heads * (k.bytes(self.k_dim as usize) + v.bytes(self.v_dim as usize))
    }
}

/// Caches that share block tables: all with full attention, or all with the same sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheGroup {
    /// Positions that attention looks back, itself included; `None` for all.
    pub window: Option<u32>,
    /// Physical blocks.
    pub blocks: u32,
}

/// All KV caches of a model on one device.
#[derive(Clone, Debug)]
pub struct CacheLayout {
    /// Caches by [`CacheId`].
    pub caches: Vec<CacheSpec>,
    /// Groups by [`CacheSpec::group`].
    pub groups: Vec<CacheGroup>,
    /// Type of keys.
    pub k_type: KvType,
    /// Type of values.
    pub v_type: KvType,
}

impl CacheLayout {
    /// Bytes of all blocks of a cache.
    pub fn cache_bytes(&self, cache: CacheId) -> u64 {
        let spec = &self.caches[cache.0 as usize];
        let blocks = u64::from(self.groups[spec.group as usize].blocks);
        blocks * spec.block_bytes(self.k_type, self.v_type) as u64
    }

    /// Bytes of all blocks of all caches.
    pub fn total_bytes(&self) -> u64 {
        (0..self.caches.len() as u32).map(|id| self.cache_bytes(CacheId(id))).sum()
    }
}
