//! The endpoints of llama.cpp's server.

use std::time::Duration;

use axum::response::Response;
use serde_json::{Map, Value, json};
use wootz::sample::{Logprobs, SamplingParams, TokenLogprob};
use wootz::{Finish, Segment, StopReason, Tokenizer};

use crate::api::completions::fill_in;
use crate::api::openai::{self, write_error};
use crate::chat::timings;
use crate::common::{self, finite, piece};
use crate::error::{ApiError, Protocol};
use crate::fields::{Field, Fields, Takes, field};
use crate::http::{self, Call, Framing, Gone, Writer};
use crate::models::Loaded;
use crate::text::{self, Job, Prompt, Text, Texts};

pub(crate) const COMPLETION: &[Field] = &[
    field(
        "prompt",
        Takes::Any,
        "A text, token ids, or both in turns; a list of lists or of texts is several.",
    ),
    field("n_predict", common::TOKENS, "Tokens to generate at most; -1 for as many as fit, 0 for none."),
    field("max_tokens", common::TOKENS, "Another name of n_predict."),
    field("n_cmpl", Takes::Int(1, 64), "Continuations of each prompt."),
    field("n", Takes::Int(1, 64), "Another name of n_cmpl."),
    field("stream", Takes::Bool, "Whether the text comes piece by piece."),
    field("n_probs", Takes::Int(0, 1000), "Tell the probabilities of each token and of so many others."),
    field("post_sampling_probs", Takes::Bool, "Probabilities after the samplers, not those of the model."),
    field("t_max_predict_ms", Takes::Int(0, i64::MAX), "Time for the text, in milliseconds; 0 for no limit."),
    field("return_tokens", Takes::Bool, "Whether the ids of the text's tokens are returned."),
    field("timings_per_token", Takes::Bool, "Whether each piece tells times."),
    field("response_fields", Takes::List, "Fields of the response to return; all by default."),
    field("response_format", Takes::Object, "text, json_object or json_schema."),
    field(
        "n_keep",
        Takes::Int(-1, i64::MAX),
        "Tokens at the start that stay where a text is cut; -1 for the prompt.",
    ),
    field("n_discard", Takes::Int(0, i64::MAX), "Not read: half of what does not stay is dropped."),
    field("id_slot", Takes::Int(-1, i64::MAX), "Not read: every request finds the prefixes of all."),
    field("n_cache_reuse", Takes::Int(0, i64::MAX), "Not read: prefixes are reused whole."),
    field("n_indent", Takes::Refused(zero), "lines are not cut by their indentation"),
    field("return_progress", Takes::Refused(is_false), "a stream tells no progress of its prompt"),
    field("lora", Takes::Refused(openai::empty), "there are no adapters"),
    field("sse_ping_interval", Takes::Int(-1, i64::MAX), "Not read: the server's own holds."),
];

fn zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}

fn is_false(value: &Value) -> bool {
    value == false
}

/// `POST /completion`
pub(crate) async fn completion(call: Call) -> Result<Response, ApiError> {
    let loaded = call.app.models.acquire(call.fields.text("model")).await?;
    let value = call.fields.required("prompt", "a string, token ids, or a list of them")?;
    let prompts = Prompt::read_all(value, "prompt")?;
    complete(call, loaded, prompts).await
}

pub(crate) const INFILL: &[Field] = &[
    field("input_prefix", Takes::Text, "What stands before the text to be written."),
    field("input_suffix", Takes::Text, "What stands behind it."),
    field("input_extra", Takes::List, "Other files, as objects of `filename` and `text`."),
];

const EXTRA: &[Field] =
    &[field("filename", Takes::Text, "The file's name."), field("text", Takes::Text, "The file's text.")];

