//! Pieces of RWKV 6 and 7.

use wootz_gguf::Metadata;
use wootz_graph::op::{Activation, Lerp, Norm, NormKind, Wkv, WkvRule};
use wootz_graph::{GraphBuilder, Outputs, ValueId, WeightSpec};

use crate::blocks::{self, name, project};
use crate::error::ArchError;
use crate::hparams::{HParams, Keys, MAX_SIZE};
use crate::tiny::{Setting, TinyModel};

/// Sizes of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rwkv {
    /// Elements of a head.
    pub head_dim: u32,
    /// Columns between the projections of the channel mix.
    pub feed_forward: u32,
    /// Columns between the two projections of each mix of tokens, of decays, of rates of learning, of what is kept of the
    /// first layer's values, and of the gate; 0 for what the family or the file has not.
    pub ranks: Ranks,
    /// Layers after which the stream is halved; 0 for never.
    pub rescale: u32,
}

/// Columns between pairs of small projections.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[allow(missing_docs)]
pub struct Ranks {
    pub mix: u32,
    pub decay: u32,
    pub rate: u32,
    pub value: u32,
    pub gate: u32,
}

/// Added under the root of the norms of heads.
const HEAD_EPS: f32 = 64e-5;
/// Elements of a head that are believed: more fit no kernel.
const MAX_HEAD: u32 = 128;

/// The states of a layer: last rows of time mix and channel mix, and that of the recurrence.
pub(crate) fn states(hp: &HParams) -> Vec<u32> {
    hp.rwkv.iter().flat_map(|rwkv| [hp.dim, hp.dim, hp.dim * rwkv.head_dim]).collect()
}

