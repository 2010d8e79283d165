//! Mamba and Falcon Mamba.

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
        "mamba"
    }

    fn hparams(&self, meta: &Metadata) -> Result<HParams, ArchError> {
        let mut hp = HParams::read_recurrent(meta, self.name())?;
        hp.ssm = Some(Ssm::read(&Keys::new(meta, self.name()), false)?);
        Ok(hp)
    }

    fn weights(&self, hp: &HParams, spec: &mut WeightSpec) {
        let Some(ssm) = &hp.ssm else { return };
        let (inner, rank) = (u64::from(ssm.inner), u64::from(ssm.dt_rank));
        blocks::model_weights(hp, spec);
        for layer in 0..hp.layers {
            ssm::layer_weights(hp, ssm, layer, (2 * ssm.inner, ssm.inner), spec);
            spec.matrix(name(layer, "ssm_x.weight"), rank + u64::from(ssm.bc()), inner);
            spec.matrix(name(layer, "ssm_dt.weight"), inner, rank);
            spec.vector(name(layer, "ssm_dt.bias"), inner);
            spec.matrix(name(layer, "ssm_a"), inner, u64::from(ssm.state));
            spec.vector(name(layer, "ssm_d"), inner);
        }
    }

    fn graph(&self, hp: &HParams, b: &mut GraphBuilder<'_>) {
        ssm::decoder(hp, b, |ssm, b, layer, h| block(hp, ssm, b, layer, h));
    }

    fn states(&self, hp: &HParams, _layer: u16) -> Vec<u32> {
        hp.ssm.iter().flat_map(|ssm| [(ssm.conv_width - 1) * ssm.inner, ssm.state * ssm.inner]).collect()
    }

    fn tiny(&self) -> TinyModel {
        ssm::tiny(self.name())
            .with("ssm.state_size", Setting::U32(16))
            .with("ssm.dt_b_c_rms", Setting::Bool(true))
    }
}

/// The block of a layer, up to its output projection.
fn block(hp: &HParams, ssm: &Ssm, b: &mut GraphBuilder<'_>, layer: u16, h: ValueId) -> ValueId {
    let part = |b: &mut GraphBuilder<'_>, x, tensor, first, rows, label| {
        let weight = b.weight(&name(layer, tensor));
        b.linear_part(x, Linear { weight, first, rows, bias: None }, label)
    };
    let x = part(b, h, "ssm_in.weight", 0, ssm.inner, "ssm_x");
    let z = part(b, h, "ssm_in.weight", ssm.inner, ssm.inner, "ssm_z");
    let x = ssm::convolve(ssm, b, layer, x, (0, 0), "ssm_conv");
    let mut dt = part(b, x, "ssm_x.weight", 0, ssm.dt_rank, "ssm_dt_low");
    let mut bc = part(b, x, "ssm_x.weight", ssm.dt_rank, ssm.bc(), "ssm_bc");
    if ssm.norms {
        let norm = |groups| Norm { kind: NormKind::Rms, eps: hp.norm_eps, groups, weight: None, bias: None };
        dt = b.norm(dt, norm(1), "ssm_dt_norm");
        // B and C, each by itself.
        bc = b.norm(bc, norm(2), "ssm_bc_norm");
    }
    let dt = blocks::project(b, layer, dt, "ssm_dt");
    let (a, d) = (b.weight(&name(layer, "ssm_a")), b.weight(&name(layer, "ssm_d")));
    let cache = b.state_cache(layer, 1);
    let scan = Scan { cache, heads: ssm.heads, head_dim: 1, state: ssm.state, groups: 1, a, d };
    let y = b.scan(x, dt, bc, scan);
    let (y, z) = (blocks::residual(hp, b, layer, y), blocks::residual(hp, b, layer, z));
    b.glu(z, y, Activation::Silu)
}
