//! The physical blocks of one group: who holds them and which can be had.

use std::collections::BTreeMap;

use wootz_graph::NO_BLOCK;

use super::tree::NodeId;

/// One physical block.
#[derive(Debug, Clone, Default)]
struct Block {
    /// Sequences that hold it.
    refs: u32,
    /// The prefix whose last tokens it holds, if it can be reused.
    node: Option<NodeId>,
    /// When it was last let go; its key in `Pool::idle` while it is there.
    tick: u64,
}

/// Blocks are free (held by none, content of no use), idle (held by none, content reusable) or in use.
#[derive(Debug)]
pub(super) struct Pool {
    blocks: Vec<Block>,
    free: Vec<u32>,
    /// Blocks held by none whose content can be reused, least recently used first.
    idle: BTreeMap<u64, u32>,
    clock: u64,
}

/// A block for new content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) block: u32,
    /// The prefix that has lost its block.
    pub(super) evicted: Option<NodeId>,
}

impl Pool {
    pub(super) fn new(total: u32) -> Self {
        let blocks = vec![Block::default(); total as usize];
        Self { blocks, free: (0..total).rev().collect(), idle: BTreeMap::new(), clock: 0 }
    }

    pub(super) fn total(&self) -> usize {
        self.blocks.len()
    }

    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    pub(super) fn idle(&self) -> usize {
        self.idle.len()
    }

    /// Blocks that more than one sequence holds.
    pub(super) fn shared(&self) -> usize {
        self.blocks.iter().filter(|block| block.refs > 1).count()
    }

    pub(super) fn refs(&self, block: u32) -> u32 {
        self.blocks[block as usize].refs
    }

    pub(super) fn node(&self, block: u32) -> Option<NodeId> {
        self.blocks[block as usize].node
    }

    /// Takes a free block, or else the least recently used idle one, for one holder.
    pub(super) fn take(&mut self) -> Option<Taken> {
        let (block, evicted) = match self.free.pop() {
            Some(block) => (block, None),
            None => {
                let (_, block) = self.idle.pop_first()?;
                (block, self.blocks[block as usize].node.take())
            }
        };
        self.blocks[block as usize].refs = 1;
        Some(Taken { block, evicted })
    }

    /// Adds a holder, unless there is no block.
    pub(super) fn hold(&mut self, block: u32) {
        if block == NO_BLOCK {
            return;
        }
        let entry = &mut self.blocks[block as usize];
        if entry.refs == 0 {
            self.idle.remove(&entry.tick);
        }
        entry.refs += 1;
    }

    /// Removes a holder; the last one leaves the block idle if it can be reused, free if not.
    pub(super) fn let_go(&mut self, block: u32) {
        if block == NO_BLOCK {
            return;
        }
        let entry = &mut self.blocks[block as usize];
        entry.refs -= 1;
        if entry.refs > 0 {
            return;
        }
        if entry.node.is_some() {
            self.clock += 1;
            entry.tick = self.clock;
            self.idle.insert(self.clock, block);
        } else {
            self.free.push(block);
        }
    }

    /// Makes the content of a block in use reusable as the last tokens of a prefix.
    pub(super) fn publish(&mut self, block: u32, node: NodeId) {
        self.blocks[block as usize].node = Some(node);
    }

    /// Makes the content of a block in use private again; returns the prefix that has lost it.
    pub(super) fn withdraw(&mut self, block: u32) -> Option<NodeId> {
        self.blocks[block as usize].node.take()
    }

    /// Drops the content of an idle block.
    pub(super) fn discard(&mut self, block: u32) {
        let entry = &mut self.blocks[block as usize];
        if entry.refs == 0 && entry.node.take().is_some() {
            self.idle.remove(&entry.tick);
            self.free.push(block);
        }
    }

    /// The idle blocks, least recently used first.
    pub(super) fn idle_blocks(&self) -> impl Iterator<Item = u32> + '_ {
        self.idle.values().copied()
    }

    /// Says what is wrong with the lists, given how many sequences hold each block.
    pub(super) fn check(&self, holders: &[u32]) -> Result<(), String> {
        let mut listed = vec![0; self.blocks.len()];
        for &block in &self.free {
            listed[block as usize] += 1;
            let entry = &self.blocks[block as usize];
            if entry.refs != 0 || entry.node.is_some() {
                return Err(format!("free block {block} is held or published: {entry:?}"));
            }
        }
        for (&tick, &block) in &self.idle {
            listed[block as usize] += 1;
            let entry = &self.blocks[block as usize];
            if entry.refs != 0 || entry.node.is_none() || entry.tick != tick {
                return Err(format!("idle block {block} is held, not published or misfiled: {entry:?}"));
            }
        }
        for (block, entry) in self.blocks.iter().enumerate() {
            if entry.refs != holders[block] {
                return Err(format!("block {block} counts {} holders, has {}", entry.refs, holders[block]));
            }
            if listed[block] != u32::from(entry.refs == 0) {
                return Err(format!(
                    "block {block} with {} holders is listed {} times",
                    entry.refs, listed[block]
                ));
            }
        }
        Ok(())
    }
}
