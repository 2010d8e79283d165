//! Ollama's endpoints, as far as they read and do not manage.

use std::time::Duration;

use axum::response::Response;
use serde_json::{Map, Value, json};
use wootz::template::{Content, Message, ToolCall};
use wootz::{Finish, StopReason, tools};

use crate::api::openai::never;
use crate::chat::{self, Answers, Settings, Step, Summary, Task};
use crate::common::{self, new_id, now, timestamp};
use crate::constrain::Shape;
use crate::error::{ApiError, Kind, Protocol};
use crate::fields::{Field, Fields, Takes, field, kind};
use crate::http::{self, Call, Framing, Gone, Writer};
use crate::models::{Listing, Loaded};
use crate::text::{self, Job, Prompt, Texts};
use crate::toolcall::{self, Choice};

pub(crate) const KEEP_ALIVE: Field =
    field("keep_alive", Takes::Any, "Not read: the server's own time holds.");

/// What both ways of generation take.
pub(crate) const COMMON: &[Field] = &[
    field("model", Takes::Text, "The model's name or alias."),
    field("stream", Takes::Bool, "Whether the answer comes piece by piece; true by default."),
    field("format", Takes::Any, "\"json\", or a JSON Schema that the answer follows."),
    field("options", Takes::Object, "Sampling parameters and limits."),
    KEEP_ALIVE,
    field("think", Takes::Any, "Whether the model reasons, or how much, where its template knows."),
    field(
        "truncate",
        Takes::Bool,
        "Whether a conversation that does not fit loses its oldest turns, a raw text its beginning; false by default.",
    ),
    field("shift", Takes::Bool, "Another name of truncate."),
    field("logprobs", Takes::Refused(is_false), "use the endpoints of OpenAI"),
    field("images", Takes::Refused(crate::api::openai::empty), "models of this server read text only"),
];

pub(crate) const CHAT: &[Field] = &[
    field("messages", Takes::List, "The conversation."),
    field("tools", Takes::List, "Functions that the model may call."),
];

pub(crate) const GENERATE: &[Field] = &[
    field("prompt", Takes::Text, "The text to answer, or with `raw` to continue."),
    field("suffix", Takes::Text, "What follows the text to be written."),
    field("system", Takes::Text, "The system message."),
    field("raw", Takes::Bool, "Whether the prompt is continued as it is, without a template."),
    field("template", Takes::Refused(blank), "templates are chosen at the server's start"),
    field("context", Takes::Refused(crate::api::openai::empty), "it was replaced by /api/chat"),
];

fn is_false(value: &Value) -> bool {
    value == false
}

fn blank(value: &Value) -> bool {
    value == ""
}

/// What `options` takes beside sampling parameters.
const OPTIONS: &[Field] = &[
    field(
        "num_predict",
        Takes::Int(-2, i32::MAX as i64),
        "Tokens to generate at most; -1 for as many as fit.",
    ),
    field("stop", Takes::Texts, "Texts that end the answer."),
    field("num_ctx", Takes::Int(1, i64::MAX), "Refused above the server's own context."),
    field("num_batch", Takes::Int(1, i64::MAX), "Not read."),
    field("num_gpu", Takes::Int(-1, i64::MAX), "Not read."),
    field("main_gpu", Takes::Int(0, i64::MAX), "Not read."),
    field("num_thread", Takes::Int(0, i64::MAX), "Not read."),
    field("num_keep", Takes::Int(-1, i64::MAX), "Tokens at the start that stay where a raw text is cut."),
    field("use_mmap", Takes::Bool, "Not read."),
    field("numa", Takes::Bool, "Not read."),
    field("penalize_newline", Takes::Refused(never), "there is no such sampler"),
];

