//! Launches of the products of many rows: activations become a 16-bit image, which tensor cores multiply with tiles.

use wootz_graph::op::Op;
use wootz_graph::{Graph, RunError, Step};
use wootz_quant::WeightType;

use super::few::{self, Few};
use super::matvec::{Matrix, SEGMENTS, groups, types};
use super::{Resolver, Tails, Value};
use crate::args::{ActsArgs, Mut, ProductArgs, Ptr, Segment};
use crate::fuse::Products;
use crate::machine::{Kernel, Launch};
use crate::tiles::{self, typed};

/// Warps of a block that makes a row of the image at most. With few rows many share one, since all is latency. With many rows there
/// are as many as keep the row, so that several blocks share a multiprocessor, and no more where each adds further summands, which
/// takes registers.
const PACK_WARPS_OF_FEW: u32 = 32;
const LEAST_PACK_WARPS: u32 = 8;
const MOST_PACK_WARPS: u32 = 14;
/// Tiles of columns that a warp keeps then.
const PACK_KEPT: u32 = 6;
/// The compute capability from which blocks come in clusters.
pub(super) const HAS_CLUSTERS: u32 = 90;
/// Blocks that share a row at most, where devices have clusters, and rows up to which they do: with more, starting clusters
/// takes longer than they save.
const MOST_PACK_BLOCKS: u32 = 8;
const SHARED_ROWS: u32 = 8;
/// Summands in which results of a few rows are left at most.
const MOST_PARTS: u32 = 12;
/// Rows of a group of the image.
pub(super) const GROUP: u32 = 8;
/// Bytes of 64 columns of a group.
pub(super) const GROUP_BYTES: usize = 1024;
/// Rows up to which a block takes all, a power of two.
const SMALL: u32 = 64;
/// Tokens of the largest block.
pub(super) const MOST_TOKENS: u32 = 128;
/// Rows up to which two blocks share a multiprocessor, of Hopper's kernels and of the others.
const HOPPER_PAIRED: u32 = 32;
pub(super) const PAIRED: u32 = 8;
/// Shared memory that Hopper's kernels fill with pieces, for one and for two blocks on a multiprocessor, and pieces of
/// weights at most.
const HOPPER_SHARED: usize = 225 << 10;
const HOPPER_SHARED_OF_TWO: usize = 110 << 10;
const HOPPER_PIECES: usize = 6;
/// Warps that multiply.
const WARPS: u32 = 8;
/// Bytes of shared memory that a device keeps for each block.
const RESERVED_SHARED: usize = 1024;
/// Pieces of shared memory in flight at most.
const MOST_STAGES: usize = 6;

/// Rows that the image of a step has room for.
fn image_rows(rows: u32) -> u32 {
    if rows > SMALL { rows.next_multiple_of(MOST_TOKENS) } else { rows.next_power_of_two().max(2 * GROUP) }
}

/// Groups of rows of the image of a step.
pub(super) fn image_groups(rows: u32) -> u32 {
    image_rows(rows) / GROUP
}

fn image_bytes(rows: u32, cols: u32) -> usize {
    cols.div_ceil(tiles::COLS) as usize * 4 * image_groups(rows) as usize * GROUP_BYTES
}

/// Whether attention may leave the image of its result in the place of the result: only the columns of whole tiles are
/// written by it, and steps of many rows have other kernels.
pub(super) fn image_fits(rows: u32, cols: u32) -> bool {
    rows <= SMALL && cols.is_multiple_of(tiles::COLS) && image_bytes(rows, cols) <= 4 * (rows * cols) as usize
}

/// Scratch memory of a step: the image, then a scale of each row.
pub(crate) fn scratch_bytes(graph: &Graph, products: &Products, rows: u32) -> usize {
    let cols = graph.ty(products.input(graph).0).cols();
    (image_bytes(rows, cols) + 4 * image_rows(rows) as usize).max(few::scratch_bytes(cols))
}

