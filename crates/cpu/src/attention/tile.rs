//! The rows of one tile over some segments of positions.

use super::rows::{Matrix, PARTS, Product, Rows};
use super::{AttentionPlan, LANES, SEGMENT, TILE_ROWS, Tile};
use crate::isa::element::{Bf16, F16, F32};
use crate::isa::{Op, Simd};
use crate::kv::{KvCache, panel};
use crate::math::{exp_of_negative, tanh};
use std::marker::PhantomData;
use std::ops::Range;
use wootz_graph::{BLOCK_TOKENS, KvType};

/// Blocks in a segment.
const BLOCKS: usize = SEGMENT / BLOCK_TOKENS;

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
    rows * (k_dim + SEGMENT + 2 * v_pad) + SEGMENT * k_dim.max(v_pad)
}

/// Working memory of a tile.
struct Memory<'a> {
    /// Queries `[rows, k_dim]`.
    queries: &'a mut [f32],
    /// Scores, then weights `[rows, SEGMENT]`.
    scores: &'a mut [f32],
    /// Weighted values of the segment `[rows, v_pad]`.
    values: &'a mut [f32],
    /// Weighted values of the segments before `[rows, v_pad]`.
    total: &'a mut [f32],
    /// Decoded keys `[SEGMENT/16, k_dim, 16]` or values `[v_pad/16, SEGMENT, 16]` of a segment.
    panel: &'a mut [f32],
}

impl Memory<'_> {
    fn new(memory: &mut [f32], rows: usize, k_dim: usize, v_pad: usize) -> Memory<'_> {
        let (queries, memory) = memory.split_at_mut(rows * k_dim);
        let (scores, memory) = memory.split_at_mut(rows * SEGMENT);
        let (values, memory) = memory.split_at_mut(rows * v_pad);
        let (total, memory) = memory.split_at_mut(rows * v_pad);
        Memory { queries, scores, values, total, panel: &mut memory[..SEGMENT * k_dim.max(v_pad)] }
    }
}

/// The softmax of some scores: the largest, and the sum of `exp(score - largest)`.
#[derive(Clone, Copy)]
struct Softmax {
    largest: f32,
    sum: f32,
}

/// Positions from `start` up to `end`.
#[derive(Clone, Copy, Default, PartialEq)]
struct Seen {
    start: u32,
    end: u32,
}

impl Seen {
    fn is_empty(self) -> bool {
        self.start >= self.end
    }

    fn len(self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }

    /// The parts of `size` positions that have seen ones.
    fn parts(self, size: usize) -> Range<usize> {
        self.start as usize / size..(self.end as usize).div_ceil(size)
    }
}

/// What each row of a tile sees.
struct View {
    rows: [Seen; TILE_ROWS],
    count: usize,
}

impl View {
    fn new(plan: &AttentionPlan, tile: &Tile) -> View {
        let mut view = View { rows: [Seen::default(); TILE_ROWS], count: tile.rows };
        for (row, seen) in view.rows[..tile.rows].iter_mut().enumerate() {
            let range = &plan.seen[tile.place(plan, row).0];
            *seen = Seen { start: range.start as u32, end: range.end as u32 };
        }
        view
    }

    /// What each row sees of a segment, counted from the segment's start.
    fn of(&self, segment: usize) -> View {
        let mut view = View { rows: [Seen::default(); TILE_ROWS], count: self.count };
        let clip = |at: u32| at.saturating_sub((segment * SEGMENT) as u32).min(SEGMENT as u32);
        for (part, seen) in view.rows[..self.count].iter_mut().zip(&self.rows) {
            *part = Seen { start: clip(seen.start), end: clip(seen.end) };
        }
        view
    }

    /// The rows that see something.
    fn seeing(&self) -> impl DoubleEndedIterator<Item = (usize, Seen)> {
        (0..self.count).map(|row| (row, self.rows[row])).filter(|(_, seen)| !seen.is_empty())
    }

    /// What all of some rows see.
    fn all(&self, rows: Range<usize>) -> Seen {
        let first = Seen { start: 0, end: u32::MAX };
        let both = |a: Seen, b: &Seen| Seen { start: a.start.max(b.start), end: a.end.min(b.end) };
        self.rows[rows].iter().fold(first, both)
    }

