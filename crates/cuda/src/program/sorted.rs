//! Launches of the products of experts: mat-vecs of one row; many rows are sorted by expert first.

use wootz_graph::op::Op;
use wootz_graph::{Graph, NodeId, RunError, Step, WeightId, WeightTable};
use wootz_quant::WeightType;

use super::Resolver;
use super::batch::{GROUP, GROUP_BYTES, MOST_TOKENS, PAIRED, Shape, hopper_shape, ordinary_shape};
use super::matvec::{Input, SEGMENTS};
use crate::args::{
    CombinePlacesArgs, ExpertProductArgs, ExpertTokenBlock, MatvecArgs, Mut, ProductArgs, Ptr, Segment,
    SortArgs, SortedActsArgs,
};
use crate::experts::Experts;
use crate::machine::{Kernel, Launch};
use crate::tiles::{self, typed};

/// Threads of blocks that sort or sum, and of ones that make a row of the image: a warp for each tile, at most.
const THREADS: u32 = 256;
/// Tokens that an expert has on average up to which a block takes 8, 32 and 64 of them. Most experts should need one block,
/// as each reads the weights again.
const FEW: u32 = 4;
const SOME: u32 = 20;
const MANY: u32 = 48;

/// The gated unit of experts as kernels take it: an activation, or the clamped unit where there is a limit.
#[derive(Clone, Copy, Default)]
struct Unit {
    gate: u32,
    alpha: f32,
    limit: f32,
}

impl Unit {
    fn new(op: &Op) -> Result<Unit, RunError> {
        match op {
            Op::Glu(activation) => Ok(Unit { gate: *activation as u32, ..Unit::default() }),
            Op::GluClamped(unit) => Ok(Unit { alpha: unit.alpha, limit: unit.limit, ..Unit::default() }),
            op => Err(RunError::Plan(format!("{} is no gate", op.name()))),
        }
    }
}

/// The weight of a product with chosen experts, its biases, and how many a row has.
fn matrix(graph: &Graph, node: NodeId) -> Result<(WeightId, Option<WeightId>, u32), RunError> {
    match &graph.node(node).op {
        Op::ExpertLinear { weight, bias, used } => Ok((*weight, *bias, *used)),
        op => Err(RunError::Plan(format!("{} is no product of experts", op.name()))),
    }
}

/// Scratch memory of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    /// Where rows go, and lists of tokens with their counts.
    places: usize,
    list: usize,
    counts: usize,
    /// The image of inputs, later of gated values, and the scale of each row.
    image: usize,
    scale: usize,
    /// Gated values and results of all experts, sorted; of one row, gated values as activations or f32.
    gated: usize,
    results: usize,
    bytes: usize,
    /// Groups of 8 rows in the image, and entries of the list, at most.
    groups: u32,
    blocks: u32,
}

/// Widths of a layer's experts, and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    experts: u32,
    used: u32,
    dim: u32,
    ff: u32,
    out: u32,
}

impl Sizes {
    fn new(graph: &Graph, weights: &WeightTable, found: &Experts) -> Result<Sizes, RunError> {
        let ((gate, _, used), (down, ..)) = (matrix(graph, found.gate)?, matrix(graph, found.down)?);
        let (gate, down) = (weights.info(gate), weights.info(down));
        let experts = gate.experts.max(1);
        let out = (down.rows / u64::from(experts)) as u32;
        Ok(Sizes { experts, used, dim: gate.cols as u32, ff: down.cols as u32, out })
    }

    /// The layout for so many rows at most.
    fn layout(&self, rows: u32) -> Layout {
        let mut bytes = 0;
        let mut take = |n: usize| {
            let at = bytes;
            bytes += n.next_multiple_of(256);
            at
        };
        let slots = (rows * self.used) as usize;
        let held = slots.min(self.experts as usize);
        // Each expert's rows are whole groups; a block of tokens may end behind the last one.
        let sorted = (slots + held * (GROUP as usize - 1)).next_multiple_of(GROUP as usize);
        let groups = (sorted + MOST_TOKENS as usize) / GROUP as usize;
        let blocks = held + slots / GROUP as usize;
        let k_tiles = self.dim.max(self.ff).div_ceil(tiles::COLS) as usize;
        let mut layout = Layout {
            places: take(4 * slots),
            list: take(size_of::<ExpertTokenBlock>() * blocks),
            counts: take(8),
            image: take(k_tiles * 4 * groups * GROUP_BYTES),
            scale: take(4 * groups * GROUP as usize),
            gated: take(4 * sorted * self.ff as usize),
            results: take(4 * sorted * self.out as usize),
            bytes: 0,
            groups: groups as u32,
            blocks: blocks as u32,
        };
        layout.bytes = bytes;
        layout
    }
}