/// A kernel with its shape.
pub(super) struct Shape {
    pub(super) kernel: Kernel,
    pub(super) threads: u32,
    pub(super) shared: usize,
    pub(super) stages: u32,
    /// Blocks that share a multiprocessor.
    pub(super) paired: u32,
    /// Row tiles of a block.
    pub(super) row_tiles: u32,
    /// Warps that multiply.
    pub(super) warps: u32,
    /// Tokens of a block.
    tokens: u32,
}

impl Shape {
    /// Output blocks of a launch with these matrices.
    fn blocks(&self, segments: &[Segment], rows: u32, gated: bool) -> u32 {
        let each = if gated { self.row_tiles / 2 } else { self.row_tiles };
        let matrices = if gated { &segments[..1] } else { segments };
        matrices.iter().map(|s| s.row_tiles.div_ceil(each)).sum::<u32>() * rows.div_ceil(self.tokens)
    }

    /// How results of so many output blocks are left in parts: blocks of threads, and parts of each. `None` if no more than
    /// two would have parts of one, or too many. Runs of one length end where output blocks end most often.
    fn parts(&self, blocks: u32, k_tiles: u32, most_grid: u32) -> Option<(u32, u32)> {
        let least = match self.tokens {
            0..=32 => 1,
            33..=64 => 2,
            _ => 3,
        };
        let units = blocks * k_tiles;
        let grid = units.div_ceil(units.div_ceil(most_grid).max(least));
        // As kernels cut the work: the first runs have a unit more than the others.
        let (each, more) = (units / grid, units % grid);
        let longer = more * (each + 1);
        let owner = |unit: u32| if unit < longer { unit / (each + 1) } else { more + (unit - longer) / each };
        let of_block = |block: u32| owner((block + 1) * k_tiles - 1) - owner(block * k_tiles) + 1;
        let parts = (0..blocks).map(of_block).max()?;
        (each < k_tiles && (2..=MOST_PARTS).contains(&parts)).then_some((grid, parts))
    }

    /// Bytes of the parts of sums: two of each block.
    pub(super) fn partial_bytes(&self, grid: u32) -> usize {
        2 * 4 * (grid * self.row_tiles * tiles::ROWS * self.tokens) as usize
    }
}

