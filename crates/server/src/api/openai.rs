//! OpenAI's chat completions.

use std::collections::HashMap;

use axum::response::Response;
use serde_json::{Map, Value, json};
use wootz::template::Message;
use wootz::tools;

use crate::chat::{self, Answers, End, Step, Task, Usage, Whole, timings};
use crate::common::{self, chat_logprobs, new_id, now};
use crate::error::{ApiError, Protocol};
use crate::fields::{Field, Fields, Takes, field};
use crate::http::{self, Call, Framing, Gone, Writer};
use crate::toolcall;

pub(crate) const CHAT: &[Field] = &[
    field("messages", Takes::List, "The conversation."),
    field("max_tokens", common::TOKENS, "Tokens to generate at most; -1 for as many as fit, the default."),
    field("max_completion_tokens", common::TOKENS, "The newer name of max_tokens."),
    field("n", Takes::Int(1, 64), "Answers to generate."),
    field("stream", Takes::Bool, "Whether the answer comes piece by piece."),
    field("stream_options", Takes::Object, "`include_usage`: a last chunk with the counts of tokens."),
    field("logprobs", Takes::Bool, "Whether the log-probability of each token is told."),
    field("top_logprobs", Takes::Int(0, 20), "Of how many other tokens at each place too."),
    field("response_format", Takes::Object, "text, json_object or json_schema."),
    field("tools", Takes::List, "Functions that the model may call."),
    field("tool_choice", Takes::Any, "none, auto, required, or one function."),
    field("parallel_tool_calls", Takes::Bool, "Whether one answer may hold several calls; true by default."),
    field("metadata", Takes::Object, "Not read."),
    field("store", Takes::Bool, "Not read: nothing is ever stored."),
    field("service_tier", Takes::Text, "Not read."),
    field("safety_identifier", Takes::Text, "Not read."),
    field("prompt_cache_key", Takes::Text, "Not read: all prefixes are shared."),
    field("verbosity", Takes::Choice(&["low", "medium", "high"]), "Not read."),
    field("modalities", Takes::Refused(text_alone), "models of this server write text only"),
    field("audio", Takes::Refused(never), "models of this server write text only"),
    field("functions", Takes::Refused(empty), "it was replaced by `tools`"),
    field("function_call", Takes::Refused(never), "it was replaced by `tool_choice`"),
    field("web_search_options", Takes::Refused(never), "this server searches nothing"),
    field("prediction", Takes::Refused(never), "there is no speculative decoding"),
];

pub(crate) fn never(_: &Value) -> bool {
    false
}

pub(crate) fn empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
}

fn text_alone(value: &Value) -> bool {
    value.as_array().is_some_and(|list| list.iter().all(|m| m == "text"))
}

pub(crate) const STREAM_OPTIONS: &[Field] = &[
    field("include_usage", Takes::Bool, "A last chunk with the counts of tokens."),
    field("include_obfuscation", Takes::Bool, "Not read."),
];

/// Reads OpenAI's messages.
///
/// # Errors
/// Names the message and field at fault.
pub(crate) fn messages(fields: &Fields) -> Result<Vec<Message>, ApiError> {
    fields.required("messages", "a list")?;
    let list = fields.list("messages");
    let roles = ["system", "developer", "user", "assistant", "tool"];
    for (i, message) in list.iter().enumerate() {
        if let Some(role) = message["role"].as_str().filter(|role| !roles.contains(role)) {
            let found = format!("one of {}, found {role:?}", roles.join(", "));
            return Err(ApiError::field(format!("messages[{i}].role"), found));
        }
    }
    Message::list_from_json(list).map_err(|e| {
        let place = format!("messages[{}]", e.index);
        let param = if e.field == "message" { place } else { format!("{place}.{}", e.field) };
        ApiError::field(param, format!("{}, found {}", e.expected, e.found))
    })
}

