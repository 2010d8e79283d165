//! Runs the kernels of a program.

use std::ops::Range;
use std::sync::Mutex;
use std::time::Instant;

use wootz_graph::op::{Attention, Input, Rope};
use wootz_graph::{CacheSpec, ProgramId, RunError, StepInputs, StepTime};

use super::CpuExecutor;
use super::arena::Counts;
use super::program::{Kernel, Place, Program};
use super::rows::{self, Host};
use super::weights::Matrix;
use crate::attention::AttentionPlan;
use crate::kv::KvSlots;
use crate::pool::Chunks;
use crate::recurrent::{self, ScanInputs, WkvInputs, WkvWith};
use crate::rope::RopeTable;
use crate::{Activations, elementwise, route};

/// Elements of work on rows that are worth another thread: some microseconds.
const WORTH_A_THREAD: usize = 16 << 10;
/// Parts of the work on rows for each worker, since a worker may start late or lose its core.
const CHUNKS_PER_WORKER: usize = 4;

/// Sines and cosines shared by all layers whose rotary embedding has the same attributes.
pub(super) struct RopeSlot {
    /// Attributes without the number of heads, on which the table does not depend.
    rope: Rope,
    table: RopeTable,
}

/// Buffers of one worker.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) at_hand: Vec<f32>,
    pub(super) next: Vec<f32>,
    /// Rows that are handed on together.
    pub(super) results: Vec<f32>,
    pub(super) bytes: Vec<u8>,
}

/// Calls `f` for each of `n` rows, on the pool where `cost` elements a row make it worth it.
///
/// The first error wins; rows after it may be left out.
pub(super) fn each_row(
    host: Host<'_>,
    n: usize,
    cost: usize,
    f: impl Fn(usize, &mut Scratch) -> Result<(), RunError> + Sync,
) -> Result<(), RunError> {
    each_rows(host, n, 1, cost, |rows, scratch| rows.into_iter().try_for_each(|row| f(row, scratch)))
}

/// As [`each_row`], with up to `together` rows in a call where there are enough for all workers; but for the last, calls
/// have all of them and begin at a multiple.
pub(super) fn each_rows(
    host: Host<'_>,
    n: usize,
    together: usize,
    cost: usize,
    f: impl Fn(Range<usize>, &mut Scratch) -> Result<(), RunError> + Sync,
) -> Result<(), RunError> {
    let parts = CHUNKS_PER_WORKER * host.pool.workers();
    let together = if n < parts * together { 1 } else { together };
    let chunks = Chunks::new(n, n.div_ceil(parts).next_multiple_of(together));
    let failure = Mutex::new(None);
    let work = |index: usize| {
        let mut own = host.scratch[index].lock().unwrap_or_else(|e| e.into_inner());
        while let Some(rows) = chunks.take() {
            for first in rows.clone().step_by(together) {
                if let Err(e) = f(first..rows.end.min(first + together), &mut own) {
                    failure.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(e);
                    return;
                }
            }
        }
    };
    if n < 2 || n.saturating_mul(cost) < WORTH_A_THREAD {
        work(0);
    } else {
        host.pool.run(&|w| work(w.index));
    }
    failure.into_inner().unwrap_or_else(|e| e.into_inner()).map_or(Ok(()), Err)
}

