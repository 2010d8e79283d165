//! Launches of large products of up to 8 rows: in whole numbers, with int8 activations.
//!
//! From attention to the products behind the next norm there is one kernel, where these are such products: attention leaves
//! the int8 image of its result, the product with it adds its results to the row and leaves the image of the norm.

use wootz_graph::op::Op;
use wootz_graph::{CacheLayout, Graph, RunError, Step, ValueId};
use wootz_quant::WeightType;

use super::matvec::{Matrix, THREADS, groups};
use super::{Forms, Resolver, Tails, Value, attend};
use crate::args::{ActsArgs, FewArgs, Mut, Ptr, Segment};
use crate::fuse::{Attend, Products};
use crate::machine::{Kernel, Launch, Properties};
use crate::select;
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

/// Rows that have one scale in the image of results.
const SCALED_ROWS: u32 = 32;

/// What a kernel does with its results.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Writes them.
    Plain,
    /// Multiplies those of two matrices, one behind a gate.
    Gated,
    /// Adds them to a row.
    Added,
}

/// The kernel for a type, and bytes of the room of a warp.
fn kernel(ty: WeightType, kind: Kind) -> Option<(Kernel, usize)> {
    let (name, room) = match (ty, kind) {
        (WeightType::Q4_K, Kind::Plain) => ("few_q4_k", 2560),
        (WeightType::Q4_K, Kind::Gated) => ("few_glu_q4_k", 2560),
        (WeightType::Q4_K, Kind::Added) => ("few_add_q4_k", 2560),
        (WeightType::Q5_K, Kind::Plain) => ("few_q5_k", 3072),
        (WeightType::Q5_K, Kind::Gated) => ("few_glu_q5_k", 3072),
        (WeightType::Q5_K, Kind::Added) => ("few_add_q5_k", 3072),
        (WeightType::Q6_K, Kind::Plain) => ("few_q6_k", 4096),
        _ => return None,
    };
    Some((Kernel::new("few", name), room))
}

impl FewArgs {
    /// Of no matrix.
    const EMPTY: FewArgs = FewArgs {
        seg: [Segment::EMPTY; 2],
        tokens: Ptr::NULL,
        acts: Ptr::NULL,
        squares: Ptr::NULL,
        x: Ptr::NULL,
        x_out: Mut::NULL,
        norm: Ptr::NULL,
        image_out: Mut::NULL,
        squares_out: Mut::NULL,
        slab: 0,
        k_tiles: 0,
        part_tiles: 0,
        gate: 0,
        norm_parts: 0,
        norm_cols: 0,
        eps: 0.0,
        out_parts: 0,
        unused: 0,
    };
}

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
        properties: &Properties,
    ) -> Option<Few> {
        let multiprocessors = properties.multiprocessors;
        let first = matrices.first()?;
        let (kernel, room) = kernel(first.ty, if gated { Kind::Gated } else { Kind::Plain })?;
        // Those of few columns gain nothing with scales of 16 columns.
        if first.ty == WeightType::Q6_K && !in_parts {
            return None;
        }
        let (row_tiles, k_tiles) = (first.linear.rows.div_ceil(tiles::ROWS), x.cols.div_ceil(tiles::COLS));
        let large = matrices.len() as u32 * row_tiles * k_tiles > LARGE * multiprocessors;
        let fits = matrices.len() == if gated { 2 } else { 1 } && x.most <= MOST_ROWS;
        if !large || !fits {
            return None;
        }
        let shape = |parts: u32| {
            let part_tiles = k_tiles.div_ceil(parts);
            let blocks = (multiprocessors / parts).clamp(1, row_tiles);
            let own = row_tiles.div_ceil(blocks);
            let (shared, row_tiles) = shared(properties, room, part_tiles, own as usize * matrices.len());
            let few =
                Few { kernel, part_tiles, parts: k_tiles.div_ceil(part_tiles), grid: blocks * parts, shared };
            // What a block reads.
            let bytes = own as usize * part_tiles as usize * tiles::bytes(first.ty)
                + part_tiles as usize * IMAGE_BYTES;
            (part_tiles <= MOST_PART_TILES && few.parts == parts && row_tiles > 0).then_some((bytes, few))
        };
        let most_parts = if in_parts && !gated { MOST_PARTS } else { 1 };
        (1..=most_parts).filter_map(shape).min_by_key(|(bytes, _)| *bytes).map(|(_, few)| few)
    }

    /// Of one matrix, whose results are added to a row. `None` where there is no such kernel.
    fn added(matrix: &Matrix, x: Value, properties: &Properties) -> Option<Few> {
        let (kernel, room) = kernel(matrix.ty, Kind::Added)?;
        let part_tiles = x.cols.div_ceil(tiles::COLS);
        let pieces = matrix.linear.rows.div_ceil(SCALED_ROWS);
        let grid = properties.multiprocessors.min(pieces);
        let own = pieces.div_ceil(grid) * (SCALED_ROWS / tiles::ROWS);
        let (shared, row_tiles) = shared(properties, room, part_tiles, own as usize);
        let fits = x.most <= MOST_ROWS && part_tiles <= MOST_PART_TILES && row_tiles > 0;
        fits.then_some(Few { kernel, part_tiles, parts: 1, grid, shared })
    }
}

