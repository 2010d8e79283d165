use std::sync::Arc;

use wootz_gguf::Metadata;
use wootz_graph::{CacheSpec, Graph, GraphBuilder, GraphError, GraphKey, Wants, WeightTable};
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
    windows: Vec<Option<u32>>,
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
        // Caches with one reach share block tables: group 0 sees everything, group 1 looks through the window.
        let windowed = hparams.window.filter(|_| hparams.windowed.contains(&true));
        let windows = if hparams.windowed.contains(&false) || windowed.is_none() {
            [None].into_iter().chain(windowed.map(Some)).collect()
        } else {
            vec![windowed]
        };
        let caches = (0..hparams.layers)
            .map(|layer| {
                let l = usize::from(layer);
                let window = hparams.window.filter(|_| hparams.windowed[l]);
                CacheSpec {
                    layer,
                    group: windows.iter().position(|w| *w == window).unwrap_or(0) as u32,
                    kv_heads: hparams.kv_heads[l],
                    k_dim: hparams.k_dim,
                    v_dim: hparams.v_dim,
                }
            })
            .collect();
        Ok(Model { arch, hparams, weights, caches, windows })
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

    /// KV caches, by the ids that graphs use.
    pub fn caches(&self) -> &[CacheSpec] {
        &self.caches
    }

    /// The window of each cache group.
    pub fn windows(&self) -> &[Option<u32>] {
        &self.windows
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
