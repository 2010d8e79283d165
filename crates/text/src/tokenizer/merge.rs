//! Greedy pair merging: the best pair first, the leftmost of equals, until no pair is left.
//!
//! Both kinds of byte-pair encoding run on it: ranked merges (BPE) and scored tokens (SentencePiece).
//! A linked list of symbols and a heap of candidate pairs give O(n log n) on any input, without recursion.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU8, Ordering};

use super::table::{ByteTable, NONE};
use crate::pretokenize::class::char_at;

/// A piece of the text, and its id in the vocabulary or [`NONE`].
#[derive(Clone, Copy)]
struct Symbol {
    start: u32,
    end: u32,
    id: u32,
    prev: u32,
    next: u32,
    /// Priority of the merge with the next symbol, [`NONE`] if they do not merge.
    rank: u32,
    /// Id after that merge.
    merged: u32,
}

/// Which neighbours merge.
pub(crate) trait Pairs {
    /// The priority (lower first) and the id of the symbol that two neighbours become, where `joined` is the text of
    /// both and `left` the length of the first in bytes.
    fn merge(&self, joined: &[u8], left: usize) -> Option<(u32, u32)>;
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

    /// Appends the next piece of the text, up to the offset `end`.
    pub(crate) fn push(&mut self, end: usize, id: u32) {
        let index = self.symbols.len() as u32;
        let prev = index.wrapping_sub(1);
        let start = self.symbols.last_mut().map_or(0, |last| {
            last.next = index;
            last.end
        });
        self.symbols.push(Symbol { start, end: end as u32, id, prev, next: NONE, rank: NONE, merged: NONE });
    }

    /// Starts with the characters of a text as pieces; `id` finds the token of one.
    pub(crate) fn characters(&mut self, text: &[u8], id: impl Fn(&[u8]) -> Option<u32>) {
        self.clear();
        let mut at = 0;
        while let Some(ch) = char_at(text, at) {
            let end = at + ch.len;
            self.push(end, id(&text[at..end]).unwrap_or(NONE));
            at = end;
        }
    }

    /// Merges all that merges and calls `emit` with the text and id of each remaining symbol in order.
    pub(crate) fn run(&mut self, text: &[u8], pairs: &impl Pairs, mut emit: impl FnMut(&[u8], u32)) {
        self.heap.clear();
        for left in 0..(self.symbols.len() as u32).saturating_sub(1) {
            self.consider(left, text, pairs);
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
            self.symbols[left as usize] =
                Symbol { end: right.end, id: symbol.merged, next: right.next, rank: NONE, ..symbol };
            if right.next != NONE {
                self.symbols[right.next as usize].prev = left;
                self.consider(left, text, pairs);
            }
            if symbol.prev != NONE {
                self.consider(symbol.prev, text, pairs);
            }
        }
        let mut index = if self.symbols.is_empty() { NONE } else { 0 };
        while index != NONE {
            let symbol = &self.symbols[index as usize];
            emit(&text[symbol.start as usize..symbol.end as usize], symbol.id);
            index = symbol.next;
        }
    }

    /// Queues the merge of a symbol with its next one, if there is such a merge.
    fn consider(&mut self, left: u32, text: &[u8], pairs: &impl Pairs) {
        self.lookups += 1;
        let symbol = self.symbols[left as usize];
        let end = self.symbols[symbol.next as usize].end;
        let joined = &text[symbol.start as usize..end as usize];
        let found = pairs.merge(joined, (symbol.end - symbol.start) as usize);
        let (rank, merged) = found.unwrap_or((NONE, NONE));
        let symbol = &mut self.symbols[left as usize];
        (symbol.rank, symbol.merged) = (rank, merged);
        if rank != NONE {
            self.heap.push(Reverse(u64::from(rank) << 32 | u64::from(left)));
        }
    }
}

/// Remembers which tokens the merges make of their own text: most words of a text are such a token.
pub(crate) struct Wholes {
    states: Vec<AtomicU8>,
}

const UNTRIED: u8 = 0;
const WHOLE: u8 = 1;
const PARTS: u8 = 2;

impl Wholes {
    pub(crate) fn new(tokens: usize) -> Wholes {
        Wholes { states: (0..tokens).map(|_| AtomicU8::new(UNTRIED)).collect() }
    }

    /// Appends the tokens of a piece: the token that spells it if merging is known to give that, else what `merge`
    /// appends.
    pub(crate) fn encode(
        &self,
        table: &ByteTable,
        piece: &[u8],
        out: &mut Vec<u32>,
        merge: impl FnOnce(&mut Vec<u32>),
    ) {
        let token = table.find(piece).and_then(|id| Some((id, self.states.get(id as usize)?)));
        let Some((id, state)) = token else { return merge(out) };
        // The states are independent of each other and of all else, so no order is needed.
        match state.load(Ordering::Relaxed) {
            WHOLE => out.push(id),
            PARTS => merge(out),
            _ => {
                let first = out.len();
                merge(out);
                let whole = out[first..] == [id];
                state.store(if whole { WHOLE } else { PARTS }, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Merges any two symbols of equal length, shorter ones first.
    struct Equal;
    impl Pairs for Equal {
        fn merge(&self, joined: &[u8], left: usize) -> Option<(u32, u32)> {
            (joined.len() == 2 * left).then_some((left as u32, joined.len() as u32))
        }
    }

    fn lengths(n: usize) -> (Vec<usize>, u64) {
        let mut merger = Merger::default();
        for end in 1..=n {
            merger.push(end, 1);
        }
        let mut out = Vec::new();
        merger.run(&vec![b'x'; n], &Equal, |text, id| {
            assert_eq!(text.len(), id as usize);
            out.push(text.len());
        });
        (out, merger.lookups)
    }

    #[test]
    fn leftmost_of_equal_ranks_first() {
        assert!(lengths(0).0.is_empty());
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
            assert!(lookups <= 3 * n as u64, "{lookups} for {n}");
        }
    }
}