impl Resolver<'_> {
    /// The launches of products of many rows.
    pub(super) fn products(&self, step: &Step) -> Result<Vec<Launch>, RunError> {
        let graph = &self.plan.graph;
        let products = Products::of(graph, &step.nodes);
        let (x, y) = products.input(graph);
        if let Some(added) = self.added(x) {
            return Ok(vec![added.launch]);
        }
        let left = y.and_then(|y| self.added(y));
        let value = self.value(x)?;
        let scratch = step.scratch.ok_or_else(|| RunError::Plan("products without scratch memory".into()))?;
        let image = self.arena + scratch.offset as u64;
        let (norm, eps) = match products.norm.map(|n| &graph.node(n).op) {
            Some(Op::Norm(norm)) => (self.weights.vector(norm.weight, 0)?, norm.eps),
            _ => (Ptr::NULL, 0.0),
        };
        let tails = y.map(|y| self.tails(y)).unwrap_or_default();
        let mut acts = ActsArgs {
            rows: self.rows(value.rows),
            x: value.ptr(),
            y: y.map(|y| self.value(y)).transpose()?.map_or(Ptr::NULL, |y| y.ptr()),
            y_tail: Ptr::new(tails.first),
            slab: tails.slab,
            x_out: self.kept_sum(step, &products)?,
            norm,
            out: Mut::new(image),
            scale: Mut::new(image + image_bytes(value.most, value.cols) as u64),
            eps,
            cols: value.cols,
            k_tiles: value.cols.div_ceil(tiles::COLS),
            groups: image_groups(value.most),
            tails: tails.count,
            unused: 0,
        };
        let mut launches = Vec::new();
        let mut rest = self.matrices(&products)?;
        // Those that read one kind of image come together.
        rest.sort_by_key(|m| m.ty == WeightType::BF16);
        // Attention has made the image of its result itself, with no scales.
        let mut packed = self.forms.image(x, self.apart);
        if packed.is_some() {
            (acts.out, acts.scale) = (value.out(), Mut::NULL);
        }
        let mixes = value.most <= PAIRED || self.is_hopper();
        let groups = groups(rest, mixes);
        let outs = products.linears.iter().map(|n| graph.node(*n).outs[0]);
        let in_parts = groups.len() == 1
            && value.most <= SMALL
            && outs.into_iter().all(|v| self.forms.takes_parts(v, self.apart));
        for own in groups {
            let few = Few::new(&own, value, products.glu.is_some(), in_parts, &self.properties);
            if let Some(few) = few.filter(|_| packed.is_none()) {
                launches.extend(self.few(&few, &products, &own, &acts, image, left.as_ref())?);
                acts.x_out = Mut::NULL;
                continue;
            }
            let bf16 = own[0].ty == WeightType::BF16;
            if packed.replace(bf16) != Some(bf16) {
                launches.push(pack(bf16, value.most, &acts, self.properties.capability));
                acts.x_out = Mut::NULL;
            }
            launches.push(self.product(&products, &own, value, &acts, in_parts)?);
        }
        Ok(launches)
    }

    /// Products with up to three matrices of one type, or the last of another; `in_parts` where the reader adds summands.
    fn product(
        &self,
        products: &Products,
        matrices: &[Matrix],
        x: Value,
        acts: &ActsArgs,
        in_parts: bool,
    ) -> Result<Launch, RunError> {
        let graph = &self.plan.graph;
        let (ty, gated) = (matrices[0].ty, products.glu.is_some());
        let mut seg = [Segment::EMPTY; SEGMENTS];
        for (segment, matrix) in seg.iter_mut().zip(matrices) {
            let maker = products.glu.unwrap_or(matrix.node);
            *segment = self.segment(matrix, self.value(graph.node(maker).outs[0])?.out(), None)?;
        }
        let shape = self.product_shape(matrices, x.most, gated)?;
        let blocks = shape.blocks(&seg[..matrices.len()], x.most, gated);
        let most_grid = self.properties.multiprocessors * shape.paired;
        let left = if in_parts { shape.parts(blocks, acts.k_tiles, most_grid) } else { None };
        let (grid, parts) = left.unwrap_or((most_grid, 0));
        // Summands of all matrices side by side.
        let slab = seg.iter().map(|s| u64::from(x.most) * u64::from(s.rows)).sum();
        let mut first = self.workspace.summands;
        for (segment, matrix) in seg.iter_mut().zip(matrices).filter(|_| parts > 0) {
            segment.tail = Mut::new(first);
            let tails = Tails { first, count: parts - 1, slab };
            self.parts.borrow_mut().insert(graph.node(matrix.node).outs[0], tails);
            first += 4 * u64::from(x.most) * u64::from(segment.rows);
        }
        self.workspace.need_summands(4 * slab as usize * parts.saturating_sub(1) as usize);
        let args = ProductArgs {
            seg,
            tokens: acts.rows,
            acts: Ptr::new(acts.out.address()),
            scale: if ty == WeightType::BF16 { Ptr::NULL } else { Ptr::new(acts.scale.address()) },
            partial: Mut::new(self.workspace.partial),
            counters: Mut::new(self.workspace.counters),
            slab,
            segs: matrices.len() as u32,
            k_tiles: acts.k_tiles,
            groups: acts.groups,
            gate: products.gate_kind(graph),
            stages: shape.stages,
            factor: tiles::factor(ty),
            parts,
            unused: 0,
        };
        self.workspace.need(shape.partial_bytes(grid), (blocks * shape.warps) as usize);
        Ok(Launch::new(shape.kernel, [grid, 1, 1], shape.threads, &args).shared(shape.shared))
    }

    pub(super) fn is_hopper(&self) -> bool {
        self.properties.capability == 90
    }

    /// The kernel for some matrices and a number of rows.
    fn product_shape(&self, matrices: &[Matrix], rows: u32, gated: bool) -> Result<Shape, RunError> {
        // With few rows tensor cores do so little that warps had better not wait for each other.
        if self.is_hopper() && rows > PAIRED {
            hopper(matrices, rows, gated)
        } else {
            ordinary(matrices, rows, gated, self.properties.shared_per_block as usize)
        }
    }
}

