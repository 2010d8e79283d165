//! Finding the longest known prefix of a sequence.

use std::hash::BuildHasher;

use super::config::{GroupKind, KvConfig};
use super::tree::{NodeId, Tree};

/// How much of a sequence is already in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrefixMatch {
    /// Tokens that need no computation.
    pub tokens: usize,
    /// Whole blocks of them, which are shared.
    pub shared_blocks: usize,
    /// Tokens of them in a partly used block, which is copied.
    pub copied_tokens: usize,
}

/// The longest known prefix, as nodes.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// One node for each whole block.
    pub(super) path: Vec<NodeId>,
    /// A node whose first tokens come next, and their number.
    pub(super) tail: Option<(NodeId, usize)>,
}

impl Found {
    pub(super) fn summary(&self, block_tokens: usize) -> PrefixMatch {
        let copied_tokens = self.tail.map_or(0, |tail| tail.1);
        let shared_blocks = self.path.len();
        PrefixMatch { tokens: shared_blocks * block_tokens + copied_tokens, shared_blocks, copied_tokens }
    }
}

/// Finds the longest prefix of `tokens` from which every group can go on; without a tail it ends with a block.
pub(super) fn find<S: BuildHasher + Clone>(
    tree: &Tree<S>,
    config: &KvConfig,
    root: NodeId,
    tokens: &[u32],
    with_tail: bool,
) -> Found {
    let full = |group: &usize| config.groups[*group].kind == GroupKind::Full;
    let full: Vec<usize> = (0..config.groups.len()).filter(full).collect();
    let mut path = Vec::new();
    let mut last = root;
    for block in tokens.chunks_exact(config.block_tokens) {
        match tree.find_child(last, block) {
            Some(node) if full.iter().all(|&group| tree.block(node, group).is_some()) => last = node,
            _ => break,
        }
        path.push(last);
    }
    loop {
        let parent = path.last().copied().unwrap_or(root);
        let rest = &tokens[path.len() * config.block_tokens..];
        if with_tail && let Some(tail) = best_tail(tree, config, &path, parent, rest) {
            return Found { path, tail: Some(tail) };
        }
        if path.is_empty() || usable(tree, config, &path, None) {
            return Found { path, tail: None };
        }
        path.pop();
    }
}

/// The child that shares most tokens with `rest`, the lowest if several do.
fn best_tail<S: BuildHasher + Clone>(
    tree: &Tree<S>,
    config: &KvConfig,
    path: &[NodeId],
    parent: NodeId,
    rest: &[u32],
) -> Option<(NodeId, usize)> {
    tree.children(parent)
        .map(|node| {
            let shared = tree.tokens(node).iter().zip(rest).take_while(|(a, b)| a == b).count();
            (node, shared)
        })
        .filter(|&tail| tail.1 > 0 && usable(tree, config, path, Some(tail)))
        .max_by_key(|&(node, shared)| (shared, std::cmp::Reverse(node)))
}

/// Tells whether every group has what the token after this prefix needs.
fn usable<S: BuildHasher + Clone>(
    tree: &Tree<S>,
    config: &KvConfig,
    path: &[NodeId],
    tail: Option<(NodeId, usize)>,
) -> bool {
    let length = path.len() * config.block_tokens + tail.map_or(0, |tail| tail.1);
    config.groups.iter().enumerate().all(|(group, settings)| {
        let has = |node: NodeId| tree.block(node, group).is_some();
        // A state is of one length only: that at the end of the node.
        let ends = |(node, shared)| settings.kind != GroupKind::State || shared == tree.tokens(node).len();
        let first = settings.kind.first_needed(length, config.block_tokens);
        path.iter().skip(first).all(|&node| has(node)) && tail.is_none_or(|tail| has(tail.0) && ends(tail))
    })
}
