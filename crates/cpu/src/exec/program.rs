//! A plan with its steps resolved to weights, shapes and places in the arena.

use std::sync::Arc;

use wootz_graph::op::{Activation, Attention, ClampedGlu, Input, Norm, Op, Rope, Route, Wkv};
use wootz_graph::{CacheId, Graph, Node, Plan, Region, Rows, RunError, Step, Type, ValueId, WeightId};

use super::select;
use super::weights::{Matrix, Weights};
use crate::recurrent::{ConvWeights, ScanWeights};

/// A value in the arena.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// First element, of four bytes.
    pub(super) start: usize,
    pub(super) rows: Rows,
    pub(super) cols: usize,
    /// Elements for the largest step.
    pub(super) capacity: usize,
}

/// One operation of a chain on rows; its first operand is the value at hand.
pub(super) enum RowOp {
    Norm {
        norm: Norm,
        weight: Option<Arc<[f32]>>,
        bias: Option<Arc<[f32]>>,
    },
    Add {
        other: Place,
    },
    AddRow(Arc<[f32]>),
    Mul {
        other: Place,
    },
    MulWeight(Arc<[f32]>),
    /// From the value at hand to `other`, by the sum of `m` and `row`.
    Lerp {
        other: Place,
        m: Option<Place>,
        row: Option<Arc<[f32]>>,
    },
    /// `v` by the scores that the value at hand has with `other`.
    Bonus {
        heads: usize,
        weight: Arc<[f32]>,
        other: Place,
        v: Place,
    },
    /// Activation of the value at hand times `other`, or the other way round.
    Glu {
        activation: Activation,
        other: Place,
        gate_is_other: bool,
    },
    /// As `Glu`, with the unit of gpt-oss.
    GluClamped {
        unit: ClampedGlu,
        other: Place,
        gate_is_other: bool,
    },
    Activate(Activation),
    Scale(f32),
    Softcap(f32),
}

/// A member of a chain.
pub(super) struct ChainLink {
    pub(super) op: RowOp,
    /// Where the result goes, if anything outside the chain reads it.
    pub(super) out: Option<Place>,
}

/// A product with the matrices of chosen experts.
pub(super) struct ExpertProduct {
    /// Of every expert.
    pub(super) matrices: Vec<Arc<Matrix>>,
    /// Summands of every expert `[experts, rows]`.
    pub(super) bias: Option<Arc<[f32]>>,
    /// Rows of a part of each chosen expert.
    pub(super) out: Place,
}

/// A product.
pub(super) struct Product {
    pub(super) matrix: Arc<Matrix>,
    pub(super) bias: Option<Arc<[f32]>>,
    pub(super) out: Place,
}

/// What a step does.
pub(super) enum Kernel {
    Embed {
        table: WeightId,
        scale: f32,
        ids: Place,
        out: Place,
    },
    /// A chain on rows, products, or both.
    Rows {
        source: Place,
        chain: Vec<ChainLink>,
        products: Vec<Product>,
    },
    Rope {
        rope: Rope,
        factors: Option<Arc<[f32]>>,
        x: Place,
        out: Place,
    },
    StoreKv {
        cache: CacheId,
        k: Place,
        v: Place,
    },
    ShortConv {
        cache: CacheId,
        weights: Arc<ConvWeights>,
        x: Place,
        out: Place,
    },
    Shift {
        cache: CacheId,
        x: Place,
        out: Place,
    },
    Wkv {
        wkv: Wkv,
        first: Option<Arc<[f32]>>,
        ins: Vec<Place>,
        out: Place,
    },
    Scan {
        cache: CacheId,
        weights: Arc<ScanWeights>,
        x: Place,
        dt: Place,
        bc: Place,
        out: Place,
    },
    Attention {
        attention: Attention,
        sinks: Option<Arc<[f32]>>,
        q: Place,
        out: Place,
    },
    Join {
        a: Place,
        b: Place,
        out: Place,
    },
    Columns {
        x: Place,
        first: usize,
        out: Place,
    },
    Gather {
        x: Place,
        indices: Place,
        out: Place,
    },
    Route {
        route: Route,
        bias: Option<Arc<[f32]>>,
        scores: Place,
        ids: Place,
        weights: Place,
    },
    ExpertLinear {
        products: Vec<ExpertProduct>,
        used: usize,
        x: Place,
        ids: Place,
    },
    Combine {
        used: usize,
        y: Place,
        weights: Place,
        out: Place,
    },
}

