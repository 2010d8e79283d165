use std::sync::Arc;

use wootz_gguf::Metadata;
use wootz_graph::{CacheSpec, Graph, GraphBuilder, GraphError, GraphKey, Reach, Wants, WeightTable};
use wootz_quant::WeightType;

use crate::Architecture;
use crate::error::ArchError;
use crate::hparams::{HParams, Pooling};

/// A model of a family: hyperparameters and weights, but not the weights' bytes.
#[derive(Clone)]
pub struct Model {
    arch: &'static dyn Architecture,
    hparams: HParams,
    weights: Arc<WeightTable>,
    caches: Vec<CacheSpec>,
    reaches: Vec<Reach>,
}

impl Model {
    /// Reads a model's metadata and finds its weights; `find` looks a tensor's type, rows and columns up by name.
    ///
    /// # Errors
    /// The family is unknown, a key is missing or wrong, or a tensor is missing or has the wrong shape.
    pub fn new(
        meta: &Metadata,
        find: impl Fn(&str) -> Option<(WeightType, u64, u64)>,
    ) -> Result<Model, ArchError> {
        let arch = crate::find(meta.str("general.architecture")?)?;
        let hparams = arch.hparams(meta)?;
        let weights = Arc::new(WeightTable::resolve(&crate::weights(arch, &hparams), find)?);
        let (caches, reaches) = caches(arch, &hparams);
        Ok(Model { arch, hparams, weights, caches, reaches })
    }

    /// The family.
    pub fn architecture(&self) -> &'static dyn Architecture {
        self.arch
    }

    /// Hyperparameters.
    pub fn hparams(&self) -> &HParams {
        &self.hparams
    }

    /// Weights by id and name.
    pub fn weights(&self) -> &Arc<WeightTable> {
        &self.weights
    }

    /// Caches, by the ids that graphs use.
    pub fn caches(&self) -> &[CacheSpec] {
        &self.caches
    }

    /// What the caches of each group hold.
    pub fn reaches(&self) -> &[Reach] {
        &self.reaches
    }

    /// What the model is made to give: logits, the rows of embeddings, or scores.
    pub fn wants(&self) -> Wants {
        match self.hparams.pooling {
            Some(Pooling::Rank) => Wants::Scores,
            Some(Pooling::Mean | Pooling::Cls | Pooling::Last) => Wants::Hidden,
            Some(Pooling::None) | None if self.hparams.causal => Wants::Logits,
            Some(Pooling::None) | None => Wants::Hidden,
        }
    }

    /// The graph for a key.
    ///
    /// # Errors
    /// Weights and hyperparameters do not fit together.
    pub fn graph(&self, key: GraphKey) -> Result<Graph, GraphError> {
        let mut builder = GraphBuilder::new(key, &self.weights, self.caches.clone());
        self.arch.graph(&self.hparams, &mut builder);
        builder.finish()
    }
}

/// The caches of all layers, those of a layer one after the other: keys and values, then states. Caches with one reach
/// are a group, as they share block tables.
fn caches(arch: &dyn Architecture, hp: &HParams) -> (Vec<CacheSpec>, Vec<Reach>) {
    let attends = |layer: u16| hp.kv_heads[usize::from(layer)] > 0;
    let of_attention = |layer: u16| match hp.window.filter(|_| hp.windowed[usize::from(layer)]) {
        Some(window) => Reach::Window(window),
        None => Reach::Full,
    };
    let attention: Vec<Reach> = (0..hp.layers).filter(|l| attends(*l)).map(of_attention).collect();
    let has_states = (0..hp.layers).any(|layer| !arch.states(hp, layer).is_empty());
    let mut reaches = Vec::new();
    reaches.extend(attention.contains(&Reach::Full).then_some(Reach::Full));
    reaches.extend(attention.iter().find(|reach| **reach != Reach::Full).copied());
    reaches.extend(has_states.then_some(Reach::State));
    let group = |reach: Reach| reaches.iter().position(|r| *r == reach).unwrap_or(0) as u32;
    let mut caches = Vec::new();
    for layer in 0..hp.layers {
        caches.extend(attends(layer).then(|| CacheSpec {
            layer,
            group: group(of_attention(layer)),
            kv_heads: hp.kv_heads[usize::from(layer)],
            k_dim: hp.k_dim,
            v_dim: hp.v_dim,
            state: 0,
        }));
        let states = arch.states(hp, layer).into_iter();
        caches.extend(states.map(|elements| CacheSpec::of_state(layer, group(Reach::State), elements)));
    }
    (caches, reaches)
}
