//! Finds the strings of a table that a text begins with.

use super::table::ByteTable;

/// Ids of strings in the order of their bytes, so that those with a common prefix are neighbours.
pub(crate) struct PrefixIndex {
    order: Vec<u32>,
    /// Where the strings with each first byte begin in `order`.
    first: Box<[u32; 257]>,
}

impl PrefixIndex {
    /// Indexes strings of a table; of equal strings the lowest id is found, and never an empty one.
    pub(crate) fn new(mut ids: Vec<u32>, table: &ByteTable) -> PrefixIndex {
        ids.retain(|&id| !table.get(id).is_empty());
        ids.sort_unstable_by(|&a, &b| table.get(a).cmp(table.get(b)).then(a.cmp(&b)));
        ids.dedup_by(|b, a| table.get(*a) == table.get(*b));
        let mut first = Box::new([0; 257]);
        for &id in &ids {
            first[usize::from(table.get(id)[0]) + 1] += 1;
        }
        for byte in 0..256 {
            first[byte + 1] += first[byte];
        }
        PrefixIndex { order: ids, first }
    }

    /// Whether any string starts with this byte.
    pub(crate) fn starts_with(&self, byte: u8) -> bool {
        self.first[usize::from(byte)] < self.first[usize::from(byte) + 1]
    }

    /// Calls `found` with the length and id of each string that `text` begins with, the shortest first.
    pub(crate) fn prefixes(&self, table: &ByteTable, text: &[u8], mut found: impl FnMut(usize, u32)) {
        let Some(&byte) = text.first() else { return };
        let mut low = self.first[usize::from(byte)] as usize;
        let mut high = self.first[usize::from(byte) + 1] as usize;
        let mut len = 1;
        while low < high {
            let id = self.order[low];
            if table.get(id).len() == len {
                found(len, id);
                low += 1;
            }
            let Some(&next) = text.get(len) else { break };
            let range = &self.order[low..high];
            // All strings here are longer than `len` and agree up to it.
            let skip = range.partition_point(|&id| table.get(id)[len] < next);
            let keep = range[skip..].partition_point(|&id| table.get(id)[len] == next);
            (low, high) = (low + skip, low + skip + keep);
            len += 1;
        }
    }

    /// Id of the longest string that `text` begins with.
    pub(crate) fn longest(&self, table: &ByteTable, text: &[u8]) -> Option<u32> {
        let mut longest = None;
        self.prefixes(table, text, |_, id| longest = Some(id));
        longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_all_prefixes_shortest_first() {
        let mut table = ByteTable::with_capacity(8, 32);
        for s in ["abc", "a", "", "ab", "abd", "b", "ab", "abcde"] {
            table.push(s.as_bytes()).unwrap();
        }
        let index = PrefixIndex::new((0..8).collect(), &table);
        let all = |text: &str| {
            let mut out = Vec::new();
            index.prefixes(&table, text.as_bytes(), |len, id| out.push((len, id)));
            out
        };
        assert_eq!(all("abcdx"), [(1, 1), (2, 3), (3, 0)]);
        assert_eq!(all("abcde"), [(1, 1), (2, 3), (3, 0), (5, 7)]);
        assert_eq!(all("abd"), [(1, 1), (2, 3), (3, 4)]);
        assert_eq!(all("ax"), [(1, 1)]);
        assert_eq!(all("c"), []);
        assert_eq!(all(""), []);
        assert_eq!(index.longest(&table, b"abcdx"), Some(0));
        assert!(index.starts_with(b'b') && !index.starts_with(b'c'));
    }
}
