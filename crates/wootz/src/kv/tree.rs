//! The prefixes whose blocks can be reused, as a tree of blocks of tokens.
//!
//! A node stands for all tokens from the root to its own last one. Children are found by the hash of their
//! tokens and compared token by token, so a collision of hashes can never give another prefix's content.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;

pub(super) type NodeId = u32;

/// One block of tokens after a given prefix.
#[derive(Debug)]
struct Node<S> {
    parent: Option<NodeId>,
    /// A whole block, or fewer for the end of a sequence; empty for a root.
    tokens: Arc<[u32]>,
    children: HashMap<Arc<[u32]>, NodeId, S>,
    /// The physical block of each group that holds these tokens.
    blocks: Box<[Option<u32>]>,
    /// Sequences whose deepest published prefix this is.
    users: u32,
}

/// All prefixes of all namespaces.
#[derive(Debug)]
pub(super) struct Tree<S> {
    nodes: Vec<Option<Node<S>>>,
    vacant: Vec<NodeId>,
    roots: HashMap<Arc<str>, NodeId, S>,
    names: HashMap<NodeId, Arc<str>, S>,
    groups: usize,
    hasher: S,
}

impl<S: BuildHasher + Clone> Tree<S> {
    pub(super) fn new(groups: usize, hasher: S) -> Self {
        Self {
            nodes: Vec::new(),
            vacant: Vec::new(),
            roots: HashMap::with_hasher(hasher.clone()),
            names: HashMap::with_hasher(hasher.clone()),
            groups,
            hasher,
        }
    }

    fn node(&self, id: NodeId) -> &Node<S> {
        self.nodes[id as usize].as_ref().expect("nodes are removed only when nothing names them")
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node<S> {
        self.nodes[id as usize].as_mut().expect("nodes are removed only when nothing names them")
    }

    fn insert(&mut self, parent: Option<NodeId>, tokens: Arc<[u32]>) -> NodeId {
        let children = HashMap::with_hasher(self.hasher.clone());
        let blocks = vec![None; self.groups].into_boxed_slice();
        let node = Some(Node { parent, tokens, children, blocks, users: 0 });
        match self.vacant.pop() {
            Some(id) => {
                self.nodes[id as usize] = node;
                id
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as NodeId
            }
        }
    }

    /// The empty prefix of a namespace, if anything is known of that.
    pub(super) fn find_root(&self, namespace: &str) -> Option<NodeId> {
        self.roots.get(namespace).copied()
    }

    /// The empty prefix of a namespace.
    pub(super) fn root(&mut self, namespace: &str) -> NodeId {
        if let Some(root) = self.find_root(namespace) {
            return root;
        }
        let name: Arc<str> = namespace.into();
        let root = self.insert(None, Arc::from([]));
        self.roots.insert(Arc::clone(&name), root);
        self.names.insert(root, name);
        root
    }

    /// The prefix longer by these tokens.
    pub(super) fn find_child(&self, parent: NodeId, tokens: &[u32]) -> Option<NodeId> {
        self.node(parent).children.get(tokens).copied()
    }

    /// The prefix longer by these tokens, made if it is not there.
    pub(super) fn child(&mut self, parent: NodeId, tokens: &[u32]) -> NodeId {
        if let Some(child) = self.find_child(parent, tokens) {
            return child;
        }
        let tokens: Arc<[u32]> = tokens.into();
        let child = self.insert(Some(parent), Arc::clone(&tokens));
        self.node_mut(parent).children.insert(tokens, child);
        child
    }

    pub(super) fn children(&self, parent: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        self.node(parent).children.values().copied()
    }

    pub(super) fn parent(&self, id: NodeId) -> Option<NodeId> {
        self.node(id).parent
    }

    pub(super) fn tokens(&self, id: NodeId) -> &[u32] {
        &self.node(id).tokens
    }

    pub(super) fn block(&self, id: NodeId, group: usize) -> Option<u32> {
        self.node(id).blocks[group]
    }

    pub(super) fn set_block(&mut self, id: NodeId, group: usize, block: Option<u32>) {
        self.node_mut(id).blocks[group] = block;
    }

    pub(super) fn add_user(&mut self, id: NodeId) {
        self.node_mut(id).users += 1;
    }

    pub(super) fn remove_user(&mut self, id: NodeId) {
        self.node_mut(id).users -= 1;
        self.prune(id);
    }

    /// Removes the node and its ancestors as far as nothing needs them.
    pub(super) fn prune(&mut self, mut id: NodeId) {
        loop {
            let node = self.node(id);
            if node.users > 0 || !node.children.is_empty() || node.blocks.iter().any(Option::is_some) {
                return;
            }
            let (parent, tokens) = (node.parent, Arc::clone(&node.tokens));
            self.nodes[id as usize] = None;
            self.vacant.push(id);
            match parent {
                Some(parent) => {
                    self.node_mut(parent).children.remove(&tokens);
                    id = parent;
                }
                None => {
                    if let Some(name) = self.names.remove(&id) {
                        self.roots.remove(&name);
                    }
                    return;
                }
            }
        }
    }

    /// Number of prefixes, without the empty ones.
    pub(super) fn len(&self) -> usize {
        self.nodes.len() - self.vacant.len() - self.roots.len()
    }

    /// Every node with its blocks.
    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeId, &[Option<u32>])> + '_ {
        let present = self.nodes.iter().enumerate();
        present.filter_map(|(id, node)| node.as_ref().map(|node| (id as NodeId, &*node.blocks)))
    }

    /// Says what is wrong with the tree, given the users of each node.
    pub(super) fn check(&self, block_tokens: usize, users: &HashMap<NodeId, u32>) -> Result<(), String> {
        for (id, node) in
            self.nodes.iter().enumerate().filter_map(|(i, n)| n.as_ref().map(|n| (i as NodeId, n)))
        {
            let length = node.tokens.len();
            if node.parent.is_none() != (length == 0) || length > block_tokens {
                return Err(format!("node {id} has {length} tokens and parent {:?}", node.parent));
            }
            if length > 0 && length < block_tokens && !node.children.is_empty() {
                return Err(format!("node {id} of {length} tokens has children"));
            }
            if node.users != users.get(&id).copied().unwrap_or(0) {
                return Err(format!("node {id} counts {} users", node.users));
            }
            if node.users == 0 && node.children.is_empty() && node.blocks.iter().all(Option::is_none) {
                return Err(format!("node {id} is needed by nothing"));
            }
            for (tokens, &child) in &node.children {
                let there = self.nodes[child as usize].as_ref();
                if there.is_none_or(|c| c.parent != Some(id) || c.tokens != *tokens) {
                    return Err(format!("node {id} has a child {child} that is not its own"));
                }
            }
        }
        Ok(())
    }
}
