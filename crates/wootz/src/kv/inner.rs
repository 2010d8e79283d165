//! How the operations of the cache move blocks.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;

use wootz_graph::NO_BLOCK;

use super::cache::{BlockCopy, KvCache, SeqId, Sequence, Slots};
use super::config::{GroupKind, KvError};
use super::matching::{Found, find};
use super::tree::NodeId;

impl<S: BuildHasher + Clone> KvCache<S> {
    /// Index and kind of each group.
    pub(super) fn kinds(&self) -> impl Iterator<Item = (usize, GroupKind)> + use<S> {
        let kinds = Arc::clone(&self.kinds);
        (0..kinds.len()).map(move |group| (group, kinds[group]))
    }

    pub(super) fn sequence(&self, id: SeqId) -> Result<&Sequence, KvError> {
        self.sequences.get(&id).ok_or(KvError::UnknownSequence(id))
    }

    /// Takes a sequence out for a change; its place is kept.
    pub(super) fn take_out(&mut self, id: SeqId) -> Result<Sequence, KvError> {
        self.sequences.get_mut(&id).map(std::mem::take).ok_or(KvError::UnknownSequence(id))
    }

    /// Puts back what [`take_out`](Self::take_out) gave.
    pub(super) fn put_back(&mut self, id: SeqId, sequence: Sequence) {
        self.sequences.insert(id, sequence);
    }

    /// Takes a sequence out, to be put back or ended.
    pub(super) fn remove(&mut self, id: SeqId) -> Result<Sequence, KvError> {
        self.sequences.remove(&id).ok_or(KvError::UnknownSequence(id))
    }

    pub(super) fn insert(&mut self, sequence: Sequence) -> SeqId {
        let id = SeqId(self.next_id);
        self.next_id += 1;
        self.sequences.insert(id, sequence);
        id
    }

    /// Blocks that can be had for new content.
    pub(super) fn available(&self, group: usize) -> usize {
        self.pools[group].free() + self.pools[group].idle()
    }

    pub(super) fn out_of_blocks(&self, group: usize, needed: usize) -> KvError {
        let pool = &self.pools[group];
        let (free, evictable, total) = (pool.free(), pool.idle(), pool.total());
        KvError::OutOfBlocks { group, needed, free, evictable, total }
    }

    /// A block for new content, if there is one.
    pub(super) fn take(&mut self, group: usize) -> Option<u32> {
        let taken = self.pools[group].take()?;
        if taken.evicted.is_some() {
            self.evicted_blocks += 1;
            self.lose(group, taken.evicted);
        }
        Some(taken.block)
    }

    /// Notes that a prefix has no block in this group any more.
    pub(super) fn lose(&mut self, group: usize, node: Option<NodeId>) {
        if let Some(node) = node {
            self.tree.set_block(node, group, None);
            self.tree.prune(node);
        }
    }

    pub(super) fn publish(&mut self, node: NodeId, group: usize, block: u32) {
        self.pools[group].publish(block, node);
        self.tree.set_block(node, group, Some(block));
    }

    fn withdraw(&mut self, group: usize, block: u32) {
        let node = self.pools[group].withdraw(block);
        self.lose(group, node);
    }

    pub(super) fn copy(&mut self, group: usize, src: u32, dst: u32) {
        self.copied_blocks += 1;
        self.copies.push(BlockCopy { group, src, dst });
    }

    /// The partly filled block at the end of a sequence.
    pub(super) fn tail(&self, sequence: &Sequence, group: usize) -> Option<u32> {
        let partly = !sequence.tokens.len().is_multiple_of(self.config.block_tokens);
        sequence.tables[group].blocks.last().copied().filter(|_| partly)
    }

    /// Tells whether others hold the block at the end or may find it, so that it must not be written.
    pub(super) fn must_copy(&self, sequence: &Sequence, group: usize) -> bool {
        let pool = &self.pools[group];
        self.tail(sequence, group).is_some_and(|block| pool.refs(block) > 1 || pool.node(block).is_some())
    }

    /// Makes the block at the end the sequence's own, given how many more blocks it is about to take.
    pub(super) fn own_tail(&mut self, sequence: &mut Sequence, group: usize, fresh: usize) {
        let Some(shared) = self.tail(sequence, group) else { return };
        if self.available(group) <= fresh {
            return self.withdraw(group, shared);
        }
        if let Some(own) = self.take(group) {
            self.copy(group, shared, own);
            self.pools[group].let_go(shared);
            if let Some(last) = sequence.tables[group].blocks.last_mut() {
                *last = own;
            }
        }
    }

