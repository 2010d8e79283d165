//! Operations and their attributes.
//!
//! Values are dense `[rows, cols]` matrices. Heads are attributes: a row of `heads * head_dim` columns holds its heads
//! one after the other.

use crate::cache::CacheId;
use crate::weights::WeightId;

/// An operation of a graph.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// A step input. No inputs; one output.
    Input(Input),
    /// Rows of an embedding table times `scale`: ids `[rows, 1]`, of tokens or positions → `[rows, dim]`.
    Embed {
        /// The table `[entries, dim]`.
        table: WeightId,
        /// Factor on every element.
        scale: f32,
    },
    /// Normalisation of each row, or of each of its groups: `[rows, cols]` → the same.
    Norm(Norm),
    /// Product with a weight matrix: `[rows, in]` → `[rows, out]`.
    Linear(Linear),
    /// Rotary position embedding: (x `[rows, heads * head_dim]`, positions `[rows, 1]`) → the same shape as x; with
    /// sections, positions `[rows, 4]`.
    Rope(Rope),
    /// Writes keys and values to a cache: (k, v, state) → state.
    StoreKv {
        /// The cache.
        cache: CacheId,
    },
    /// Attention over a cache: (q `[rows, heads * k_dim]`, state) → `[rows, heads * v_dim]`.
    ///
    /// Each row sees the cached positions of its own sequence, up to its own position where `causal`.
    Attention(Attention),
    /// Gated linear unit: (gate, up) → activation(gate) * up.
    Glu(Activation),
    /// Gated unit of gpt-oss: (gate, up) → `g * sigmoid(alpha * g) * (u + 1)`, with `g = min(gate, limit)` and u what
    /// lies nearest to `up` within ±`limit`.
    GluClamped(ClampedGlu),
    /// An activation, element by element.
    Activate(Activation),
    /// Sum of two values of one shape.
    Add,
    /// Product of two values of one shape, element by element.
    Mul,
    /// Product of each row with all elements of a weight, in their order: `[rows, cols]` → the same.
    MulWeight {
        /// The weight, of `cols` elements.
        weight: WeightId,
    },
    /// Convolution over the last tokens of a sequence: (x `[rows, channels]`, state) → (the same, state).
    ShortConv(ShortConv),
    /// Selective scan of state-space models: (x `[rows, heads * head_dim]`, dt `[rows, heads]`,
    /// bc `[rows, 2 * groups * state]`, state) → (`[rows, heads * head_dim]`, state).
    Scan(Scan),
    /// Each row becomes that of the token before it in its sequence, 0 for the first: (x `[rows, cols]`, state) →
    /// (`[rows, cols]`, state). The state is the last row.
    Shift {
        /// The cache of the state.
        cache: CacheId,
    },
    /// Recurrence of RWKV: (r, k, v, d, state), or with [`WkvRule::Seven`] (r, k, v, d, a, b, state), each
    /// `[rows, heads * head_dim]` → (the same, state).
    Wkv(Wkv),
    /// Something between two values: (x, y) or (x, y, m), of one shape → `x + (y - x) * (m + row)`.
    Lerp(Lerp),
    /// Values by a score of each head: (a, b, v) `[rows, heads * head_dim]` → `v[h] * Σ_i a[h, i] b[h, i] weight[h, i]`.
    Bonus(Bonus),
    /// Sum of each row and one row of a weight: `[rows, cols]` → the same.
    AddRow {
        /// The weight `[entries, cols]`.
        table: WeightId,
        /// The row of it.
        row: u32,
    },
    /// Every element times `factor`.
    Scale {
        /// The factor.
        factor: f32,
    },
    /// `cap * tanh(x / cap)`.
    Softcap {
        /// The cap.
        cap: f32,
    },
    /// Columns of two values side by side: `[rows, a]`, `[rows, b]` → `[rows, a + b]`.
    Join,
    /// Some columns of a value, from `first` on: `[rows, all]` → `[rows, cols]`.
    Columns {
        /// The first column.
        first: u32,
    },
    /// The rows that the step returns: (x `[tokens, cols]`, row indices `[outputs, 1]`) → `[outputs, cols]`.
    Gather,
    /// Chooses experts: scores `[rows, experts]` → (ids `[rows, used]` of i32, weights `[rows, used]`).
    Route(Route),
    /// Product with the matrices of chosen experts: (x, ids `[rows, used]`) → `[rows, used * out]`.
    ///
    /// x is `[rows, in]`, shared by all chosen experts, or `[rows, used * in]`, a part for each.
    ExpertLinear {
        /// Matrices `[experts * out, in]`.
        weight: WeightId,
        /// Summands `[experts, out]`.
        bias: Option<WeightId>,
        /// Experts used by a row.
        used: u32,
    },
    /// Weighted sum of expert outputs: (y `[rows, used * cols]`, weights `[rows, used]`) → `[rows, cols]`.
    Combine {
        /// Experts used by a row.
        used: u32,
    },
}

