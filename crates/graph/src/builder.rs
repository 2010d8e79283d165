use crate::cache::{CacheId, CacheSpec};
use crate::error::GraphError;
use crate::graph::{Elem, Graph, Node, Output, Rows, Type, ValueId};
use crate::key::{GraphKey, Outputs};
use crate::op::{
    Activation, Attention, Bonus, ClampedGlu, Input, Lerp, Linear, Norm, Op, Rope, Route, Scan, Sections,
    ShortConv, Wkv, WkvRule,
};
use crate::weights::{WeightId, WeightTable};

/// Builds a [`Graph`] node by node, checking shapes.
///
/// The first mistake is kept and returned by [`finish`](Self::finish), so that model families read as straight lines.
pub struct GraphBuilder<'a> {
    weights: &'a WeightTable,
    graph: Graph,
    states: Vec<ValueId>,
    inputs: Vec<(Input, ValueId)>,
    layer: Option<u16>,
    error: Option<GraphError>,
}

impl<'a> GraphBuilder<'a> {
    /// An empty graph over a model's weights and caches.
    pub fn new(key: GraphKey, weights: &'a WeightTable, caches: Vec<CacheSpec>) -> Self {
        let mut values = Vec::new();
        let states = caches
            .iter()
            .map(|_| {
                values.push(Type::State);
                ValueId(values.len() as u32 - 1)
            })
            .collect();
        let graph = Graph { key, nodes: Vec::new(), values, caches, outputs: Vec::new() };
        GraphBuilder { weights, graph, states, inputs: Vec::new(), layer: None, error: None }
    }

    /// The key the graph is built for.
    pub fn key(&self) -> &GraphKey {
        &self.graph.key
    }

    /// Marks the nodes that follow as a layer's, or as no layer's.
    pub fn layer(&mut self, layer: Option<u16>) {
        self.layer = layer;
    }

    /// A weight that the model must have.
    pub fn weight(&mut self, name: &str) -> WeightId {
        match self.weights.get(name) {
            Ok(id) => id,
            Err(e) => {
                self.fail(e);
                WeightId(0)
            }
        }
    }

    /// A weight that the model may have.
    pub fn find_weight(&self, name: &str) -> Option<WeightId> {
        self.weights.find(name)
    }

    /// A step input.
    pub fn input(&mut self, input: Input) -> ValueId {
        if let Some((_, value)) = self.inputs.iter().find(|(i, _)| *i == input) {
            return *value;
        }
        let (elem, rows, cols) = match input {
            Input::Tokens | Input::Positions => (Elem::I32, Rows::Tokens, 1),
            Input::Streams => (Elem::I32, Rows::Tokens, Sections::STREAMS),
            Input::OutputRows => (Elem::I32, Rows::Outputs, 1),
            Input::Hidden { cols } => (Elem::F32, Rows::Tokens, cols),
        };
        let value = self.node(Op::Input(input), &[], Type::Matrix { elem, rows, cols }, "input");
        self.inputs.push((input, value));
        value
    }

    /// Embeddings of the step's tokens, times `scale`.
    pub fn embed(&mut self, table: WeightId, scale: f32) -> ValueId {
        self.look_up(Input::Tokens, table, scale, "embed")
    }

    /// Embeddings of the tokens' positions.
    pub fn embed_positions(&mut self, table: WeightId) -> ValueId {
        self.look_up(Input::Positions, table, 1.0, "embed_positions")
    }

    fn look_up(&mut self, input: Input, table: WeightId, scale: f32, label: &'static str) -> ValueId {
        let ids = self.input(input);
        let cols = self.cols_of(table);
        let ty = Type::Matrix { elem: Elem::F32, rows: Rows::Tokens, cols };
        self.node(Op::Embed { table, scale }, &[ids], ty, label)
    }

    /// Norm of each row or group of `x`.
    pub fn norm(&mut self, x: ValueId, norm: Norm, label: &'static str) -> ValueId {
        let cols = self.graph.ty(x).cols();
        if norm.groups == 0 || !cols.is_multiple_of(norm.groups) {
            self.shape("norm", 0, x, format!("columns divisible into {} groups", norm.groups));
        } else {
            for weight in [norm.weight, norm.bias].into_iter().flatten() {
                self.expect_vector("norm", weight, cols / norm.groups);
            }
        }
        let ty = self.graph.ty(x);
        self.node(Op::Norm(norm), &[x], ty, label)
    }

