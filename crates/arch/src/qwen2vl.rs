//! Qwen 2 and 2.5 with eyes: the text side.

use wootz_gguf::Metadata;
use wootz_graph::op::{RopeStyle, SectionOrder};
use wootz_graph::{GraphBuilder, WeightSpec};

use crate::Architecture;
use crate::blocks;
use crate::error::ArchError;
use crate::hparams::{HParams, Keys};
use crate::tiny::{Setting, TinyModel};

pub(crate) struct Family;

impl Architecture for Family {
    fn name(&self) -> &'static str {
        "qwen2vl"
    }

    fn hparams(&self, meta: &Metadata) -> Result<HParams, ArchError> {
        let mut hp = HParams::read(meta, self.name())?;
        hp.rope.sections = Some(Keys::new(meta, self.name()).sections(SectionOrder::Runs)?);
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
            .with("rope.dimension_sections", Setting::I32s(vec![4, 6, 6, 0]))
            .with("rope.freq_base", Setting::F32(1_000_000.0))
            .with_tensor("output.weight")
            .with_qkv_biases()
    }
}
