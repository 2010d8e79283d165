//! An Aho–Corasick automaton that tells, besides matches, how much of its input is still open.
//!
//! A. V. Aho, M. J. Corasick: Efficient string matching, CACM 18 (1975).

/// Finds any of several byte strings in a stream, in time linear in the stream.
#[derive(Clone, Debug)]
pub(crate) struct Automaton {
    nodes: Vec<Node>,
}

#[derive(Clone, Debug)]
struct Node {
    /// Edges sorted by byte.
    edges: Vec<(u8, u32)>,
    /// The node of the longest proper suffix that is a prefix of some pattern.
    fail: u32,
    depth: u32,
    /// The longest pattern that ends here.
    hit: Option<Hit>,
}

/// A pattern that ends at the byte just read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    pub(crate) pattern: usize,
    pub(crate) len: usize,
}

/// Where the automaton stands; starts at the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor(u32);

impl Automaton {
    /// Builds the automaton; empty patterns are left out, of equal ones the first counts.
    pub(crate) fn new<P: AsRef<[u8]>>(patterns: impl IntoIterator<Item = P>) -> Self {
        let mut nodes = vec![Node { edges: Vec::new(), fail: 0, depth: 0, hit: None }];
        for (pattern, bytes) in patterns.into_iter().enumerate() {
            let bytes = bytes.as_ref();
            let mut at = 0usize;
            for &byte in bytes {
                at = match nodes[at].edges.binary_search_by_key(&byte, |edge| edge.0) {
                    Ok(slot) => nodes[at].edges[slot].1 as usize,
                    Err(slot) => {
                        let (new, depth) = (nodes.len(), nodes[at].depth + 1);
                        nodes.push(Node { edges: Vec::new(), fail: 0, depth, hit: None });
                        nodes[at].edges.insert(slot, (byte, new as u32));
                        new
                    }
                };
            }
            if at != 0 && nodes[at].hit.is_none() {
                nodes[at].hit = Some(Hit { pattern, len: bytes.len() });
            }
        }
        let mut machine = Self { nodes };
        machine.link();
        machine
    }

    /// Sets the fail links, breadth first, so that shorter prefixes are done before longer ones.
    fn link(&mut self) {
        let mut queue: std::collections::VecDeque<u32> =
            self.nodes[0].edges.iter().map(|edge| edge.1).collect();
        while let Some(at) = queue.pop_front() {
            let fail = self.nodes[at as usize].fail;
            for (byte, child) in self.nodes[at as usize].edges.clone() {
                self.nodes[child as usize].fail = self.step(Cursor(fail), byte).0;
                queue.push_back(child);
            }
            if self.nodes[at as usize].hit.is_none() {
                self.nodes[at as usize].hit = self.nodes[fail as usize].hit;
            }
        }
    }

    /// Reads one byte.
    pub(crate) fn step(&self, at: Cursor, byte: u8) -> Cursor {
        let mut node = at.0;
        loop {
            let edges = &self.nodes[node as usize].edges;
            match edges.binary_search_by_key(&byte, |edge| edge.0) {
                Ok(slot) => return Cursor(edges[slot].1),
                Err(_) if node == 0 => return Cursor(0),
                Err(_) => node = self.nodes[node as usize].fail,
            }
        }
    }

    /// Length in bytes of the longest suffix of the input that is a prefix of some pattern.
    pub(crate) fn open(&self, at: Cursor) -> usize {
        self.nodes[at.0 as usize].depth as usize
    }

    /// The longest pattern that ends with the byte just read.
    pub(crate) fn hit(&self, at: Cursor) -> Option<Hit> {
        self.nodes[at.0 as usize].hit
    }
}
