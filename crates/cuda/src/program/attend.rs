//! Launches of fast attention: of single tokens with what happens to its query, key and value before, of rows, of tiles.

use wootz_graph::op::{Attention, Op, RopeStyle};
use wootz_graph::{BLOCK_TOKENS, CacheLayout, CacheSpec, Graph, KvType, NodeId, RunError, Step};

use super::batch::{self, HAS_CLUSTERS};
use super::{Resolver, Value};
use crate::args::{AttendArgs, FlashArgs, Mut, Ptr};
use crate::fuse::Attend;
use crate::machine::{Kernel, Launch, Properties};
use crate::select;
use crate::step::TILES;

/// Query heads of a block.
const HEADS: u32 = 8;
/// Warps of a block whose row has many parts, of one with few: as many as have registers, by the elements of a head, and of
/// blocks of which two share a multiprocessor.
const WARPS: u32 = 8;
const WARPS_OF_SHORT: u32 = 12;
const WIDE_HEAD: u32 = 128;
const WARPS_OF_PAIRED: u32 = 4;
/// Positions that a warp takes at once, and chunks of them that a block has at least.
const CHUNK: u32 = 16;
const LEAST_CHUNKS: u32 = 4;
/// Chunks up to which one block has them all: joining parts would take longer.
const WHOLE_CHUNKS: u32 = 8;
/// Parts of the positions at most, and those up to which they are few: their blocks are a cluster on devices that have such.
const MOST_SPLITS: u32 = 64;
const FEW_SPLITS: u32 = 8;
/// Rows up to which each may have blocks of its own, and rows of a sequence from which tiles are better.
const FEW_ROWS: u32 = 64;
const ROWS_OF_A_TILE: u32 = 8;

/// The kernels for a cache's types and heads: of single rows with few parts, with many, of those of which two blocks share a
/// multiprocessor, and of tiles of rows.
#[derive(Clone, Copy)]
struct Kernels {
    short: &'static str,
    long: &'static str,
    paired: &'static str,
    flash: &'static str,
}

/// The kernels for a cache, if there are some.
fn kernels(layout: &CacheLayout, spec: &CacheSpec) -> Option<Kernels> {
    macro_rules! kernels {
        ($($variant:ident $ty:literal: $($dim:literal),*;)*) => {
            match (layout.k_type, spec.k_dim) {
                $($((KvType::$variant, $dim) => Some(Kernels {
                    short: concat!("attend_", $ty, "_", $dim, "_short"),
                    long: concat!("attend_", $ty, "_", $dim, "_long"),
                    paired: concat!("attend_", $ty, "_", $dim, "_paired"),
                    flash: concat!("flash_", $ty, "_", $dim),
                }),)*)*
                _ => None,
            }
        };
    }
    let same = layout.k_type == layout.v_type && spec.k_dim == spec.v_dim;
    let found = kernels! {
        F16 "f16": 64, 128, 256;
        BF16 "bf16": 64, 128, 256;
        Q8_0 "q8_0": 64, 128, 256;
    };
    found.filter(|_| same)
}

/// Whether attention has a kernel that does everything.
pub(crate) fn is_fused(graph: &Graph, layout: &CacheLayout, attend: &Attend) -> bool {
    let Op::Attention(attention) = &graph.node(attend.attention).op else { return false };
    let spec = &graph.caches[attention.cache.0 as usize];
    kernels(layout, spec).is_some() && eps_agree(graph, attend)
}

/// How the positions of a row are cut.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cut {
    /// In few parts, whose blocks are a cluster where devices have such.
    Few(u32),
    Many(u32),
}

/// How to cut the positions of rows whose groups of heads, of all rows, share the device.
fn cut(kv_span: u32, dim: u32, groups: u32, properties: &Properties) -> Cut {
    let chunks = kv_span.div_ceil(CHUNK);
    let multiprocessors = properties.multiprocessors;
    let many = chunks.div_ceil(WARPS).min(MOST_SPLITS).min(multiprocessors / groups).max(1);
    // With fewer chunks than warps, blocks have them sooner. Clusters lie within groups of multiprocessors, where some are left
    // over, and a few clusters more than there is room for would take as long again: an H200 with 132 has room for 66 clusters
    // of 2, 39 of 3, 30 of 4, 22 of 5, 17 of 6, 15 of 8.
    let fit = (multiprocessors / groups).min(2).max((multiprocessors - multiprocessors / 6) / groups);
    let wanted = if chunks <= WHOLE_CHUNKS { 1 } else { chunks.div_ceil(LEAST_CHUNKS) };
    let few = wanted.min(FEW_SPLITS).min(fit).max(1);
    // Two rounds of a cluster are no longer than one with results that meet in memory.
    let rounds = if many <= FEW_SPLITS { 2 } else { 1 };
    if few >= many || chunks <= rounds * few * short_warps(dim) { Cut::Few(few) } else { Cut::Many(many) }
}

