//! Operation cases: small graphs around one operation, with random weights and inputs.
//!
//! Values enter a case as rows of an F32 embedding, so that a case needs no operation of its own.

use wootz_graph::op::{
    Activation, Attention, ClampedGlu, Gating, Input, Norm, NormKind, Rope, RopeStyle, Route, SectionOrder,
    Sections, Yarn,
};
use wootz_graph::{BLOCK_TOKENS, CacheId, CacheSpec, GraphBuilder, KvType, Output, ValueId};
use wootz_quant::WeightType;

mod recurrent;

use crate::memory::MemoryWeights;
use crate::rng::Rng;

/// A graph, its weights, and steps to run.
pub struct Case {
    /// What it tries.
    pub name: String,
    /// Largest error against the interpreter, see [`nmse`](crate::nmse).
    pub limit: f64,
    /// Largest error of devices that multiply numbers of 16 bits.
    pub limit_half: f64,
    /// Type of cached keys and values.
    pub kv_type: KvType,
    pub(crate) weights: MemoryWeights,
    pub(crate) caches: Vec<CacheSpec>,
    pub(crate) steps: Vec<CaseStep>,
    pub(crate) build: Box<dyn Fn(&mut GraphBuilder<'_>) + Send + Sync>,
}

/// One step of a case.
#[derive(Default)]
pub(crate) struct CaseStep {
    pub(crate) tokens: Vec<i32>,
    pub(crate) positions: Vec<i32>,
    pub(crate) sequences: Vec<u32>,
    /// Positions in several streams; empty where they are all alike.
    pub(crate) streams: Vec<i32>,
    /// Rows returned; `None` for all.
    pub(crate) outputs: Option<Vec<i32>>,
    /// Hidden states that the step begins with.
    pub(crate) hidden: Vec<f32>,
}

impl Case {
    pub(crate) fn sequences(&self) -> usize {
        self.steps.iter().flat_map(|s| &s.sequences).map(|s| *s as usize + 1).max().unwrap_or(1)
    }

    pub(crate) fn blocks_per_sequence(&self) -> usize {
        let last = self.steps.iter().flat_map(|s| &s.positions).max().copied().unwrap_or(0);
        last as usize / BLOCK_TOKENS + 1
    }
}

/// Rows of the embeddings that cases take their values from.
const TABLE: usize = 24;

/// Error of products with activations of 8 bits.
const QUANTISED: f64 = 2e-4;
/// Error of three products in a row with activations of 8 bits.
const EXPERTS_QUANTISED: f64 = 5e-4;
/// Error of f32 arithmetic.
const FLOAT: f64 = 1e-9;
/// Error of f32 attention with f16 caches: the interpreter rounds keys and values alike.
const ATTENTION: f64 = 1e-8;
/// Error of attention with queries and weights of 16 bits, bf16 among them.
const ATTENTION_HALF: f64 = 1e-5;
/// Error of products with activations of 16 bits, bf16 among them.
const FLOAT_HALF: f64 = 1e-5;

/// The gated unit of gpt-oss.
const CLAMPED: ClampedGlu = ClampedGlu { alpha: 1.702, limit: 7.0 };

/// All cases.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(linears());
    cases.extend(embeds());
    cases.extend(norms());
    cases.extend(ropes());
    cases.extend(attentions());
    cases.extend(elementwise());
    cases.extend(experts());
    cases.extend(encoders());
    cases.extend(recurrent::all());
    cases
}

/// Cases that are large enough for kernels which devices keep for large products. Each takes up to half a minute, most of it to
/// make its weights.
pub fn large() -> Vec<Case> {
    vec![
        feed_forward(WeightType::Q4_K, WeightType::Q5_K, 3),
        feed_forward(WeightType::Q4_K, WeightType::Q6_K, 3),
        feed_forward(WeightType::Q5_K, WeightType::Q4_K, 8),
        layer(WeightType::Q4_K),
        layer(WeightType::Q5_K),
    ]
}