    /// Publishes the next whole block of a sequence, or shares the one that was published before.
    pub(super) fn publish_next(&mut self, sequence: &mut Sequence) {
        let block_tokens = self.config.block_tokens;
        let at = sequence.depth;
        let tokens = &sequence.tokens[at * block_tokens..(at + 1) * block_tokens];
        let node = self.tree.child(sequence.node, tokens);
        for (group, table) in sequence.tables.iter_mut().enumerate() {
            if at < table.first {
                continue;
            }
            let own = table.blocks[at - table.first];
            if own == NO_BLOCK {
                continue;
            }
            match self.tree.block(node, group) {
                None => {
                    self.pools[group].publish(own, node);
                    self.tree.set_block(node, group, Some(own));
                }
                Some(known) if known != own => {
                    // The same tokens were computed twice: keep one of the blocks.
                    self.pools[group].hold(known);
                    self.pools[group].let_go(own);
                    table.blocks[at - table.first] = known;
                }
                Some(_) => {}
            }
        }
        sequence.node = node;
        sequence.depth += 1;
    }

    /// Keeps for reuse what a sequence leaves behind after its last whole block.
    pub(super) fn publish_end(&mut self, sequence: &Sequence) {
        let has_state = self.kinds().any(|(_, kind)| kind == GroupKind::State);
        if has_state && sequence.committed != sequence.tokens.len() {
            // The state may have moved on already.
            return;
        }
        let start = sequence.depth * self.config.block_tokens;
        let rest = &sequence.tokens[start..sequence.committed];
        if rest.is_empty() {
            return;
        }
        let tables = sequence.tables.iter().enumerate();
        let kept: Vec<(usize, u32)> =
            tables.map(|(group, table)| (group, table.blocks[sequence.depth - table.first])).collect();
        let private = |&(group, block): &(usize, u32)| {
            self.pools[group].refs(block) == 1 && self.pools[group].node(block).is_none()
        };
        let covered = |node: NodeId| {
            let tokens = self.tree.tokens(node);
            // A state is of one length only.
            let same = tokens.starts_with(rest) && (!has_state || tokens.len() == rest.len());
            same && kept.iter().all(|(group, _)| self.tree.block(node, *group).is_some())
        };
        let needless = self.tree.children(sequence.node).any(covered);
        if needless || !kept.iter().all(private) {
            return;
        }
        let node = self.tree.child(sequence.node, rest);
        for (group, block) in kept {
            if self.tree.block(node, group).is_none() {
                self.publish(node, group, block);
            }
        }
    }

    /// Lets go of all blocks of a sequence, the last first, so that a prefix outlives what builds on it.
    pub(super) fn release(&mut self, sequence: &mut Sequence) {
        for (group, table) in sequence.tables.iter_mut().enumerate() {
            table.blocks.drain(..).rev().for_each(|block| self.pools[group].let_go(block));
        }
    }

    /// Cuts a sequence whose blocks reach back far enough.
    pub(super) fn cut(&mut self, sequence: &mut Sequence, length: usize) {
        let kept = length.div_ceil(self.config.block_tokens);
        for (group, table) in sequence.tables.iter_mut().enumerate() {
            let outside = table.blocks.drain(kept.saturating_sub(table.first).min(table.blocks.len())..);
            outside.rev().for_each(|block| self.pools[group].let_go(block));
            table.first = table.first.min(kept);
        }
        sequence.tokens.truncate(length);
        sequence.committed = sequence.committed.min(length);
        let before = sequence.node;
        while sequence.depth > length / self.config.block_tokens {
            sequence.depth -= 1;
            sequence.node = self.tree.parent(sequence.node).unwrap_or(sequence.node);
        }
        if sequence.node != before {
            self.tree.add_user(sequence.node);
            self.tree.remove_user(before);
        }
    }

    /// Makes a new sequence of the first tokens of one whose blocks or states do not reach back so far.
    pub(super) fn find_again(&mut self, mut sequence: Sequence, length: usize) -> Sequence {
        let mut root = sequence.node;
        while let Some(parent) = self.tree.parent(root) {
            root = parent;
        }
        let length = length.min(sequence.committed);
        self.release(&mut sequence);
        let found = self.find_from(root, &sequence.tokens[..length]);
        let again = self.attach(root, found, &sequence.tokens);
        self.tree.remove_user(sequence.node);
        again
    }

    pub(super) fn find(&self, namespace: &str, tokens: &[u32]) -> Found {
        let root = self.tree.find_root(namespace);
        root.map_or_else(Found::default, |root| self.find_from(root, tokens))
    }

    fn find_from(&self, root: NodeId, tokens: &[u32]) -> Found {
        let found = find(&self.tree, &self.config, root, tokens, true);
        if self.tail_fits(&found) { found } else { find(&self.tree, &self.config, root, tokens, false) }
    }

    /// Tells whether every group has a block into which the found tail can be copied, or can give the tail
    /// itself away.
    fn tail_fits(&self, found: &Found) -> bool {
        let Some((tail, _)) = found.tail else { return true };
        let length = found.summary(self.config.block_tokens).tokens;
        self.kinds().all(|(group, kind)| {
            let first = kind.first_needed(length, self.config.block_tokens);
            let idle = |node: &NodeId| {
                self.tree.block(*node, group).is_some_and(|block| self.pools[group].refs(block) == 0)
            };
            let pinned = found.path.iter().skip(first).filter(|node| idle(node)).count();
            idle(&tail) || self.available(group) > pinned
        })
    }

