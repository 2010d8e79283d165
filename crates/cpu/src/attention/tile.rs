//! The rows of one tile over some segments of positions.

use super::rows::{Panel, most_rows, multiply};
use super::{AttentionPlan, LANES, SEGMENT, SPAN, TILE_ROWS, Tile};
use crate::isa::element::{Bf16, F16, F32};
use crate::isa::{Op, Simd};
use crate::kv::{KvCache, panel};
use crate::math::{exp_of_negative, tanh};
use std::ops::Range;
use wootz_graph::{BLOCK_TOKENS, KvType};

/// What all tiles of a call share.
pub(super) struct Job<'a> {
    pub(super) plan: &'a AttentionPlan,
    pub(super) cache: &'a KvCache,
    pub(super) q: &'a [f32],
    pub(super) sinks: Option<&'a [f32]>,
    /// `[tokens, heads * v_dim]`; tiles write apart from each other.
    pub(super) out: *mut f32,
    /// Partial results; segments of tiles write apart from each other.
    pub(super) partials: *mut f32,
}

// SAFETY: the pointers are to memory borrowed for the call, and items write to different parts of it. A tile's
// partial results are read by the thread that has seen all its segments done.
unsafe impl Sync for Job<'_> {}

/// Elements of working memory for a tile.
pub(super) fn memory_elements(rows: usize, k_dim: usize, v_pad: usize) -> usize {
    rows * (SPAN + LANES + 2 * v_pad) + BLOCK_TOKENS * (k_dim + v_pad)
}

/// Working memory of a tile.
struct Memory<'a> {
    /// Scores, then weights `[rows, SPAN]`.
    scores: &'a mut [f32],
    /// Sums of weights, in lanes `[rows, LANES]`.
    sums: &'a mut [f32],
    /// Weighted values of the segment `[rows, v_pad]`.
    values: &'a mut [f32],
    /// Weighted values of the segments before `[rows, v_pad]`.
    total: &'a mut [f32],
    /// Keys of a block `[k_dim, BLOCK_TOKENS]`.
    k_panel: &'a mut [f32],
    /// Values of a block `[BLOCK_TOKENS, v_pad]`.
    v_panel: &'a mut [f32],
}

impl Memory<'_> {
    fn new(memory: &mut [f32], rows: usize, k_dim: usize, v_pad: usize) -> Memory<'_> {
        let (scores, memory) = memory.split_at_mut(rows * SPAN);
        let (sums, memory) = memory.split_at_mut(rows * LANES);
        let (values, memory) = memory.split_at_mut(rows * v_pad);
        let (total, memory) = memory.split_at_mut(rows * v_pad);
        let (k_panel, memory) = memory.split_at_mut(BLOCK_TOKENS * k_dim);
        let v_panel = &mut memory[..BLOCK_TOKENS * v_pad];
        Memory { scores, sums, values, total, k_panel, v_panel }
    }
}

/// The softmax of the positions seen so far: the largest score, and the sum of `exp(score - largest)`.
#[derive(Clone, Copy)]
struct Softmax {
    largest: f32,
    sum: f32,
}

/// Some segments of a tile: to partial results, or all of them to the result.
pub(super) struct Part<'a> {
    pub(super) job: &'a Job<'a>,
    pub(super) tile: &'a Tile,
    pub(super) segments: Range<usize>,
    pub(super) memory: &'a mut [f32],
}