impl CpuExecutor {
    /// Makes buffers that a program's steps share.
    pub(super) fn prepare(&mut self, program: &Program) -> Result<(), RunError> {
        let tokens = program.plan.graph.key.tokens as usize;
        for kernel in &program.kernels {
            match kernel {
                Kernel::Rows { products, .. } => {
                    for product in products {
                        self.reserve_activations(&product.matrix, tokens)?;
                    }
                }
                // All rows may choose one expert, each of their slots at that.
                Kernel::ExpertLinear { products, used, .. } => {
                    for matrix in products.iter().flat_map(|product| &product.matrices) {
                        self.reserve_activations(matrix, tokens * used)?;
                    }
                }
                Kernel::Rope { rope, factors, .. } if find_rope(&self.ropes, rope).is_none() => {
                    let table = RopeTable::new(rope, factors.as_deref())?;
                    self.ropes.push(RopeSlot { rope: *rope, table });
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn reserve_activations(&mut self, matrix: &Matrix, tokens: usize) -> Result<(), RunError> {
        let (form, cols) = (matrix.form(), matrix.cols());
        let enough = self.activations.get_mut(&(form, cols)).is_some_and(|a| a.set_tokens(tokens).is_ok());
        if !enough {
            let made = Activations::new(self.isa, form, tokens, cols)?;
            self.activations.insert((form, cols), made);
        }
        Ok(())
    }

    /// Runs one step; the place and rows of its output.
    pub(super) fn run(
        &mut self,
        program: ProgramId,
        inputs: &StepInputs<'_>,
    ) -> Result<Option<(Place, usize)>, RunError> {
        let programs = std::mem::take(&mut self.programs);
        let result = match programs.get(program.0 as usize) {
            Some(p) => self.run_program(program, p, inputs),
            None => Err(RunError::Plan(format!("there is no program {}", program.0))),
        };
        self.programs = programs;
        result
    }

    fn run_program(
        &mut self,
        id: ProgramId,
        program: &Program,
        inputs: &StepInputs<'_>,
    ) -> Result<Option<(Place, usize)>, RunError> {
        let key = &program.plan.graph.key;
        inputs.check(key)?;
        let tokens = inputs.tokens.len();
        let outputs = inputs.output_rows(key);
        let counts = Counts { tokens, outputs };
        let uses_rope = program.kernels.iter().any(|k| matches!(k, Kernel::Rope { .. }));
        for slot in self.ropes.iter_mut().filter(|_| uses_rope) {
            match slot.rope.sections {
                Some(_) => slot.table.set_positions(&inputs.stream_positions())?,
                None => slot.table.set_positions(inputs.positions)?,
            }
        }
        // Layers whose attention has the same attributes share the step's tiles.
        self.attentions.clear();
        for kernel in &program.kernels {
            let Kernel::Attention { attention, .. } = kernel else { continue };
            let spec = self.caches.spec(attention.cache);
            if find_attention(&self.attentions, attention, spec).is_none() {
                let plan = AttentionPlan::new(self.isa, attention, spec, inputs, self.pool.workers());
                let slot = AttentionSlot { attention: *attention, spec: spec.clone(), plan: plan? };
                self.attentions.push(slot);
            }
        }
        let streams = inputs.stream_positions();
        // All layers of a group take their states from the same blocks.
        self.state_runs = self.caches.state_runs(inputs)?;
        for (input, place) in &program.inputs {
            let from: &[i32] = match input {
                Input::Tokens => inputs.tokens,
                Input::Positions => inputs.positions,
                Input::Streams => &streams,
                Input::OutputRows => inputs.outputs,
                Input::Hidden { cols } => bytemuck::cast_slice(inputs.hidden_rows(*cols)?),
            };
            let rows = from.len() / place.cols.max(1);
            // SAFETY: no other thread runs between steps.
            unsafe { self.arena.view().i32_mut(place, 0, rows) }.copy_from_slice(from);
        }
        for (index, kernel) in program.kernels.iter().enumerate() {
            let start = self.trace.as_ref().map(|_| Instant::now());
            self.kernel(kernel, counts, inputs)?;
            if let (Some(start), Some(trace)) = (start, &mut self.trace) {
                trace.times.push(StepTime {
                    program: id,
                    step: index as u32,
                    start: (start - trace.start).as_secs_f64(),
                    duration: start.elapsed().as_secs_f64(),
                    dispatches: 1,
                });
            }
        }
        Ok(program.output.map(|place| (place, counts.rows(&place))))
    }

    fn kernel(&mut self, kernel: &Kernel, counts: Counts, inputs: &StepInputs<'_>) -> Result<(), RunError> {
        let view = self.arena.view();
        let host = Host { isa: self.isa, pool: &self.pool, scratch: &self.scratch, view };
        let isa = self.isa;
        // SAFETY (of all accesses through `view` below): see `Host::view`.
        match kernel {
            Kernel::Embed { table, scale, ids, out } => {
                // SAFETY: see above.
                let ids = unsafe { view.i32(ids, 0, counts.tokens) };
                rows::embed(host, &self.weights, *table, *scale, ids, out)
            }
            Kernel::Rows { source, chain, products } => {
                let n = counts.rows(source);
                rows::chain(host, source, chain, products, &mut self.activations, n)?;
                rows::products(host, products, &self.activations, n)
            }
            Kernel::Rope { rope, x, out, .. } => {
                let Some(table) = find_rope(&self.ropes, rope) else {
                    return Err(RunError::Plan("a rotary embedding without its table".into()));
                };
                each_row(host, counts.tokens, x.cols, |row, _| {
                    // SAFETY: see above.
                    let to = unsafe { view.f32_mut(out, row, 1) };
                    if x.start != out.start {
                        // SAFETY: see above.
                        to.copy_from_slice(unsafe { view.f32(x, row, 1) });
                    }
                    table
                        .rotate(isa, row, rope.heads as usize, rope.head_dim as usize, to)
                        .map_err(RunError::from)
                })
            }
            Kernel::StoreKv { cache, k, v } => {
                let slots = KvSlots::new(inputs, self.caches.spec(*cache).group as usize)?;
                // SAFETY: see above.
                let (k, v) = unsafe { (view.f32(k, 0, counts.tokens), view.f32(v, 0, counts.tokens)) };
                let cache = self.caches.keys_and_values(*cache)?;
                cache.store(isa, &self.pool, &slots, k, v).map_err(RunError::from)
            }
            Kernel::ShortConv { cache, weights, x, out } => {
                let runs = &self.state_runs[self.caches.spec(*cache).group as usize];
                // SAFETY: see above.
                let (x, out) =
                    unsafe { (view.f32(x, 0, counts.tokens), view.f32_mut(out, 0, counts.tokens)) };
                let states = self.caches.states(*cache)?;
                weights.run(isa, &self.pool, states, runs, x, out).map_err(RunError::from)
            }
            Kernel::Shift { cache, x, out } => {
                let runs = inputs.state_runs(self.caches.spec(*cache).group)?;
                let (n, channels) = (counts.tokens, x.cols);
                // SAFETY: see above.
                let (x, out) = unsafe { (view.f32(x, 0, n), view.f32_mut(out, 0, n)) };
                let states = self.caches.states(*cache)?;
                recurrent::shift(&self.pool, states, &runs, channels, x, out).map_err(RunError::from)
            }
            Kernel::Wkv { wkv, first, ins, out } => {
                let runs = inputs.state_runs(self.caches.spec(wkv.cache).group)?;
                let shape = (wkv.heads as usize, out.cols);
                // SAFETY: see above.
                let (ins, out) = unsafe {
                    let ins: Vec<&[f32]> = ins.iter().map(|x| view.f32(x, 0, counts.tokens)).collect();
                    (ins, view.f32_mut(out, 0, counts.tokens))
                };
                let (with, inputs) = match (&ins[..], first) {
                    (&[r, k, v, d], Some(first)) => (WkvWith::Six { first }, WkvInputs { r, k, v, d }),
                    (&[r, k, v, d, a, b], None) => (WkvWith::Seven { a, b }, WkvInputs { r, k, v, d }),
                    _ => return Err(RunError::Plan("a recurrence without its inputs".into())),
                };
                let states = self.caches.states(wkv.cache)?;
                recurrent::wkv(isa, &self.pool, states, &runs, shape, with, inputs, out)
                    .map_err(RunError::from)
            }
            Kernel::Scan { cache, weights, x, dt, bc, out } => {
                let runs = &self.state_runs[self.caches.spec(*cache).group as usize];
                let n = counts.tokens;
                // SAFETY: see above.
                let (inputs, out) = unsafe {
                    let inputs =
                        ScanInputs { x: view.f32(x, 0, n), dt: view.f32(dt, 0, n), bc: view.f32(bc, 0, n) };
                    (inputs, view.f32_mut(out, 0, n))
                };
                let states = self.caches.states(*cache)?;
                weights.run(isa, &self.pool, states, runs, inputs, out).map_err(RunError::from)
            }
            Kernel::Attention { attention, sinks, q, out } => {
                let plan = find_attention(&self.attentions, attention, self.caches.spec(attention.cache));
                let plan = plan.ok_or_else(|| RunError::Plan("an attention without its plan".into()))?;
                // SAFETY: see above.
                let (q, out) =
                    unsafe { (view.f32(q, 0, counts.tokens), view.f32_mut(out, 0, counts.tokens)) };
                let (cache, sinks) = (&*self.caches.keys_and_values(attention.cache)?, sinks.as_deref());
                plan.run(&self.pool, cache, q, sinks, out, &mut self.attention_scratch)
                    .map_err(RunError::from)
            }
            Kernel::Join { a, b, out } => each_row(host, counts.rows(out), out.cols, |row, _| {
                // SAFETY: see above.
                unsafe {
                    let (left, right) = view.f32_mut(out, row, 1).split_at_mut(a.cols);
                    left.copy_from_slice(view.f32(a, row, 1));
                    right.copy_from_slice(view.f32(b, row, 1));
                }
                Ok(())
            }),
            Kernel::Columns { x, first, out } => each_row(host, counts.rows(out), out.cols, |row, _| {
                // SAFETY: see above.
                unsafe {
                    view.f32_mut(out, row, 1).copy_from_slice(&view.f32(x, row, 1)[*first..][..out.cols])
                };
                Ok(())
            }),
            Kernel::Gather { x, indices, out } => {
                // SAFETY: see above.
                unsafe {
                    let rows = view.i32(indices, 0, counts.outputs);
                    let (from, to) = (view.f32(x, 0, counts.tokens), view.f32_mut(out, 0, counts.outputs));
                    elementwise::gather(from, x.cols, rows, to).map_err(RunError::from)
                }
            }
            Kernel::Route { route, bias, scores, ids, weights } => {
                let n = counts.rows(scores);
                // SAFETY: see above.
                unsafe {
                    let (ids, weights) = (view.i32_mut(ids, 0, n), view.f32_mut(weights, 0, n));
                    let from = view.f32(scores, 0, n);
                    route::route(route, scores.cols, from, bias.as_deref(), ids, weights)
                        .map_err(RunError::from)
                }
            }
            Kernel::ExpertLinear { products, used, x, ids } => {
                let n = counts.rows(x);
                // SAFETY: see above.
                let ids = unsafe { view.i32(ids, 0, n) };
                let choice = rows::Choice { x, used: *used, ids };
                rows::experts(host, products, choice, &mut self.activations, &mut self.expert_results, n)
            }
            Kernel::Combine { used, y, weights, out } => {
                let n = counts.rows(y);
                each_row(host, n, y.cols, |row, _| {
                    // SAFETY: see above.
                    unsafe {
                        let (y, w) = (view.f32(y, row, 1), view.f32(weights, row, 1));
                        route::combine(isa, out.cols, *used, y, w, view.f32_mut(out, row, 1))
                            .map_err(RunError::from)
                    }
                })
            }
        }
    }
}

/// The tiles of a step's attention, for all layers with the same attributes.
pub(super) struct AttentionSlot {
    attention: Attention,
    spec: CacheSpec,
    plan: AttentionPlan,
}

fn find_attention<'a>(
    slots: &'a [AttentionSlot],
    attention: &Attention,
    spec: &CacheSpec,
) -> Option<&'a AttentionPlan> {
    let same = |slot: &&AttentionSlot| {
        Attention { cache: attention.cache, ..slot.attention } == *attention
            && CacheSpec { layer: spec.layer, ..slot.spec.clone() } == *spec
    };
    slots.iter().find(same).map(|slot| &slot.plan)
}

fn find_rope<'a>(ropes: &'a [RopeSlot], rope: &Rope) -> Option<&'a RopeTable> {
    let same = |slot: &&RopeSlot| Rope { heads: rope.heads, ..slot.rope } == *rope;
    ropes.iter().find(same).map(|slot| &slot.table)
}
