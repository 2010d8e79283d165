//! `wootz inspect`

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};
use wootz::{Model, gguf};

use crate::args::InspectArgs;
use crate::{common, output};

/// Elements of an array that are shown.
const SHOWN: usize = 6;

pub(crate) fn run(args: &InspectArgs) -> anyhow::Result<()> {
    let model = common::open_model(&args.model)?;
    let context = args.ctx.unwrap_or(model.arch().hparams().context_length as usize);
    if args.json {
        return output::println(&as_json(&model, context).to_string());
    }
    output::print(&as_text(&model, context, args.tensors))
}

/// Types of the tensors, with how many have them and their bytes.
fn types(model: &Model) -> BTreeMap<&'static str, (usize, u64)> {
    let mut types = BTreeMap::new();
    for tensor in model.file().tensors() {
        let entry = types.entry(tensor.ty.name()).or_insert((0, 0));
        entry.0 += 1;
        entry.1 += tensor.bytes as u64;
    }
    types
}

fn template_name(model: &Model) -> String {
    match model.template().map(|t| t.kind()) {
        None => "none (ChatML is used)".to_owned(),
        Some(None) => "of no known family".to_owned(),
        Some(Some(kind)) => kind.to_string(),
    }
}

fn as_text(model: &Model, context: usize, tensors: bool) -> String {
    let (file, hp) = (model.file(), model.arch().hparams());
    let memory = model.memory_at(context);
    let mut text = String::new();
    let mut line = |name: &str, value: String| text.push_str(&format!("{name:<18} {value}\n"));
    for shard in 0..file.shards() {
        if let Some(path) = file.path(shard) {
            line("file", path.display().to_string());
        }
    }
    line("format", format!("GGUF version {}, {}", file.version(), output::size(file.file_bytes())));
    line("architecture", model.arch().architecture().name().to_owned());
    line("parameters", format!("{:.2} M", file.elements() as f64 / 1e6));
    line("layers", hp.layers.to_string());
    line("width", format!("{}, feed-forward {}", hp.dim, range(&hp.feed_forward)));
    line("heads", format!("{} over {}, {} wide", range(&hp.heads), range(&hp.kv_heads), hp.k_dim));
    if let Some(window) = hp.window {
        let n = hp.windowed.iter().filter(|w| **w).count();
        line("sliding window", format!("{window} tokens in {n} of {} layers", hp.layers));
    }
    line("trained context", format!("{} tokens", hp.context_length));
    line("vocabulary", format!("{} tokens, tokenizer {}", hp.vocab, model.tokenizer_name()));
    line("chat template", template_name(model));
    for (ty, (n, bytes)) in types(model) {
        line(&format!("tensors {ty}"), format!("{n}, {}", output::size(bytes)));
    }
    line(
        "memory",
        format!(
            "{} for weights, {} for the cache of {context} tokens (f16)",
            output::size(memory.weights),
            output::size(memory.caches)
        ),
    );
    text.push_str("\nmetadata\n");
    for (key, value) in file.meta().iter() {
        text.push_str(&format!("  {key:<44} {}\n", shorten(&value)));
    }
    if tensors {
        text.push_str("\ntensors\n");
        for t in file.tensors() {
            let dims: Vec<String> = t.dims().iter().map(ToString::to_string).collect();
            text.push_str(&format!("  {:<40} {:<8} {}\n", t.name, t.ty.name(), dims.join(" x ")));
        }
    }
    text
}

/// One number, or the smallest and largest.
fn range(list: &[u32]) -> String {
    match (list.iter().min(), list.iter().max()) {
        (Some(low), Some(high)) if low < high => format!("{low} to {high}"),
        (Some(low), _) => low.to_string(),
        _ => String::new(),
    }
}

fn shorten(value: &gguf::Value<'_>) -> String {
    let json = value_json(value, SHOWN);
    let text = match (&json, value.as_array()) {
        (Json::Array(shown), Some(array)) if array.len() > SHOWN => {
            let list: Vec<String> = shown.iter().map(Json::to_string).collect();
            format!("[{}, … {} in all]", list.join(", "), array.len())
        }
        _ => json.to_string(),
    };
    match text.char_indices().nth(90) {
        Some((cut, _)) => format!("{}… ({} bytes)", &text[..cut], text.len()),
        None => text,
    }
}

/// A value as JSON, with at most `most` elements of an array.
fn value_json(value: &gguf::Value<'_>, most: usize) -> Json {
    if let Some(array) = value.as_array() {
        return array.iter().take(most).map(|v| value_json(&v, most)).collect();
    }
    if let Some(text) = value.as_text() {
        return text.to_string_lossy().into();
    }
    match *value {
        gguf::Value::Bool(b) => b.into(),
        gguf::Value::F32(f) => f.into(),
        gguf::Value::F64(f) => f.into(),
        _ => value.as_integer().map_or(Json::Null, |n| match i64::try_from(n) {
            Ok(n) => n.into(),
            Err(_) => (n as u64).into(),
        }),
    }
}

fn as_json(model: &Model, context: usize) -> Json {
    let (file, hp) = (model.file(), model.arch().hparams());
    let memory = model.memory_at(context);
    // Vocabularies and merges are too long to be wanted here.
    let metadata: Map<String, Json> = file
        .meta()
        .iter()
        .map(|(key, value)| {
            let long = value.as_array().map(|a| a.len()).filter(|n| *n > 256);
            (key.to_owned(), long.map_or_else(|| value_json(&value, 256), |n| json!({ "array_length": n })))
        })
        .collect();
    let tensors: Vec<Json> = file
        .tensors()
        .iter()
        .map(|t| json!({ "name": t.name, "type": t.ty.name(), "dims": t.dims(), "bytes": t.bytes }))
        .collect();
    json!({
        "files": (0..file.shards()).filter_map(|s| file.path(s)).collect::<Vec<_>>(),
        "version": file.version(),
        "bytes": file.file_bytes(),
        "architecture": model.arch().architecture().name(),
        "parameters": file.elements(),
        "layers": hp.layers,
        "embedding_length": hp.dim,
        "context_length": hp.context_length,
        "vocabulary": hp.vocab,
        "tokenizer": model.tokenizer_name(),
        "chat_template": template_name(model),
        "memory": { "context": context, "weights": memory.weights, "caches": memory.caches },
        "metadata": metadata,
        "tensors": tensors,
    })
}
