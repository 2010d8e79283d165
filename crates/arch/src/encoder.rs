//! Pieces of encoders: every token sees the whole text, and norms stand behind what they norm.

use wootz_gguf::Metadata;
use wootz_graph::op::{Activation, Norm, NormKind, RopeStyle};
use wootz_graph::{GraphBuilder, Output, Outputs, ValueId, Wants, WeightSpec};

use crate::Architecture;
use crate::blocks;
use crate::error::ArchError;
use crate::hparams::{HParams, Keys};
use crate::tiny::{Setting, TinyModel};

/// What sets the families apart.
pub(crate) struct Encoder {
    /// Positions by rotation; without it, by a table of embeddings.
    pub(crate) rope: Option<RopeStyle>,
    /// Whether a gate multiplies the feed-forward block's inner columns.
    pub(crate) gated: bool,
    pub(crate) activation: Activation,
}

/// A family of encoders.
pub(crate) trait EncoderFamily: Sync {
    const NAME: &'static str;
    const ENCODER: Encoder;

    /// Settings of a tiny model beside those of [`tiny`].
    fn tiny_of() -> TinyModel;
}

impl<F: EncoderFamily> Architecture for F {
    fn name(&self) -> &'static str {
        F::NAME
    }

    fn causal(&self) -> bool {
        false
    }

    fn hparams(&self, meta: &Metadata) -> Result<HParams, ArchError> {
        hparams(meta, F::NAME)
    }

    fn weights(&self, hp: &HParams, spec: &mut WeightSpec) {
        F::ENCODER.weights(hp, spec);
    }

    fn graph(&self, hp: &HParams, b: &mut GraphBuilder<'_>) {
        F::ENCODER.graph(hp, b);
    }

    fn tiny(&self) -> TinyModel {
        F::tiny_of()
    }
}

/// Reads the hyperparameters.
fn hparams(meta: &Metadata, prefix: &str) -> Result<HParams, ArchError> {
    let keys = Keys::new(meta, prefix);
    let mut hp = HParams::read(meta, prefix)?;
    hp.causal = keys.opt_bool("attention.causal")?.unwrap_or(false);
    if hp.causal {
        return Err(ArchError::Value {
            key: keys.key("attention.causal"),
            found: "true".to_owned(),
            expected: "false: every token of this family sees the whole text".to_owned(),
        });
    }
    hp.norm_eps = keys.opt_f32("attention.layer_norm_epsilon")?.unwrap_or(1e-12);
    let key = "tokenizer.ggml.token_type_count";
    hp.token_types = meta.opt_u32(key)?.unwrap_or(0);
    if hp.token_types > MAX_TOKEN_TYPES {
        return Err(ArchError::Value {
            key: key.to_owned(),
            found: hp.token_types.to_string(),
            expected: format!("a number up to {MAX_TOKEN_TYPES}"),
        });
    }
    Ok(hp)
}

/// Known models have one or two.
const MAX_TOKEN_TYPES: u32 = 1024;

fn norm_weights(hp: &HParams, name: &str, spec: &mut WeightSpec) {
    spec.vector(format!("{name}.weight"), u64::from(hp.dim));
    spec.vector(format!("{name}.bias"), u64::from(hp.dim));
    spec.optional();
}

