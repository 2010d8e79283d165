//! RWKV 7.

use wootz_gguf::Metadata;
use wootz_graph::op::{Activation, Bonus, Lerp, Norm, NormKind, WkvRule};
use wootz_graph::{GraphBuilder, ValueId, WeightSpec};

use crate::Architecture;
use crate::blocks::{name, project};
use crate::error::ArchError;
use crate::hparams::{HParams, MAX_SIZE};
use crate::rwkv::{self, Mix, Ranks, Rwkv};
use crate::tiny::{Setting, TinyModel};

pub(crate) struct Family;

/// The least length of what keys are divided by.
const KEY_EPS: f32 = 1e-12;

impl Architecture for Family {
    fn name(&self) -> &'static str {
        "rwkv7"
    }

    fn hparams(&self, meta: &Metadata) -> Result<HParams, ArchError> {
        rwkv::hparams(meta, self.name(), |keys| {
            let gate = keys.opt_u32("attention.gate_lora_rank")?.unwrap_or(0);
            Ok(Ranks {
                mix: 0,
                decay: keys.bounded("attention.decay_lora_rank", 1, MAX_SIZE)?,
                rate: keys.bounded("attention.iclr_lora_rank", 1, MAX_SIZE)?,
                value: keys.bounded("attention.value_residual_mix_lora_rank", 1, MAX_SIZE)?,
                gate: keys.check("attention.gate_lora_rank", gate, 0, MAX_SIZE)?,
            })
        })
    }

    fn weights(&self, hp: &HParams, spec: &mut WeightSpec) {
        let Some(rwkv) = &hp.rwkv else { return };
        let dim = u64::from(hp.dim);
        let Ranks { decay, rate, value, gate, .. } = rwkv.ranks;
        rwkv::weights(hp, rwkv, spec);
        for layer in 0..hp.layers {
            let mixed = if gate > 0 { 6 } else { 5 };
            spec.matrix(name(layer, "time_mix_lerp_fused.weight"), mixed, dim);
            // The first layer's values are what others keep some of.
            let value = if layer == 0 { 0 } else { value };
            for (part, rank) in [('w', decay), ('a', rate), ('v', value), ('g', gate)] {
                if rank == 0 {
                    continue;
                }
                let rank = u64::from(rank);
                spec.matrix(name(layer, &format!("time_mix_{part}1.weight")), rank, dim);
                spec.matrix(name(layer, &format!("time_mix_{part}2.weight")), dim, rank);
                if part != 'g' {
                    spec.vector(name(layer, &format!("time_mix_{part}0.weight")), dim);
                }
            }
            for tensor in ["k_k", "k_a", "r_k"] {
                spec.vector(name(layer, &format!("time_mix_{tensor}.weight")), dim);
            }
        }
    }

    fn graph(&self, hp: &HParams, b: &mut GraphBuilder<'_>) {
        let mut values = None;
        rwkv::decoder(hp, b, false, |rwkv, b, layer, mix| time_mix(hp, rwkv, b, layer, mix, &mut values));
    }

    fn states(&self, hp: &HParams, _layer: u16) -> Vec<u32> {
        rwkv::states(hp)
    }

    fn tiny(&self) -> TinyModel {
        rwkv::tiny(self.name())
            .with("attention.decay_lora_rank", Setting::U32(32))
            .with("attention.iclr_lora_rank", Setting::U32(16))
            .with("attention.value_residual_mix_lora_rank", Setting::U32(16))
            .with("attention.gate_lora_rank", Setting::U32(48))
    }
}

/// Two small products of a part, with an activation between them, and a summand.
fn small(
    b: &mut GraphBuilder<'_>,
    layer: u16,
    x: ValueId,
    [first, second]: [&'static str; 2],
    between: impl Fn(&mut GraphBuilder<'_>, ValueId) -> ValueId,
    bias: Option<&str>,
) -> ValueId {
    let x = project(b, layer, x, first);
    let x = between(b, x);
    let weight = b.weight(&name(layer, &format!("{second}.weight")));
    let bias = bias.map(|tensor| b.weight(&name(layer, tensor)));
    b.linear(x, weight, bias, second)
}

/// The time mix of a layer, up to its output projection; `values` are those of the first layer.
fn time_mix(
    hp: &HParams,
    rwkv: &Rwkv,
    b: &mut GraphBuilder<'_>,
    layer: u16,
    mix: Mix,
    values: &mut Option<ValueId>,
) -> ValueId {
    let heads = hp.dim / rwkv.head_dim;
    let same = |_: &mut GraphBuilder<'_>, x: ValueId| x;
    let mixed = |b: &mut GraphBuilder<'_>, row: u32| mix.by(b, layer, "time_mix_lerp_fused", row);
    let r = mixed(b, 0);
    let r = project(b, layer, r, "time_mix_receptance");
    let w = mixed(b, 1);
    // With a cap of 1 this is tanh.
    let tanh = |b: &mut GraphBuilder<'_>, x: ValueId| b.softcap(x, 1.0);
    let w = small(b, layer, w, ["time_mix_w1", "time_mix_w2"], tanh, Some("time_mix_w0.weight"));
    let k = mixed(b, 2);
    let k = project(b, layer, k, "time_mix_key");
    let xv = mixed(b, 3);
    let v = project(b, layer, xv, "time_mix_value");
    let v = match *values {
        None => *values.insert(v),
        Some(first) => {
            let m = small(b, layer, xv, ["time_mix_v1", "time_mix_v2"], same, Some("time_mix_v0.weight"));
            let m = b.activate(m, Activation::Sigmoid);
            b.lerp(v, first, Some(m), Lerp { row: None }, "value_residual")
        }
    };
    let a = mixed(b, 4);
    let a = small(b, layer, a, ["time_mix_a1", "time_mix_a2"], same, Some("time_mix_a0.weight"));
    let a = b.activate(a, Activation::Sigmoid);
    // What is looked up to be removed.
    let factors = b.weight(&name(layer, "time_mix_k_k.weight"));
    let removed = b.mul_weight(k, factors, "removal_key");
    let norm = Norm { kind: NormKind::L2, eps: KEY_EPS, groups: heads, weight: None, bias: None };
    let removed = b.norm(removed, norm, "removal_norm");
    // k * (1 + (a - 1) * k_a): from k less k * k_a, for a of 0, to k.
    let factors = b.weight(&name(layer, "time_mix_k_a.weight"));
    let part = b.mul_weight(k, factors, "key_part");
    let part = b.scale(part, -1.0);
    let least = b.add(k, part, "key_least");
    let k = b.lerp(least, k, Some(a), Lerp { row: None }, "key");
    let given = b.mul(removed, a, "removal_given");
    let removed = b.scale(removed, -1.0);
    let y = rwkv::recur(hp, rwkv, b, layer, &[r, k, v, w, removed, given], WkvRule::Seven);
    let y = rwkv::head_norm(b, layer, y, heads);
    let weight = b.weight(&name(layer, "time_mix_r_k.weight"));
    let own = b.bonus(r, k, v, Bonus { heads, weight });
    let y = b.add(y, own, "time_mix_bonus");
    if rwkv.ranks.gate == 0 {
        return y;
    }
    let g = mixed(b, 5);
    let sigmoid = |b: &mut GraphBuilder<'_>, x: ValueId| b.activate(x, Activation::Sigmoid);
    let g = small(b, layer, g, ["time_mix_g1", "time_mix_g2"], sigmoid, None);
    b.mul(y, g, "time_mix_gate")
}