/// The call with `options` in the place of its fields, as all else reads them there.
fn with_options(call: &Call, loaded: &Loaded) -> Result<Call, ApiError> {
    let map = call.fields.map("options").cloned().unwrap_or_default();
    let (mut fields, unknown) = Fields::check(map, "options.", &[crate::sampling::SAMPLING, OPTIONS])?;
    if !unknown.is_empty() {
        tracing::debug!("ignores the unknown fields {}", unknown.join(", "));
    }
    let context = loaded.engine.limits().context;
    if let Some(wanted) = fields.count("num_ctx").filter(|n| *n > context) {
        let expected = format!("at most the server's context of {context} tokens, found {wanted}");
        return Err(fields.wrong("num_ctx", expected));
    }
    // -2 fills the context, which -1 does too.
    if fields.int("num_predict") == Some(-2) {
        fields = Fields::check(
            fields_without(&fields, "num_predict"),
            "options.",
            &[crate::sampling::SAMPLING, OPTIONS],
        )?
        .0;
    }
    Ok(Call {
        app: call.app.clone(),
        id: call.id.clone(),
        user: call.user,
        fields,
        query: String::new(),
        tail: String::new(),
    })
}

/// What the fields of a request and its `options` say of generation.
fn settings(fields: &Fields, options: &Call, loaded: &Loaded) -> Result<Settings, ApiError> {
    let mut settings = common::settings(options, loaded, &["num_predict"], "stop")?;
    let asked = fields.bool("truncate").or(fields.bool("shift"));
    settings.truncate = asked.unwrap_or(settings.truncate);
    settings.keep = options.fields.count("num_keep").unwrap_or(0);
    Ok(settings)
}

fn fields_without(fields: &Fields, name: &str) -> Map<String, Value> {
    let mut map = fields.all().clone();
    map.remove(name);
    map
}

fn shape(fields: &Fields) -> Result<Option<Shape>, ApiError> {
    match fields.get("format") {
        None => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) if text == "json" => Ok(Some(Shape::JsonObject)),
        Some(schema @ Value::Object(_)) => Ok(Some(Shape::Schema(schema.clone()))),
        Some(other) => {
            Err(fields.wrong("format", format!("\"json\" or a JSON Schema, found {}", kind(other))))
        }
    }
}

fn variables(fields: &Fields) -> Result<Map<String, Value>, ApiError> {
    let mut variables = Map::new();
    match fields.get("think") {
        None => {}
        Some(Value::Bool(on)) => {
            variables.insert("enable_thinking".into(), (*on).into());
        }
        Some(Value::String(effort)) if matches!(effort.as_str(), "low" | "medium" | "high") => {
            variables.insert("enable_thinking".into(), true.into());
            variables.insert("reasoning_effort".into(), effort.as_str().into());
        }
        Some(_) => return Err(fields.wrong("think", "true, false, \"low\", \"medium\" or \"high\"")),
    }
    Ok(variables)
}

fn messages(fields: &Fields) -> Result<Vec<Message>, ApiError> {
    let mut out: Vec<Message> = Vec::new();
    for (i, value) in fields.list("messages").iter().enumerate() {
        let path = format!("messages[{i}]");
        let Value::Object(map) = value else {
            return Err(ApiError::field(path, format!("an object, found {}", kind(value))));
        };
        let text = |name: &str| map.get(name).and_then(Value::as_str);
        let role = text("role").unwrap_or_default();
        if !matches!(role, "system" | "user" | "assistant" | "tool") {
            let expected = format!("one of system, user, assistant, tool, found {role:?}");
            return Err(ApiError::field(format!("{path}.role"), expected));
        }
        if map.get("images").is_some_and(|images| images.as_array().is_none_or(|list| !list.is_empty())) {
            let why = "models of this server read text only";
            return Err(ApiError::unsupported(format!("{path}.images"), why));
        }
        let content = match map.get("content") {
            None | Some(Value::Null) => Content::None,
            Some(Value::String(text)) => Content::Text(text.clone()),
            Some(other) => {
                return Err(ApiError::field(
                    format!("{path}.content"),
                    format!("a string, found {}", kind(other)),
                ));
            }
        };
        let mut calls = Vec::new();
        for (k, call) in map.get("tool_calls").and_then(Value::as_array).into_iter().flatten().enumerate() {
            let function = &call["function"];
            let Some(name) = function["name"].as_str() else {
                let field = format!("{path}.tool_calls[{k}].function.name");
                return Err(ApiError::field(field, "a string"));
            };
            let arguments = match &function["arguments"] {
                Value::Null => json!({}),
                other => other.clone(),
            };
            let id = call["id"].as_str().map_or_else(new_id, str::to_owned);
            calls.push(ToolCall { id: Some(id), name: name.to_owned(), arguments });
        }
        let name = text("tool_name").or_else(|| text("name")).map(str::to_owned);
        // Answers name their tool, not their call.
        let answered = out.iter().rev().flat_map(|m| &m.tool_calls).find(|c| Some(&c.name) == name.as_ref());
        let tool_call_id =
            text("tool_call_id").map(str::to_owned).or_else(|| answered.and_then(|c| c.id.clone()));
        out.push(Message {
            role: role.to_owned(),
            content,
            reasoning_content: text("thinking").map(str::to_owned),
            tool_calls: calls,
            tool_call_id: tool_call_id.filter(|_| role == "tool"),
            name,
            ..Message::default()
        });
    }
    Ok(out)
}

