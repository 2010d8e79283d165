use crate::graph::{Graph, NodeId, Type};
use crate::op::Op;
use crate::plan::Step;
use crate::weights::{WeightId, WeightTable};

/// What a step has to move and compute at least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of weights and caches read, and of values read and written.
    pub bytes: u64,
    /// Multiplications and additions of products and attention.
    pub ops: u64,
}

/// Row counts of a step that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepCounts {
    /// Tokens.
    pub tokens: usize,
    /// Rows returned.
    pub outputs: usize,
    /// Cached positions that a token sees, on average.
    pub span: usize,
    /// Bytes of a cached key element, times 8; and of a value element.
    pub kv_bits: (usize, usize),
}

impl StepCounts {
    fn rows(&self, ty: Type) -> u64 {
        match ty {
            Type::Matrix { rows: crate::Rows::Tokens, .. } => self.tokens as u64,
            Type::Matrix { rows: crate::Rows::Outputs, .. } => self.outputs as u64,
            Type::State => 0,
        }
    }
}

/// The cost of a step of a plan.
pub fn cost(graph: &Graph, weights: &WeightTable, step: &Step, counts: StepCounts) -> Cost {
    let mut total = Cost::default();
    for value in step.ins.iter().chain(&step.outs) {
        let ty = graph.ty(*value);
        total.bytes += counts.rows(ty) * u64::from(ty.cols()) * 4;
    }
    for node in &step.nodes {
        let own = node_cost(graph, weights, *node, counts);
        total.bytes += own.bytes;
        total.ops += own.ops;
    }
    total
}

fn node_cost(graph: &Graph, weights: &WeightTable, node: NodeId, counts: StepCounts) -> Cost {
    let node = graph.node(node);
    let rows = node.ins.first().map_or(0, |v| counts.rows(graph.ty(*v)));
    let product = |weight: WeightId, used_rows: u64| {
        let info = weights.info(weight);
        Cost { bytes: used_rows * info.row_bytes() as u64, ops: 2 * rows * used_rows * info.cols }
    };
    match &node.op {
        Op::Linear(l) => product(l.weight, u64::from(l.rows)),
        Op::ExpertLinear { weight, used, .. } => {
            let info = weights.info(*weight);
            let experts = u64::from(info.experts.max(1));
            let touched = (rows * u64::from(*used)).min(experts);
            let one = info.rows / experts;
            Cost {
                bytes: touched * one * info.row_bytes() as u64,
                ops: 2 * rows * u64::from(*used) * one * info.cols,
            }
        }
        Op::Attention(a) => {
            let spec = &graph.caches[a.cache.0 as usize];
            let span = a.window.map_or(counts.span, |w| counts.span.min(w as usize)) as u64;
            let (k, v) = (u64::from(spec.k_dim), u64::from(spec.v_dim));
            let bits = k * counts.kv_bits.0 as u64 + v * counts.kv_bits.1 as u64;
            Cost {
                bytes: span * u64::from(spec.kv_heads) * bits / 8,
                ops: 2 * rows * u64::from(a.heads) * span * (k + v),
            }
        }
        Op::Scan(s) => {
            let elements = u64::from(s.heads) * u64::from(s.head_dim) * u64::from(s.state);
            // A product each with decay, input and output; the state comes and goes once for a sequence.
            Cost { bytes: 8 * elements, ops: 6 * rows * elements }
        }
        Op::Wkv(w) => {
            let cols = u64::from(graph.ty(node.ins[0]).cols());
            let elements = cols * (cols / u64::from(w.heads.max(1)));
            Cost { bytes: 8 * elements, ops: 6 * rows * elements }
        }
        Op::ShortConv(c) => {
            let cols = u64::from(graph.ty(node.ins[0]).cols());
            let width = u64::from(c.width);
            Cost { bytes: 4 * cols * (2 * (width - 1) + width), ops: 2 * rows * cols * width }
        }
        Op::Embed { table, .. } => Cost { bytes: rows * weights.info(*table).row_bytes() as u64, ops: 0 },
        _ => Cost::default(),
    }
}
