//! Anthropic's messages.

use axum::response::Response;
use serde_json::{Map, Value, json};
use wootz::template::{Content, Message, ToolCall};
use wootz::tools;

use crate::api::openai::never;
use crate::chat::{self, Answers, End, Step, Task, Usage};
use crate::common::{self, new_id};
use crate::error::{ApiError, Protocol};
use crate::fields::{Field, Fields, Takes, field, kind};
use crate::http::{self, Call, Framing, Gone, Writer};
use crate::models::Loaded;
use crate::toolcall::{self, Choice};

/// Fields of a conversation, which both endpoints take.
pub(crate) const CONVERSATION: &[Field] = &[
    field("model", Takes::Text, "The model's name or alias; without it the first model."),
    field("messages", Takes::List, "The conversation, of the roles user and assistant."),
    field("system", Takes::Any, "The system message: a string or a list of text blocks."),
    field("tools", Takes::List, "Tools that the model may call."),
    field("tool_choice", Takes::Object, "auto, any, none or one tool."),
    field("thinking", Takes::Object, "Whether the model reasons, where its template knows."),
    field("mcp_servers", Takes::Refused(never), "this server calls no other"),
    field("container", Takes::Refused(never), "there are no containers"),
    field("context_management", Takes::Refused(never), "a conversation is never cut"),
    field("betas", Takes::List, "Not read."),
];

pub(crate) const MESSAGES: &[Field] = &[
    field("max_tokens", Takes::Int(1, i32::MAX as i64), "Tokens to generate at most; 4096 by default."),
    field("stop_sequences", Takes::Texts, "Texts that end the answer and are no part of it."),
    field("stream", Takes::Bool, "Whether the answer comes as events."),
    field("metadata", Takes::Object, "Not read, but for `user_id`, by which users take turns."),
    field("service_tier", Takes::Text, "Not read."),
    field("output_config", Takes::Object, "`format`: a JSON Schema that the answer follows."),
    field("output_format", Takes::Object, "An older place of the same."),
    field("cache_prompt", Takes::Bool, "Whether a prefix computed before may be reused; true by default."),
    field("priority", Takes::Int(-1000, 1000), "Waiting requests of a higher priority start first."),
];

/// Tokens to generate where a request does not say.
const MAX_TOKENS: usize = 4096;

const TOOL: &[Field] = &[
    field(
        "type",
        Takes::Choice(&["custom"]),
        "The kind of tool; tools that run on Anthropic's side are unknown.",
    ),
    field("name", Takes::Text, "The tool's name."),
    field("description", Takes::Text, "What it does."),
    field("input_schema", Takes::Object, "A JSON Schema of its input."),
    field("strict", Takes::Bool, "Whether the input must follow the schema."),
    field("cache_control", Takes::Object, "Not read: all prefixes are cached."),
    field("input_examples", Takes::List, "Not read."),
];

const CHOICE: &[Field] = &[
    field("type", Takes::Choice(&["auto", "any", "tool", "none"]), "Which calls there may be."),
    field("name", Takes::Text, "The tool to call."),
    field("disable_parallel_tool_use", Takes::Bool, "Whether there may be one call only."),
];

const THINKING: &[Field] = &[
    field("type", Takes::Choice(&["enabled", "disabled", "adaptive"]), "Whether the model reasons."),
    field("budget_tokens", Takes::Int(1, i32::MAX as i64), "Tokens of reasoning at most."),
    field("display", Takes::Text, "Not read."),
];

const FORMAT: &[Field] = &[
    field("type", Takes::Choice(&["json_schema"]), "The form."),
    field("schema", Takes::Any, "The schema."),
];

const OUTPUT: &[Field] = &[
    field("format", Takes::Object, "A JSON Schema that the answer follows."),
    field("effort", Takes::Choice(&["low", "medium", "high", "max"]), "How much the model reasons."),
];

