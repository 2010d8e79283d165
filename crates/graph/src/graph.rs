use std::collections::BTreeSet;
use std::fmt;

use crate::cache::CacheSpec;
use crate::key::GraphKey;
use crate::op::{Input, Op};
use crate::step::Entries;
use crate::weights::{WeightId, WeightTable};

/// A value of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// A node of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// Element type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Elem {
    F32,
    I32,
}

impl Elem {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        4
    }
}

/// How many rows a value has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rows {
    /// One for each token of the step.
    Tokens,
    /// One for each row that the step returns.
    Outputs,
}

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// A dense matrix.
    Matrix {
        /// Element type.
        elem: Elem,
        /// Row count.
        rows: Rows,
        /// Columns.
        cols: u32,
    },
    /// A state of a cache: orders writes before the reads that need them, and holds no bytes.
    State,
}

impl Type {
    /// Rows for a key; 0 for a state.
    pub fn rows(&self, key: &GraphKey) -> u32 {
        match self {
            Type::Matrix { rows: Rows::Tokens, .. } => key.tokens,
            Type::Matrix { rows: Rows::Outputs, .. } => key.output_rows(),
            Type::State => 0,
        }
    }

    /// Columns; 0 for a state.
    pub fn cols(&self) -> u32 {
        match self {
            Type::Matrix { cols, .. } => *cols,
            Type::State => 0,
        }
    }

    /// Bytes for a key.
    pub fn bytes(&self, key: &GraphKey) -> usize {
        match self {
            Type::Matrix { elem, cols, .. } => self.rows(key) as usize * *cols as usize * elem.bytes(),
            Type::State => 0,
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::State => f.write_str("state"),
            Type::Matrix { elem, rows, cols } => {
                let rows = match rows {
                    Rows::Tokens => "tokens",
                    Rows::Outputs => "outputs",
                };
                let elem = match elem {
                    Elem::F32 => "f32",
                    Elem::I32 => "i32",
                };
                write!(f, "{elem}[{rows}, {cols}]")
            }
        }
    }
}

/// One operation with its inputs and outputs.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it does.
    pub op: Op,
    /// Values read.
    pub ins: Vec<ValueId>,
    /// Values produced.
    pub outs: Vec<ValueId>,
    /// The layer it belongs to, if any.
    pub layer: Option<u16>,
    /// A short name for plans and traces, such as `attn_q`.
    pub label: &'static str,
}

/// A value that a step returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// Logits `[outputs, vocab]`.
    Logits,
    /// Hidden states `[outputs, dim]`.
    Hidden,
    /// Scores of a classifier's labels `[outputs, labels]`.
    Scores,
}

/// A model's operations for one key, in an order in which they can run.
#[derive(Clone, Debug)]
pub struct Graph {
    /// The key that the graph was built for.
    pub key: GraphKey,
    /// Nodes; every input of a node is produced by a node before it, or is the first state of a cache.
    pub nodes: Vec<Node>,
    /// Value types by [`ValueId`].
    pub values: Vec<Type>,
    /// Caches by [`CacheId`](crate::CacheId).
    pub caches: Vec<CacheSpec>,
    /// What the step returns.
    pub outputs: Vec<(Output, ValueId)>,
}

impl Graph {
    /// A node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// A value's type.
    pub fn ty(&self, id: ValueId) -> Type {
        self.values[id.0 as usize]
    }

    /// All nodes with their ids.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (NodeId, &Node)> {
        self.nodes.iter().enumerate().map(|(i, n)| (NodeId(i as u32), n))
    }

    /// The nodes that read a value.
    pub fn readers(&self, value: ValueId) -> impl Iterator<Item = NodeId> {
        self.iter().filter(move |(_, n)| n.ins.contains(&value)).map(|(id, _)| id)
    }

    /// The node that produces a value; `None` for the first state of a cache.
    pub fn producer(&self, value: ValueId) -> Option<NodeId> {
        self.iter().find(|(_, n)| n.outs.contains(&value)).map(|(id, _)| id)
    }

    /// Whether a value is the ids of the step's tokens.
    pub fn is_tokens(&self, value: ValueId) -> bool {
        self.producer(value).is_some_and(|node| matches!(self.node(node).op, Op::Input(Input::Tokens)))
    }

    /// How many tokens and positions the tables of embeddings have rows for.
    pub fn entries(&self, weights: &WeightTable) -> Entries {
        let mut entries = Entries::ANY;
        for node in &self.nodes {
            if let Op::Embed { table, .. } = node.op {
                let of =
                    if self.is_tokens(node.ins[0]) { &mut entries.tokens } else { &mut entries.positions };
                *of = weights.info(table).rows.min(*of);
            }
        }
        entries
    }

    /// Whether positions of several streams are read.
    pub fn has_streams(&self) -> bool {
        self.nodes.iter().any(|node| matches!(node.op, Op::Input(Input::Streams)))
    }

    /// Columns of the hidden states that the step begins with; `None` where it begins with tokens.
    pub fn hidden_cols(&self) -> Option<u32> {
        self.nodes.iter().find_map(|node| match node.op {
            Op::Input(Input::Hidden { cols }) => Some(cols),
            _ => None,
        })
    }

    /// Bytes of all weights that the graph uses, each once.
    pub fn weight_bytes(&self, weights: &WeightTable) -> u64 {
        let used: BTreeSet<WeightId> = self.nodes.iter().flat_map(|node| node.op.weights()).collect();
        used.into_iter().map(|id| weights.info(id).bytes()).sum()
    }

    /// Whether a value is returned by the step.
    pub fn is_output(&self, value: ValueId) -> bool {
        self.outputs.iter().any(|(_, v)| *v == value)
    }
}