impl Op for Part<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn call<S: Simd>(self) {
        let Part { job, tile, segments, memory } = self;
        let (plan, rows) = (job.plan, tile.rows);
        let v_pad = plan.v_pad();
        let mut memory = Memory::new(memory, rows, plan.k_dim, v_pad);
        let mut totals = [Softmax { largest: f32::NEG_INFINITY, sum: 0.0 }; TILE_ROWS];
        memory.total.fill(0.0);
        for segment in segments {
            let mut largest = [f32::NEG_INFINITY; TILE_ROWS];
            memory.values.fill(0.0);
            memory.sums.fill(0.0);
            // SAFETY: `run` has checked all sizes; the processor has `S`.
            unsafe { walk::<S>(job, tile, segment, &mut memory, &mut largest) };
            for row in 0..rows {
                if !tile.sees(plan, row, segment) {
                    continue;
                }
                let values = &memory.values[row * v_pad..][..v_pad];
                // SAFETY: as above; partial results have room for every row of every segment of the tile.
                unsafe {
                    let sum = S::f_sum(S::f_load(memory.sums[row * LANES..][..LANES].as_ptr()));
                    let part = Softmax { largest: largest[row], sum };
                    if let Some(place) = job.partial(tile, segment, row) {
                        place.copy_from_nonoverlapping(values.as_ptr(), v_pad);
                        place.add(v_pad).write(part.largest);
                        place.add(v_pad + 1).write(part.sum);
                    } else {
                        let total = &mut memory.total[row * v_pad..][..v_pad];
                        let first = tile.starts_in(plan, row, segment);
                        totals[row] = merge::<S>(first, totals[row], total, part, values.as_ptr());
                    }
                }
            }
        }
        if tile.partial.is_none() {
            for (row, total) in totals[..rows].iter().enumerate() {
                // SAFETY: the row is the tile's.
                unsafe { finish::<S>(job, tile, row, *total, &memory.total[row * v_pad..][..v_pad]) };
            }
        }
    }
}

/// Merges the partial results of a tile to the result.
pub(super) struct Merge<'a> {
    pub(super) job: &'a Job<'a>,
    pub(super) tile: &'a Tile,
    pub(super) memory: &'a mut [f32],
}

impl Op for Merge<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn call<S: Simd>(self) {
        let Merge { job, tile, memory } = self;
        let v_pad = job.plan.v_pad();
        let values = &mut memory[..v_pad];
        for row in 0..tile.rows {
            values.fill(0.0);
            let mut total = Softmax { largest: f32::NEG_INFINITY, sum: 0.0 };
            for segment in tile.segments.clone().filter(|s| tile.sees(job.plan, row, *s)) {
                let Some(place) = job.partial(tile, segment, row) else { continue };
                // SAFETY: the segment's item has written what the row sees of it, and all items are done.
                unsafe {
                    let part = Softmax { largest: place.add(v_pad).read(), sum: place.add(v_pad + 1).read() };
                    let first = tile.starts_in(job.plan, row, segment);
                    total = merge::<S>(first, total, values, part, place);
                }
            }
            // SAFETY: the row is the tile's.
            unsafe { finish::<S>(job, tile, row, total, values) };
        }
    }
}

impl Job<'_> {
    /// Where the partial result of a row and segment is, if the tile has such.
    fn partial(&self, tile: &Tile, segment: usize, row: usize) -> Option<*mut f32> {
        let index = (segment - tile.segments.start) * tile.rows + row;
        // The offset is below `AttentionPlan::partials`.
        tile.partial.map(|start| self.partials.wrapping_add(start + index * self.plan.partial_row()))
    }
}

impl Tile {
    /// Token and query head of a row.
    fn place(&self, plan: &AttentionPlan, row: usize) -> (usize, usize) {
        let (share, row) = (plan.share(), self.first + row);
        (self.token + row / share, self.kv_head * share + row % share)
    }

    /// What a row sees.
    fn seen<'a>(&self, plan: &'a AttentionPlan, row: usize) -> &'a Range<usize> {
        &plan.seen[self.place(plan, row).0]
    }

    /// What a row sees of the `len` positions from `start` on, counted from `start`.
    fn seen_of(&self, plan: &AttentionPlan, row: usize, start: usize, len: usize) -> Range<usize> {
        let seen = self.seen(plan, row);
        clip(&(seen.start.saturating_sub(start)..seen.end.saturating_sub(start)), 0, len)
    }

    fn sees(&self, plan: &AttentionPlan, row: usize, segment: usize) -> bool {
        !self.seen_of(plan, row, segment * SEGMENT, SEGMENT).is_empty()
    }

    /// Whether a segment is the first in which the row sees something.
    fn starts_in(&self, plan: &AttentionPlan, row: usize, segment: usize) -> bool {
        self.seen(plan, row).start / SEGMENT == segment
    }
}

/// The part of `range` that lies in the `len` positions from `start` on, counted from `start`.
fn clip(range: &Range<usize>, start: usize, len: usize) -> Range<usize> {
    range.start.saturating_sub(start).min(len)..range.end.saturating_sub(start).min(len)
}

