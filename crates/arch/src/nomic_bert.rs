//! Nomic's BERT: rotary positions, one matrix for query, key and value, a gated feed-forward block.

use wootz_gguf::Metadata;
use wootz_graph::op::{Activation, RopeStyle};
use wootz_graph::{GraphBuilder, WeightSpec};

use crate::Architecture;
use crate::encoder::{self, Encoder};
use crate::error::ArchError;
use crate::hparams::HParams;
use crate::tiny::{Setting, TinyModel};

pub(crate) struct Family;

const ENCODER: Encoder = Encoder { rope: Some(RopeStyle::Halves), gated: true, activation: Activation::Silu };

impl Architecture for Family {
    fn name(&self) -> &'static str {
        "nomic-bert"
    }

    fn causal(&self) -> bool {
        false
    }

    fn hparams(&self, meta: &Metadata) -> Result<HParams, ArchError> {
        encoder::hparams(meta, self.name())
    }

    fn weights(&self, hp: &HParams, spec: &mut WeightSpec) {
        ENCODER.weights(hp, spec);
    }

    fn graph(&self, hp: &HParams, b: &mut GraphBuilder<'_>) {
        ENCODER.graph(hp, b);
    }

    fn tiny(&self) -> TinyModel {
        let tiny = encoder::tiny(self.name(), Setting::U32(1)).with("rope.freq_base", Setting::F32(1000.0));
        (0..2).fold(tiny, |tiny, layer| tiny.with_tensor(&format!("blk.{layer}.attn_qkv.weight")))
    }
}
