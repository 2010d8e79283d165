//! Qwen 1.5 and 2 with experts, one of which every token goes through.

use wootz_gguf::Metadata;
use wootz_graph::op::RopeStyle;
use wootz_graph::{GraphBuilder, WeightSpec};

use crate::Architecture;
use crate::blocks;
use crate::error::ArchError;
use crate::hparams::{Experts, HParams, Keys, MAX_SIZE};
use crate::tiny::{Setting, TinyModel};

pub(crate) struct Family;

impl Architecture for Family {
    fn name(&self) -> &'static str {
        "qwen2moe"
    }

    fn hparams(&self, meta: &Metadata) -> Result<HParams, ArchError> {
        let keys = Keys::new(meta, self.name());
        let mut hp = HParams::read(meta, self.name())?;
        // Weights of the chosen experts keep what the softmax over all gave them.
        let mut experts = Experts::required(&keys, hp.feed_forward[0], false)?;
        experts.shared = Some(keys.bounded("expert_shared_feed_forward_length", 1, MAX_SIZE)?);
        hp.experts = Some(experts);
        Ok(hp)
    }

    fn weights(&self, hp: &HParams, spec: &mut WeightSpec) {
        blocks::model_weights(hp, spec);
        blocks::plain_layer_weights(hp, spec, false);
    }

    fn graph(&self, hp: &HParams, b: &mut GraphBuilder<'_>) {
        blocks::plain_decoder(hp, b, RopeStyle::Halves, false);
    }

    fn tiny(&self) -> TinyModel {
        TinyModel::new(self.name())
            .with_experts(6, 2)
            .with("expert_shared_feed_forward_length", Setting::U32(192))
            .with_qkv_biases()
    }
}