/// The task that a request describes.
fn task(call: &Call, loaded: &Loaded) -> Result<Task, ApiError> {
    let fields = &call.fields;
    let mut settings = common::settings(call, loaded, &["max_tokens"], "stop_sequences")?;
    settings.max_tokens = settings.max_tokens.or(Some(MAX_TOKENS));
    let (tools, choice, parallel) = read_tools(fields)?;
    let (mut variables, mut budget) = (Map::new(), None);
    if let Some(thinking) = fields.object("thinking", THINKING)? {
        let on = thinking.required_text("type")? != "disabled";
        variables.insert("enable_thinking".into(), on.into());
        budget = thinking.count("budget_tokens");
    }
    let output = fields.object("output_config", OUTPUT)?;
    if let Some(effort) = output.as_ref().and_then(|o| o.text("effort")) {
        variables.insert("reasoning_effort".into(), if effort == "max" { "high" } else { effort }.into());
    }
    let format = match &output {
        Some(output) => output.object("format", FORMAT)?,
        None => None,
    };
    let format = format.or(fields.object("output_format", FORMAT)?);
    let shape = match &format {
        Some(format) => {
            let schema = common::schema_value(format, "schema", format.required("schema", "a JSON Schema")?)?;
            Some(crate::constrain::Shape::Schema(schema))
        }
        None => None,
    };
    Ok(Task {
        messages: messages(fields)?,
        tools,
        choice,
        parallel,
        shape,
        shape_field: "output_config",
        variables,
        split_reasoning: true,
        budget,
        settings,
    })
}

fn read_tools(fields: &Fields) -> Result<(Vec<Value>, Choice, bool), ApiError> {
    let mut tools = Vec::new();
    let mut names = Vec::new();
    for (i, value) in fields.list("tools").iter().enumerate() {
        let tool = Fields::item(value, &format!("tools[{i}]"), TOOL)?;
        let name = tool.required_text("name")?;
        toolcall::check_name(&tool, name, &mut names)?;
        let schema = tool.required("input_schema", "an object")?;
        let mut function = json!({ "name": name, "parameters": schema });
        if let Some(text) = tool.text("description") {
            function["description"] = text.into();
        }
        if tool.bool("strict") == Some(true) {
            function["strict"] = true.into();
        }
        tools.push(json!({ "type": "function", "function": function }));
    }
    let Some(choice) = fields.object("tool_choice", CHOICE)? else { return Ok((tools, Choice::Auto, true)) };
    let parallel = !choice.bool("disable_parallel_tool_use").unwrap_or(false);
    let choice = match choice.required_text("type")? {
        "none" => Choice::None,
        "any" => Choice::Required,
        "tool" => Choice::Named(choice.required_text("name")?.to_owned()),
        _ => Choice::Auto,
    };
    toolcall::check_choice(&choice, &tools)?;
    Ok((tools, choice, parallel))
}

fn messages(fields: &Fields) -> Result<Vec<Message>, ApiError> {
    let mut out = Vec::new();
    if let Some(system) = fields.get("system") {
        let text = texts(system, "system")?;
        if !text.is_empty() {
            out.push(Message::new("system", text));
        }
    }
    fields.required("messages", "a list")?;
    for (i, message) in fields.list("messages").iter().enumerate() {
        let path = format!("messages[{i}]");
        let Value::Object(map) = message else {
            return Err(ApiError::field(path, format!("an object, found {}", kind(message))));
        };
        let role = map.get("role").and_then(Value::as_str).unwrap_or_default();
        let content = map.get("content").unwrap_or(&Value::Null);
        match role {
            "user" => user(&mut out, content, &format!("{path}.content"))?,
            "assistant" => out.push(assistant(content, &format!("{path}.content"))?),
            // Newer clients put rules in the midst of a conversation.
            "system" => out.push(Message::new("system", texts(content, &format!("{path}.content"))?)),
            other => {
                let found = format!("one of user, assistant, system, found {other:?}");
                return Err(ApiError::field(format!("{path}.role"), found));
            }
        }
    }
    Ok(out)
}

/// The text of a string or of text blocks.
fn texts(value: &Value, path: &str) -> Result<String, ApiError> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Array(blocks) => {
            let mut out = Vec::new();
            for (i, block) in blocks.iter().enumerate() {
                match (block["type"].as_str(), block["text"].as_str()) {
                    (Some("text"), Some(text)) => out.push(text),
                    (found, _) => return Err(unknown_block(&format!("{path}[{i}]"), found)),
                }
            }
            Ok(out.join("\n"))
        }
        other => Err(ApiError::field(path, format!("a string or a list of blocks, found {}", kind(other)))),
    }
}

fn unknown_block(path: &str, found: Option<&str>) -> ApiError {
    match found {
        Some(found @ ("image" | "document" | "search_result" | "container_upload")) => {
            let why = format!("a block of type {found:?}: models of this server read text only");
            ApiError::unsupported(path, why)
        }
        Some(found) => {
            ApiError::field(path, format!("a block of a known type with its fields, found {found:?}"))
        }
        None => ApiError::field(format!("{path}.type"), "a string"),
    }
}

