//! Attention over a paged cache.
//!
//! Work is cut into tiles: some rows (a row is one query head of one token) that share a sequence and a key head,
//! so that keys and values are read once for all of them. A row's result depends on the row and on what it sees
//! alone. Its arithmetic follows absolute positions:
//! * a score is one chain of multiply-adds over the elements of the head;
//! * in every segment of `SEGMENT` positions a softmax of its own gives weights, summed in 16 lanes, and each
//!   element of the weighted values is one chain of multiply-adds over the visible positions;
//! * the segments are merged upwards.
//!
//! What a row does not see adds nothing, not even a zero times what is there. So the bits are the same whatever
//! rows stand in a tile, however a prompt is cut, and whether threads share the segments of a row.

use crate::isa::LANES;
use crate::kv::KvCache;
use crate::memory::Buffer;
use crate::pool::{Chunks, Pool};
use crate::{CpuError, Isa};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use wootz_graph::op::Attention;
use wootz_graph::{BLOCK_TOKENS, CacheSpec, StepInputs};

mod rows;
mod tile;

/// Positions whose softmax is computed apart and then merged.
const SEGMENT: usize = 512;
/// Most rows in a tile.
const TILE_ROWS: usize = 96;
/// Rows below which tiles are not made smaller for the sake of more threads.
const FEW_ROWS: usize = 24;
/// Tiles that each worker should have; with fewer, segments become work items.
const TILES_PER_WORKER: usize = 4;

/// How the tokens of one step look at the caches of one group: for all layers with the same attributes.
#[derive(Debug)]
pub struct AttentionPlan {
    isa: Isa,
    attention: Attention,
    kv_heads: usize,
    k_dim: usize,
    v_dim: usize,
    /// Visible positions by token.
    seen: Vec<Range<usize>>,
    sequences: Vec<Sequence>,
    /// Physical blocks of all sequences.
    blocks: Vec<u32>,
    tiles: Vec<Tile>,
    /// The most expensive first.
    items: Vec<Item>,
    /// Elements of all partial results.
    partials: usize,
}

/// Tokens that stand together, and their blocks.
#[derive(Debug)]
struct Sequence {
    /// Number of the first block held.
    first_block: usize,
    /// Where its blocks are in [`AttentionPlan::blocks`].
    blocks: Range<usize>,
}

/// Rows that see one key head of one sequence.
#[derive(Debug)]
struct Tile {
    sequence: usize,
    kv_head: usize,
    /// First token.
    token: usize,
    /// First row, counted from the first query head of that token.
    first: usize,
    rows: usize,
    /// From the first to the last position that any row sees.
    seen: Range<usize>,
    /// Where its partial results start, if segments are items.
    partial: Option<usize>,
}

impl Tile {
    /// Segments that hold what the rows see.
    fn segments(&self) -> Range<usize> {
        self.seen.start / SEGMENT..self.seen.end.div_ceil(SEGMENT)
    }

    /// Scores to compute in some segments, at most.
    fn cost(&self, segments: &Range<usize>) -> usize {
        let (start, end) = (segments.start * SEGMENT, segments.end * SEGMENT);
        self.rows * self.seen.end.min(end).saturating_sub(self.seen.start.max(start))
    }
}

#[derive(Debug)]
struct Item {
    tile: usize,
    segments: Range<usize>,
}

