//! Model families as graph builders.
//!
//! A family is one file: it reads its hyperparameters, names its weights and builds its graph. `architectures!` below
//! lists them.
#![forbid(unsafe_code)]

mod bert;
mod blocks;
mod encoder;
mod error;
mod gemma3;
mod gpt_oss;
mod hparams;
mod llama;
mod mamba;
mod mamba2;
mod model;
mod nomic_bert;
mod qwen2;
mod qwen2moe;
mod qwen2vl;
mod qwen3;
mod qwen3moe;
mod qwen3vl;
mod qwen3vlmoe;
mod rwkv;
mod rwkv6;
mod rwkv7;
mod ssm;
mod tiny;

pub use error::ArchError;
pub use hparams::{Experts, HParams, Pooling, RopeParams, RopeScaling};
pub use model::Model;
pub use rwkv::{Ranks, Rwkv};
pub use ssm::Ssm;
pub use tiny::{Setting, TinyModel};

use wootz_gguf::Metadata;
use wootz_graph::{GraphBuilder, WeightSpec};

/// A model family.
pub trait Architecture: Sync {
    /// The value of `general.architecture`.
    fn name(&self) -> &'static str;

    /// Whether a token sees those before it alone, so that the family can generate text.
    fn causal(&self) -> bool {
        true
    }

    /// Reads the hyperparameters.
    ///
    /// # Errors
    /// A key is missing, has the wrong type, or contradicts another.
    fn hparams(&self, meta: &Metadata) -> Result<HParams, ArchError>;

    /// Names the weights and their shapes.
    fn weights(&self, hp: &HParams, spec: &mut WeightSpec);

    /// Builds the graph for the builder's key.
    fn graph(&self, hp: &HParams, b: &mut GraphBuilder<'_>);

    /// Elements of each recurrent state of a layer.
    fn states(&self, _hp: &HParams, _layer: u16) -> Vec<u32> {
        Vec::new()
    }

    /// Metadata of a model of two or three layers and about 100 KB, for tests.
    fn tiny(&self) -> TinyModel;
}

macro_rules! architectures {
    ($($module:ident),*) => {
        /// Every family that wootz knows.
        pub const ARCHITECTURES: &[&dyn Architecture] = &[$(&$module::Family),*];
    };
}

architectures!(
    llama, qwen2, qwen2moe, qwen2vl, qwen3, qwen3moe, qwen3vl, qwen3vlmoe, gemma3, gpt_oss, bert, nomic_bert,
    mamba, mamba2, rwkv6, rwkv7
);

/// The families that generate text.
pub fn decoders() -> impl Iterator<Item = &'static dyn Architecture> {
    ARCHITECTURES.iter().copied().filter(|arch| arch.causal())
}

/// The families whose tokens see the whole text.
pub fn encoders() -> impl Iterator<Item = &'static dyn Architecture> {
    ARCHITECTURES.iter().copied().filter(|arch| !arch.causal())
}

/// The weights that a model with these hyperparameters asks a file for.
pub fn weights(arch: &dyn Architecture, hp: &HParams) -> WeightSpec {
    let mut spec = WeightSpec::default();
    arch.weights(hp, &mut spec);
    if hp.pooling == Some(Pooling::Rank) {
        blocks::classifier_weights(hp, &mut spec);
    }
    spec
}

/// The family with this name.
///
/// # Errors
/// No family has it; the error lists those that are known.
pub fn find(name: &str) -> Result<&'static dyn Architecture, ArchError> {
    ARCHITECTURES.iter().find(|a| a.name() == name).copied().ok_or_else(|| ArchError::Unknown {
        name: name.to_owned(),
        known: ARCHITECTURES.iter().map(|a| a.name()).collect::<Vec<_>>().join(", "),
    })
}
