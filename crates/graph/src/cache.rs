/// Positions in one physical block of a KV cache.
pub const BLOCK_TOKENS: usize = 32;

/// One cache of a graph: the keys and values of a layer, or one of its recurrent states.
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

/// The shape of one cache: keys and values by position, or a recurrent state.
///
/// A block of a state holds the state after the last computed token of the block's positions, as f32.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheSpec {
    /// The layer it belongs to.
    pub layer: u16,
    /// The block-table group: caches of one group share block tables.
    pub group: u32,
    /// Key and value heads; 0 for a state.
    pub kv_heads: u32,
    /// Elements of a key head.
    pub k_dim: u32,
    /// Elements of a value head.
    pub v_dim: u32,
    /// Elements of a state; 0 for keys and values.
    pub state: u32,
}

impl CacheSpec {
    /// The cache of a recurrent state.
    pub fn of_state(layer: u16, group: u32, elements: u32) -> CacheSpec {
        CacheSpec { layer, group, kv_heads: 0, k_dim: 0, v_dim: 0, state: elements }
    }

    /// Whether the cache holds a recurrent state.
    pub fn is_state(&self) -> bool {
        self.state > 0
    }

    /// Bytes of one block: keys and values of [`BLOCK_TOKENS`] positions, or a state.
    pub fn block_bytes(&self, k: KvType, v: KvType) -> usize {
        let heads = self.kv_heads as usize;
        let keys_and_values = heads * (k.bytes(self.k_dim as usize) + v.bytes(self.v_dim as usize));
        BLOCK_TOKENS * keys_and_values + size_of::<f32>() * self.state as usize
    }
}

/// What the caches of a group hold of the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reach {
    /// Keys and values of all positions.
    Full,
    /// Keys and values of so many positions back, the newest included.
    Window(u32),
    /// A recurrent state, of which the newest is needed alone.
    State,
}

/// Caches that share block tables, as they hold the same of the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheGroup {
    /// What its caches hold.
    pub reach: Reach,
    /// Physical blocks.
    pub blocks: u32,
}

/// All caches of a model on one device.
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
