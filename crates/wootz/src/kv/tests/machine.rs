//! Memory as a backend would hold it, where each place says which text it was computed from.

use std::hash::BuildHasher;

use wootz_graph::NO_BLOCK;

use super::super::{BlockCopy, GroupKind, KvCache, KvConfig, KvError, SeqId};

/// What a place holds: a number for all tokens up to its own; 0 for none.
fn mark(namespace: &str, tokens: &[u32]) -> u64 {
    if tokens.is_empty() {
        return 0;
    }
    let bytes = namespace.bytes().map(u32::from).chain([u32::MAX]).chain(tokens.iter().copied());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, x| (hash ^ u64::from(x)).wrapping_mul(0x100_0000_01b3))
}

pub(super) struct Running {
    pub(super) id: SeqId,
    pub(super) namespace: String,
    pub(super) tokens: Vec<u32>,
}

pub(super) struct Machine<S> {
    pub(super) cache: KvCache<S>,
    /// By group, block and place in the block; the state after a block's last computed token is in place 0.
    memory: Vec<Vec<Vec<u64>>>,
    pub(super) running: Vec<Running>,
}

impl<S: BuildHasher + Clone> Machine<S> {
    pub(super) fn new(config: KvConfig, hasher: S) -> Self {
        let block = vec![u64::MAX; config.block_tokens];
        let memory = config.groups.iter().map(|group| vec![block.clone(); group.blocks as usize]).collect();
        Self { cache: KvCache::with_hasher(config, hasher).unwrap(), memory, running: Vec::new() }
    }

    /// Runs an operation; if it is refused, fails unless nothing has changed.
    fn attempt<T>(&mut self, run: impl FnOnce(&mut KvCache<S>) -> Result<T, KvError>) -> Result<T, KvError> {
        let before = self.cache.stats();
        let result = run(&mut self.cache);
        self.cache.check().unwrap();
        let copies = self.cache.take_copies();
        if let Err(error) = &result {
            assert_eq!((self.cache.stats(), copies.len()), (before, 0), "changed in spite of {error}");
        }
        for BlockCopy { group, src, dst } in copies {
            assert_ne!(src, dst);
            self.memory[group][dst as usize] = self.memory[group][src as usize].clone();
        }
        result
    }

    /// Fails unless the memory holds all that the token at the end of a sequence needs.
    pub(super) fn check_memory(&self, running: &Running) {
        let block_tokens = self.cache.config().block_tokens;
        let length = running.tokens.len();
        assert_eq!(self.cache.tokens(running.id).unwrap(), running.tokens);
        for (group, settings) in self.cache.config().groups.iter().enumerate() {
            let table = self.cache.table(running.id, group).unwrap();
            let needed = match settings.kind {
                GroupKind::Full => 0..length,
                GroupKind::Window { tokens, .. } => (length + 1).saturating_sub(tokens)..length,
                GroupKind::State => {
                    let wanted = mark(&running.namespace, &running.tokens);
                    let last =
                        length.checked_sub(1).map(|last| table.blocks[last / block_tokens - table.first]);
                    let found = last.map_or(0, |block| self.memory[group][block as usize][0]);
                    assert_eq!(found, wanted, "state after {length} tokens");
                    continue;
                }
            };
            for position in needed {
                let block = table.blocks[position / block_tokens - table.first];
                let found = self.memory[group][block as usize][position % block_tokens];
                let wanted = mark(&running.namespace, &running.tokens[..=position]);
                assert_eq!(found, wanted, "group {group}, token {position} of {length}");
            }
        }
    }

    pub(super) fn create(&mut self, namespace: &str, tokens: &[u32]) -> usize {
        let promised = self.cache.match_prefix(namespace, tokens);
        let (id, found) = self.attempt(|cache| Ok(cache.create(namespace, tokens))).unwrap();
        assert_eq!(found, promised);
        let tokens = tokens[..found.tokens].to_vec();
        self.running.push(Running { id, namespace: namespace.to_string(), tokens });
        self.check_memory(&self.running[self.running.len() - 1]);
        found.tokens
    }

    /// Appends and computes tokens, without committing them.
    pub(super) fn compute(&mut self, at: usize, tokens: &[u32]) -> Result<(), KvError> {
        let id = self.running[at].id;
        let fits = self.cache.check_append(id, tokens.len());
        let result = self.attempt(|cache| cache.append(id, tokens));
        assert_eq!(result, fits);
        result?;
        let old = self.running[at].tokens.len();
        let running = &mut self.running[at];
        running.tokens.extend_from_slice(tokens);
        let running = &self.running[at];
        let block_tokens = self.cache.config().block_tokens;
        for (group, settings) in self.cache.config().groups.iter().enumerate() {
            let table = self.cache.table(id, group).unwrap();
            if settings.kind == GroupKind::State {
                let mut at = old;
                while at < running.tokens.len() {
                    let end = running.tokens.len().min((at / block_tokens + 1) * block_tokens);
                    let block = table.blocks[at / block_tokens - table.first];
                    if block != NO_BLOCK {
                        self.memory[group][block as usize][0] =
                            mark(&running.namespace, &running.tokens[..end]);
                    }
                    at = end;
                }
                continue;
            }
            for position in old..running.tokens.len() {
                let block = table.blocks[position / block_tokens - table.first];
                let place = &mut self.memory[group][block as usize][position % block_tokens];
                *place = mark(&running.namespace, &running.tokens[..=position]);
            }
        }
        self.running.iter().for_each(|running| self.check_memory(running));
        Ok(())
    }

    pub(super) fn commit(&mut self, at: usize) {
        let id = self.running[at].id;
        self.attempt(|cache| cache.commit(id)).unwrap();
        self.check_memory(&self.running[at]);
    }

    pub(super) fn fork(&mut self, at: usize) -> Result<(), KvError> {
        let id = self.running[at].id;
        let twin = self.attempt(|cache| cache.fork(id))?;
        let of = &self.running[at];
        self.running.push(Running { id: twin, namespace: of.namespace.clone(), tokens: of.tokens.clone() });
        self.check_memory(&self.running[self.running.len() - 1]);
        Ok(())
    }

    pub(super) fn truncate(&mut self, at: usize, length: usize) -> usize {
        let id = self.running[at].id;
        let left = self.attempt(|cache| cache.truncate(id, length)).unwrap();
        let running = &mut self.running[at];
        assert!(left <= length);
        let only_full = self.cache.config().groups.iter().all(|group| group.kind == GroupKind::Full);
        assert!(!only_full || left == length, "full attention reaches back any length");
        running.tokens.truncate(left);
        self.check_memory(&self.running[at]);
        left
    }

    /// Appends tokens and takes them back before anything is computed.
    pub(super) fn retract(&mut self, at: usize, tokens: &[u32]) {
        let id = self.running[at].id;
        let length = self.running[at].tokens.len();
        if self.attempt(|cache| cache.append(id, tokens)).is_ok() {
            self.attempt(|cache| cache.retract(id, length)).unwrap();
        }
        self.running.iter().for_each(|running| self.check_memory(running));
    }

    pub(super) fn free(&mut self, at: usize) {
        let running = self.running.swap_remove(at);
        self.attempt(|cache| cache.free(running.id)).unwrap();
        assert_eq!(self.cache.committed(running.id), Err(KvError::UnknownSequence(running.id)));
    }
}
