//! Pieces that families are built from.

use wootz_graph::op::{Activation, Attention, Gating, Linear, Norm, NormKind, Rope, RopeStyle, Route, Yarn};
use wootz_graph::{CacheId, GraphBuilder, Output, Outputs, ValueId, Wants, WeightSpec};

use crate::hparams::{Experts, HParams, RopeScaling};

/// Name of a layer's tensor.
pub(crate) fn name(layer: u16, tensor: &str) -> String {
    format!("blk.{layer}.{tensor}")
}

/// Names the embedding, the final norm and the head, which is the embedding where the file has none.
pub(crate) fn model_weights(hp: &HParams, spec: &mut WeightSpec) {
    spec.matrix("token_embd.weight", u64::from(hp.vocab), u64::from(hp.dim));
    spec.vector("output_norm.weight", u64::from(hp.dim));
    spec.matrix("output.weight", u64::from(hp.vocab), u64::from(hp.dim));
    spec.optional();
}

/// Names a layer's projections of attention, with biases where the file has them.
pub(crate) fn attention_weights(hp: &HParams, layer: u16, spec: &mut WeightSpec) {
    let (dim, l) = (u64::from(hp.dim), usize::from(layer));
    let (heads, kv) = (u64::from(hp.heads[l]), u64::from(hp.kv_heads[l]));
    let (k_dim, v_dim) = (u64::from(hp.k_dim), u64::from(hp.v_dim));
    spec.vector(name(layer, "attn_norm.weight"), dim);
    for (tensor, rows, cols) in [
        ("attn_q", heads * k_dim, dim),
        ("attn_k", kv * k_dim, dim),
        ("attn_v", kv * v_dim, dim),
        ("attn_output", dim, heads * v_dim),
    ] {
        spec.matrix(name(layer, &format!("{tensor}.weight")), rows, cols);
        spec.vector(name(layer, &format!("{tensor}.bias")), rows);
        spec.optional();
    }
}

/// Names the norms of query and key heads.
pub(crate) fn head_norm_weights(hp: &HParams, layer: u16, spec: &mut WeightSpec) {
    spec.vector(name(layer, "attn_q_norm.weight"), u64::from(hp.k_dim));
    spec.vector(name(layer, "attn_k_norm.weight"), u64::from(hp.k_dim));
}

/// Names the scores of a layer that take part in the softmax of its heads.
pub(crate) fn sink_weights(hp: &HParams, layer: u16, spec: &mut WeightSpec) {
    spec.vector(name(layer, "attn_sinks.weight"), u64::from(hp.heads[usize::from(layer)]));
}

/// Names a layer's gated feed-forward block, or its router and experts.
pub(crate) fn feed_forward_weights(hp: &HParams, layer: u16, spec: &mut WeightSpec) {
    let (dim, ff) = (u64::from(hp.dim), u64::from(hp.feed_forward[usize::from(layer)]));
    spec.vector(name(layer, "ffn_norm.weight"), dim);
    if let Some(experts) = &hp.experts {
        return expert_weights(experts, dim, layer, spec);
    }
    for (tensor, rows, cols) in [("ffn_gate", ff, dim), ("ffn_up", ff, dim), ("ffn_down", dim, ff)] {
        spec.matrix(name(layer, &format!("{tensor}.weight")), rows, cols);
        spec.vector(name(layer, &format!("{tensor}.bias")), rows);
        spec.optional();
    }
}

/// Names a layer's router and experts, with biases where the file has them.
pub(crate) fn expert_weights(experts: &Experts, dim: u64, layer: u16, spec: &mut WeightSpec) {
    let (ff, count) = (u64::from(experts.feed_forward), u64::from(experts.count));
    spec.matrix(name(layer, "ffn_gate_inp.weight"), count, dim);
    spec.vector(name(layer, "ffn_gate_inp.bias"), count);
    spec.optional();
    for (tensor, rows, cols) in [("gate", ff, dim), ("up", ff, dim), ("down", dim, ff)] {
        spec.experts(name(layer, &format!("ffn_{tensor}_exps.weight")), experts.count, rows, cols);
        spec.matrix(name(layer, &format!("ffn_{tensor}_exps.bias")), count, rows);
        spec.optional();
    }
    if let Some(shared) = experts.shared {
        let ff = u64::from(shared);
        spec.vector(name(layer, "ffn_gate_inp_shexp.weight"), dim);
        for (tensor, rows, cols) in [("gate", ff, dim), ("up", ff, dim), ("down", dim, ff)] {
            spec.matrix(name(layer, &format!("ffn_{tensor}_shexp.weight")), rows, cols);
        }
    }
}

