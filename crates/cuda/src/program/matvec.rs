//! Launches of the products of one row.

use wootz_graph::op::{Linear, Op};
use wootz_graph::{NodeId, RunError, Step, ValueId};
use wootz_quant::WeightType;

use super::{Resolver, Value};
use crate::args::{MatvecArgs, Mut, Ptr, Segment};
use crate::fuse::Products;
use crate::machine::{Kernel, Launch};
use crate::tiles::{self, typed};

/// Matrices of one launch at most.
pub(super) const SEGMENTS: usize = 3;
/// Threads of a block.
pub(super) const THREADS: u32 = 512;
/// Bytes of shared memory next to the activations: sums on their way, of an even number of row tiles as far as there is
/// room, and what is left over. Less of it leaves more of the nearest cache: 18 row tiles were slower by 3 % than 6. But a
/// block whose row tiles fit a few more does them all at once.
const SUM_BYTES: usize = 4096;
const MOST_SUMS: usize = 6;
const MOST_SUMS_AT_ONCE: usize = 12;
const OTHER_BYTES: usize = 640;

/// How a kernel gets its activations, in the order of its source.
#[derive(Clone, Copy)]
pub(super) enum Input {
    Ready = 0,
    Quantize = 1,
    RmsNorm = 2,
}

/// A matrix of a step, and its value.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub(super) node: NodeId,
    pub(super) linear: Linear,
    pub(super) ty: WeightType,
}

impl Resolver<'_> {
    /// The matrices of a step's products, those of one kernel together.
    pub(super) fn matrices(&self, products: &Products) -> Result<Vec<Matrix>, RunError> {
        let matrix = |id: &NodeId| match &self.plan.graph.node(*id).op {
            Op::Linear(linear) => {
                let ty = self.weights.table().info(linear.weight).ty;
                Ok(Matrix { node: *id, linear: *linear, ty })
            }
            op => Err(RunError::Plan(format!("{} is no product", op.name()))),
        };
        products.linears.iter().map(matrix).collect()
    }

    /// A matrix as kernels take it; `out` and its second summand are of the caller.
    pub(super) fn segment(
        &self,
        matrix: &Matrix,
        out: Mut<f32>,
        tail: Option<u64>,
    ) -> Result<Segment, RunError> {
        let Linear { weight, first, rows, bias } = matrix.linear;
        let (_, tiles) = self.weights.tiles(weight, first)?;
        Ok(Segment {
            tiles,
            bias: self.weights.vector(bias, first)?,
            out,
            tail: tail.map_or(Mut::NULL, Mut::new),
            rows,
            row_tiles: rows.div_ceil(tiles::ROWS),
        })
    }

    /// The launches of products of one row.
    pub(super) fn matvec(&self, step: &Step) -> Result<Vec<Launch>, RunError> {
        let graph = &self.plan.graph;
        let products = Products::of(graph, &step.nodes);
        let (x, y) = products.input(graph);
        let (input, norm, eps) = match products.norm.map(|n| &graph.node(n).op) {
            Some(Op::Norm(norm)) => (Input::RmsNorm, self.weights.vector(norm.weight, 0)?, norm.eps),
            _ if self.forms.is_acts(x) => (Input::Ready, Ptr::NULL, 0.0),
            _ => (Input::Quantize, Ptr::NULL, 0.0),
        };
        let value = self.value(x)?;
        let mut args = MatvecArgs {
            y: y.map(|y| self.value(y)).transpose()?.map_or(Ptr::NULL, |y| y.ptr()),
            y_tail: y.and_then(|y| self.forms.tail(y, self.tails)).map_or(Ptr::NULL, Ptr::new),
            x_out: self.kept_sum(step, &products)?,
            norm,
            eps,
            ..MatvecArgs::new(input, value.address, value.cols)
        };
        let matrices = self.matrices(&products)?;
        if let Some(glu) = products.glu {
            let Op::Glu(activation) = &graph.node(glu).op else {
                return Err(RunError::Plan("a gated product without its gate".into()));
            };
            let (id, ty) = (graph.node(glu).outs[0], matrices[0].ty);
            let out = self.value(id)?;
            for (segment, matrix) in args.seg.iter_mut().zip(&matrices) {
                *segment = self.segment(matrix, out.out(), None)?;
            }
            (args.segs, args.gate) = (2, *activation as u32);
            if self.forms.is_acts(id) {
                args.acts_out = out.out();
            }
            let kernel = typed!(one "matvec", "matvec_glu_", ty, "")?;
            return Ok(vec![self.matvec_launch(kernel, ty, (args.seg[0].row_tiles, 2), &args)]);
        }
        let mut launches = Vec::new();
        for group in groups(matrices, true) {
            let kernel = match types(&group) {
                (WeightType::Q4_K, Some(WeightType::Q6_K)) => Kernel::new("matvec", "matvec_q4_k_q6_k"),
                (WeightType::Q5_K, Some(WeightType::Q6_K)) => Kernel::new("matvec", "matvec_q5_k_q6_k"),
                (ty, _) => typed!(one "matvec", "matvec_", ty, "")?,
            };
            let mut row_tiles = 0;
            args.split = 1;
            args.seg = [Segment::EMPTY; SEGMENTS];
            for (segment, matrix) in args.seg.iter_mut().zip(&group) {
                let id = graph.node(matrix.node).outs[0];
                let tail = self.forms.tail(id, self.tails);
                *segment = self.segment(matrix, self.value(id)?.out(), tail)?;
                row_tiles += segment.row_tiles;
                args.split &= u32::from(tail.is_some());
            }
            args.segs = group.len() as u32;
            launches.push(self.matvec_launch(kernel, group[0].ty, (row_tiles, 1), &args));
            // The sum is kept by the first launch; the others make it again for themselves.
            args.x_out = Mut::NULL;
        }
        Ok(launches)
    }

    /// Where a step's sum is kept, if something else reads it.
    pub(super) fn kept_sum(&self, step: &Step, products: &Products) -> Result<Mut<f32>, RunError> {
        self.kept(step, products.add.map(|n| self.plan.graph.node(n).outs[0]))
    }

    /// Where a value is kept, if something outside the step reads it.
    pub(super) fn kept(&self, step: &Step, value: Option<ValueId>) -> Result<Mut<f32>, RunError> {
        let kept = value.filter(|value| step.outs.contains(value));
        Ok(kept.map(|sum| self.value(sum)).transpose()?.map_or(Mut::NULL, |sum: Value| sum.out()))
    }

    /// `tiles_a_row`: 2 for gated products, which take row tiles in pairs.
    pub(super) fn matvec_launch(
        &self,
        kernel: Kernel,
        ty: WeightType,
        (row_tiles, tiles_a_row): (u32, u32),
        args: &MatvecArgs,
    ) -> Launch {
        let acts = if tiles::is_float(ty) { 4 * tiles::COLS as usize } else { tiles::acts_bytes(1) };
        // All experts of a row have activations of their own, but those that gated products share.
        let copies = if tiles_a_row == 1 { args.used.max(1) } else { 1 };
        let others = (copies * args.k_tiles) as usize * acts + OTHER_BYTES;
        let room = (self.properties.shared_per_block as usize).saturating_sub(others);
        let blocks = self.properties.multiprocessors.min(row_tiles);
        // Cut evenly, a block may begin and end within a row tile.
        let own = (tiles_a_row * row_tiles.div_ceil(blocks) + args.split).next_multiple_of(2) as usize;
        let sums = if own <= MOST_SUMS_AT_ONCE { own.max(MOST_SUMS) } else { MOST_SUMS };
        let shared = others + SUM_BYTES * (room / SUM_BYTES / 2 * 2).min(sums).max(2);
        Launch::new(kernel, [blocks, 1, 1], THREADS, args).shared(shared)
    }
}