/// An input that the engine fills for each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// Token ids `[tokens, 1]` of i32.
    Tokens,
    /// Positions of the tokens in their sequences `[tokens, 1]` of i32.
    Positions,
    /// Positions of the tokens in [`Sections::STREAMS`] streams `[tokens, 4]` of i32.
    Streams,
    /// Rows to return `[outputs, 1]` of i32.
    OutputRows,
    /// Hidden states `[tokens, cols]` of f32, which another device has computed.
    Hidden {
        /// Columns.
        cols: u32,
    },
}

/// How a norm centres and scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x²) + eps)`.
    Rms,
    /// `(x - mean(x)) / sqrt(var(x) + eps)`; by groups, what is known as a group norm.
    Layer,
    /// `x / max(sqrt(sum(x²)), eps)`.
    L2,
}

/// Attributes of [`Op::Norm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// Formula.
    pub kind: NormKind,
    /// Added under the root; the least divisor of [`NormKind::L2`].
    pub eps: f32,
    /// Equal parts of a row that are normalised apart, such as heads.
    pub groups: u32,
    /// Factors `[1, cols / groups]`, the same for every group.
    pub weight: Option<WeightId>,
    /// Summands `[1, cols / groups]`.
    pub bias: Option<WeightId>,
}

/// Attributes of [`Op::Linear`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Linear {
    /// Matrix `[out, in]`.
    pub weight: WeightId,
    /// First row used: a fused matrix serves several products.
    pub first: u32,
    /// Rows used: the output's columns.
    pub rows: u32,
    /// Summands `[1, out]` of the whole matrix; the used part starts at `first`.
    pub bias: Option<WeightId>,
}

/// Which elements of a head rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Elements 2i and 2i + 1.
    Adjacent,
    /// Elements i and i + dims/2.
    Halves,
}

/// How the pairs of a head share several streams of positions, such as those of time, height and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sections {
    /// Pairs of each stream. Where a head has more pairs than all streams together, they are counted anew.
    pub counts: [u32; Sections::STREAMS as usize],
    /// Which pairs those are.
    pub order: SectionOrder,
}

/// Which pairs of a head belong to which stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectionOrder {
    /// Those of one stream stand together (Qwen2-VL).
    Runs,
    /// The first three streams take turns: pair i is that of stream `i % 3` as far as this has some left, that is where
    /// `i < 3 * counts[i % 3]`, and else of the fourth (Qwen3-VL).
    Interleaved,
    /// As `Runs`, and frequencies begin anew in each section: its pair j turns as pair `2j` would (encoders of images).
    Vision,
}

/// Attributes of [`Op::Rope`].
///
/// With `d` rotated dimensions, pair i turns by `position * freq_scale * freq_base^(-2i/d) / factors[i]`; YaRN blends
/// the scaled with the unscaled angle (<https://arxiv.org/abs/2309.00071>). With sections, the position is that of the
/// pair's stream (<https://arxiv.org/abs/2409.12191>).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Heads in a row.
    pub heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Elements of a head that rotate, from the first on.
    pub dims: u32,
    /// Pairing.
    pub style: RopeStyle,
    /// Base of the frequencies.
    pub freq_base: f32,
    /// Factor on positions (linear scaling), 1 for none.
    pub freq_scale: f32,
    /// Frequency divisors `[1, dims / 2]`.
    pub factors: Option<WeightId>,
    /// YaRN, where the model uses it.
    pub yarn: Option<Yarn>,
    /// Factor on the rotated elements.
    pub magnitude: f32,
    /// Sections of pairs with positions of their own; one position for all if there are none.
    pub sections: Option<Sections>,
}

