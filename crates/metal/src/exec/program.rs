//! A plan with its steps resolved to kernels, buffers and row counts.

use std::collections::HashMap;
use std::sync::Arc;

use wootz_graph::op::{Bonus, ClampedGlu, Input, Lerp, NormKind, Op, Rope};
use wootz_graph::{
    After, CacheId, CacheLayout, Entries, Graph, KvType, Node, NodeId, Plan, Rows, RunError, Step, Type,
    ValueId, WeightId,
};

use super::launch::{ArgBytes, Call, Launch, Place, Shape};
use super::pick::Reach;
use super::rope;
use super::step::{Counts, StepLayout, StepPart};
use super::transfer::Transfer;
use super::weights::Weights;
use crate::args::{
    AddRowArgs, BonusArgs, ClampedGluArgs, ColumnsArgs, CombineArgs, ElementArgs, EmbedArgs, LerpArgs,
    NormArgs, RouteArgs, RowsArgs,
};
use crate::device::{Caps, MetalDevice, Slice};
use crate::library::{Function, Library};
use crate::select;

/// A plan that is ready to run.
pub(super) struct Program {
    pub(super) plan: Plan,
    pub(super) launches: Vec<Launch>,
    pub(super) layout: StepLayout,
    /// Entries of the tables of embeddings.
    pub(super) entries: Entries,
    pub(super) output: Option<OutputPlace>,
    /// The launches that pick tokens, once they are needed, by the most candidates of a row.
    pub(super) picks: Vec<(Reach, Vec<Launch>)>,
}

/// The value that the host reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutputPlace {
    pub(super) value: ValueId,
    pub(super) rows: Rows,
    pub(super) cols: usize,
}

/// What one cache holds.
pub(super) enum CacheBuffers {
    KeysValues { k: Slice, v: Slice },
    State(Slice),
}

impl CacheBuffers {
    /// All memory of the cache: pieces with a part for each block.
    pub(super) fn pieces(&self) -> impl Iterator<Item = &Slice> {
        let (first, second) = match self {
            CacheBuffers::KeysValues { k, v } => (k, Some(v)),
            CacheBuffers::State(states) => (states, None),
        };
        std::iter::once(first).chain(second)
    }
}

/// What the kernel computes a rotary embedding from.
#[derive(Clone)]
pub(super) struct RopeTables {
    /// Frequencies.
    pub(super) turns: Slice,
    /// The stream of positions that turns each pair, where there are several.
    pub(super) streams: Option<Slice>,
}

/// What programs of one executor are made with.
pub(super) struct Compiler<'a> {
    pub(super) device: &'a Arc<dyn MetalDevice>,
    pub(super) name: &'a str,
    pub(super) weights: &'a Weights,
    pub(super) transfer: &'a mut Transfer,
    pub(super) caches: &'a [CacheBuffers],
    pub(super) layout: &'a CacheLayout,
    /// Tables of rotary embeddings made so far.
    pub(super) ropes: &'a mut Vec<(Rope, RopeTables)>,
}

impl Compiler<'_> {
    /// Resolves every step of a plan.
    ///
    /// # Errors
    /// A kernel does not compile, or a weight was not loaded.
    pub(super) fn program(&mut self, plan: Plan) -> Result<Program, RunError> {
        let graph = &plan.graph;
        let mut places = HashMap::new();
        for node in &graph.nodes {
            if let Op::Input(input) = &node.op {
                let part = match input {
                    Input::Tokens => StepPart::Tokens,
                    Input::Positions => StepPart::Positions,
                    Input::Streams => StepPart::Streams,
                    Input::OutputRows => StepPart::OutputRows,
                    Input::Hidden { .. } => StepPart::Hidden,
                };
                places.insert(node.outs[0], Place::Step(part));
            }
        }
        let output = graph.outputs.first().and_then(|(_, value)| match graph.ty(*value) {
            Type::Matrix { rows, cols, .. } => Some(OutputPlace { value: *value, rows, cols: cols as usize }),
            Type::State => None,
        });
        if let Some(output) = output {
            let place = Place::Output { rows: output.rows, row_bytes: 4 * output.cols as u64 };
            places.insert(output.value, place);
        }
        let entries = graph.entries(self.weights.table());
        let layout = StepLayout::new(graph, self.layout.groups.len());
        let mut launches: Vec<Launch> = Vec::new();
        for (index, step) in plan.steps.iter().enumerate() {
            let mut builder = StepBuilder { compiler: self, plan: &plan, graph, step, places: &places };
            let mut made = builder.launches()?;
            for (i, launch) in made.iter_mut().enumerate() {
                launch.step = index;
                launch.barrier |= i == 0 && step.after == After::Barrier;
            }
            launches.extend(made);
        }
        Ok(Program { plan, launches, layout, entries, output, picks: Vec::new() })
    }
}

