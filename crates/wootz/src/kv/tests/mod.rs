//! The bookkeeping against a naive model of the memory it speaks about, and by example.

mod cases;
mod machine;
mod random;
mod states;
mod windows;

use std::hash::{BuildHasher, Hasher};

use super::{Group, GroupKind, KvCache, KvConfig};

pub(super) fn full(blocks: u32) -> Group {
    Group { kind: GroupKind::Full, blocks }
}

pub(super) fn window(tokens: usize, slack: usize, blocks: u32) -> Group {
    Group { kind: GroupKind::Window { tokens, slack }, blocks }
}

pub(super) fn state(blocks: u32) -> Group {
    Group { kind: GroupKind::State, blocks }
}

pub(super) fn cache(block_tokens: usize, groups: &[Group]) -> KvCache {
    KvCache::new(KvConfig { block_tokens, groups: groups.to_vec() }).unwrap()
}

/// Gives every key the same hash.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Weak;

impl BuildHasher for Weak {
    type Hasher = Weak;

    fn build_hasher(&self) -> Weak {
        Weak
    }
}

impl Hasher for Weak {
    fn finish(&self) -> u64 {
        7
    }

    fn write(&mut self, _bytes: &[u8]) {}
}
