//! Cuts a graph between layers, so that several devices can compute it one after the other.

use crate::cache::CacheId;
use crate::error::GraphError;
use crate::graph::{Elem, Graph, Node, Output, Rows, Type, ValueId};
use crate::key::{GraphKey, Outputs, Wants};
use crate::op::{Input, Op};

/// The parts of a graph, with so many layers each.
///
/// What comes before the first layer belongs to the first part, what comes after the last one to the last. A part
/// returns the hidden states `[tokens, dim]` that the next one takes as [`Input::Hidden`], with other values beside them
/// that later layers read; the last one returns what the graph does. Values and weights keep their ids. Each part has the caches of its own layers, in their order.
///
/// # Errors
/// Something other than values of all tokens crosses a cut.
pub fn split(graph: Graph, layers: &[usize]) -> Result<Vec<Graph>, GraphError> {
    if layers.len() < 2 {
        return Ok(vec![graph]);
    }
    let mut graph = graph;
    let owners = owners(&graph, layers);
    let mut parts = Vec::with_capacity(layers.len());
    let mut cuts = Vec::new();
    for part in 1..layers.len() {
        let values = crossing(&graph, layers, &owners, part)?;
        cuts.push(Cut::new(&mut graph, values));
    }
    for part in 0..layers.len() {
        let entry = part.checked_sub(1).map(|cut| &cuts[cut]);
        parts.push(cut_out(&graph, &owners, part, entry, cuts.get(part)));
    }
    Ok(parts)
}

/// What one part hands to the next.
struct Cut {
    /// Values that those after read, side by side in what is handed over.
    values: Vec<ValueId>,
    /// What is handed over, and the sums of columns on the way to it: all values but the first are joined to those before.
    joined: Vec<ValueId>,
}

impl Cut {
    fn new(graph: &mut Graph, values: Vec<ValueId>) -> Cut {
        let mut cols = 0;
        let mut joined = Vec::new();
        for (i, value) in values.iter().enumerate() {
            cols += graph.ty(*value).cols();
            if i == 0 {
                joined.push(*value);
                continue;
            }
            joined.push(ValueId(graph.values.len() as u32));
            graph.values.push(Type::Matrix { elem: Elem::F32, rows: Rows::Tokens, cols });
        }
        Cut { values, joined }
    }

    /// The value that is handed over.
    fn handed(&self) -> ValueId {
        self.joined[self.joined.len() - 1]
    }

    /// The nodes with which a part begins.
    fn entry(&self, graph: &Graph) -> Vec<Node> {
        let handed = self.handed();
        let node = |op, ins, out, label| Node { op, ins, outs: vec![out], layer: None, label };
        let cols = graph.ty(handed).cols();
        let mut nodes = vec![node(Op::Input(Input::Hidden { cols }), Vec::new(), handed, "input")];
        let mut first = 0;
        for value in self.values.iter().filter(|value| **value != handed) {
            nodes.push(node(Op::Columns { first }, vec![handed], *value, "handed"));
            first += graph.ty(*value).cols();
        }
        nodes
    }

    /// The nodes with which a part ends.
    fn exit(&self) -> impl Iterator<Item = Node> {
        let pairs = self.joined.windows(2).zip(&self.values[1..]);
        pairs.map(|(pair, value)| Node {
            op: Op::Join,
            ins: vec![pair[0], *value],
            outs: vec![pair[1]],
            layer: None,
            label: "handed",
        })
    }
}

/// The part that each node belongs to; inputs of a step belong to every part that reads them.
fn owners(graph: &Graph, layers: &[usize]) -> Vec<Option<usize>> {
    let part_of = |layer: u16| {
        let mut end = 0;
        let found = layers.iter().position(|n| {
            end += n;
            usize::from(layer) < end
        });
        found.unwrap_or(layers.len() - 1)
    };
    let mut makers = vec![None; graph.values.len()];
    let mut owners = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let owner = match (&node.op, node.layer) {
            (Op::Input(_), _) => None,
            (_, Some(layer)) => Some(part_of(layer)),
            (_, None) => Some(node.ins.iter().filter_map(|v| makers[v.0 as usize]).max().unwrap_or(0)),
        };
        for value in &node.outs {
            makers[value.0 as usize] = owner;
        }
        owners.push(owner);
    }
    owners
}