impl AttentionPlan {
    /// The plan of a step for layers with these attributes and caches of this shape, for `workers` threads.
    ///
    /// The number of threads decides about the split of the work alone, not about results.
    ///
    /// # Errors
    /// [`CpuError::Length`] where heads do not fit, [`CpuError::Index`] where the step lacks the cache group or a
    /// sequence, or for a negative position.
    pub fn new(
        isa: Isa,
        attention: &Attention,
        spec: &CacheSpec,
        inputs: &StepInputs<'_>,
        workers: usize,
    ) -> Result<AttentionPlan, CpuError> {
        let (heads, kv_heads) = (attention.heads as usize, spec.kv_heads as usize);
        let share = heads / kv_heads.max(1);
        if share == 0 || share * kv_heads != heads {
            let what = "query heads in equal shares for the key heads";
            return Err(CpuError::Length { what, expected: share.max(1) * kv_heads, found: heads });
        }
        let (group, limit) = (spec.group as usize, inputs.groups.len());
        let set = inputs.groups.get(group);
        let set = set.ok_or(CpuError::Index { what: "cache group", found: group as i64, limit })?;
        CpuError::check("sequence numbers of tokens", inputs.positions.len(), inputs.sequences.len())?;
        let mut plan = AttentionPlan {
            isa,
            attention: *attention,
            kv_heads,
            k_dim: spec.k_dim as usize,
            v_dim: spec.v_dim as usize,
            seen: Vec::with_capacity(inputs.positions.len()),
            sequences: Vec::new(),
            blocks: Vec::new(),
            tiles: Vec::new(),
            items: Vec::new(),
            partials: 0,
        };
        let mut tile_rows = TILE_ROWS;
        while tile_rows > FEW_ROWS && inputs.positions.len() * heads < tile_rows * TILES_PER_WORKER * workers
        {
            tile_rows /= 2;
        }
        for run in inputs.sequences.chunk_by(|a, b| a == b) {
            let first = plan.seen.len();
            let positions = &inputs.positions[first..first + run.len()];
            if let Some(position) = positions.iter().find(|p| **p < 0) {
                let (what, found) = ("position", i64::from(*position));
                return Err(CpuError::Index { what, found, limit: i32::MAX as usize });
            }
            let table = set.tables.get(run[0] as usize).ok_or(CpuError::Index {
                what: "sequence",
                found: run[0].into(),
                limit: set.tables.len(),
            })?;
            let held = table.first as usize * BLOCK_TOKENS
                ..(table.first as usize + table.blocks.len()) * BLOCK_TOKENS;
            let of_all = inputs.positions.iter().zip(inputs.sequences).filter(|(_, s)| **s == run[0]);
            let last = if attention.causal { None } else { of_all.map(|(p, _)| *p as usize).max() };
            for position in positions.iter().map(|p| *p as usize) {
                let start = attention.window.map_or(0, |w| (position + 1).saturating_sub(w as usize));
                let end = last.unwrap_or(position) + 1;
                let start = start.max(held.start);
                plan.seen.push(start..end.min(held.end).max(start));
            }
            let start = plan.blocks.len();
            plan.blocks.extend_from_slice(table.blocks);
            let blocks = start..plan.blocks.len();
            plan.sequences.push(Sequence { first_block: table.first as usize, blocks });
            plan.add_tiles(first, run.len(), tile_rows);
        }
        plan.add_items(workers);
        Ok(plan)
    }

    /// Rows of all query heads of a key head.
    fn share(&self) -> usize {
        self.attention.heads as usize / self.kv_heads
    }

    fn v_pad(&self) -> usize {
        self.v_dim.next_multiple_of(LANES)
    }

    /// Elements of one row of one segment in the partial results: the values, the maximum, the sum.
    fn partial_row(&self) -> usize {
        self.v_pad() + LANES
    }

    fn add_tiles(&mut self, token: usize, tokens: usize, most: usize) {
        let (sequence, share) = (self.sequences.len() - 1, self.share());
        let rows = tokens * share;
        let count = rows.div_ceil(most);
        // Tiles of about the same size, of whole tokens where that is possible.
        let even = rows.div_ceil(count);
        let whole = even.next_multiple_of(share);
        let each = if whole <= most {
            whole
        } else if share <= most {
            most / share * share
        } else {
            even
        };
        for kv_head in 0..self.kv_heads {
            for first in (0..rows).step_by(each) {
                let rows = each.min(rows - first);
                let seen = &self.seen[token + first / share..=token + (first + rows - 1) / share];
                let seen = seen.iter().filter(|s| !s.is_empty());
                let bounds = seen.fold(None, |all: Option<Range<usize>>, s| {
                    let all = all.unwrap_or(s.clone());
                    Some(all.start.min(s.start)..all.end.max(s.end))
                });
                let seen = bounds.unwrap_or(0..0);
                self.tiles.push(Tile { sequence, kv_head, token, first, rows, seen, partial: None });
            }
        }
    }

    fn add_items(&mut self, workers: usize) {
        let split = workers > 1 && self.tiles.len() < TILES_PER_WORKER * workers;
        let row = self.partial_row();
        for (index, tile) in self.tiles.iter_mut().enumerate() {
            let segments = tile.segments();
            if split && segments.len() > 1 {
                tile.partial = Some(self.partials);
                self.partials += segments.len() * tile.rows * row;
                self.items.extend(segments.map(|s| Item { tile: index, segments: s..s + 1 }));
            } else {
                self.items.push(Item { tile: index, segments });
            }
        }
        let tiles = &self.tiles;
        self.items.sort_by_key(|item| std::cmp::Reverse(tiles[item.tile].cost(&item.segments)));
    }

