//! Nodes that the fast kernels run together.

use wootz_graph::op::{Activation, Norm, NormKind, Op};
use wootz_graph::{Graph, NodeId, ValueId, WeightTable};

use crate::select::Kernels;
use crate::tiles;

/// Columns that a kernel of products can normalise itself.
const MOST_NORM_COLS: u32 = 8192;

/// Tokens of different sequences whose attention is one kernel.
const MOST_SINGLE_TOKENS: u32 = 64;

/// Products of one input, with the sum and the norm before them and the gate after them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Products {
    pub(crate) add: Option<NodeId>,
    pub(crate) norm: Option<NodeId>,
    pub(crate) linears: Vec<NodeId>,
    pub(crate) glu: Option<NodeId>,
}

impl Products {
    /// The products that begin at a node.
    pub(crate) fn at(graph: &Graph, weights: &WeightTable, at: NodeId) -> Option<Products> {
        let mut found = Products::default();
        let node = graph.node(at);
        let x = match &node.op {
            Op::Linear(_) => node.ins[0],
            _ => {
                let (add, norm) = norm_at(graph, at)?;
                (found.add, found.norm) = (add, Some(norm));
                graph.node(norm).outs[0]
            }
        };
        let served = |n: &NodeId| {
            let op = &graph.node(*n).op;
            let weight = op.weights().next().map(|w| weights.info(w));
            matches!(op, Op::Linear(_)) && weight.is_some_and(|info| tiles::serve(Kernels::Fast, op, info))
        };
        found.linears = graph.readers(x).filter(served).collect();
        // What is normalised inside a kernel is nowhere else.
        let all = found.linears.len() == graph.readers(x).count() && !graph.is_output(x);
        if found.linears.is_empty() || (found.norm.is_some() && !all) || !found.covers().contains(&at) {
            return None;
        }
        found.glu = found.gate(graph, weights);
        Some(found)
    }

    /// The products of a step that covers these nodes.
    pub(crate) fn of(graph: &Graph, nodes: &[NodeId]) -> Products {
        let mut found = Products::default();
        for id in nodes {
            match &graph.node(*id).op {
                Op::Add => found.add = Some(*id),
                Op::Norm(_) => found.norm = Some(*id),
                Op::Glu(_) => found.glu = Some(*id),
                _ => found.linears.push(*id),
            }
        }
        found
    }

    /// All nodes, in the order of the graph.
    pub(crate) fn covers(&self) -> Vec<NodeId> {
        let nodes = self.add.iter().chain(&self.norm).chain(&self.linears).chain(&self.glu);
        let mut nodes: Vec<NodeId> = nodes.copied().collect();
        nodes.sort();
        nodes
    }

    /// The value that is multiplied, before the norm; with a sum, its two summands.
    pub(crate) fn input(&self, graph: &Graph) -> (ValueId, Option<ValueId>) {
        if let Some(add) = self.add {
            let ins = &graph.node(add).ins;
            return (ins[0], Some(ins[1]));
        }
        let first = self.norm.unwrap_or(self.linears[0]);
        (graph.node(first).ins[0], None)
    }

    /// The activation of the gated unit, as kernels know it; 0 without one.
    pub(crate) fn gate_kind(&self, graph: &Graph) -> u32 {
        match self.glu.map(|n| &graph.node(n).op) {
            Some(Op::Glu(activation)) => *activation as u32,
            _ => 0,
        }
    }

    /// A gated unit that alone reads two products of one shape and type.
    fn gate(&self, graph: &Graph, weights: &WeightTable) -> Option<NodeId> {
        let [a, b] = self.linears[..] else { return None };
        let (a, b) = (graph.node(a), graph.node(b));
        let (Op::Linear(first), Op::Linear(second)) = (&a.op, &b.op) else { return None };
        let glu = graph.readers(a.outs[0]).next()?;
        let node = graph.node(glu);
        let alone = |v: ValueId| graph.readers(v).count() == 1 && !graph.is_output(v);
        let fits = is_gate(&node.op)
            && node.ins == [a.outs[0], b.outs[0]]
            && alone(a.outs[0])
            && alone(b.outs[0])
            && first.rows == second.rows
            && weights.info(first.weight).ty == weights.info(second.weight).ty;
        fits.then_some(glu)
    }
}

/// Whether the kernels of products have the unit.
fn is_gate(op: &Op) -> bool {
    matches!(op, Op::Glu(activation) if *activation != Activation::Sigmoid)
}

/// The norm that begins at a node, with the sum before it where the node is one, if kernels of products can do it.
pub(crate) fn norm_at(graph: &Graph, at: NodeId) -> Option<(Option<NodeId>, NodeId)> {
    let node = graph.node(at);
    if matches!(node.op, Op::Add) {
        let norm = graph.readers(node.outs[0]).find(|n| fuses(graph, *n))?;
        return Some((Some(at), norm));
    }
    fuses(graph, at).then_some((None, at))
}