/// Walks the positions of a segment upwards for all rows.
///
/// # Safety
/// The processor has `S`; the tile is one of the plan, and `run` has checked the cache and the queries.
#[inline(always)]
unsafe fn walk<S: Simd>(
    job: &Job<'_>,
    tile: &Tile,
    segment: usize,
    memory: &mut Memory<'_>,
    largest: &mut [f32; TILE_ROWS],
) {
    let (plan, rows) = (job.plan, tile.rows);
    let (v_pad, heads) = (plan.v_pad(), plan.attention.heads as usize);
    let mut queries = [std::ptr::null(); TILE_ROWS];
    for (row, query) in queries[..rows].iter_mut().enumerate() {
        let (token, head) = tile.place(plan, row);
        *query = job.q[(token * heads + head) * plan.k_dim..][..plan.k_dim].as_ptr();
    }
    let sequence = &plan.sequences[tile.sequence];
    let blocks = &plan.blocks[sequence.blocks.clone()];
    for span in (segment * SEGMENT..(segment + 1) * SEGMENT).step_by(SPAN) {
        let mut seen = [const { 0..0 }; TILE_ROWS];
        for (row, seen) in seen[..rows].iter_mut().enumerate() {
            *seen = tile.seen_of(plan, row, span, SPAN);
        }
        let seen = &seen[..rows];
        let blocks_of_span = || {
            (0..SPAN).step_by(BLOCK_TOKENS).filter_map(|at| {
                let sees = |s: &Range<usize>| !clip(s, at, BLOCK_TOKENS).is_empty();
                let first = seen.iter().position(sees)?;
                let last = seen.iter().rposition(sees)?;
                Some((at, first..last + 1, blocks[(span + at) / BLOCK_TOKENS - sequence.first_block]))
            })
        };
        for (at, rows, block) in blocks_of_span() {
            let scores = memory.scores.as_mut_ptr();
            let source = Source {
                ty: job.cache.layout().k_type,
                bytes: job.cache.keys(block, tile.kv_head),
                cols: BLOCK_TOKENS / LANES,
            };
            // SAFETY: queries have `k_dim` elements, score rows `SPAN`, and `at` is a block's start in a span.
            unsafe {
                let decode = |out| panel::keys::<S>(source.ty, source.bytes, plan.k_dim, out);
                let source = source.ready::<S>(rows.len(), decode, memory.k_panel);
                let query = |r| queries[rows.start + r];
                let score = |r| scores.add((rows.start + r) * SPAN + at);
                source.multiply::<S>(rows.len(), query, 0..plan.k_dim, score, false);
            }
        }
        for (row, seen) in seen.iter().enumerate().filter(|(_, s)| !s.is_empty()) {
            let scores = &mut memory.scores[row * SPAN..][..SPAN];
            let sums = &mut memory.sums[row * LANES..][..LANES];
            let values = &mut memory.values[row * v_pad..][..v_pad];
            // SAFETY: the slices have whole vectors.
            largest[row] = unsafe { weigh::<S>(plan, seen, scores, sums, values, largest[row]) };
        }
        for (at, rows, block) in blocks_of_span() {
            let source = Source {
                ty: job.cache.layout().v_type,
                bytes: job.cache.values(block, tile.kv_head),
                cols: v_pad / LANES,
            };
            // SAFETY: weight rows have `SPAN` elements, value rows `v_pad`, and `at` is a block's start in a span.
            unsafe {
                let decode = |out| panel::values::<S>(source.ty, source.bytes, v_pad, out);
                let source = source.ready::<S>(rows.len(), decode, memory.v_panel);
                let groups = rows.len().div_ceil(most_rows::<S>());
                let each = rows.len().div_ceil(groups);
                for first in rows.clone().step_by(each) {
                    let group = first..(first + each).min(rows.end);
                    let clipped = |row: usize| clip(&seen[row], at, BLOCK_TOKENS);
                    let start = group.clone().map(|r| clipped(r).start).max().unwrap_or(0);
                    let end = group.clone().map(|r| clipped(r).end).min().unwrap_or(0);
                    let weights = memory.scores.as_ptr();
                    let values = memory.values.as_mut_ptr();
                    let add = |rows: Range<usize>, positions: Range<usize>| {
                        let from = positions.start;
                        let weight = |r| weights.add((rows.start + r) * SPAN + at + from);
                        let value = |r| values.add((rows.start + r) * v_pad);
                        source.multiply::<S>(rows.len(), weight, positions, value, true);
                    };
                    if start >= end {
                        group.for_each(|r| add(r..r + 1, clipped(r)));
                        continue;
                    }
                    // What all rows see is done together; each row takes its positions in rising order.
                    group.clone().for_each(|r| add(r..r + 1, clipped(r).start..start));
                    add(group.clone(), start..end);
                    group.for_each(|r| add(r..r + 1, end..clipped(r).end));
                }
            }
        }
    }
}

