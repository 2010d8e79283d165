//! Storage of one layer's keys and values, in physical blocks of [`BLOCK_TOKENS`] positions.
//!
//! A block holds its heads one after the other, each as keys and then values. Attention puts positions into lanes
//! for the scores, and elements of the value heads for the sums, and reads memory strictly upwards. So, with
//! `P` = [`BLOCK_TOKENS`] positions and 16 lanes, one head of one block is:
//!
//! | type | keys | values |
//! |---|---|---|
//! | f32, f16, bf16 | `[P/16][k_dim][16]` | `[v_dim/16][P][16]`, the last part filled up with zeros |
//! | q8_0 | f16 scales `[k_dim/32][P]`, i8 as above | f16 scales `[v_dim/32][P]`, i8 as above |
//! | q4_0 | f16 scales `[k_dim/32][P]`, bytes `[P/16][k_dim/2][16]` | f16 scales `[v_dim/32][P]`, bytes `[v_dim/32][P][16]` |
//!
//! A byte of q4_0 holds elements `j` (low nibble) and `j + 16` of a group of 32 of one position, as in GGUF. No byte
//! belongs to two positions.

use crate::blocks::Blocks;
use crate::isa::LANES;
use crate::pool::{Chunks, Pool};
use crate::{CpuError, Isa};
use wootz_graph::{BLOCK_TOKENS, CacheSpec, KvType, StepInputs};

pub(crate) mod panel;
mod store;

/// Tokens from which on several threads store them.
const PARALLEL_TOKENS: usize = 8;

/// Elements with one scale in the quantised types.
const GROUP: usize = 32;

/// Sizes of a cache's parts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Layout {
    pub(crate) heads: usize,
    pub(crate) k_dim: usize,
    pub(crate) v_dim: usize,
    /// `v_dim`, rounded up to whole vectors.
    pub(crate) v_pad: usize,
    pub(crate) k_type: KvType,
    pub(crate) v_type: KvType,
    /// Bytes of the keys of one head of one block.
    k_bytes: usize,
    /// Bytes of the values of one head of one block.
    v_bytes: usize,
}

impl Layout {
    fn new(spec: &CacheSpec, k_type: KvType, v_type: KvType) -> Result<Layout, CpuError> {
        let (k_dim, v_dim) = (spec.k_dim as usize, spec.v_dim as usize);
        for (ty, dim) in [(k_type, k_dim), (v_type, v_dim)] {
            let quantised = matches!(ty, KvType::Q8_0 | KvType::Q4_0);
            if dim == 0 || quantised && !dim.is_multiple_of(GROUP) {
                return Err(CpuError::HeadSize { ty: ty.name(), dim });
            }
        }
        let v_pad = v_dim.next_multiple_of(LANES);
        Ok(Layout {
            heads: spec.kv_heads as usize,
            k_dim,
            v_dim,
            v_pad,
            k_type,
            v_type,
            k_bytes: BLOCK_TOKENS * k_type.bytes(k_dim),
            v_bytes: BLOCK_TOKENS * v_type.bytes(v_pad),
        })
    }

    fn block_bytes(&self) -> usize {
        self.heads * (self.k_bytes + self.v_bytes)
    }

    /// Offset of a head's keys in its block.
    fn head(&self, head: usize) -> usize {
        head * (self.k_bytes + self.v_bytes)
    }
}

/// Keys and values of one cache.
#[derive(Debug)]
pub struct KvCache {
    layout: Layout,
    blocks: Blocks,
}

impl KvCache {
    /// A cache of `blocks` physical blocks, all zero.
    ///
    /// # Errors
    /// [`CpuError::OutOfMemory`] where the system refuses; [`CpuError::HeadSize`] where a quantised type does not
    /// fit the heads.
    pub fn new(spec: &CacheSpec, k_type: KvType, v_type: KvType, blocks: usize) -> Result<KvCache, CpuError> {
        let layout = Layout::new(spec, k_type, v_type)?;
        Ok(KvCache { layout, blocks: Blocks::new(blocks, layout.block_bytes())? })
    }

    /// The physical blocks.
    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// The physical blocks, to be written.
    pub fn blocks_mut(&mut self) -> &mut Blocks {
        &mut self.blocks
    }

