//! Qwen 2 and 2.5.

use wootz_gguf::Metadata;
use wootz_graph::op::RopeStyle;
use wootz_graph::{GraphBuilder, WeightSpec};

use crate::Architecture;
use crate::blocks;
use crate::error::ArchError;
use crate::hparams::HParams;
use crate::tiny::TinyModel;

pub(crate) struct Family;

impl Architecture for Family {
    fn name(&self) -> &'static str {
        "qwen2"
    }

    fn hparams(&self, meta: &Metadata) -> Result<HParams, ArchError> {
        HParams::read(meta, self.name())
    }

    fn weights(&self, hp: &HParams, spec: &mut WeightSpec) {
        blocks::model_weights(hp, spec);
        for layer in 0..hp.layers {
            blocks::attention_weights(hp, layer, spec);
            blocks::feed_forward_weights(hp, layer, spec);
        }
    }

    fn graph(&self, hp: &HParams, b: &mut GraphBuilder<'_>) {
        blocks::plain_decoder(hp, b, RopeStyle::Halves, false);
    }

    fn tiny(&self) -> TinyModel {
        let mut tiny = TinyModel::new(self.name()).with_tensor("output.weight");
        for layer in 0..2 {
            for tensor in ["attn_q.bias", "attn_k.bias", "attn_v.bias"] {
                tiny = tiny.with_tensor(&blocks::name(layer, tensor));
            }
        }
        tiny
    }
}
