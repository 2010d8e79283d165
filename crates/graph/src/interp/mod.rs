//! A scalar interpreter of graphs: slow, plain, and the oracle of every backend.
//!
//! Weights are decoded to f32 row by row, sums run in f64, nothing is quantised but what the cache type says.

mod ops;
mod recurrent;

use std::ops::Range;
use std::sync::Arc;

use wootz_quant::WeightType;

use crate::cache::{BLOCK_TOKENS, CacheId, CacheLayout, KvType};
use crate::error::RunError;
use crate::graph::{Elem, Graph, Node, Output, Type};
use crate::op::{Input, Op, WkvRule};
use crate::step::StepInputs;
use crate::weights::{WeightId, WeightSource, WeightTable};

/// The contents of a value.
#[derive(Clone, Debug)]
pub enum Data {
    /// Elements of an f32 matrix, row by row.
    F32(Vec<f32>),
    /// Elements of an i32 matrix, row by row.
    I32(Vec<i32>),
    /// A state.
    State,
}

impl Data {
    /// The elements of an f32 matrix; empty for others.
    pub fn f32(&self) -> &[f32] {
        match self {
            Data::F32(v) => v,
            _ => &[],
        }
    }

    fn i32(&self) -> &[i32] {
        match self {
            Data::I32(v) => v,
            _ => &[],
        }
    }
}

/// Keys and values of one cache by physical slot, or states by physical block.
struct Cache {
    k: Vec<f32>,
    v: Vec<f32>,
    states: Vec<f32>,
}

/// Runs graphs over one model's weights and caches.
pub struct Interpreter {
    weights: Arc<WeightTable>,
    source: Arc<dyn WeightSource>,
    layout: CacheLayout,
    caches: Vec<Cache>,
}

impl Interpreter {
    /// An interpreter with empty caches.
    pub fn new(weights: Arc<WeightTable>, source: Arc<dyn WeightSource>, layout: CacheLayout) -> Interpreter {
        let caches = layout
            .caches
            .iter()
            .map(|c| {
                let blocks = layout.groups[c.group as usize].blocks as usize;
                let slots = blocks * BLOCK_TOKENS;
                let heads = c.kv_heads as usize;
                Cache {
                    k: vec![0.0; slots * heads * c.k_dim as usize],
                    v: vec![0.0; slots * heads * c.v_dim as usize],
                    states: vec![0.0; blocks * c.state as usize],
                }
            })
            .collect();
        Interpreter { weights, source, layout, caches }
    }

    /// Runs one step and returns the graph's outputs.
    ///
    /// # Errors
    /// The inputs do not fit the graph, or a weight cannot be read.
    pub fn run(
        &mut self,
        graph: &Graph,
        inputs: &StepInputs<'_>,
    ) -> Result<Vec<(Output, Vec<f32>)>, RunError> {
        let values = self.run_values(graph, inputs)?;
        Ok(graph.outputs.iter().map(|(kind, v)| (*kind, values[v.0 as usize].f32().to_vec())).collect())
    }

    /// Runs one step and returns every value, by [`ValueId`](crate::ValueId).
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_values(&mut self, graph: &Graph, inputs: &StepInputs<'_>) -> Result<Vec<Data>, RunError> {
        inputs.check(&graph.key)?;
        let mut values: Vec<Data> = vec![Data::State; graph.values.len()];
        for node in &graph.nodes {
            let outs = self.node(graph, node, &values, inputs)?;
            for (id, data) in node.outs.iter().zip(outs) {
                values[id.0 as usize] = data;
            }
        }
        Ok(values)
    }

