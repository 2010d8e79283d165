//! Pieces of state-space models: Mamba and Mamba-2.

use wootz_graph::op::{Activation, ShortConv};
use wootz_graph::{GraphBuilder, ValueId, WeightSpec};

use crate::blocks::{self, name};
use crate::error::ArchError;
use crate::hparams::{HParams, Keys, MAX_SIZE};
use crate::tiny::{Setting, TinyModel};

/// A state-space block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ssm {
    /// Tokens that the convolution sees.
    pub conv_width: u32,
    /// Channels.
    pub inner: u32,
    /// States of a channel.
    pub state: u32,
    /// Heads of channels, each with a time step: Mamba has one a channel.
    pub heads: u32,
    /// Parts of the heads that share B and C.
    pub groups: u32,
    /// Columns of the time step before its own projection; 0 in Mamba-2, which has none.
    pub dt_rank: u32,
    /// Whether time step, B and C are normalised.
    pub norms: bool,
}

/// Elements of a state that are believed: larger ones fit no machine.
const MAX_STATE: u64 = 1 << 28;

/// Tokens of a convolution that are believed.
const MAX_WIDTH: u32 = 64;

impl Ssm {
    /// Reads the block of a Mamba model, or with `heads` of a Mamba-2.
    pub(crate) fn read(keys: &Keys<'_>, heads: bool) -> Result<Ssm, ArchError> {
        let conv_width = keys.bounded("ssm.conv_kernel", 2, MAX_WIDTH)?;
        let inner = keys.bounded("ssm.inner_size", 1, MAX_SIZE)?;
        let state = keys.bounded("ssm.state_size", 1, MAX_SIZE)?;
        let rank = keys.bounded("ssm.time_step_rank", 1, inner)?;
        let norms = keys.opt_bool("ssm.dt_b_c_rms")?.unwrap_or(false);
        let divides = |name: &str, part: u32, whole: u32| match whole.is_multiple_of(part) {
            true => Ok(part),
            false => Err(ArchError::Value {
                key: keys.key(name),
                found: part.to_string(),
                expected: format!("a divisor of {whole}"),
            }),
        };
        let ssm = match heads {
            false => Ssm { conv_width, inner, state, heads: inner, groups: 1, dt_rank: rank, norms },
            true => {
                let heads = divides("ssm.time_step_rank", rank, inner)?;
                let groups = keys.bounded("ssm.group_count", 1, heads)?;
                let groups = divides("ssm.group_count", groups, heads)?;
                Ssm { conv_width, inner, state, heads, groups, dt_rank: 0, norms }
            }
        };
        // Convolved columns are the largest matrix rows, states the largest caches.
        let columns = u64::from(inner) + 2 * u64::from(ssm.groups) * u64::from(state);
        let largest = (u64::from(inner) * u64::from(state)).max(columns * u64::from(conv_width));
        if largest > MAX_STATE {
            return Err(ArchError::Value {
                key: keys.key("ssm.state_size"),
                found: state.to_string(),
                expected: format!("states of at most {MAX_STATE} elements in all"),
            });
        }
        Ok(ssm)
    }

    /// Columns of B and C together.
    pub(crate) fn bc(&self) -> u32 {
        2 * self.groups * self.state
    }
}

/// Convolution of some channels, from `first` on, and its activation.
pub(crate) fn convolve(
    ssm: &Ssm,
    b: &mut GraphBuilder<'_>,
    layer: u16,
    x: ValueId,
    (index, first): (usize, u32),
    label: &'static str,
) -> ValueId {
    let weight = b.weight(&name(layer, "ssm_conv1d.weight"));
    let bias = b.find_weight(&name(layer, "ssm_conv1d.bias"));
    let cache = b.state_cache(layer, index);
    let x = b.short_conv(x, ShortConv { cache, weight, first, width: ssm.conv_width, bias }, label);
    b.activate(x, Activation::Silu)
}

/// Names what both families have in a layer: `in_rows` rows of the first projection, `channels` of the convolution.
pub(crate) fn layer_weights(
    hp: &HParams,
    ssm: &Ssm,
    layer: u16,
    (in_rows, channels): (u32, u32),
    spec: &mut WeightSpec,
) {
    let dim = u64::from(hp.dim);
    spec.vector(name(layer, "attn_norm.weight"), dim);
    spec.matrix(name(layer, "ssm_in.weight"), u64::from(in_rows), dim);
    spec.matrix(name(layer, "ssm_conv1d.weight"), u64::from(channels), u64::from(ssm.conv_width));
    spec.vector(name(layer, "ssm_conv1d.bias"), u64::from(channels));
    spec.matrix(name(layer, "ssm_out.weight"), dim, u64::from(ssm.inner));
}

/// A decoder whose layers are a norm and a state-space block, added to the stream. `block` computes a layer's block from
/// its normed input, up to the output projection.
pub(crate) fn decoder(
    hp: &HParams,
    b: &mut GraphBuilder<'_>,
    block: impl Fn(&Ssm, &mut GraphBuilder<'_>, u16, ValueId) -> ValueId,
) {
    let Some(ssm) = &hp.ssm else { return };
    let table = b.weight("token_embd.weight");
    let mut x = b.embed(table, hp.embedding_scale);
    for layer in 0..hp.layers {
        b.layer(Some(layer));
        let h = blocks::rms_norm(hp, b, x, &name(layer, "attn_norm.weight"), "attn_norm");
        let y = block(ssm, b, layer, h);
        let y = blocks::project(b, layer, y, "ssm_out");
        x = blocks::residual(hp, b, layer, x);
        x = b.add(x, y, "ssm_residual");
    }
    blocks::finish(hp, b, x);
}

/// A tiny model of a family.
pub(crate) fn tiny(prefix: &str) -> TinyModel {
    TinyModel::new(prefix)
        .with("attention.head_count", Setting::U32(0))
        .with("attention.head_count_kv", Setting::U32(0))
        .with("feed_forward_length", Setting::U32(0))
        .with("ssm.conv_kernel", Setting::U32(4))
        .with("ssm.inner_size", Setting::U32(256))
        .with("ssm.time_step_rank", Setting::U32(32))
}