/// Makes the launches of one step.
pub(super) struct StepBuilder<'a, 'b> {
    pub(super) compiler: &'a mut Compiler<'b>,
    pub(super) plan: &'a Plan,
    pub(super) graph: &'a Graph,
    pub(super) step: &'a Step,
    /// Places of values that are not in the arena.
    places: &'a HashMap<ValueId, Place>,
}

impl StepBuilder<'_, '_> {
    fn launches(&mut self) -> Result<Vec<Launch>, RunError> {
        match self.step.kernel {
            select::PRODUCTS
            | select::NORM_PRODUCTS
            | select::PRODUCT_ADD
            | select::GATED
            | select::NORM_GATED => self.products(),
            select::NORM | select::NORM_ADD => Ok(vec![self.norm()?]),
            select::HEADS => Ok(vec![self.heads()?]),
            _ => self.single(self.step.nodes[0]),
        }
    }

    pub(super) fn caps(&self) -> &Caps {
        self.compiler.device.caps()
    }

    /// Threads of an ordinary threadgroup.
    pub(super) fn threads(&self) -> u32 {
        256.min(self.caps().max_threads)
    }

    /// Where a value lies.
    pub(super) fn place(&self, value: ValueId) -> Result<Place, RunError> {
        if let Some(place) = self.places.get(&value) {
            return Ok(place.clone());
        }
        match (self.plan.region(value), self.graph.ty(value)) {
            (Some(region), Type::Matrix { elem, rows, cols }) => Ok(Place::Value {
                offset: region.offset as u64,
                rows,
                row_bytes: u64::from(cols) * elem.bytes() as u64,
            }),
            _ => Err(RunError::Plan(format!("value {} has no memory", value.0))),
        }
    }

    pub(super) fn cols(&self, value: ValueId) -> u32 {
        self.graph.ty(value).cols()
    }