    /// Product of `x` with a whole weight matrix, plus a bias.
    pub fn linear(
        &mut self,
        x: ValueId,
        weight: WeightId,
        bias: Option<WeightId>,
        label: &'static str,
    ) -> ValueId {
        let rows = self.rows_of(weight);
        self.linear_part(x, Linear { weight, first: 0, rows, bias }, label)
    }

    /// Product of `x` with some rows of a weight matrix.
    pub fn linear_part(&mut self, x: ValueId, linear: Linear, label: &'static str) -> ValueId {
        let cols = self.cols_of(linear.weight);
        if self.graph.ty(x).cols() != cols {
            self.shape("linear", 0, x, format!("{cols} columns ({})", self.name_of(linear.weight)));
        }
        let all = self.rows_of(linear.weight);
        if linear.first > all || linear.rows > all - linear.first {
            self.shape("linear", 0, x, format!("at most {all} weight rows"));
        }
        if let Some(bias) = linear.bias {
            self.expect_vector("linear", bias, all);
        }
        let ty = self.with_cols(x, linear.rows);
        self.node(Op::Linear(linear), &[x], ty, label)
    }

    /// Rotary position embedding of `x`.
    pub fn rope(&mut self, x: ValueId, rope: Rope, label: &'static str) -> ValueId {
        let cols = u64::from(self.graph.ty(x).cols());
        let fits = cols == u64::from(rope.heads) * u64::from(rope.head_dim)
            && rope.dims <= rope.head_dim
            && rope.dims.is_multiple_of(2);
        if !fits {
            let expected =
                format!("{} heads of {}, an even {} of it rotated", rope.heads, rope.head_dim, rope.dims);
            self.shape("rope", 0, x, expected);
        }
        if rope.sections.is_some_and(|s| s.counts.iter().all(|count| *count == 0)) {
            self.shape("rope", 0, x, "a section that has pairs".to_owned());
        }
        if let Some(factors) = rope.factors {
            self.expect_vector("rope", factors, rope.dims / 2);
        }
        let positions = self.input(if rope.sections.is_some() { Input::Streams } else { Input::Positions });
        let ty = self.graph.ty(x);
        self.node(Op::Rope(rope), &[x, positions], ty, label)
    }

    /// Writes keys and values of the step's tokens to a cache.
    pub fn store_kv(&mut self, cache: CacheId, k: ValueId, v: ValueId) {
        let spec = self.graph.caches[cache.0 as usize].clone();
        for (input, value, dim) in [(0, k, spec.k_dim), (1, v, spec.v_dim)] {
            if self.graph.ty(value).cols() != spec.kv_heads * dim {
                self.shape("store-kv", input, value, format!("{} heads of {dim}", spec.kv_heads));
            }
        }
        let state = self.states[cache.0 as usize];
        self.states[cache.0 as usize] =
            self.node(Op::StoreKv { cache }, &[k, v, state], Type::State, "store_kv");
    }

    /// Attention of `q` over a cache, after all writes to it so far.
    pub fn attention(&mut self, q: ValueId, attention: Attention) -> ValueId {
        let spec = self.graph.caches[attention.cache.0 as usize].clone();
        let fits = self.graph.ty(q).cols() == attention.heads * spec.k_dim
            && spec.kv_heads > 0
            && attention.heads.is_multiple_of(spec.kv_heads);
        if !fits {
            let expected =
                format!("{} heads of {} over {} key heads", attention.heads, spec.k_dim, spec.kv_heads);
            self.shape("attention", 0, q, expected);
        }
        if let Some(sinks) = attention.sinks {
            self.expect_vector("attention", sinks, attention.heads);
        }
        let state = self.states[attention.cache.0 as usize];
        let ty = self.with_cols(q, attention.heads * spec.v_dim);
        self.node(Op::Attention(attention), &[q, state], ty, "attention")
    }

    /// `activation(gate) * up`.
    pub fn glu(&mut self, gate: ValueId, up: ValueId, activation: Activation) -> ValueId {
        self.expect_same("glu", gate, up);
        let ty = self.graph.ty(gate);
        self.node(Op::Glu(activation), &[gate, up], ty, "glu")
    }

