//! gpt-oss: experts with biases and a clamped unit, attention sinks, a sliding window in every second layer.

use wootz_gguf::Metadata;
use wootz_graph::op::{ClampedGlu, Gating, RopeStyle};
use wootz_graph::{GraphBuilder, WeightSpec};

use crate::Architecture;
use crate::blocks;
use crate::error::ArchError;
use crate::hparams::{Experts, HParams, Keys, RopeParams};
use crate::tiny::{Setting, TinyModel};

pub(crate) struct Family;

/// The unit of all models of the family; their files do not name it.
const UNIT: ClampedGlu = ClampedGlu { alpha: 1.702, limit: 7.0 };

/// Biases of a layer besides those of queries, keys and values.
const BIASES: [&str; 5] =
    ["attn_output.bias", "ffn_gate_inp.bias", "ffn_gate_exps.bias", "ffn_up_exps.bias", "ffn_down_exps.bias"];

impl Architecture for Family {
    fn name(&self) -> &'static str {
        "gpt-oss"
    }

    fn hparams(&self, meta: &Metadata) -> Result<HParams, ArchError> {
        let keys = Keys::new(meta, self.name());
        let mut hp = HParams::read(meta, self.name())?;
        let experts = Experts::required(&keys, hp.feed_forward[0], false)?;
        hp.experts = Some(Experts { gating: Gating::SoftmaxChosen, clamped: Some(UNIT), ..experts });
        hp.window = keys.opt_u32("attention.sliding_window")?.filter(|w| *w > 0);
        if hp.window.is_some() {
            for (layer, windowed) in hp.windowed.iter_mut().enumerate() {
                *windowed = layer.is_multiple_of(2);
            }
        }
        // Layers with a window rotate as the others do, unless the file says otherwise.
        let base = keys.opt_f32("rope.freq_base_swa")?.unwrap_or(hp.rope.base);
        hp.window_rope = RopeParams { base, ..hp.rope.clone() };
        Ok(hp)
    }

    fn weights(&self, hp: &HParams, spec: &mut WeightSpec) {
        let dim = u64::from(hp.dim);
        blocks::model_weights(hp, spec);
        for layer in 0..hp.layers {
            blocks::attention_weights(hp, layer, spec);
            blocks::sink_weights(hp, layer, spec);
            spec.vector(blocks::name(layer, "post_attention_norm.weight"), dim);
            if let Some(experts) = &hp.experts {
                blocks::expert_weights(experts, dim, layer, spec);
            }
        }
    }

    fn graph(&self, hp: &HParams, b: &mut GraphBuilder<'_>) {
        blocks::decoder(hp, b, RopeStyle::Halves, false, "post_attention_norm.weight");
    }

    fn tiny(&self) -> TinyModel {
        // One layer with a window and one without; YaRN reaches beyond a context shorter than the texts of the tests.
        TinyModel::new(self.name())
            .with_head_width(64)
            .with("attention.sliding_window", Setting::U32(24))
            .with("rope.freq_base", Setting::F32(150_000.0))
            .with("rope.scaling.type", Setting::Str("yarn".into()))
            .with("rope.scaling.factor", Setting::F32(8.0))
            .with("rope.scaling.original_context_length", Setting::U32(64))
            .with_experts(6, 2)
            .with_tensor("output.weight")
            .with_qkv_biases()
            .with_layer_tensors(&BIASES)
    }
}
