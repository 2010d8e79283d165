//! Launches of the products of many rows: activations become a 16-bit image, which tensor cores multiply with tiles.

use wootz_graph::op::Op;
use wootz_graph::{Graph, RunError, Step};
use wootz_quant::WeightType;

use super::matvec::{Matrix, SEGMENTS};
use super::{Resolver, Value};
use crate::args::{ActsArgs, Mut, ProductArgs, Ptr, Segment};
use crate::fuse::Products;
use crate::machine::{Kernel, Launch};
use crate::tiles::{self, typed};

/// Threads of a block that makes a row of the image: many where few rows must fill the device.
const PACK_THREADS: u32 = 256;
const PACK_THREADS_OF_FEW: u32 = 1024;
/// Rows of a group of the image.
const GROUP: u32 = 8;
/// Bytes of 64 columns of a group.
const GROUP_BYTES: usize = 1024;
/// Rows up to which a block takes all, a power of two.
const SMALL: u32 = 64;
/// Tokens of the largest block.
const MOST_TOKENS: u32 = 128;
/// Shared memory that Hopper's kernels fill with pieces, and pieces of weights at most.
const HOPPER_SHARED: usize = 225 << 10;
const HOPPER_PIECES: usize = 4;
/// Warps that multiply.
const WARPS: u32 = 8;
/// Pieces of shared memory in flight at most.
const MOST_STAGES: usize = 6;

/// Rows that the image of a step has room for.
fn image_rows(rows: u32) -> u32 {
    if rows > SMALL { rows.next_multiple_of(MOST_TOKENS) } else { rows.next_power_of_two().max(2 * GROUP) }
}

fn image_bytes(rows: u32, cols: u32) -> usize {
    let groups = (image_rows(rows) / GROUP) as usize;
    cols.div_ceil(tiles::COLS) as usize * 4 * groups * GROUP_BYTES
}

/// Scratch memory of a step: the image, then a scale of each row.
pub(crate) fn scratch_bytes(graph: &Graph, products: &Products, rows: u32) -> usize {
    let cols = graph.ty(products.input(graph).0).cols();
    image_bytes(rows, cols) + 4 * image_rows(rows) as usize
}

/// A kernel with its shape.
struct Shape {
    kernel: Kernel,
    threads: u32,
    shared: usize,
    stages: u32,
    /// Row tiles of a block.
    row_tiles: u32,
    /// Warps that multiply.
    warps: u32,
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

    /// Bytes of the parts of sums: two of each block.
    fn partial_bytes(&self, grid: u32) -> usize {
        let vectors = 2 * self.tokens / GROUP;
        2 * (grid * self.warps * vectors) as usize * 32 * 16
    }
}

impl Resolver<'_> {
    /// The launches of products of many rows.
    pub(super) fn products(&self, step: &Step) -> Result<Vec<Launch>, RunError> {
        let graph = &self.plan.graph;
        let products = Products::of(graph, &step.nodes);
        let (x, y) = products.input(graph);
        let value = self.value(x)?;
        let scratch = step.scratch.ok_or_else(|| RunError::Plan("products without scratch memory".into()))?;
        let image = self.arena + scratch.offset as u64;
        let (norm, eps) = match products.norm.map(|n| &graph.node(n).op) {
            Some(Op::Norm(norm)) => (self.weights.vector(norm.weight, 0)?, norm.eps),
            _ => (Ptr::NULL, 0.0),
        };
        let mut acts = ActsArgs {
            rows: self.rows(value.rows),
            x: value.ptr(),
            y: y.map(|y| self.value(y)).transpose()?.map_or(Ptr::NULL, |y| y.ptr()),
            y_tail: Ptr::NULL,
            x_out: self.kept_sum(step, &products)?,
            norm,
            out: Mut::new(image),
            scale: Mut::new(image + image_bytes(value.most, value.cols) as u64),
            eps,
            cols: value.cols,
            k_tiles: value.cols.div_ceil(tiles::COLS),
            groups: image_rows(value.most) / GROUP,
        };
        let mut launches = Vec::new();
        let mut rest = self.matrices(&products)?;
        // Those that read one kind of image come together.
        rest.sort_by_key(|m| (m.ty == WeightType::BF16, m.ty));
        let mut packed = None;
        for own in rest.chunk_by(|a, b| a.ty == b.ty).flat_map(|same| same.chunks(SEGMENTS)) {
            let bf16 = own[0].ty == WeightType::BF16;
            if packed.replace(bf16) != Some(bf16) {
                let kernel = Kernel::new("acts", if bf16 { "pack_rows_bf16" } else { "pack_rows_f16" });
                let threads = if value.most > SMALL { PACK_THREADS } else { PACK_THREADS_OF_FEW };
                launches.push(Launch::new(kernel, [value.most, 1, 1], threads, &acts));
                acts.x_out = Mut::NULL;
            }
            launches.push(self.product(&products, own, value, &acts)?);
        }
        Ok(launches)
    }

    /// Products with up to three matrices of one type.
    fn product(
        &self,
        products: &Products,
        matrices: &[Matrix],
        x: Value,
        acts: &ActsArgs,
    ) -> Result<Launch, RunError> {
        let graph = &self.plan.graph;
        let (ty, gated) = (matrices[0].ty, products.glu.is_some());
        let gate = match products.glu.map(|n| &graph.node(n).op) {
            Some(Op::Glu(activation)) => *activation as u32,
            _ => 0,
        };
        let mut seg = [Segment::EMPTY; SEGMENTS];
        for (segment, matrix) in seg.iter_mut().zip(matrices) {
            let maker = products.glu.unwrap_or(matrix.node);
            *segment = self.segment(matrix, self.value(graph.node(maker).outs[0])?.out(), None)?;
        }
        let shape = self.product_shape(ty, x.most, gated)?;
        let args = ProductArgs {
            seg,
            tokens: acts.rows,
            acts: Ptr::new(acts.out.address()),
            scale: if ty == WeightType::BF16 { Ptr::NULL } else { Ptr::new(acts.scale.address()) },
            residual: Ptr::NULL,
            partial: Mut::new(self.workspace.partial),
            counters: Mut::new(self.workspace.counters),
            segs: matrices.len() as u32,
            k_tiles: acts.k_tiles,
            groups: acts.groups,
            gate,
            stages: shape.stages,
            unused: 0,
        };
        let grid = self.properties.multiprocessors;
        let blocks = shape.blocks(&seg[..matrices.len()], x.most, gated);
        self.workspace.need(shape.partial_bytes(grid), (blocks * shape.warps) as usize);
        Ok(Launch::new(shape.kernel, [grid, 1, 1], shape.threads, &args).shared(shape.shared))
    }

    /// The kernel for a type and a number of rows.
    fn product_shape(&self, ty: WeightType, rows: u32, gated: bool) -> Result<Shape, RunError> {
        if self.properties.capability == 90 {
            hopper(ty, rows, gated)
        } else {
            ordinary(ty, rows, gated, self.properties.shared_per_block as usize)
        }
    }
}

