//! Which nodes run together on Metal.
//!
//! A decode step is bound by memory and by the gaps between dispatches, so that what surrounds a product runs with it:
//! the norm before, bias, gate and residual sum after, all products of one input. Between projections and attention,
//! head norms, rotary embedding and the write to the cache are one step.

use wootz_graph::op::{Attention, NormKind, Op};
use wootz_graph::{After, Graph, Node, NodeId, Plan, Selection, Step, ValueId, WeightId, WeightTable};
use wootz_quant::WeightType;

pub(crate) const PRODUCTS: &str = "products";
pub(crate) const NORM_PRODUCTS: &str = "norm+products";
pub(crate) const PRODUCT_ADD: &str = "product+add";
pub(crate) const GATED: &str = "gate+up";
pub(crate) const NORM_GATED: &str = "norm+gate+up";
pub(crate) const NORM: &str = "norm";
pub(crate) const NORM_ADD: &str = "norm+add";
pub(crate) const HEADS: &str = "rope+store";

/// Rows of activations up to which products run as matrix times vector.
const FEW_ROWS: u32 = 8;

/// Largest head of keys and queries.
const MAX_KEY_DIM: u32 = 576;
/// Largest head of values.
const MAX_VALUE_DIM: u32 = 512;
/// Largest head of RWKV: a thread holds as many elements of a state.
const MAX_WKV_DIM: u32 = 128;
/// Most experts that can be chosen from.
const MAX_EXPERTS: u32 = 512;

/// The kernel for a node and the nodes that it runs with it.
pub(crate) fn select(graph: &Graph, weights: &WeightTable, at: NodeId, fusion: bool) -> Option<Selection> {
    if !can_run(graph, weights, graph.node(at)) {
        return None;
    }
    let pick = Picker { graph, weights, at };
    let fused = if fusion { pick.fused() } else { None };
    fused.or_else(|| Some(pick.single()))
}

/// Whether products with this many rows run as matrix times vector.
pub(crate) fn is_few(rows: u32) -> bool {
    rows <= FEW_ROWS
}

/// Threadgroups that share the cached positions of a row: with few rows, the GPU would be idle otherwise.
pub(crate) fn splits(graph: &Graph, attention: &Attention) -> u32 {
    let rows = graph.key.tokens.saturating_mul(attention.heads);
    let span = attention.window.map_or(graph.key.kv_span, |w| w.min(graph.key.kv_span));
    let busy = rows > 256 || !is_few(graph.key.tokens);
    if busy { 1 } else { (span / 256).clamp(1, 16) }
}

/// Bytes of what the threadgroups of a split attention leave for the one that joins them.
pub(crate) fn split_bytes(graph: &Graph, attention: &Attention) -> usize {
    let v_dim = graph.caches[attention.cache.0 as usize].v_dim as usize;
    match splits(graph, attention) {
        1 => 0,
        n => 4 * n as usize * graph.key.tokens as usize * attention.heads as usize * (v_dim + 2),
    }
}

/// Bytes of the lists of slots by expert, for products of many tokens; 0 where there are few.
fn sort_bytes(graph: &Graph, weights: &WeightTable, weight: WeightId, used: u32) -> usize {
    if is_few(graph.key.tokens) {
        return 0;
    }
    let slots = graph.key.tokens as usize * used as usize;
    4 * weights.info(weight).experts as usize * (1 + slots)
}

/// Matrices that one dispatch multiplies with, if they are of one type.
pub(crate) const MATRICES: usize = 3;

