use wootz_gguf::Metadata;
use wootz_graph::op::{ClampedGlu, Gating, SectionOrder, Sections};

use crate::error::ArchError;
use crate::rwkv::Rwkv;
use crate::ssm::Ssm;

/// Hyperparameters, as far as families share them.
#[derive(Clone, Debug, PartialEq)]
pub struct HParams {
    /// Prefix of the family's metadata keys.
    pub prefix: String,
    /// Layers.
    pub layers: u16,
    /// Columns of the residual stream.
    pub dim: u32,
    /// Entries of the vocabulary.
    pub vocab: u32,
    /// Positions that the model was trained for.
    pub context_length: u32,
    /// Query heads, by layer.
    pub heads: Vec<u32>,
    /// Key and value heads, by layer.
    pub kv_heads: Vec<u32>,
    /// Elements of a query or key head.
    pub k_dim: u32,
    /// Elements of a value head.
    pub v_dim: u32,
    /// Columns between the projections of the feed-forward block, by layer.
    pub feed_forward: Vec<u32>,
    /// The experts that take the place of the feed-forward block; `None` for a dense model.
    pub experts: Option<Experts>,
    /// The state-space block of each layer, in families that have one.
    pub ssm: Option<Ssm>,
    /// Sizes of a model of RWKV.
    pub rwkv: Option<Rwkv>,
    /// Added under the root of norms.
    pub norm_eps: f32,
    /// Rotary embedding of layers with full attention.
    pub rope: RopeParams,
    /// Rotary embedding of layers with a sliding window.
    pub window_rope: RopeParams,
    /// Sliding window, in positions.
    pub window: Option<u32>,
    /// Whether a layer has the sliding window, by layer.
    pub windowed: Vec<bool>,
    /// Factor on attention scores.
    pub attention_scale: f32,
    /// Cap on attention scores.
    pub attention_softcap: Option<f32>,
    /// Cap on logits.
    pub logit_softcap: Option<f32>,
    /// Factor on embeddings.
    pub embedding_scale: f32,
    /// Whether a token sees those before it alone, as models that generate need it.
    pub causal: bool,
    /// Kinds of tokens that have an embedding of their own; 0 for none.
    pub token_types: u32,
    /// How the rows of a text become its embedding, where the file says so.
    pub pooling: Option<Pooling>,
    /// Labels that the classifier scores.
    pub labels: Vec<String>,
}

/// Experts of a layer: gated feed-forward blocks, some of which each row goes through.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Experts of a layer.
    pub count: u32,
    /// Experts that a row goes through.
    pub used: u32,
    /// Columns between the projections of an expert.
    pub feed_forward: u32,
    /// How scores become weights.
    pub gating: Gating,
    /// Whether the weights of the chosen experts are divided by their sum.
    pub normalize: bool,
    /// The unit of gpt-oss in place of a gate with SiLU.
    pub clamped: Option<ClampedGlu>,
    /// Columns between the projections of the expert that every row goes through besides, where there is one.
    pub shared: Option<u32>,
}

/// How the rows of a text become one embedding or score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// Not at all: each row is an embedding.
    None,
    /// The mean of all rows.
    Mean,
    /// The first row.
    Cls,
    /// The last row.
    Last,
    /// Scores that a classifier gives one row.
    Rank,
}

impl Pooling {
    /// Every way, by the number that files give it.
    pub const ALL: [Pooling; 5] = [Pooling::None, Pooling::Mean, Pooling::Cls, Pooling::Last, Pooling::Rank];

    /// The name that command lines use.
    pub fn name(self) -> &'static str {
        match self {
            Pooling::None => "none",
            Pooling::Mean => "mean",
            Pooling::Cls => "cls",
            Pooling::Last => "last",
            Pooling::Rank => "rank",
        }
    }
}

/// Rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeParams {
    /// Rotated elements of a head.
    pub dims: u32,
    /// Base of the frequencies.
    pub base: f32,
    /// How positions beyond the first training context are scaled.
    pub scaling: RopeScaling,
    /// Factor on the rotated elements.
    pub magnitude: f32,
    /// Streams of positions, where the family has several.
    pub sections: Option<Sections>,
}