/// `POST /infill`
pub(crate) async fn infill(call: Call) -> Result<Response, ApiError> {
    let fields = &call.fields;
    let loaded = call.app.models.acquire(fields.text("model")).await?;
    let prefix = fields.required_text("input_prefix")?;
    let suffix = fields.required_text("input_suffix")?;
    let begun = fields.text("prompt").unwrap_or_default();
    let tokenizer = loaded.model().tokenizer();
    let plain = |text: &str| Prompt::Tokens(tokenizer.encode(&[Segment::Text(text.as_bytes())], false));
    let filled = fill_in(&loaded, Prompt::Text(prefix.to_owned()), suffix, "input_suffix")?;
    let mut parts = Vec::new();
    for (i, value) in fields.list("input_extra").iter().enumerate() {
        let extra = Fields::item(value, &format!("input_extra[{i}]"), EXTRA)?;
        let (name, text) = (extra.text("filename").unwrap_or("file"), extra.required_text("text")?);
        match tokenizer.special_ids().fim_separator {
            Some(separator) => {
                parts.push(Prompt::Tokens(vec![separator]));
                parts.push(plain(&format!("{name}\n{text}\n")));
            }
            None => parts.push(plain(&format!("{text}\n"))),
        }
    }
    parts.push(filled);
    parts.push(plain(begun));
    complete(call, loaded, vec![Prompt::Mixed(parts)]).await
}

async fn complete(
    call: Call,
    loaded: std::sync::Arc<Loaded>,
    prompts: Vec<Prompt>,
) -> Result<Response, ApiError> {
    let fields = &call.fields;
    let nothing = fields.int("n_predict").or(fields.int("max_tokens")) == Some(0);
    let mut settings = if nothing {
        // The prompt alone is computed; the engine always picks the token that follows it.
        let mut settings = common::settings(&call, &loaded, &[], "stop")?;
        settings.max_tokens = Some(1);
        settings
    } else {
        common::settings(&call, &loaded, &["n_predict", "max_tokens"], "stop")?
    };
    settings.keep = match fields.int("n_keep") {
        None => 0,
        Some(-1) => usize::MAX,
        Some(n) => usize::try_from(n).unwrap_or(usize::MAX),
    };
    settings.n = fields.count("n_cmpl").or(fields.count("n")).unwrap_or(1);
    settings.sampling.n_probs = fields.count("n_probs").filter(|n| *n > 0);
    settings.sampling.post_sampling_probs = fields.bool("post_sampling_probs").unwrap_or(false);
    let shown = Shown {
        nothing,
        tokens: fields.bool("return_tokens").unwrap_or(false),
        times: fields.bool("timings_per_token").unwrap_or(false),
        after: settings.sampling.post_sampling_probs,
        only: fields.list("response_fields").iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        settings: generation_settings(&settings.sampling, settings.max_tokens, &settings.stop),
        time: fields.int("t_max_predict_ms").filter(|ms| *ms > 0).map(|ms| Duration::from_millis(ms as u64)),
    };
    let job = Job { prompts, shape: common::shape(fields)?, settings };
    let mut texts = text::start(&call.app, loaded, job).await?;
    if fields.bool("stream").unwrap_or(false) {
        let write = move |writer| write_pieces(writer, texts, shown);
        return Ok(http::stream(&call.app, Framing::Events, write));
    }
    let all = collect(&mut texts, shown.time).await?;
    let replies: Vec<Value> =
        all.iter().enumerate().map(|(i, text)| shown.select(whole(&texts, i, text, &shown))).collect();
    let one = replies.len() == 1;
    Ok(http::json(&if one { replies.into_iter().next().unwrap_or_default() } else { Value::Array(replies) }))
}

