//! Nomic's BERT: rotary positions, one matrix for query, key and value, a gated feed-forward block.

use wootz_graph::op::{Activation, RopeStyle};

use crate::encoder::{self, Encoder, EncoderFamily};
use crate::tiny::{Setting, TinyModel};

pub(crate) struct Family;

impl EncoderFamily for Family {
    const NAME: &'static str = "nomic-bert";
    const ENCODER: Encoder =
        Encoder { rope: Some(RopeStyle::Halves), gated: true, activation: Activation::Silu };

    fn tiny_of() -> TinyModel {
        let tiny = encoder::tiny(Self::NAME, Setting::U32(1)).with("rope.freq_base", Setting::F32(1000.0));
        (0..2).fold(tiny, |tiny, layer| tiny.with_tensor(&format!("blk.{layer}.attn_qkv.weight")))
    }
}