/// Dispatches that a step of a Metal plan takes.
pub fn dispatches(plan: &Plan, step: &Step, weights: &WeightTable) -> usize {
    let graph = &plan.graph;
    let node = graph.node(step.nodes[0]);
    let linears = || {
        step.nodes.iter().filter_map(|n| match &graph.node(*n).op {
            Op::Linear(l) => Some(weights.info(l.weight).ty),
            _ => None,
        })
    };
    match (step.kernel, &node.op) {
        (GATED | NORM_GATED, _) => 1,
        (PRODUCTS | NORM_PRODUCTS | PRODUCT_ADD, _) => {
            if !is_few(graph.ty(node.ins[0]).rows(&graph.key)) {
                return linears().count();
            }
            let mut types: Vec<WeightType> = linears().collect();
            types.sort_unstable();
            types.chunk_by(|a, b| a == b).map(|alike| alike.len().div_ceil(MATRICES)).sum()
        }
        (_, Op::ExpertLinear { .. }) => 1 + usize::from(step.scratch.is_some()),
        (_, Op::Attention(a)) => 1 + usize::from(splits(graph, a) > 1),
        _ => 1,
    }
}

/// Barriers of a step of a Metal plan: before it, and before the dispatch that joins what others of the step leave.
pub fn barriers(plan: &Plan, step: &Step) -> usize {
    let inside = match &plan.graph.node(step.nodes[0]).op {
        Op::Attention(_) | Op::ExpertLinear { .. } => usize::from(step.scratch.is_some()),
        _ => 0,
    };
    usize::from(step.after == After::Barrier) + inside
}

/// Whether a weight type can be multiplied with and looked up in.
pub(crate) fn is_matrix_type(ty: WeightType) -> bool {
    use WeightType::*;
    !matches!(ty, I8 | I16 | I32 | I64 | F64 | Q8_1 | Q8_K)
}

fn can_run(graph: &Graph, weights: &WeightTable, node: &Node) -> bool {
    let matrix = |id: WeightId| {
        let info = weights.info(id);
        is_matrix_type(info.ty) && info.cols.is_multiple_of(4)
    };
    match &node.op {
        Op::Input(_) => false,
        Op::Embed { table, .. } | Op::AddRow { table, .. } => is_matrix_type(weights.info(*table).ty),
        Op::Linear(l) => matrix(l.weight),
        Op::ExpertLinear { weight, .. } => matrix(*weight),
        Op::Wkv(w) => graph.ty(node.ins[0]).cols() / w.heads <= MAX_WKV_DIM,
        Op::Route(_) => graph.ty(node.ins[0]).cols() <= MAX_EXPERTS,
        Op::Rope(r) => r.head_dim <= MAX_KEY_DIM,
        Op::StoreKv { cache } | Op::Attention(Attention { cache, .. }) => {
            let spec = &graph.caches[cache.0 as usize];
            let fits = |dim: u32, most: u32| dim.is_multiple_of(4) && dim <= most;
            fits(spec.k_dim, MAX_KEY_DIM) && fits(spec.v_dim, MAX_VALUE_DIM)
        }
        _ => true,
    }
}

struct Picker<'a> {
    graph: &'a Graph,
    weights: &'a WeightTable,
    at: NodeId,
}