    /// Stores a step's keys `[tokens, kv_heads * k_dim]` and values `[tokens, kv_heads * v_dim]`.
    ///
    /// # Errors
    /// [`CpuError::Length`] where sizes do not fit; [`CpuError::Index`] for a block that does not exist.
    pub fn store(
        &mut self,
        isa: Isa,
        pool: &Pool,
        slots: &KvSlots,
        k: &[f32],
        v: &[f32],
    ) -> Result<(), CpuError> {
        let (layout, tokens) = (self.layout, slots.slots.len());
        CpuError::check("keys", tokens * layout.heads * layout.k_dim, k.len())?;
        CpuError::check("values", tokens * layout.heads * layout.v_dim, v.len())?;
        slots.slots.iter().try_for_each(|slot| self.blocks.check(slot.block))?;
        let base = Base(self.blocks.all_mut().as_mut_ptr());
        // One item is one head of one run. Runs have blocks of their own, so items write apart from each other.
        let chunks = Chunks::new(slots.runs.len() * layout.heads, 1);
        let work = || {
            let mut writer = store::Writer::new(isa, &layout);
            while let Some(range) = chunks.take() {
                for item in range {
                    let (run, head) = (&slots.runs[item / layout.heads], item % layout.heads);
                    let places = &slots.slots[run.clone()];
                    let at = places[0].block as usize * layout.block_bytes() + layout.head(head);
                    // SAFETY: the block was checked to exist, and the head's memory in it is this item's alone.
                    let place = unsafe { base.part(at, layout.k_bytes + layout.v_bytes) };
                    writer.head(place, places, run.start, head, k, v);
                }
            }
        };
        if tokens < PARALLEL_TOKENS {
            work()
        } else {
            pool.run(&|_| work())
        }
        Ok(())
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The keys of one head of one block.
    pub(crate) fn keys(&self, block: u32, head: usize) -> &[u8] {
        let start = block as usize * self.layout.block_bytes() + self.layout.head(head);
        &self.blocks.all()[start..start + self.layout.k_bytes]
    }

    /// The values of one head of one block.
    pub(crate) fn values(&self, block: u32, head: usize) -> &[u8] {
        let start = block as usize * self.layout.block_bytes() + self.layout.head(head) + self.layout.k_bytes;
        &self.blocks.all()[start..start + self.layout.v_bytes]
    }
}

/// The memory of a cache while several threads store to it.
struct Base(*mut u8);

// SAFETY: threads write to different heads of different blocks only.
unsafe impl Sync for Base {}

impl Base {
    /// # Safety
    /// The bytes lie inside the cache, and nobody else uses them as long as the result lives.
    #[allow(clippy::mut_from_ref)]
    unsafe fn part(&self, offset: usize, len: usize) -> &mut [u8] {
        // SAFETY: as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(offset), len) }
    }
}

/// A position's place in the caches of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Slot {
    block: u32,
    offset: u32,
}

/// The places of a step's tokens in the caches of one group.
#[derive(Clone, Debug, Default)]
pub struct KvSlots {
    slots: Vec<Slot>,
    /// Tokens that lie in one block, which no other run has.
    runs: Vec<std::ops::Range<usize>>,
}

impl KvSlots {
    /// The places in the caches of group `group`.
    ///
    /// # Errors
    /// [`CpuError::Index`] where there is no such group, or for a position without a block;
    /// [`CpuError::SharedBlock`] where two sequences would write to one block.
    pub fn new(inputs: &StepInputs<'_>, group: usize) -> Result<KvSlots, CpuError> {
        let limit = inputs.groups.len();
        let set = inputs.groups.get(group);
        let set = set.ok_or(CpuError::Index { what: "cache group", found: group as i64, limit })?;
        let mut out = KvSlots::default();
        for (token, (position, sequence)) in inputs.positions.iter().zip(inputs.sequences).enumerate() {
            let slot = usize::try_from(*position).ok().and_then(|p| set.slot(*sequence, p));
            let (block, offset) = slot.ok_or_else(|| {
                let table = set.tables.get(*sequence as usize);
                let limit = table.map_or(0, |t| (t.first as usize + t.blocks.len()) * BLOCK_TOKENS);
                CpuError::Index { what: "position in a cache block", found: i64::from(*position), limit }
            })?;
            let same_sequence = token > 0 && inputs.sequences[token - 1] == *sequence;
            match (out.runs.last_mut(), out.slots.last()) {
                (Some(run), Some(last)) if same_sequence && last.block == block => run.end += 1,
                _ => out.runs.push(token..token + 1),
            }
            out.slots.push(Slot { block, offset: offset as u32 });
        }
        let mut blocks: Vec<u32> = out.runs.iter().map(|run| out.slots[run.start].block).collect();
        blocks.sort_unstable();
        match blocks.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(CpuError::SharedBlock { block: pair[0] }),
            None => Ok(out),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
