//! Gemma 3, text.

use wootz_gguf::Metadata;
use wootz_graph::op::{Activation, RopeStyle};
use wootz_graph::{GraphBuilder, WeightSpec};

use crate::Architecture;
use crate::blocks;
use crate::error::ArchError;
use crate::hparams::{HParams, Keys};
use crate::tiny::{Setting, TinyModel};

pub(crate) struct Family;

/// Every so many layers, one sees the whole context and the others a window.
const PERIOD: usize = 6;

/// Layers of the 27B model, whose scores are scaled by the width of the stream instead of the heads.
const LAYERS_27B: u16 = 62;

impl Architecture for Family {
    fn name(&self) -> &'static str {
        "gemma3"
    }

    fn hparams(&self, meta: &Metadata) -> Result<HParams, ArchError> {
        let keys = Keys::new(meta, self.name());
        let mut hp = HParams::read(meta, self.name())?;
        if meta.opt_f32("gemma3.rope.freq_base")?.is_none() {
            hp.rope.base = 1_000_000.0;
        }
        hp.embedding_scale = (hp.dim as f32).sqrt();
        if hp.layers == LAYERS_27B {
            hp.attention_scale = 1.0 / ((hp.dim / hp.heads[0]) as f32).sqrt();
        }
        hp.window = keys.opt_u32("attention.sliding_window")?.filter(|w| *w > 0);
        if hp.window.is_some() {
            for (layer, windowed) in hp.windowed.iter_mut().enumerate() {
                *windowed = layer % PERIOD < PERIOD - 1;
            }
        }
        hp.logit_softcap = keys.opt_f32("final_logit_softcapping")?.filter(|c| *c > 0.0);
        hp.attention_softcap = keys.opt_f32("attn_logit_softcapping")?.filter(|c| *c > 0.0);
        Ok(hp)
    }

    fn weights(&self, hp: &HParams, spec: &mut WeightSpec) {
        blocks::model_weights(hp, spec);
        for layer in 0..hp.layers {
            blocks::attention_weights(hp, layer, spec);
            blocks::head_norm_weights(hp, layer, spec);
            spec.vector(blocks::name(layer, "post_attention_norm.weight"), u64::from(hp.dim));
            blocks::feed_forward_weights(hp, layer, spec);
            spec.vector(blocks::name(layer, "post_ffw_norm.weight"), u64::from(hp.dim));
        }
    }

    fn graph(&self, hp: &HParams, b: &mut GraphBuilder<'_>) {
        let table = b.weight("token_embd.weight");
        let mut x = b.embed(table, hp.embedding_scale);
        for layer in 0..hp.layers {
            b.layer(Some(layer));
            let tensor = |name: &str| blocks::name(layer, name);
            let h = blocks::rms_norm(hp, b, x, &tensor("attn_norm.weight"), "attn_norm");
            let y = blocks::attention(hp, b, layer, h, Some(RopeStyle::Halves), true);
            x = blocks::residual(hp, b, layer, x);
            let y = blocks::rms_norm(hp, b, y, &tensor("post_attention_norm.weight"), "post_attn_norm");
            x = b.add(x, y, "attn_residual");
            let h = blocks::rms_norm(hp, b, x, &tensor("ffn_norm.weight"), "ffn_norm");
            let y = blocks::feed_forward(b, layer, h, Activation::Gelu);
            let y = blocks::rms_norm(hp, b, y, &tensor("post_ffw_norm.weight"), "post_ffn_norm");
            x = b.add(x, y, "ffn_residual");
        }
        blocks::finish(hp, b, x);
    }

    fn tiny(&self) -> TinyModel {
        // Seven layers: one with full attention between windowed ones.
        TinyModel::new(self.name())
            .with("block_count", Setting::U32(7))
            .with("attention.sliding_window", Setting::U32(40))
            .with_head_width(64)
            .with("rope.freq_base", Setting::F32(1_000_000.0))
    }
}