    /// The gated unit of gpt-oss, see [`Op::GluClamped`].
    pub fn glu_clamped(&mut self, gate: ValueId, up: ValueId, unit: ClampedGlu) -> ValueId {
        self.expect_same("glu-clamped", gate, up);
        let ty = self.graph.ty(gate);
        self.node(Op::GluClamped(unit), &[gate, up], ty, "glu")
    }

    /// An activation, element by element.
    pub fn activate(&mut self, x: ValueId, activation: Activation) -> ValueId {
        let ty = self.graph.ty(x);
        self.node(Op::Activate(activation), &[x], ty, "activate")
    }

    /// `a + b`.
    pub fn add(&mut self, a: ValueId, b: ValueId, label: &'static str) -> ValueId {
        self.expect_same("add", a, b);
        let ty = self.graph.ty(a);
        self.node(Op::Add, &[a, b], ty, label)
    }

    /// `a * b`, element by element.
    pub fn mul(&mut self, a: ValueId, b: ValueId, label: &'static str) -> ValueId {
        self.expect_same("mul", a, b);
        let ty = self.graph.ty(a);
        self.node(Op::Mul, &[a, b], ty, label)
    }

    /// Each row of `x` times all elements of a weight.
    pub fn mul_weight(&mut self, x: ValueId, weight: WeightId, label: &'static str) -> ValueId {
        self.expect_elements("mul-weight", weight, self.graph.ty(x).cols());
        let ty = self.graph.ty(x);
        self.node(Op::MulWeight { weight }, &[x], ty, label)
    }

    /// The cache of a layer's recurrent state number `index`, counted from 0.
    pub fn state_cache(&mut self, layer: u16, index: usize) -> CacheId {
        let states = self.graph.caches.iter().zip(0..).filter(|(c, _)| c.layer == layer && c.is_state());
        let found = states.map(|(_, id)| CacheId(id)).nth(index);
        found.unwrap_or_else(|| {
            let (found, expected) = ("none".to_owned(), format!("a state {index} of layer {layer}"));
            self.fail(GraphError::Shape { op: "cache", input: 0, found, expected });
            CacheId(0)
        })
    }

    /// Convolution of `x` over the last tokens of each sequence.
    pub fn short_conv(&mut self, x: ValueId, conv: ShortConv, label: &'static str) -> ValueId {
        let channels = self.graph.ty(x).cols();
        let info = self.weights.info(conv.weight).clone();
        let rows = u64::from(conv.first) + u64::from(channels);
        if info.rows < rows || info.cols != u64::from(conv.width) || conv.width < 2 {
            let expected = format!("{channels} channels among the {} of {}", info.rows, info.name);
            self.shape("short-conv", 0, x, expected);
        }
        if let Some(bias) = conv.bias {
            self.expect_vector("short-conv", bias, info.rows as u32);
        }
        self.expect_state("short-conv", conv.cache, u64::from(channels) * u64::from(conv.width - 1));
        let ty = self.graph.ty(x);
        self.node_with_state(Op::ShortConv(conv), conv.cache, vec![x], ty, label)
    }

    /// Selective scan of `x` over each sequence.
    pub fn scan(&mut self, x: ValueId, dt: ValueId, bc: ValueId, scan: Scan) -> ValueId {
        let (heads, state) = (scan.heads, scan.state);
        let groups = scan.groups.max(1);
        if scan.groups == 0 || !heads.is_multiple_of(groups) {
            self.shape("scan", 0, x, format!("heads that divide into {} groups", scan.groups));
        }
        for (input, value, cols) in
            [(0, x, heads * scan.head_dim), (1, dt, heads), (2, bc, 2 * groups * state)]
        {
            if self.graph.ty(value).cols() != cols {
                self.shape("scan", input, value, format!("{cols} columns"));
            }
        }
        let a = self.weights.info(scan.a).clone();
        if a.rows != u64::from(heads) || (a.cols != 1 && a.cols != u64::from(state)) {
            let found = format!("{} x {} ({})", a.rows, a.cols, a.name);
            let expected = format!("{heads} x {state} or {heads} x 1");
            self.fail(GraphError::Shape { op: "scan", input: 3, found, expected });
        }
        self.expect_elements("scan", scan.d, heads);
        let elements = u64::from(heads) * u64::from(scan.head_dim) * u64::from(state);
        self.expect_state("scan", scan.cache, elements);
        let ty = self.graph.ty(x);
        self.node_with_state(Op::Scan(scan), scan.cache, vec![x, dt, bc], ty, "scan")
    }