    /// A sequence of the tokens found.
    pub(super) fn attach(&mut self, root: NodeId, found: Found, tokens: &[u32]) -> Sequence {
        let length = found.summary(self.config.block_tokens).tokens;
        let node = found.path.last().copied().unwrap_or(root);
        // Hold all that was found before anything is taken, so that nothing of it is evicted.
        self.tree.add_user(node);
        let mut tables = Vec::new();
        let mut sources = Vec::new();
        for (group, kind) in self.kinds() {
            let first = kind.first_needed(length, self.config.block_tokens);
            let shared = found.path.get(first..).unwrap_or(&[]);
            let blocks: Vec<u32> = shared.iter().filter_map(|&node| self.tree.block(node, group)).collect();
            blocks.iter().for_each(|&block| self.pools[group].hold(block));
            tables.push(Slots { first, blocks });
            let source = found.tail.and_then(|(node, _)| self.tree.block(node, group));
            source.iter().for_each(|&block| self.pools[group].hold(block));
            sources.push(source);
        }
        for (group, source) in sources.into_iter().enumerate() {
            let Some(source) = source else { continue };
            match self.take(group) {
                Some(own) => {
                    self.copy(group, source, own);
                    self.pools[group].let_go(source);
                    tables[group].blocks.push(own);
                }
                None => {
                    // Nothing to copy it into: take it away from those who would come later.
                    self.withdraw(group, source);
                    tables[group].blocks.push(source);
                }
            }
        }
        self.reused_tokens += length as u64;
        Sequence {
            tokens: tokens[..length].to_vec(),
            committed: length,
            node,
            depth: found.path.len(),
            tables,
        }
    }

    /// Says what is wrong with the bookkeeping, if anything; for tests, since it looks at everything.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(&self) -> Result<(), String> {
        let mut users: HashMap<NodeId, u32> = HashMap::new();
        let mut holders: Vec<Vec<u32>> = self.pools.iter().map(|pool| vec![0; pool.total()]).collect();
        for (id, sequence) in &self.sequences {
            *users.entry(sequence.node).or_default() += 1;
            for (group, table) in sequence.tables.iter().enumerate() {
                let held = table.blocks.iter().filter(|block| **block != NO_BLOCK);
                held.for_each(|&block| holders[group][block as usize] += 1);
            }
            self.check_sequence(sequence).map_err(|fault| format!("{id:?}: {fault}"))?;
        }
        for (group, pool) in self.pools.iter().enumerate() {
            pool.check(&holders[group]).map_err(|fault| format!("group {group}: {fault}"))?;
            for block in 0..pool.total() as u32 {
                if let Some(node) = pool.node(block)
                    && self.tree.block(node, group) != Some(block)
                {
                    return Err(format!("group {group}: block {block} is not known to its node {node}"));
                }
            }
        }
        for (node, blocks) in self.tree.iter() {
            for (group, block) in blocks.iter().enumerate() {
                if block.is_some_and(|block| self.pools[group].node(block) != Some(node)) {
                    return Err(format!("group {group}: node {node} has block {block:?} of another"));
                }
            }
        }
        self.tree.check(self.config.block_tokens, &users)
    }

    fn check_sequence(&self, sequence: &Sequence) -> Result<(), String> {
        let block_tokens = self.config.block_tokens;
        let (length, depth) = (sequence.tokens.len(), sequence.depth);
        if sequence.committed > length || depth != sequence.committed / block_tokens {
            return Err(format!("{} of {length} tokens and {depth} blocks are done", sequence.committed));
        }
        let mut path = Vec::new();
        let mut node = sequence.node;
        while let Some(parent) = self.tree.parent(node) {
            path.push(node);
            node = parent;
        }
        path.reverse();
        let tokens: Vec<u32> = path.iter().flat_map(|&node| self.tree.tokens(node).to_vec()).collect();
        if tokens != sequence.tokens[..depth * block_tokens] {
            return Err("the published prefix is of other tokens".to_string());
        }
        for (group, kind) in self.kinds() {
            let table = &sequence.tables[group];
            let first = kind.first_needed(sequence.committed, block_tokens);
            if table.first > first || table.first + table.blocks.len() != length.div_ceil(block_tokens) {
                return Err(format!("group {group}: {table:?} for {length} tokens"));
            }
            for (at, &block) in (table.first..).zip(&table.blocks) {
                if block == NO_BLOCK {
                    if kind != GroupKind::State || (at + 1) * block_tokens >= length {
                        return Err(format!("group {group}: no block of position {}", at * block_tokens));
                    }
                    continue;
                }
                let published = self.pools[group].node(block);
                if at < depth && published != Some(path[at]) {
                    return Err(format!("group {group}: block {block} is not the published one"));
                }
                // Blocks with tokens yet to be computed are written, so nobody else may see them.
                let written = (at + 1) * block_tokens > sequence.committed && sequence.committed < length;
                if written && (published.is_some() || self.pools[group].refs(block) != 1) {
                    return Err(format!("group {group}: block {block} is written and seen by others"));
                }
            }
        }
        Ok(())
    }
}