/// `POST /api/chat`
pub(crate) async fn chat(call: Call) -> Result<Response, ApiError> {
    let fields = &call.fields;
    let loaded = call.app.models.acquire(fields.text("model")).await?;
    let inner = with_options(&call, &loaded)?;
    let messages = messages(fields)?;
    if messages.is_empty() {
        // Ollama's clients load a model this way.
        return Ok(http::json(&nothing(
            &loaded.name,
            "message",
            json!({ "role": "assistant", "content": "" }),
        )));
    }
    let task = Task {
        messages,
        tools: toolcall::read_openai(fields.list("tools"))?,
        choice: Choice::Auto,
        parallel: true,
        shape: shape(fields)?,
        shape_field: "format",
        variables: variables(fields)?,
        split_reasoning: true,
        budget: None,
        settings: settings(fields, &inner, &loaded)?,
    };
    reply(&call, loaded, task, Place::Message).await
}

/// Where the text of an answer stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Message,
    Response,
}

async fn reply(
    call: &Call,
    loaded: std::sync::Arc<Loaded>,
    task: Task,
    place: Place,
) -> Result<Response, ApiError> {
    let mut answers = chat::start(&call.app, loaded, task).await?;
    if call.fields.bool("stream").unwrap_or(true) {
        let write = move |writer| write_chat(writer, answers, place);
        return Ok(http::stream(&call.app, Framing::Lines, write));
    }
    let whole = answers.collect().await?.pop().unwrap_or_default();
    let calls: Vec<Value> = whole.calls.iter().map(|c| call_object(&c.name, &c.arguments)).collect();
    let mut reply = part(&answers.loaded.name, place, &whole.content, &whole.reasoning, calls);
    if let Some(summary) = &whole.summary {
        end(&mut reply, summary, answers.started.elapsed());
    }
    answers.tell_left_out(&mut reply);
    Ok(http::json(&reply))
}

fn call_object(name: &str, arguments: &str) -> Value {
    let arguments: Value = serde_json::from_str(arguments).unwrap_or_else(|_| json!({}));
    json!({ "id": new_id(), "function": { "name": name, "arguments": arguments } })
}

fn part(model: &str, place: Place, content: &str, reasoning: &str, calls: Vec<Value>) -> Value {
    let mut reply = json!({ "model": model, "created_at": timestamp(now()), "done": false });
    match place {
        Place::Message => {
            let mut message = json!({ "role": "assistant", "content": content });
            if !reasoning.is_empty() {
                message["thinking"] = reasoning.into();
            }
            if !calls.is_empty() {
                message["tool_calls"] = calls.into();
            }
            reply["message"] = message;
        }
        Place::Response => {
            reply["response"] = content.into();
            if !reasoning.is_empty() {
                reply["thinking"] = reasoning.into();
            }
        }
    }
    reply
}

fn nothing(model: &str, key: &str, value: Value) -> Value {
    let mut reply =
        json!({ "model": model, "created_at": timestamp(now()), "done": true, "done_reason": "load" });
    reply[key] = value;
    reply
}

