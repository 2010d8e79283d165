//! Launches of large products of up to 8 rows: in whole numbers, with int8 activations.

use wootz_graph::RunError;
use wootz_quant::WeightType;

use super::matvec::{Matrix, THREADS};
use super::{Resolver, Tails, Value};
use crate::args::{ActsArgs, FewArgs, Mut, Ptr, Segment};
use crate::fuse::Products;
use crate::machine::{Kernel, Launch};
use crate::tiles;

/// Rows at most.
const MOST_ROWS: u32 = 8;
/// Bytes of 256 columns of the int8 image.
const IMAGE_BYTES: usize = 2816;
/// Threads of a block that makes the image, each of which makes 8 columns, and tiles of columns of all of them.
const PACK_THREADS: u32 = 64;
const PACK_TILES: u32 = 8 * PACK_THREADS / tiles::COLS;
/// Tiles for each multiprocessor from which on the products are large. Others are over before the activations of all columns
/// are where they are needed.
const LARGE: u32 = 64;
/// Warps of a block.
const WARPS: usize = THREADS as usize / 32;
/// Parts of columns at most, and tiles of columns of one.
const MOST_PARTS: u32 = 7;
const MOST_PART_TILES: u32 = 64;
/// Tiles that a warp takes one after the other, and bytes of their sums.
const STEP: u32 = 2;
const SUM_BYTES: usize = 512;
/// Shared memory of a block: what is left of it is the nearest cache, which holds the weights on their way.
const MOST_SHARED: usize = 200 << 10;

/// How a product is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Few {
    kernel: Kernel,
    part_tiles: u32,
    parts: u32,
    grid: u32,
    shared: usize,
}

impl Few {
    /// Of one matrix, or of two that are gated; results may be left in summands, as many as parts, if `in_parts`. `None` where
    /// other kernels are better, or the only ones.
    pub(super) fn new(
        matrices: &[Matrix],
        x: Value,
        gated: bool,
        in_parts: bool,
        multiprocessors: u32,
        most_shared: u32,
    ) -> Option<Few> {
        let first = matrices.first()?;
        let (name, room) = match (first.ty, gated) {
            (WeightType::Q4_K, false) => ("few_q4_k", 2560),
            (WeightType::Q4_K, true) => ("few_glu_q4_k", 2560),
            (WeightType::Q5_K, false) => ("few_q5_k", 3072),
            (WeightType::Q5_K, true) => ("few_glu_q5_k", 3072),
            _ => return None,
        };
        let (row_tiles, k_tiles) = (first.linear.rows.div_ceil(tiles::ROWS), x.cols.div_ceil(tiles::COLS));
        let large = matrices.len() as u32 * row_tiles * k_tiles > LARGE * multiprocessors;
        let fits = matrices.len() == if gated { 2 } else { 1 } && x.most <= MOST_ROWS;
        if !large || !fits {
            return None;
        }
        let most_shared = MOST_SHARED.min(most_shared as usize);
        let shape = |parts: u32| {
            let part_tiles = k_tiles.div_ceil(parts);
            let blocks = (multiprocessors / parts).clamp(1, row_tiles);
            let own = row_tiles.div_ceil(blocks);
            let sums = (part_tiles.div_ceil(STEP) as usize).min(WARPS) * SUM_BYTES;
            let fixed = WARPS * room + part_tiles as usize * IMAGE_BYTES;
            // The sums of all row tiles of a block, or of as many as have room: of pairs of them.
            let most = most_shared.saturating_sub(fixed) / (2 * sums) * 2;
            let row_tiles = (own as usize * matrices.len()).next_multiple_of(2).min(most);
            let few = Few {
                kernel: Kernel::new("few", name),
                part_tiles,
                parts: k_tiles.div_ceil(part_tiles),
                grid: blocks * parts,
                shared: fixed + row_tiles * sums,
            };
            // What a block reads.
            let bytes = own as usize * part_tiles as usize * tiles::bytes(first.ty)
                + part_tiles as usize * IMAGE_BYTES;
            (part_tiles <= MOST_PART_TILES && few.parts == parts && row_tiles > 0).then_some((bytes, few))
        };
        let most_parts = if in_parts && !gated { MOST_PARTS } else { 1 };
        (1..=most_parts).filter_map(shape).min_by_key(|(bytes, _)| *bytes).map(|(_, few)| few)
    }
}

/// Bytes of the image of some columns, and of the squares of a norm behind it.
pub(super) fn scratch_bytes(cols: u32) -> usize {
    image_bytes(cols) + 4 * (MOST_ROWS * norm_parts(cols)) as usize
}

