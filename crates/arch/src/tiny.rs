//! What makes a small random model of a family.

use crate::blocks;

/// A metadata value of a [`TinyModel`].
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Setting {
    U32(u32),
    I32s(Vec<i32>),
    F32(f32),
    Str(String),
    Strs(Vec<String>),
    Bool(bool),
}

/// Metadata of a model of a few narrow layers, and the optional tensors that it has.
///
/// Widths are multiples of 32, so that weights may have any 32-element block type.
#[derive(Clone, Debug)]
pub struct TinyModel {
    /// Keys with the family's prefix, and their values.
    pub settings: Vec<(String, Setting)>,
    /// Optional tensors that the model has.
    pub tensors: Vec<String>,
    prefix: String,
}

impl TinyModel {
    /// Entries of the vocabulary.
    pub const VOCAB: u32 = 288;

    pub(crate) fn new(prefix: &str) -> TinyModel {
        let base = TinyModel {
            settings: vec![("general.architecture".into(), Setting::Str(prefix.into()))],
            tensors: Vec::new(),
            prefix: prefix.into(),
        };
        base.with("vocab_size", Setting::U32(Self::VOCAB))
            .with("block_count", Setting::U32(2))
            .with("context_length", Setting::U32(512))
            .with("embedding_length", Setting::U32(128))
            .with("feed_forward_length", Setting::U32(160))
            .with("attention.head_count", Setting::U32(4))
            .with("attention.head_count_kv", Setting::U32(2))
            .with("attention.layer_norm_rms_epsilon", Setting::F32(1e-5))
    }

    /// The same model with another value under a key, which is given without the family's prefix.
    pub fn with(self, key: &str, value: Setting) -> TinyModel {
        let key = format!("{}.{key}", self.prefix);
        self.with_key(&key, value)
    }

    /// The same model with another value under a whole key.
    pub fn with_key(mut self, key: &str, value: Setting) -> TinyModel {
        self.settings.retain(|(k, _)| k != key);
        self.settings.push((key.to_owned(), value));
        self
    }

    /// The same model with an optional tensor.
    pub fn with_tensor(mut self, name: &str) -> TinyModel {
        self.tensors.push(name.to_owned());
        self
    }

    /// The same model with heads of another width than the embedding's part of each.
    pub(crate) fn with_head_width(self, width: u32) -> TinyModel {
        self.with("attention.key_length", Setting::U32(width))
            .with("attention.value_length", Setting::U32(width))
    }

    /// The same model with experts, of which a token uses some: narrower than the feed-forward length, which no tensor
    /// has, as in the real models.
    pub(crate) fn with_experts(self, count: u32, used: u32) -> TinyModel {
        self.with("expert_count", Setting::U32(count))
            .with("expert_used_count", Setting::U32(used))
            .with("expert_feed_forward_length", Setting::U32(96))
    }

    /// The same model with biases of queries, keys and values in every layer.
    pub(crate) fn with_qkv_biases(self) -> TinyModel {
        self.with_layer_tensors(&["attn_q.bias", "attn_k.bias", "attn_v.bias"])
    }

    /// The same model with optional tensors in every layer.
    pub(crate) fn with_layer_tensors(self, tensors: &[&str]) -> TinyModel {
        let key = format!("{}.block_count", self.prefix);
        let layers = self.settings.iter().find_map(|(k, value)| match value {
            Setting::U32(layers) if *k == key => Some(*layers as u16),
            _ => None,
        });
        let names: Vec<String> =
            (0..layers.unwrap_or(0)).flat_map(|l| tensors.iter().map(move |t| blocks::name(l, t))).collect();
        names.iter().fold(self, |tiny, name| tiny.with_tensor(name))
    }
}