/// Puts on what the last part of an answer says.
fn end(reply: &mut Value, summary: &Summary, total: Duration) {
    finish(reply, &summary.finish, total);
}

fn finish(reply: &mut Value, finish: &Finish, total: Duration) {
    let t = &finish.timings;
    let nanos = |time: Duration| time.as_nanos() as u64;
    reply["done"] = true.into();
    reply["done_reason"] = match finish.reason {
        StopReason::Length | StopReason::ContextFull => "length",
        _ => "stop",
    }
    .into();
    reply["total_duration"] = nanos(total).into();
    reply["load_duration"] = 0.into();
    reply["prompt_eval_count"] = t.prompt_tokens.into();
    reply["prompt_eval_duration"] = nanos(t.prompt).into();
    reply["eval_count"] = t.generated_tokens.into();
    reply["eval_duration"] = nanos(t.generation).into();
}

async fn write_chat(writer: Writer, mut answers: Answers, place: Place) -> Result<(), Gone> {
    let model = answers.loaded.name.clone();
    // Ollama's calls come whole.
    let (mut name, mut arguments) = (String::new(), String::new());
    while let Some(step) = answers.next().await {
        let Step { events, summary, .. } = match step {
            Ok(step) => step,
            Err(e) => return writer.object(&e.body(Protocol::Ollama)).await,
        };
        for event in events {
            let object = match event {
                tools::Event::Content(text) => part(&model, place, &text, "", Vec::new()),
                tools::Event::Reasoning(text) => part(&model, place, "", &text, Vec::new()),
                tools::Event::ToolCallStart { name: started, .. } => {
                    (name, arguments) = (started, String::new());
                    continue;
                }
                tools::Event::ToolCallArguments { delta, .. } => {
                    arguments.push_str(&delta);
                    continue;
                }
                tools::Event::ToolCallEnd { .. } => {
                    part(&model, place, "", "", vec![call_object(&name, &arguments)])
                }
            };
            writer.object(&object).await?;
        }
        if let Some(summary) = summary {
            let mut object = part(&model, place, "", "", Vec::new());
            end(&mut object, &summary, answers.started.elapsed());
            answers.tell_left_out(&mut object);
            writer.object(&object).await?;
        }
    }
    Ok(())
}

/// `POST /api/generate`
pub(crate) async fn generate(call: Call) -> Result<Response, ApiError> {
    let fields = &call.fields;
    let loaded = call.app.models.acquire(fields.text("model")).await?;
    let inner = with_options(&call, &loaded)?;
    let settings = settings(fields, &inner, &loaded)?;
    let prompt = fields.text("prompt").unwrap_or_default();
    let suffix = fields.text("suffix").filter(|s| !s.is_empty());
    if prompt.is_empty() && suffix.is_none() {
        return Ok(http::json(&nothing(&loaded.name, "response", "".into())));
    }
    let shape = shape(fields)?;
    if fields.bool("raw").unwrap_or(false) || suffix.is_some() {
        let mut prompt = Prompt::Text(prompt.to_owned());
        if let Some(suffix) = suffix {
            prompt = super::completions::fill_in(&loaded, prompt, suffix, "suffix")?;
        }
        let shape = shape.map(|shape| (shape, "format"));
        let mut texts =
            text::start(&call.app, loaded, Job { prompts: vec![prompt], shape, settings }).await?;
        if fields.bool("stream").unwrap_or(true) {
            return Ok(http::stream(&call.app, Framing::Lines, move |writer| write_text(writer, texts)));
        }
        let text = texts.collect().await?.pop().unwrap_or_default();
        let mut reply = part(&texts.loaded.name, Place::Response, &text.text, "", Vec::new());
        if let Some(f) = &text.finish {
            finish(&mut reply, f, texts.started.elapsed());
        }
        return Ok(http::json(&reply));
    }
    let mut messages = Vec::new();
    messages.extend(fields.text("system").filter(|s| !s.is_empty()).map(|s| Message::new("system", s)));
    messages.push(Message::new("user", prompt));
    let task = Task {
        messages,
        tools: Vec::new(),
        choice: Choice::None,
        parallel: true,
        shape,
        shape_field: "format",
        variables: variables(fields)?,
        split_reasoning: true,
        budget: None,
        settings,
    };
    reply(&call, loaded, task, Place::Response).await
}