/// YaRN's parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// Share of extrapolation.
    pub ext_factor: f32,
    /// Rotations above which a dimension keeps its angle.
    pub beta_fast: f32,
    /// Rotations below which a dimension is scaled.
    pub beta_slow: f32,
    /// Context that the model was first trained with.
    pub original_context: u32,
}

/// Attributes of [`Op::Attention`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// The cache read.
    pub cache: CacheId,
    /// Query heads.
    pub heads: u32,
    /// Factor on scores.
    pub scale: f32,
    /// `cap * tanh(score / cap)` before the mask.
    pub softcap: Option<f32>,
    /// Positions that a row looks back, itself included.
    pub window: Option<u32>,
    /// Whether later positions are hidden.
    pub causal: bool,
    /// One score `[1, heads]` for each head that takes part in the softmax and adds no value.
    pub sinks: Option<WeightId>,
}

/// Attributes of [`Op::ShortConv`].
///
/// `y[t, c] = bias[c] + Σ_j weight[c, j] * x[t - width + 1 + j, c]`, where x is 0 before the first token. The state is
/// the last `width - 1` rows of x.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShortConv {
    /// The cache of the state.
    pub cache: CacheId,
    /// Factors `[channels, width]`, from row `first` on.
    pub weight: WeightId,
    /// First row and element used of weight and bias: one weight serves several convolutions.
    pub first: u32,
    /// Tokens that a result depends on.
    pub width: u32,
    /// Summands `[1, channels]`, from element `first` on.
    pub bias: Option<WeightId>,
}

/// Attributes of [`Op::Scan`].
///
/// The state s `[heads, head_dim, state]` of a sequence changes with each token. With `Δ[h] = ln(1 + exp(dt[h]))` and
/// `B`, `C` of head h the rows of its group in `bc`, which holds all B before all C:
///
/// `s[h, p, n] = exp(Δ[h] a[h, n]) s[h, p, n] + Δ[h] B[n] x[h, p]`, `y[h, p] = Σ_n C[n] s[h, p, n] + d[h] x[h, p]`
///
/// Mamba (<https://arxiv.org/abs/2312.00752>) has a head for each channel and `a` for each element of its state; Mamba-2
/// (<https://arxiv.org/abs/2405.21060>) has wider heads with one `a` each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scan {
    /// The cache of the state.
    pub cache: CacheId,
    /// Heads.
    pub heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// States of an element.
    pub state: u32,
    /// Equal parts of the heads that share B and C.
    pub groups: u32,
    /// Rates `[heads, state]`, or `[heads, 1]`; negative.
    pub a: WeightId,
    /// Factors on x, one for each head.
    pub d: WeightId,
}

/// Attributes of [`Op::Wkv`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wkv {
    /// The cache of the state.
    pub cache: CacheId,
    /// Heads.
    pub heads: u32,
    /// Formula.
    pub rule: WkvRule,
}

/// How the state s `[heads, head_dim, head_dim]` of a sequence changes with each token, and what is read from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WkvRule {
    /// RWKV 6 (<https://arxiv.org/abs/2404.05892>): `y[j] = Σ_i r[i] (s[i, j] + first[i] k[i] v[j])`, and then
    /// `s[i, j] = exp(-exp(d[i])) s[i, j] + k[i] v[j]`, in each head.
    Six {
        /// Factors `[heads, head_dim]`.
        first: WeightId,
    },
    /// RWKV 7 (<https://arxiv.org/abs/2503.14456>):
    /// `s[i, j] = exp(-exp(-1/2) sigmoid(d[i])) s[i, j] + k[i] v[j] + b[i] Σ_n a[n] s[n, j]`, and then
    /// `y[j] = Σ_i r[i] s[i, j]`, in each head.
    Seven,
}

/// Attributes of [`Op::Lerp`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lerp {
    /// A weight `[entries, cols]` and the row of it that is added to m, or takes its place.
    pub row: Option<(WeightId, u32)>,
}

/// Attributes of [`Op::Bonus`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bonus {
    /// Heads.
    pub heads: u32,
    /// Factors, one for each column.
    pub weight: WeightId,
}

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + exp(-x))`.
    Silu,
    /// Gelu by its tanh approximation.
    Gelu,
    /// Gelu by erf.
    GeluErf,
    /// `x / (1 + exp(-1.702 x))`.
    GeluQuick,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)²`.
    ReluSquared,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
}