/// The values that the parts before `part` hand to it and those after.
fn crossing(
    graph: &Graph,
    layers: &[usize],
    owners: &[Option<usize>],
    part: usize,
) -> Result<Vec<ValueId>, GraphError> {
    let fail = |reason: String| GraphError::Split { layer: layers[..part].iter().sum(), reason };
    let of_part = |after: bool| {
        let nodes = graph.nodes.iter().zip(owners);
        nodes.filter_map(move |(node, owner)| owner.filter(|o| (*o >= part) == after).map(|_| node))
    };
    let mut found: Vec<ValueId> = Vec::new();
    for value in of_part(false).flat_map(|node| &node.outs) {
        if of_part(true).any(|node| node.ins.contains(value)) {
            found.push(*value);
        }
    }
    if found.is_empty() {
        return Err(fail("nothing that is computed before it is read after it".to_owned()));
    }
    let passes = |value: &&ValueId| {
        !matches!(graph.ty(**value), Type::Matrix { elem: Elem::F32, rows: Rows::Tokens, .. })
    };
    match found.iter().find(passes) {
        Some(other) => Err(fail(format!("it goes on with {}", graph.ty(*other)))),
        None => Ok(found),
    }
}

/// The nodes of one part, with what they take and return.
fn cut_out(
    graph: &Graph,
    owners: &[Option<usize>],
    part: usize,
    entry: Option<&Cut>,
    exit: Option<&Cut>,
) -> Graph {
    let own: Vec<&Node> =
        graph.nodes.iter().zip(owners).filter(|(_, o)| **o == Some(part)).map(|(node, _)| node).collect();
    let mut caches: Vec<CacheId> = own.iter().filter_map(|node| node.op.cache()).collect();
    caches.sort_unstable();
    caches.dedup();
    let mut nodes: Vec<Node> = entry.map_or(Vec::new(), |cut| cut.entry(graph));
    let inputs = graph.nodes.iter().filter(|node| matches!(node.op, Op::Input(_)));
    nodes.extend(inputs.filter(|i| own.iter().any(|n| n.ins.contains(&i.outs[0]))).cloned());
    nodes.extend(own.into_iter().cloned().map(|mut node| {
        if let Some(cache) = node.op.cache_mut() {
            *cache = CacheId(caches.partition_point(|c| c < cache) as u32);
        }
        node
    }));
    nodes.extend(exit.iter().flat_map(|cut| cut.exit()));
    let (key, outputs) = match exit {
        Some(cut) => (
            GraphKey { outputs: Outputs::All, wants: Wants::Hidden, ..graph.key },
            vec![(Output::Hidden, cut.handed())],
        ),
        None => (graph.key, graph.outputs.clone()),
    };
    let caches = caches.iter().map(|id| graph.caches[id.0 as usize].clone()).collect();
    Graph { key, nodes, values: graph.values.clone(), caches, outputs }
}

#[cfg(test)]
mod tests {
    use wootz_quant::WeightType;

    use super::*;
    use crate::cache::CacheSpec;
    use crate::op::Attention;
    use crate::weights::{WeightInfo, WeightTable};
    use crate::{GraphBuilder, WeightId};

    const DIM: u32 = 32;

    /// A model of three layers of attention; with `shared`, the last layer reads the cache of the one before as well.
    fn graph(outputs: Outputs, shared: bool) -> Graph {
        let mut table = WeightTable::default();
        for (name, rows) in [("embd", 100), ("w", DIM)] {
            let (rows, cols) = (u64::from(rows), u64::from(DIM));
            table.push(WeightInfo { name: name.into(), ty: WeightType::F32, rows, cols, experts: 1 });
        }
        let (embd, w) = (WeightId(0), WeightId(1));
        let cache = |layer| CacheSpec { layer, group: 0, kv_heads: 1, k_dim: DIM, v_dim: DIM, state: 0 };
        let key = GraphKey { tokens: 4, seqs: 1, outputs, kv_span: 32, wants: Wants::Logits };
        let mut b = GraphBuilder::new(key, &table, (0..3).map(cache).collect());
        let mut x = b.embed(embd, 1.0);
        for layer in 0..3 {
            b.layer(Some(layer));
            let cache = CacheId(layer.into());
            let k = b.linear(x, w, None, "k");
            b.store_kv(cache, k, k);
            let (heads, scale, softcap, window, causal, sinks) = (1, 1.0, None, None, true, None);
            let mut attend =
                |cache, x| b.attention(x, Attention { cache, heads, scale, softcap, window, causal, sinks });
            let mut y = attend(cache, x);
            if shared && layer == 2 {
                y = attend(CacheId(1), y);
            }
            if layer == 2 {
                (x, y) = (b.gather_outputs(x), b.gather_outputs(y));
            }
            x = b.add(x, y, "residual");
        }
        b.layer(None);
        let logits = b.linear(x, embd, None, "head");
        if outputs != Outputs::None {
            b.output(Output::Logits, logits);
        }
        b.finish().unwrap()
    }