impl MatvecArgs {
    /// Products of activations at an address, with no matrices yet.
    pub(super) fn new(input: Input, address: u64, cols: u32) -> MatvecArgs {
        MatvecArgs {
            seg: [Segment::EMPTY; SEGMENTS],
            acts: Ptr::new(address),
            x: Ptr::new(address),
            y: Ptr::NULL,
            y_tail: Ptr::NULL,
            x_out: Mut::NULL,
            norm: Ptr::NULL,
            residual: Ptr::NULL,
            acts_out: Mut::NULL,
            experts: Ptr::NULL,
            weights: Ptr::NULL,
            expert_bytes: 0,
            eps: 0.0,
            input: input as u32,
            segs: 0,
            cols,
            k_tiles: cols.div_ceil(tiles::COLS),
            split: 0,
            gate: 0,
            used: 0,
            alpha: 0.0,
            limit: 0.0,
        }
    }
}

impl Segment {
    pub(super) const EMPTY: Segment =
        Segment { tiles: Ptr::NULL, bias: Ptr::NULL, out: Mut::NULL, tail: Mut::NULL, rows: 0, row_tiles: 0 };
}

/// The matrices of each launch: some of one type, or one of a second type at the end where kernels have both.
pub(super) fn groups(matrices: Vec<Matrix>, mixes: bool) -> Vec<Vec<Matrix>> {
    let mut rest = matrices;
    let mut groups = Vec::new();
    while let Some(first) = rest.first() {
        let ty = first.ty;
        let (mut own, others): (Vec<Matrix>, Vec<Matrix>) = rest.into_iter().partition(|m| m.ty == ty);
        rest = others;
        let both = mixes && own.len() < SEGMENTS && rest.len() == 1 && have_both(ty, rest[0].ty);
        if both {
            own.append(&mut rest);
        }
        groups.extend(own.chunks(SEGMENTS).map(<[Matrix]>::to_vec));
    }
    groups
}

/// Whether kernels multiply matrices of one type and a last one of another.
fn have_both(ty: WeightType, last: WeightType) -> bool {
    matches!(ty, WeightType::Q4_K | WeightType::Q5_K) && last == WeightType::Q6_K
}

/// The types of a group: of the first matrices and, if it is another, of the last.
pub(super) fn types(group: &[Matrix]) -> (WeightType, Option<WeightType>) {
    let first = group[0].ty;
    (first, group.last().map(|m| m.ty).filter(|ty| *ty != first))
}