/// Attributes of [`Op::GluClamped`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClampedGlu {
    /// Slope of the sigmoid.
    pub alpha: f32,
    /// Largest gate, and largest distance of the other factor from 0.
    pub limit: f32,
}

/// How scores become expert weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// Softmax over all experts, then the best are chosen.
    Softmax,
    /// Sigmoid of each score.
    Sigmoid,
    /// The best are chosen by score, softmax over them alone.
    SoftmaxChosen,
}

/// Attributes of [`Op::Route`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Route {
    /// Experts chosen for each row.
    pub used: u32,
    /// Formula.
    pub gating: Gating,
    /// Whether chosen weights are divided by their sum.
    pub normalize: bool,
    /// Factor on the weights.
    pub scale: f32,
    /// Summands `[1, experts]` that take part in the choice alone.
    pub bias: Option<WeightId>,
}

impl Op {
    /// The operation's name in plans, errors and traces.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Input(_) => "input",
            Op::Embed { .. } => "embed",
            Op::Norm(_) => "norm",
            Op::Linear(_) => "linear",
            Op::Rope(_) => "rope",
            Op::StoreKv { .. } => "store-kv",
            Op::Attention(_) => "attention",
            Op::Glu(_) => "glu",
            Op::GluClamped(_) => "glu-clamped",
            Op::Activate(_) => "activate",
            Op::Add => "add",
            Op::Mul => "mul",
            Op::MulWeight { .. } => "mul-weight",
            Op::ShortConv(_) => "short-conv",
            Op::Scan(_) => "scan",
            Op::Shift { .. } => "shift",
            Op::Wkv(_) => "wkv",
            Op::Lerp(_) => "lerp",
            Op::Bonus(_) => "bonus",
            Op::AddRow { .. } => "add-row",
            Op::Scale { .. } => "scale",
            Op::Softcap { .. } => "softcap",
            Op::Join => "join",
            Op::Columns { .. } => "columns",
            Op::Gather => "gather",
            Op::Route(_) => "route",
            Op::ExpertLinear { .. } => "expert-linear",
            Op::Combine { .. } => "combine",
        }
    }

    /// The weights that the operation reads, its matrix first.
    pub fn weights(&self) -> impl Iterator<Item = WeightId> {
        let list: [Option<WeightId>; 2] = match self {
            Op::Embed { table, .. } | Op::AddRow { table, .. } => [Some(*table), None],
            Op::Norm(n) => [n.weight, n.bias],
            Op::Linear(l) => [Some(l.weight), l.bias],
            Op::Rope(r) => [r.factors, None],
            Op::Attention(a) => [a.sinks, None],
            Op::Route(r) => [r.bias, None],
            Op::ExpertLinear { weight, bias, .. } => [Some(*weight), *bias],
            Op::MulWeight { weight } => [Some(*weight), None],
            Op::ShortConv(c) => [Some(c.weight), c.bias],
            Op::Scan(s) => [Some(s.a), Some(s.d)],
            Op::Wkv(Wkv { rule: WkvRule::Six { first }, .. }) => [Some(*first), None],
            Op::Lerp(l) => [l.row.map(|(weight, _)| weight), None],
            Op::Bonus(b) => [Some(b.weight), None],
            _ => [None, None],
        };
        list.into_iter().flatten()
    }

    /// The cache that the operation writes, having read it where it is that of a state.
    pub fn writes(&self) -> Option<CacheId> {
        match self {
            Op::StoreKv { cache } | Op::Shift { cache } => Some(*cache),
            Op::ShortConv(c) => Some(c.cache),
            Op::Scan(s) => Some(s.cache),
            Op::Wkv(w) => Some(w.cache),
            _ => None,
        }
    }

    /// The cache that the operation reads or writes.
    pub fn cache(&self) -> Option<CacheId> {
        match self {
            Op::Attention(a) => Some(a.cache),
            op => op.writes(),
        }
    }

    /// As [`cache`](Self::cache), to be changed.
    pub fn cache_mut(&mut self) -> Option<&mut CacheId> {
        match self {
            Op::StoreKv { cache } | Op::Shift { cache } => Some(cache),
            Op::Attention(a) => Some(&mut a.cache),
            Op::Wkv(w) => Some(&mut w.cache),
            Op::ShortConv(c) => Some(&mut c.cache),
            Op::Scan(s) => Some(&mut s.cache),
            _ => None,
        }
    }
}
