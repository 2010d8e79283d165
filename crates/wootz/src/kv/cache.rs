//! Sequences and the operations on them.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use wootz_graph::NO_BLOCK;

use super::config::{ConfigError, GroupKind, KvConfig, KvError};
use super::matching::PrefixMatch;
use super::pool::Pool;
use super::tree::{NodeId, Tree};

/// Names a sequence of one cache; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub(super) u64);

/// A copy of a whole block, all layers of the group, that must be made before the next step writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCopy {
    /// Index of the group.
    pub group: usize,
    /// The block to read.
    pub src: u32,
    /// The block to write.
    pub dst: u32,
}

/// Where the tokens of a sequence are in one group; to be read anew for each step, since appending, committing
/// and truncating move tokens to other blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table<'a> {
    /// Index of the sequence's block that comes first in `blocks`: token `t` is in
    /// `blocks[t / block_tokens - first]`.
    pub first: usize,
    /// Physical blocks; of states also [`NO_BLOCK`], for those that are not kept.
    pub blocks: &'a [u32],
}

/// The state of one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupStats {
    /// All blocks.
    pub total: usize,
    /// Blocks that hold nothing.
    pub free: usize,
    /// Blocks that hold prefixes of no running sequence.
    pub evictable: usize,
    /// Blocks that sequences hold.
    pub used: usize,
    /// Blocks that more than one sequence holds.
    pub shared: usize,
}