/// Keys or values of one head of one block: positions and elements, in rows of `cols` vectors.
#[derive(Clone, Copy)]
struct Source<'a> {
    ty: KvType,
    bytes: &'a [u8],
    cols: usize,
}

impl<'a> Source<'a> {
    /// The block as floats that kernels load: as it is, or decoded to `panel` where it must be or many rows use it.
    ///
    /// # Safety
    /// The processor has `S`.
    #[inline(always)]
    unsafe fn ready<S: Simd>(
        self,
        rows: usize,
        decode: impl FnOnce(*mut f32),
        panel: &'a mut [f32],
    ) -> Source<'a> {
        let as_it_is = match self.ty {
            KvType::F32 => true,
            KvType::F16 | KvType::BF16 => rows <= 2 * most_rows::<S>(),
            KvType::Q8_0 | KvType::Q4_0 => false,
        };
        if as_it_is {
            return self;
        }
        decode(panel.as_mut_ptr());
        Source { ty: KvType::F32, bytes: bytemuck::cast_slice(panel), cols: self.cols }
    }

    /// Multiplies rows of `a` with the panel's rows `used`.
    ///
    /// # Safety
    /// As for [`multiply`].
    #[inline(always)]
    unsafe fn multiply<S: Simd>(
        self,
        rows: usize,
        a: impl Fn(usize) -> *const f32,
        used: Range<usize>,
        out: impl Fn(usize) -> *mut f32,
        add: bool,
    ) {
        if used.is_empty() {
            return;
        }
        let width = self.cols * LANES;
        let bytes = |size: usize| &self.bytes[used.start * width * size..used.end * width * size];
        let panel = |size| Panel { start: bytes(size).as_ptr(), rows: used.len(), cols: self.cols };
        // SAFETY: the panel lies in `bytes`; the caller promises the rest.
        unsafe {
            match self.ty {
                KvType::F16 => multiply::<S, F16>(rows, a, panel(2), out, add),
                KvType::BF16 => multiply::<S, Bf16>(rows, a, panel(2), out, add),
                _ => multiply::<S, F32>(rows, a, panel(4), out, add),
            }
        }
    }
}

/// Turns the scores of a span, raw products, into weights: scales and caps them, raises the maximum, adds the weights
/// to the sums. Returns the new maximum. Only vectors with seen positions are touched; unseen lanes get 0.
///
/// # Safety
/// The processor has `S`; `scores` has `SPAN` elements, `sums` `LANES`, `values` whole vectors.
#[inline(always)]
unsafe fn weigh<S: Simd>(
    plan: &AttentionPlan,
    seen: &Range<usize>,
    scores: &mut [f32],
    sums: &mut [f32],
    values: &mut [f32],
    largest: f32,
) -> f32 {
    const INDEX: [f32; LANES] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];
    let vectors = seen.start / LANES * LANES..seen.end.next_multiple_of(LANES);
    // SAFETY: `vectors` lie in the scores; the caller promises the rest.
    unsafe {
        let scores = scores.as_mut_ptr();
        let hidden = S::f_splat(f32::NEG_INFINITY);
        let mut top = hidden;
        for i in vectors.clone().step_by(LANES) {
            let mut score = S::f_load(scores.add(i));
            score = match plan.attention.softcap {
                None => S::f_mul(score, S::f_splat(plan.attention.scale)),
                Some(cap) => {
                    let t = tanh::<S>(S::f_mul(score, S::f_splat(plan.attention.scale / cap)));
                    S::f_mul(t, S::f_splat(cap))
                }
            };
            if i < seen.start || i + LANES > seen.end {
                let index = S::f_add(S::f_load(INDEX.as_ptr()), S::f_splat(i as f32));
                score = S::f_where_lt(index, S::f_splat(seen.start as f32), hidden, score);
                score = S::f_where_lt(index, S::f_splat(seen.end as f32), score, hidden);
            }
            S::f_store(scores.add(i), score);
            top = S::f_max(top, score);
        }
        let top = larger(largest, S::f_largest(top));
        let shift = S::f_splat(finite(top));
        let mut sum = S::f_zero();
        for i in vectors.step_by(LANES) {
            let weight = exp_of_negative::<S>(S::f_sub(S::f_load(scores.add(i)), shift));
            S::f_store(scores.add(i), weight);
            sum = S::f_add(sum, weight);
        }
        if top.to_bits() == largest.to_bits() {
            S::f_store(sums.as_mut_ptr(), S::f_add(S::f_load(sums.as_ptr()), sum));
        } else {
            let fade = S::f_splat(decay::<S>(largest, top));
            S::f_store(sums.as_mut_ptr(), S::f_fma(S::f_load(sums.as_ptr()), fade, sum));
            for vector in values.chunks_exact_mut(LANES) {
                S::f_store(vector.as_mut_ptr(), S::f_mul(S::f_load(vector.as_ptr()), fade));
            }
        }
        top
    }
}

