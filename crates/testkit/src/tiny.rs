//! Tiny random models of every family, as GGUF bytes.

use wootz_arch::{Architecture, Setting, TinyModel};
use wootz_gguf::{Metadata, Writer};
use wootz_graph::SpecEntry;
use wootz_quant::WeightType;

use crate::memory::encode;
use crate::rng::Rng;

/// Types of the matrices: the first for most, the second for embedding and head.
#[derive(Clone, Copy, Debug)]
pub struct Types(pub WeightType, pub WeightType);

impl Types {
    /// Nothing is quantised.
    pub const FLOAT: Types = Types(WeightType::F32, WeightType::F32);
}

/// A GGUF file of a family's tiny model with random weights and a vocabulary of bytes, or of letters for encoders.
///
/// # Panics
/// The family's fixture contradicts its own hyperparameters.
pub fn build(arch: &dyn Architecture, types: Types, seed: u64) -> Vec<u8> {
    build_model(arch, &arch.tiny(), types, seed)
}

/// As [`build`], of a model with settings of its own.
///
/// # Panics
/// The settings contradict each other.
pub fn build_model(arch: &dyn Architecture, tiny: &TinyModel, types: Types, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    build_with(arch, tiny, types, |entry| {
        let vector = entry.rows == 1;
        // Norm weights and frequency factors around 1, matrices so that the stream keeps its size.
        let deviation = 1.0 / (entry.cols as f32).sqrt();
        // Routers are sure: the last expert chosen has little weight, so that rounding, which may choose another in its place,
        // changes little.
        let deviation = if is_router(entry) { 6.0 * deviation } else { deviation };
        (0..entry.rows * entry.cols)
            .map(|_| match &*entry.name {
                // Rates of decay, from a token to some hundred.
                name if name.ends_with("ssm_a") => -(-2.5 + 2.5 * rng.signed()).exp(),
                name if name.ends_with("ssm_d") => 1.0 + rng.normal() * 0.3,
                // Decays from a few tokens to some hundred; what is mixed lies between two rows.
                name if name.ends_with("time_mix_decay.weight") => -2.0 + 2.0 * rng.signed(),
                name if name.ends_with("time_mix_w0.weight") => -2.0 + 2.0 * rng.signed(),
                name if name.contains("_lerp_") => 0.5 + 0.5 * rng.signed(),
                name if name.ends_with("time_mix_r_k.weight") => rng.normal() * 0.2,
                name if name.ends_with(".bias") => rng.normal() * 0.1,
                _ if vector => 1.0 + rng.signed().abs() * 0.2,
                _ => rng.normal() * deviation,
            })
            .collect()
    })
}