fn short_warps(dim: u32) -> u32 {
    if dim > WIDE_HEAD { WARPS } else { WARPS_OF_SHORT }
}

fn eps(graph: &Graph, norm: Option<NodeId>) -> Option<f32> {
    match norm.map(|n| &graph.node(n).op) {
        Some(Op::Norm(norm)) => Some(norm.eps),
        _ => None,
    }
}

/// Query and key share one value.
fn eps_agree(graph: &Graph, attend: &Attend) -> bool {
    let (q, k) = (eps(graph, attend.q_norm), eps(graph, attend.k_norm));
    q.is_none() || k.is_none() || q == k
}

/// Scratch memory of a step whose operations run one by one: its query and its key, twice each.
pub(crate) fn scratch_bytes(graph: &Graph, attend: &Attend) -> usize {
    let [q, k, _] = attend.inputs(graph).map(|v| graph.ty(v).bytes(&graph.key).next_multiple_of(256));
    2 * (q + k)
}

/// Images of a result, in the order of kernels/modes.h.
#[derive(Clone, Copy)]
enum Image {
    F16 = 0,
    Bf16 = 1,
    Int8 = 2,
}

impl Resolver<'_> {
    /// The launches of attention of tokens of different sequences, with what happens before.
    pub(super) fn attend(&self, step: &Step) -> Result<Vec<Launch>, RunError> {
        let graph = &self.plan.graph;
        let attend = Attend::of(graph, &step.nodes)
            .ok_or_else(|| RunError::Plan(format!("{} without attention", step.kernel)))?;
        let Op::Attention(attention) = graph.node(attend.attention).op.clone() else {
            return Err(RunError::Plan(format!("{} without attention", step.kernel)));
        };
        // A token of the same sequence would need keys that the same kernel writes.
        let apart = self.apart || graph.key.tokens == 1;
        if !apart || !is_fused(graph, self.layout, &attend) {
            return self.one_by_one(step, &attend, &attention);
        }
        let ids = attend.inputs(graph);
        // Those of one step have as many.
        let tails = ids.map(|id| self.tails(id));
        let tail = |i: usize| Ptr::new(tails[i].first);
        let norm = |node: Option<NodeId>| match node.map(|n| &graph.node(n).op) {
            Some(Op::Norm(norm)) => self.weights.vector(norm.weight, 0),
            _ => Ok(Ptr::NULL),
        };
        let q = self.value(ids[0])?;
        let out = self.value(graph.node(attend.attention).outs[0])?;
        let rows = self.rows_args(&attention, q, out)?;
        let mut args = AttendArgs {
            q_tail: tail(0),
            k: self.value(ids[1])?.ptr(),
            k_tail: tail(1),
            v: self.value(ids[2])?.ptr(),
            v_tail: tail(2),
            slab: tails[0].slab,
            tails: tails[0].count,
            q_norm: norm(attend.q_norm)?,
            k_norm: norm(attend.k_norm)?,
            eps: eps(graph, attend.q_norm).or(eps(graph, attend.k_norm)).unwrap_or(0.0),
            ..rows
        };
        let id = graph.node(attend.attention).outs[0];
        if let Some(added) = self.added(id) {
            (args.image, args.image_kind) = (Mut::new(added.acts), Image::Int8 as u32);
        } else if let Some(bf16) = self.forms.image(id, apart) {
            args.image = out.out();
            args.groups = batch::image_groups(q.most);
            args.image_kind = if bf16 { Image::Bf16 } else { Image::F16 } as u32;
        }
        if let Some(Op::Rope(rope)) = attend.ropes.map(|(q, _)| &graph.node(q).op) {
            args.rope = Ptr::new(self.rope_slot(rope)?.table.address());
            args.pairs = rope.dims / 2;
            args.adjacent = u32::from(rope.style == RopeStyle::Adjacent);
        }
        Ok(vec![self.attend_launch(&attention, args, q.most)?])
    }

    /// Whether launches differ by whether all tokens are of different sequences.
    pub(crate) fn depends_on_sequences(&self) -> bool {
        let graph = &self.plan.graph;
        let mut attends = self.plan.steps.iter().filter(|s| s.kernel == select::ATTEND);
        let fused =
            |step: &Step| Attend::of(graph, &step.nodes).is_some_and(|a| is_fused(graph, self.layout, &a));
        graph.key.tokens > 1 && attends.any(fused)
    }

    /// The fast launch of attention over a cache that holds the step's keys and values, if there is one.
    pub(super) fn fast_attention(
        &self,
        attention: &Attention,
        q: Value,
        out: Value,
    ) -> Result<Option<Launch>, RunError> {
        let spec = &self.layout.caches[attention.cache.0 as usize];
        let Some(kernels) = kernels(self.layout, spec).filter(|_| attention.causal) else { return Ok(None) };
        let args = self.rows_args(attention, q, out)?;
        let key = &self.plan.graph.key;
        if key.tokens <= FEW_ROWS && key.tokens < ROWS_OF_A_TILE * key.seqs {
            return self.attend_launch(attention, args, q.most).map(Some);
        }
        let args = FlashArgs {
            q: args.q,
            sinks: args.sinks,
            cache: Ptr::new(args.cache.address()),
            out: args.out,
            tiles: self.input(self.places.tiles),
            tile_count: self.input(TILES),
            positions: args.positions,
            sequences: args.sequences,
            first: args.first,
            blocks: args.blocks,
            block_bytes: args.block_bytes,
            v_offset: args.v_offset,
            scale: args.scale,
            softcap: args.softcap,
            heads: args.heads,
            kv_heads: args.kv_heads,
            max_blocks: args.max_blocks,
            window: args.window,
        };
        let grid = [self.places.max_tiles as u32, attention.heads, 1];
        let shared = 2 * spec.k_dim as usize * (64 + 256);
        Ok(Some(Launch::new(Kernel::new("flash", kernels.flash), grid, 128, &args).shared(shared)))
    }

    /// Arguments of attention of rows whose keys and values are in the cache.
    fn rows_args(&self, attention: &Attention, q: Value, out: Value) -> Result<AttendArgs, RunError> {
        let spec = &self.layout.caches[attention.cache.0 as usize];
        let group = self.places.groups[spec.group as usize];
        let (k_type, v_type) = (self.layout.k_type, self.layout.v_type);
        Ok(AttendArgs {
            q: q.ptr(),
            q_tail: Ptr::NULL,
            k: Ptr::NULL,
            k_tail: Ptr::NULL,
            v: Ptr::NULL,
            v_tail: Ptr::NULL,
            q_norm: Ptr::NULL,
            k_norm: Ptr::NULL,
            rope: Ptr::NULL,
            sinks: self.weights.vector(attention.sinks, 0)?,
            cache: Mut::new(self.cache(attention.cache)?),
            out: out.out(),
            partial: Mut::new(self.workspace.partial),
            counters: Mut::new(self.workspace.counters),
            tokens: self.rows(q.rows),
            positions: self.input(self.places.positions),
            sequences: self.input(self.places.sequences),
            first: self.input(group.first),
            blocks: self.input(group.blocks),
            block_bytes: spec.block_bytes(k_type, v_type) as u64,
            v_offset: (spec.kv_heads as usize * BLOCK_TOKENS * k_type.bytes(spec.k_dim as usize)) as u64,
            scale: attention.scale,
            softcap: attention.softcap.unwrap_or(0.0),
            eps: 0.0,
            heads: attention.heads,
            kv_heads: spec.kv_heads,
            max_blocks: self.places.max_blocks as u32,
            window: attention.window.unwrap_or(0),
            pairs: 0,
            adjacent: 0,
            slab: 0,
            tails: 0,
            image: Mut::NULL,
            groups: 0,
            image_kind: 0,
        })
    }

    /// The launch of attention of single rows: parts of the positions in blocks of their own, as far as these fill the
    /// device. Where rows alone more than fill it, two blocks share a multiprocessor, and one reads while the other begins or ends.
    fn attend_launch(&self, attention: &Attention, args: AttendArgs, rows: u32) -> Result<Launch, RunError> {
        let spec = &self.layout.caches[attention.cache.0 as usize];
        let kernels = kernels(self.layout, spec)
            .ok_or_else(|| RunError::Plan("attention without its kernel".into()))?;
        let groups = spec.kv_heads * (attention.heads / spec.kv_heads).div_ceil(HEADS);
        let cut = cut(self.plan.graph.key.kv_span, spec.k_dim, groups * rows, &self.properties);
        let (Cut::Few(splits) | Cut::Many(splits)) = cut;
        let parts = 4 * (rows * groups * splits * HEADS * (spec.k_dim + 8)) as usize;
        self.workspace.need(parts, (rows * groups) as usize);
        let (kernel, warps) = match cut {
            _ if groups * rows > self.properties.multiprocessors => (kernels.paired, WARPS_OF_PAIRED),
            Cut::Few(_) => (kernels.short, short_warps(spec.k_dim)),
            Cut::Many(_) => (kernels.long, WARPS),
        };
        let is_cluster = matches!(cut, Cut::Few(_)) && self.properties.capability >= HAS_CLUSTERS;
        // Queries, keys and values of a step, results of warps, and what joins parts.
        let shared = 4 * (spec.k_dim * (HEADS + 4) + warps * HEADS * (spec.k_dim + 8) + 1200);
        let launch = Launch::new(Kernel::new("attend", kernel), [splits, groups, rows], 32 * warps, &args);
        Ok(launch.shared(shared as usize).clusters(if is_cluster { splits } else { 1 }))
    }

    /// The operations one by one, for caches and heads without a kernel of their own.
    fn one_by_one(
        &self,
        step: &Step,
        attend: &Attend,
        attention: &Attention,
    ) -> Result<Vec<Launch>, RunError> {
        let graph = &self.plan.graph;
        let scratch =
            step.scratch.ok_or_else(|| RunError::Plan("attention without scratch memory".into()))?;
        let mut next = self.arena + scratch.offset as u64;
        let mut launches = Vec::new();
        let [q, k, v] = attend.inputs(graph);
        let (q_rope, k_rope) = attend.ropes.unzip();
        let mut made = Vec::new();
        for (value, nodes) in [(q, [attend.q_norm, q_rope]), (k, [attend.k_norm, k_rope])] {
            let mut x = self.value(value)?;
            for node in nodes.into_iter().flatten() {
                let out = Value { address: next, ..x };
                next += (4 * u64::from(x.most) * u64::from(x.cols)).next_multiple_of(256);
                launches.push(match &graph.node(node).op {
                    Op::Norm(norm) => self.norm(norm, x, None, out)?,
                    Op::Rope(rope) => self.rope(rope, x, out)?,
                    op => return Err(RunError::Plan(format!("{} before attention", op.name()))),
                });
                x = out;
            }
            made.push(x);
        }
        launches.push(self.store_kv(attention.cache, made[1], self.value(v)?)?);
        let out = self.value(graph.node(attend.attention).outs[0])?;
        launches.push(self.attention(attention, made[0], out)?);
        Ok(launches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_cut_as_far_as_blocks_fit_the_device() {
        let properties = Properties { capability: 90, multiprocessors: 132, shared_per_block: 227 << 10 };
        // Rows of a model with four groups of heads, and positions.
        let cut = |rows: u32, span: u32| cut(span, 128, 4 * rows, &properties);
        let spans = [64, 128, 640, 1536, 2048].map(|span| cut(1, span));
        assert_eq!(spans, [Cut::Few(1), Cut::Few(1), Cut::Few(8), Cut::Few(8), Cut::Many(16)]);
        let rows = [4, 8, 16, 64].map(|rows| cut(rows, 640));
        assert_eq!(rows, [Cut::Few(6), Cut::Few(3), Cut::Few(2), Cut::Few(1)]);
        let long = [1, 4, 8, 64].map(|rows| cut(rows, 16384));
        assert_eq!(long, [Cut::Many(33), Cut::Many(8), Cut::Many(4), Cut::Few(1)]);
    }
}