/// A whole layer with a large gated unit: tokens of eight sequences, then of three of them.
fn layer(ty: WeightType) -> Case {
    const DIM: usize = 2048;
    const KV: usize = 512;
    const INNER: usize = 8704;
    let (heads, kv_heads, dim) = (16, 4, 128);
    let attention = plain_attention(heads, dim);
    let mut case = simple(
        format!("a layer of {ty} with a large gated unit"),
        EXPERTS_QUANTISED,
        1,
        &[DIM],
        |w, rng| {
            w.random(rng, "norm", WeightType::F32, 1, DIM, 1.0);
            for (name, rows) in [("q", DIM), ("k", KV), ("v", KV), ("o", DIM)] {
                w.random(rng, name, ty, rows, DIM, 0.1);
            }
            w.random(rng, "gate", ty, INNER, DIM, 0.02);
            w.random(rng, "up", ty, INNER, DIM, 0.02);
            w.random(rng, "down", WeightType::Q6_K, DIM, INNER, 0.02);
            w.random(rng, "next", WeightType::Q8_0, 64, DIM, 0.02);
        },
        move |b, ins| {
            let h = rms_norm(b, ins[0], "norm");
            let [q, k, v] = ["q", "k", "v"].map(|name| {
                let weight = b.weight(name);
                b.linear(h, weight, None, name)
            });
            b.store_kv(CacheId(0), k, v);
            let y = b.attention(q, attention);
            let o = b.weight("o");
            let y = b.linear(y, o, None, "o");
            let x = b.add(ins[0], y, "residual");
            let x = gated_unit(b, x);
            let h = rms_norm(b, x, "norm");
            let next = b.weight("next");
            b.linear(h, next, None, "next")
        },
    );
    case.kv_type = KvType::F16;
    case.caches = vec![CacheSpec { layer: 0, group: 0, kv_heads, k_dim: dim, v_dim: dim, state: 0 }];
    let mut rng = Rng::new(6);
    let mut step = |position: i32, sequences: Vec<u32>| CaseStep {
        tokens: sequences.iter().map(|_| rng.below(TABLE) as i32).collect(),
        positions: vec![position; sequences.len()],
        sequences,
        ..CaseStep::default()
    };
    case.steps = vec![step(0, (0..8).collect()), step(1, (0..8).collect()), step(2, vec![5, 0, 3])];
    case
}

/// The second half of a layer, and a product of the norm after it.
fn feed_forward(ty: WeightType, down: WeightType, tokens: usize) -> Case {
    const DIM: usize = 2048;
    const INNER: usize = 17_152;
    simple(
        format!("large products of {ty} and {down}, {tokens} tokens"),
        EXPERTS_QUANTISED,
        tokens,
        &[DIM],
        |w, rng| {
            w.random(rng, "norm", WeightType::F32, 1, DIM, 1.0);
            w.random(rng, "gate", ty, INNER, DIM, 0.02);
            w.random(rng, "up", ty, INNER, DIM, 0.02);
            w.random(rng, "down", down, DIM, INNER, 0.02);
            w.random(rng, "next", WeightType::Q8_0, 64, DIM, 0.02);
        },
        |b, ins| {
            let x = gated_unit(b, ins[0]);
            let h = rms_norm(b, x, "norm");
            let next = b.weight("next");
            b.linear(h, next, None, "next")
        },
    )
}

/// The norm of whole rows with a weight of this name.
fn rms_norm(b: &mut GraphBuilder<'_>, x: ValueId, weight: &str) -> ValueId {
    let weight = Some(b.weight(weight));
    b.norm(x, Norm { kind: NormKind::Rms, eps: 1e-5, groups: 1, weight, bias: None }, "norm")
}

/// `x` and what the gated unit makes of its norm.
fn gated_unit(b: &mut GraphBuilder<'_>, x: ValueId) -> ValueId {
    let h = rms_norm(b, x, "norm");
    let (gate, up, down) = (b.weight("gate"), b.weight("up"), b.weight("down"));
    let (g, u) = (b.linear(h, gate, None, "gate"), b.linear(h, up, None, "up"));
    let y = b.glu(g, u, Activation::Silu);
    let y = b.linear(y, down, None, "down");
    b.add(x, y, "residual")
}

/// Operations that only encoders have.
fn encoders() -> Vec<Case> {
    let mut cases = Vec::new();
    let none = |_: &mut MemoryWeights, _: &mut Rng| ();
    for ty in [WeightType::F32, WeightType::F16, WeightType::Q8_0] {
        let add = move |w: &mut MemoryWeights, rng: &mut Rng| w.random(rng, "w", ty, 3, 96, 1.0);
        cases.push(simple(format!("add row {ty}"), FLOAT, 11, &[96], add, |b, ins| {
            let table = b.weight("w");
            b.add_row(ins[0], table, 1, "row")
        }));
    }
    cases.push(simple("embed positions".into(), 1e-12, 5, &[64], none, |b, ins| {
        let table = b.weight("in0");
        let positions = b.embed_positions(table);
        b.add(ins[0], positions, "positions")
    }));
    if let Some(case) = cases.last_mut() {
        case.steps[0].positions = vec![0, 1, 17, 17, 23];
    }
    cases
}

