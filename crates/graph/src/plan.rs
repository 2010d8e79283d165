use std::fmt;

use crate::cache::CacheId;
use crate::graph::{Graph, NodeId, ValueId};

/// A piece of a plan's arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// Bytes from the start of the arena.
    pub offset: usize,
    /// Length in bytes.
    pub bytes: usize,
}

impl Region {
    /// Whether two pieces share a byte.
    pub fn overlaps(&self, other: &Region) -> bool {
        self.offset < other.offset + other.bytes && other.offset < self.offset + self.bytes
    }
}

/// Memory that a step touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Span {
    /// A piece of the arena.
    Arena(Region),
    /// A cache.
    Cache(CacheId),
}

impl Span {
    /// Whether two spans share a byte.
    pub fn overlaps(&self, other: &Span) -> bool {
        match (self, other) {
            (Span::Arena(a), Span::Arena(b)) => a.overlaps(b),
            (Span::Cache(a), Span::Cache(b)) => a == b,
            _ => false,
        }
    }
}

/// What a step waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum After {
    /// Nothing: it may run together with the steps before it, back to the last barrier.
    Free,
    /// All steps before it.
    Barrier,
}

/// One kernel launch of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Kernel name.
    pub kernel: &'static str,
    /// The graph nodes that it runs.
    pub nodes: Vec<NodeId>,
    /// Values read that other steps or the engine write.
    pub ins: Vec<ValueId>,
    /// Values written that other steps or the engine read.
    pub outs: Vec<ValueId>,
    /// Scratch memory.
    pub scratch: Option<Region>,
    /// An input whose memory an output may take over.
    pub in_place: Option<(ValueId, ValueId)>,
    /// Memory read.
    pub reads: Vec<Span>,
    /// Memory written.
    pub writes: Vec<Span>,
    /// What it waits for.
    pub after: After,
}

/// An immutable program for one graph on one backend.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Backend name.
    pub backend: &'static str,
    /// The graph.
    pub graph: Graph,
    /// Steps in the order in which they start.
    pub steps: Vec<Step>,
    /// Place of each value by [`ValueId`]; `None` for states and values inside a step.
    pub regions: Vec<Option<Region>>,
    /// Bytes of the arena.
    pub arena_bytes: usize,
}

impl Plan {
    /// A value's place in the arena.
    pub fn region(&self, value: ValueId) -> Option<Region> {
        self.regions[value.0 as usize]
    }

    /// Barriers in the plan.
    pub fn barriers(&self) -> usize {
        self.steps.iter().filter(|s| s.after == After::Barrier).count()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.graph.key;
        writeln!(
            f,
            "plan for {}: up to {} tokens, {} sequences, {} output rows, {} cached positions",
            self.backend,
            key.tokens,
            key.seqs,
            key.output_rows(),
            key.kv_span
        )?;
        writeln!(
            f,
            "{} steps, {} barriers, arena of {} bytes",
            self.steps.len(),
            self.barriers(),
            self.arena_bytes
        )?;
        for (i, step) in self.steps.iter().enumerate() {
            let layer = step.nodes.iter().find_map(|n| self.graph.node(*n).layer);
            let layer = layer.map(|l| format!("{l:>3}")).unwrap_or_else(|| "  -".to_owned());
            let labels: Vec<&str> = step.nodes.iter().map(|n| self.graph.node(*n).label).collect();
            let mark = if step.after == After::Barrier { '|' } else { ' ' };
            write!(f, "{i:>4} {mark} {layer} {:<24} {}", step.kernel, labels.join("+"))?;
            let list = |values: &[ValueId]| {
                let mut parts = Vec::new();
                for value in values {
                    match self.region(*value) {
                        Some(r) => parts.push(format!("v{}@{}", value.0, r.offset)),
                        None => parts.push(format!("v{}", value.0)),
                    }
                }
                parts.join(" ")
            };
            write!(f, "  [{}] -> [{}]", list(&step.ins), list(&step.outs))?;
            if let Some(scratch) = step.scratch {
                write!(f, " scratch {}@{}", scratch.bytes, scratch.offset)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