/// How rotary embedding is stretched to longer contexts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Positions are divided by `factor`.
    Linear {
        /// The divisor.
        factor: f32,
    },
    /// YaRN.
    Yarn {
        /// The divisor.
        factor: f32,
        /// Share of extrapolation.
        ext_factor: f32,
        /// Rotations above which a dimension keeps its angle.
        beta_fast: f32,
        /// Rotations below which a dimension is scaled.
        beta_slow: f32,
        /// Context of the first training.
        original_context: u32,
    },
}

/// Reads keys under a family's prefix.
pub(crate) struct Keys<'a> {
    meta: &'a Metadata,
    prefix: &'a str,
}

impl<'a> Keys<'a> {
    pub(crate) fn new(meta: &'a Metadata, prefix: &'a str) -> Self {
        Keys { meta, prefix }
    }

    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    pub(crate) fn u32(&self, name: &str) -> Result<u32, ArchError> {
        Ok(self.meta.u32(&self.key(name))?)
    }

    pub(crate) fn opt_u32(&self, name: &str) -> Result<Option<u32>, ArchError> {
        Ok(self.meta.opt_u32(&self.key(name))?)
    }

    pub(crate) fn opt_f32(&self, name: &str) -> Result<Option<f32>, ArchError> {
        Ok(self.meta.opt_f32(&self.key(name))?)
    }

    pub(crate) fn opt_bool(&self, name: &str) -> Result<Option<bool>, ArchError> {
        Ok(self.meta.opt_bool(&self.key(name))?)
    }

    fn opt_strings(&self, name: &str) -> Result<Option<Vec<String>>, ArchError> {
        let strings = self.meta.opt_strings(&self.key(name))?;
        Ok(strings.map(|list| list.iter().map(|text| String::from_utf8_lossy(text.0).into_owned()).collect()))
    }

    fn pooling(&self) -> Result<Option<Pooling>, ArchError> {
        const KEY: &str = "pooling_type";
        let Some(number) = self.opt_u32(KEY)? else { return Ok(None) };
        match Pooling::ALL.get(number as usize) {
            Some(pooling) => Ok(Some(*pooling)),
            None => Err(ArchError::Value {
                key: self.key(KEY),
                found: number.to_string(),
                expected: "0 (none), 1 (mean), 2 (cls), 3 (last) or 4 (rank)".to_owned(),
            }),
        }
    }

    pub(crate) fn opt_str(&self, name: &str) -> Result<Option<&'a str>, ArchError> {
        Ok(self.meta.opt_str(&self.key(name))?)
    }

    /// A number within bounds.
    pub(crate) fn bounded(&self, name: &str, low: u32, high: u32) -> Result<u32, ArchError> {
        let found = self.u32(name)?;
        self.check(name, found, low, high)
    }

    pub(crate) fn check(&self, name: &str, found: u32, low: u32, high: u32) -> Result<u32, ArchError> {
        if (low..=high).contains(&found) {
            return Ok(found);
        }
        Err(ArchError::Value {
            key: self.key(name),
            found: found.to_string(),
            expected: format!("a number from {low} to {high}"),
        })
    }

    /// The pairs of each stream of positions of a rotary embedding.
    pub(crate) fn sections(&self, order: SectionOrder) -> Result<Sections, ArchError> {
        const MOST: u32 = 4096;
        let key = self.key("rope.dimension_sections");
        let found = self.meta.u32s(&key)?;
        let fits = found.len() <= Sections::STREAMS as usize
            && found.iter().all(|count| *count <= MOST)
            && found.iter().any(|count| *count > 0);
        if !fits {
            return Err(ArchError::Value {
                key,
                found: format!("{found:?}"),
                expected: format!("up to {} numbers from 0 to {MOST}, not all of them 0", Sections::STREAMS),
            });
        }
        let mut counts = [0; Sections::STREAMS as usize];
        counts[..found.len()].copy_from_slice(&found);
        Ok(Sections { counts, order })
    }

    /// A number for each layer: one for all, or an array.
    pub(crate) fn per_layer(
        &self,
        name: &str,
        layers: u16,
        low: u32,
        high: u32,
    ) -> Result<Vec<u32>, ArchError> {
        let key = self.key(name);
        let layers = usize::from(layers);
        let list = match self.meta.get(&key).and_then(|v| v.as_array()) {
            Some(_) => self.meta.u32s(&key)?,
            None => vec![self.meta.u32(&key)?; layers],
        };
        if list.len() < layers {
            return Err(ArchError::Value {
                key,
                found: format!("an array of {}", list.len()),
                expected: format!("one number for each of {layers} layers"),
            });
        }
        for value in &list[..layers] {
            self.check(name, *value, low, high)?;
        }
        Ok(list[..layers].to_vec())
    }
}

