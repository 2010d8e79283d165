//! The caches of a model.

use wootz_graph::{CacheId, CacheLayout, CacheSpec, Reach, RunError, StateRun, StepInputs};

use crate::blocks::Blocks;
use crate::kv::KvCache;
use crate::recurrent::StateCache;

/// A cache of keys and values, or of states.
pub(super) enum Cache {
    Kv(KvCache),
    State(StateCache),
}

impl Cache {
    fn new(spec: &CacheSpec, layout: &CacheLayout) -> Result<Cache, RunError> {
        let blocks = layout.groups[spec.group as usize].blocks as usize;
        let made = if spec.is_state() {
            StateCache::new(spec.state as usize, blocks).map(Cache::State)
        } else {
            KvCache::new(spec, layout.k_type, layout.v_type, blocks).map(Cache::Kv)
        };
        made.map_err(|e| match RunError::from(e) {
            RunError::OutOfMemory { device, needed, available, .. } => {
                let what = format!("the cache of layer {}", spec.layer);
                RunError::OutOfMemory { device, what, needed, available }
            }
            e => e,
        })
    }

    fn blocks(&self) -> &Blocks {
        match self {
            Cache::Kv(cache) => cache.blocks(),
            Cache::State(cache) => cache.blocks(),
        }
    }

    fn blocks_mut(&mut self) -> &mut Blocks {
        match self {
            Cache::Kv(cache) => cache.blocks_mut(),
            Cache::State(cache) => cache.blocks_mut(),
        }
    }
}

/// All caches of a model.
pub(super) struct Caches {
    layout: CacheLayout,
    caches: Vec<Cache>,
}

impl Caches {
    /// Caches without content.
    pub(super) fn new(layout: CacheLayout) -> Result<Caches, RunError> {
        let caches = layout.caches.iter().map(|spec| Cache::new(spec, &layout)).collect::<Result<_, _>>()?;
        Ok(Caches { layout, caches })
    }

    /// The shape of a cache.
    pub(super) fn spec(&self, cache: CacheId) -> &CacheSpec {
        &self.layout.caches[cache.0 as usize]
    }

    /// A cache of keys and values.
    pub(super) fn keys_and_values(&mut self, cache: CacheId) -> Result<&mut KvCache, RunError> {
        match self.caches.get_mut(cache.0 as usize) {
            Some(Cache::Kv(cache)) => Ok(cache),
            _ => Err(RunError::Plan(format!("cache {} holds no keys and values", cache.0))),
        }
    }

    /// A cache of states.
    pub(super) fn states(&mut self, cache: CacheId) -> Result<&mut StateCache, RunError> {
        match self.caches.get_mut(cache.0 as usize) {
            Some(Cache::State(cache)) => Ok(cache),
            _ => Err(RunError::Plan(format!("cache {} holds no states", cache.0))),
        }
    }

    /// The runs of a step by group; none for groups without states.
    pub(super) fn state_runs(&self, inputs: &StepInputs<'_>) -> Result<Vec<Vec<StateRun>>, RunError> {
        let groups = (0..).zip(&self.layout.groups);
        groups
            .map(|(index, group)| match group.reach {
                Reach::State => inputs.state_runs(index),
                Reach::Full | Reach::Window(_) => Ok(Vec::new()),
            })
            .collect()
    }

    /// Bytes of all caches.
    pub(super) fn bytes(&self) -> u64 {
        self.caches.iter().map(|cache| cache.blocks().bytes() as u64).sum()
    }

    fn of_group(&self, group: u32) -> impl Iterator<Item = &Blocks> {
        let caches = self.caches.iter().zip(&self.layout.caches);
        caches.filter(move |(_, spec)| spec.group == group).map(|(cache, _)| cache.blocks())
    }

    fn of_group_mut(&mut self, group: u32) -> impl Iterator<Item = &mut Blocks> {
        let caches = self.caches.iter_mut().zip(&self.layout.caches);
        caches.filter(move |(_, spec)| spec.group == group).map(|(cache, _)| cache.blocks_mut())
    }

    /// Copies blocks of a group: (source, destination).
    pub(super) fn copy_blocks(&mut self, group: u32, pairs: &[(u32, u32)]) -> Result<(), RunError> {
        for cache in self.of_group_mut(group) {
            for (from, to) in pairs {
                cache.copy_block(*from, *to)?;
            }
        }
        Ok(())
    }

    /// Reads a block of every cache of a group.
    pub(super) fn read_block(&self, group: u32, block: u32, out: &mut Vec<u8>) -> Result<(), RunError> {
        for cache in self.of_group(group) {
            out.extend_from_slice(cache.block(block)?);
        }
        Ok(())
    }

    /// Restores what [`read_block`](Self::read_block) gave.
    pub(super) fn write_block(&mut self, group: u32, block: u32, bytes: &[u8]) -> Result<(), RunError> {
        let expected: usize = self.of_group(group).map(Blocks::block_bytes).sum();
        if bytes.len() != expected {
            return Err(RunError::Input(format!("a block has {expected} bytes, not {}", bytes.len())));
        }
        let mut rest = bytes;
        for cache in self.of_group_mut(group) {
            let (own, after) = rest.split_at(cache.block_bytes());
            cache.write_block(block, own)?;
            rest = after;
        }
        Ok(())
    }
}
