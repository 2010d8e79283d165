//! `wootz inspect`

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};
use wootz::{ByteSize, Error, Model, gguf};

use crate::args::InspectArgs;
use crate::{common, output};

/// Elements of an array that are shown.
const SHOWN: usize = 6;

pub(crate) fn run(args: &InspectArgs) -> anyhow::Result<()> {
    let model = match common::open_model(&args.model) {
        Ok(model) => model,
        Err(e) => return describe_file(args, e),
    };
    let context = args.ctx.unwrap_or(model.arch().hparams().context_length as usize);
    if args.json {
        let mut object = file_json(model.file());
        object.append(&mut model_json(&model, context));
        return output::println(&Json::from(object).to_string());
    }
    let file = model.file();
    output::print(&(file_text(file) + &model_text(&model, context) + &contents_text(file, args.tensors)))
}

/// Shows a sound file whose model wootz cannot run, and why it cannot.
fn describe_file(args: &InspectArgs, reason: anyhow::Error) -> anyhow::Result<()> {
    let Some(Error::Model { .. } | Error::Tokenizer { .. } | Error::Template(_)) = reason.downcast_ref()
    else {
        return Err(reason);
    };
    let file = gguf::Model::open(common::resolve(&args.model.model, args.model.offline)?)?;
    let reason = output::causes(&reason);
    if args.json {
        let mut object = file_json(&file);
        object.insert("unsupported".to_owned(), reason.into());
        return output::println(&Json::from(object).to_string());
    }
    let verdict = labelled("cannot run", &reason);
    output::print(&(file_text(&file) + &verdict + &contents_text(&file, args.tensors)))
}

/// A line of the description.
fn labelled(name: &str, value: impl std::fmt::Display) -> String {
    format!("{name:<18} {value}\n")
}

/// Types of the tensors, with how many have them and their bytes.
fn types(file: &gguf::Model) -> BTreeMap<&'static str, (usize, u64)> {
    let mut types = BTreeMap::new();
    for tensor in file.tensors() {
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

fn file_text(file: &gguf::Model) -> String {
    let mut text = String::new();
    for path in (0..file.shards()).filter_map(|shard| file.path(shard)) {
        text += &labelled("file", path.display());
    }
    text += &labelled("format", format!("GGUF version {}, {}", file.version(), ByteSize(file.file_bytes())));
    text += &labelled("architecture", architecture(file));
    text += &labelled("parameters", format!("{:.2} M", file.elements() as f64 / 1e6));
    for (ty, (n, bytes)) in types(file) {
        text += &labelled(&format!("tensors {ty}"), format!("{n}, {}", ByteSize(bytes)));
    }
    text
}

fn architecture(file: &gguf::Model) -> String {
    file.meta().architecture().unwrap_or("not named").to_owned()
}

fn model_text(model: &Model, context: usize) -> String {
    let hp = model.arch().hparams();
    let memory = model.memory_at(context);
    let mut text = String::new();
    let mut line = |name: &str, value: String| text.push_str(&labelled(name, value));
    line("layers", hp.layers.to_string());
    match &hp.experts {
        None if hp.ssm.is_some() => line("width", hp.dim.to_string()),
        None => line("width", format!("{}, feed-forward {}", hp.dim, range(&hp.feed_forward))),
        Some(experts) => {
            line("width", hp.dim.to_string());
            let shared = experts.shared.map_or(String::new(), |width| format!(", one of {width} always"));
            let (count, used, width) = (experts.count, experts.used, experts.feed_forward);
            line("experts", format!("{used} of {count}, each {width} wide{shared}"));
        }
    }
    match &hp.ssm {
        None => {
            line("heads", format!("{} over {}, {} wide", range(&hp.heads), range(&hp.kv_heads), hp.k_dim));
        }
        Some(ssm) => {
            let (heads, wide) = (ssm.heads, ssm.inner / ssm.heads);
            line("recurrent", format!("{heads} heads, {wide} wide, {} states of each element", ssm.state));
        }
    }
    if let Some(window) = hp.window {
        let n = hp.windowed.iter().filter(|w| **w).count();
        line("sliding window", format!("{window} tokens in {n} of {} layers", hp.layers));
    }
    line("trained context", format!("{} tokens", hp.context_length));
    line("vocabulary", format!("{} tokens, tokenizer {}", hp.vocab, model.tokenizer_name()));
    match model.pooling() {
        None => line("chat template", template_name(model)),
        Some(pooling) => line("gives", format!("{}, pooling {}", model.gives(), pooling.name())),
    }
    line(
        "memory",
        format!(
            "{} for weights, {} for the cache of {context} tokens ({})",
            ByteSize(memory.weights),
            ByteSize(memory.caches),
            // What an encoder caches is not rounded.
            if hp.causal { "f16" } else { "f32" }
        ),
    );
    text
}

fn contents_text(file: &gguf::Model, tensors: bool) -> String {
    let mut text = String::from("\nmetadata\n");
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

fn file_json(file: &gguf::Model) -> Map<String, Json> {
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
    object(json!({
        "files": (0..file.shards()).filter_map(|s| file.path(s)).collect::<Vec<_>>(),
        "version": file.version(),
        "bytes": file.file_bytes(),
        "architecture": architecture(file),
        "parameters": file.elements(),
        "metadata": metadata,
        "tensors": tensors,
    }))
}

fn model_json(model: &Model, context: usize) -> Map<String, Json> {
    let hp = model.arch().hparams();
    let memory = model.memory_at(context);
    object(json!({
        "layers": hp.layers,
        "embedding_length": hp.dim,
        "context_length": hp.context_length,
        "vocabulary": hp.vocab,
        "tokenizer": model.tokenizer_name(),
        "gives": model.gives(),
        "pooling": model.pooling().map(wootz::Pooling::name),
        "chat_template": template_name(model),
        "memory": { "context": context, "weights": memory.weights, "caches": memory.caches },
    }))
}

fn object(value: Json) -> Map<String, Json> {
    match value {
        Json::Object(map) => map,
        _ => Map::new(),
    }
}
