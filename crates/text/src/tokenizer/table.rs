//! Byte strings numbered from 0, found by content.

use std::hash::{BuildHasher, RandomState};

/// Marks an empty slot, and the id of a string that no table holds.
pub(crate) const NONE: u32 = u32::MAX;

/// A keyed hash: the key is drawn at random, so that a file cannot be written to make its strings collide.
#[derive(Clone, Copy)]
pub(crate) struct Mixer {
    key: [u64; 2],
}

impl Mixer {
    pub(crate) fn new() -> Self {
        let state = RandomState::new();
        Mixer { key: [state.hash_one(1u8), state.hash_one(2u8)] }
    }

    /// Folds the 128-bit product of two keyed words to 64 bits.
    fn fold(self, a: u64, b: u64) -> u64 {
        let product = u128::from(a ^ self.key[0]) * u128::from(b ^ self.key[1]);
        (product as u64) ^ (product >> 64) as u64
    }

    pub(crate) fn bytes(self, bytes: &[u8]) -> u64 {
        let mut hash = bytes.len() as u64;
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            let word = u64::from_le_bytes(chunk.try_into().expect("chunks of 8 bytes"));
            hash = self.fold(hash, word);
        }
        let mut word = [0; 8];
        let rest = chunks.remainder();
        word[..rest.len()].copy_from_slice(rest);
        self.fold(hash.rotate_left(23), u64::from_le_bytes(word))
    }
}

/// Byte strings in one arena, with an open-addressing index from content to number.
pub(crate) struct ByteTable {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    mixer: Mixer,
    /// Half of the hash, and the number of the string.
    slots: Vec<(u32, u32)>,
    longest: usize,
}

impl ByteTable {
    /// A table for about `strings` strings.
    pub(crate) fn with_capacity(strings: usize, bytes: usize) -> Self {
        let slots = (strings * 2).next_power_of_two().max(16);
        ByteTable {
            bytes: Vec::with_capacity(bytes),
            ends: Vec::with_capacity(strings),
            mixer: Mixer::new(),
            slots: vec![(0, NONE); slots],
            longest: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The string of a number; empty for a number beyond the table.
    pub(crate) fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..end as usize]
    }

    /// All strings in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len() as u32).map(|id| self.get(id))
    }

    /// Appends a string and returns its number; of equal strings `find` gives the first, and never an empty one.
    ///
    /// Returns `None` once the arena would pass 4 GiB.
    pub(crate) fn push(&mut self, string: &[u8]) -> Option<u32> {
        let id = u32::try_from(self.ends.len()).ok().filter(|&id| id != NONE)?;
        let end = u32::try_from(self.bytes.len() + string.len()).ok()?;
        if (self.ends.len() + 1) * 2 > self.slots.len() {
            self.grow();
        }
        if !string.is_empty() {
            let hash = self.mixer.bytes(string);
            if let Err(slot) = self.probe(hash, string) {
                self.slots[slot] = ((hash >> 32) as u32, id);
            }
        }
        self.bytes.extend_from_slice(string);
        self.ends.push(end);
        self.longest = self.longest.max(string.len());
        Some(id)
    }

    pub(crate) fn find(&self, string: &[u8]) -> Option<u32> {
        if string.is_empty() || string.len() > self.longest {
            return None;
        }
        self.probe(self.mixer.bytes(string), string).ok()
    }

    /// The number of `string`, or the empty slot where its probe sequence ends.
    fn probe(&self, hash: u64, string: &[u8]) -> Result<u32, usize> {
        let mask = self.slots.len() - 1;
        let tag = (hash >> 32) as u32;
        let mut slot = hash as usize & mask;
        loop {
            match self.slots[slot] {
                (_, NONE) => return Err(slot),
                (t, id) if t == tag && self.get(id) == string => return Ok(id),
                _ => slot = (slot + 1) & mask,
            }
        }
    }

    fn grow(&mut self) {
        self.slots = vec![(0, NONE); self.slots.len() * 2];
        for id in 0..self.ends.len() as u32 {
            let string = self.get(id);
            if string.is_empty() {
                continue;
            }
            let hash = self.mixer.bytes(string);
            if let Err(slot) = self.probe(hash, string) {
                self.slots[slot] = ((hash >> 32) as u32, id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_pushed_and_the_first_of_equals() {
        let mut table = ByteTable::with_capacity(0, 0);
        for i in 0..1000u32 {
            assert_eq!(table.push(format!("string {i}").as_bytes()), Some(i));
        }
        assert_eq!(table.push(b"string 7"), Some(1000));
        assert_eq!(table.push(b""), Some(1001));
        for i in 0..1000u32 {
            assert_eq!(table.find(format!("string {i}").as_bytes()), Some(i));
        }
        assert_eq!(table.find(b"string"), None);
        assert_eq!(table.find(b"string 1000"), None);
        assert_eq!(table.find(b""), None);
        assert_eq!(table.get(1000), b"string 7");
        assert_eq!(table.get(1002), b"");
        assert_eq!(table.len(), 1002);
    }

    #[test]
    fn hash_tells_lengths_and_trailing_zeros_apart() {
        let mixer = Mixer::new();
        let strings: [&[u8]; 6] = [b"", b"\0", b"\0\0", b"a", b"a\0", b"aaaaaaaa\0"];
        for (i, a) in strings.iter().enumerate() {
            for b in &strings[i + 1..] {
                assert_ne!(mixer.bytes(a), mixer.bytes(b), "{a:?} {b:?}");
            }
        }
    }
}