    /// From the first to the last position that any of the rows sees.
    fn any(&self) -> Seen {
        let first = Seen { start: u32::MAX, end: 0 };
        let both = |a: Seen, b: Seen| Seen { start: a.start.min(b.start), end: a.end.max(b.end) };
        self.seeing().map(|(_, seen)| seen).fold(first, both)
    }
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
        let plan = job.plan;
        let (v_pad, k_dim) = (plan.v_pad(), plan.k_dim);
        let mut memory = Memory::new(memory, tile.rows, k_dim, v_pad);
        for (row, query) in memory.queries.chunks_exact_mut(k_dim).enumerate() {
            let (token, head) = tile.place(plan, row);
            let at = (token * plan.attention.heads as usize + head) * k_dim;
            query.copy_from_slice(&job.q[at..at + k_dim]);
        }
        let view = View::new(plan, tile);
        let mut totals = [None; TILE_ROWS];
        for segment in segments {
            let seen = view.of(segment);
            let mut parts = [Softmax { largest: 0.0, sum: 0.0 }; TILE_ROWS];
            // SAFETY: `run` has checked all sizes; the processor has `S`.
            unsafe { attend::<S>(job, tile, segment, &seen, &mut memory, &mut parts) };
            for (row, _) in seen.seeing() {
                let (part, values) = (parts[row], &memory.values[row * v_pad..][..v_pad]);
                // SAFETY: as above; partial results have room for every row of every segment of the tile.
                unsafe {
                    if let Some(place) = job.partial(tile, segment, row) {
                        place.copy_from_nonoverlapping(values.as_ptr(), v_pad);
                        place.add(v_pad).write(part.largest);
                        place.add(v_pad + 1).write(part.sum);
                    } else {
                        let total = &mut memory.total[row * v_pad..][..v_pad];
                        totals[row] = Some(merge::<S>(totals[row], total, part, values.as_ptr()));
                    }
                }
            }
        }
        if tile.partial.is_none() {
            for (row, total) in totals[..tile.rows].iter().enumerate() {
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
        let memory = Memory::new(memory, tile.rows, job.plan.k_dim, v_pad);
        let view = View::new(job.plan, tile);
        let mut totals = [None; TILE_ROWS];
        for segment in tile.segments() {
            for (row, _) in view.of(segment).seeing() {
                let Some(place) = job.partial(tile, segment, row) else { continue };
                let values = &mut memory.total[row * v_pad..][..v_pad];
                // SAFETY: the segment's item has written what the row sees of it, and all items are done.
                unsafe {
                    let part = Softmax { largest: place.add(v_pad).read(), sum: place.add(v_pad + 1).read() };
                    totals[row] = Some(merge::<S>(totals[row], values, part, place));
                }
            }
        }
        for (row, total) in totals[..tile.rows].iter().enumerate() {
            // SAFETY: the row is the tile's.
            unsafe { finish::<S>(job, tile, row, *total, &memory.total[row * v_pad..][..v_pad]) };
        }
    }
}

impl Job<'_> {
    /// Where the partial result of a row and segment is, if the tile has such.
    fn partial(&self, tile: &Tile, segment: usize, row: usize) -> Option<*mut f32> {
        let index = (segment - tile.segments().start) * tile.rows + row;
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
}

/// Softmax and weighted values of all rows that see something of a segment.
///
/// # Safety
/// The processor has `S`; the tile is one of the plan, and `run` has checked the cache and the queries.
#[inline(always)]
unsafe fn attend<S: Simd>(
    job: &Job<'_>,
    tile: &Tile,
    segment: usize,
    view: &View,
    memory: &mut Memory<'_>,
    parts: &mut [Softmax; TILE_ROWS],
) {
    let plan = job.plan;
    let (Some((first, _)), Some((last, _))) = (view.seeing().next(), view.seeing().next_back()) else {
        return;
    };
    let (rows, any) = (first..last + 1, view.any());
    let sequence = &plan.sequences[tile.sequence];
    let mut blocks = [0; BLOCKS];
    for i in any.parts(BLOCK_TOKENS) {
        let index = segment * BLOCKS + i - sequence.first_block;
        blocks[i] = plan.blocks[sequence.blocks.clone()][index];
    }
    // SAFETY: queries have `k_dim` elements, score rows `SEGMENT`, value rows `v_pad`; `blocks` are those seen.
    unsafe {
        scores::<S>(job, tile, any, rows.clone(), &blocks, memory);
        let mut row = rows.start;
        for same in view.rows[rows.clone()].chunk_by(|a, b| a == b) {
            for few in same.chunks(4) {
                if !same[0].is_empty() {
                    let scores = memory.scores[row * SEGMENT..][..few.len() * SEGMENT].as_mut_ptr();
                    let parts = &mut parts[row..row + few.len()];
                    match few.len() {
                        4 => parts.copy_from_slice(&weigh::<S, 4>(plan, same[0], scores)),
                        3 => parts.copy_from_slice(&weigh::<S, 3>(plan, same[0], scores)),
                        2 => parts.copy_from_slice(&weigh::<S, 2>(plan, same[0], scores)),
                        _ => parts.copy_from_slice(&weigh::<S, 1>(plan, same[0], scores)),
                    }
                }
                row += few.len();
            }
        }
        weighted_values::<S>(job, tile, view, rows, &blocks, memory);
    }
}

/// Multiplies the queries of some rows with the keys of a segment, as far as they are seen by any row.
///
/// # Safety
/// The processor has `S`; the memory has its sizes.
#[inline(always)]
unsafe fn scores<S: Simd>(
    job: &Job<'_>,
    tile: &Tile,
    any: Seen,
    rows: Range<usize>,
    blocks: &[u32; BLOCKS],
    memory: &mut Memory<'_>,
) {
    const HALVES: usize = BLOCK_TOKENS / LANES;
    let (ty, k_dim) = (job.cache.layout().k_type, job.plan.k_dim);
    let as_it_is = Loaded::of::<S>(ty, rows.len());
    let columns = any.parts(LANES);
    let mut starts = [std::ptr::null(); PARTS];
    // SAFETY: keys of a block are two halves of `k_dim` vectors; the panel has room for all columns.
    unsafe {
        for (start, column) in starts.iter_mut().zip(columns.clone()) {
            let (keys, half) = (job.cache.keys(blocks[column / HALVES], tile.kv_head), column % HALVES);
            *start = match as_it_is {
                Some(loaded) => keys[half * k_dim * LANES * loaded.bytes()..].as_ptr(),
                None => {
                    let out = memory.panel[column * k_dim * LANES..][..k_dim * LANES].as_mut_ptr();
                    panel::keys::<S>(ty, keys, k_dim, half, out);
                    out.cast_const().cast()
                }
            };
        }
        let queries = memory.queries.as_ptr().add(rows.start * k_dim);
        let out = memory.scores.as_mut_ptr().add(rows.start * SEGMENT + columns.start * LANES);
        multiply::<S>(
            as_it_is.unwrap_or(Loaded::F32),
            rows.len(),
            Rows { start: queries, stride: k_dim },
            Matrix::Columns { starts, len: k_dim },
            columns.len(),
            Rows { start: out, stride: SEGMENT },
            false,
        );
    }
}

/// Sums the values of a segment, times their weights, for some rows; each row takes what it sees, upwards.
///
/// # Safety
/// The processor has `S`; the memory has its sizes.
#[inline(always)]
unsafe fn weighted_values<S: Simd>(
    job: &Job<'_>,
    tile: &Tile,
    view: &View,
    rows: Range<usize>,
    blocks: &[u32; BLOCKS],
    memory: &mut Memory<'_>,
) {
    let (ty, v_pad) = (job.cache.layout().v_type, job.plan.v_pad());
    let as_it_is = Loaded::of::<S>(ty, rows.len());
    // Rows of a piece: the positions of a block, or all of the segment.
    let piece = if as_it_is.is_some() { BLOCK_TOKENS } else { SEGMENT };
    let any = view.any();
    let mut starts = [std::ptr::null(); PARTS];
    // SAFETY: a block's values have `P` vectors for each part of `v_pad`; the panel has room for the segment.
    unsafe {
        for i in any.parts(BLOCK_TOKENS) {
            let values = job.cache.values(blocks[i], tile.kv_head);
            if as_it_is.is_some() {
                starts[i] = values.as_ptr();
            } else {
                let out = memory.panel[i * BLOCK_TOKENS * LANES..].as_mut_ptr();
                panel::values::<S>(ty, values, v_pad, out, SEGMENT * LANES);
            }
        }
        if as_it_is.is_none() {
            starts[0] = memory.panel.as_ptr().cast();
        }
        let (weights, sums) = (memory.scores.as_ptr(), memory.values.as_mut_ptr());
        let sum = |rows: Range<usize>, seen: Seen, add: bool| {
            if seen.is_empty() {
                return;
            }
            let (from, first) = (seen.start as usize / piece, seen.start as usize % piece);
            let mut used = [std::ptr::null(); PARTS];
            used[..PARTS - from].copy_from_slice(&starts[from..]);
            multiply::<S>(
                as_it_is.unwrap_or(Loaded::F32),
                rows.len(),
                Rows { start: weights.add(rows.start * SEGMENT + seen.start as usize), stride: SEGMENT },
                Matrix::Blocks { starts: used, rows: piece, first, len: seen.len() },
                v_pad / LANES,
                Rows { start: sums.add(rows.start * v_pad), stride: v_pad },
                add,
            );
        };
        if view.all(rows.clone()) == any {
            return sum(rows, any, false);
        }
        memory.values[rows.start * v_pad..rows.end * v_pad].fill(0.0);
        for first in rows.clone().step_by(S::ROWS[0]) {
            let group = first..(first + S::ROWS[0]).min(rows.end);
            // What all rows see is done together.
            let mut all = view.all(group.clone());
            if all.is_empty() {
                all = Seen { start: SEGMENT as u32, end: SEGMENT as u32 };
            }
            // Rows of one token see the same.
            let apart = |part: &dyn Fn(Seen) -> Seen| {
                let mut first = group.start;
                for same in view.rows[group.clone()].chunk_by(|a, b| a == b) {
                    sum(first..first + same.len(), part(same[0]), true);
                    first += same.len();
                }
            };
            apart(&|seen| Seen { start: seen.start, end: seen.end.min(all.start) });
            sum(group.clone(), all, true);
            apart(&|seen| Seen { start: seen.start.max(all.end), end: seen.end });
        }
    }
}

/// A type that kernels load.
#[derive(Clone, Copy, PartialEq)]
enum Loaded {
    F32,
    F16,
    Bf16,
}

impl Loaded {
    /// The type in which blocks of type `ty` are used as they are; `None` where they must be decoded, or are so
    /// often used that it pays.
    fn of<S: Simd>(ty: KvType, rows: usize) -> Option<Loaded> {
        match ty {
            KvType::F32 => Some(Loaded::F32),
            KvType::F16 if rows <= 2 * S::ROWS[0] => Some(Loaded::F16),
            KvType::BF16 if rows <= 2 * S::ROWS[0] => Some(Loaded::Bf16),
            _ => None,
        }
    }