/// The largest number of experts that is believed.
const MAX_EXPERTS: u32 = 4096;

impl Experts {
    /// Reads the experts of a family that has them in some of its files; `None` where the file names none. A file that does
    /// not say how wide they are has them as wide as its feed-forward blocks.
    pub(crate) fn read(
        keys: &Keys<'_>,
        feed_forward: u32,
        normalize: bool,
    ) -> Result<Option<Experts>, ArchError> {
        if keys.opt_u32("expert_count")?.unwrap_or(0) == 0 {
            return Ok(None);
        }
        Experts::required(keys, feed_forward, normalize).map(Some)
    }

    /// As [`Experts::read`], of a family whose files all have them.
    pub(crate) fn required(
        keys: &Keys<'_>,
        feed_forward: u32,
        normalize: bool,
    ) -> Result<Experts, ArchError> {
        const WIDTH: &str = "expert_feed_forward_length";
        let count = keys.bounded("expert_count", 1, MAX_EXPERTS)?;
        let width = keys.opt_u32(WIDTH)?.unwrap_or(feed_forward);
        Ok(Experts {
            count,
            used: keys.bounded("expert_used_count", 1, count)?,
            feed_forward: keys.check(WIDTH, width, 1, MAX_SIZE)?,
            gating: Gating::Softmax,
            normalize,
            clamped: None,
            shared: None,
        })
    }
}

/// The largest number of columns or entries that is believed: larger ones overflow sizes before they fit a machine.
pub(crate) const MAX_SIZE: u32 = 1 << 24;

impl HParams {
    /// Reads what most families share; a family then changes what it has otherwise.
    ///
    /// # Errors
    /// A key is missing, has the wrong type, or contradicts another.
    pub(crate) fn read(meta: &Metadata, prefix: &str) -> Result<HParams, ArchError> {
        HParams::read_layers(meta, prefix, true)
    }