/// A case of one step over `tokens` tokens with values of the given widths.
fn simple(
    name: String,
    limit: f64,
    tokens: usize,
    widths: &[usize],
    add: impl FnOnce(&mut MemoryWeights, &mut Rng),
    build: impl Fn(&mut GraphBuilder<'_>, &[ValueId]) -> ValueId + Send + Sync + 'static,
) -> Case {
    let mut rng = Rng::new(name.len() as u64 * 31 + tokens as u64);
    let mut weights = MemoryWeights::default();
    for (i, cols) in widths.iter().enumerate() {
        weights.random(&mut rng, &format!("in{i}"), WeightType::F32, TABLE, *cols, 1.0);
    }
    add(&mut weights, &mut rng);
    let inputs = widths.len();
    Case {
        name,
        limit,
        limit_half: limit,
        kv_type: KvType::F32,
        weights,
        caches: Vec::new(),
        steps: vec![CaseStep {
            tokens: (0..tokens).map(|t| (t * 7 % TABLE) as i32).collect(),
            positions: (0..tokens as i32).collect(),
            sequences: vec![0; tokens],
            ..CaseStep::default()
        }],
        build: Box::new(move |b| {
            let ins = inputs_of(b, inputs);
            let out = build(b, &ins);
            b.output(Output::Hidden, out);
        }),
    }
}

fn inputs_of(b: &mut GraphBuilder<'_>, n: usize) -> Vec<ValueId> {
    (0..n)
        .map(|i| {
            let table = b.weight(&format!("in{i}"));
            b.embed(table, 1.0)
        })
        .collect()
}

/// Whether a type can be a matrix of a model.
fn is_matrix(ty: WeightType) -> bool {
    use WeightType::*;
    !matches!(ty, I8 | I16 | I32 | I64 | F64 | Q8_1 | Q8_K)
}

fn linears() -> Vec<Case> {
    let mut cases = Vec::new();
    for ty in WeightType::ALL.iter().copied().filter(|t| is_matrix(*t)) {
        let limit = match ty {
            WeightType::F32 | WeightType::F16 => 1e-6,
            WeightType::BF16 => FLOAT_HALF,
            _ => QUANTISED,
        };
        // Rows that fill no whole group of a kernel; one token, a few, and more than a tile.
        for (rows, cols) in [(40, 512), (7, 256), (129, 768)] {
            for tokens in [1, 3, 21] {
                let name = format!("linear {ty} {rows}x{cols}, {tokens} tokens");
                let bias = rows == 40;
                let mut case = simple(
                    name,
                    limit,
                    tokens,
                    &[cols],
                    |w, rng| {
                        w.random(rng, "w", ty, rows, cols, 0.1);
                        if bias {
                            w.random(rng, "b", WeightType::F32, 1, rows, 1.0);
                        }
                    },
                    move |b, ins| {
                        let (w, bias) = (b.weight("w"), b.find_weight("b"));
                        b.linear(ins[0], w, bias, "w")
                    },
                );
                case.limit_half = limit.max(FLOAT_HALF);
                cases.push(case);
            }
        }
    }
    for tokens in [1, 5, 40] {
        cases.push(block(tokens, false));
        cases.push(block(tokens, true));
    }
    // A part of a fused matrix.
    cases.push(simple(
        "linear, part of a matrix".into(),
        QUANTISED,
        4,
        &[128],
        |w, rng| w.random(rng, "w", WeightType::Q8_0, 96, 128, 0.1),
        |b, ins| {
            let linear = wootz_graph::op::Linear { weight: b.weight("w"), first: 24, rows: 40, bias: None };
            b.linear_part(ins[0], linear, "part")
        },
    ));
    cases
}

/// Several matrices on one input, as in q, k and v, with different types, and a unit and a sum after them; on embeddings
/// of tokens, or on hidden states as a device gets them that begins with a later layer.
fn block(tokens: usize, hidden: bool) -> Case {
    let start = if hidden { " of hidden states" } else { "" };
    let mut case = simple(
        format!("block{start}, {tokens} tokens"),
        5e-4,
        tokens,
        if hidden { &[] } else { &[256] },
        |w, rng| {
            w.random(rng, "norm", WeightType::F32, 1, 256, 1.0);
            w.random(rng, "gate", WeightType::Q4_K, 96, 256, 0.1);
            w.random(rng, "up", WeightType::Q6_K, 96, 256, 0.1);
            w.random(rng, "down", WeightType::Q8_0, 256, 96, 0.1);
        },
        move |b, ins| {
            let x = if hidden { b.input(Input::Hidden { cols: 256 }) } else { ins[0] };
            gated_unit(b, x)
        },
    );
    if hidden {
        let mut rng = Rng::new(tokens as u64);
        case.steps[0].hidden = (0..256 * tokens).map(|_| rng.normal()).collect();
    }
    case
}

fn embeds() -> Vec<Case> {
    let types = WeightType::ALL.iter().copied().filter(|t| is_matrix(*t));
    types
        .map(|ty| {
            let mut case = simple(
                format!("embed {ty}"),
                1e-12,
                5,
                &[],
                |w, rng| w.random(rng, "table", ty, TABLE, 512, 1.0),
                |b, _| {
                    let table = b.weight("table");
                    b.embed(table, 3.5)
                },
            );
            case.steps[0].tokens = vec![0, 23, 7, 7, 16];
            case
        })
        .collect()
}

fn norms() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in [NormKind::Rms, NormKind::Layer, NormKind::L2] {
        for (cols, groups) in [(64, 1), (576, 9), (100, 1), (48, 3)] {
            for affine in [false, true] {
                cases.push(simple(
                    format!("norm {kind:?} {cols} columns, {groups} groups, affine {affine}"),
                    FLOAT,
                    9,
                    &[cols],
                    |w, rng| {
                        w.random(rng, "w", WeightType::F32, 1, cols / groups, 1.0);
                        w.random(rng, "b", WeightType::F32, 1, cols / groups, 1.0);
                    },
                    move |b, ins| {
                        let (w, bias) = (b.weight("w"), b.weight("b"));
                        let norm = Norm {
                            kind,
                            eps: 1e-5,
                            groups: groups as u32,
                            weight: affine.then_some(w),
                            bias: affine.then_some(bias),
                        };
                        b.norm(ins[0], norm, "norm")
                    },
                ));
            }
        }
    }
    // Groups shorter than epsilon.
    cases.push(simple(
        "norm L2 of short groups".into(),
        FLOAT,
        9,
        &[48],
        |_, _| (),
        |b, ins| {
            let x = b.scale(ins[0], 1e-3);
            b.norm(x, Norm { kind: NormKind::L2, eps: 5e-3, groups: 3, weight: None, bias: None }, "norm")
        },
    ));
    // A sum that its norm alone reads, and one that is read again.
    for again in [false, true] {
        cases.push(simple(
            format!("norm of a sum, read again {again}"),
            FLOAT,
            9,
            &[576, 576],
            |w, rng| w.random(rng, "w", WeightType::F32, 1, 576, 1.0),
            move |b, ins| {
                let sum = b.add(ins[0], ins[1], "sum");
                let y = rms_norm(b, sum, "w");
                if again { b.add(sum, y, "residual") } else { y }
            },
        ));
    }
    cases
}