/// All texts, as far as they come in the time given for them after their first token.
async fn collect(texts: &mut Texts, time: Option<Duration>) -> Result<Vec<Text>, ApiError> {
    let mut all: Vec<Text> = (0..texts.count).map(|_| Text::default()).collect();
    let mut end = None;
    while let Some(piece) = texts.next().await {
        let piece = piece?;
        let text = &mut all[piece.index];
        text.text.push_str(&piece.text);
        text.tokens.extend(piece.token);
        text.logprobs.extend(piece.logprobs);
        if piece.finish.is_some() {
            text.finish = piece.finish;
        }
        let end = end.get_or_insert_with(|| time.map(|time| tokio::time::Instant::now() + time));
        if end.is_some_and(|end| tokio::time::Instant::now() >= end) {
            break;
        }
    }
    Ok(all)
}

struct Shown {
    nothing: bool,
    tokens: bool,
    times: bool,
    /// Probabilities are those after the samplers.
    after: bool,
    only: Vec<String>,
    settings: Value,
    time: Option<Duration>,
}

impl Shown {
    /// The fields of a response that were asked for; `a/b` names a field inside one.
    fn select(&self, reply: Value) -> Value {
        if self.only.is_empty() {
            return reply;
        }
        let get = |path: &String| {
            let found = path.split('/').try_fold(&reply, |at, key| at.get(key))?;
            Some((path.rsplit('/').next().unwrap_or(path).to_owned(), found.clone()))
        };
        Value::Object(self.only.iter().filter_map(get).collect())
    }
}

/// Probabilities at one place, in llama.cpp's form.
fn probabilities(tokenizer: &Tokenizer, logprobs: &Logprobs, after: bool) -> Value {
    let entry = |t: &TokenLogprob| {
        let (text, bytes) = piece(tokenizer, t.token);
        let mut entry = json!({ "id": t.token, "token": text, "bytes": bytes });
        if after {
            entry["prob"] = t.prob().into();
        } else {
            entry["logprob"] = finite(t.logprob).into();
        }
        entry
    };
    let mut chosen = entry(&logprobs.chosen);
    let key = if after { "top_probs" } else { "top_logprobs" };
    chosen[key] = logprobs.top.iter().map(entry).collect();
    chosen
}