    /// The rows of the tokens before those of `x`.
    pub fn shift(&mut self, x: ValueId, cache: CacheId, label: &'static str) -> ValueId {
        let ty = self.graph.ty(x);
        self.expect_state("shift", cache, u64::from(ty.cols()));
        self.node_with_state(Op::Shift { cache }, cache, vec![x], ty, label)
    }

    /// Recurrence of RWKV, see [`WkvRule`]; `ins` are r, k, v and d, and with the seventh rule a and b.
    pub fn wkv(&mut self, ins: &[ValueId], wkv: Wkv) -> ValueId {
        let expected = match wkv.rule {
            WkvRule::Six { .. } => 4,
            WkvRule::Seven => 6,
        };
        let (r, cols) = (ins[0], self.graph.ty(ins[0]).cols());
        if ins.len() != expected || wkv.heads == 0 || !cols.is_multiple_of(wkv.heads) {
            self.shape(
                "wkv",
                0,
                r,
                format!("{expected} inputs of columns divisible into {} heads", wkv.heads),
            );
        }
        ins.iter().for_each(|value| self.expect_same("wkv", r, *value));
        if let WkvRule::Six { first } = wkv.rule {
            self.expect_elements("wkv", first, cols);
        }
        self.expect_state("wkv", wkv.cache, u64::from(cols) * u64::from(cols / wkv.heads.max(1)));
        let ty = self.graph.ty(r);
        self.node_with_state(Op::Wkv(wkv), wkv.cache, ins.to_vec(), ty, "wkv")
    }

    /// `x + (y - x) * (m + row)`, without what is absent.
    pub fn lerp(
        &mut self,
        x: ValueId,
        y: ValueId,
        m: Option<ValueId>,
        lerp: Lerp,
        label: &'static str,
    ) -> ValueId {
        self.expect_same("lerp", x, y);
        let cols = self.graph.ty(x).cols();
        if let Some(m) = m {
            self.expect_same("lerp", x, m);
        }
        if let Some((table, row)) = lerp.row {
            if self.cols_of(table) != cols || row >= self.rows_of(table) {
                let expected = format!("{cols} columns and a row {row} ({})", self.name_of(table));
                self.shape("lerp", 0, x, expected);
            }
        } else if m.is_none() {
            self.shape("lerp", 0, x, "a value or a row to go by".to_owned());
        }
        let ins: Vec<ValueId> = [x, y].into_iter().chain(m).collect();
        let ty = self.graph.ty(x);
        self.node(Op::Lerp(lerp), &ins, ty, label)
    }

    /// `v` by scores of heads, see [`Op::Bonus`].
    pub fn bonus(&mut self, a: ValueId, b: ValueId, v: ValueId, bonus: Bonus) -> ValueId {
        self.expect_same("bonus", v, a);
        self.expect_same("bonus", v, b);
        let ty = self.graph.ty(v);
        if bonus.heads == 0 || !ty.cols().is_multiple_of(bonus.heads) {
            self.shape("bonus", 2, v, format!("columns divisible into {} heads", bonus.heads));
        }
        self.expect_elements("bonus", bonus.weight, ty.cols());
        self.node(Op::Bonus(bonus), &[a, b, v], ty, "bonus")
    }

    /// `x` plus one row of a weight.
    pub fn add_row(&mut self, x: ValueId, table: WeightId, row: u32, label: &'static str) -> ValueId {
        let (rows, cols) = (self.rows_of(table), self.cols_of(table));
        if self.graph.ty(x).cols() != cols {
            self.shape("add-row", 0, x, format!("{cols} columns ({})", self.name_of(table)));
        }
        if row >= rows {
            self.shape(
                "add-row",
                0,
                x,
                format!("a weight with a row {row}, {} has {rows}", self.name_of(table)),
            );
        }
        let ty = self.graph.ty(x);
        self.node(Op::AddRow { table, row }, &[x], ty, label)
    }

    /// `x * factor`; `x` itself for a factor of 1.
    pub fn scale(&mut self, x: ValueId, factor: f32) -> ValueId {
        if factor == 1.0 {
            return x;
        }
        let ty = self.graph.ty(x);
        self.node(Op::Scale { factor }, &[x], ty, "scale")
    }