async fn write_text(writer: Writer, mut texts: Texts) -> Result<(), Gone> {
    let model = texts.loaded.name.clone();
    while let Some(piece) = texts.next().await {
        let piece = match piece {
            Ok(piece) => piece,
            Err(e) => return writer.object(&e.body(Protocol::Ollama)).await,
        };
        if piece.text.is_empty() && piece.finish.is_none() {
            continue;
        }
        let mut object = part(&model, Place::Response, &piece.text, "", Vec::new());
        if let Some(f) = &piece.finish {
            finish(&mut object, f, texts.started.elapsed());
        }
        writer.object(&object).await?;
    }
    Ok(())
}

fn tag(call: &Call, listing: &Listing) -> Value {
    let size = listing.path.as_ref().and_then(|p| std::fs::metadata(p).ok()).map_or(0, |m| m.len());
    json!({
        "name": listing.name,
        "model": listing.name,
        "modified_at": timestamp(call.app.models.started),
        "size": size,
        "digest": "",
        "details": {
            "parent_model": "", "format": "gguf", "family": "", "families": [], "parameter_size": "",
            "quantization_level": "",
        },
    })
}

/// `GET /api/tags`
pub(crate) async fn tags(call: Call) -> Result<Response, ApiError> {
    let models: Vec<Value> = call.app.models.list().iter().map(|l| tag(&call, l)).collect();
    Ok(http::json(&json!({ "models": models })))
}

/// `GET /api/ps`
pub(crate) async fn ps(call: Call) -> Result<Response, ApiError> {
    let loaded = call.app.models.list().into_iter().filter(|l| l.status == "loaded");
    let models: Vec<Value> = loaded.map(|l| tag(&call, &l)).collect();
    Ok(http::json(&json!({ "models": models })))
}

/// `GET /api/version`
pub(crate) async fn version(_: Call) -> Result<Response, ApiError> {
    Ok(http::json(&json!({ "version": env!("CARGO_PKG_VERSION") })))
}

pub(crate) const SHOW: &[Field] = &[
    field("model", Takes::Text, "The model's name or alias."),
    field("name", Takes::Text, "An older name of the same."),
    field("verbose", Takes::Bool, "Not read."),
];

/// `POST /api/show`
pub(crate) async fn show(call: Call) -> Result<Response, ApiError> {
    let name = call.fields.text("model").or(call.fields.text("name"));
    let known = name.is_some_and(|name| call.app.models.listing(name).is_some());
    if let Some(name) = name.filter(|_| !known) {
        return Err(ApiError::new(Kind::NotFound, format!("model {name:?} not found")));
    }
    let loaded = call.app.models.acquire(name).await?;
    let model = loaded.model();
    let template = model.chat_template()?;
    let caps = template.capabilities();
    // Tools can be told in words where the template cannot.
    let mut capabilities = match model.check_generates() {
        Ok(()) => vec!["completion", "tools"],
        Err(_) => vec!["embedding"],
    };
    if model.tokenizer().special_ids().fim_middle.is_some() {
        capabilities.push("insert");
    }
    if caps.thinking_switch {
        capabilities.push("thinking");
    }
    let hp = model.arch().hparams();
    let family = model.file().meta().opt_str("general.architecture").ok().flatten().unwrap_or_default();
    let mut info = Map::new();
    info.insert("general.architecture".into(), family.into());
    info.insert(format!("{family}.context_length"), hp.context_length.into());
    info.insert(format!("{family}.embedding_length"), hp.dim.into());
    Ok(http::json(&json!({
        "modelfile": "",
        "parameters": "",
        "template": template.source(),
        "details": {
            "parent_model": "", "format": "gguf", "family": family, "families": [family], "parameter_size": "",
            "quantization_level": "",
        },
        "model_info": info,
        "capabilities": capabilities,
        "modified_at": timestamp(call.app.models.started),
    })))
}