/// Whether a node is a norm that kernels of products can do.
fn fuses(graph: &Graph, at: NodeId) -> bool {
    let node = graph.node(at);
    let Op::Norm(norm) = &node.op else { return false };
    let Norm { kind, groups, weight, bias, .. } = norm;
    *kind == NormKind::Rms
        && *groups == 1
        && weight.is_some()
        && bias.is_none()
        && graph.ty(node.ins[0]).cols() <= MOST_NORM_COLS
}

/// Attention of a step whose tokens are of different sequences, with what happens to query, key and value before.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Attend {
    pub(crate) attention: NodeId,
    pub(crate) store: NodeId,
    pub(crate) q_norm: Option<NodeId>,
    pub(crate) k_norm: Option<NodeId>,
    /// Of query and key.
    pub(crate) ropes: Option<(NodeId, NodeId)>,
}

impl Attend {
    /// The attention whose first node this is.
    pub(crate) fn at(graph: &Graph, at: NodeId) -> Option<Attend> {
        // As many sequences as tokens: usually a token of each.
        if graph.key.tokens > graph.key.seqs || graph.key.tokens > MOST_SINGLE_TOKENS {
            return None;
        }
        // Query and key are a few nodes apart from their attention at most.
        let near = graph.iter().skip(at.0 as usize).take(12);
        let attention = near.map(|(id, _)| id).find(|id| matches!(graph.node(*id).op, Op::Attention(_)))?;
        Attend::before(graph, attention).filter(|found| found.covers().first() == Some(&at))
    }

    /// The attention of a step that covers these nodes.
    pub(crate) fn of(graph: &Graph, nodes: &[NodeId]) -> Option<Attend> {
        let attention = nodes.iter().find(|id| matches!(graph.node(**id).op, Op::Attention(_)))?;
        Attend::before(graph, *attention)
    }

    /// All nodes, in the order of the graph.
    pub(crate) fn covers(&self) -> Vec<NodeId> {
        let mut nodes = vec![self.attention, self.store];
        nodes.extend(self.q_norm.iter().chain(&self.k_norm));
        nodes.extend(self.ropes.iter().flat_map(|(q, k)| [q, k]));
        nodes.sort();
        nodes
    }

    /// Query, key and value as they come from products.
    pub(crate) fn inputs(&self, graph: &Graph) -> [ValueId; 3] {
        let (q_rope, k_rope) = self.ropes.unzip();
        let first = |norm: Option<NodeId>, rope: Option<NodeId>, reader: NodeId| {
            graph.node(norm.or(rope).unwrap_or(reader)).ins[0]
        };
        let q = first(self.q_norm, q_rope, self.attention);
        [q, first(self.k_norm, k_rope, self.store), graph.node(self.store).ins[1]]
    }

    fn before(graph: &Graph, attention: NodeId) -> Option<Attend> {
        let node = graph.node(attention);
        let Op::Attention(attributes) = &node.op else { return None };
        let store = graph.producer(node.ins[1])?;
        let Op::StoreKv { cache } = graph.node(store).op else { return None };
        if cache != attributes.cache || !attributes.causal {
            return None;
        }
        let kv_heads = graph.caches[cache.0 as usize].kv_heads;
        let (q_rope, q_norm) = chain(graph, node.ins[0], attributes.heads);
        let (k_rope, k_norm) = chain(graph, graph.node(store).ins[0], kv_heads);
        let ropes = match (q_rope, k_rope) {
            (None, None) => None,
            (Some(q), Some(k)) => {
                let (Op::Rope(of_q), Op::Rope(of_k)) = (&graph.node(q).op, &graph.node(k).op) else {
                    return None;
                };
                let same = wootz_graph::op::Rope { heads: of_q.heads, ..*of_k } == *of_q;
                same.then_some(Some((q, k)))?
            }
            _ => return None,
        };
        Some(Attend { attention, store, q_norm, k_norm, ropes })
    }
}

/// The rotary embedding and, before it, the norm of each of `heads` heads that make a value which nothing else reads.
fn chain(graph: &Graph, value: ValueId, heads: u32) -> (Option<NodeId>, Option<NodeId>) {
    let maker = |value: ValueId| {
        let alone = graph.readers(value).count() == 1 && !graph.is_output(value);
        graph.producer(value).filter(|_| alone)
    };
    let rope = maker(value).filter(|n| matches!(graph.node(*n).op, Op::Rope(_)));
    let before = rope.map_or(value, |n| graph.node(n).ins[0]);
    let norm = maker(before).filter(|n| {
        let Op::Norm(norm) = &graph.node(*n).op else { return false };
        norm.kind == NormKind::Rms && norm.weight.is_some() && norm.bias.is_none() && norm.groups == heads
    });
    (rope, norm)
}
