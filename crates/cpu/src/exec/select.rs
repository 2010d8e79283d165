//! Which nodes run together on the CPU.
//!
//! Operations that work on rows one by one (norms, sums, gated units, …) run as a chain: a worker takes a row through
//! all of them while it lies in the nearest cache. Where products alone read the chain's last value, the chain ends in
//! them: the row is quantised at once, and all products share its quantised form and one fork of the pool. So do
//! products with the same experts of the same rows, whose rows are put in the order of their experts once.

use wootz_graph::op::Op;
use wootz_graph::{Graph, NodeId, Selection, ValueId};

/// A chain, with products, of nodes that work on rows.
pub(super) const ROWS_LINEAR: &str = "rows+linear";
/// A chain of nodes that work on rows.
pub(super) const ROWS: &str = "rows";
/// Products that share an input.
pub(super) const LINEAR: &str = "linear";
/// Products with chosen experts that share an input and the choice.
pub(super) const EXPERTS: &str = "expert-linear";

/// The kernel for a node and the nodes that it runs with it.
pub(super) fn select(graph: &Graph, at: NodeId) -> Option<Selection> {
    let op = &graph.node(at).op;
    match op {
        Op::Input(_) => None,
        Op::Linear(_) => {
            let covers = products(graph, graph.node(at).ins[0]);
            Some(Selection { kernel: LINEAR, covers, scratch: 0, in_place: None })
        }
        Op::ExpertLinear { .. } => Some(Selection {
            kernel: EXPERTS,
            covers: expert_products(graph, at),
            scratch: 0,
            in_place: None,
        }),
        _ if works_on_rows(op) => Some(chain(graph, at)),
        op => Some(Selection::single(op.name(), at)),
    }
}

/// Whether an operation makes each row of its output from the same row of its inputs.
fn works_on_rows(op: &Op) -> bool {
    matches!(
        op,
        Op::Norm(_)
            | Op::Add
            | Op::AddRow { .. }
            | Op::Mul
            | Op::MulWeight { .. }
            | Op::Lerp(_)
            | Op::Bonus(_)
            | Op::Glu(_)
            | Op::GluClamped(_)
            | Op::Activate(_)
            | Op::Scale { .. }
            | Op::Softcap { .. }
    )
}

/// All products that read `x`.
fn products(graph: &Graph, x: ValueId) -> Vec<NodeId> {
    graph.readers(x).filter(|n| matches!(graph.node(*n).op, Op::Linear(_))).collect()
}

/// The products with experts that have the inputs of the one at a node.
fn expert_products(graph: &Graph, at: NodeId) -> Vec<NodeId> {
    let ins = &graph.node(at).ins;
    let same =
        |n: &NodeId| matches!(graph.node(*n).op, Op::ExpertLinear { .. }) && graph.node(*n).ins == *ins;
    graph.readers(ins[0]).filter(same).collect()
}

/// The chain that starts at a node.
fn chain(graph: &Graph, at: NodeId) -> Selection {
    let mut covers = vec![at];
    let mut out = graph.node(at).outs[0];
    while let Some(next) = follower(graph, at, out) {
        covers.push(next);
        out = graph.node(next).outs[0];
    }
    let products = products(graph, out);
    let ends_in_products =
        !products.is_empty() && !graph.is_output(out) && products.len() == graph.readers(out).count();
    // A sum may take over the memory of what it adds to: the residual stream.
    let sum = covers.iter().map(|n| graph.node(*n)).find(|n| matches!(n.op, Op::Add));
    let in_place = sum.and_then(|n| {
        let stream = n.ins.iter().find(|v| graph.producer(**v).is_none_or(|p| !covers.contains(&p)));
        stream.map(|v| (*v, n.outs[0]))
    });
    let kernel = if ends_in_products { ROWS_LINEAR } else { ROWS };
    if ends_in_products {
        covers.extend(products);
    }
    Selection { kernel, covers, scratch: 0, in_place }
}

/// The node that goes on with a chain's value: the first that reads it, if it works on rows and whatever else it reads
/// is there before the chain starts.
fn follower(graph: &Graph, start: NodeId, value: ValueId) -> Option<NodeId> {
    let next = graph.readers(value).next()?;
    let node = graph.node(next);
    let others = node.ins.iter().filter(|v| **v != value);
    let ready = others.clone().all(|v| graph.producer(*v).is_none_or(|p| p < start));
    let once = node.ins.iter().filter(|v| **v == value).count() == 1;
    // Operations of three values take the one at hand as their first.
    let fits = node.ins.len() < 3 || node.ins[0] == value;
    (works_on_rows(&node.op) && ready && once && fits).then_some(next)
}