    fn node(
        &mut self,
        graph: &Graph,
        node: &Node,
        values: &[Data],
        inputs: &StepInputs<'_>,
    ) -> Result<Vec<Data>, RunError> {
        let Node { op, ins, outs, .. } = node;
        let data = |i: usize| &values[ins[i].0 as usize];
        let cols = |i: usize| graph.ty(ins[i]).cols() as usize;
        let out = match op {
            Op::Input(Input::Tokens) => Data::I32(inputs.tokens.to_vec()),
            Op::Input(Input::Positions) => Data::I32(inputs.positions.to_vec()),
            Op::Input(Input::Streams) => Data::I32(inputs.stream_positions().into_owned()),
            Op::Input(Input::OutputRows) => Data::I32(inputs.outputs.to_vec()),
            Op::Input(Input::Hidden { cols }) => Data::F32(inputs.hidden_rows(*cols)?.to_vec()),
            Op::Embed { table, scale } => {
                let mut y = Vec::new();
                for id in data(0).i32() {
                    if *id < 0 || *id as u64 >= self.weights.info(*table).rows {
                        let name = &self.weights.info(*table).name;
                        return Err(RunError::Input(format!("row {id} is not in {name}")));
                    }
                    y.extend(self.row(*table, *id as u64)?.iter().map(|w| w * scale));
                }
                Data::F32(y)
            }
            Op::Norm(norm) => {
                let weight = norm.weight.map(|w| self.row(w, 0)).transpose()?;
                let bias = norm.bias.map(|w| self.row(w, 0)).transpose()?;
                Data::F32(ops::norm(data(0).f32(), cols(0), norm, weight.as_deref(), bias.as_deref()))
            }
            Op::Linear(linear) => {
                let bias = linear.bias.map(|w| self.row(w, 0)).transpose()?;
                let n = linear.rows as usize;
                let rows = data(0).f32().len() / cols(0).max(1);
                let mut y = vec![0.0; rows * n];
                for o in 0..n {
                    let w = self.row(linear.weight, u64::from(linear.first) + o as u64)?;
                    let b = bias.as_ref().map_or(0.0, |b| b[linear.first as usize + o]);
                    for (r, x) in data(0).f32().chunks_exact(cols(0)).enumerate() {
                        y[r * n + o] = ops::dot(&w, x) + b;
                    }
                }
                Data::F32(y)
            }
            Op::Rope(rope) => {
                let factors = rope.factors.map(|w| self.row(w, 0)).transpose()?;
                Data::F32(ops::rope(data(0).f32(), data(1).i32(), rope, factors.as_deref()))
            }
            Op::StoreKv { cache } => {
                self.store(cache.0 as usize, data(0).f32(), data(1).f32(), inputs)?;
                Data::State
            }
            Op::Attention(attention) => {
                let sinks = attention.sinks.map(|w| self.row(w, 0)).transpose()?;
                let id = attention.cache.0 as usize;
                let cache = &self.caches[id];
                let view = ops::CacheView { k: &cache.k, v: &cache.v, spec: &self.layout.caches[id] };
                Data::F32(ops::attention(data(0).f32(), attention, sinks.as_deref(), &view, inputs))
            }
            Op::Glu(a) => {
                let pairs = data(0).f32().iter().zip(data(1).f32());
                Data::F32(pairs.map(|(g, u)| ops::activate(*a, *g) * u).collect())
            }
            Op::GluClamped(unit) => {
                let pairs = data(0).f32().iter().zip(data(1).f32());
                Data::F32(pairs.map(|(g, u)| ops::glu_clamped(*unit, *g, *u)).collect())
            }
            Op::Activate(a) => Data::F32(data(0).f32().iter().map(|x| ops::activate(*a, *x)).collect()),
            Op::Add => Data::F32(data(0).f32().iter().zip(data(1).f32()).map(|(a, b)| a + b).collect()),
            Op::Mul => Data::F32(data(0).f32().iter().zip(data(1).f32()).map(|(a, b)| a * b).collect()),
            Op::MulWeight { weight } => {
                let w = self.weights.elements(&*self.source, *weight)?;
                Data::F32(data(0).f32().iter().zip(w.iter().cycle()).map(|(a, b)| a * b).collect())
            }
            Op::ShortConv(conv) => {
                let conv = recurrent::Conv {
                    conv,
                    weight: &self.weights.elements(&*self.source, conv.weight)?,
                    bias: conv.bias.map(|b| self.row(b, 0)).transpose()?,
                    channels: cols(0),
                };
                let x = data(0).f32();
                let y = self
                    .states(conv.conv.cache, inputs, x.len(), |run, state, y| conv.run(x, run, state, y))?;
                return Ok(vec![Data::F32(y), Data::State]);
            }
            Op::Scan(scan) => {
                let scan = recurrent::Scanned {
                    scan,
                    a: &self.weights.elements(&*self.source, scan.a)?,
                    d: &self.weights.elements(&*self.source, scan.d)?,
                };
                let (x, dt, bc) = (data(0).f32(), data(1).f32(), data(2).f32());
                let run =
                    |run: Range<usize>, state: &mut [f32], y: &mut [f32]| scan.run(x, dt, bc, run, state, y);
                let y = self.states(scan.scan.cache, inputs, x.len(), run)?;
                return Ok(vec![Data::F32(y), Data::State]);
            }
            Op::Shift { cache } => {
                let (x, n) = (data(0).f32(), cols(0));
                let y = self.states(*cache, inputs, x.len(), |run, state, y| {
                    recurrent::shift(x, n, run, state, y);
                })?;
                return Ok(vec![Data::F32(y), Data::State]);
            }
            Op::Wkv(wkv) => {
                let first = match wkv.rule {
                    WkvRule::Six { first } => Some(self.weights.elements(&*self.source, first)?),
                    WkvRule::Seven => None,
                };
                let ins: Vec<&[f32]> = (0..ins.len() - 1).map(|i| data(i).f32()).collect();
                let wkv_of = recurrent::WkvOf { cols: cols(0), heads: wkv.heads as usize, first, ins };
                let len = data(0).f32().len();
                let y = self.states(wkv.cache, inputs, len, |run, state, y| wkv_of.run(run, state, y))?;
                return Ok(vec![Data::F32(y), Data::State]);
            }
            Op::Lerp(lerp) => {
                let row = lerp.row.map(|(table, row)| self.row(table, u64::from(row))).transpose()?;
                let m = ins.get(2).map(|m| values[m.0 as usize].f32());
                Data::F32(ops::lerp(data(0).f32(), data(1).f32(), m, row.as_deref()))
            }
            Op::Bonus(bonus) => {
                let weight = self.weights.elements(&*self.source, bonus.weight)?;
                let [a, b, v] = [0, 1, 2].map(|i| data(i).f32());
                Data::F32(ops::bonus(a, b, v, &weight, bonus.heads as usize))
            }
            Op::AddRow { table, row } => {
                let w = self.row(*table, u64::from(*row))?;
                Data::F32(data(0).f32().iter().zip(w.iter().cycle()).map(|(a, b)| a + b).collect())
            }
            Op::Scale { factor } => Data::F32(data(0).f32().iter().map(|x| x * factor).collect()),
            Op::Softcap { cap } => Data::F32(data(0).f32().iter().map(|x| cap * (x / cap).tanh()).collect()),
            Op::Join => {
                let rows = data(0).f32().chunks_exact(cols(0)).zip(data(1).f32().chunks_exact(cols(1)));
                Data::F32(rows.flat_map(|(a, b)| a.iter().chain(b).copied()).collect())
            }
            Op::Columns { first } => {
                let (first, n) = (*first as usize, graph.ty(outs[0]).cols() as usize);
                let rows = data(0).f32().chunks_exact(cols(0));
                Data::F32(rows.flat_map(|row| row[first..first + n].iter().copied()).collect())
            }
            Op::Gather => {
                let n = cols(0);
                let rows = data(1).i32().iter().map(|r| *r as usize * n);
                match (data(0), graph.ty(ins[0])) {
                    (Data::I32(x), Type::Matrix { elem: Elem::I32, .. }) => {
                        Data::I32(rows.flat_map(|r| x[r..r + n].iter().copied()).collect())
                    }
                    (x, _) => Data::F32(rows.flat_map(|r| x.f32()[r..r + n].iter().copied()).collect()),
                }
            }
            Op::Route(route) => {
                let bias = route.bias.map(|w| self.row(w, 0)).transpose()?;
                let (ids, weights) = ops::route(data(0).f32(), cols(0), route, bias.as_deref());
                return Ok(vec![Data::I32(ids), Data::F32(weights)]);
            }
            Op::ExpertLinear { weight, bias, used } => {
                let info = self.weights.info(*weight).clone();
                let (used, inner) = (*used as usize, info.cols as usize);
                let out = info.rows / u64::from(info.experts.max(1));
                let mut y = Vec::new();
                for (x, ids) in data(0).f32().chunks_exact(cols(0)).zip(data(1).i32().chunks_exact(used)) {
                    for (slot, id) in ids.iter().enumerate() {
                        let part = if cols(0) == inner { x } else { &x[slot * inner..(slot + 1) * inner] };
                        let own = bias.map(|b| self.row(b, *id as u64)).transpose()?;
                        for o in 0..out {
                            let b = own.as_ref().map_or(0.0, |b| b[o as usize]);
                            y.push(ops::dot(&self.row(*weight, *id as u64 * out + o)?, part) + b);
                        }
                    }
                }
                Data::F32(y)
            }
            Op::Combine { used } => {
                let (used, all) = (*used as usize, cols(0));
                let n = all / used;
                let mut y = Vec::new();
                for (x, w) in data(0).f32().chunks_exact(all).zip(data(1).f32().chunks_exact(used)) {
                    for c in 0..n {
                        y.push(
                            (0..used).map(|s| f64::from(x[s * n + c]) * f64::from(w[s])).sum::<f64>() as f32
                        );
                    }
                }
                Data::F32(y)
            }
        };
        Ok(vec![out])
    }

