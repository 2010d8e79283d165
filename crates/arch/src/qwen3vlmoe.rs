//! Qwen 3 with eyes and experts: the text side.

use wootz_gguf::Metadata;
use wootz_graph::op::{RopeStyle, SectionOrder};
use wootz_graph::{GraphBuilder, WeightSpec};

use crate::Architecture;
use crate::blocks;
use crate::error::ArchError;
use crate::hparams::{Experts, HParams, Keys};
use crate::tiny::{Setting, TinyModel};

pub(crate) struct Family;

impl Architecture for Family {
    fn name(&self) -> &'static str {
        "qwen3vlmoe"
    }

    fn hparams(&self, meta: &Metadata) -> Result<HParams, ArchError> {
        let keys = Keys::new(meta, self.name());
        let mut hp = HParams::read(meta, self.name())?;
        hp.rope.sections = Some(keys.sections(SectionOrder::Interleaved)?);
        hp.experts = Some(Experts::required(&keys, hp.feed_forward[0], true)?);
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
            .with_experts(8, 3)
    }
}