fn ropes() -> Vec<Case> {
    let base = Rope {
        heads: 3,
        head_dim: 32,
        dims: 32,
        style: RopeStyle::Halves,
        freq_base: 10_000.0,
        freq_scale: 1.0,
        factors: None,
        yarn: None,
        magnitude: 1.0,
        sections: None,
    };
    let yarn = Yarn { ext_factor: 1.0, beta_fast: 32.0, beta_slow: 1.0, original_context: 64 };
    let sections = |counts, order| Some(Sections { counts, order });
    let runs = sections([4, 6, 5, 1], SectionOrder::Runs);
    let variants = [
        ("halves", base, false),
        ("adjacent", Rope { style: RopeStyle::Adjacent, ..base }, false),
        ("partial", Rope { dims: 20, ..base }, false),
        ("partial adjacent", Rope { dims: 20, style: RopeStyle::Adjacent, ..base }, false),
        ("scaled", Rope { freq_scale: 0.25, magnitude: 1.3, ..base }, false),
        ("factors", base, true),
        ("yarn", Rope { freq_scale: 0.125, yarn: Some(yarn), ..base }, false),
        ("odd head", Rope { head_dim: 36, dims: 36, ..base }, false),
        ("multi", Rope { sections: runs, ..base }, false),
        ("multi, scaled", Rope { sections: runs, yarn: Some(yarn), freq_scale: 0.125, ..base }, true),
        ("multi, partial", Rope { sections: runs, dims: 24, ..base }, false),
        ("interleaved", Rope { sections: sections([6, 5, 5, 0], SectionOrder::Interleaved), ..base }, false),
        (
            "interleaved, uneven",
            Rope { sections: sections([7, 3, 1, 2], SectionOrder::Interleaved), ..base },
            true,
        ),
        ("vision", Rope { sections: sections([8; 4], SectionOrder::Vision), ..base }, false),
    ];
    let mut cases = Vec::new();
    for (name, rope, factors) in variants {
        let cols = (rope.heads * rope.head_dim) as usize;
        let mut case = simple(
            format!("rope {name}"),
            FLOAT,
            6,
            &[cols],
            |w, rng| {
                let list: Vec<f32> = (0..rope.dims / 2).map(|_| 1.0 + rng.signed().abs() * 7.0).collect();
                w.add("factors", WeightType::F32, list.len(), &list);
            },
            move |b, ins| {
                let weight = b.weight("factors");
                let rope = Rope { factors: factors.then_some(weight), ..rope };
                b.rope(ins[0], rope, "rope")
            },
        );
        case.steps[0].positions = vec![0, 1, 5, 100, 2000, 4095];
        cases.push(case);
        if let (Some(_), Some(case)) = (rope.sections, cases.last_mut()) {
            case.steps[0].streams = (0..6 * 4).map(|i| i * i * 7 % 1500).collect();
        }
    }
    cases
}