/// Merges a segment into `total` and its values, which it replaces if it is the row's `first`.
///
/// # Safety
/// The processor has `S`; `total_values` are whole vectors, and as many elements are at `values`.
#[inline(always)]
unsafe fn merge<S: Simd>(
    first: bool,
    total: Softmax,
    total_values: &mut [f32],
    part: Softmax,
    values: *const f32,
) -> Softmax {
    // SAFETY: as the caller promises.
    unsafe {
        if first {
            values.copy_to_nonoverlapping(total_values.as_mut_ptr(), total_values.len());
            return part;
        }
        let largest = larger(total.largest, part.largest);
        let (old, new) = (decay::<S>(total.largest, largest), decay::<S>(part.largest, largest));
        let (old_factor, new_factor) = (S::f_splat(old), S::f_splat(new));
        for (i, vector) in total_values.chunks_exact_mut(LANES).enumerate() {
            let added = S::f_mul(S::f_load(values.add(i * LANES)), new_factor);
            S::f_store(vector.as_mut_ptr(), S::f_fma(S::f_load(vector.as_ptr()), old_factor, added));
        }
        Softmax { largest, sum: total.sum.mul_add(old, part.sum * new) }
    }
}

/// Writes a row's result: its values over the sum, to which the head's sink is added.
///
/// # Safety
/// The processor has `S`; the row is one of the tile; `values` has `v_pad` elements.
#[inline(always)]
unsafe fn finish<S: Simd>(job: &Job<'_>, tile: &Tile, row: usize, total: Softmax, values: &[f32]) {
    let plan = job.plan;
    let (token, head) = tile.place(plan, row);
    // SAFETY: `out` has `v_dim` elements for each head of each token, and this row's are the tile's alone.
    unsafe {
        let factor = match job.sinks.map(|sinks| sinks[head]) {
            None if tile.seen(plan, row).is_empty() => 0.0,
            None => 1.0 / total.sum,
            Some(sink) => {
                let largest = larger(total.largest, sink);
                let fade = decay::<S>(total.largest, largest);
                fade / total.sum.mul_add(fade, decay::<S>(sink, largest))
            }
        };
        let factor = S::f_splat(factor);
        let out = job.out.add((token * plan.attention.heads as usize + head) * plan.v_dim);
        for (i, vector) in (0..plan.v_dim).step_by(LANES).zip(values.chunks_exact(LANES)) {
            let y = S::f_mul(S::f_load(vector.as_ptr()), factor);
            if i + LANES <= plan.v_dim {
                S::f_store(out.add(i), y);
            } else {
                let mut lanes = [0.0; LANES];
                S::f_store(lanes.as_mut_ptr(), y);
                out.add(i).copy_from_nonoverlapping(lanes.as_ptr(), plan.v_dim - i);
            }
        }
    }
}

/// `exp(from - to)`, `from` at most `to`.
///
/// # Safety
/// The processor has `S`.
#[inline(always)]
unsafe fn decay<S: Simd>(from: f32, to: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    // SAFETY: there is room for a vector.
    unsafe { S::f_store(lanes.as_mut_ptr(), exp_of_negative::<S>(S::f_splat(from - finite(to)))) };
    lanes[0]
}

/// 0 in place of minus infinity, the maximum where nothing has a score.
fn finite(largest: f32) -> f32 {
    if largest == f32::NEG_INFINITY { 0.0 } else { largest }
}

fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}
