//! Launches between projections and the output projection: head norms, rotary embedding, cache, attention.

use wootz_graph::op::{Attention, Op, Rope, RopeStyle};
use wootz_graph::{CacheSpec, RunError, ValueId};

use super::launch::{ArgBytes, Launch, Place, Shape};
use super::program::StepBuilder;
use super::step::{StepPart, TILE};
use crate::args::{AttentionArgs, HeadsArgs};
use crate::library::{Function, Library};
use crate::select::{self, Heads};

/// Simdgroups of a threadgroup; as in attention.metal.
const SIMDGROUPS: u32 = 4;
/// Threads of a threadgroup; as in attention_tiles.metal and attention_wide.metal.
const TILE_THREADS: u32 = 128;
/// Largest head of attention_tiles.metal.
const MAX_TILE_DIM: u32 = 256;
/// Queries of a threadgroup; as in attention_wide.metal.
const WIDE_ROWS: u32 = 8;

impl StepBuilder<'_, '_> {
    /// Head norms, rotary embedding and the write to the cache, as many of them as the step has.
    pub(super) fn heads(&mut self) -> Result<Launch, RunError> {
        let whole = match self.step.nodes.len() {
            1 => None,
            _ => Heads::find(self.graph, self.step.nodes[0]),
        };
        let node = |id| self.graph.node(id);
        let norm_of = |id| match &node(id).op {
            Op::Norm(n) => Some(*n),
            _ => None,
        };
        let rope = self.find(|op| match op {
            Op::Rope(r) => Some(*r),
            _ => None,
        });
        let store = self.find(|op| match op {
            Op::StoreKv { cache } => Some(*cache),
            _ => None,
        });
        let (norm_q, norm_k) = match &whole {
            Some(h) => (h.norm_q.and_then(norm_of), h.norm_k.and_then(norm_of)),
            None => (None, None),
        };
        // Queries: what the norm reads, or the rotary embedding.
        let query: Option<(Rope, ValueId, ValueId)> = match (&whole, rope) {
            (Some(h), Some((_, rope))) => {
                Some((rope, node(h.norm_q.unwrap_or(h.rope_q)).ins[0], node(h.rope_q).outs[0]))
            }
            (None, Some((id, rope))) => Some((rope, node(id).ins[0], node(id).outs[0])),
            _ => None,
        };
        let keys: Option<(ValueId, ValueId)> = match (&whole, store) {
            (Some(h), Some((id, _))) => Some((node(h.norm_k.unwrap_or(h.rope_k)).ins[0], node(id).ins[1])),
            (None, Some((id, _))) => Some((node(id).ins[0], node(id).ins[1])),
            _ => None,
        };
        let spec = store.map(|(_, cache)| self.graph.caches[cache.0 as usize].clone());
        let rope_of = rope.map(|(_, r)| r);
        let args = HeadsArgs {
            q_heads: query.as_ref().map_or(0, |(r, ..)| r.heads),
            k_heads: spec.as_ref().map_or(0, |s| s.kv_heads),
            v_heads: spec.as_ref().map_or(0, |s| s.kv_heads),
            k_dim: rope_of.map(|r| r.head_dim).or(spec.as_ref().map(|s| s.k_dim)).unwrap_or(0),
            v_dim: spec.as_ref().map_or(0, |s| s.v_dim),
            dims: rope_of.map_or(0, |r| r.dims),
            magnitude: rope_of.map_or(1.0, |r| r.gain() as f32),
            eps: norm_q.or(norm_k).map_or(0.0, |n| n.eps),
        };
        let function = Function::new(self.with_cache_types(Library::plain("heads")), "heads")
            .set("norm_query", norm_q.is_some())
            .set("norm_key", norm_k.is_some())
            .set("has_rotation", rope_of.is_some())
            .set("adjacent", rope_of.is_some_and(|r| r.style == RopeStyle::Adjacent))
            .set("has_streams", rope_of.is_some_and(|r| r.sections.is_some()));
        let tables = rope_of.map(|r| self.rope_tables(&r)).transpose()?;
        let (turns, streams) = tables.map_or((None, None), |t| (Some(t.turns), t.streams));
        let positions = if streams.is_some() { StepPart::Streams } else { StepPart::Positions };
        let group = store.map_or(0, |(_, cache)| self.group(cache));
        let (cache_k, cache_v) = store.map(|(_, cache)| self.keys_and_values(cache)).transpose()?.unzip();
        let call = self
            .function(function)
            .bind_some("q", query.as_ref().map(|(_, x, _)| self.place(*x)).transpose()?)
            .bind_some("k", keys.map(|(k, _)| self.place(k)).transpose()?)
            .bind_some("v", keys.map(|(_, v)| self.place(v)).transpose()?)
            .bind_some("q_weight", self.vector(norm_q.and_then(|n| n.weight))?)
            .bind_some("k_weight", self.vector(norm_k.and_then(|n| n.weight))?)
            .bind_some("turns", turns.map(Place::Fixed))
            .bind_some("stream_of", streams.map(Place::Fixed))
            .bind_some("positions", rope_of.map(|_| Place::Step(positions)))
            .bind_some("slots", store.map(|_| Place::Step(StepPart::Slots(group))))
            .bind_some("y_q", query.as_ref().map(|(_, _, y)| self.place(*y)).transpose()?)
            .bind_some("cache_k", cache_k)
            .bind_some("cache_v", cache_v);
        let heads = args.q_heads + args.k_heads + args.v_heads;
        self.finish(call, self.caps().simd_width, move |c| Shape {
            args: ArgBytes::of(args),
            grid: [heads, c.tokens, 1],
        })
    }