    /// A row of a weight as f32.
    fn row(&self, id: WeightId, row: u64) -> Result<Vec<f32>, RunError> {
        let info = self.weights.info(id);
        let mut bytes = vec![0; info.row_bytes()];
        self.weights.read(&*self.source, id, row * bytes.len() as u64, &mut bytes)?;
        let mut out = vec![0.0; info.cols as usize];
        info.decode(&bytes, &mut out)?;
        Ok(out)
    }

    /// Takes the states of a step's sequences through `run`, from each place where they are kept to the next: (tokens,
    /// state, all results `[tokens, _]`, `len` elements in all).
    fn states(
        &mut self,
        cache: CacheId,
        inputs: &StepInputs<'_>,
        len: usize,
        run: impl Fn(Range<usize>, &mut [f32], &mut [f32]),
    ) -> Result<Vec<f32>, RunError> {
        let spec = &self.layout.caches[cache.0 as usize];
        let n = spec.state as usize;
        let states = &mut self.caches[cache.0 as usize].states;
        let all = states.len();
        let place = |block: u32| {
            let first = block as usize * n;
            let missing = || RunError::Input(format!("state {block} does not exist"));
            if first + n <= all { Ok(first..first + n) } else { Err(missing()) }
        };
        let mut y = vec![0.0; len];
        for sequence in inputs.state_runs(spec.group)? {
            let mut state = match sequence.from {
                Some(block) => states[place(block)?].to_vec(),
                None => vec![0.0; n],
            };
            let mut first = sequence.tokens.start;
            for (end, block) in sequence.writes {
                run(first..end, &mut state, &mut y);
                states[place(block)?].copy_from_slice(&state);
                first = end;
            }
        }
        Ok(y)
    }

