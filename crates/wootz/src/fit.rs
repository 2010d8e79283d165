//! How long a context fits its devices.

use wootz_graph::{
    BLOCK_TOKENS, CacheGroup, CacheLayout, DeviceInfo, DeviceKind, Graph, KvType, Reach, split,
};

use crate::context::Limits;
use crate::error::Error;
use crate::model::Model;
use crate::options::{ContextOptions, Repack};
use crate::placement::{self, Place};

/// The share of free memory that caches may take where the user names no context: the rest is for weights' growth,
/// plans and other programs.
const CACHE_SHARE: u64 = 2;

/// A context that the user has not named is never shorter than this, but for models whose own is.
const SHORTEST: usize = 512;

/// The memory of a device that a part of a model is for.
struct Room {
    /// Bytes that caches may take, where known.
    free: Option<u64>,
    /// The part.
    graph: Graph,
}

/// Context length and caches that fit the devices; `graph` uses all weights.
pub(crate) fn fit(
    model: &Model,
    places: &[Place],
    graph: Graph,
    options: &ContextOptions,
) -> Result<(Limits, CacheLayout), Error> {
    let hp = model.arch().hparams();
    let sequences = options.sequences.max(1);
    // An encoder takes a text in one step, and has no positions beyond those that it knows.
    let batch = options.batch_on(Some(&placement::together(places)));
    let (most, batch) = match hp.causal {
        true => (usize::MAX, batch),
        false => (hp.context_length as usize, batch.max(hp.context_length as usize)),
    };
    let layers: Vec<usize> = places.iter().map(|place| place.layers).collect();
    let rooms = places.iter().zip(split(graph, &layers)?).map(|(place, graph)| {
        let weights = graph.weight_bytes(model.arch().weights());
        Room { free: cache_memory(&place.info, weights, options), graph }
    });
    let rooms: Vec<Room> = rooms.collect();
    let layout = |context: usize| layout(model, context, sequences, batch, options);
    let needed = |context: usize, room: &Room| {
        CacheLayout { caches: room.graph.caches.clone(), ..layout(context) }.total_bytes()
    };
    let longest = hp.context_length as usize;
    let context = match options.context {
        Some(context) => context.min(most).max(1),
        None => {
            let tight = |context: usize| {
                let full = |room: &Room| room.free.is_some_and(|f| needed(context, room) > f / CACHE_SHARE);
                rooms.iter().any(full)
            };
            let mut context = longest;
            while context > SHORTEST && tight(context) {
                context = (context / 2).next_multiple_of(BLOCK_TOKENS).max(SHORTEST);
            }
            context
        }
    };
    for room in &rooms {
        let needed = needed(context, room);
        if let Some(available) = room.free.filter(|free| needed > *free) {
            return Err(Error::ContextMemory { context, needed, available });
        }
    }
    // A step never has more tokens than the context.
    let limits = Limits { context, sequences, batch: batch.min(context) };
    Ok((limits, layout(context)))
}

/// Bytes that caches may take on a device beside so many of weights, where its memory is known.
fn cache_memory(info: &DeviceInfo, weights: u64, options: &ContextOptions) -> Option<u64> {
    let memory = info.memory_free.into_iter().chain(options.memory).min()?;
    let on_cpu = info.kind == DeviceKind::Cpu;
    let stored = on_cpu && options.repack == Repack::Off;
    let weights = if stored { 0 } else { weights };
    Some(match memory.checked_sub(weights) {
        Some(rest) => rest,
        // The CPU reads from the file what is too large for the machine, and caches go before it.
        None if on_cpu && options.memory.is_none_or(|limit| weights <= limit) => memory,
        None => 0,
    })
}

/// States of a sequence: that before a step, and those that the step leaves where a block ends and where it ends itself.
const STATES: usize = 3;

/// States beside those of sequences: checkpoints from which others may start.
const CHECKPOINTS: usize = 3;

/// Blocks that a sequence of `length` positions takes at most in a group with this reach.
pub(crate) fn sequence_blocks(reach: Reach, length: usize, batch: usize) -> usize {
    let positions = match reach {
        Reach::Full => length,
        // A window keeps what a step's first token sees, the step's own tokens, and as much again to take back.
        Reach::Window(w) => length.min(w as usize + 2 * batch + BLOCK_TOKENS),
        Reach::State => return STATES,
    };
    // One block more: the copy of a shared block that is written next.
    positions.div_ceil(BLOCK_TOKENS) + 1
}

/// Caches for `sequences` of `context` positions each.
pub(crate) fn layout(
    model: &Model,
    context: usize,
    sequences: usize,
    batch: usize,
    options: &ContextOptions,
) -> CacheLayout {
    let groups = model.arch().reaches().iter().map(|reach| {
        let held = sequences.saturating_mul(sequence_blocks(*reach, context, batch));
        let blocks = held.saturating_add(if *reach == Reach::State { CHECKPOINTS } else { 0 });
        // More blocks than can be numbered fit no memory either.
        CacheGroup { reach: *reach, blocks: u32::try_from(blocks).unwrap_or(u32::MAX) }
    });
    // What an encoder caches lives for one step: nothing is gained by rounding it.
    let ty = |ty| if model.arch().hparams().causal { ty } else { KvType::F32 };
    CacheLayout {
        caches: model.arch().caches().to_vec(),
        groups: groups.collect(),
        k_type: ty(options.k_type),
        v_type: ty(options.v_type),
    }
}
