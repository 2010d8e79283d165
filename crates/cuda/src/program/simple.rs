//! Launches of the kernels for single operations.

use wootz_graph::op::{
    Activation, Attention, Bonus, ClampedGlu, Gating, Lerp, Linear, Norm, Op, Rope, RopeStyle, Route,
};
use wootz_graph::{BLOCK_TOKENS, CacheId, KvType, Node, RunError, Step, WeightId};

use super::{Resolver, RopeSlot, Rows, Value};
use crate::args::*;
use crate::machine::{Kernel, Launch};
use crate::select::{ADD_NORM, Kernels, LINEAR_F32};

/// Threads of kernels that work on rows or elements.
const THREADS: u32 = 256;
/// Threads of a block that looks up a part of a row: few, so that one row has many blocks.
const EMBED_THREADS: u32 = 64;
/// Elements that a thread looks up.
const EMBED_PIECE: u32 = 16;
/// Blocks that fill any device a few times over, for kernels whose threads take several elements.
const MANY_BLOCKS: u32 = 2048;
/// Columns of a group up to which a warp normalises it.
const MOST_GROUP_COLS: u32 = 512;
/// Warps of a block of plain products.
const LINEAR_WARPS: u32 = 4;
/// Rows that a warp of plain products takes.
const LINEAR_ROWS: u32 = 8;
/// Threads of plain attention, and positions that it takes at once.
const ATTENTION_THREADS: u32 = 128;

/// What `elementwise` does, in the order of its source.
#[derive(Clone, Copy)]
enum ElementOp {
    Add,
    Scale(f32),
    Softcap(f32),
    Activate(Activation),
    Glu(Activation),
    GluClamped(ClampedGlu),
    Mul,
    MulWeight,
}

/// Blocks of a kernel whose threads take single elements of a value.
fn elements_grid(x: Value) -> [u32; 3] {
    let blocks = (u64::from(x.most) * u64::from(x.cols)).div_ceil(u64::from(THREADS));
    [blocks.clamp(1, u64::from(MANY_BLOCKS)) as u32, 1, 1]
}

/// The number of a cache type in kernels.
pub(super) fn kv_code(ty: KvType) -> u32 {
    KvType::ALL.iter().position(|t| *t == ty).unwrap_or(0) as u32
}

/// Blocks that look up a row.
fn embed_blocks(out: Value) -> u32 {
    out.cols.div_ceil(EMBED_PIECE).div_ceil(EMBED_THREADS)
}

fn look_up(args: EmbedArgs, out: Value) -> Launch {
    Launch::new(Kernel::new("embed", "embed"), [out.most, embed_blocks(out), 1], EMBED_THREADS, &args)
}

