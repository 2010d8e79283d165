//! The router of a layer's experts, and the experts, as the fast kernels take them.

use wootz_graph::op::{Activation, Op};
use wootz_graph::{Graph, NodeId, ValueId, WeightId, WeightTable};
use wootz_quant::WeightType;

use crate::fuse::norm_at;
use crate::tiles;

/// Experts of a row at most: lanes of a warp.
const MOST_USED: u32 = 32;
/// Bytes of the activations of all experts of a row at most, so that they fit the shared memory of every device.
const MOST_ACTS: usize = 64 << 10;

/// The choice of experts, with the router's product and the norm, and a sum, before it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Router {
    pub(crate) add: Option<NodeId>,
    pub(crate) norm: NodeId,
    pub(crate) linear: NodeId,
    pub(crate) route: NodeId,
}

impl Router {
    /// The router that begins at a node.
    pub(crate) fn at(graph: &Graph, weights: &WeightTable, at: NodeId) -> Option<Router> {
        let (add, norm) = norm_at(graph, at)?;
        graph.readers(graph.node(norm).outs[0]).find_map(|linear| {
            let node = graph.node(linear);
            let Op::Linear(attributes) = &node.op else { return None };
            let route = only_reader(graph, node.outs[0])?;
            let fits = attributes.first == 0 && is_f32(weights, attributes.weight);
            let routes = matches!(graph.node(route).op, Op::Route(_));
            (fits && routes).then_some(Router { add, norm, linear, route })
        })
    }

    /// The router of a step that covers these nodes.
    pub(crate) fn of(graph: &Graph, nodes: &[NodeId]) -> Option<Router> {
        let find = |is: fn(&Op) -> bool| nodes.iter().copied().find(|n| is(&graph.node(*n).op));
        Some(Router {
            add: find(|op| matches!(op, Op::Add)),
            norm: find(|op| matches!(op, Op::Norm(_)))?,
            linear: find(|op| matches!(op, Op::Linear(_)))?,
            route: find(|op| matches!(op, Op::Route(_)))?,
        })
    }

    /// All nodes, in the order of the graph.
    pub(crate) fn covers(&self) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self.add.into_iter().collect();
        nodes.extend([self.norm, self.linear, self.route]);
        nodes.sort();
        nodes
    }

    /// The value that is normalised; with a sum, its two summands.
    pub(crate) fn input(&self, graph: &Graph) -> (ValueId, Option<ValueId>) {
        let ins = &graph.node(self.add.unwrap_or(self.norm)).ins;
        (ins[0], self.add.map(|_| ins[1]))
    }
}

/// The gated feed-forward blocks of the chosen experts, and the weighted sum of their results.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Experts {
    pub(crate) gate: NodeId,
    pub(crate) up: NodeId,
    pub(crate) glu: NodeId,
    pub(crate) down: NodeId,
    pub(crate) combine: NodeId,
}

impl Experts {
    /// The experts whose first node this is, if the fast kernels have their types and sizes. That does not depend on the
    /// graph's key: weights are loaded once for all of them.
    pub(crate) fn at(graph: &Graph, weights: &WeightTable, at: NodeId) -> Option<Experts> {
        let found = Experts::around(graph, at)?;
        (found.covers().first() == Some(&at) && found.fit(graph, weights)).then_some(found)
    }

    /// The experts of a step that covers these nodes.
    pub(crate) fn of(graph: &Graph, nodes: &[NodeId]) -> Option<Experts> {
        Experts::around(graph, *nodes.first()?)
    }

    /// All nodes, in the order of the graph.
    pub(crate) fn covers(&self) -> Vec<NodeId> {
        let mut nodes = vec![self.gate, self.up, self.glu, self.down, self.combine];
        nodes.sort();
        nodes
    }

    /// What experts multiply, the chosen ones and the weights of their results.
    pub(crate) fn inputs(&self, graph: &Graph) -> [ValueId; 3] {
        let gate = &graph.node(self.gate).ins;
        [gate[0], gate[1], graph.node(self.combine).ins[1]]
    }