/// `POST /v1/chat/completions`
pub(crate) async fn chat(call: Call) -> Result<Response, ApiError> {
    let fields = &call.fields;
    let loaded = call.app.models.acquire(fields.text("model")).await?;
    let task = task(&call, &loaded)?;
    let stream = fields.bool("stream").unwrap_or(false);
    let options = fields.object("stream_options", STREAM_OPTIONS)?;
    let usage = options.is_some_and(|o| o.bool("include_usage") == Some(true));
    let mut answers = chat::start(&call.app, loaded, task).await?;
    let head =
        Head { id: format!("chatcmpl-{}", new_id()), created: now(), model: answers.loaded.name.clone() };
    if stream {
        let write = move |writer| write_chat(writer, answers, head, usage);
        return Ok(http::stream(&call.app, Framing::Events, write));
    }
    let all = answers.collect().await?;
    let choices: Vec<Value> =
        all.iter().enumerate().map(|(index, whole)| choice(&answers, index, whole)).collect();
    let mut reply = head.object("chat.completion", choices);
    reply["usage"] = Usage::of(&all).openai();
    if let Some(summary) = all.first().and_then(|a| a.summary.as_ref()) {
        reply["timings"] = timings(&summary.finish);
    }
    answers.tell_left_out(&mut reply);
    Ok(http::json(&reply))
}

/// `POST /v1/chat/completions/input_tokens`
pub(crate) async fn input_tokens(call: Call) -> Result<Response, ApiError> {
    let loaded = call.app.models.acquire(call.fields.text("model")).await?;
    let count = chat::count(task(&call, &loaded)?, loaded).await?;
    Ok(http::json(&json!({ "input_tokens": count })))
}

/// The task that a chat request describes.
pub(crate) fn task(call: &Call, loaded: &crate::models::Loaded) -> Result<Task, ApiError> {
    let fields = &call.fields;
    let messages = messages(fields)?;
    let mut settings = common::settings(call, loaded, &["max_completion_tokens", "max_tokens"], "stop")?;
    settings.n = fields.count("n").unwrap_or(1);
    settings.sampling.n_probs = match (fields.bool("logprobs"), fields.count("top_logprobs")) {
        (Some(true), top) => Some(top.unwrap_or(0)),
        (_, None | Some(0)) => None,
        (_, Some(_)) => return Err(fields.wrong("top_logprobs", "`logprobs`: true beside it")),
    };
    let tools = toolcall::read_openai(fields.list("tools"))?;
    let choice = toolcall::choice_openai(fields.get("tool_choice"), &tools)?;
    let (shape, shape_field) = common::shape(fields)?.unzip();
    let reasoning = common::reasoning(fields);
    Ok(Task {
        messages,
        tools,
        choice,
        parallel: fields.bool("parallel_tool_calls").unwrap_or(true),
        shape,
        shape_field: shape_field.unwrap_or("response_format"),
        variables: reasoning.variables,
        split_reasoning: reasoning.split,
        budget: reasoning.budget,
        settings,
    })
}

/// What all parts of a reply say.
#[derive(Clone)]
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
}

impl Head {
    pub(crate) fn object(&self, kind: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }
}

pub(crate) fn finish_reason(end: &End) -> &'static str {
    match end {
        End::Stop | End::StopText(_) => "stop",
        End::Length => "length",
        End::ToolCalls => "tool_calls",
    }
}