impl Resolver<'_> {
    /// The launches of a step.
    pub(super) fn step(&self, step: &Step) -> Result<Vec<Launch>, RunError> {
        let graph = &self.plan.graph;
        if step.kernel == ADD_NORM {
            let [add, norm] = step.nodes[..] else {
                return Err(RunError::Plan(format!("{} of {} nodes", step.kernel, step.nodes.len())));
            };
            let (add, norm) = (graph.node(add), graph.node(norm));
            let Op::Norm(attributes) = &norm.op else {
                return Err(RunError::Plan(format!("{} without a norm", step.kernel)));
            };
            let (id, out) = (add.outs[0], self.value(norm.outs[0])?);
            // A sum that nothing else reads lies where the norm comes to.
            let sum = if step.outs.contains(&id) { self.value(id)? } else { out };
            let sum = Some((self.value(add.ins[1])?, sum));
            return Ok(vec![self.norm(attributes, self.value(add.ins[0])?, sum, out)?]);
        }
        let [node] = step.nodes[..] else {
            return Err(RunError::Plan(format!("unknown kernel {}", step.kernel)));
        };
        let node = graph.node(node);
        match &node.op {
            Op::Linear(linear) if step.kernel == LINEAR_F32 => {
                Ok(vec![self.linear_f32(linear, self.value(node.ins[0])?, self.value(node.outs[0])?)?])
            }
            _ => Ok(vec![self.node(node)?]),
        }
    }

    /// The launch of one node.
    fn node(&self, node: &Node) -> Result<Launch, RunError> {
        let input = |i: usize| self.value(node.ins[i]);
        let out = |i: usize| self.value(node.outs[i]);
        match &node.op {
            Op::Embed { table, scale } => self.embed(*table, *scale, input(0)?, out(0)?),
            Op::AddRow { table, row } => self.add_row(*table, *row, input(0)?, out(0)?),
            Op::Norm(norm) => self.norm(norm, input(0)?, None, out(0)?),
            Op::Linear(linear) => self.linear(linear, input(0)?, out(0)?),
            Op::Rope(rope) => self.rope(rope, input(0)?, out(0)?),
            Op::StoreKv { cache } => self.store_kv(*cache, input(0)?, input(1)?),
            Op::Attention(attention) => self.attention(attention, input(0)?, out(0)?),
            Op::Glu(a) => Ok(self.elementwise(ElementOp::Glu(*a), input(0)?, Some(input(1)?), out(0)?)),
            Op::GluClamped(unit) => {
                Ok(self.elementwise(ElementOp::GluClamped(*unit), input(0)?, Some(input(1)?), out(0)?))
            }
            Op::Activate(a) => Ok(self.elementwise(ElementOp::Activate(*a), input(0)?, None, out(0)?)),
            Op::Add => Ok(self.elementwise(ElementOp::Add, input(0)?, Some(input(1)?), out(0)?)),
            Op::Mul => Ok(self.elementwise(ElementOp::Mul, input(0)?, Some(input(1)?), out(0)?)),
            Op::MulWeight { weight } => {
                let factors = self.weights.vector(Some(*weight), 0)?;
                Ok(self.elements(ElementOp::MulWeight, input(0)?, factors, out(0)?))
            }
            Op::ShortConv(conv) => self.short_conv(conv, node),
            Op::Scan(scan) => self.scan(scan, node),
            Op::Shift { cache } => self.shift(*cache, node),
            Op::Wkv(wkv) => self.wkv(wkv, node),
            Op::Lerp(lerp) => {
                let m = node.ins.get(2).map(|m| self.value(*m)).transpose()?;
                self.lerp(lerp, [input(0)?, input(1)?], m, out(0)?)
            }
            Op::Bonus(bonus) => self.bonus(bonus, [input(0)?, input(1)?, input(2)?], out(0)?),
            Op::Scale { factor } => Ok(self.elementwise(ElementOp::Scale(*factor), input(0)?, None, out(0)?)),
            Op::Softcap { cap } => Ok(self.elementwise(ElementOp::Softcap(*cap), input(0)?, None, out(0)?)),
            Op::Join => Ok(self.columns(input(0)?, Some(input(1)?), 0, out(0)?)),
            Op::Columns { first } => Ok(self.columns(input(0)?, None, *first, out(0)?)),
            Op::Gather => Ok(self.gather(input(0)?, input(1)?, out(0)?)),
            Op::Route(route) => self.route(route, input(0)?, out(0)?, out(1)?),
            Op::ExpertLinear { weight, bias, used } => {
                self.expert_linear((*weight, *bias), *used, input(0)?, input(1)?, out(0)?)
            }
            Op::Combine { used } => {
                let (y, weights, out) = (input(0)?, input(1)?, out(0)?);
                let args = CombineArgs {
                    rows: self.rows(y.rows),
                    y: y.ptr(),
                    weights: weights.ptr(),
                    out: out.out(),
                    cols: out.cols,
                    used: *used,
                };
                Ok(Launch::new(Kernel::new("route", "combine"), [y.most, 1, 1], THREADS, &args))
            }
            op @ Op::Input(_) => Err(RunError::Plan(format!("no kernel for {}", op.name()))),
        }
    }

    fn embed(&self, table: WeightId, scale: f32, ids: Value, out: Value) -> Result<Launch, RunError> {
        Ok(look_up(self.embed_args(table, scale, ids, out)?, out))
    }

    fn embed_args(&self, table: WeightId, scale: f32, ids: Value, out: Value) -> Result<EmbedArgs, RunError> {
        Ok(EmbedArgs {
            table: self.weights.raw(table, 0)?,
            rows: self.rows(out.rows),
            ids: ids.ptr(),
            picked: Ptr::new(self.picked),
            x: Ptr::NULL,
            out: out.out(),
            scale,
            unused: 0,
        })
    }

    /// The launch of a step that looks up its tokens, with cosines and sines for what follows: they depend on nothing else, and a
    /// kernel of their own would be one more to wait for. `None` for other steps.
    pub(super) fn embed_with_table(&self, step: &Step, slot: &RopeSlot) -> Result<Option<Launch>, RunError> {
        let [node] = step.nodes[..] else { return Ok(None) };
        let node = self.plan.graph.node(node);
        let Op::Embed { table, scale } = node.op else { return Ok(None) };
        let out = self.value(node.outs[0])?;
        if out.rows != Rows::Tokens {
            return Ok(None);
        }
        let embed = self.embed_args(table, scale, self.value(node.ins[0])?, out)?;
        let (blocks, turns) = (embed_blocks(out), self.rope_table_args(slot));
        let grid = [out.most, blocks + turns.pairs.div_ceil(EMBED_THREADS), 1];
        let args = EmbedTurnsArgs { embed, turns, blocks, unused: 0 };
        Ok(Some(Launch::new(Kernel::new("embed", "embed_and_turns"), grid, EMBED_THREADS, &args)))
    }

    fn add_row(&self, table: WeightId, row: u32, x: Value, out: Value) -> Result<Launch, RunError> {
        let args = EmbedArgs {
            table: self.weights.raw(table, u64::from(row))?,
            rows: self.rows(out.rows),
            ids: Ptr::NULL,
            picked: Ptr::NULL,
            x: x.ptr(),
            out: out.out(),
            scale: 1.0,
            unused: 0,
        };
        Ok(look_up(args, out))
    }

    /// The norm of `x`, or of its sum with a value, which is kept: (other, sum).
    pub(super) fn norm(
        &self,
        norm: &Norm,
        x: Value,
        sum: Option<(Value, Value)>,
        out: Value,
    ) -> Result<Launch, RunError> {
        let args = NormArgs {
            rows: self.rows(x.rows),
            x: x.ptr(),
            other: sum.map_or(Ptr::NULL, |(other, _)| other.ptr()),
            sum: sum.map_or(Mut::NULL, |(_, sum)| sum.out()),
            weight: self.weights.vector(norm.weight, 0)?,
            bias: self.weights.vector(norm.bias, 0)?,
            out: out.out(),
            cols: x.cols,
            groups: norm.groups,
            eps: norm.eps,
            kind: norm.kind as u32,
        };
        let width = x.cols / norm.groups;
        if sum.is_none() && norm.groups > 1 && width <= MOST_GROUP_COLS {
            let blocks = (x.most * norm.groups).div_ceil(THREADS / 32);
            return Ok(Launch::new(Kernel::new("norm", "norm_groups"), [blocks, 1, 1], THREADS, &args));
        }
        // About four elements a thread.
        let threads = width.div_ceil(4).next_multiple_of(32).clamp(32, 1024);
        Ok(Launch::new(Kernel::new("norm", "norm_rows"), [x.most * norm.groups, 1, 1], threads, &args))
    }

    fn linear(&self, linear: &Linear, x: Value, out: Value) -> Result<Launch, RunError> {
        let args = LinearAnyArgs {
            matrix: self.weights.raw(linear.weight, u64::from(linear.first))?,
            rows: self.rows(x.rows),
            x: x.ptr(),
            bias: self.weights.vector(linear.bias, linear.first)?,
            out: out.out(),
            outs: linear.rows,
            unused: 0,
        };
        let grid = [linear.rows.div_ceil(LINEAR_WARPS), x.most.div_ceil(LINEAR_ROWS), 1];
        Ok(Launch::new(Kernel::new("linear_any", "linear_any"), grid, 32 * LINEAR_WARPS, &args))
    }

    fn expert_linear(
        &self,
        (weight, bias): (WeightId, Option<WeightId>),
        used: u32,
        x: Value,
        ids: Value,
        out: Value,
    ) -> Result<Launch, RunError> {
        let matrix = self.weights.raw(weight, 0)?;
        let args = ExpertLinearAnyArgs {
            rows: self.rows(x.rows),
            x: x.ptr(),
            ids: ids.ptr(),
            bias: self.weights.vector(bias, 0)?,
            out: out.out(),
            outs: out.cols / used,
            used,
            shared_input: u32::from(x.cols == matrix.cols),
            unused: 0,
            matrix,
        };
        let grid = [x.most * used, args.outs.div_ceil(LINEAR_WARPS), 1];
        Ok(Launch::new(Kernel::new("linear_any", "expert_linear_any"), grid, 32 * LINEAR_WARPS, &args))
    }

    /// Cosines and sines of the step's positions.
    pub(super) fn rope_table(&self, slot: &RopeSlot) -> Launch {
        let args = self.rope_table_args(slot);
        let threads = args.pairs.next_multiple_of(32).clamp(32, THREADS);
        Launch::new(Kernel::new("rope", "rope_table"), [self.plan.graph.key.tokens, 1, 1], threads, &args)
    }

    fn rope_table_args(&self, slot: &RopeSlot) -> RopeTableArgs {
        let positions = if slot.streams.is_some() { self.places.streams } else { self.places.positions };
        RopeTableArgs {
            rows: self.input(crate::step::TOKENS),
            positions: self.input(positions),
            streams: slot.streams.as_ref().map_or(Ptr::NULL, |streams| Ptr::new(streams.address())),
            turns: Ptr::new(slot.turns.address()),
            out: Mut::new(slot.table.address()),
            pairs: slot.rope.dims / 2,
            magnitude: slot.rope.gain() as f32,
        }
    }

    pub(super) fn rope(&self, rope: &Rope, x: Value, out: Value) -> Result<Launch, RunError> {
        let args = RopeArgs {
            rows: self.rows(x.rows),
            x: x.ptr(),
            table: Ptr::new(self.rope_slot(rope)?.table.address()),
            out: out.out(),
            heads: rope.heads,
            head_dim: rope.head_dim,
            pairs: rope.dims / 2,
            adjacent: u32::from(rope.style == RopeStyle::Adjacent),
        };
        Ok(Launch::new(Kernel::new("rope", "rope"), [x.most, 1, 1], THREADS, &args))
    }

    pub(super) fn store_kv(&self, cache: CacheId, k: Value, v: Value) -> Result<Launch, RunError> {
        let address = self.cache(cache)?;
        let spec = &self.layout.caches[cache.0 as usize];
        let (k_type, v_type) = (self.layout.k_type, self.layout.v_type);
        let args = StoreKvArgs {
            rows: self.rows(k.rows),
            k: k.ptr(),
            v: v.ptr(),
            slots: self.input(self.places.groups[spec.group as usize].slots),
            cache: Mut::new(address),
            block_bytes: spec.block_bytes(k_type, v_type) as u64,
            kv_heads: spec.kv_heads,
            k_dim: spec.k_dim,
            v_dim: spec.v_dim,
            k_type: kv_code(k_type),
            v_type: kv_code(v_type),
            unused: 0,
        };
        Ok(Launch::new(Kernel::new("store_kv", "store_kv"), [k.most, spec.kv_heads, 1], 32, &args))
    }

    pub(super) fn attention(&self, attention: &Attention, q: Value, out: Value) -> Result<Launch, RunError> {
        if self.kernels == Kernels::Fast
            && let Some(launch) = self.fast_attention(attention, q, out)?
        {
            return Ok(launch);
        }
        let address = self.cache(attention.cache)?;
        let spec = &self.layout.caches[attention.cache.0 as usize];
        let group = self.places.groups[spec.group as usize];
        let (k_type, v_type) = (self.layout.k_type, self.layout.v_type);
        let args = AttentionAnyArgs {
            rows: self.rows(q.rows),
            q: q.ptr(),
            cache: Ptr::new(address),
            sinks: self.weights.vector(attention.sinks, 0)?,
            positions: self.input(self.places.positions),
            sequences: self.input(self.places.sequences),
            lengths: self.input(self.places.lengths),
            first_blocks: self.input(group.first),
            blocks: self.input(group.blocks),
            out: out.out(),
            block_bytes: spec.block_bytes(k_type, v_type) as u64,
            max_blocks: self.places.max_blocks as u32,
            heads: attention.heads,
            kv_heads: spec.kv_heads,
            k_dim: spec.k_dim,
            v_dim: spec.v_dim,
            k_type: kv_code(k_type),
            v_type: kv_code(v_type),
            window: attention.window.unwrap_or(0),
            causal: u32::from(attention.causal),
            scale: attention.scale,
            softcap: attention.softcap.unwrap_or(0.0),
            unused: 0,
        };
        let shared = 4 * (spec.k_dim + spec.v_dim + ATTENTION_THREADS) as usize;
        let grid = [q.most, attention.heads, 1];
        let kernel = Kernel::new("attention_any", "attention_any");
        Ok(Launch::new(kernel, grid, ATTENTION_THREADS, &args).shared(shared))
    }

    fn elementwise(&self, op: ElementOp, x: Value, y: Option<Value>, out: Value) -> Launch {
        self.elements(op, x, y.map_or(Ptr::NULL, |y| y.ptr()), out)
    }

    fn elements(&self, op: ElementOp, x: Value, y: Ptr<f32>, out: Value) -> Launch {
        let (op, activation, factor, limit) = match op {
            ElementOp::Add => (0, 0, 0.0, 0.0),
            ElementOp::Scale(factor) => (1, 0, factor, 0.0),
            ElementOp::Softcap(cap) => (2, 0, cap, 0.0),
            ElementOp::Activate(a) => (3, a as u32, 0.0, 0.0),
            ElementOp::Glu(a) => (4, a as u32, 0.0, 0.0),
            ElementOp::GluClamped(unit) => (5, 0, unit.alpha, unit.limit),
            ElementOp::Mul => (6, 0, 0.0, 0.0),
            ElementOp::MulWeight => (7, 0, 0.0, 0.0),
        };
        let args = ElementwiseArgs {
            rows: self.rows(x.rows),
            x: x.ptr(),
            y,
            out: out.out(),
            cols: x.cols,
            op,
            activation,
            factor,
            limit,
            unused: 0,
        };
        Launch::new(Kernel::new("elementwise", "elementwise"), elements_grid(x), THREADS, &args)
    }

    fn columns(&self, x: Value, y: Option<Value>, first: u32, out: Value) -> Launch {
        let args = ColumnsArgs {
            rows: self.rows(out.rows),
            x: x.ptr(),
            y: y.map_or(Ptr::NULL, |y| y.ptr()),
            out: out.out(),
            cols: out.cols,
            from: x.cols,
            first,
            unused: 0,
        };
        Launch::new(Kernel::new("elementwise", "columns"), [out.most, 1, 1], THREADS, &args)
    }

    fn lerp(
        &self,
        lerp: &Lerp,
        [x, y]: [Value; 2],
        m: Option<Value>,
        out: Value,
    ) -> Result<Launch, RunError> {
        let row = match lerp.row {
            Some((table, row)) => self.weights.vector(Some(table), row * x.cols)?,
            None => Ptr::NULL,
        };
        let args = LerpArgs {
            rows: self.rows(x.rows),
            x: x.ptr(),
            y: y.ptr(),
            m: m.map_or(Ptr::NULL, |m| m.ptr()),
            row,
            out: out.out(),
            cols: x.cols,
            unused: 0,
        };
        Ok(Launch::new(Kernel::new("elementwise", "lerp"), elements_grid(x), THREADS, &args))
    }

    fn bonus(&self, bonus: &Bonus, [a, b, v]: [Value; 3], out: Value) -> Result<Launch, RunError> {
        const WARPS: u32 = 4;
        let args = BonusArgs {
            rows: self.rows(v.rows),
            a: a.ptr(),
            b: b.ptr(),
            v: v.ptr(),
            weight: self.weights.vector(Some(bonus.weight), 0)?,
            out: out.out(),
            heads: bonus.heads,
            head_dim: v.cols / bonus.heads,
        };
        let grid = [(v.most * bonus.heads).div_ceil(WARPS), 1, 1];
        Ok(Launch::new(Kernel::new("elementwise", "bonus"), grid, 32 * WARPS, &args))
    }

    fn gather(&self, x: Value, indices: Value, out: Value) -> Launch {
        let args = GatherArgs {
            rows: self.rows(out.rows),
            x: x.ptr(),
            indices: indices.ptr(),
            out: out.out(),
            cols: x.cols,
            unused: 0,
        };
        Launch::new(Kernel::new("elementwise", "gather"), [out.most, 1, 1], THREADS, &args)
    }

    fn route(&self, route: &Route, scores: Value, ids: Value, weights: Value) -> Result<Launch, RunError> {
        let args = self.route_args(route, scores.ptr(), scores.cols, (ids, weights))?;
        let shared = choice_bytes(&args);
        Ok(Launch::new(Kernel::new("route", "route"), [scores.most, 1, 1], 32, &args).shared(shared))
    }

    pub(super) fn route_args(
        &self,
        route: &Route,
        scores: Ptr<f32>,
        experts: u32,
        (ids, weights): (Value, Value),
    ) -> Result<RouteArgs, RunError> {
        Ok(RouteArgs {
            rows: self.rows(ids.rows),
            scores,
            bias: self.weights.vector(route.bias, 0)?,
            ids: ids.out(),
            weights: weights.out(),
            experts,
            used: route.used,
            gating: match route.gating {
                Gating::Softmax => 0,
                Gating::Sigmoid => 1,
                Gating::SoftmaxChosen => 2,
            },
            normalize: u32::from(route.normalize),
            scale: route.scale,
            unused: 0,
        })
    }
}

/// Bytes of shared memory of a choice.
pub(super) fn choice_bytes(args: &RouteArgs) -> usize {
    4 * (2 * args.experts + args.used) as usize
}

const _: () = assert!(BLOCK_TOKENS == 32, "kernels/cache.cuh is written for blocks of 32 positions");