/// Chunks of the positions of each sequence, in the order in which they run.
type Chunks = &'static [&'static [(u32, usize)]];

/// Causal attention over all positions, and nothing else.
fn plain_attention(heads: u32, dim: u32) -> Attention {
    Attention {
        cache: CacheId(0),
        heads,
        scale: 1.0 / (dim as f32).sqrt(),
        softcap: None,
        window: None,
        causal: true,
        sinks: None,
    }
}

fn attentions() -> Vec<Case> {
    let plain = plain_attention;
    // Each step is a list of (sequence, tokens).
    let chunks: Chunks = &[&[(0, 37), (1, 5)], &[(0, 1), (1, 1)], &[(1, 64), (0, 2)], &[(0, 1)]];
    let once: Chunks = &[&[(0, 70)]];
    let mut cases = Vec::new();
    let mut add =
        |name: String, kv: KvType, dims: (u32, u32), kv_heads: u32, a: Attention, sinks: bool, c: Chunks| {
            cases.push(attention(name, kv, dims, kv_heads, a, sinks, c));
        };
    for (heads, kv_heads, dim) in
        [(9, 3, 64), (4, 1, 256), (2, 2, 80), (4, 2, 96), (3, 3, 112), (8, 2, 128), (2, 1, 40)]
    {
        let name = format!("attention {heads} heads over {kv_heads}, {dim} wide");
        add(name, KvType::F16, (dim, dim), kv_heads, plain(heads, dim), false, chunks);
    }
    add("attention 192/128".into(), KvType::F16, (192, 128), 2, plain(4, 192), false, chunks);
    add("attention 576/512".into(), KvType::F16, (576, 512), 1, plain(4, 576), false, once);
    let all = Attention { window: Some(40), softcap: Some(5.0), ..plain(2, 296) };
    add("attention 296/264, window, softcap, sinks".into(), KvType::F16, (296, 264), 1, all, true, chunks);
    for kv in KvType::ALL {
        add(format!("attention, {} cache", kv.name()), kv, (64, 64), 2, plain(4, 64), false, chunks);
    }
    let base = plain(4, 64);
    for (name, a, sinks) in [
        ("window 40", Attention { window: Some(40), ..base }, false),
        ("window 1", Attention { window: Some(1), ..base }, false),
        ("softcap", Attention { softcap: Some(5.0), scale: 2.0, ..base }, false),
        ("sinks", base, true),
        ("sinks and window", Attention { window: Some(33), ..base }, true),
    ] {
        add(format!("attention, {name}"), KvType::F16, (64, 64), 2, a, sinks, chunks);
    }
    let two: Chunks = &[&[(0, 37), (1, 70)]];
    for (name, chunks) in [("attention, both ways", once), ("attention, both ways, two texts", two)] {
        let both = Attention { causal: false, ..base };
        add(name.into(), KvType::F16, (64, 64), 2, both, false, chunks);
    }
    let long: Chunks = &[&[(0, 1100)], &[(0, 1)], &[(0, 3)]];
    add("attention, long".into(), KvType::F16, (64, 64), 1, plain(2, 64), false, long);
    cases
}