/// Root-mean-square norm with a weight.
pub(crate) fn rms_norm(
    hp: &HParams,
    b: &mut GraphBuilder<'_>,
    x: ValueId,
    weight: &str,
    label: &'static str,
) -> ValueId {
    grouped_norm(hp, b, x, weight, 1, label)
}

fn grouped_norm(
    hp: &HParams,
    b: &mut GraphBuilder<'_>,
    x: ValueId,
    weight: &str,
    groups: u32,
    label: &'static str,
) -> ValueId {
    let weight = Some(b.weight(weight));
    b.norm(x, Norm { kind: NormKind::Rms, eps: hp.norm_eps, groups, weight, bias: None }, label)
}

/// Product with a layer's matrix and its bias, where the model has one.
pub(crate) fn project(b: &mut GraphBuilder<'_>, layer: u16, x: ValueId, tensor: &'static str) -> ValueId {
    let weight = b.weight(&name(layer, &format!("{tensor}.weight")));
    let bias = b.find_weight(&name(layer, &format!("{tensor}.bias")));
    b.linear(x, weight, bias, tensor)
}

/// Query, key and value of a layer, from a matrix each or from one that holds all three.
fn project_heads(hp: &HParams, b: &mut GraphBuilder<'_>, layer: u16, h: ValueId) -> [ValueId; 3] {
    let Some(weight) = b.find_weight(&name(layer, "attn_qkv.weight")) else {
        return ["attn_q", "attn_k", "attn_v"].map(|tensor| project(b, layer, h, tensor));
    };
    let bias = b.find_weight(&name(layer, "attn_qkv.bias"));
    let l = usize::from(layer);
    let (q, k, v) = (hp.heads[l] * hp.k_dim, hp.kv_heads[l] * hp.k_dim, hp.kv_heads[l] * hp.v_dim);
    [(0, q, "attn_q"), (q, k, "attn_k"), (q + k, v, "attn_v")]
        .map(|(first, rows, label)| b.linear_part(h, Linear { weight, first, rows, bias }, label))
}

/// The rotary embedding of a layer.
fn rope(hp: &HParams, b: &GraphBuilder<'_>, layer: u16, heads: u32, style: RopeStyle) -> Rope {
    let params = if hp.windowed[usize::from(layer)] { &hp.window_rope } else { &hp.rope };
    let (freq_scale, yarn) = match params.scaling {
        RopeScaling::None => (1.0, None),
        RopeScaling::Linear { factor } => (1.0 / factor, None),
        RopeScaling::Yarn { factor, ext_factor, beta_fast, beta_slow, original_context } => {
            (1.0 / factor, Some(Yarn { ext_factor, beta_fast, beta_slow, original_context }))
        }
    };
    Rope {
        heads,
        head_dim: hp.k_dim,
        dims: params.dims,
        style,
        freq_base: params.base,
        freq_scale,
        factors: b.find_weight("rope_freqs.weight"),
        yarn,
        magnitude: params.magnitude,
        sections: params.sections,
    }
}