/// A weight's elements from its name alone, as `scripts/tiny_models.py` has them: FNV-1a of the name, then a hash of each
/// index.
pub fn named_elements(entry: &SpecEntry) -> Vec<f32> {
    let seed = entry.name.bytes().fold(0x811c_9dc5u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
    let element = |index: u64| {
        let mut h = (index as u32).wrapping_mul(2_654_435_761).wrapping_add(seed);
        h = (h ^ (h >> 15)).wrapping_mul(2_246_822_519);
        h ^= h >> 13;
        let unit = f64::from(h >> 8) / f64::from(1 << 23) - 1.0;
        let element = match entry.rows {
            _ if entry.name.ends_with(".bias") => 0.1 * unit,
            // So that states of RWKV 6 last for some tokens.
            _ if entry.name.ends_with("time_mix_decay.weight") => unit - 2.0,
            // Rates of decay.
            _ if entry.name.ends_with(".ssm_a") => -(unit + 1.001) * (unit + 1.001) * 0.4,
            _ if entry.name.ends_with("norm.weight") => 1.0 + 0.2 * unit,
            1 => 1.0 + 0.2 * unit,
            _ => unit * (3.0 / entry.cols as f64).sqrt(),
        };
        element as f32
    };
    (0..entry.rows * entry.cols).map(element).collect()
}

/// As [`build_model`], with the weights that `elements` gives.
///
/// # Panics
/// The settings contradict each other.
pub fn build_with(
    arch: &dyn Architecture,
    tiny: &TinyModel,
    types: Types,
    mut elements: impl FnMut(&SpecEntry) -> Vec<f32>,
) -> Vec<u8> {
    let mut writer = Writer::new();
    for (key, value) in &tiny.settings {
        let result = match value {
            Setting::U32(v) => writer.meta.set(key, *v).map(|_| ()),
            Setting::I32s(v) => writer.meta.set(key, v.as_slice()).map(|_| ()),
            Setting::F32(v) => writer.meta.set(key, *v).map(|_| ()),
            Setting::Str(v) => writer.meta.set(key, v.as_str()).map(|_| ()),
            Setting::Strs(v) => writer.meta.set(key, v).map(|_| ()),
            Setting::Bool(v) => writer.meta.set(key, *v).map(|_| ()),
        };
        result.expect("short keys");
    }
    if arch.causal() {
        byte_vocabulary(&mut writer.meta);
    } else {
        letter_vocabulary(&mut writer.meta);
    }
    let hp = arch.hparams(&writer.meta).unwrap_or_else(|e| panic!("{}: {e}", arch.name()));
    for entry in wootz_arch::weights(arch, &hp).entries() {
        if entry.optional && !tiny.tensors.contains(&entry.name) {
            continue;
        }
        let n = (entry.rows * entry.cols) as usize;
        let vector = entry.rows == 1;
        let large = entry.name == "token_embd.weight" || entry.name == "output.weight";
        let exact = vector || is_exact(entry);
        let ty = match (exact, large) {
            (true, _) => WeightType::F32,
            (false, true) => types.1,
            (false, false) => types.0,
        };
        let dims: Vec<usize> = if vector { vec![n] } else { vec![entry.cols as usize, entry.rows as usize] };
        writer
            .tensor(&entry.name, &dims, ty, encode(ty, &elements(entry)))
            .expect("dimensions of the fixture");
    }
    writer.to_bytes().expect("a small file")
}

/// Whether files keep a matrix as it was trained: routers of experts, and what is small in state-space blocks.
fn is_exact(entry: &SpecEntry) -> bool {
    let small = [".bias", "ssm_a", "ssm_d", "ssm_conv1d.weight", "ssm_norm.weight"];
    let products =
        ["key", "value", "receptance", "gate", "output"].map(|name| format!("time_mix_{name}.weight"));
    let of_time = entry.name.contains("time_mix_") && !products.iter().any(|name| entry.name.ends_with(name));
    is_router(entry) || of_time || small.iter().any(|name| entry.name.ends_with(name))
}

/// Whether a tensor gives the scores of experts.
fn is_router(entry: &SpecEntry) -> bool {
    entry.name.ends_with("ffn_gate_inp.weight")
}

/// A byte-level vocabulary with one merge and special tokens.
fn byte_vocabulary(meta: &mut Metadata) {
    const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
    // Printable bytes stand for themselves, the others for characters from 256 on, as in GPT-2's vocabulary.
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 256;
    let mut tokens: Vec<String> = (0..=255u8)
        .map(|b| {
            let code = if printable(b) {
                u32::from(b)
            } else {
                next += 1;
                next - 1
            };
            char::from_u32(code).expect("a character below 512").to_string()
        })
        .collect();
    // One merge, without which a byte-pair vocabulary is incomplete; the rest is special.
    tokens.extend(SPECIAL.map(str::to_owned));
    tokens.push("th".to_owned());
    tokens.extend((tokens.len()..TinyModel::VOCAB as usize).map(|i| format!("<|spare_{i}|>")));
    let kind = |i: usize| if i < 256 || i == 259 { 1i32 } else { 3 };
    let types: Vec<i32> = (0..tokens.len()).map(kind).collect();
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let result = meta
        .set("tokenizer.ggml.model", "gpt2")
        .and_then(|m| m.set("tokenizer.ggml.pre", "gpt-2"))
        .and_then(|m| m.set("tokenizer.ggml.tokens", tokens))
        .and_then(|m| m.set("tokenizer.ggml.token_type", types))
        .and_then(|m| m.set("tokenizer.ggml.merges", ["t h"]))
        .and_then(|m| m.set("tokenizer.ggml.eos_token_id", 258u32))
        .and_then(|m| m.set("tokenizer.ggml.bos_token_id", 256u32))
        .and_then(|m| m.set("tokenizer.ggml.add_bos_token", false))
        .and_then(|m| m.set("tokenizer.chat_template", template));
    result.expect("short keys");
}

/// A WordPiece vocabulary of printable ASCII, each as the start of a word and within one.
fn letter_vocabulary(meta: &mut Metadata) {
    let mut tokens: Vec<String> = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"].map(str::to_owned).to_vec();
    let special = tokens.len();
    for c in ('!'..='~').filter(|c| !c.is_ascii_uppercase()) {
        tokens.push(format!("\u{2581}{c}"));
        tokens.push(c.to_string());
    }
    let spare = tokens.len();
    tokens.extend((spare..TinyModel::VOCAB as usize).map(|i| format!("[unused{i}]")));
    let kind = |i: usize| if (special..spare).contains(&i) { 1i32 } else { 3 };
    let types: Vec<i32> = (0..tokens.len()).map(kind).collect();
    let result = meta
        .set("tokenizer.ggml.model", "bert")
        .and_then(|m| m.set("tokenizer.ggml.tokens", tokens))
        .and_then(|m| m.set("tokenizer.ggml.token_type", types))
        .and_then(|m| m.set("tokenizer.ggml.padding_token_id", 0u32))
        .and_then(|m| m.set("tokenizer.ggml.unknown_token_id", 1u32))
        .and_then(|m| m.set("tokenizer.ggml.cls_token_id", 2u32))
        .and_then(|m| m.set("tokenizer.ggml.bos_token_id", 2u32))
        .and_then(|m| m.set("tokenizer.ggml.seperator_token_id", 3u32))
        .and_then(|m| m.set("tokenizer.ggml.mask_token_id", 4u32));
    result.expect("short keys");
}