/// Steps over random tokens.
fn steps(chunks: Chunks) -> Vec<CaseStep> {
    let mut next = [0; 2];
    let mut rng = Rng::new(5);
    let step = |parts: &&[(u32, usize)]| {
        let mut step = CaseStep::default();
        for (sequence, n) in *parts {
            for _ in 0..*n {
                step.tokens.push(rng.below(TABLE) as i32);
                step.positions.push(next[*sequence as usize]);
                step.sequences.push(*sequence);
                next[*sequence as usize] += 1;
            }
        }
        step
    };
    chunks.iter().map(step).collect()
}

fn attention(
    name: String,
    kv_type: KvType,
    (k_dim, v_dim): (u32, u32),
    kv_heads: u32,
    a: Attention,
    sinks: bool,
    chunks: Chunks,
) -> Case {
    let widths = [a.heads * k_dim, kv_heads * k_dim, kv_heads * v_dim].map(|w| w as usize);
    let heads = a.heads as usize;
    let mut case = simple(
        name,
        ATTENTION,
        1,
        &widths,
        |w, rng| w.random(rng, "sinks", WeightType::F32, 1, heads, 1.0),
        move |b, ins| {
            b.store_kv(CacheId(0), ins[1], ins[2]);
            let weight = b.weight("sinks");
            let y = b.attention(ins[0], Attention { sinks: sinks.then_some(weight), ..a });
            b.gather_outputs(y)
        },
    );
    case.limit_half = ATTENTION_HALF;
    case.kv_type = kv_type;
    case.caches = vec![CacheSpec { layer: 0, group: 0, kv_heads, k_dim, v_dim, state: 0 }];
    case.steps = steps(chunks);
    // One step returns chosen rows only.
    if case.steps.len() > 1 {
        case.steps[0].outputs = Some(vec![3, 36, 0]);
    }
    case
}

fn elementwise() -> Vec<Case> {
    let mut cases = Vec::new();
    use Activation::*;
    for a in [Silu, Gelu, GeluErf, GeluQuick, Relu, ReluSquared, Sigmoid] {
        let none = |_: &mut MemoryWeights, _: &mut Rng| ();
        // The inputs reach the tails: scaled by 8.
        cases.push(simple(format!("activate {a:?}"), 1e-9, 11, &[75], none, move |b, ins| {
            let x = b.scale(ins[0], 8.0);
            b.activate(x, a)
        }));
        cases.push(simple(format!("glu {a:?}"), 1e-9, 11, &[75, 75], none, move |b, ins| {
            b.glu(ins[0], ins[1], a)
        }));
    }
    let none = |_: &mut MemoryWeights, _: &mut Rng| ();
    // Many elements lie beyond the limit, on both sides.
    cases.push(simple("glu clamped".into(), 1e-9, 11, &[75, 75], none, |b, ins| {
        let (gate, up) = (b.scale(ins[0], 6.0), b.scale(ins[1], 6.0));
        b.glu_clamped(gate, up, CLAMPED)
    }));
    cases.push(simple("add".into(), FLOAT, 11, &[75, 75], none, |b, ins| b.add(ins[0], ins[1], "add")));
    cases.push(simple("mul".into(), FLOAT, 11, &[75, 75], none, |b, ins| b.mul(ins[0], ins[1], "mul")));
    let factors = |w: &mut MemoryWeights, rng: &mut Rng| w.random(rng, "w", WeightType::F32, 3, 25, 1.0);
    cases.push(simple("mul by a weight".into(), FLOAT, 11, &[75], factors, |b, ins| {
        let weight = b.weight("w");
        b.mul_weight(ins[0], weight, "mul")
    }));
    cases.push(simple("softcap".into(), FLOAT, 11, &[75], none, |b, ins| {
        let x = b.scale(ins[0], 20.0);
        b.softcap(x, 30.0)
    }));
    cases.push(simple("join".into(), 0.0, 11, &[75, 32], none, |b, ins| b.join(ins[0], ins[1], "join")));
    for (first, cols) in [(0, 32), (43, 32), (7, 5)] {
        cases.push(simple(format!("columns {cols} from {first} on"), 0.0, 11, &[75], none, move |b, ins| {
            b.columns(ins[0], first, cols, "columns")
        }));
    }
    let mut gather = simple("gather".into(), 0.0, 11, &[75], none, |b, ins| b.gather_outputs(ins[0]));
    gather.steps[0].outputs = Some(vec![10, 0, 3, 3]);
    cases.push(gather);
    cases
}