    /// `cap * tanh(x / cap)`.
    pub fn softcap(&mut self, x: ValueId, cap: f32) -> ValueId {
        let ty = self.graph.ty(x);
        self.node(Op::Softcap { cap }, &[x], ty, "softcap")
    }

    /// Columns of `a` and then those of `b`.
    pub fn join(&mut self, a: ValueId, b: ValueId, label: &'static str) -> ValueId {
        let ty = self.with_cols(a, self.graph.ty(a).cols() + self.graph.ty(b).cols());
        if self.with_cols(b, 0) != self.with_cols(a, 0) {
            let expected = self.graph.ty(a).to_string();
            self.shape("join", 1, b, format!("the rows of {expected}"));
        }
        self.node(Op::Join, &[a, b], ty, label)
    }

    /// `cols` columns of `x`, from `first` on.
    pub fn columns(&mut self, x: ValueId, first: u32, cols: u32, label: &'static str) -> ValueId {
        if first > self.graph.ty(x).cols() || cols > self.graph.ty(x).cols() - first {
            self.shape("columns", 0, x, format!("{cols} columns from {first} on"));
        }
        let ty = self.with_cols(x, cols);
        self.node(Op::Columns { first }, &[x], ty, label)
    }

    /// The rows of `x` that the step returns; `x` itself where that is every row.
    pub fn gather_outputs(&mut self, x: ValueId) -> ValueId {
        let Type::Matrix { elem, rows: Rows::Tokens, cols } = self.graph.ty(x) else { return x };
        if self.graph.key.outputs == Outputs::All {
            return x;
        }
        let indices = self.input(Input::OutputRows);
        self.node(Op::Gather, &[x, indices], Type::Matrix { elem, rows: Rows::Outputs, cols }, "gather")
    }

    /// Chosen experts of each row and their weights.
    pub fn route(&mut self, scores: ValueId, route: Route) -> (ValueId, ValueId) {
        let experts = self.graph.ty(scores).cols();
        if route.used == 0 || route.used > experts {
            self.shape("route", 0, scores, format!("at least {} experts, and one used", route.used));
        }
        if let Some(bias) = route.bias {
            self.expect_vector("route", bias, experts);
        }
        let weights = self.with_cols(scores, route.used);
        let Type::Matrix { rows, .. } = weights else { return (scores, scores) };
        let ids = self.value(Type::Matrix { elem: Elem::I32, rows, cols: route.used });
        let weights = self.value(weights);
        self.push(Op::Route(route), vec![scores], vec![ids, weights], "route");
        (ids, weights)
    }

    /// Product of `x` with the matrices of the chosen experts, plus their biases.
    pub fn expert_linear(
        &mut self,
        x: ValueId,
        ids: ValueId,
        weight: WeightId,
        bias: Option<WeightId>,
        label: &'static str,
    ) -> ValueId {
        let info = self.weights.info(weight).clone();
        let used = self.graph.ty(ids).cols();
        let cols = u64::from(self.graph.ty(x).cols());
        if cols != info.cols && cols != info.cols * u64::from(used) {
            self.shape(
                "expert-linear",
                0,
                x,
                format!("{} columns, or that for each of {used} experts", info.cols),
            );
        }
        let out = (info.rows / u64::from(info.experts.max(1))) as u32;
        if let Some(bias) = bias {
            self.expect_matrix("expert-linear", bias, info.experts, out);
        }
        let ty = self.with_cols(x, used * out);
        self.node(Op::ExpertLinear { weight, bias, used }, &[x, ids], ty, label)
    }

    /// Sum of the chosen experts' outputs, each times its weight.
    pub fn combine(&mut self, y: ValueId, weights: ValueId) -> ValueId {
        let used = self.graph.ty(weights).cols();
        let cols = self.graph.ty(y).cols();
        if used == 0 || !cols.is_multiple_of(used) {
            self.shape("combine", 0, y, format!("columns divisible by {used} experts"));
        }
        let ty = self.with_cols(y, cols / used.max(1));
        self.node(Op::Combine { used }, &[y, weights], ty, "combine")
    }

    /// Makes a value a result of the step.
    pub fn output(&mut self, kind: Output, value: ValueId) {
        self.graph.outputs.push((kind, value));
    }