    /// The row count of a value in a step.
    pub(super) fn rows(
        &self,
        value: ValueId,
    ) -> impl Fn(Counts) -> u32 + Copy + Send + Sync + 'static + use<> {
        let outputs = matches!(self.graph.ty(value), Type::Matrix { rows: Rows::Outputs, .. });
        move |counts: Counts| if outputs { counts.outputs } else { counts.tokens }
    }

    pub(super) fn vector(&self, id: Option<WeightId>) -> Result<Option<Place>, RunError> {
        id.map(|w| self.compiler.weights.vector(w).map(Place::Fixed)).transpose()
    }

    pub(super) fn matrix(&self, id: WeightId) -> Result<Slice, RunError> {
        self.compiler.weights.matrix(id)
    }

    pub(super) fn call(&self, library: Library, kernel: &'static str) -> Call {
        Call::new(Function::new(library, kernel), self.caps())
    }

    pub(super) fn function(&self, function: Function) -> Call {
        Call::new(function, self.caps())
    }

    pub(super) fn finish(
        &self,
        call: Call,
        threads: u32,
        shape: impl Fn(Counts) -> Shape + Send + Sync + 'static,
    ) -> Result<Launch, RunError> {
        call.launch(&**self.compiler.device, self.compiler.name, threads, shape)
    }

    pub(super) fn cache(&self, id: CacheId) -> &CacheBuffers {
        &self.compiler.caches[id.0 as usize]
    }

    /// Keys and values of a cache.
    pub(super) fn keys_and_values(&self, id: CacheId) -> Result<(Place, Place), RunError> {
        match self.cache(id) {
            CacheBuffers::KeysValues { k, v } => Ok((Place::Fixed(k.clone()), Place::Fixed(v.clone()))),
            CacheBuffers::State(_) => Err(RunError::Plan(format!("cache {} holds a state", id.0))),
        }
    }

    /// The cache group of a cache.
    pub(super) fn group(&self, id: CacheId) -> u32 {
        self.graph.caches[id.0 as usize].group
    }

    /// A library with the types of the cache.
    pub(super) fn with_cache_types(&self, library: Library) -> Library {
        let layout = self.compiler.layout;
        library.with("K_TYPE", cache_type(layout.k_type)).with("V_TYPE", cache_type(layout.v_type))
    }

    /// The tables of a rotary embedding.
    pub(super) fn rope_tables(&mut self, rope: &Rope) -> Result<RopeTables, RunError> {
        let key = Rope { heads: 0, ..*rope };
        if let Some((_, tables)) = self.compiler.ropes.iter().find(|(r, _)| *r == key) {
            return Ok(tables.clone());
        }
        let factors = rope.factors.map(|f| self.compiler.weights.elements(f)).transpose()?;
        let turns = rope::turns(rope, factors.as_deref());
        let mut constant =
            |bytes: &[u8], what: &str| self.compiler.weights.constant(bytes, what, self.compiler.transfer);
        let turns = constant(bytemuck::cast_slice(&turns), "rotary frequencies")?;
        let streams = match rope.sections {
            Some(_) => Some(constant(bytemuck::cast_slice(&rope.streams()), "rotary streams")?),
            None => None,
        };
        let tables = RopeTables { turns, streams };
        self.compiler.ropes.push((key, tables.clone()));
        Ok(tables)
    }

    /// The launches of a node that runs alone.
    fn single(&mut self, id: NodeId) -> Result<Vec<Launch>, RunError> {
        let node = self.graph.node(id);
        let launch = match &node.op {
            Op::Embed { table, scale } => self.embed(*table, *scale, node.ins[0], node.outs[0])?,
            Op::Rope(_) | Op::StoreKv { .. } => self.heads()?,
            Op::Attention(attention) => return self.attention(attention, node.ins[0], node.outs[0]),
            Op::AddRow { table, row } => self.add_row(*table, *row, node.ins[0], node.outs[0])?,
            Op::ShortConv(conv) => self.short_conv(conv, node)?,
            Op::Scan(scan) => self.scan(scan, node)?,
            Op::Shift { cache } => self.shift(*cache, node)?,
            Op::Wkv(wkv) => self.wkv(wkv, node)?,
            Op::Lerp(lerp) => self.lerp(lerp, node)?,
            Op::Bonus(bonus) => self.bonus(bonus, node)?,
            Op::MulWeight { weight } => self.mul_weight(*weight, node.ins[0], node.outs[0])?,
            Op::Mul => self.elements("mul", 0.0, 0, &["a", "b"], &node.ins, node.outs[0])?,
            Op::Add => self.elements("add", 0.0, 0, &["a", "b"], &node.ins, node.outs[0])?,
            Op::Glu(a) => {
                self.elements("glu", 0.0, activation(*a), &["gate", "up"], &node.ins, node.outs[0])?
            }
            Op::GluClamped(unit) => self.glu_clamped(*unit, &node.ins, node.outs[0])?,
            Op::Activate(a) => {
                self.elements("activate_all", 0.0, activation(*a), &["x"], &node.ins, node.outs[0])?
            }
            Op::Scale { factor } => self.elements("scale", *factor, 0, &["x"], &node.ins, node.outs[0])?,
            Op::Softcap { cap } => self.elements("softcap", *cap, 0, &["x"], &node.ins, node.outs[0])?,
            Op::Join => self.columns("join", 0, &["a", "b"], node)?,
            Op::Columns { first } => self.columns("columns", *first, &["x"], node)?,
            Op::Gather => self.gather(node.ins[0], node.ins[1], node.outs[0])?,
            Op::Route(route) => {
                let call = self
                    .function(
                        Function::new(Library::plain("route"), "route")
                            .set("gating", route.gating as u32)
                            .set("has_bias", route.bias.is_some())
                            .set("divide_by_sum", route.normalize),
                    )
                    .bind("scores", self.place(node.ins[0])?)
                    .bind_some("bias", self.vector(route.bias)?)
                    .bind("ids", self.place(node.outs[0])?)
                    .bind("weights", self.place(node.outs[1])?);
                let args =
                    RouteArgs { experts: self.cols(node.ins[0]), used: route.used, scale: route.scale };
                let rows = self.rows(node.ins[0]);
                self.finish(call, self.caps().simd_width, move |c| Shape {
                    args: ArgBytes::of(args),
                    grid: [rows(c), 1, 1],
                })?
            }
            Op::ExpertLinear { weight, bias, used } => {
                return self.experts((*weight, *bias), *used, node.ins[0], node.ins[1], node.outs[0]);
            }
            Op::Combine { used } => {
                let args = CombineArgs { cols: self.cols(node.outs[0]), used: *used };
                let call = self
                    .call(Library::plain("route"), "combine")
                    .bind("y", self.place(node.ins[0])?)
                    .bind("weights", self.place(node.ins[1])?)
                    .bind("out", self.place(node.outs[0])?);
                let (rows, threads) = (self.rows(node.ins[0]), self.threads());
                self.finish(call, threads, move |c| Shape {
                    args: ArgBytes::of(args),
                    grid: [args.cols.div_ceil(threads), rows(c), 1],
                })?
            }
            op => {
                return Err(RunError::Plan(format!("no kernel {} for {}", self.step.kernel, op.name())));
            }
        };
        Ok(vec![launch])
    }

    fn embed(&mut self, table: WeightId, scale: f32, ids: ValueId, out: ValueId) -> Result<Launch, RunError> {
        let info = self.compiler.weights.table().info(table);
        let args = EmbedArgs { cols: self.cols(out), row_bytes: info.row_bytes() as u32, scale };
        let library = Library::plain("embed").with("WEIGHT", info.ty);
        let call = self
            .call(library, "embed")
            .bind("table", Place::Fixed(self.matrix(table)?))
            .bind("ids", self.place(ids)?)
            .bind("picked", Place::PickedBefore)
            .bind("y", self.place(out)?);
        let (rows, threads) = (self.rows(out), 64);
        self.finish(call, threads, move |c| Shape {
            args: ArgBytes::of(args),
            grid: [args.cols.div_ceil(16 * threads), rows(c), 1],
        })
    }

    fn add_row(&mut self, table: WeightId, row: u32, x: ValueId, out: ValueId) -> Result<Launch, RunError> {
        let info = self.compiler.weights.table().info(table);
        let args = AddRowArgs { cols: self.cols(out), row_bytes: info.row_bytes() as u32, row };
        let library = Library::plain("embed").with("WEIGHT", info.ty);
        let call = self
            .call(library, "add_row")
            .bind("table", Place::Fixed(self.matrix(table)?))
            .bind("x", self.place(x)?)
            .bind("y", self.place(out)?);
        let (rows, threads) = (self.rows(out), 64);
        self.finish(call, threads, move |c| Shape {
            args: ArgBytes::of(args),
            grid: [args.cols.div_ceil(16 * threads), rows(c), 1],
        })
    }

    /// An operation element by element.
    fn elements(
        &mut self,
        kernel: &'static str,
        factor: f32,
        activation: u32,
        names: &[&'static str],
        ins: &[ValueId],
        out: ValueId,
    ) -> Result<Launch, RunError> {
        let function = Function::new(Library::plain("elementwise"), kernel).set("activation", activation);
        let mut call = self.function(function);
        for (name, value) in names.iter().zip(ins) {
            call = call.bind(name, self.place(*value)?);
        }
        call = call.bind("y", self.place(out)?);
        let (rows, cols, threads) = (self.rows(out), self.cols(out), self.threads());
        self.finish(call, threads, move |c| {
            let count = rows(c) * cols;
            Shape { args: ArgBytes::of(ElementArgs { count, factor }), grid: [count.div_ceil(threads), 1, 1] }
        })
    }

    fn glu_clamped(&mut self, unit: ClampedGlu, ins: &[ValueId], out: ValueId) -> Result<Launch, RunError> {
        let call = self
            .call(Library::plain("elementwise"), "glu_clamped")
            .bind("gate", self.place(ins[0])?)
            .bind("up", self.place(ins[1])?)
            .bind("y", self.place(out)?);
        let (rows, cols, threads) = (self.rows(out), self.cols(out), self.threads());
        self.finish(call, threads, move |c| {
            let args = ClampedGluArgs { count: rows(c) * cols, alpha: unit.alpha, limit: unit.limit };
            Shape { args: ArgBytes::of(args), grid: [args.count.div_ceil(threads), 1, 1] }
        })
    }

    /// Something between two values.
    fn lerp(&self, lerp: &Lerp, node: &Node) -> Result<Launch, RunError> {
        let (out, m) = (node.outs[0], node.ins.get(2));
        let cols = self.cols(out);
        let row = match lerp.row {
            Some((table, row)) => {
                let bytes = 4 * u64::from(cols);
                let all = self.compiler.weights.vector(table)?;
                Some(Place::Fixed(all.part(u64::from(row) * bytes, bytes)))
            }
            None => None,
        };
        let function = Function::new(Library::plain("elementwise"), "lerp")
            .set("has_value", m.is_some())
            .set("has_row", row.is_some());
        let call = self
            .function(function)
            .bind("x", self.place(node.ins[0])?)
            .bind("y", self.place(node.ins[1])?)
            .bind_some("m", m.map(|m| self.place(*m)).transpose()?)
            .bind_some("row", row)
            .bind("out", self.place(out)?);
        let (rows, threads) = (self.rows(out), self.threads());
        self.finish(call, threads, move |c| {
            let args = LerpArgs { count: rows(c) * cols, cols };
            Shape { args: ArgBytes::of(args), grid: [args.count.div_ceil(threads), 1, 1] }
        })
    }

    /// Values by scores of heads.
    fn bonus(&self, bonus: &Bonus, node: &Node) -> Result<Launch, RunError> {
        let out = node.outs[0];
        let call = self
            .call(Library::plain("elementwise"), "bonus")
            .bind("a", self.place(node.ins[0])?)
            .bind("b", self.place(node.ins[1])?)
            .bind("v", self.place(node.ins[2])?)
            .bind_some("weight", self.vector(Some(bonus.weight))?)
            .bind("y", self.place(out)?);
        let args = BonusArgs { heads: bonus.heads, head_dim: self.cols(out) / bonus.heads };
        let rows = self.rows(out);
        self.finish(call, self.caps().simd_width, move |c| Shape {
            args: ArgBytes::of(args),
            grid: [args.heads, rows(c), 1],
        })
    }

    /// Each row times the elements of a weight.
    fn mul_weight(&self, weight: WeightId, x: ValueId, out: ValueId) -> Result<Launch, RunError> {
        let call = self
            .call(Library::plain("elementwise"), "mul_weight")
            .bind("x", self.place(x)?)
            .bind_some("weight", self.vector(Some(weight))?)
            .bind("y", self.place(out)?);
        let (rows, cols, threads) = (self.rows(out), self.cols(out), self.threads());
        self.finish(call, threads, move |c| Shape {
            args: ArgBytes::of(RowsArgs { rows: rows(c), cols }),
            grid: [cols.div_ceil(threads), rows(c), 1],
        })
    }

    /// Columns of two values side by side, or some of one.
    fn columns(
        &self,
        kernel: &'static str,
        first: u32,
        names: &[&'static str],
        node: &Node,
    ) -> Result<Launch, RunError> {
        let mut call = self.call(Library::plain("elementwise"), kernel);
        for (name, value) in names.iter().zip(&node.ins) {
            call = call.bind(name, self.place(*value)?);
        }
        let out = node.outs[0];
        let args = ColumnsArgs { cols: self.cols(out), from: self.cols(node.ins[0]), first };
        let (rows, threads) = (self.rows(out), self.threads());
        self.finish(call.bind("y", self.place(out)?), threads, move |c| Shape {
            args: ArgBytes::of(args),
            grid: [args.cols.div_ceil(threads), rows(c), 1],
        })
    }

    fn gather(&mut self, x: ValueId, indices: ValueId, out: ValueId) -> Result<Launch, RunError> {
        let call = self
            .call(Library::plain("elementwise"), "gather")
            .bind("x", self.place(x)?)
            .bind("indices", self.place(indices)?)
            .bind("y", self.place(out)?);
        let (rows, cols, threads) = (self.rows(out), self.cols(out), self.threads());
        self.finish(call, threads, move |c| Shape {
            args: ArgBytes::of(RowsArgs { rows: rows(c), cols }),
            grid: [cols.div_ceil(threads), rows(c), 1],
        })
    }

    /// A norm, with a sum after it.
    fn norm(&mut self) -> Result<Launch, RunError> {
        let node = self.graph.node(self.step.nodes[0]);
        let Op::Norm(norm) = &node.op else {
            return Err(RunError::Plan("a norm step without a norm".into()));
        };
        let (residual, out) = match self.step.nodes.get(1) {
            Some(add) => {
                let add = self.graph.node(*add);
                let other = add.ins.iter().find(|v| **v != node.outs[0]).copied();
                (other, add.outs[0])
            }
            None => (None, node.outs[0]),
        };
        let function = Function::new(Library::plain("norm"), "norm")
            .set("subtract_mean", norm.kind == NormKind::Layer)
            .set("by_length", norm.kind == NormKind::L2)
            .set("has_weight", norm.weight.is_some())
            .set("has_bias", norm.bias.is_some())
            .set("has_residual", residual.is_some());
        let call = self
            .function(function)
            .bind("x", self.place(node.ins[0])?)
            .bind_some("weight", self.vector(norm.weight)?)
            .bind_some("bias", self.vector(norm.bias)?)
            .bind_some("residual", residual.map(|r| self.place(r)).transpose()?)
            .bind("y", self.place(out)?);
        let args = NormArgs { cols: self.cols(out) / norm.groups, groups: norm.groups, eps: norm.eps };
        let width = self.caps().simd_width;
        let threads = args.cols.div_ceil(4).next_multiple_of(width).min(self.threads());
        let rows = self.rows(out);
        self.finish(call, threads, move |c| Shape {
            args: ArgBytes::of(args),
            grid: [args.groups, rows(c), 1],
        })
    }
}

/// The number that activation.h knows an activation by.
pub(super) fn activation(a: wootz_graph::op::Activation) -> u32 {
    a as u32
}

/// The struct of cache.h for a type.
fn cache_type(ty: KvType) -> &'static str {
    match ty {
        KvType::F32 => "KvF32",
        KvType::F16 => "KvF16",
        KvType::BF16 => "KvBF16",
        KvType::Q8_0 => "KvQ8_0",
        KvType::Q4_0 => "KvQ4_0",
    }
}