    /// Attention of many rows, with simdgroup matrices.
    fn attention_tiles(
        &mut self,
        a: &Attention,
        spec: &CacheSpec,
        (q, out): (ValueId, ValueId),
        args: AttentionArgs,
    ) -> Result<Launch, RunError> {
        let wide = spec.k_dim.max(spec.v_dim) > MAX_TILE_DIM;
        let (name, runs) = if wide { ("attention_wide", TILE / WIDE_ROWS) } else { ("attention_tiles", 1) };
        let library =
            self.with_cache_types(Library::plain(name)).with("K_DIM", spec.k_dim).with("V_DIM", spec.v_dim);
        let function = Function::new(library, name)
            .set("causal", a.causal)
            .set("has_window", a.window.is_some())
            .set("has_softcap", a.softcap.is_some())
            .set("has_sinks", a.sinks.is_some());
        let (cache_k, cache_v) = self.keys_and_values(a.cache)?;
        let call = self
            .function(function)
            .bind("q", self.place(q)?)
            .bind("cache_k", cache_k)
            .bind("cache_v", cache_v)
            .bind("spans", Place::Step(StepPart::Spans(spec.group)))
            .bind("blocks", Place::Step(StepPart::Blocks))
            .bind("tiles", Place::Step(StepPart::Tiles))
            .bind_some("sinks", self.vector(a.sinks)?)
            .bind("y", self.place(out)?);
        self.finish(call, TILE_THREADS, move |c| Shape {
            args: ArgBytes::of(args),
            grid: [args.heads, c.tiles, runs],
        })
    }

    /// Whether attention of this plan runs in matrix form.
    fn in_tiles(&self, spec: &CacheSpec) -> bool {
        let fits = |dim: u32| dim.is_multiple_of(8);
        let many = !select::is_few(self.graph.key.tokens);
        many && self.caps().simdgroup_matrix && fits(spec.k_dim) && fits(spec.v_dim)
    }

    /// Attention, and the join of its splits.
    pub(super) fn attention(
        &mut self,
        a: &Attention,
        q: ValueId,
        out: ValueId,
    ) -> Result<Vec<Launch>, RunError> {
        let spec = self.graph.caches[a.cache.0 as usize].clone();
        let splits = select::splits(self.graph, a);
        let args = AttentionArgs {
            heads: a.heads,
            kv_heads: spec.kv_heads,
            splits,
            window: a.window.unwrap_or(0),
            scale: a.scale,
            softcap: a.softcap.unwrap_or(0.0),
        };
        if self.in_tiles(&spec) {
            return Ok(vec![self.attention_tiles(a, &spec, (q, out), args)?]);
        }
        let library = self
            .with_cache_types(Library::plain("attention"))
            .with("K_DIM", spec.k_dim)
            .with("V_DIM", spec.v_dim);
        let function = |name| {
            Function::new(library.clone(), name)
                .set("causal", a.causal)
                .set("has_window", a.window.is_some())
                .set("has_softcap", a.softcap.is_some())
                .set("has_sinks", a.sinks.is_some())
                .set("is_split", splits > 1)
        };
        let parts = match (splits, self.step.scratch) {
            (1, _) => Place::Nothing,
            (_, Some(region)) => Place::Scratch { region, first: 0 },
            (_, None) => return Err(RunError::Plan("a split attention without scratch memory".into())),
        };
        let sinks = self.vector(a.sinks)?;
        let y = self.place(out)?;
        let (cache_k, cache_v) = self.keys_and_values(a.cache)?;
        let first = self
            .function(function("attention"))
            .bind("q", self.place(q)?)
            .bind("cache_k", cache_k)
            .bind("cache_v", cache_v)
            .bind("spans", Place::Step(StepPart::Spans(spec.group)))
            .bind("blocks", Place::Step(StepPart::Blocks))
            .bind_some("sinks", sinks.clone())
            .bind("y", if splits > 1 { Place::Nothing } else { y.clone() })
            .bind("parts", parts.clone());
        let width = self.caps().simd_width;
        let mut launches = vec![self.finish(first, SIMDGROUPS * width, move |c| Shape {
            args: ArgBytes::of(args),
            grid: [args.heads, c.tokens, args.splits],
        })?];
        if splits > 1 {
            let join = self
                .function(function("attention_join"))
                .bind("parts", parts)
                .bind_some("sinks", sinks)
                .bind("y", y);
            let threads = spec.v_dim.next_multiple_of(width).min(self.threads());
            let mut join = self.finish(join, threads, move |c| Shape {
                args: ArgBytes::of(args),
                grid: [args.heads, c.tokens, 1],
            })?;
            join.barrier = true;
            launches.push(join);
        }
        Ok(launches)
    }
}
