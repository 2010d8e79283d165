//! BERT, and models that keep its layout: MiniLM, BGE, E5, GTE, mxbai, RoBERTa.

use wootz_graph::op::Activation;

use crate::encoder::{self, Encoder, EncoderFamily};
use crate::tiny::{Setting, TinyModel};

pub(crate) struct Family;

impl EncoderFamily for Family {
    const NAME: &'static str = "bert";
    const ENCODER: Encoder = Encoder { rope: None, gated: false, activation: Activation::GeluErf };

    fn tiny_of() -> TinyModel {
        let mut tiny = encoder::tiny(Self::NAME, Setting::U32(2));
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