/// On Hopper: rings of activations and of weights, and products of four warps at once.
fn hopper(ty: WeightType, rows: u32, gated: bool) -> Result<Shape, RunError> {
    let (tokens, kernel) = match (rows, gated) {
        (..=16, false) => (16, typed!(each "hopper_", "hopper_", ty, "_16")),
        (..=32, false) => (32, typed!(each "hopper_", "hopper_", ty, "_32")),
        (..=64, false) => (64, typed!(each "hopper_", "hopper_", ty, "_64")),
        (_, false) => (128, typed!(each "hopper_", "hopper_", ty, "_128")),
        (..=16, true) => (16, typed!(each "hopper_", "hopper_glu_", ty, "_16")),
        (..=32, true) => (32, typed!(each "hopper_", "hopper_glu_", ty, "_32")),
        (..=64, true) => (64, typed!(each "hopper_", "hopper_glu_", ty, "_64")),
        (_, true) => (128, typed!(each "hopper_", "hopper_glu_", ty, "_128")),
    };
    // 64 columns of activations, and a tile of each row tile, or a quarter of one.
    let (acts, acts_pieces) = (tokens as usize * 128, if tokens > 64 { 5 } else { 6 });
    let weights = 2 * WARPS as usize * tiles::bytes(ty) / if tiles::is_float(ty) { 4 } else { 1 };
    let pieces = ((HOPPER_SHARED - acts_pieces * acts) / weights).min(HOPPER_PIECES);
    // Each piece has two barriers of 8 bytes; the first begins on 1024 bytes.
    let shared = acts_pieces * acts + pieces * weights + 16 * (acts_pieces + pieces) + 1024;
    Ok(Shape { kernel: kernel?, threads: 384, shared, stages: 0, row_tiles: 2 * WARPS, warps: WARPS, tokens })
}

/// On other devices: pieces of both in one ring.
fn ordinary(ty: WeightType, rows: u32, gated: bool, most_shared: usize) -> Result<Shape, RunError> {
    let (tokens, kernel) = match (rows, gated) {
        (..=8, false) => (8, typed!(each "batch_", "batch_", ty, "_8")),
        (..=16, false) => (16, typed!(each "batch_", "batch_", ty, "_16")),
        (..=32, false) => (32, typed!(each "batch_", "batch_", ty, "_32")),
        (_, false) => (64, typed!(each "batch_", "batch_", ty, "_64")),
        (..=8, true) => (8, typed!(each "batch_", "batch_glu_", ty, "_8")),
        (..=16, true) => (16, typed!(each "batch_", "batch_glu_", ty, "_16")),
        (..=32, true) => (32, typed!(each "batch_", "batch_glu_", ty, "_32")),
        (_, true) => (64, typed!(each "batch_", "batch_glu_", ty, "_64")),
    };
    let warps = if tiles::is_float(ty) { WARPS / 2 } else { WARPS };
    let row_tiles = 2 * warps;
    let piece = row_tiles as usize * tiles::bytes(ty) + tokens as usize / 8 * 4 * GROUP_BYTES;
    // Each piece has two barriers of 8 bytes.
    let stages = (most_shared / (piece + 16)).clamp(1, MOST_STAGES);
    Ok(Shape {
        kernel: kernel?,
        threads: 32 * (warps + 1),
        shared: stages * (piece + 16),
        stages: stages as u32,
        row_tiles,
        warps,
        tokens,
    })
}