/// Scratch memory of a step, in bytes.
pub(crate) fn scratch_bytes(graph: &Graph, weights: &WeightTable, found: &Experts) -> usize {
    let rows = graph.ty(graph.node(found.combine).outs[0]).rows(&graph.key);
    let Ok(sizes) = Sizes::new(graph, weights, found) else { return 0 };
    match rows {
        0 | 1 => (sizes.used * sizes.ff.next_multiple_of(tiles::COLS)) as usize * 4,
        rows => sizes.layout(rows).bytes,
    }
}

impl Resolver<'_> {
    /// The launches of a layer's experts.
    pub(super) fn experts(&self, step: &Step) -> Result<Vec<Launch>, RunError> {
        let graph = &self.plan.graph;
        let missing = || RunError::Plan("experts without their nodes".into());
        let found = Experts::of(graph, &step.nodes).ok_or_else(missing)?;
        let scratch = self.arena + step.scratch.ok_or_else(missing)?.offset as u64;
        let sizes = Sizes::new(graph, self.weights.table(), &found)?;
        let out = graph.node(found.combine).outs[0];
        match self.value(out)?.most {
            0 | 1 => self.experts_of_one(&found, sizes, scratch),
            _ => self.experts_of_many(&found, sizes, scratch),
        }
    }

    /// Two mat-vecs: gate and up of all chosen experts, times their weights; then the sum over all of down.
    fn experts_of_one(&self, found: &Experts, sizes: Sizes, scratch: u64) -> Result<Vec<Launch>, RunError> {
        let graph = &self.plan.graph;
        let [x, ids, weights] = found.inputs(graph);
        let (ids, weights) = (self.value(ids)?, self.value(weights)?);
        let (gate, gate_bytes) = self.expert_segment(found.gate, Mut::new(scratch))?;
        let (up, _) = self.expert_segment(found.up, Mut::NULL)?;
        let ty = self.expert_type(found.gate)?;
        let floats = tiles::is_float(ty);
        let unit = Unit::new(&graph.node(found.glu).op)?;
        let mut args = MatvecArgs {
            experts: ids.ptr(),
            weights: weights.ptr(),
            expert_bytes: gate_bytes,
            segs: 2,
            gate: unit.gate,
            alpha: unit.alpha,
            limit: unit.limit,
            used: sizes.used,
            acts_out: if floats { Mut::NULL } else { Mut::new(scratch) },
            ..MatvecArgs::new(Input::Quantize, self.value(x)?.address, sizes.dim)
        };
        (args.seg[0], args.seg[1]) = (gate, up);
        let kernel = typed!(one "expert_matvec", "expert_matvec_glu_", ty, "")?;
        let first = self.matvec_launch(kernel, ty, (gate.row_tiles * sizes.used, 2), &args);

        let id = graph.node(found.combine).outs[0];
        let tail = self.forms.tail(id, self.tails);
        let (mut down, down_bytes) = self.expert_segment(found.down, self.value(id)?.out())?;
        down.tail = tail.map_or(Mut::NULL, Mut::new);
        let ty = self.expert_type(found.down)?;
        let input = if floats { Input::Quantize } else { Input::Ready };
        let mut args = MatvecArgs {
            experts: ids.ptr(),
            weights: weights.ptr(),
            expert_bytes: down_bytes,
            segs: 1,
            split: u32::from(tail.is_some()),
            used: sizes.used,
            ..MatvecArgs::new(input, scratch, sizes.ff)
        };
        args.seg[0] = down;
        let kernel = typed!(one "expert_matvec", "expert_matvec_", ty, "")?;
        Ok(vec![first, self.matvec_launch(kernel, ty, (down.row_tiles, 1), &args)])
    }

    /// Rows sorted by expert go through the products of many rows; sums over the experts of a row come last.
    fn experts_of_many(&self, found: &Experts, sizes: Sizes, scratch: u64) -> Result<Vec<Launch>, RunError> {
        let graph = &self.plan.graph;
        let [x, ids, weights] = found.inputs(graph);
        let (x, ids, weights) = (self.value(x)?, self.value(ids)?, self.value(weights)?);
        let out = self.value(graph.node(found.combine).outs[0])?;
        let layout = sizes.layout(out.most);
        let place = |offset: usize| scratch + offset as u64;
        let tokens = self.tokens_of_block(out.most, sizes);
        let sort = SortArgs {
            rows: self.rows(out.rows),
            ids: ids.ptr(),
            places: Mut::new(place(layout.places)),
            list: Mut::new(place(layout.list)),
            counts: Mut::new(place(layout.counts)),
            used: sizes.used,
            experts: sizes.experts,
            tokens,
            unused: 0,
        };
        let shared = 4 * sizes.experts as usize;
        let sort =
            Launch::new(Kernel::new("experts", "sort_by_expert"), [sizes.experts, 1, 1], THREADS, &sort)
                .shared(shared);

        // All rows, each to the places of its experts.
        let inputs = SortedActsArgs {
            rows: self.rows(x.rows),
            x: x.ptr(),
            places: Ptr::new(place(layout.places)),
            out: Mut::new(place(layout.image)),
            scale: Mut::new(place(layout.scale)),
            cols: sizes.dim,
            k_tiles: sizes.dim.div_ceil(tiles::COLS),
            groups: layout.groups,
            copies: sizes.used,
        };
        // Gated values stay where they are.
        let sorted = layout.groups * GROUP - MOST_TOKENS;
        let gated = SortedActsArgs {
            rows: Ptr::new(place(layout.counts) + 4),
            x: Ptr::new(place(layout.gated)),
            places: Ptr::NULL,
            cols: sizes.ff,
            k_tiles: sizes.ff.div_ceil(tiles::COLS),
            copies: 1,
            ..inputs
        };
        let (gate_type, down_type) = (self.expert_type(found.gate)?, self.expert_type(found.down)?);
        let products = Sorted { layout, scratch, tokens };
        let (gate, gate_bytes) = self.expert_segment(found.gate, Mut::new(place(layout.gated)))?;
        let (up, _) = self.expert_segment(found.up, Mut::NULL)?;
        let (down, down_bytes) = self.expert_segment(found.down, Mut::new(place(layout.results)))?;
        let combine = CombinePlacesArgs {
            rows: self.rows(out.rows),
            y: Ptr::new(place(layout.results)),
            places: Ptr::new(place(layout.places)),
            weights: weights.ptr(),
            out: out.out(),
            cols: sizes.out,
            used: sizes.used,
        };
        Ok(vec![
            sort,
            pack(gate_type, x.most, &inputs),
            self.expert_product(
                &products,
                gate_type,
                &[gate, up],
                gate_bytes,
                &inputs,
                Unit::new(&graph.node(found.glu).op)?,
            )?,
            pack(down_type, sorted, &gated),
            self.expert_product(&products, down_type, &[down], down_bytes, &gated, Unit::default())?,
            Launch::new(Kernel::new("experts", "combine_places"), [out.most, 1, 1], THREADS, &combine),
        ])
    }

    /// Products of sorted rows: with two matrices gated ones.
    fn expert_product(
        &self,
        sorted: &Sorted,
        ty: WeightType,
        matrices: &[Segment],
        expert_bytes: u64,
        acts: &SortedActsArgs,
        unit: Unit,
    ) -> Result<Launch, RunError> {
        let gated = matrices.len() == 2;
        let shape = self.expert_shape(ty, sorted.tokens, gated)?;
        let mut seg = [Segment::EMPTY; SEGMENTS];
        seg[..matrices.len()].copy_from_slice(matrices);
        let place = |offset: usize| sorted.scratch + offset as u64;
        let args = ExpertProductArgs {
            product: ProductArgs {
                seg,
                tokens: Ptr::NULL,
                acts: Ptr::new(acts.out.address()),
                scale: if ty == WeightType::BF16 { Ptr::NULL } else { Ptr::new(acts.scale.address()) },
                partial: Mut::new(self.workspace.partial),
                counters: Mut::new(self.workspace.counters),
                slab: 0,
                segs: matrices.len() as u32,
                k_tiles: acts.k_tiles,
                groups: acts.groups,
                gate: unit.gate,
                stages: shape.stages,
                factor: tiles::factor(ty),
                parts: 0,
                unused: 0,
            },
            list: Ptr::new(place(sorted.layout.list)),
            blocks: Ptr::new(place(sorted.layout.counts)),
            expert_bytes,
            alpha: unit.alpha,
            limit: unit.limit,
        };
        let grid = self.properties.multiprocessors * shape.paired;
        let row_tiles = if gated { shape.row_tiles / 2 } else { shape.row_tiles };
        let blocks = matrices[0].row_tiles.div_ceil(row_tiles) * sorted.layout.blocks;
        self.workspace.need(shape.partial_bytes(grid), (blocks * shape.warps) as usize);
        Ok(Launch::new(shape.kernel, [grid, 1, 1], shape.threads, &args).shared(shape.shared))
    }

    /// Tokens of an expert that a block takes at once.
    fn tokens_of_block(&self, rows: u32, sizes: Sizes) -> u32 {
        let each = (rows * sizes.used).div_ceil(sizes.experts);
        match each {
            _ if each <= FEW => 8,
            _ if each <= SOME => 32,
            _ if each <= MANY || !self.is_hopper() => 64,
            _ => MOST_TOKENS,
        }
    }

    fn expert_shape(&self, ty: WeightType, tokens: u32, gated: bool) -> Result<Shape, RunError> {
        macro_rules! kernel {
            ($file:literal, $tokens:literal) => {
                match gated {
                    true => typed!(each $file, $file, "glu_", ty, "_", $tokens)?,
                    false => typed!(each $file, $file, "", ty, "_", $tokens)?,
                }
            };
        }
        if self.is_hopper() && tokens > PAIRED {
            let kernel = match tokens {
                32 => kernel!("expert_hopper_", 32),
                64 => kernel!("expert_hopper_", 64),
                _ => kernel!("expert_hopper_", 128),
            };
            return Ok(hopper_shape(kernel, tokens, tiles::bytes(ty), ty));
        }
        let kernel = match tokens {
            8 => kernel!("expert_batch_", 8),
            32 => kernel!("expert_batch_", 32),
            _ => kernel!("expert_batch_", 64),
        };
        let most_shared = self.properties.shared_per_block as usize;
        Ok(ordinary_shape(kernel, tokens, tiles::bytes(ty), ty, most_shared))
    }

    /// The matrices and biases of all experts as kernels take them, and the bytes from one to the next.
    fn expert_segment(&self, node: NodeId, out: Mut<f32>) -> Result<(Segment, u64), RunError> {
        let (weight, bias, _) = matrix(&self.plan.graph, node)?;
        let (shape, tiles) = self.weights.tiles(weight, 0)?;
        let info = self.weights.table().info(weight);
        let rows = (info.rows / u64::from(info.experts.max(1))) as u32;
        let bias = self.weights.vector(bias, 0)?;
        let segment = Segment { tiles, bias, out, rows, row_tiles: shape.row_tiles as u32, ..Segment::EMPTY };
        Ok((segment, shape.expert_bytes() as u64))
    }

    fn expert_type(&self, node: NodeId) -> Result<WeightType, RunError> {
        let (weight, ..) = matrix(&self.plan.graph, node)?;
        Ok(self.weights.table().info(weight).ty)
    }
}

/// Rows of a step sorted by expert.
struct Sorted {
    layout: Layout,
    scratch: u64,
    /// Of a block.
    tokens: u32,
}

/// The launch that makes the image of some rows for products with a type.
fn pack(ty: WeightType, rows: u32, args: &SortedActsArgs) -> Launch {
    let name = if ty == WeightType::BF16 { "pack_sorted_bf16" } else { "pack_sorted_f16" };
    let threads = 32 * args.k_tiles.min(THREADS / 32);
    Launch::new(Kernel::new("experts", name), [rows, 1, 1], threads, args)
}