/// A user's turn: words, and answers of tools, which become messages of their own.
fn user(out: &mut Vec<Message>, content: &Value, path: &str) -> Result<(), ApiError> {
    let Value::Array(blocks) = content else {
        out.push(Message::new("user", texts(content, path)?));
        return Ok(());
    };
    let mut words: Vec<&str> = Vec::new();
    for (i, block) in blocks.iter().enumerate() {
        match (block["type"].as_str(), block["text"].as_str()) {
            (Some("text"), Some(text)) => words.push(text),
            (Some("tool_result"), _) => {
                let path = format!("{path}[{i}]");
                let Some(id) = block["tool_use_id"].as_str() else {
                    return Err(ApiError::field(format!("{path}.tool_use_id"), "a string"));
                };
                let text = match &block["content"] {
                    Value::Null => String::new(),
                    content => texts(content, &format!("{path}.content"))?,
                };
                let failed = block["is_error"] == true;
                let text = if failed { format!("Error: {text}") } else { text };
                let name = name_of_call(out, id);
                out.push(Message { tool_call_id: Some(id.into()), name, ..Message::new("tool", text) });
            }
            (found, _) => return Err(unknown_block(&format!("{path}[{i}]"), found)),
        }
    }
    if !words.is_empty() {
        out.push(Message::new("user", words.join("\n")));
    }
    Ok(())
}

fn name_of_call(messages: &[Message], id: &str) -> Option<String> {
    let calls = messages.iter().rev().flat_map(|m| &m.tool_calls);
    calls.into_iter().find(|call| call.id.as_deref() == Some(id)).map(|call| call.name.clone())
}

fn assistant(content: &Value, path: &str) -> Result<Message, ApiError> {
    let Value::Array(blocks) = content else {
        return Ok(Message::new("assistant", texts(content, path)?));
    };
    let mut message = Message { role: "assistant".into(), ..Message::default() };
    let mut words = String::new();
    for (i, block) in blocks.iter().enumerate() {
        let text = |key: &str| block[key].as_str();
        match block["type"].as_str() {
            Some("text") if text("text").is_some() => words.push_str(text("text").unwrap_or_default()),
            Some("thinking") if text("thinking").is_some() => {
                message.reasoning_content = text("thinking").map(str::to_owned);
            }
            // Sealed reasoning of another server says nothing here.
            Some("redacted_thinking") => {}
            Some("tool_use") => {
                let path = format!("{path}[{i}]");
                let Some(name) = text("name") else {
                    return Err(ApiError::field(format!("{path}.name"), "a string"));
                };
                let arguments = match &block["input"] {
                    input @ Value::Object(_) => input.clone(),
                    other => {
                        let found = format!("an object, found {}", kind(other));
                        return Err(ApiError::field(format!("{path}.input"), found));
                    }
                };
                let id = text("id").map(str::to_owned);
                message.tool_calls.push(ToolCall { id, name: name.to_owned(), arguments });
            }
            found => return Err(unknown_block(&format!("{path}[{i}]"), found)),
        }
    }
    if !words.is_empty() {
        message.content = Content::Text(words);
    }
    Ok(message)
}

/// `POST /v1/messages/count_tokens`
pub(crate) async fn count_tokens(call: Call) -> Result<Response, ApiError> {
    let loaded = call.app.models.acquire(call.fields.text("model")).await?;
    let task = task(&call, &loaded)?;
    Ok(http::json(&json!({ "input_tokens": chat::count(task, loaded).await? })))
}

/// `POST /v1/messages`
pub(crate) async fn messages_endpoint(mut call: Call) -> Result<Response, ApiError> {
    let loaded = call.app.models.acquire(call.fields.text("model")).await?;
    if let Some(user) = call.fields.map("metadata").and_then(|m| m.get("user_id")).and_then(Value::as_str) {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        (call.user, user).hash(&mut hasher);
        call.user = hasher.finish();
    }
    let task = task(&call, &loaded)?;
    let stream = call.fields.bool("stream").unwrap_or(false);
    let mut answers = chat::start(&call.app, loaded, task).await?;
    let id = format!("msg_{}", new_id());
    if stream {
        let write = move |writer| write_events(writer, answers, id);
        return Ok(http::stream(&call.app, Framing::Events, write));
    }
    let whole = answers.collect().await?.pop().unwrap_or_default();
    let mut content = Vec::new();
    if !whole.reasoning.is_empty() {
        content.push(json!({ "type": "thinking", "thinking": whole.reasoning, "signature": "" }));
    }
    if !whole.content.is_empty() || whole.calls.is_empty() {
        content.push(json!({ "type": "text", "text": whole.content, "citations": null }));
    }
    for call in &whole.calls {
        let input: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
        let id = call.id.clone().unwrap_or_else(new_id);
        content.push(json!({ "type": "tool_use", "id": id, "name": call.name, "input": input }));
    }
    let mut reply = head(&id, &answers.loaded.name, content);
    if let Some(summary) = &whole.summary {
        let (reason, sequence) = stop(&summary.end);
        reply["stop_reason"] = reason.into();
        reply["stop_sequence"] = sequence;
    }
    reply["usage"] = usage(&Usage::of(std::slice::from_ref(&whole)));
    Ok(http::json(&reply))
}