/// Self-attention of a layer on normed input `h`, up to the output projection.
///
/// `style` rotates query and key heads; `head_norm` normalises them first. In the last layer only the rows that the step returns go through
/// the output projection; the residual stream must be gathered as well.
pub(crate) fn attention(
    hp: &HParams,
    b: &mut GraphBuilder<'_>,
    layer: u16,
    h: ValueId,
    style: Option<RopeStyle>,
    head_norm: bool,
) -> ValueId {
    let l = usize::from(layer);
    let (heads, kv_heads) = (hp.heads[l], hp.kv_heads[l]);
    let [mut q, mut k, v] = project_heads(hp, b, layer, h);
    if head_norm {
        q = grouped_norm(hp, b, q, &name(layer, "attn_q_norm.weight"), heads, "attn_q_norm");
        k = grouped_norm(hp, b, k, &name(layer, "attn_k_norm.weight"), kv_heads, "attn_k_norm");
    }
    if let Some(style) = style {
        q = b.rope(q, rope(hp, b, layer, heads, style), "rope_q");
        k = b.rope(k, rope(hp, b, layer, kv_heads, style), "rope_k");
    }
    let cache = CacheId(u32::from(layer));
    b.store_kv(cache, k, v);
    let window = if hp.windowed[l] { hp.window } else { None };
    let mut y = b.attention(
        q,
        Attention {
            cache,
            heads,
            scale: hp.attention_scale,
            softcap: hp.attention_softcap,
            window,
            causal: hp.causal,
            sinks: b.find_weight(&name(layer, "attn_sinks.weight")),
        },
    );
    if layer + 1 == hp.layers {
        y = b.gather_outputs(y);
    }
    project(b, layer, y, "attn_output")
}

/// `down(activation(gate(h)) * up(h))`.
pub(crate) fn feed_forward(
    b: &mut GraphBuilder<'_>,
    layer: u16,
    h: ValueId,
    activation: Activation,
) -> ValueId {
    gated(b, layer, h, activation, ["ffn_gate", "ffn_up", "ffn_down"])
}