    /// The finished graph, without the nodes that neither reach an output nor write a cache.
    ///
    /// # Errors
    /// The first mistake made while building.
    pub fn finish(self) -> Result<Graph, GraphError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let mut graph = self.graph;
        let mut live = vec![false; graph.values.len()];
        for (_, value) in &graph.outputs {
            live[value.0 as usize] = true;
        }
        let mut kept = Vec::with_capacity(graph.nodes.len());
        for node in graph.nodes.into_iter().rev() {
            if node.op.writes().is_some() || node.outs.iter().any(|v| live[v.0 as usize]) {
                for value in &node.ins {
                    live[value.0 as usize] = true;
                }
                kept.push(node);
            }
        }
        kept.reverse();
        graph.nodes = kept;
        Ok(graph)
    }

    fn value(&mut self, ty: Type) -> ValueId {
        self.graph.values.push(ty);
        ValueId(self.graph.values.len() as u32 - 1)
    }

    fn node(&mut self, op: Op, ins: &[ValueId], ty: Type, label: &'static str) -> ValueId {
        let out = self.value(ty);
        self.push(op, ins.to_vec(), vec![out], label);
        out
    }

    /// A node that takes a cache from one state to the next beside what it computes.
    fn node_with_state(
        &mut self,
        op: Op,
        cache: CacheId,
        mut ins: Vec<ValueId>,
        ty: Type,
        label: &'static str,
    ) -> ValueId {
        ins.push(self.states[cache.0 as usize]);
        let (out, state) = (self.value(ty), self.value(Type::State));
        self.push(op, ins, vec![out, state], label);
        self.states[cache.0 as usize] = state;
        out
    }

    fn push(&mut self, op: Op, ins: Vec<ValueId>, outs: Vec<ValueId>, label: &'static str) {
        self.graph.nodes.push(Node { op, ins, outs, layer: self.layer, label });
    }

    fn with_cols(&self, x: ValueId, cols: u32) -> Type {
        match self.graph.ty(x) {
            Type::Matrix { rows, .. } => Type::Matrix { elem: Elem::F32, rows, cols },
            Type::State => Type::State,
        }
    }

    fn rows_of(&self, weight: WeightId) -> u32 {
        self.weights.info(weight).rows as u32
    }

    fn cols_of(&self, weight: WeightId) -> u32 {
        self.weights.info(weight).cols as u32
    }

    fn name_of(&self, weight: WeightId) -> &str {
        &self.weights.info(weight).name
    }

    fn expect_vector(&mut self, op: &'static str, weight: WeightId, cols: u32) {
        self.expect_matrix(op, weight, 1, cols);
    }

    fn expect_matrix(&mut self, op: &'static str, weight: WeightId, rows: u32, cols: u32) {
        let info = self.weights.info(weight);
        if info.rows != u64::from(rows) || info.cols != u64::from(cols) {
            let found = format!("{} x {} ({})", info.rows, info.cols, info.name);
            self.fail(GraphError::Shape { op, input: 1, found, expected: format!("{rows} x {cols}") });
        }
    }

    fn expect_elements(&mut self, op: &'static str, weight: WeightId, count: u32) {
        let info = self.weights.info(weight);
        if info.rows * info.cols != u64::from(count) {
            let found = format!("{} x {} ({})", info.rows, info.cols, info.name);
            self.fail(GraphError::Shape { op, input: 1, found, expected: format!("{count} elements") });
        }
    }

    fn expect_state(&mut self, op: &'static str, cache: CacheId, elements: u64) {
        let spec = self.graph.caches.get(cache.0 as usize);
        let found = spec.map_or(0, |spec| spec.state);
        if u64::from(found) != elements {
            let (found, expected) = (format!("a state of {found}"), format!("a state of {elements}"));
            self.fail(GraphError::Shape { op, input: 1, found, expected });
        }
    }

    fn expect_same(&mut self, op: &'static str, a: ValueId, b: ValueId) {
        if self.graph.ty(a) != self.graph.ty(b) {
            let expected = self.graph.ty(a).to_string();
            self.shape(op, 1, b, expected);
        }
    }

    fn shape(&mut self, op: &'static str, input: usize, value: ValueId, expected: String) {
        let found = self.graph.ty(value).to_string();
        self.fail(GraphError::Shape { op, input, found, expected });
    }

    fn fail(&mut self, error: GraphError) {
        self.error.get_or_insert(error);
    }
}
