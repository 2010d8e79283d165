//! RWKV 6.

use wootz_gguf::Metadata;
use wootz_graph::op::{Activation, Lerp, Linear, WkvRule};
use wootz_graph::{GraphBuilder, ValueId, WeightSpec};

use crate::Architecture;
use crate::blocks::{name, project};
use crate::error::ArchError;
use crate::hparams::{HParams, MAX_SIZE};
use crate::rwkv::{self, Mix, Ranks, Rwkv};
use crate::tiny::{Setting, TinyModel};

pub(crate) struct Family;

/// What is mixed anew for each token, in the order of the weights that hold all five.
const PARTS: [char; 5] = ['w', 'k', 'v', 'r', 'g'];

impl Architecture for Family {
    fn name(&self) -> &'static str {
        "rwkv6"
    }

    fn hparams(&self, meta: &Metadata) -> Result<HParams, ArchError> {
        rwkv::hparams(meta, self.name(), |keys| {
            Ok(Ranks {
                mix: keys.bounded("time_mix_extra_dim", 1, MAX_SIZE)?,
                decay: keys.bounded("time_decay_extra_dim", 1, MAX_SIZE)?,
                ..Ranks::default()
            })
        })
    }

    fn weights(&self, hp: &HParams, spec: &mut WeightSpec) {
        let Some(rwkv) = &hp.rwkv else { return };
        let dim = u64::from(hp.dim);
        let (mix, decay) = (u64::from(rwkv.ranks.mix), u64::from(rwkv.ranks.decay));
        rwkv::weights(hp, rwkv, spec);
        for layer in 0..hp.layers {
            spec.matrix(name(layer, "time_mix_w1.weight"), 5 * mix, dim);
            spec.matrix(name(layer, "time_mix_w2.weight"), 5 * dim, mix);
            spec.vector(name(layer, "time_mix_lerp_x.weight"), dim);
            spec.matrix(name(layer, "time_mix_lerp_fused.weight"), 5, dim);
            spec.optional();
            // Files that were made earlier have a weight for each.
            for part in PARTS {
                spec.vector(name(layer, &format!("time_mix_lerp_{part}.weight")), dim);
                spec.optional();
            }
            let head_dim = u64::from(rwkv.head_dim);
            spec.matrix(name(layer, "time_mix_first.weight"), dim / head_dim, head_dim);
            spec.vector(name(layer, "time_mix_decay.weight"), dim);
            spec.matrix(name(layer, "time_mix_decay_w1.weight"), decay, dim);
            spec.matrix(name(layer, "time_mix_decay_w2.weight"), dim, decay);
            spec.matrix(name(layer, "time_mix_gate.weight"), dim, dim);
            spec.vector(name(layer, "channel_mix_lerp_r.weight"), dim);
            spec.matrix(name(layer, "channel_mix_receptance.weight"), dim, dim);
        }
    }

    fn graph(&self, hp: &HParams, b: &mut GraphBuilder<'_>) {
        rwkv::decoder(hp, b, true, |rwkv, b, layer, mix| time_mix(hp, rwkv, b, layer, mix));
    }

    fn states(&self, hp: &HParams, _layer: u16) -> Vec<u32> {
        rwkv::states(hp)
    }

    fn tiny(&self) -> TinyModel {
        // The stream is halved after the first of two layers.
        rwkv::tiny(self.name())
            .with("time_mix_extra_dim", Setting::U32(16))
            .with("time_decay_extra_dim", Setting::U32(32))
            .with("rescale_every_n_layers", Setting::U32(1))
            .with_layer_tensors(&["time_mix_lerp_fused.weight"])
    }
}

/// The time mix of a layer, up to its output projection.
fn time_mix(hp: &HParams, rwkv: &Rwkv, b: &mut GraphBuilder<'_>, layer: u16, mix: Mix) -> ValueId {
    let x = mix.by(b, layer, "time_mix_lerp_x", 0);
    let (first, second) =
        (b.weight(&name(layer, "time_mix_w1.weight")), b.weight(&name(layer, "time_mix_w2.weight")));
    let mut number = 0;
    let [w, k, v, r, g] = PARTS.map(|part| {
        let row = |weight, rows| Linear { weight, first: number * rows, rows, bias: None };
        let own = b.linear_part(x, row(first, rwkv.ranks.mix), "time_mix_w1");
        // With a cap of 1 this is tanh.
        let own = b.softcap(own, 1.0);
        let own = b.linear_part(own, row(second, hp.dim), "time_mix_w2");
        let alone = b.find_weight(&name(layer, &format!("time_mix_lerp_{part}.weight")));
        let row = match alone {
            Some(table) => (table, 0),
            None => (b.weight(&name(layer, "time_mix_lerp_fused.weight")), number),
        };
        number += 1;
        b.lerp(mix.x, mix.before, Some(own), Lerp { row: Some(row) }, "time_mix_lerp")
    });
    let r = project(b, layer, r, "time_mix_receptance");
    let k = project(b, layer, k, "time_mix_key");
    let v = project(b, layer, v, "time_mix_value");
    let g = project(b, layer, g, "time_mix_gate");
    let w = project(b, layer, w, "time_mix_decay_w1");
    let w = b.softcap(w, 1.0);
    let decay = b.weight(&name(layer, "time_mix_decay_w2.weight"));
    let bias = b.weight(&name(layer, "time_mix_decay.weight"));
    let w = b.linear(w, decay, Some(bias), "time_mix_decay_w2");
    let first = b.weight(&name(layer, "time_mix_first.weight"));
    let y = rwkv::recur(hp, rwkv, b, layer, &[r, k, v, w], WkvRule::Six { first });
    let y = rwkv::head_norm(b, layer, y, hp.dim / rwkv.head_dim);
    b.glu(g, y, Activation::Silu)
}