impl<'a> Picker<'a> {
    fn node(&self, id: NodeId) -> &'a Node {
        self.graph.node(id)
    }

    /// A kernel for the node alone.
    fn single(&self) -> Selection {
        let node = self.node(self.at);
        let mut selection = Selection::single(kernel_name(&node.op), self.at);
        match &node.op {
            Op::Attention(a) => selection.scratch = split_bytes(self.graph, a),
            Op::ExpertLinear { weight, used, .. } => {
                selection.scratch = sort_bytes(self.graph, self.weights, *weight, *used);
            }
            Op::Glu(_)
            | Op::GluClamped(_)
            | Op::Activate(_)
            | Op::Add
            | Op::Mul
            | Op::MulWeight { .. }
            | Op::Lerp(_)
            | Op::Scale { .. }
            | Op::Softcap { .. } => {
                selection.in_place = Some((node.ins[0], node.outs[0]));
            }
            _ => {}
        }
        selection
    }

    fn fused(&self) -> Option<Selection> {
        match &self.node(self.at).op {
            Op::Norm(_) => self.heads().or_else(|| self.norm_products()).or_else(|| self.norm_add()),
            Op::Rope(_) => self.heads(),
            Op::Linear(_) => Some(self.products(self.node(self.at).ins[0], None)),
            _ => None,
        }
    }

    /// The only node that reads a value which is no output.
    fn only_reader(&self, value: ValueId) -> Option<NodeId> {
        let mut readers = self.graph.readers(value);
        let first = readers.next()?;
        (readers.next().is_none() && !self.graph.is_output(value)).then_some(first)
    }

    /// The products that read a value.
    fn linears(&self, x: ValueId) -> Vec<NodeId> {
        self.graph.readers(x).filter(|n| matches!(self.node(*n).op, Op::Linear(_))).collect()
    }

    fn ty(&self, linear: NodeId) -> Option<WeightType> {
        match &self.node(linear).op {
            Op::Linear(l) => Some(self.weights.info(l.weight).ty),
            _ => None,
        }
    }

    /// Products of `x`, after a norm that gave it.
    fn products(&self, x: ValueId, norm: Option<NodeId>) -> Selection {
        let linears = self.linears(x);
        let few = is_few(self.graph.ty(x).rows(&self.graph.key));
        let mut covers: Vec<NodeId> = norm.into_iter().chain(linears.iter().copied()).collect();
        let mut kernel = if norm.is_some() { NORM_PRODUCTS } else { PRODUCTS };
        let mut in_place = None;
        if let (true, Some(glu)) = (few, self.gate(&linears)) {
            covers.push(glu);
            kernel = if norm.is_some() { NORM_GATED } else { GATED };
        } else if let (None, Some((add, other))) = (norm, self.residual(&linears)) {
            covers.push(add);
            kernel = PRODUCT_ADD;
            in_place = Some((other, self.node(add).outs[0]));
        }
        covers.sort_unstable();
        Selection { kernel, covers, scratch: 0, in_place }
    }

    /// The gated unit that is all that reads two products of one type.
    fn gate(&self, linears: &[NodeId]) -> Option<NodeId> {
        let [a, b] = linears else { return None };
        let (x, y) = (self.node(*a).outs[0], self.node(*b).outs[0]);
        let glu = self.only_reader(x)?;
        let fits = matches!(self.node(glu).op, Op::Glu(_))
            && self.only_reader(y) == Some(glu)
            && self.graph.ty(x) == self.graph.ty(y)
            && self.ty(*a) == self.ty(*b);
        fits.then_some(glu)
    }

    /// The sum that is all that reads the only product, and what it is added to.
    fn residual(&self, linears: &[NodeId]) -> Option<(NodeId, ValueId)> {
        let [linear] = linears else { return None };
        let out = self.node(*linear).outs[0];
        let add = self.only_reader(out)?;
        let node = self.node(add);
        let other = *node.ins.iter().find(|v| **v != out)?;
        let fits = matches!(node.op, Op::Add) && !self.depends(other, *linear);
        fits.then_some((add, other))
    }

    /// Whether a value is made from what a node gives.
    fn depends(&self, value: ValueId, on: NodeId) -> bool {
        let Some(maker) = self.graph.producer(value) else { return false };
        // Nodes stand in an order in which they can run.
        maker == on || (maker > on && self.node(maker).ins.iter().any(|v| self.depends(*v, on)))
    }

    /// A norm of whole rows and the products that are all that reads it.
    fn norm_products(&self) -> Option<Selection> {
        let node = self.node(self.at);
        let (Op::Norm(norm), out) = (&node.op, node.outs[0]) else { return None };
        let plain =
            norm.kind == NormKind::Rms && norm.groups == 1 && norm.weight.is_some() && norm.bias.is_none();
        let readers = self.graph.readers(out).count();
        let linears = self.linears(out).len();
        let fits = plain
            && readers > 0
            && readers == linears
            && !self.graph.is_output(out)
            && is_few(self.graph.ty(out).rows(&self.graph.key));
        fits.then(|| self.products(out, Some(self.at)))
    }

    /// A norm and the sum that is all that reads it.
    fn norm_add(&self) -> Option<Selection> {
        let node = self.node(self.at);
        let (Op::Norm(_), out) = (&node.op, node.outs[0]) else { return None };
        let add = self.only_reader(out)?;
        let sum = self.node(add);
        let other = *sum.ins.iter().find(|v| **v != out)?;
        let fits = matches!(sum.op, Op::Add) && !self.depends(other, self.at);
        let in_place = Some((other, sum.outs[0]));
        fits.then(|| Selection { kernel: NORM_ADD, covers: vec![self.at, add], scratch: 0, in_place })
    }

    /// Head norms, rotary embedding of queries and keys, and the write to the cache.
    fn heads(&self) -> Option<Selection> {
        let heads = Heads::find(self.graph, self.at)?;
        let covers = heads.nodes();
        (covers[0] == self.at).then_some(Selection { kernel: HEADS, covers, scratch: 0, in_place: None })
    }
}