fn experts() -> Vec<Case> {
    let mut cases = Vec::new();
    for gating in [Gating::Softmax, Gating::Sigmoid, Gating::SoftmaxChosen] {
        for (normalize, bias) in [(false, false), (true, true)] {
            for ty in [WeightType::F32, WeightType::Q8_0, WeightType::Q4_K] {
                for tokens in [1, 13] {
                    let name = format!("experts {ty} {gating:?}, normalize {normalize}, {tokens} tokens");
                    cases.push(expert_case(name, ty, (6, 2), gating, (normalize, bias), tokens));
                }
            }
        }
    }
    use WeightType::*;
    // So many rows for each of two experts that kernels take few, some, more and many of them at once.
    let mut sizes: Vec<(WeightType, usize)> = [1, 5, 30, 80, 120].map(|tokens| (Q4_K, tokens)).to_vec();
    for ty in [Q5_K, Q6_K, Q8_0, Q4_0, Q4_1, MXFP4, F16, BF16] {
        sizes.extend([1, 44].map(|tokens| (ty, tokens)));
    }
    sizes.extend([(Q6_K, 120), (BF16, 120)]);
    for (ty, tokens) in sizes {
        let name = format!("experts {ty}, one of two, {tokens} tokens");
        cases.push(expert_case(name, ty, (2, 1), Gating::Softmax, (false, false), tokens));
    }
    for tokens in [1, 9] {
        cases.push(routed_case(tokens));
    }
    // Of 12 experts 9 are chosen: as above, few, some, more and many rows for each.
    let biased = [1, 4, 20, 40, 130].map(|tokens| (MXFP4, tokens));
    let others = [Q8_0, Q4_K, BF16, F32].map(|ty| [1, 4, 40].map(|tokens| (ty, tokens)));
    for (ty, tokens) in biased.into_iter().chain(others.into_iter().flatten()) {
        cases.push(biased_case(ty, tokens));
    }
    cases
}

/// A sum, its norm, the router and experts: what backends may run together, up to the next sum.
fn routed_case(tokens: usize) -> Case {
    const EXPERTS: usize = 20;
    let (cols, ff, used) = (320, 96, 7);
    simple(
        format!("router and experts after a norm, {tokens} tokens"),
        EXPERTS_QUANTISED,
        tokens,
        &[cols, cols],
        |w, rng| {
            w.random(rng, "norm", WeightType::F32, 1, cols, 1.0);
            w.random(rng, "router", WeightType::F32, EXPERTS, cols, 0.1);
            for (name, rows, cols) in [("gate", ff, cols), ("up", ff, cols), ("down", cols, ff)] {
                random_experts(w, rng, name, WeightType::Q8_0, EXPERTS, rows, cols);
            }
        },
        move |b, ins| {
            let x = b.add(ins[0], ins[1], "sum");
            let h = rms_norm(b, x, "norm");
            let router = b.weight("router");
            let scores = b.linear(h, router, None, "router");
            let gating = Gating::Softmax;
            let (ids, weights) =
                b.route(scores, Route { used, gating, normalize: true, scale: 1.0, bias: None });
            let (gate, up, down) = (b.weight("gate"), b.weight("up"), b.weight("down"));
            let g = b.expert_linear(h, ids, gate, None, "gate");
            let u = b.expert_linear(h, ids, up, None, "up");
            let y = b.glu(g, u, Activation::Silu);
            let y = b.expert_linear(y, ids, down, None, "down");
            let y = b.combine(y, weights);
            b.add(x, y, "residual")
        },
    )
}