fn choice(answers: &Answers, index: usize, whole: &Whole) -> Value {
    let tokenizer = answers.loaded.model().tokenizer();
    let mut message = Map::new();
    message.insert("role".into(), "assistant".into());
    // OpenAI writes null where there is nothing beside calls.
    let content = if whole.content.is_empty() && !whole.calls.is_empty() {
        Value::Null
    } else {
        whole.content.clone().into()
    };
    message.insert("content".into(), content);
    message.insert("refusal".into(), Value::Null);
    if !whole.reasoning.is_empty() {
        message.insert("reasoning_content".into(), whole.reasoning.clone().into());
    }
    if !whole.calls.is_empty() {
        let calls = whole.calls.iter().map(|call| {
            json!({
                "id": call.id.clone().unwrap_or_else(new_id),
                "type": "function",
                "function": { "name": call.name, "arguments": call.arguments },
            })
        });
        message.insert("tool_calls".into(), calls.collect());
    }
    let logprobs = match whole.logprobs.is_empty() {
        true => Value::Null,
        false => {
            let list: Vec<Value> = whole.logprobs.iter().map(|l| chat_logprobs(tokenizer, l)).collect();
            json!({ "content": list, "refusal": null })
        }
    };
    json!({
        "index": index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": whole.summary.as_ref().map(|s| finish_reason(&s.end)),
    })
}

/// Writes an error in the midst of a stream.
pub(crate) async fn write_error(writer: &Writer, e: &ApiError, protocol: Protocol) -> Result<(), Gone> {
    writer.object(&e.body(protocol)).await
}

async fn write_chat(writer: Writer, mut answers: Answers, head: Head, with_usage: bool) -> Result<(), Gone> {
    let model = answers.loaded.model().clone();
    let mut usage = Usage::default();
    let mut begun: HashMap<usize, bool> = HashMap::new();
    let mut held: HashMap<usize, Vec<Value>> = HashMap::new();
    while let Some(step) = answers.next().await {
        let Step { index, events, logprobs, summary, .. } = match step {
            Ok(step) => step,
            Err(e) => return write_error(&writer, &e, Protocol::OpenAi).await,
        };
        if let Some(logprobs) = &logprobs {
            held.entry(index).or_default().push(chat_logprobs(model.tokenizer(), logprobs));
        }
        let mut deltas: Vec<Value> = Vec::new();
        if begun.insert(index, true).is_none() {
            deltas.push(json!({ "role": "assistant", "content": "" }));
        }
        deltas.extend(events.into_iter().filter_map(delta));
        let count = deltas.len();
        for (i, delta) in deltas.into_iter().enumerate() {
            // The probabilities of all tokens since the last chunk go with the newest.
            let logprobs = if i + 1 == count { held.remove(&index) } else { None };
            let mut choice = json!({ "index": index, "delta": delta, "finish_reason": null });
            choice["logprobs"] =
                logprobs.map_or(Value::Null, |list| json!({ "content": list, "refusal": null }));
            writer.object(&head.object("chat.completion.chunk", vec![choice])).await?;
        }
        if let Some(summary) = summary {
            usage.add(&summary);
            let reason = finish_reason(&summary.end);
            let logprobs = held.remove(&index).map(|list| json!({ "content": list, "refusal": null }));
            let choice =
                json!({ "index": index, "delta": {}, "finish_reason": reason, "logprobs": logprobs });
            let mut chunk = head.object("chat.completion.chunk", vec![choice]);
            chunk["timings"] = timings(&summary.finish);
            answers.tell_left_out(&mut chunk);
            writer.object(&chunk).await?;
        }
    }
    if with_usage {
        let mut chunk = head.object("chat.completion.chunk", Vec::new());
        chunk["usage"] = usage.openai();
        writer.object(&chunk).await?;
    }
    writer.raw("data: [DONE]\n\n".to_owned()).await
}

/// An event as a delta of a chunk.
fn delta(event: tools::Event) -> Option<Value> {
    match event {
        tools::Event::Content(text) => Some(json!({ "content": text })),
        tools::Event::Reasoning(text) => Some(json!({ "reasoning_content": text })),
        tools::Event::ToolCallStart { index, id, name } => Some(json!({ "tool_calls": [{
            "index": index,
            "id": id.unwrap_or_else(new_id),
            "type": "function",
            "function": { "name": name, "arguments": "" },
        }] })),
        tools::Event::ToolCallArguments { index, delta } => {
            Some(json!({ "tool_calls": [{ "index": index, "function": { "arguments": delta } }] }))
        }
        tools::Event::ToolCallEnd { .. } => None,
    }
}