    fn labels(graph: &Graph) -> Vec<&'static str> {
        graph.nodes.iter().map(|node| node.label).collect()
    }

    #[test]
    fn each_part_has_its_layers_and_their_caches() {
        let whole = graph(Outputs::Some(1), false);
        let parts = split(whole.clone(), &[1, 2]).unwrap();
        let layer = ["k", "store_kv", "attention", "residual"];
        assert_eq!(labels(&parts[0]), [&["input", "embed"][..], &layer].concat());
        let last = ["k", "store_kv", "attention", "gather", "gather", "residual", "head"];
        assert_eq!(labels(&parts[1]), [&["input", "input"][..], &layer, &last].concat());
        // The hidden states are one value of both.
        let [(Output::Hidden, handed)] = parts[0].outputs[..] else { panic!("{:?}", parts[0].outputs) };
        assert_eq!(parts[1].nodes[0].op, Op::Input(Input::Hidden { cols: DIM }));
        assert_eq!(parts[1].nodes[0].outs, [handed]);
        assert_eq!((parts[0].hidden_cols(), parts[1].hidden_cols()), (None, Some(DIM)));
        assert_eq!((parts[0].key.outputs, parts[1].key), (Outputs::All, whole.key));
        assert_eq!(parts[1].outputs, whole.outputs);
        let caches = |part: &Graph| part.caches.iter().map(|c| c.layer).collect::<Vec<_>>();
        assert_eq!((caches(&parts[0]), caches(&parts[1])), (vec![0], vec![1, 2]));
        let written = parts[1].nodes.iter().filter_map(|node| match node.op {
            Op::StoreKv { cache } => Some(cache.0),
            _ => None,
        });
        assert_eq!(written.collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn steps_without_rows_end_with_the_last_cache() {
        let parts = split(graph(Outputs::None, false), &[2, 1]).unwrap();
        assert_eq!(labels(&parts[1]), ["input", "k", "store_kv"]);
        assert!(parts[1].outputs.is_empty());
    }

    #[test]
    fn one_part_is_the_whole() {
        let whole = graph(Outputs::All, false);
        let parts = split(whole.clone(), &[3]).unwrap();
        assert_eq!((parts.len(), labels(&parts[0])), (1, labels(&whole)));
    }

    #[test]
    fn layers_that_share_more_than_hidden_states_stay_together() {
        assert!(split(graph(Outputs::All, true), &[1, 2]).is_ok());
        let error = split(graph(Outputs::All, true), &[2, 1]).unwrap_err().to_string();
        assert_eq!(error, "the model cannot be cut before layer 2: it goes on with state");
    }

    #[test]
    fn what_later_layers_read_is_handed_on_beside_the_hidden_states() {
        let mut table = WeightTable::default();
        table.push(WeightInfo { name: "w".into(), ty: WeightType::F32, rows: 32, cols: 32, experts: 1 });
        let key = GraphKey { tokens: 4, seqs: 1, outputs: Outputs::All, kv_span: 32, wants: Wants::Logits };
        let mut b = GraphBuilder::new(key, &table, Vec::new());
        let mut x = b.embed(WeightId(0), 1.0);
        let mut first = None;
        for layer in 0..3 {
            b.layer(Some(layer));
            let y = b.linear(x, WeightId(0), None, "y");
            let first = *first.get_or_insert(y);
            let y = b.add(y, first, "sum");
            x = b.add(x, y, "residual");
        }
        b.output(Output::Logits, x);
        let parts = split(b.finish().unwrap(), &[1, 1, 1]).unwrap();
        let layer = ["y", "sum", "residual"];
        assert_eq!(labels(&parts[0]), [&["input", "embed"], &layer[..], &["handed"]].concat());
        let begin = ["input", "handed", "handed"];
        assert_eq!(labels(&parts[1]), [&begin[..], &layer, &["handed"]].concat());
        assert_eq!(labels(&parts[2]), [&begin[..], &layer].concat());
        assert_eq!(parts[2].hidden_cols(), Some(64));
        // The middle part hands on what it was handed.
        let (taken, given) = (&parts[1].nodes[1], parts[1].nodes.last().unwrap());
        assert_eq!((&taken.op, &given.op), (&Op::Columns { first: 0 }, &Op::Join));
        assert_eq!(taken.outs[0], given.ins[0]);
    }
}