fn head(id: &str, model: &str, content: Vec<Value>) -> Value {
    json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": null,
        "stop_sequence": null,
    })
}

fn stop(end: &End) -> (&'static str, Value) {
    match end {
        End::Stop => ("end_turn", Value::Null),
        End::StopText(text) => ("stop_sequence", text.as_str().into()),
        End::Length => ("max_tokens", Value::Null),
        End::ToolCalls => ("tool_use", Value::Null),
    }
}

fn usage(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt - usage.cached,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.generated,
    })
}

/// The kinds of blocks of an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    Tool,
}

/// Writes blocks one after the other.
struct Blocks {
    writer: Writer,
    open: Option<Block>,
    index: usize,
}

impl Blocks {
    async fn open(&mut self, kind: Block, content: Value) -> Result<(), Gone> {
        self.close().await?;
        self.open = Some(kind);
        let event = json!({ "type": "content_block_start", "index": self.index, "content_block": content });
        self.writer.event("content_block_start", &event).await
    }

    async fn delta(&self, delta: Value) -> Result<(), Gone> {
        let event = json!({ "type": "content_block_delta", "index": self.index, "delta": delta });
        self.writer.event("content_block_delta", &event).await
    }

    async fn close(&mut self) -> Result<(), Gone> {
        if self.open.take().is_some() {
            let event = json!({ "type": "content_block_stop", "index": self.index });
            self.writer.event("content_block_stop", &event).await?;
            self.index += 1;
        }
        Ok(())
    }

    async fn write(&mut self, event: tools::Event) -> Result<(), Gone> {
        match event {
            tools::Event::Content(text) => {
                if self.open != Some(Block::Text) {
                    self.open(Block::Text, json!({ "type": "text", "text": "" })).await?;
                }
                self.delta(json!({ "type": "text_delta", "text": text })).await
            }
            tools::Event::Reasoning(text) => {
                if self.open != Some(Block::Thinking) {
                    let block = json!({ "type": "thinking", "thinking": "", "signature": "" });
                    self.open(Block::Thinking, block).await?;
                }
                self.delta(json!({ "type": "thinking_delta", "thinking": text })).await
            }
            tools::Event::ToolCallStart { id, name, .. } => {
                let id = id.unwrap_or_else(new_id);
                let block = json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
                self.open(Block::Tool, block).await
            }
            tools::Event::ToolCallArguments { delta, .. } => {
                self.delta(json!({ "type": "input_json_delta", "partial_json": delta })).await
            }
            tools::Event::ToolCallEnd { .. } => self.close().await,
        }
    }
}

async fn write_events(writer: Writer, mut answers: Answers, id: String) -> Result<(), Gone> {
    let mut message = head(&id, &answers.loaded.name, Vec::new());
    let begin = Usage { prompt: answers.prompt_tokens, ..Usage::default() };
    message["usage"] = usage(&begin);
    writer.event("message_start", &json!({ "type": "message_start", "message": message })).await?;
    writer.event("ping", &json!({ "type": "ping" })).await?;
    let mut blocks = Blocks { writer, open: None, index: 0 };
    while let Some(step) = answers.next().await {
        let Step { events, summary, .. } = match step {
            Ok(step) => step,
            Err(e) => return blocks.writer.event("error", &e.body(Protocol::Anthropic)).await,
        };
        for event in events {
            blocks.write(event).await?;
        }
        if let Some(summary) = summary {
            if blocks.index == 0 && blocks.open.is_none() {
                // An answer of nothing is a text of nothing.
                blocks.open(Block::Text, json!({ "type": "text", "text": "" })).await?;
            }
            blocks.close().await?;
            let mut counts = Usage::default();
            counts.add(&summary);
            let (reason, sequence) = stop(&summary.end);
            let delta = json!({ "stop_reason": reason, "stop_sequence": sequence });
            let event = json!({ "type": "message_delta", "delta": delta, "usage": usage(&counts) });
            blocks.writer.event("message_delta", &event).await?;
        }
    }
    blocks.writer.event("message_stop", &json!({ "type": "message_stop" })).await
}