    fn bytes(self) -> usize {
        if self == Loaded::F32 { 4 } else { 2 }
    }
}

/// Runs a [`Product`].
///
/// # Safety
/// The processor has `S`; the pointers fit the sizes.
#[inline(always)]
unsafe fn multiply<S: Simd>(
    loaded: Loaded,
    count: usize,
    a: Rows<*const f32>,
    m: Matrix,
    cols: usize,
    out: Rows<*mut f32>,
    add: bool,
) {
    // SAFETY: as the caller promises.
    unsafe {
        match loaded {
            Loaded::F32 => S::enter(Product::<F32> { count, a, m, cols, out, add, element: PhantomData }),
            Loaded::F16 => S::enter(Product::<F16> { count, a, m, cols, out, add, element: PhantomData }),
            Loaded::Bf16 => S::enter(Product::<Bf16> { count, a, m, cols, out, add, element: PhantomData }),
        }
    }
}

/// Turns the scores of a segment of `R` rows, raw products, into weights: scales and caps them, takes `exp` of what they are
/// below the largest of the row. Only vectors with seen positions are touched; unseen lanes get 0. Rows that see the same go
/// together, since the steps of one vector wait for each other.
///
/// # Safety
/// The processor has `S`; `scores` are `R` rows of `SEGMENT` elements, of which `seen` are some.
#[inline(always)]
unsafe fn weigh<S: Simd, const R: usize>(plan: &AttentionPlan, seen: Seen, scores: *mut f32) -> [Softmax; R] {
    const INDEX: [f32; LANES] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];
    let (start, end) = (seen.start as usize, seen.end as usize);
    // SAFETY: the vectors lie in the scores; the caller promises the rest.
    unsafe {
        let hidden = S::f_splat(f32::NEG_INFINITY);
        let mut largest = [hidden; R];
        for i in seen.parts(LANES).map(|part| part * LANES) {
            for (r, largest) in largest.iter_mut().enumerate() {
                let place = scores.add(r * SEGMENT + i);
                let mut score = S::f_load(place);
                score = match plan.attention.softcap {
                    None => S::f_mul(score, S::f_splat(plan.attention.scale)),
                    Some(cap) => {
                        let t = tanh::<S>(S::f_mul(score, S::f_splat(plan.attention.scale / cap)));
                        S::f_mul(t, S::f_splat(cap))
                    }
                };
                if i < start || i + LANES > end {
                    let index = S::f_add(S::f_load(INDEX.as_ptr()), S::f_splat(i as f32));
                    score = S::f_where_lt(index, S::f_splat(start as f32), hidden, score);
                    score = S::f_where_lt(index, S::f_splat(end as f32), score, hidden);
                }
                S::f_store(place, score);
                *largest = S::f_max(*largest, score);
            }
        }
        let mut parts = [Softmax { largest: 0.0, sum: 0.0 }; R];
        let (mut shifts, mut sums) = ([S::f_zero(); R], [S::f_zero(); R]);
        for r in 0..R {
            parts[r].largest = S::f_largest(largest[r]);
            shifts[r] = S::f_splat(finite(parts[r].largest));
        }
        for i in seen.parts(LANES).map(|part| part * LANES) {
            for r in 0..R {
                let place = scores.add(r * SEGMENT + i);
                let weight = exp_of_negative::<S>(S::f_sub(S::f_load(place), shifts[r]));
                S::f_store(place, weight);
                sums[r] = S::f_add(sums[r], weight);
            }
        }
        for r in 0..R {
            parts[r].sum = S::f_sum(sums[r]);
        }
        parts
    }
}

