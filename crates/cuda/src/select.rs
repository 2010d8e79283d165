//! Which kernels run which nodes.

use wootz_graph::op::Op;
use wootz_graph::{Graph, NodeId, Selection, WeightTable};
use wootz_quant::WeightType;

use crate::experts::{self, Experts, Router};
use crate::fuse::{Attend, Products};
use crate::program::{attend, batch, recurrent, router, sorted};

/// Which kernels a backend chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kernels {
    /// The fastest for each operation.
    #[default]
    Fast,
    /// One plain kernel for each operation: slow, and what the fast ones are compared with.
    Simple,
}

/// A sum and the norm of it.
pub(crate) const ADD_NORM: &str = "add+norm";
/// Products of one row.
pub(crate) const MATVEC: &str = "matvec";
/// Products of many rows.
pub(crate) const PRODUCTS: &str = "products";
/// Products with a matrix of f32.
pub(crate) const LINEAR_F32: &str = "linear-f32";
/// The choice of few rows' experts, with what comes before it.
pub(crate) const ROUTER: &str = "router";
/// Chosen experts, and the weighted sum of their results.
pub(crate) const EXPERTS: &str = "experts";
/// Attention of tokens of different sequences, with what happens to query, key and value before.
pub(crate) const ATTEND: &str = "attend";

/// The kernel for a node and the nodes that it runs with it.
pub(crate) fn select(
    kernels: Kernels,
    graph: &Graph,
    weights: &WeightTable,
    at: NodeId,
) -> Option<Selection> {
    let node = graph.node(at);
    if matches!(node.op, Op::Input(_)) {
        return None;
    }
    if kernels == Kernels::Fast
        && let Some(selection) = fast(graph, weights, at)
    {
        return Some(selection);
    }
    let single = Selection::single(node.op.name(), at);
    Some(match &node.op {
        Op::Add => sum(graph, at).unwrap_or(over(single, graph, at)),
        Op::Linear(_) | Op::ExpertLinear { .. } | Op::Embed { .. } | Op::AddRow { .. } => {
            let mut types = node.op.weights().map(|w| weights.info(w).ty);
            return types.next().is_some_and(is_matrix).then_some(single);
        }
        Op::Wkv(wkv) => {
            let head_dim = graph.ty(node.ins[0]).cols() / wkv.heads;
            return (head_dim <= recurrent::MOST_HEAD).then_some(single);
        }
        Op::Scan(scan) => return (scan.state <= recurrent::MOST_STATES).then_some(single),
        Op::Norm(_)
        | Op::Rope(_)
        | Op::Glu(_)
        | Op::GluClamped(_)
        | Op::Activate(_)
        | Op::Mul
        | Op::MulWeight { .. }
        | Op::Lerp(_)
        | Op::Scale { .. }
        | Op::Softcap { .. } => over(single, graph, at),
        _ => single,
    })
}

/// A fast kernel, where one begins at this node.
fn fast(graph: &Graph, weights: &WeightTable, at: NodeId) -> Option<Selection> {
    if let Some(products) = Products::at(graph, weights, at) {
        let rows = graph.ty(products.input(graph).0).rows(&graph.key);
        let (kernel, scratch) = match rows {
            0 | 1 => (MATVEC, 0),
            rows => (PRODUCTS, batch::scratch_bytes(graph, &products, rows)),
        };
        return Some(Selection { kernel, covers: products.covers(), scratch, in_place: None });
    }
    if let Some(router) = Router::at(graph, weights, at)
        && graph.ty(router.input(graph).0).rows(&graph.key) <= router::MOST_ROWS
    {
        let scores = graph.ty(graph.node(router.linear).outs[0]).bytes(&graph.key);
        return Some(Selection { kernel: ROUTER, covers: router.covers(), scratch: scores, in_place: None });
    }
    if let Some(experts) = Experts::at(graph, weights, at) {
        let scratch = sorted::scratch_bytes(graph, weights, &experts);
        return Some(Selection { kernel: EXPERTS, covers: experts.covers(), scratch, in_place: None });
    }
    if let Op::Linear(linear) = &graph.node(at).op
        && experts::is_f32(weights, linear.weight)
    {
        return Some(Selection::single(LINEAR_F32, at));
    }
    let attend = Attend::at(graph, at)?;
    let scratch = attend::scratch_bytes(graph, &attend);
    Some(Selection { kernel: ATTEND, covers: attend.covers(), scratch, in_place: None })
}

/// Whether kernels decode matrices of a type.
pub(crate) fn is_matrix(ty: WeightType) -> bool {
    use WeightType::*;
    !matches!(ty, I8 | I16 | I32 | I64 | F64 | Q8_1 | Q8_K)
}

/// A kernel whose output may take the place of its first input.
fn over(selection: Selection, graph: &Graph, at: NodeId) -> Selection {
    let node = graph.node(at);
    Selection { in_place: Some((node.ins[0], node.outs[0])), ..selection }
}

/// A sum with the norm of whole rows that reads it first.
fn sum(graph: &Graph, at: NodeId) -> Option<Selection> {
    let add = graph.node(at);
    let next = graph.readers(add.outs[0]).next()?;
    let Op::Norm(norm) = &graph.node(next).op else { return None };
    (norm.groups == 1).then(|| Selection {
        kernel: ADD_NORM,
        covers: vec![at, next],
        scratch: 0,
        in_place: Some((add.ins[0], add.outs[0])),
    })
}