    /// The experts whose gate or up this is.
    fn around(graph: &Graph, at: NodeId) -> Option<Experts> {
        matrix(graph, at)?;
        let glu = only_reader(graph, graph.node(at).outs[0])?;
        if !is_unit(&graph.node(glu).op) {
            return None;
        }
        let [gate, up] = [0, 1].map(|i| graph.producer(graph.node(glu).ins[i]));
        let (gate, up) = (gate?, up?);
        let down = only_reader(graph, graph.node(glu).outs[0])?;
        let combine = only_reader(graph, graph.node(down).outs[0])?;
        let alone = [gate, up].iter().all(|n| only_reader(graph, graph.node(*n).outs[0]) == Some(glu));
        let same_input = graph.node(gate).ins == graph.node(up).ins;
        let same_choice = graph.node(down).ins.get(1) == graph.node(gate).ins.get(1);
        let combines = matches!(graph.node(combine).op, Op::Combine { .. });
        let products = [gate, up, down].iter().all(|n| matrix(graph, *n).is_some());
        let found = Experts { gate, up, glu, down, combine };
        (products && alone && same_input && same_choice && combines).then_some(found)
    }

    /// Whether the fast kernels have the types and sizes.
    fn fit(&self, graph: &Graph, weights: &WeightTable) -> bool {
        let info = |n: NodeId| matrix(graph, n).map(|(weight, used)| (weights.info(weight), used));
        let (Some((gate, used)), Some((up, _)), Some((down, _))) =
            (info(self.gate), info(self.up), info(self.down))
        else {
            return false;
        };
        let width = if tiles::is_float(down.ty) { 4 * tiles::COLS as usize } else { tiles::acts_bytes(1) };
        let acts = |cols: u64| cols.div_ceil(u64::from(tiles::COLS)) as usize * width;
        let shared_input = u64::from(graph.ty(graph.node(self.gate).ins[0]).cols()) == gate.cols;
        shared_input
            && used <= MOST_USED
            && (gate.ty, gate.rows, gate.cols) == (up.ty, up.rows, up.cols)
            && tiles::is_float(gate.ty) == tiles::is_float(down.ty)
            && [gate.ty, down.ty].into_iter().all(serves)
            && [gate.cols, down.cols].iter().all(|cols| cols.is_multiple_of(8))
            && acts(gate.cols).max(used as usize * acts(down.cols)) <= MOST_ACTS
    }
}

/// Whether the kernels of experts have the gated unit.
fn is_unit(op: &Op) -> bool {
    use Activation::*;
    match op {
        // No limit is how they know the others.
        Op::GluClamped(unit) => unit.limit > 0.0,
        op => matches!(op, Op::Glu(Silu | Gelu | GeluQuick)),
    }
}

/// Whether there are fast products of experts of a type.
fn serves(ty: WeightType) -> bool {
    use WeightType::*;
    matches!(ty, Q4_K | Q5_K | Q6_K | Q8_0 | Q4_0 | MXFP4 | BF16)
}

/// Whether a weight is a matrix of f32 that the kernels for such read.
pub(crate) fn is_f32(weights: &WeightTable, weight: WeightId) -> bool {
    let info = weights.info(weight);
    info.ty == WeightType::F32 && info.cols.is_multiple_of(4)
}

/// The weight of a product with chosen experts, and how many a row has.
fn matrix(graph: &Graph, node: NodeId) -> Option<(WeightId, u32)> {
    match &graph.node(node).op {
        Op::ExpertLinear { weight, used, .. } => Some((*weight, *used)),
        _ => None,
    }
}

/// The node that alone reads a value, once, which is no output.
fn only_reader(graph: &Graph, value: ValueId) -> Option<NodeId> {
    let mut readers = graph.readers(value);
    let first = readers.next()?;
    (readers.next().is_none() && !graph.is_output(value)).then_some(first)
}