/// As [`feed_forward`], with matrices of these names.
fn gated(
    b: &mut GraphBuilder<'_>,
    layer: u16,
    h: ValueId,
    activation: Activation,
    [gate, up, down]: [&'static str; 3],
) -> ValueId {
    let gate = project(b, layer, h, gate);
    let up = project(b, layer, h, up);
    let y = b.glu(gate, up, activation);
    project(b, layer, y, down)
}

/// Feed-forward blocks of the experts that a router chooses for each row: `Σ weight * down(silu(gate(h)) * up(h))`, or with
/// the clamped unit.
fn expert_feed_forward(experts: &Experts, b: &mut GraphBuilder<'_>, layer: u16, h: ValueId) -> ValueId {
    let scores = project(b, layer, h, "ffn_gate_inp");
    let route = Route {
        used: experts.used,
        gating: experts.gating,
        normalize: experts.normalize,
        scale: 1.0,
        bias: None,
    };
    let (ids, weights) = b.route(scores, route);
    let product = |b: &mut GraphBuilder<'_>, x: ValueId, tensor: &'static str| {
        let weight = b.weight(&name(layer, &format!("{tensor}.weight")));
        let bias = b.find_weight(&name(layer, &format!("{tensor}.bias")));
        b.expert_linear(x, ids, weight, bias, tensor)
    };
    let gate = product(b, h, "ffn_gate_exps");
    let up = product(b, h, "ffn_up_exps");
    let y = match experts.clamped {
        Some(unit) => b.glu_clamped(gate, up, unit),
        None => b.glu(gate, up, Activation::Silu),
    };
    let y = product(b, y, "ffn_down_exps");
    let y = b.combine(y, weights);
    if experts.shared.is_none() {
        return y;
    }
    let shared = gated(b, layer, h, Activation::Silu, ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"]);
    // The weight of the shared expert is the sigmoid of one score: a choice among one.
    let score = project(b, layer, h, "ffn_gate_inp_shexp");
    let route = Route { used: 1, gating: Gating::Sigmoid, normalize: false, scale: 1.0, bias: None };
    let (_, weight) = b.route(score, route);
    let shared = b.combine(shared, weight);
    b.add(y, shared, "ffn_shexp_sum")
}

/// The residual stream as a layer goes on with it after attention: in the last layer, only the rows returned.
pub(crate) fn residual(hp: &HParams, b: &mut GraphBuilder<'_>, layer: u16, x: ValueId) -> ValueId {
    if layer + 1 == hp.layers { b.gather_outputs(x) } else { x }
}

/// Names the classifier of a model that ranks.
pub(crate) fn classifier_weights(hp: &HParams, spec: &mut WeightSpec) {
    let (dim, labels) = (u64::from(hp.dim), hp.labels.len() as u64);
    spec.matrix("cls.weight", dim, dim);
    spec.optional();
    spec.vector("cls.bias", dim);
    spec.optional();
    spec.matrix("cls.output.weight", labels, dim);
    spec.vector("cls.output.bias", labels);
    spec.optional();
}

/// Scores of labels: a dense layer with tanh, where the model has one, and a product.
pub(crate) fn classify(b: &mut GraphBuilder<'_>, mut h: ValueId) {
    if let Some(dense) = b.find_weight("cls.weight") {
        let bias = b.find_weight("cls.bias");
        h = b.linear(h, dense, bias, "cls");
        // With a cap of 1 this is tanh.
        h = b.softcap(h, 1.0);
    }
    let (weight, bias) = (b.weight("cls.output.weight"), b.find_weight("cls.output.bias"));
    let scores = b.linear(h, weight, bias, "cls.output");
    b.output(Output::Scores, scores);
}

/// Final norm and head, as far as the step wants them.
pub(crate) fn finish(hp: &HParams, b: &mut GraphBuilder<'_>, x: ValueId) {
    b.layer(None);
    if b.key().outputs == Outputs::None {
        return;
    }
    let h = rms_norm(hp, b, x, "output_norm.weight", "output_norm");
    head(hp, b, h);
}

/// The head, as far as the step wants it, of hidden states after the final norm.
pub(crate) fn head(hp: &HParams, b: &mut GraphBuilder<'_>, h: ValueId) {
    match b.key().wants {
        Wants::Logits => {}
        Wants::Hidden => return b.output(Output::Hidden, h),
        Wants::Scores => return classify(b, h),
    }
    let head = match b.find_weight("output.weight") {
        Some(head) => head,
        None => b.weight("token_embd.weight"),
    };
    let linear = Linear { weight: head, first: 0, rows: hp.vocab, bias: None };
    let mut logits = b.linear_part(h, linear, "output");
    if let Some(cap) = hp.logit_softcap {
        logits = b.softcap(logits, cap);
    }
    b.output(Output::Logits, logits);
}

/// Names the layers of a [`plain_decoder`].
pub(crate) fn plain_layer_weights(hp: &HParams, spec: &mut WeightSpec, head_norm: bool) {
    for layer in 0..hp.layers {
        attention_weights(hp, layer, spec);
        if head_norm {
            head_norm_weights(hp, layer, spec);
        }
        feed_forward_weights(hp, layer, spec);
    }
}

/// A decoder whose layers are a norm, attention, a norm and a gated feed-forward block or experts, each added to the stream.
pub(crate) fn plain_decoder(hp: &HParams, b: &mut GraphBuilder<'_>, style: RopeStyle, head_norm: bool) {
    decoder(hp, b, style, head_norm, "ffn_norm.weight");
}

/// As [`plain_decoder`], with another name of the norm after attention.
pub(crate) fn decoder(
    hp: &HParams,
    b: &mut GraphBuilder<'_>,
    style: RopeStyle,
    head_norm: bool,
    second_norm: &str,
) {
    let table = b.weight("token_embd.weight");
    let mut x = b.embed(table, hp.embedding_scale);
    for layer in 0..hp.layers {
        b.layer(Some(layer));
        let h = rms_norm(hp, b, x, &name(layer, "attn_norm.weight"), "attn_norm");
        let y = attention(hp, b, layer, h, Some(style), head_norm);
        x = residual(hp, b, layer, x);
        x = b.add(x, y, "attn_residual");
        let h = rms_norm(hp, b, x, &name(layer, second_norm), "ffn_norm");
        let y = match &hp.experts {
            Some(experts) => expert_feed_forward(experts, b, layer, h),
            None => feed_forward(b, layer, h, Activation::Silu),
        };
        x = b.add(x, y, "ffn_residual");
    }
    finish(hp, b, x);
}