/// Shared memory of a block: rooms of its warps, the image of some tiles of columns, and the sums of all its row tiles or, the
/// second number, of as many as have room: of pairs of them.
fn shared(properties: &Properties, room: usize, part_tiles: u32, own: usize) -> (usize, usize) {
    let sums = (part_tiles.div_ceil(STEP) as usize).min(WARPS) * SUM_BYTES;
    let fixed = WARPS * room + part_tiles as usize * IMAGE_BYTES;
    let most = MOST_SHARED.min(properties.shared_per_block as usize).saturating_sub(fixed) / (2 * sums) * 2;
    let row_tiles = own.next_multiple_of(2).min(most);
    (fixed + row_tiles * sums, row_tiles)
}

/// A product that adds its results to a row, between attention and the products behind the next norm.
#[derive(Clone)]
pub(crate) struct Added {
    /// Where attention leaves the image of its result.
    pub(super) acts: u64,
    pub(super) launch: Launch,
    /// The image of the norm.
    normed: Normed,
}

/// The int8 image of a norm, but for the factors of rows, and their sums of squares, of which each has so many.
#[derive(Clone, Copy)]
struct Normed {
    image: u64,
    squares: u64,
    parts: u32,
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

/// Attention, a product of its result alone, and gated products of the norm of a sum with that.
#[derive(Debug, PartialEq)]
pub(super) struct Joint {
    /// Attention's result.
    from: ValueId,
    product: Products,
    y: ValueId,
    /// What `y` is added to.
    x: ValueId,
    next: Products,
}

impl Joint {
    /// Those that steps begin with; `apart` says that all tokens are of different sequences.
    pub(super) fn at(
        graph: &Graph,
        layout: &CacheLayout,
        forms: &Forms,
        apart: bool,
        steps: &[Step],
    ) -> Option<Joint> {
        let [attention, product, next, ..] = steps else { return None };
        let kernels = [attention, product, next].map(|step| step.kernel);
        if kernels != [select::ATTEND, select::PRODUCTS, select::PRODUCTS] {
            return None;
        }
        let attend = Attend::of(graph, &attention.nodes)?;
        let (product, next) = (Products::of(graph, &product.nodes), Products::of(graph, &next.nodes));
        let from = graph.node(attend.attention).outs[0];
        let [linear] = product.linears[..] else { return None };
        let y = graph.node(linear).outs[0];
        let (x, second) = next.input(graph);
        let alone = product == Products { linears: vec![linear], ..Products::default() }
            && product.input(graph) == (from, None)
            && graph.readers(from).count() == 1
            && !graph.is_output(from);
        // Attention writes whole tiles of the image, and only in steps that it does in one kernel.
        let is_image = apart
            && attend::is_fused(graph, layout, &attend)
            && graph.ty(from).cols().is_multiple_of(tiles::COLS);
        let adds = second == Some(y) && forms.takes_parts(y, apart);
        let fits = alone && is_image && adds && next.norm.is_some() && next.glu.is_some();
        fits.then_some(Joint { from, product, y, x, next })
    }
}

impl Resolver<'_> {
    /// Takes note of the product that adds to a row, if steps begin with attention, it, and products of the norm of the sum.
    pub(super) fn find_added(&self, steps: &[Step]) -> Result<(), RunError> {
        let graph = &self.plan.graph;
        let Some(joint) = Joint::at(graph, self.layout, self.forms, self.apart, steps) else { return Ok(()) };
        let Joint { from, product, y, x, next } = joint;
        let (value, input) = (self.value(x)?, self.value(from)?);
        let (matrices, rest) = (self.matrices(&product)?, groups(self.matrices(&next)?, true));
        let reads = |own: &Vec<Matrix>| Few::new(own, value, true, false, &self.properties).is_some();
        let Some(few) = Few::added(&matrices[0], input, &self.properties) else { return Ok(()) };
        let Some(Op::Norm(norm)) = next.norm.map(|n| &graph.node(n).op) else { return Ok(()) };
        if rest.len() != 1 || !rest.iter().all(reads) {
            return Ok(());
        }
        let acts = self.workspace.images;
        let image = acts + image_bytes(input.cols) as u64;
        let squares = image + image_bytes(value.cols) as u64;
        let parts = value.cols.div_ceil(SCALED_ROWS);
        let bytes = squares - acts + 4 * u64::from(MOST_ROWS * parts);
        self.workspace.need_images(bytes as usize);
        let mut seg = [Segment::EMPTY; 2];
        seg[0] = self.segment(&matrices[0], Mut::NULL, None)?;
        let args = FewArgs {
            seg,
            tokens: self.rows(value.rows),
            acts: Ptr::new(acts),
            x: value.ptr(),
            // The next step's place is free: whatever else lay there was last read by attention, or would be by this product.
            x_out: self.kept_sum(&steps[2], &next)?,
            norm: self.weights.vector(norm.weight, 0)?,
            image_out: Mut::new(image),
            squares_out: Mut::new(squares),
            k_tiles: few.part_tiles,
            part_tiles: few.part_tiles,
            out_parts: parts,
            ..FewArgs::EMPTY
        };
        let launch = Launch::new(few.kernel, [few.grid, 1, 1], THREADS, &args).shared(few.shared);
        let added = Added { acts, launch, normed: Normed { image, squares, parts } };
        self.added.borrow_mut().extend([(from, added.clone()), (y, added)]);
        Ok(())
    }