impl Encoder {
    /// Names the weights.
    fn weights(&self, hp: &HParams, spec: &mut WeightSpec) {
        let dim = u64::from(hp.dim);
        spec.matrix("token_embd.weight", u64::from(hp.vocab), dim);
        if hp.token_types > 0 {
            spec.matrix("token_types.weight", u64::from(hp.token_types), dim);
            spec.optional();
        }
        if self.rope.is_none() {
            spec.matrix("position_embd.weight", u64::from(hp.context_length), dim);
        }
        norm_weights(hp, "token_embd_norm", spec);
        for layer in 0..hp.layers {
            let l = usize::from(layer);
            let (heads, kv) = (u64::from(hp.heads[l]), u64::from(hp.kv_heads[l]));
            let (k_dim, v_dim) = (u64::from(hp.k_dim), u64::from(hp.v_dim));
            let ff = u64::from(hp.feed_forward[l]);
            let mut matrices = vec![
                ("attn_qkv", heads * k_dim + kv * (k_dim + v_dim), dim, true),
                ("attn_q", heads * k_dim, dim, true),
                ("attn_k", kv * k_dim, dim, true),
                ("attn_v", kv * v_dim, dim, true),
                ("attn_output", dim, heads * v_dim, false),
                ("ffn_up", ff, dim, false),
                ("ffn_down", dim, ff, false),
            ];
            if self.gated {
                matrices.push(("ffn_gate", ff, dim, false));
            }
            for (tensor, rows, cols, optional) in matrices {
                let name = blocks::name(layer, tensor);
                spec.matrix(format!("{name}.weight"), rows, cols);
                if optional {
                    spec.optional();
                }
                spec.vector(format!("{name}.bias"), rows);
                spec.optional();
            }
            norm_weights(hp, &blocks::name(layer, "attn_output_norm"), spec);
            norm_weights(hp, &blocks::name(layer, "layer_output_norm"), spec);
        }
    }

    /// Builds the graph.
    fn graph(&self, hp: &HParams, b: &mut GraphBuilder<'_>) {
        let table = b.weight("token_embd.weight");
        let mut x = b.embed(table, hp.embedding_scale);
        if self.rope.is_none() {
            let table = b.weight("position_embd.weight");
            let positions = b.embed_positions(table);
            x = b.add(x, positions, "positions");
        }
        if let Some(types) = b.find_weight("token_types.weight") {
            // Requests have no place for the type of a token: all are of the first.
            x = b.add_row(x, types, 0, "token_types");
        }
        x = norm(hp, b, x, "token_embd_norm", "embd_norm");
        for layer in 0..hp.layers {
            b.layer(Some(layer));
            let y = blocks::attention(hp, b, layer, x, self.rope, false);
            x = blocks::residual(hp, b, layer, x);
            x = b.add(x, y, "attn_residual");
            x = norm(hp, b, x, &blocks::name(layer, "attn_output_norm"), "attn_output_norm");
            let y = if self.gated {
                blocks::feed_forward(b, layer, x, self.activation)
            } else {
                let h = blocks::project(b, layer, x, "ffn_up");
                let h = b.activate(h, self.activation);
                blocks::project(b, layer, h, "ffn_down")
            };
            x = b.add(x, y, "ffn_residual");
            x = norm(hp, b, x, &blocks::name(layer, "layer_output_norm"), "layer_output_norm");
        }
        b.layer(None);
        match b.key().wants {
            _ if b.key().outputs == Outputs::None => {}
            Wants::Hidden => b.output(Output::Hidden, x),
            Wants::Scores => blocks::classify(b, x),
            // There is no such weight, which is the error's text.
            Wants::Logits => {
                b.weight("output.weight");
            }
        }
    }
}

/// A tiny model with a way of pooling.
pub(crate) fn tiny(prefix: &str, pooling: Setting) -> TinyModel {
    let norms = ["token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"];
    let more = ["blk.1.attn_output_norm", "blk.1.layer_output_norm"];
    let tiny = TinyModel::new(prefix)
        .with("attention.head_count_kv", Setting::U32(4))
        .with("attention.layer_norm_epsilon", Setting::F32(1e-12))
        .with("attention.causal", Setting::Bool(false))
        .with("pooling_type", pooling)
        .with_key("tokenizer.ggml.token_type_count", Setting::U32(2))
        .with_tensor("token_types.weight");
    norms.iter().chain(&more).fold(tiny, |tiny, norm| tiny.with_tensor(&format!("{norm}.bias")))
}

/// Layer norm with a weight and, where the model has it, a bias.
fn norm(hp: &HParams, b: &mut GraphBuilder<'_>, x: ValueId, name: &str, label: &'static str) -> ValueId {
    let weight = Some(b.weight(&format!("{name}.weight")));
    let bias = b.find_weight(&format!("{name}.bias"));
    b.norm(x, Norm { kind: NormKind::Layer, eps: hp.norm_eps, groups: 1, weight, bias }, label)
}