    /// Attention of queries `q` `[tokens, heads * k_dim]` to `out` `[tokens, heads * v_dim]`; `sinks` is `[heads]`.
    ///
    /// # Errors
    /// [`CpuError::Length`] where sizes do not fit; [`CpuError::Index`] for a block that the cache lacks;
    /// [`CpuError::OutOfMemory`].
    pub fn run(
        &self,
        pool: &Pool,
        cache: &KvCache,
        q: &[f32],
        sinks: Option<&[f32]>,
        out: &mut [f32],
        scratch: &mut AttentionScratch,
    ) -> Result<(), CpuError> {
        let (tokens, heads) = (self.seen.len(), self.attention.heads as usize);
        let layout = cache.layout();
        CpuError::check("key heads of a cache", self.kv_heads, layout.heads)?;
        CpuError::check("elements of a key head", self.k_dim, layout.k_dim)?;
        CpuError::check("elements of a value head", self.v_dim, layout.v_dim)?;
        CpuError::check("queries", tokens * heads * self.k_dim, q.len())?;
        CpuError::check("results of attention", tokens * heads * self.v_dim, out.len())?;
        if let Some(sinks) = sinks {
            CpuError::check("sinks", heads, sinks.len())?;
        }
        if let Some(block) = self.blocks.iter().find(|b| **b as usize >= cache.blocks().count()) {
            return Err(CpuError::Index {
                what: "cache block",
                found: (*block).into(),
                limit: cache.blocks().count(),
            });
        }
        scratch.reserve(self, pool.workers())?;
        let job = tile::Job {
            plan: self,
            cache,
            q,
            sinks,
            out: out.as_mut_ptr(),
            partials: bytemuck::cast_slice_mut::<u8, f32>(&mut scratch.partials).as_mut_ptr(),
        };
        let chunks = Chunks::new(self.items.len(), 1);
        let (memory, done) = (&scratch.memory, &scratch.done);
        let work = |worker: usize| {
            let mut memory = memory[worker].lock().unwrap_or_else(PoisonError::into_inner);
            let memory: &mut [f32] = bytemuck::cast_slice_mut(&mut memory);
            while let Some(range) = chunks.take() {
                for item in &self.items[range] {
                    let tile = &self.tiles[item.tile];
                    self.isa.dispatch(tile::Part {
                        job: &job,
                        tile,
                        segments: item.segments.clone(),
                        memory,
                    });
                    if tile.partial.is_some() {
                        let count = done[item.tile].fetch_add(1, Ordering::AcqRel) + 1;
                        if count as usize == tile.segments().len() {
                            self.isa.dispatch(tile::Merge { job: &job, tile, memory });
                        }
                    }
                }
            }
        };
        if self.items.len() == 1 {
            work(0)
        } else {
            pool.run(&|worker| work(worker.index))
        }
        Ok(())
    }
}

/// Memory that attention works in; grows to what plans need and is used again.
#[derive(Debug)]
pub struct AttentionScratch {
    memory: Vec<Mutex<Buffer>>,
    partials: Buffer,
    /// Segments done by tile.
    done: Vec<AtomicU32>,
}

impl AttentionScratch {
    /// Empty memory.
    ///
    /// # Errors
    /// [`CpuError::OutOfMemory`].
    pub fn new() -> Result<AttentionScratch, CpuError> {
        Ok(AttentionScratch { memory: Vec::new(), partials: Buffer::zeroed(0)?, done: Vec::new() })
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let of = |memory: &Mutex<Buffer>| memory.lock().unwrap_or_else(PoisonError::into_inner).len();
        self.memory.iter().map(of).sum::<usize>() + self.partials.len()
    }

    fn reserve(&mut self, plan: &AttentionPlan, workers: usize) -> Result<(), CpuError> {
        let rows = plan.tiles.iter().map(|tile| tile.rows).max().unwrap_or(0);
        let bytes = 4 * tile::memory_elements(rows, plan.k_dim, plan.v_pad());
        for memory in &mut self.memory {
            let memory = memory.get_mut().unwrap_or_else(PoisonError::into_inner);
            if memory.len() < bytes {
                *memory = Buffer::zeroed(bytes)?;
            }
        }
        while self.memory.len() < workers {
            self.memory.push(Mutex::new(Buffer::zeroed(bytes)?));
        }
        if self.partials.len() < 4 * plan.partials {
            self.partials = Buffer::zeroed(4 * plan.partials)?;
        }
        self.done.iter_mut().for_each(|done| *done.get_mut() = 0);
        self.done.resize_with(self.done.len().max(plan.tiles.len()), AtomicU32::default);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