/// Blocks that make a row of the image together: a power of two, each with a tile of columns at least.
fn pack_blocks(rows: u32, k_tiles: u32, capability: u32) -> u32 {
    let shared = capability >= HAS_CLUSTERS && rows <= SHARED_ROWS;
    if shared { 1 << MOST_PACK_BLOCKS.min(k_tiles).max(1).ilog2() } else { 1 }
}

/// The launch that makes the image.
fn pack(bf16: bool, rows: u32, acts: &ActsArgs, capability: u32) -> Launch {
    let blocks = pack_blocks(rows, acts.k_tiles, capability);
    let tiles = acts.k_tiles.div_ceil(blocks);
    let (name, warps) = if rows > SMALL {
        let warps = tiles.div_ceil(PACK_KEPT).clamp(LEAST_PACK_WARPS, MOST_PACK_WARPS);
        (if bf16 { "pack_many_rows_bf16" } else { "pack_many_rows_f16" }, warps)
    } else if acts.tails > 0 {
        (if bf16 { "pack_parts_bf16" } else { "pack_parts_f16" }, tiles.min(MOST_PACK_WARPS))
    } else {
        (if bf16 { "pack_rows_bf16" } else { "pack_rows_f16" }, tiles.min(PACK_WARPS_OF_FEW))
    };
    Launch::new(Kernel::new("acts", name), [rows * blocks, 1, 1], 32 * warps, acts).clusters(blocks)
}

/// The kernel for some matrices, whose file's name ends in the type; what stands before and after the types in its name.
macro_rules! product_kernel {
    ($file:literal, $gated:expr, $types:expr, $tokens:literal) => {{
        let kernel = match $types {
            (WeightType::Q4_K, Some(WeightType::Q6_K)) => {
                Ok(Kernel::new(concat!($file, "q4_k"), concat!($file, "q4_k_q6_k_", $tokens)))
            }
            (WeightType::Q5_K, Some(WeightType::Q6_K)) => {
                Ok(Kernel::new(concat!($file, "q5_k"), concat!($file, "q5_k_q6_k_", $tokens)))
            }
            (ty, _) if $gated => typed!(each $file, $file, "glu_", ty, "_", $tokens),
            (ty, _) => typed!(each $file, $file, "", ty, "_", $tokens),
        };
        ($tokens, kernel?)
    }};
}

/// Bytes of the largest tile of some matrices.
fn tile_bytes(matrices: &[Matrix]) -> usize {
    matrices.iter().map(|m| tiles::bytes(m.ty)).max().unwrap_or(0)
}

/// On Hopper: rings of activations and of weights, and products of four warps at once.
fn hopper(matrices: &[Matrix], rows: u32, gated: bool) -> Result<Shape, RunError> {
    let types = types(matrices);
    let (tokens, kernel) = match rows {
        0..=16 => product_kernel!("hopper_", gated, types, 16),
        17..=32 => product_kernel!("hopper_", gated, types, 32),
        33..=64 => product_kernel!("hopper_", gated, types, 64),
        _ => product_kernel!("hopper_", gated, types, 128),
    };
    Ok(hopper_shape(kernel, tokens, tile_bytes(matrices), types.0))
}