/// What happens to the heads of a layer between projection and attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads {
    pub(crate) norm_q: Option<NodeId>,
    pub(crate) rope_q: NodeId,
    pub(crate) norm_k: Option<NodeId>,
    pub(crate) rope_k: NodeId,
    pub(crate) store: NodeId,
}

impl Heads {
    /// The group that a query's norm or rotary embedding begins.
    pub(crate) fn find(graph: &Graph, at: NodeId) -> Option<Heads> {
        let only_reader = |value: ValueId| {
            let mut readers = graph.readers(value);
            let first = readers.next()?;
            (readers.next().is_none() && !graph.is_output(value)).then_some(first)
        };
        let rope_q = match &graph.node(at).op {
            Op::Rope(_) => at,
            Op::Norm(_) => only_reader(graph.node(at).outs[0])?,
            _ => return None,
        };
        let attention = graph.node(only_reader(graph.node(rope_q).outs[0])?);
        let Op::Attention(_) = &attention.op else { return None };
        let store = graph.producer(attention.ins[1])?;
        let rope_k = graph.producer(*graph.node(store).ins.first()?)?;
        let (Op::Rope(q), Op::Rope(k)) = (&graph.node(rope_q).op, &graph.node(rope_k).op) else {
            return None;
        };
        let alike = wootz_graph::op::Rope { heads: k.heads, ..*q } == *k;
        if !alike || only_reader(graph.node(rope_k).outs[0]) != Some(store) {
            return None;
        }
        let norm_of = |rope: NodeId| {
            let x = graph.node(rope).ins[0];
            let norm = graph.producer(x)?;
            let Op::Norm(n) = &graph.node(norm).op else { return None };
            let plain = n.kind == NormKind::Rms && n.weight.is_some() && n.bias.is_none();
            let Op::Rope(r) = &graph.node(rope).op else { return None };
            (plain && n.groups == r.heads && only_reader(x) == Some(rope)).then_some((norm, n.eps))
        };
        let (norm_q, norm_k) = (norm_of(rope_q), norm_of(rope_k));
        // Both norms share one epsilon; a norm that does not belong to the group stays a step of its own.
        let (norm_q, norm_k) = match (norm_q, norm_k) {
            (Some((q, a)), Some((k, b))) if a == b => (Some(q), Some(k)),
            _ => (None, None),
        };
        Some(Heads { norm_q, rope_q, norm_k, rope_k, store })
    }

    /// The nodes in graph order.
    pub(crate) fn nodes(&self) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self.norm_q.into_iter().chain(self.norm_k).collect();
        nodes.extend([self.rope_q, self.rope_k, self.store]);
        nodes.sort_unstable();
        nodes
    }
}

/// The kernel's name for a node alone.
fn kernel_name(op: &Op) -> &'static str {
    match op {
        Op::Linear(_) => PRODUCTS,
        Op::Norm(_) => NORM,
        op => op.name(),
    }
}