/// The state of the cache, and counts since it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvStats {
    /// Sequences.
    pub sequences: usize,
    /// Known prefixes that end a block or a sequence.
    pub prefixes: usize,
    /// Tokens with which sequences were created or continued without computing them.
    pub reused_tokens: u64,
    /// Blocks of content given up for new content.
    pub evicted_blocks: u64,
    /// Blocks copied.
    pub copied_blocks: u64,
    /// Each group.
    pub groups: Vec<GroupStats>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Slots {
    /// Index of the sequence's block that comes first in `blocks`.
    pub(super) first: usize,
    pub(super) blocks: Vec<u32>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Sequence {
    pub(super) tokens: Vec<u32>,
    /// Tokens that were computed.
    pub(super) committed: usize,
    /// The prefix of the first `depth` blocks.
    pub(super) node: NodeId,
    /// Blocks that are computed and published.
    pub(super) depth: usize,
    pub(super) tables: Vec<Slots>,
}

/// The bookkeeping of a paged cache.
///
/// The hasher only decides how fast prefixes are found.
#[derive(Debug)]
pub struct KvCache<S = RandomState> {
    pub(super) config: KvConfig,
    /// The kinds of the groups, shared with loops that change the cache.
    pub(super) kinds: Arc<[GroupKind]>,
    pub(super) pools: Vec<Pool>,
    pub(super) tree: Tree<S>,
    /// In a tree: few are looked up often, and it never has to be made anew.
    pub(super) sequences: BTreeMap<SeqId, Sequence>,
    pub(super) next_id: u64,
    pub(super) copies: Vec<BlockCopy>,
    pub(super) reused_tokens: u64,
    pub(super) evicted_blocks: u64,
    pub(super) copied_blocks: u64,
}

impl KvCache {
    /// An empty cache.
    ///
    /// # Errors
    /// A configuration that makes no cache.
    pub fn new(config: KvConfig) -> Result<Self, ConfigError> {
        Self::with_hasher(config, RandomState::new())
    }
}

impl<S: BuildHasher + Clone> KvCache<S> {
    /// An empty cache that finds prefixes by another hash function.
    ///
    /// # Errors
    /// A configuration that makes no cache.
    pub fn with_hasher(config: KvConfig, hasher: S) -> Result<Self, ConfigError> {
        if config.block_tokens == 0 {
            return Err(ConfigError::BlockTokens);
        }
        if config.groups.is_empty() {
            return Err(ConfigError::NoGroup);
        }
        let is_void = |kind| matches!(kind, GroupKind::Window { tokens: 0, .. });
        if let Some(group) = config.groups.iter().position(|group| is_void(group.kind)) {
            return Err(ConfigError::Window { group });
        }
        Ok(Self {
            pools: config.groups.iter().map(|group| Pool::new(group.blocks)).collect(),
            tree: Tree::new(config.groups.len(), hasher),
            kinds: config.groups.iter().map(|group| group.kind).collect(),
            config,
            sequences: BTreeMap::new(),
            next_id: 0,
            copies: Vec::new(),
            reused_tokens: 0,
            evicted_blocks: 0,
            copied_blocks: 0,
        })
    }

    /// The configuration.
    pub fn config(&self) -> &KvConfig {
        &self.config
    }

    /// How much of these tokens a sequence created now would find; changes nothing.
    ///
    /// Content is shared within a namespace only: name the model and the adapter.
    pub fn match_prefix(&self, namespace: &str, tokens: &[u32]) -> PrefixMatch {
        self.find(namespace, tokens).summary(self.config.block_tokens)
    }

    /// Starts a sequence with as many of these tokens as are already in the cache; leave out the last token of a
    /// prompt, whose logits must be computed.
    ///
    pub fn create(&mut self, namespace: &str, tokens: &[u32]) -> (SeqId, PrefixMatch) {
        let found = self.find(namespace, tokens);
        let root = self.tree.root(namespace);
        let sequence = self.attach(root, found, tokens);
        let summary = PrefixMatch {
            tokens: sequence.committed,
            shared_blocks: sequence.depth,
            copied_tokens: sequence.committed - sequence.depth * self.config.block_tokens,
        };
        (self.insert(sequence), summary)
    }

    /// Makes room for tokens that the next step computes.
    ///
    /// # Errors
    /// An unknown sequence, or too few blocks.
    pub fn append(&mut self, id: SeqId, tokens: &[u32]) -> Result<(), KvError> {
        self.check_append(id, tokens.len())?;
        let mut sequence = self.take_out(id)?;
        let block_tokens = self.config.block_tokens;
        let (old, new) = (sequence.tokens.len(), sequence.tokens.len() + tokens.len());
        for (group, kind) in self.kinds() {
            if new > old && self.must_copy(&sequence, group) {
                let fresh = kind.fresh(old, new, block_tokens).filter(|takes| *takes).count();
                self.own_tail(&mut sequence, group, fresh);
            }
            for takes in kind.fresh(old, new, block_tokens) {
                let block = if takes { self.take(group) } else { Some(NO_BLOCK) };
                sequence.tables[group].blocks.extend(block);
            }
        }
        sequence.tokens.extend_from_slice(tokens);
        self.put_back(id, sequence);
        Ok(())
    }

    /// Tells whether [`KvCache::append`] of `count` tokens would succeed; changes nothing.
    ///
    /// # Errors
    /// Those of [`KvCache::append`].
    pub fn check_append(&self, id: SeqId, count: usize) -> Result<(), KvError> {
        let sequence = self.sequence(id)?;
        let block_tokens = self.config.block_tokens;
        let (old, new) = (sequence.tokens.len(), sequence.tokens.len() + count);
        for (group, kind) in self.kinds() {
            let fresh = kind.fresh(old, new, block_tokens).filter(|takes| *takes).count();
            let available = self.available(group);
            let copy = usize::from(new > old && self.must_copy(sequence, group));
            // A published block that only this sequence holds can be written after all, if it is withdrawn.
            let alone = self.tail(sequence, group).is_some_and(|block| self.pools[group].refs(block) == 1);
            let needed = if fresh + copy > available && alone { fresh } else { fresh + copy };
            if needed > available {
                return Err(self.out_of_blocks(group, needed));
            }
        }
        Ok(())
    }

    /// Says that all appended tokens are computed; others may reuse their whole blocks from now on, and blocks
    /// that no token to come needs are let go.
    ///
    /// # Errors
    /// An unknown sequence.
    pub fn commit(&mut self, id: SeqId) -> Result<(), KvError> {
        let length = self.sequence(id)?.tokens.len();
        self.commit_to(id, length)
    }

    /// The same for the first `length` tokens, while more are being computed.
    ///
    /// # Errors
    /// An unknown sequence.
    pub fn commit_to(&mut self, id: SeqId, length: usize) -> Result<(), KvError> {
        let mut sequence = self.take_out(id)?;
        let block_tokens = self.config.block_tokens;
        sequence.committed = sequence.committed.max(length.min(sequence.tokens.len()));
        let before = sequence.node;
        while (sequence.depth + 1) * block_tokens <= sequence.committed {
            self.publish_next(&mut sequence);
        }
        if sequence.node != before {
            self.tree.add_user(sequence.node);
            self.tree.remove_user(before);
        }
        for (group, kind) in self.kinds() {
            let table = &mut sequence.tables[group];
            let outside = kind.first_kept(sequence.committed, block_tokens).saturating_sub(table.first);
            let outside = outside.min(table.blocks.len());
            table.first += outside;
            table.blocks.drain(..outside).for_each(|block| self.pools[group].let_go(block));
        }
        self.put_back(id, sequence);
        Ok(())
    }

    /// Says which token stands at a position that was appended and is not committed yet: one that was appended before
    /// it was known.
    ///
    /// # Errors
    /// An unknown sequence.
    pub fn settle(&mut self, id: SeqId, position: usize, token: u32) -> Result<(), KvError> {
        let sequence = self.sequences.get_mut(&id).ok_or(KvError::UnknownSequence(id))?;
        let committed = sequence.committed;
        if let Some(open) = sequence.tokens.get_mut(position).filter(|_| position >= committed) {
            *open = token;
        }
        Ok(())
    }

    /// A second sequence with the same tokens; blocks are shared until one of the two writes.
    ///
    /// # Errors
    /// An unknown sequence, or tokens not committed.
    pub fn fork(&mut self, id: SeqId) -> Result<SeqId, KvError> {
        let sequence = self.sequence(id)?;
        let pending = sequence.tokens.len() - sequence.committed;
        if pending > 0 {
            return Err(KvError::Uncommitted { pending });
        }
        let twin = sequence.clone();
        self.tree.add_user(twin.node);
        for (group, table) in twin.tables.iter().enumerate() {
            table.blocks.iter().for_each(|block| self.pools[group].hold(*block));
        }
        Ok(self.insert(twin))
    }

    /// Cuts the sequence to its first `length` tokens, or to fewer if a window does not reach back so far or the state
    /// after them is not kept; returns the length that is left. A longer `length` changes nothing.
    ///
    /// # Errors
    /// An unknown sequence.
    pub fn truncate(&mut self, id: SeqId, length: usize) -> Result<usize, KvError> {
        if length >= self.sequence(id)?.tokens.len() {
            return Ok(self.sequence(id)?.tokens.len());
        }
        let mut sequence = self.remove(id)?;
        let block_tokens = self.config.block_tokens;
        let reaches = self.kinds().all(|(group, kind)| {
            let (table, needed) = (&sequence.tables[group], kind.first_needed(length, block_tokens));
            let first = needed.checked_sub(table.first).and_then(|at| table.blocks.get(at));
            // Within a block, later tokens have changed the state.
            let kept = kind != GroupKind::State
                || length == 0
                || length.is_multiple_of(block_tokens) && first.is_some_and(|block| *block != NO_BLOCK);
            kept && (table.first <= needed || length == 0 && kind == GroupKind::State)
        });
        if reaches {
            self.cut(&mut sequence, length);
        } else {
            sequence = self.find_again(sequence, length);
        }
        let left = sequence.tokens.len();
        self.sequences.insert(id, sequence);
        Ok(left)
    }

    /// Takes back tokens that were appended and that no step has begun to compute.
    ///
    /// # Errors
    /// An unknown sequence.
    pub fn retract(&mut self, id: SeqId, length: usize) -> Result<(), KvError> {
        let mut sequence = self.remove(id)?;
        let length = length.max(sequence.committed).min(sequence.tokens.len());
        self.cut(&mut sequence, length);
        self.sequences.insert(id, sequence);
        Ok(())
    }

    /// Lets go of a group's blocks before number `first`, as far as the next token does not need them: what is in them is
    /// not to be found by others.
    ///
    /// # Errors
    /// An unknown sequence.
    pub fn drop_blocks(&mut self, id: SeqId, group: usize, first: usize) -> Result<(), KvError> {
        let mut sequence = self.remove(id)?;
        if let (Some(table), Some(kind)) = (sequence.tables.get_mut(group), self.kinds.get(group)) {
            let needed = kind.first_needed(sequence.tokens.len(), self.config.block_tokens);
            let count = first.min(needed).saturating_sub(table.first).min(table.blocks.len());
            table.first += count;
            table.blocks.drain(..count).for_each(|block| self.pools[group].let_go(block));
        }
        self.sequences.insert(id, sequence);
        Ok(())
    }

    /// Ends the sequence; what it computed stays for reuse until the blocks are needed.
    ///
    /// # Errors
    /// An unknown sequence.
    pub fn free(&mut self, id: SeqId) -> Result<(), KvError> {
        let mut sequence = self.remove(id)?;
        self.publish_end(&sequence);
        self.release(&mut sequence);
        self.tree.remove_user(sequence.node);
        Ok(())
    }

    /// Gives up everything that no sequence holds.
    pub fn forget_idle(&mut self) {
        for group in 0..self.pools.len() {
            for block in self.pools[group].idle_blocks().collect::<Vec<_>>() {
                let node = self.pools[group].node(block);
                self.pools[group].discard(block);
                self.lose(group, node);
            }
        }
    }

    /// The copies since the last call, to be made in this order before the next step writes.
    #[must_use = "the blocks hold wrong content until these are made"]
    pub fn take_copies(&mut self) -> Vec<BlockCopy> {
        std::mem::take(&mut self.copies)
    }

    /// Where the tokens of a sequence are in one group; nothing for a group that does not exist.
    ///
    /// # Errors
    /// An unknown sequence.
    pub fn table(&self, id: SeqId, group: usize) -> Result<Table<'_>, KvError> {
        let table = self.sequence(id)?.tables.get(group);
        Ok(table.map_or(Table { first: 0, blocks: &[] }, |t| Table { first: t.first, blocks: &t.blocks }))
    }

    /// The tokens of a sequence.
    ///
    /// # Errors
    /// An unknown sequence.
    pub fn tokens(&self, id: SeqId) -> Result<&[u32], KvError> {
        Ok(&self.sequence(id)?.tokens)
    }

    /// Number of tokens of a sequence that are computed.
    ///
    /// # Errors
    /// An unknown sequence.
    pub fn committed(&self, id: SeqId) -> Result<usize, KvError> {
        Ok(self.sequence(id)?.committed)
    }

    /// The state of the cache.
    pub fn stats(&self) -> KvStats {
        let group = |pool: &Pool| GroupStats {
            total: pool.total(),
            free: pool.free(),
            evictable: pool.idle(),
            used: pool.total() - pool.free() - pool.idle(),
            shared: pool.shared(),
        };
        KvStats {
            sequences: self.sequences.len(),
            prefixes: self.tree.len(),
            reused_tokens: self.reused_tokens,
            evicted_blocks: self.evicted_blocks,
            copied_blocks: self.copied_blocks,
            groups: self.pools.iter().map(group).collect(),
        }
    }
}
