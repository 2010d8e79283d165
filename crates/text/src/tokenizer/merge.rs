//! Greedy pair merging: the best pair first, the leftmost of equals, until no pair is left.
//!
//! Both kinds of byte-pair encoding run on it: ranked merges (BPE) and scored tokens (SentencePiece).
//! A linked list of symbols and a heap of candidate pairs give O(n log n) on any input, without recursion.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::table::NONE;

/// A piece of the text: `len` bytes from `start`, and the id it has in the vocabulary or [`NONE`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Symbol {
    pub(crate) start: u32,
    pub(crate) len: u32,
    pub(crate) id: u32,
    prev: u32,
    next: u32,
    /// Priority of the merge with the next symbol, [`NONE`] if they do not merge.
    rank: u32,
    /// Id after that merge.
    merged: u32,
}

impl Symbol {
    pub(crate) fn end(&self) -> u32 {
        self.start + self.len
    }
}

/// Which neighbours merge: gives the priority (lower first) and the id of the merged symbol.
pub(crate) trait Pairs {
    fn merge(&self, left: &Symbol, right: &Symbol) -> Option<(u32, u32)>;
}

/// Work space of the merge loop, kept between words.
#[derive(Default)]
pub(crate) struct Merger {
    symbols: Vec<Symbol>,
    /// Rank in the high half, index of the left symbol in the low half.
    heap: BinaryHeap<Reverse<u64>>,
    /// Pairs looked up so far; grows linearly with the text.
    pub(crate) lookups: u64,
}

impl Merger {
    pub(crate) fn clear(&mut self) {
        self.symbols.clear();
    }

    /// Appends the next piece of the text.
    pub(crate) fn push(&mut self, start: u32, len: u32, id: u32) {
        let index = self.symbols.len() as u32;
        let prev = index.wrapping_sub(1);
        if let Some(last) = self.symbols.last_mut() {
            last.next = index;
        }
        self.symbols.push(Symbol { start, len, id, prev, next: NONE, rank: NONE, merged: NONE });
    }

    /// Merges all that merges and calls `emit` for each remaining symbol in order.
    pub(crate) fn run(&mut self, pairs: &impl Pairs, mut emit: impl FnMut(&Symbol)) {
        self.heap.clear();
        for left in 0..(self.symbols.len() as u32).saturating_sub(1) {
            self.consider(left, pairs);
        }
        while let Some(Reverse(entry)) = self.heap.pop() {
            let (rank, left) = ((entry >> 32) as u32, entry as u32);
            let symbol = self.symbols[left as usize];
            // A stale entry: the pair changed since it was queued.
            if symbol.rank != rank {
                continue;
            }
            let right = self.symbols[symbol.next as usize];
            self.symbols[symbol.next as usize].rank = NONE;
            let merged = &mut self.symbols[left as usize];
            merged.len += right.len;
            merged.id = symbol.merged;
            merged.next = right.next;
            merged.rank = NONE;
            if right.next != NONE {
                self.symbols[right.next as usize].prev = left;
                self.consider(left, pairs);
            }
            if symbol.prev != NONE {
                self.consider(symbol.prev, pairs);
            }
        }
        let mut index = if self.symbols.is_empty() { NONE } else { 0 };
        while index != NONE {
            let symbol = &self.symbols[index as usize];
            emit(symbol);
            index = symbol.next;
        }
    }

    /// Queues the merge of a symbol with its next one, if there is such a merge.
    fn consider(&mut self, left: u32, pairs: &impl Pairs) {
        self.lookups += 1;
        let symbol = self.symbols[left as usize];
        let found = pairs.merge(&symbol, &self.symbols[symbol.next as usize]);
        let (rank, merged) = found.unwrap_or((NONE, NONE));
        let symbol = &mut self.symbols[left as usize];
        (symbol.rank, symbol.merged) = (rank, merged);
        if rank != NONE {
            self.heap.push(Reverse(u64::from(rank) << 32 | u64::from(left)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Merges any two symbols of equal length, shorter ones first.
    struct Equal;
    impl Pairs for Equal {
        fn merge(&self, left: &Symbol, right: &Symbol) -> Option<(u32, u32)> {
            (left.len == right.len).then_some((left.len, left.len * 2))
        }
    }

    fn lengths(n: u32) -> (Vec<u32>, u64) {
        let mut merger = Merger::default();
        for i in 0..n {
            merger.push(i, 1, 1);
        }
        let mut out = Vec::new();
        merger.run(&Equal, |s| out.push(s.len));
        (out, merger.lookups)
    }

    #[test]
    fn leftmost_of_equal_ranks_first() {
        assert_eq!(lengths(0).0, []);
        assert_eq!(lengths(1).0, [1]);
        assert_eq!(lengths(3).0, [2, 1]);
        assert_eq!(lengths(7).0, [4, 2, 1]);
        assert_eq!(lengths(8).0, [8]);
    }

    #[test]
    fn looks_up_a_bounded_number_of_pairs_per_symbol() {
        // One per neighbours to begin with, and two per merge.
        for n in [1 << 15, 1 << 16, 1_000_003] {
            let (_, lookups) = lengths(n);
            assert!(lookups <= 3 * u64::from(n), "{lookups} for {n}");
        }
    }
}