/// Merges a segment into `total` and its values, which it replaces if there is none.
///
/// # Safety
/// The processor has `S`; `total_values` are whole vectors, and as many elements are at `values`.
#[inline(always)]
unsafe fn merge<S: Simd>(
    total: Option<Softmax>,
    total_values: &mut [f32],
    part: Softmax,
    values: *const f32,
) -> Softmax {
    // SAFETY: as the caller promises.
    unsafe {
        let Some(total) = total else {
            values.copy_to_nonoverlapping(total_values.as_mut_ptr(), total_values.len());
            return part;
        };
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

/// Writes a row's result: its values over the sum, to which the head's sink is added; 0 if it has seen nothing.
///
/// # Safety
/// The processor has `S`; the row is one of the tile; `values` has `v_pad` elements.
#[inline(always)]
unsafe fn finish<S: Simd>(job: &Job<'_>, tile: &Tile, row: usize, total: Option<Softmax>, values: &[f32]) {
    let plan = job.plan;
    let (token, head) = tile.place(plan, row);
    // SAFETY: `out` has `v_dim` elements for each head of each token, and this row's are the tile's alone.
    unsafe {
        let out = job.out.add((token * plan.attention.heads as usize + head) * plan.v_dim);
        let Some(total) = total else { return out.write_bytes(0, plan.v_dim) };
        let factor = match job.sinks.map(|sinks| sinks[head]) {
            None => 1.0 / total.sum,
            Some(sink) => {
                let largest = larger(total.largest, sink);
                let fade = decay::<S>(total.largest, largest);
                fade / total.sum.mul_add(fade, decay::<S>(sink, largest))
            }
        };
        let factor = S::f_splat(factor);
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