/// What the last part of a response says.
fn ending(texts: &Texts, index: usize, finish: Option<&Finish>, shown: &Shown) -> Map<String, Value> {
    let (stop_type, word) = match finish.map(|f| &f.reason) {
        Some(StopReason::EndOfText) => ("eos", ""),
        Some(StopReason::StopText(word)) => ("word", word.as_str()),
        Some(StopReason::Cancelled) => ("none", ""),
        // Without an end the time was up.
        Some(StopReason::Length | StopReason::ContextFull) | None => ("limit", ""),
    };
    let each = texts.count / texts.prompts.len().max(1);
    let prompt = &texts.prompts[index / each.max(1)];
    let t = finish.map(|f| f.timings).unwrap_or_default();
    let tokenizer = texts.loaded.model().tokenizer();
    let reply = json!({
        "index": index,
        "stop": true,
        "model": texts.loaded.name,
        "id_slot": 0,
        "generation_settings": shown.settings,
        "prompt": String::from_utf8_lossy(&tokenizer.decode(prompt, true)),
        "has_new_line": false,
        "truncated": texts.dropped > 0 || t.dropped_tokens > 0,
        "stop_type": stop_type,
        "stopping_word": word,
        "tokens_predicted": if shown.nothing { 0 } else { t.generated_tokens },
        "tokens_evaluated": prompt.len(),
        "tokens_cached": t.cached_tokens,
        "timings": finish.map(timings),
    });
    match reply {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn whole(texts: &Texts, index: usize, text: &Text, shown: &Shown) -> Value {
    let mut reply = ending(texts, index, text.finish.as_ref(), shown);
    let (content, tokens) =
        if shown.nothing { ("", &[][..]) } else { (text.text.as_str(), &text.tokens[..]) };
    reply.insert("has_new_line".into(), content.contains('\n').into());
    reply.insert("content".into(), content.into());
    reply.insert("tokens".into(), if shown.tokens { tokens.into() } else { Value::Array(Vec::new()) });
    if !text.logprobs.is_empty() {
        let tokenizer = texts.loaded.model().tokenizer();
        let list = text.logprobs.iter().map(|l| probabilities(tokenizer, l, shown.after));
        reply.insert("completion_probabilities".into(), list.collect());
    }
    Value::Object(reply)
}

async fn write_pieces(writer: Writer, mut texts: Texts, shown: Shown) -> Result<(), Gone> {
    let model = texts.loaded.model().clone();
    let mut end = None;
    while let Some(piece) = texts.next().await {
        let piece = match piece {
            Ok(piece) => piece,
            Err(e) => return write_error(&writer, &e, Protocol::OpenAi).await,
        };
        let stop = end.get_or_insert_with(|| shown.time.map(|time| tokio::time::Instant::now() + time));
        let late = stop.is_some_and(|end| tokio::time::Instant::now() >= end);
        let mut reply = Map::new();
        if piece.finish.is_some() || late {
            reply = ending(&texts, piece.index, piece.finish.as_ref(), &shown);
        }
        let text = if shown.nothing { String::new() } else { piece.text };
        let tokens: Vec<u32> = piece.token.into_iter().filter(|_| !shown.nothing).collect();
        reply.insert("index".into(), piece.index.into());
        reply.insert("content".into(), text.into());
        reply.insert("tokens".into(), tokens.into());
        reply.insert("stop".into(), (piece.finish.is_some() || late).into());
        if let Some(logprobs) = &piece.logprobs {
            let list = vec![probabilities(model.tokenizer(), logprobs, shown.after)];
            reply.insert("completion_probabilities".into(), list.into());
        }
        if shown.times {
            reply.entry("elapsed_ms").or_insert_with(|| (texts.started.elapsed().as_secs_f64() * 1e3).into());
        }
        writer.object(&Value::Object(reply)).await?;
        if late {
            break;
        }
    }
    Ok(())
}

/// Sampling parameters and limits in llama.cpp's names.
pub(crate) fn generation_settings(p: &SamplingParams, max_tokens: Option<usize>, stop: &[String]) -> Value {
    // Its own names and forms are those of the library, but for a few.
    let mut settings = serde_json::to_value(p).unwrap_or_default();
    settings["seed"] = p.seed.map_or(json!(-1), Value::from);
    settings["n_probs"] = p.n_probs.unwrap_or(0).into();
    settings["n_predict"] = max_tokens.map_or(json!(-1), Value::from);
    settings["stop"] = stop.into();
    settings
}

pub(crate) const TOKENIZE: &[Field] = &[
    field("model", Takes::Text, "The model; by default the first."),
    field("content", Takes::Text, "The text."),
    field("add_special", Takes::Bool, "Whether tokens that begin or end a text are added; false by default."),
    field("parse_special", Takes::Bool, "Whether special tokens are recognised; true by default."),
    field("with_pieces", Takes::Bool, "Whether the text of each token is returned too."),
];

/// `POST /tokenize`
pub(crate) async fn tokenize(call: Call) -> Result<Response, ApiError> {
    let fields = &call.fields;
    let loaded = call.app.models.acquire(fields.text("model")).await?;
    let text = fields.required_text("content")?;
    let tokenizer = loaded.model().tokenizer();
    let segment = match fields.bool("parse_special").unwrap_or(true) {
        true => Segment::Markup(text),
        false => Segment::Text(text.as_bytes()),
    };
    let ids = tokenizer.encode(&[segment], fields.bool("add_special").unwrap_or(false));
    let tokens: Vec<Value> = match fields.bool("with_pieces").unwrap_or(false) {
        false => ids.into_iter().map(Value::from).collect(),
        true => {
            let with_piece = |id: u32| {
                let bytes = tokenizer.piece(id, true).into_owned();
                let piece = String::from_utf8(bytes).map_or_else(|e| e.into_bytes().into(), Value::from);
                json!({ "id": id, "piece": piece })
            };
            ids.into_iter().map(with_piece).collect()
        }
    };
    Ok(http::json(&json!({ "tokens": tokens })))
}

pub(crate) const DETOKENIZE: &[Field] = &[
    field("model", Takes::Text, "The model; by default the first."),
    field("tokens", Takes::List, "Token ids."),
];

/// `POST /detokenize`
pub(crate) async fn detokenize(call: Call) -> Result<Response, ApiError> {
    let fields = &call.fields;
    let loaded = call.app.models.acquire(fields.text("model")).await?;
    fields.required("tokens", "a list of token ids")?;
    let tokenizer = loaded.model().tokenizer();
    let mut ids = Vec::new();
    for (i, value) in fields.list("tokens").iter().enumerate() {
        let id = value.as_u64().filter(|id| *id < tokenizer.vocab_size() as u64);
        let wrong = || {
            let expected = format!("a token id below {}", tokenizer.vocab_size());
            ApiError::field(format!("tokens[{i}]"), expected)
        };
        ids.push(id.ok_or_else(wrong)? as u32);
    }
    let text = String::from_utf8_lossy(&tokenizer.decode(&ids, true)).into_owned();
    Ok(http::json(&json!({ "content": text })))
}

/// `POST /apply-template`
pub(crate) async fn apply_template(call: Call) -> Result<Response, ApiError> {
    let loaded = call.app.models.acquire(call.fields.text("model")).await?;
    let task = openai::task(&call, &loaded)?;
    let prepared = crate::chat::blocking(move || task.prepare(&loaded)).await?;
    Ok(http::json(&json!({ "prompt": prepared.text, "tokens": prepared.prompt.len() })))
}

/// `GET /props`
pub(crate) async fn props(call: Call) -> Result<Response, ApiError> {
    let loaded = call.app.models.acquire(call.query("model")).await?;
    let model = loaded.model();
    let template = model.chat_template()?;
    let caps = template.capabilities();
    let limits = loaded.engine.limits();
    let listing = call.app.models.listing(&loaded.name);
    let path = listing.and_then(|l| l.path).map(|p| p.display().to_string());
    let token = |id: Option<u32>| id.map(|id| piece(model.tokenizer(), id).0).unwrap_or_default();
    let params = generation_settings(&loaded.preset.sampling, loaded.preset.max_tokens, &[]);
    Ok(http::json(&json!({
        "default_generation_settings": { "n_ctx": limits.context, "params": params },
        "total_slots": limits.sequences,
        "model_alias": loaded.name,
        "model_path": path.unwrap_or_default(),
        "modalities": { "vision": false, "audio": false },
        "chat_template": template.source(),
        "chat_template_caps": {
            "supports_system_role": caps.system,
            "supports_tools": caps.tools,
            "supports_tool_calls": caps.tool_calls,
            "supports_tool_responses": caps.tool_answers,
            "supports_parallel_tool_calls": caps.parallel_tool_calls,
            "supports_thinking_switch": caps.thinking_switch,
        },
        "bos_token": token(model.tokenizer().bos()),
        "eos_token": token(model.tokenizer().eos()),
        "build_info": concat!("wootz ", env!("CARGO_PKG_VERSION")),
        "is_sleeping": false,
    })))
}

/// `GET /slots`
pub(crate) async fn slots(call: Call) -> Result<Response, ApiError> {
    let loaded = call.app.models.acquire(call.query("model")).await?;
    let (limits, stats) = (loaded.engine.limits(), loaded.engine.stats());
    let count = limits.sequences.max(stats.running);
    let slot = |id: usize| json!({ "id": id, "n_ctx": limits.context, "is_processing": id < stats.running });
    if call.query("fail_on_no_slot") == Some("1") && stats.running >= count {
        return Err(ApiError::new(crate::error::Kind::Unavailable, "no slot is free"));
    }
    Ok(http::json(&(0..count).map(slot).collect()))
}
