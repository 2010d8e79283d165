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
        blocks::plain_layer_weights(hp, spec, false);
    }

    fn graph(&self, hp: &HParams, b: &mut GraphBuilder<'_>) {
        blocks::plain_decoder(hp, b, RopeStyle::Halves, false);
    }

    fn tiny(&self) -> TinyModel {
        TinyModel::new(self.name()).with_tensor("output.weight").with_qkv_biases()
    }
}