/// The shape of a kernel for Hopper that takes so many tokens at once; `tile_bytes` are those of the largest tile.
pub(super) fn hopper_shape(kernel: Kernel, tokens: u32, tile_bytes: usize, ty: WeightType) -> Shape {
    // Warps that multiply, and row tiles of a block.
    let (warps, row_tiles) = match tokens {
        128 => (WARPS, 2 * WARPS),
        64 => (2 * WARPS, 2 * WARPS),
        _ => (WARPS, WARPS),
    };
    let (paired, room) = if tokens <= HOPPER_PAIRED { (2, HOPPER_SHARED_OF_TWO) } else { (1, HOPPER_SHARED) };
    // 64 columns of activations, and a tile of each row tile, or a quarter of one.
    let (acts, acts_pieces) = (tokens as usize * 128, if tokens > SMALL { 5 } else { 6 });
    let weights = row_tiles as usize * tile_bytes / if tiles::is_float(ty) { 4 } else { 1 };
    let pieces = ((room - acts_pieces * acts) / weights).min(HOPPER_PIECES);
    // Each piece has two barriers of 8 bytes; the first begins on 1024 bytes.
    let shared = acts_pieces * acts + pieces * weights + 16 * (acts_pieces + pieces) + 1024;
    Shape { kernel, threads: 32 * warps + 128, shared, stages: 0, paired, row_tiles, warps, tokens }
}

/// On other devices: pieces of both in one ring.
fn ordinary(matrices: &[Matrix], rows: u32, gated: bool, most_shared: usize) -> Result<Shape, RunError> {
    let types = types(matrices);
    let (tokens, kernel) = match rows {
        0..=8 => product_kernel!("batch_", gated, types, 8),
        9..=16 => product_kernel!("batch_", gated, types, 16),
        17..=32 => product_kernel!("batch_", gated, types, 32),
        _ => product_kernel!("batch_", gated, types, 64),
    };
    Ok(ordinary_shape(kernel, tokens, tile_bytes(matrices), types.0, most_shared))
}

/// As [`hopper_shape`], of a kernel for every device.
pub(super) fn ordinary_shape(
    kernel: Kernel,
    tokens: u32,
    tile_bytes: usize,
    ty: WeightType,
    most_shared: usize,
) -> Shape {
    let warps = if tiles::is_float(ty) { WARPS / 2 } else { WARPS };
    let paired = if tokens <= PAIRED { 2 } else { 1 };
    // Of two blocks each has half, less what the device keeps for itself.
    let most_shared = if paired == 2 { most_shared / 2 - RESERVED_SHARED } else { most_shared };
    let row_tiles = warps * if paired == 2 { 1 } else { 2 };
    let piece = row_tiles as usize * tile_bytes + tokens as usize / 8 * 4 * GROUP_BYTES;
    // Each piece has two barriers of 8 bytes.
    let stages = (most_shared / (piece + 16)).clamp(1, MOST_STAGES);
    Shape {
        kernel,
        threads: 32 * (warps + 1),
        shared: stages * (piece + 16),
        stages: stages as u32,
        paired,
        row_tiles,
        warps,
        tokens,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rows_of_the_image_are_made_by_clusters() {
        assert_eq!([1, 8, 9, 500].map(|rows| pack_blocks(rows, 14, 90)), [8, 8, 1, 1]);
        assert_eq!([1, 2, 3, 5].map(|k_tiles| pack_blocks(8, k_tiles, 90)), [1, 2, 2, 4]);
        assert_eq!(pack_blocks(8, 14, 89), 1);
    }

    #[test]
    fn results_are_left_in_parts_where_more_than_two_runs_share_them() {
        let shape = |tokens| Shape {
            kernel: Kernel::new("", ""),
            threads: 0,
            shared: 0,
            stages: 0,
            paired: 2,
            row_tiles: 8,
            warps: 8,
            tokens,
        };
        // 28 blocks of 14 k tiles: runs of 2 end where blocks end.
        assert_eq!(shape(8).parts(28, 14, 264), Some((196, 7)));
        // Of 74: runs of 8 do not, so that some blocks have one part more.
        assert_eq!(shape(8).parts(28, 74, 264), Some((259, 10)));
        // Runs longer than a block: two share one at most.
        assert_eq!(shape(8).parts(296, 14, 264), None);
        // One block that all share.
        assert_eq!(shape(8).parts(1, 74, 264), None);
    }
}