    /// As [`read`](Self::read), for families whose layers have neither attention nor feed-forward blocks.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn read_recurrent(meta: &Metadata, prefix: &str) -> Result<HParams, ArchError> {
        HParams::read_layers(meta, prefix, false)
    }

    fn read_layers(meta: &Metadata, prefix: &str, attends: bool) -> Result<HParams, ArchError> {
        let keys = Keys::new(meta, prefix);
        let layers = keys.bounded("block_count", 1, 4096)? as u16;
        let dim = keys.bounded("embedding_length", 1, MAX_SIZE)?;
        let none = || vec![0; usize::from(layers)];
        let heads = if attends { keys.per_layer("attention.head_count", layers, 1, 4096)? } else { none() };
        let kv_heads = match meta.get(&keys.key("attention.head_count_kv")) {
            Some(_) if attends => keys.per_layer("attention.head_count_kv", layers, 1, 4096)?,
            _ => heads.clone(),
        };
        for (q, kv) in heads.iter().zip(&kv_heads).filter(|_| attends) {
            if !q.is_multiple_of(*kv) {
                return Err(ArchError::Value {
                    key: keys.key("attention.head_count_kv"),
                    found: kv.to_string(),
                    expected: format!("a divisor of {q}, the number of heads"),
                });
            }
        }
        let natural = dim.checked_div(heads[0]).unwrap_or(0);
        let dim_of = |name: &str| -> Result<u32, ArchError> {
            if !attends {
                return Ok(0);
            }
            let found = keys.opt_u32(name)?.unwrap_or(natural);
            keys.check(name, found, 1, 4096)
        };
        let (k_dim, v_dim) = (dim_of("attention.key_length")?, dim_of("attention.value_length")?);
        let vocab = match meta.get("tokenizer.ggml.tokens").and_then(|v| v.as_array()) {
            Some(tokens) => keys.check("vocab_size", tokens.len() as u32, 1, MAX_SIZE)?,
            None => keys.bounded("vocab_size", 1, MAX_SIZE)?,
        };
        let rope = RopeParams::read(&keys, k_dim)?;
        Ok(HParams {
            prefix: prefix.to_owned(),
            layers,
            dim,
            vocab,
            context_length: keys.bounded("context_length", 1, 1 << 30)?,
            feed_forward: match attends {
                true => keys.per_layer("feed_forward_length", layers, 1, MAX_SIZE)?,
                false => none(),
            },
            experts: None,
            ssm: None,
            rwkv: None,
            norm_eps: keys.opt_f32("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-5),
            window_rope: RopeParams {
                base: keys.opt_f32("rope.freq_base_swa")?.unwrap_or(10_000.0),
                scaling: RopeScaling::None,
                ..rope.clone()
            },
            rope,
            window: None,
            windowed: vec![false; usize::from(layers)],
            attention_scale: keys.opt_f32("attention.scale")?.unwrap_or(1.0 / (k_dim.max(1) as f32).sqrt()),
            attention_softcap: None,
            logit_softcap: None,
            embedding_scale: 1.0,
            causal: true,
            token_types: 0,
            pooling: keys.pooling()?,
            // A classifier without names for its labels has one.
            labels: keys
                .opt_strings("classifier.output_labels")?
                .filter(|labels| !labels.is_empty())
                .unwrap_or_else(|| vec!["score".to_owned()]),
            heads,
            kv_heads,
            k_dim,
            v_dim,
        })
    }
}

impl RopeParams {
    fn read(keys: &Keys<'_>, head_dim: u32) -> Result<RopeParams, ArchError> {
        let dims = keys.opt_u32("rope.dimension_count")?.unwrap_or(head_dim);
        // Layers without heads rotate nothing, whatever the file says.
        let dims = if head_dim == 0 { 0 } else { keys.check("rope.dimension_count", dims, 0, head_dim)? };
        if !dims.is_multiple_of(2) {
            return Err(ArchError::Value {
                key: keys.key("rope.dimension_count"),
                found: dims.to_string(),
                expected: "an even number".to_owned(),
            });
        }
        let factor = match keys.opt_f32("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            None => keys.opt_f32("rope.scale_linear")?,
        };
        let factor = factor.filter(|f| *f > 0.0 && f.is_finite());
        let scaling = match (keys.opt_str("rope.scaling.type")?, factor) {
            (Some("none"), _) | (None | Some("linear"), None) => RopeScaling::None,
            (None | Some("linear"), Some(factor)) => RopeScaling::Linear { factor },
            (Some("yarn"), factor) => RopeScaling::Yarn {
                factor: factor.unwrap_or(1.0),
                ext_factor: keys.opt_f32("rope.scaling.yarn_ext_factor")?.unwrap_or(1.0),
                beta_fast: keys.opt_f32("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: keys.opt_f32("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                original_context: match keys.opt_u32("rope.scaling.original_context_length")? {
                    Some(n) => n.max(1),
                    None => keys.u32("context_length")?.max(1),
                },
            },
            (Some(other), _) => {
                return Err(ArchError::Value {
                    key: keys.key("rope.scaling.type"),
                    found: format!("{other:?}"),
                    expected: "none, linear or yarn".to_owned(),
                });
            }
        };
        Ok(RopeParams {
            dims,
            base: keys.opt_f32("rope.freq_base")?.unwrap_or(10_000.0),
            scaling,
            magnitude: keys.opt_f32("rope.scaling.attn_factor")?.unwrap_or(1.0),
            sections: None,
        })
    }
}