/// Hyperparameters, with `ranks` as the family reads them.
pub(crate) fn hparams(
    meta: &Metadata,
    prefix: &str,
    ranks: impl Fn(&Keys<'_>) -> Result<Ranks, ArchError>,
) -> Result<HParams, ArchError> {
    let keys = Keys::new(meta, prefix);
    let mut hp = HParams::read_recurrent(meta, prefix)?;
    const HEAD: &str = "wkv.head_size";
    let head_dim = keys.bounded(HEAD, 1, MAX_HEAD)?;
    if !hp.dim.is_multiple_of(head_dim) {
        return Err(ArchError::Value {
            key: keys.key(HEAD),
            found: head_dim.to_string(),
            expected: format!("a divisor of {}", hp.dim),
        });
    }
    hp.norm_eps = keys.opt_f32("attention.layer_norm_epsilon")?.unwrap_or(1e-5);
    hp.rwkv = Some(Rwkv {
        head_dim,
        feed_forward: keys.bounded("feed_forward_length", 1, MAX_SIZE)?,
        ranks: ranks(&keys)?,
        rescale: keys.opt_u32("rescale_every_n_layers")?.unwrap_or(0),
    });
    Ok(hp)
}

/// Names the weights that both families have.
pub(crate) fn weights(hp: &HParams, rwkv: &Rwkv, spec: &mut WeightSpec) {
    let (dim, ff) = (u64::from(hp.dim), u64::from(rwkv.feed_forward));
    let norm = |spec: &mut WeightSpec, tensor: String| {
        spec.vector(format!("{tensor}.weight"), dim);
        spec.vector(format!("{tensor}.bias"), dim);
    };
    spec.matrix("token_embd.weight", u64::from(hp.vocab), dim);
    spec.matrix("output.weight", u64::from(hp.vocab), dim);
    norm(spec, "token_embd_norm".to_owned());
    norm(spec, "output_norm".to_owned());
    for layer in 0..hp.layers {
        for tensor in ["attn_norm", "attn_norm_2", "time_mix_ln"] {
            norm(spec, name(layer, tensor));
        }
        for tensor in ["key", "value", "receptance", "output"] {
            spec.matrix(name(layer, &format!("time_mix_{tensor}.weight")), dim, dim);
        }
        spec.vector(name(layer, "channel_mix_lerp_k.weight"), dim);
        spec.matrix(name(layer, "channel_mix_key.weight"), ff, dim);
        spec.matrix(name(layer, "channel_mix_value.weight"), dim, ff);
    }
}

/// Layer norm by the weights of a tensor.
pub(crate) fn norm(
    hp: &HParams,
    b: &mut GraphBuilder<'_>,
    x: ValueId,
    tensor: &str,
    label: &'static str,
) -> ValueId {
    let weight = Some(b.weight(&format!("{tensor}.weight")));
    let bias = Some(b.weight(&format!("{tensor}.bias")));
    b.norm(x, Norm { kind: NormKind::Layer, eps: hp.norm_eps, groups: 1, weight, bias }, label)
}

/// A row before, and what lies between it and the row itself.
#[derive(Clone, Copy)]
pub(crate) struct Mix {
    pub(crate) x: ValueId,
    pub(crate) before: ValueId,
}

impl Mix {
    /// By a row of a layer's weight.
    pub(crate) fn by(self, b: &mut GraphBuilder<'_>, layer: u16, tensor: &'static str, row: u32) -> ValueId {
        let table = b.weight(&name(layer, &format!("{tensor}.weight")));
        b.lerp(self.x, self.before, None, Lerp { row: Some((table, row)) }, tensor)
    }
}

/// The norm of each head of what a recurrence gives, with factors and summands for each column.
pub(crate) fn head_norm(b: &mut GraphBuilder<'_>, layer: u16, y: ValueId, heads: u32) -> ValueId {
    let norm = Norm { kind: NormKind::Layer, eps: HEAD_EPS, groups: heads, weight: None, bias: None };
    let y = b.norm(y, norm, "time_mix_ln");
    let (weight, bias) =
        (b.weight(&name(layer, "time_mix_ln.weight")), b.weight(&name(layer, "time_mix_ln.bias")));
    let y = b.mul_weight(y, weight, "time_mix_ln_scale");
    b.add_row(y, bias, 0, "time_mix_ln_bias")
}

/// The recurrence of a layer.
pub(crate) fn recur(
    hp: &HParams,
    rwkv: &Rwkv,
    b: &mut GraphBuilder<'_>,
    layer: u16,
    ins: &[ValueId],
    rule: WkvRule,
) -> ValueId {
    let cache = b.state_cache(layer, 2);
    b.wkv(ins, Wkv { cache, heads: hp.dim / rwkv.head_dim, rule })
}

/// A decoder whose layers are a time mix and a channel mix, each after a norm and added to the stream. `time_mix` computes
/// the first up to its output projection; with `gated` the channel mix has a receptance.
pub(crate) fn decoder(
    hp: &HParams,
    b: &mut GraphBuilder<'_>,
    gated: bool,
    mut time_mix: impl FnMut(&Rwkv, &mut GraphBuilder<'_>, u16, Mix) -> ValueId,
) {
    let Some(rwkv) = &hp.rwkv else { return };
    let table = b.weight("token_embd.weight");
    let x = b.embed(table, 1.0);
    let mut x = norm(hp, b, x, "token_embd_norm", "embd_norm");
    for layer in 0..hp.layers {
        b.layer(Some(layer));
        let h = norm(hp, b, x, &name(layer, "attn_norm"), "attn_norm");
        let cache = b.state_cache(layer, 0);
        let before = b.shift(h, cache, "time_shift");
        let y = time_mix(rwkv, b, layer, Mix { x: h, before });
        let y = project(b, layer, y, "time_mix_output");
        x = b.add(x, y, "time_mix_residual");
        let h = norm(hp, b, x, &name(layer, "attn_norm_2"), "channel_norm");
        let cache = b.state_cache(layer, 1);
        let before = b.shift(h, cache, "channel_shift");
        let [of_x, h, before] = [x, h, before].map(|value| blocks::residual(hp, b, layer, value));
        let y = channel_mix(b, layer, Mix { x: h, before }, gated);
        x = b.add(of_x, y, "channel_mix_residual");
        if rwkv.rescale > 0 && (u32::from(layer) + 1).is_multiple_of(rwkv.rescale) {
            x = b.scale(x, 0.5);
        }
    }
    b.layer(None);
    if b.key().outputs != Outputs::None {
        let h = norm(hp, b, x, "output_norm", "output_norm");
        blocks::head(hp, b, h);
    }
}

fn channel_mix(b: &mut GraphBuilder<'_>, layer: u16, mix: Mix, gated: bool) -> ValueId {
    let k = mix.by(b, layer, "channel_mix_lerp_k", 0);
    let k = project(b, layer, k, "channel_mix_key");
    let k = b.activate(k, Activation::ReluSquared);
    let v = project(b, layer, k, "channel_mix_value");
    if !gated {
        return v;
    }
    let r = mix.by(b, layer, "channel_mix_lerp_r", 0);
    let r = project(b, layer, r, "channel_mix_receptance");
    b.glu(r, v, Activation::Sigmoid)
}

/// A tiny model of a family.
pub(crate) fn tiny(prefix: &str) -> TinyModel {
    TinyModel::new(prefix)
        .with("attention.head_count", Setting::U32(0))
        .with("attention.layer_norm_epsilon", Setting::F32(1e-5))
        .with("wkv.head_size", Setting::U32(32))
}