/// A plan that is ready to run.
pub(super) struct Program {
    pub(super) plan: Plan,
    pub(super) kernels: Vec<Kernel>,
    pub(super) inputs: Vec<(Input, Place)>,
    pub(super) output: Option<Place>,
}

impl Program {
    /// Resolves every step of a plan.
    ///
    /// # Errors
    /// The plan was made for another backend, or a weight cannot be read.
    pub(super) fn new(plan: Plan, weights: &mut Weights) -> Result<Program, RunError> {
        let resolver = Resolver { plan: &plan, graph: &plan.graph };
        let kernels = plan.steps.iter().map(|s| resolver.kernel(s, weights)).collect::<Result<_, _>>()?;
        let mut inputs = Vec::new();
        for node in &plan.graph.nodes {
            if let Op::Input(input) = node.op {
                inputs.push((input, resolver.place(node.outs[0])?));
            }
        }
        let output = plan.graph.outputs.first().map(|(_, value)| resolver.place(*value)).transpose()?;
        Ok(Program { kernels, inputs, output, plan })
    }
}

struct Resolver<'a> {
    plan: &'a Plan,
    graph: &'a Graph,
}

impl Resolver<'_> {
    fn place(&self, value: ValueId) -> Result<Place, RunError> {
        match (self.plan.region(value), self.graph.ty(value)) {
            (Some(Region { offset, bytes }), Type::Matrix { rows, cols, .. }) => {
                Ok(Place { start: offset / 4, rows, cols: cols as usize, capacity: bytes / 4 })
            }
            _ => Err(RunError::Plan(format!("value {} has no memory", value.0))),
        }
    }

    fn kernel(&self, step: &Step, weights: &mut Weights) -> Result<Kernel, RunError> {
        if [select::ROWS, select::ROWS_LINEAR, select::LINEAR].contains(&step.kernel) {
            return self.rows(step, weights);
        }
        if step.kernel == select::EXPERTS {
            return self.experts(step, weights);
        }
        let [node] = step.nodes.as_slice() else {
            return Err(RunError::Plan(format!("unknown kernel {}", step.kernel)));
        };
        let node = self.graph.node(*node);
        let in_place = |i: usize| self.place(node.ins[i]);
        let out = |i: usize| self.place(node.outs[i]);
        Ok(match &node.op {
            Op::Embed { table, scale } => {
                Kernel::Embed { table: *table, scale: *scale, ids: in_place(0)?, out: out(0)? }
            }
            Op::Rope(rope) => Kernel::Rope {
                rope: *rope,
                factors: weights.opt_vector(rope.factors)?,
                x: in_place(0)?,
                out: out(0)?,
            },
            Op::StoreKv { cache } => Kernel::StoreKv { cache: *cache, k: in_place(0)?, v: in_place(1)? },
            Op::ShortConv(conv) => Kernel::ShortConv {
                cache: conv.cache,
                weights: weights.conv(conv, self.graph.ty(node.ins[0]).cols())?,
                x: in_place(0)?,
                out: out(0)?,
            },
            Op::Shift { cache } => Kernel::Shift { cache: *cache, x: in_place(0)?, out: out(0)? },
            Op::Wkv(wkv) => Kernel::Wkv {
                wkv: *wkv,
                first: weights.opt_vector(node.op.weights().next())?,
                ins: (0..node.ins.len() - 1).map(in_place).collect::<Result<_, _>>()?,
                out: out(0)?,
            },
            Op::Scan(scan) => Kernel::Scan {
                cache: scan.cache,
                weights: weights.scan(scan)?,
                x: in_place(0)?,
                dt: in_place(1)?,
                bc: in_place(2)?,
                out: out(0)?,
            },
            Op::Attention(attention) => Kernel::Attention {
                attention: *attention,
                sinks: weights.opt_vector(attention.sinks)?,
                q: in_place(0)?,
                out: out(0)?,
            },
            Op::Join => Kernel::Join { a: in_place(0)?, b: in_place(1)?, out: out(0)? },
            Op::Columns { first } => {
                Kernel::Columns { x: in_place(0)?, first: *first as usize, out: out(0)? }
            }
            Op::Gather => Kernel::Gather { x: in_place(0)?, indices: in_place(1)?, out: out(0)? },
            Op::Route(route) => Kernel::Route {
                route: *route,
                bias: weights.opt_vector(route.bias)?,
                scores: in_place(0)?,
                ids: out(0)?,
                weights: out(1)?,
            },
            Op::Combine { used } => {
                Kernel::Combine { used: *used as usize, y: in_place(0)?, weights: in_place(1)?, out: out(0)? }
            }
            op => return Err(RunError::Plan(format!("no kernel {} for {}", step.kernel, op.name()))),
        })
    }

    fn experts(&self, step: &Step, weights: &mut Weights) -> Result<Kernel, RunError> {
        let first = self.graph.node(step.nodes[0]);
        let (mut products, mut chosen) = (Vec::new(), 0);
        for id in &step.nodes {
            let node = self.graph.node(*id);
            let Op::ExpertLinear { weight, bias, used } = &node.op else {
                return Err(RunError::Plan(format!("{} is no product with experts", node.op.name())));
            };
            chosen = *used as usize;
            products.push(ExpertProduct {
                matrices: weights.experts(*weight)?,
                bias: weights.opt_vector(*bias)?,
                out: self.place(node.outs[0])?,
            });
        }
        let (x, ids) = (self.place(first.ins[0])?, self.place(first.ins[1])?);
        Ok(Kernel::ExpertLinear { products, used: chosen, x, ids })
    }

    fn rows(&self, step: &Step, weights: &mut Weights) -> Result<Kernel, RunError> {
        let mut chain = Vec::new();
        let mut products = Vec::new();
        let first = self.graph.node(step.nodes[0]);
        let source = first.ins[0];
        let mut at_hand = source;
        for id in &step.nodes {
            let node = self.graph.node(*id);
            if let Op::Linear(linear) = &node.op {
                products.push(Product {
                    matrix: weights.product(linear.weight, linear.first, linear.rows)?,
                    bias: weights.part_of_vector(linear.bias, linear.first, linear.rows)?,
                    out: self.place(node.outs[0])?,
                });
                continue;
            }
            let op = self.row_op(node, at_hand, weights)?;
            at_hand = node.outs[0];
            let out = if step.outs.contains(&at_hand) { Some(self.place(at_hand)?) } else { None };
            chain.push(ChainLink { op, out });
        }
        Ok(Kernel::Rows { source: self.place(source)?, chain, products })
    }

    fn row_op(&self, node: &Node, at_hand: ValueId, weights: &mut Weights) -> Result<RowOp, RunError> {
        let other = || -> Result<Place, RunError> {
            let second = node.ins[0] == at_hand;
            self.place(node.ins[usize::from(second)])
        };
        Ok(match &node.op {
            Op::Norm(norm) => RowOp::Norm {
                norm: *norm,
                weight: weights.opt_vector(norm.weight)?,
                bias: weights.opt_vector(norm.bias)?,
            },
            Op::Add => RowOp::Add { other: other()? },
            Op::AddRow { table, row } => RowOp::AddRow(weights.row_vector(*table, *row)?),
            Op::Glu(activation) => {
                RowOp::Glu { activation: *activation, other: other()?, gate_is_other: node.ins[0] != at_hand }
            }
            Op::GluClamped(unit) => {
                RowOp::GluClamped { unit: *unit, other: other()?, gate_is_other: node.ins[0] != at_hand }
            }
            Op::Activate(activation) => RowOp::Activate(*activation),
            Op::Mul => RowOp::Mul { other: other()? },
            Op::MulWeight { weight } => RowOp::MulWeight(weights.vector(*weight)?),
            Op::Lerp(lerp) => RowOp::Lerp {
                other: self.place(node.ins[1])?,
                m: node.ins.get(2).map(|m| self.place(*m)).transpose()?,
                row: lerp.row.map(|(table, row)| weights.row_vector(table, row)).transpose()?,
            },
            Op::Bonus(bonus) => RowOp::Bonus {
                heads: bonus.heads as usize,
                weight: weights.vector(bonus.weight)?,
                other: self.place(node.ins[1])?,
                v: self.place(node.ins[2])?,
            },
            Op::Scale { factor } => RowOp::Scale(*factor),
            Op::Softcap { cap } => RowOp::Softcap(*cap),
            op => return Err(RunError::Plan(format!("{} does not work on rows", op.name()))),
        })
    }
}
