//! Qwen 3 with eyes: the text side.

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
        "qwen3vl"
    }

    fn hparams(&self, meta: &Metadata) -> Result<HParams, ArchError> {
        let mut hp = HParams::read(meta, self.name())?;
        hp.rope.sections = Some(Keys::new(meta, self.name()).sections(SectionOrder::Interleaved)?);
        Ok(hp)
    }

    fn weights(&self, hp: &HParams, spec: &mut WeightSpec) {
        blocks::model_weights(hp, spec);
        blocks::plain_layer_weights(hp, spec, true);
    }

    fn graph(&self, hp: &HParams, b: &mut GraphBuilder<'_>) {
        blocks::plain_decoder(hp, b, RopeStyle::Halves, true);
    }

    fn tiny(&self) -> TinyModel {
        TinyModel::new(self.name())
            .with_head_width(64)
            .with("rope.dimension_sections", Setting::I32s(vec![12, 10, 10, 0]))
            .with("rope.freq_base", Setting::F32(1_000_000.0))
    }
}