    /// The product that reads a value in this way, or that leaves it.
    pub(super) fn added(&self, value: ValueId) -> Option<Added> {
        self.added.borrow().get(&value).cloned()
    }

    /// The launches of large products of a few rows: the image at `image`, if the step before has left none, and the products.
    pub(super) fn few(
        &self,
        few: &Few,
        products: &Products,
        matrices: &[Matrix],
        acts: &ActsArgs,
        image: u64,
        left: Option<&Added>,
    ) -> Result<Vec<Launch>, RunError> {
        let graph = &self.plan.graph;
        let out = self.value(graph.node(products.glu.unwrap_or(matrices[0].node)).outs[0])?;
        let rows = out.most;
        let mut launches = Vec::new();
        let Normed { image, squares, parts } = match left {
            Some(added) => added.normed,
            None => {
                let squares = if products.norm.is_some() { image + image_bytes(acts.cols) as u64 } else { 0 };
                let (packed, parts) = (
                    ActsArgs { out: Mut::new(image), scale: Mut::new(squares), ..*acts },
                    norm_parts(acts.cols),
                );
                let pack = Kernel::new("acts", "pack_few");
                launches.push(Launch::new(pack, [rows, parts, 1], PACK_THREADS, &packed));
                Normed { image, squares, parts }
            }
        };
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
            ..FewArgs::EMPTY
        };
        launches.push(Launch::new(few.kernel, [few.grid, 1, 1], THREADS, &args).shared(few.shared));
        Ok(launches)
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
        let properties = Properties { capability: 90, multiprocessors: 132, shared_per_block: shared };
        Few::new(&matrices, x, n == 2, in_parts, &properties)
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
    fn sums_with_a_row_take_pieces_of_32_rows() {
        let linear = Linear { weight: WeightId(0), first: 0, rows: 3584, bias: None };
        let x = Value { address: 0, rows: Rows::Tokens, cols: 3584, most: 8 };
        let of = |ty: WeightType, x: Value, shared_per_block: u32| {
            let properties = Properties { capability: 90, multiprocessors: 132, shared_per_block };
            Few::added(&Matrix { node: NodeId(0), linear, ty }, x, &properties)
        };
        let few = of(WeightType::Q4_K, x, 227 << 10).unwrap();
        // A block for each piece: rooms, the image, and sums of seven steps of two row tiles.
        assert_eq!((few.parts, few.part_tiles, few.grid), (1, 14, 112));
        assert_eq!(few.shared, 16 * 2560 + 14 * 2816 + 2 * 7 * 512);
        assert!(of(WeightType::Q4_K, x, 99 << 10).is_some());
        assert_eq!(of(WeightType::Q4_K, x, 48 << 10), None, "no room for the image");
        assert_eq!(of(WeightType::Q8_0, x, 227 << 10), None, "no kernel");
        assert_eq!(of(WeightType::Q4_K, Value { most: 16, ..x }, 227 << 10), None, "too many rows");
    }

    #[test]
    fn others_are_left_to_other_kernels() {
        assert_eq!(of(WeightType::Q6_K, 1, 152_064, 3584, false, 227 << 10), None, "scales of 16 columns");
        assert_eq!(of(WeightType::Q8_0, 1, 3584, 18944, true, 227 << 10), None, "no kernel");
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
