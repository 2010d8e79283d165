//! Mamba-2.

use wootz_gguf::Metadata;
use wootz_graph::op::{Activation, Linear, Norm, NormKind, Scan};
use wootz_graph::{GraphBuilder, ValueId, WeightSpec};

use crate::Architecture;
use crate::blocks::{self, name};
use crate::error::ArchError;
use crate::hparams::{HParams, Keys};
use crate::ssm::{self, Ssm};
use crate::tiny::{Setting, TinyModel};

pub(crate) struct Family;

impl Architecture for Family {
    fn name(&self) -> &'static str {
        "mamba2"
    }

    fn hparams(&self, meta: &Metadata) -> Result<HParams, ArchError> {
        let mut hp = HParams::read_recurrent(meta, self.name())?;
        hp.ssm = Some(Ssm::read(&Keys::new(meta, self.name()), true)?);
        Ok(hp)
    }

    fn weights(&self, hp: &HParams, spec: &mut WeightSpec) {
        let Some(ssm) = &hp.ssm else { return };
        let (heads, groups) = (u64::from(ssm.heads), u64::from(ssm.groups));
        blocks::model_weights(hp, spec);
        for layer in 0..hp.layers {
            let rows = 2 * ssm.inner + ssm.bc() + ssm.heads;
            ssm::layer_weights(hp, ssm, layer, (rows, ssm.inner + ssm.bc()), spec);
            spec.vector(name(layer, "ssm_dt.bias"), heads);
            spec.matrix(name(layer, "ssm_a"), heads, 1);
            spec.matrix(name(layer, "ssm_d"), heads, 1);
            spec.matrix(name(layer, "ssm_norm.weight"), groups, u64::from(ssm.inner) / groups);
        }
    }

    fn graph(&self, hp: &HParams, b: &mut GraphBuilder<'_>) {
        ssm::decoder(hp, b, |ssm, b, layer, h| block(hp, ssm, b, layer, h));
    }

    fn states(&self, hp: &HParams, _layer: u16) -> Vec<u32> {
        let of = |ssm: &Ssm| {
            let kept = ssm.conv_width - 1;
            [kept * ssm.inner, kept * ssm.bc(), ssm.state * ssm.inner]
        };
        hp.ssm.iter().flat_map(of).collect()
    }

    fn tiny(&self) -> TinyModel {
        ssm::tiny(self.name())
            .with("ssm.time_step_rank", Setting::U32(8))
            .with("ssm.state_size", Setting::U32(32))
            .with("ssm.group_count", Setting::U32(2))
    }
}

/// The block of a layer, up to its output projection.
fn block(hp: &HParams, ssm: &Ssm, b: &mut GraphBuilder<'_>, layer: u16, h: ValueId) -> ValueId {
    // One matrix gives z, x, B and C, and the time steps, in this order.
    let weight = b.weight(&name(layer, "ssm_in.weight"));
    let mut first = 0;
    let [z, x, bc, dt] =
        [(ssm.inner, "ssm_z"), (ssm.inner, "ssm_x"), (ssm.bc(), "ssm_bc"), (ssm.heads, "ssm_dt")].map(
            |(rows, label)| {
                first += rows;
                b.linear_part(h, Linear { weight, first: first - rows, rows, bias: None }, label)
            },
        );
    let x = ssm::convolve(ssm, b, layer, x, (0, 0), "ssm_conv_x");
    let bc = ssm::convolve(ssm, b, layer, bc, (1, ssm.inner), "ssm_conv_bc");
    let bias = b.weight(&name(layer, "ssm_dt.bias"));
    let dt = b.add_row(dt, bias, 0, "ssm_dt_bias");
    let (a, d) = (b.weight(&name(layer, "ssm_a")), b.weight(&name(layer, "ssm_d")));
    let Ssm { heads, groups, state, .. } = *ssm;
    let cache = b.state_cache(layer, 2);
    let y = b.scan(x, dt, bc, Scan { cache, heads, head_dim: ssm.inner / heads, state, groups, a, d });
    let (y, z) = (blocks::residual(hp, b, layer, y), blocks::residual(hp, b, layer, z));
    let y = b.glu(z, y, Activation::Silu);
    let norm = Norm { kind: NormKind::Rms, eps: hp.norm_eps, groups, weight: None, bias: None };
    let factors = b.weight(&name(layer, "ssm_norm.weight"));
    if groups == 1 {
        return b.norm(y, Norm { weight: Some(factors), ..norm }, "ssm_norm");
    }
    // Each group has factors of its own.
    let y = b.norm(y, norm, "ssm_norm");
    b.mul_weight(y, factors, "ssm_norm_scale")
}
