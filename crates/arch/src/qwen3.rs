//! Qwen 3, dense.

use wootz_gguf::Metadata;
use wootz_graph::op::RopeStyle;
use wootz_graph::{GraphBuilder, WeightSpec};

use crate::Architecture;
use crate::blocks;
use crate::error::ArchError;
use crate::hparams::HParams;
use crate::tiny::{Setting, TinyModel};

pub(crate) struct Family;

impl Architecture for Family {
    fn name(&self) -> &'static str {
        "qwen3"
    }

    fn hparams(&self, meta: &Metadata) -> Result<HParams, ArchError> {
        HParams::read(meta, self.name())
    }

    fn weights(&self, hp: &HParams, spec: &mut WeightSpec) {
        blocks::model_weights(hp, spec);
        blocks::plain_layer_weights(hp, spec, true);
    }

    fn graph(&self, hp: &HParams, b: &mut GraphBuilder<'_>) {
        blocks::plain_decoder(hp, b, RopeStyle::Halves, true);
    }

    fn tiny(&self) -> TinyModel {
        // Heads wider than dim / heads, as in the real models.
        TinyModel::new(self.name()).with_head_width(64).with("rope.freq_base", Setting::F32(1_000_000.0))
    }
}
