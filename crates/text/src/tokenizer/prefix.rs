//! Finds the strings of a table that a text begins with.

use super::table::{ByteTable, NONE};

/// A trie in three arrays: nodes are numbered level by level, so the children of a node are neighbours.
pub(crate) struct PrefixIndex {
    /// The byte that leads to each node, ascending among the children of one node.
    labels: Vec<u8>,
    /// First child of each node; the children of node `i` end where those of `i + 1` begin.
    first: Vec<u32>,
    /// Id of the string that ends at each node, or [`NONE`].
    ids: Vec<u32>,
    starts: [bool; 256],
}

/// A string to index, with its first bytes at hand: they decide most comparisons.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Entry<'a> {
    head: u64,
    string: &'a [u8],
    id: u32,
}

impl<'a> Entry<'a> {
    fn new(string: &'a [u8], id: u32) -> Self {
        let mut head = [0; 8];
        let len = string.len().min(8);
        head[..len].copy_from_slice(&string[..len]);
        Entry { head: u64::from_be_bytes(head), string, id }
    }

    fn byte(&self, at: usize) -> u8 {
        if at < 8 { self.head.to_be_bytes()[at] } else { self.string[at] }
    }
}

impl PrefixIndex {
    /// Indexes strings of a table; of equal strings the lowest id is found, and never an empty one.
    pub(crate) fn new(strings: impl IntoIterator<Item = u32>, table: &ByteTable) -> PrefixIndex {
        let mut entries: Vec<Entry<'_>> =
            strings.into_iter().map(|id| Entry::new(table.get(id), id)).collect();
        entries.sort_unstable();

        let mut index =
            PrefixIndex { labels: vec![0], first: Vec::new(), ids: Vec::new(), starts: [false; 256] };
        // Strings below each node, and where the nodes of the next level begin.
        let mut below = vec![(0, entries.len())];
        let (mut depth, mut level_end) = (0, 1);
        while index.first.len() < below.len() {
            let node = index.first.len();
            if node == level_end {
                (depth, level_end) = (depth + 1, below.len());
            }
            let (mut low, high) = below[node];
            let mut id = NONE;
            while low < high && entries[low].string.len() == depth {
                id = id.min(entries[low].id);
                low += 1;
            }
            index.ids.push(if depth == 0 { NONE } else { id });
            index.first.push(index.labels.len() as u32);
            while low < high {
                let label = entries[low].byte(depth);
                let same = entries[low..high].iter().take_while(|entry| entry.byte(depth) == label);
                let next = low + same.count();
                index.labels.push(label);
                below.push((low, next));
                low = next;
            }
        }
        index.first.push(index.labels.len() as u32);
        let mut starts = [false; 256];
        for &label in index.children(0).1 {
            starts[usize::from(label)] = true;
        }
        index.starts = starts;
        index
    }

    /// Whether any string starts with this byte.
    pub(crate) fn starts_with(&self, byte: u8) -> bool {
        self.starts[usize::from(byte)]
    }

    /// Calls `found` with the length and id of each string that `text` begins with, the shortest first.
    pub(crate) fn prefixes(&self, text: &[u8], mut found: impl FnMut(usize, u32)) {
        let mut node = 0;
        for (i, byte) in text.iter().enumerate() {
            let (first, labels) = self.children(node);
            let Ok(child) = labels.binary_search(byte) else { return };
            node = first + child;
            if self.ids[node] != NONE {
                found(i + 1, self.ids[node]);
            }
        }
    }

    /// Length and id of the longest string that `text` begins with.
    pub(crate) fn longest(&self, text: &[u8]) -> Option<(usize, u32)> {
        let mut longest = None;
        self.prefixes(text, |len, id| longest = Some((len, id)));
        longest
    }

    /// Number of the first child of a node, and the labels of all.
    fn children(&self, node: usize) -> (usize, &[u8]) {
        let (start, end) = (self.first[node] as usize, self.first[node + 1] as usize);
        (start, &self.labels[start..end])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_all_prefixes_shortest_first() {
        let mut table = ByteTable::with_capacity(8, 32);
        for s in ["abc", "a", "", "ab", "abd", "b", "ab", "abcde", "abcdefghij", "abcdefghik\0"] {
            table.push(s.as_bytes()).unwrap();
        }
        let index = PrefixIndex::new(0..10, &table);
        let all = |text: &str| {
            let mut out = Vec::new();
            index.prefixes(text.as_bytes(), |len, id| out.push((len, id)));
            out
        };
        assert_eq!(all("abcdx"), [(1, 1), (2, 3), (3, 0)]);
        assert_eq!(all("abcde"), [(1, 1), (2, 3), (3, 0), (5, 7)]);
        assert_eq!(all("abcdefghik\0"), [(1, 1), (2, 3), (3, 0), (5, 7), (11, 9)]);
        assert_eq!(all("abd"), [(1, 1), (2, 3), (3, 4)]);
        assert_eq!(all("ax"), [(1, 1)]);
        assert!(all("c").is_empty());
        assert!(all("").is_empty());
        assert_eq!(index.longest(b"abcdx"), Some((3, 0)));
        assert!(index.starts_with(b'b') && !index.starts_with(b'c'));
        assert_eq!(PrefixIndex::new([], &table).longest(b"a"), None);
        assert_eq!(PrefixIndex::new([2], &table).longest(b"a"), None);
    }
}