    fn store(&mut self, id: usize, k: &[f32], v: &[f32], inputs: &StepInputs<'_>) -> Result<(), RunError> {
        let spec = &self.layout.caches[id];
        let cache = &mut self.caches[id];
        let group = &inputs.groups[spec.group as usize];
        let heads = spec.kv_heads as usize;
        for (dst, src, dim, ty) in [
            (&mut cache.k, k, spec.k_dim as usize, self.layout.k_type),
            (&mut cache.v, v, spec.v_dim as usize, self.layout.v_type),
        ] {
            let n = heads * dim;
            for (t, row) in src.chunks_exact(n).enumerate() {
                let slot = group.slot(inputs.sequences[t], inputs.positions[t] as usize);
                let (block, at) = slot.ok_or_else(|| RunError::Input("position without a block".into()))?;
                let first = (block as usize * BLOCK_TOKENS + at) * n;
                let place = dst.get_mut(first..first + n);
                let place = place.ok_or_else(|| RunError::Input(format!("block {block} does not exist")))?;
                for (to, from) in place.chunks_exact_mut(dim).zip(row.chunks_exact(dim)) {
                    round_kv(ty, from, to);
                }
            }
        }
        Ok(())
    }
}

/// What a cache of type `ty` gives back for `from`.
fn round_kv(ty: KvType, from: &[f32], to: &mut [f32]) {
    let through = |ty: WeightType, to: &mut [f32]| {
        let mut bytes = vec![0; from.len() / ty.block_elements() * ty.block_bytes()];
        // The lengths fit: head sizes of quantised caches are multiples of a block.
        if ty.encode(from, &mut bytes).is_err() || ty.decode(&bytes, to).is_err() {
            to.fill(f32::NAN);
        }
    };
    match ty {
        KvType::F32 => to.copy_from_slice(from),
        KvType::F16 => through(WeightType::F16, to),
        KvType::BF16 => through(WeightType::BF16, to),
        KvType::Q8_0 => through(WeightType::Q8_0, to),
        KvType::Q4_0 => through(WeightType::Q4_0, to),
    }
}