/// A sum, its norm, a router and experts with biases and the clamped unit, as gpt-oss has them, and a product of the next norm,
/// to which backends may leave the sum over experts in parts.
fn biased_case(ty: WeightType, tokens: usize) -> Case {
    const EXPERTS: usize = 12;
    let used = 9;
    // Where blocks are short enough, tiles of kernels are not filled.
    let (cols, ff) = match ty.block_elements() {
        1 => (104, 168),
        32 => (96, 160),
        _ => (256, 512),
    };
    simple(
        format!("experts {ty} with biases, {tokens} tokens"),
        EXPERTS_QUANTISED,
        tokens,
        &[cols, cols],
        |w, rng| {
            w.random(rng, "norm", WeightType::F32, 1, cols, 1.0);
            w.random(rng, "router", WeightType::F32, EXPERTS, cols, 0.1);
            w.random(rng, "router bias", WeightType::F32, 1, EXPERTS, 0.3);
            // Some gates and factors are beyond the unit's limit.
            for (name, rows, cols, bias) in
                [("gate", ff, cols, 4.0), ("up", ff, cols, 4.0), ("down", cols, ff, 1.0)]
            {
                random_experts(w, rng, name, ty, EXPERTS, rows, cols);
                w.random(rng, &format!("{name} bias"), WeightType::F32, EXPERTS, rows, bias);
            }
            w.random(rng, "next", WeightType::BF16, 64, cols, 0.1);
        },
        move |b, ins| {
            let x = b.add(ins[0], ins[1], "sum");
            let h = rms_norm(b, x, "norm");
            let (router, bias) = (b.weight("router"), b.weight("router bias"));
            let scores = b.linear(h, router, Some(bias), "router");
            let gating = Gating::SoftmaxChosen;
            let (ids, weights) =
                b.route(scores, Route { used, gating, normalize: false, scale: 1.0, bias: None });
            let product = |b: &mut GraphBuilder<'_>, x: ValueId, name: &'static str| {
                let (weight, bias) = (b.weight(name), b.weight(&format!("{name} bias")));
                b.expert_linear(x, ids, weight, Some(bias), name)
            };
            let (gate, up) = (product(b, h, "gate"), product(b, h, "up"));
            let y = b.glu_clamped(gate, up, CLAMPED);
            let y = product(b, y, "down");
            let y = b.combine(y, weights);
            let x = b.add(x, y, "residual");
            let h = rms_norm(b, x, "norm");
            let next = b.weight("next");
            b.linear(h, next, None, "next")
        },
    )
}

fn random_experts(
    w: &mut MemoryWeights,
    rng: &mut Rng,
    name: &str,
    ty: WeightType,
    experts: usize,
    rows: usize,
    cols: usize,
) {
    let elements: Vec<f32> = (0..experts * rows * cols).map(|_| rng.normal() * 0.1).collect();
    w.add_experts(name, ty, cols, &elements, experts as u32);
}

fn expert_case(
    name: String,
    ty: WeightType,
    (experts, used): (usize, u32),
    gating: Gating,
    (normalize, bias): (bool, bool),
    tokens: usize,
) -> Case {
    let (cols, ff) = (256, 256);
    simple(
        name,
        EXPERTS_QUANTISED,
        tokens,
        &[cols],
        |w, rng| {
            // The router is exact on both sides, so that both choose the same experts.
            w.random(rng, "router", WeightType::F32, experts, cols, 0.1);
            w.random(rng, "bias", WeightType::F32, 1, experts, 0.3);
            for (name, rows, cols) in [("gate", ff, cols), ("up", ff, cols), ("down", cols, ff)] {
                random_experts(w, rng, name, ty, experts, rows, cols);
            }
        },
        move |b, ins| {
            let (router, weight) = (b.weight("router"), b.weight("bias"));
            let scores = b.linear(ins[0], router, None, "router");
            let route = Route { used, gating, normalize, scale: 1.5, bias: bias.then_some(weight) };
            let (ids, weights) = b.route(scores, route);
            let (gate, up, down) = (b.weight("gate"), b.weight("up"), b.weight("down"));
            let g = b.expert_linear(ins[0], ids, gate, None, "gate");
            let u = b.expert_linear(ins[0], ids, up, None, "up");
            let h = b.glu(g, u, Activation::Silu);
            let y = b.expert_linear(h, ids, down, None, "down");
            b.combine(y, weights)
        },
    )
}
