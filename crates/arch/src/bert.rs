//! BERT, and models that keep its layout: MiniLM, BGE, E5, GTE, mxbai, RoBERTa.

use wootz_gguf::Metadata;
use wootz_graph::op::Activation;
use wootz_graph::{GraphBuilder, WeightSpec};

use crate::Architecture;
use crate::encoder::{self, Encoder};
use crate::error::ArchError;
use crate::hparams::HParams;
use crate::tiny::{Setting, TinyModel};

pub(crate) struct Family;

const ENCODER: Encoder = Encoder { rope: None, gated: false, activation: Activation::GeluErf };

impl Architecture for Family {
    fn name(&self) -> &'static str {
        "bert"
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
        let mut tiny = encoder::tiny(self.name(), Setting::U32(2));
        for layer in 0..2 {
            for tensor in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down"] {
                tiny = tiny.with_tensor(&format!("blk.{layer}.{tensor}.bias"));
            }
            for tensor in ["attn_q", "attn_k", "attn_v"] {
                tiny = tiny.with_tensor(&format!("blk.{layer}.{tensor}.weight"));
            }
        }
        tiny
    }
}
