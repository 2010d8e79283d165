//! Llama 1 to 3, Mistral, SmolLM2 and others that keep their layout; Mixtral, whose files have the same name.

use wootz_gguf::Metadata;
use wootz_graph::op::RopeStyle;
use wootz_graph::{GraphBuilder, WeightSpec};

use crate::Architecture;
use crate::blocks;
use crate::error::ArchError;
use crate::hparams::{Experts, HParams, Keys};
use crate::tiny::TinyModel;

pub(crate) struct Family;

impl Architecture for Family {
    fn name(&self) -> &'static str {
        "llama"
    }

    fn hparams(&self, meta: &Metadata) -> Result<HParams, ArchError> {
        let mut hp = HParams::read(meta, self.name())?;
        // As Mixtral does it, weights of the chosen experts add up to 1.
        hp.experts = Experts::read(&Keys::new(meta, self.name()), hp.feed_forward[0], true)?;
        Ok(hp)
    }

    fn weights(&self, hp: &HParams, spec: &mut WeightSpec) {
        blocks::model_weights(hp, spec);
        // Llama 3 divides the frequencies of its rotary embedding by these.
        spec.vector("rope_freqs.weight", u64::from(hp.rope.dims / 2));
        spec.optional();
        blocks::plain_layer_weights(hp, spec, false);
    }

    fn graph(&self, hp: &HParams, b: &mut GraphBuilder<'_>) {
        blocks::plain_decoder(hp, b, RopeStyle::Adjacent, false);
    }

    fn tiny(&self) -> TinyModel {
        TinyModel::new(self.name()).with_tensor("rope_freqs.weight")
    }
}