fn image_bytes(cols: u32) -> usize {
    cols.div_ceil(tiles::COLS) as usize * IMAGE_BYTES
}

/// Blocks that make a row of the image, each of which leaves a sum of squares.
fn norm_parts(cols: u32) -> u32 {
    cols.div_ceil(tiles::COLS).div_ceil(PACK_TILES)
}

impl Resolver<'_> {
    /// The launches of large products of a few rows: the image at `image`, and the products.
    pub(super) fn few(
        &self,
        few: &Few,
        products: &Products,
        matrices: &[Matrix],
        acts: &ActsArgs,
        image: u64,
    ) -> Result<[Launch; 2], RunError> {
        let graph = &self.plan.graph;
        let out = self.value(graph.node(products.glu.unwrap_or(matrices[0].node)).outs[0])?;
        let squares = if products.norm.is_some() { image + image_bytes(acts.cols) as u64 } else { 0 };
        let packed = ActsArgs { out: Mut::new(image), scale: Mut::new(squares), ..*acts };
        let (rows, parts) = (out.most, norm_parts(acts.cols));
        let pack = Launch::new(Kernel::new("acts", "pack_few"), [rows, parts, 1], PACK_THREADS, &packed);
        let mut seg = [Segment::EMPTY; 2];
        for (segment, matrix) in seg.iter_mut().zip(matrices) {
            *segment = self.segment(matrix, out.out(), None)?;
        }
        let slab = u64::from(rows) * u64::from(seg[0].rows);
        if few.parts > 1 {
            let tails = Tails { first: self.workspace.summands, count: few.parts - 1, slab };
            seg[0].tail = Mut::new(tails.first);
            self.parts.borrow_mut().insert(graph.node(matrices[0].node).outs[0], tails);
            self.workspace.need_summands(4 * slab as usize * (few.parts - 1) as usize);
        }
        let args = FewArgs {
            seg,
            tokens: acts.rows,
            acts: Ptr::new(image),
            squares: Ptr::new(squares),
            slab,
            k_tiles: acts.k_tiles,
            part_tiles: few.part_tiles,
            gate: products.gate_kind(graph),
            norm_parts: parts,
            norm_cols: acts.cols,
            eps: acts.eps,
        };
        Ok([pack, Launch::new(few.kernel, [few.grid, 1, 1], THREADS, &args).shared(few.shared)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Rows;
    use wootz_graph::op::Linear;
    use wootz_graph::{NodeId, WeightId};

    /// How a device with 132 multiprocessors multiplies some matrices of these rows and columns.
    fn of(ty: WeightType, n: usize, rows: u32, cols: u32, in_parts: bool, shared: u32) -> Option<Few> {
        let linear = Linear { weight: WeightId(0), first: 0, rows, bias: None };
        let matrices = vec![Matrix { node: NodeId(0), linear, ty }; n];
        let x = Value { address: 0, rows: Rows::Tokens, cols, most: 8 };
        Few::new(&matrices, x, n == 2, in_parts, 132, shared)
    }

    #[test]
    fn large_products_of_many_columns_are_cut() {
        let down = of(WeightType::Q4_K, 1, 3584, 18944, true, 227 << 10).unwrap();
        assert_eq!((down.parts, down.part_tiles, down.grid), (5, 15, 130));
        let gate = of(WeightType::Q4_K, 2, 18944, 3584, true, 227 << 10).unwrap();
        assert_eq!((gate.parts, gate.part_tiles, gate.grid), (1, 14, 132));
        // Rooms, the image, and sums of seven steps of 9 pairs of row tiles.
        assert_eq!(gate.shared, 16 * 2560 + 14 * 2816 + 18 * 7 * 512);
    }

    #[test]
    fn others_are_left_to_other_kernels() {
        assert_eq!(of(WeightType::Q6_K, 1, 3584, 18944, true, 227 << 10), None, "scales of 16 columns");
        assert_eq!(of(WeightType::Q4_K, 1, 3584, 3584, true, 227 << 10), None, "small");
        assert_eq!(
            of(WeightType::Q4_K, 1, 3584, 18944, false, 227 << 10),
            None,
            "too wide for whole results"
        );
        assert_eq!(
            of(WeightType::Q4_K, 2, 18944, 11520, true, 99 << 10),
            None,
            "no room for a gate's columns"
        );
    }

    #[test]
    fn sums_that_do_not_fit_come_one_after_the_other() {
        let head = of(WeightType::Q4_K, 1, 152_064, 3584, false, 99 << 10).unwrap();
        assert!(head.shared <= 99 << 10, "{head:?}");
        assert_eq!((head.parts, head.grid), (1, 132));
    }
}
