//! What the cache is made of, and what can go wrong.

use super::SeqId;

/// Tokens in a block unless the configuration says otherwise.
pub const DEFAULT_BLOCK_TOKENS: usize = 32;

/// The size and the parts of the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvConfig {
    /// Tokens in a block.
    pub block_tokens: usize,
    /// One group for each kind of layer of the model.
    pub groups: Vec<Group>,
}

impl KvConfig {
    /// One group of full attention with the default block.
    pub fn full(blocks: u32) -> Self {
        Self { block_tokens: DEFAULT_BLOCK_TOKENS, groups: vec![Group { kind: GroupKind::Full, blocks }] }
    }
}

/// Layers whose cache is laid out alike and shares one table of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// What the layers need of the past.
    pub kind: GroupKind,
    /// Physical blocks.
    pub blocks: u32,
}

/// What layers need of the past.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupKind {
    /// Attention to all tokens before.
    Full,
    /// Attention of each token to itself and the `tokens - 1` before it.
    Window {
        /// Size of the window.
        tokens: usize,
        /// Tokens before the window that are kept, so that so many can be taken back at once.
        slack: usize,
    },
    /// A state that each token changes: a block holds that after its last computed token, and the next token needs it.
    /// Of the tokens that are appended together, the state after the last one and that where the last whole block ends
    /// are kept. A sequence can start from where such a block ends, or from where another has ended.
    State,
}

impl GroupKind {
    /// The first block that the token at position `length` needs, for blocks of `block_tokens`.
    pub(super) fn first_needed(self, length: usize, block_tokens: usize) -> usize {
        match self {
            Self::Full => 0,
            Self::State => length.saturating_sub(1) / block_tokens,
            Self::Window { tokens, .. } => length.saturating_sub(tokens - 1) / block_tokens,
        }
    }

    /// Whether each block takes memory that is begun as a sequence grows from `old` tokens to `new`.
    pub(super) fn fresh(self, old: usize, new: usize, block_tokens: usize) -> impl Iterator<Item = bool> {
        let last = new.div_ceil(block_tokens);
        let keeps =
            move |block: usize| self != Self::State || block + 1 == last || block + 1 == new / block_tokens;
        (old.div_ceil(block_tokens)..last).map(keeps)
    }

    /// The first block to keep for a sequence of `length` tokens.
    pub(super) fn first_kept(self, length: usize, block_tokens: usize) -> usize {
        let slack = if let Self::Window { slack, .. } = self { slack } else { 0 };
        self.first_needed(length.saturating_sub(slack), block_tokens)
    }
}

/// A configuration that makes no cache.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Blocks of no token.
    #[error("block_tokens is 0: expected at least 1")]
    BlockTokens,
    /// No group.
    #[error("the cache has no group: expected at least 1")]
    NoGroup,
    /// A window that not even its own token is in.
    #[error("group {group} has a window of 0 tokens: expected at least 1")]
    Window {
        /// Index of the group.
        group: usize,
    },
}

/// An operation that was refused; nothing has changed then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    /// The blocks of a group do not suffice.
    #[error(
        "group {group} of the KV cache is full: {needed} blocks needed, {free} free and {evictable} evictable of {total}"
    )]
    OutOfBlocks {
        /// Index of the group.
        group: usize,
        /// Blocks that the operation needs.
        needed: usize,
        /// Blocks that hold nothing.
        free: usize,
        /// Blocks that hold prefixes of no running sequence.
        evictable: usize,
        /// All blocks of the group.
        total: usize,
    },
    /// The sequence was freed, or is of another cache.
    #[error("no sequence {0:?} in the KV cache")]
    UnknownSequence(SeqId),
    /// Tokens were appended whose computation was not committed.
    #[error("{pending} appended tokens are not committed: commit or truncate them first")]
    Uncommitted {
        /// Number of such tokens.
        pending: usize,
    },
}
