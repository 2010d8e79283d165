//! OpenAI's responses, as far as they keep no state: nothing is stored between requests.

use axum::response::Response;
use serde_json::{Value, json};
use wootz::template::{Content, Message, ToolCall};
use wootz::tools;

use crate::api::openai::never;
use crate::chat::{self, Answers, End, Step, Summary, Task, Usage, Whole};
use crate::common::{self, new_id, now};
use crate::constrain::Shape;
use crate::error::{ApiError, Protocol};
use crate::fields::{Field, Fields, Takes, field, kind};
use crate::http::{self, Call, Framing, Gone, Writer};
use crate::models::Loaded;
use crate::toolcall;

pub(crate) const RESPONSES: &[Field] = &[
    field("input", Takes::Any, "A text, or a list of messages, calls and their outputs."),
    field("instructions", Takes::Text, "The system message."),
    field("max_output_tokens", common::TOKENS, "Tokens to generate at most; as many as fit by default."),
    field("stream", Takes::Bool, "Whether the answer comes as events."),
    field("stream_options", Takes::Object, "Not read."),
    field("text", Takes::Object, "`format`: text, json_object or json_schema."),
    field("tools", Takes::List, "Functions that the model may call."),
    field("tool_choice", Takes::Any, "none, auto, required, or one function."),
    field("parallel_tool_calls", Takes::Bool, "Whether one answer may hold several calls; true by default."),
    field("reasoning", Takes::Object, "`effort`: how much the model reasons, where its template knows."),
    field("top_logprobs", Takes::Refused(zero), "use /v1/chat/completions"),
    field("store", Takes::Bool, "Not read: nothing is ever stored."),
    field("metadata", Takes::Object, "Returned as it is."),
    field("include", Takes::List, "Not read."),
    field("previous_response_id", Takes::Refused(never), "nothing is stored; send the whole conversation"),
    field("conversation", Takes::Refused(never), "nothing is stored; send the whole conversation"),
    field("background", Takes::Refused(is_false), "nothing is stored"),
    field("prompt", Takes::Refused(never), "there are no stored prompts"),
    field("service_tier", Takes::Text, "Not read."),
    field("safety_identifier", Takes::Text, "Not read."),
    field("prompt_cache_key", Takes::Text, "Not read: all prefixes are shared."),
];

fn zero(value: &Value) -> bool {
    value == 0
}

fn is_false(value: &Value) -> bool {
    value == false
}

const TEXT: &[Field] = &[
    field("format", Takes::Object, "The form of the answer."),
    field("verbosity", Takes::Choice(&["low", "medium", "high"]), "Not read."),
];

const FORMAT: &[Field] = &[
    field("type", Takes::Choice(&["text", "json_object", "json_schema"]), "The form."),
    field("name", Takes::Text, "The schema's name."),
    field("description", Takes::Text, "What it is for."),
    field("schema", Takes::Any, "The schema."),
    field("strict", Takes::Bool, "The schema is kept to in any case."),
];

const EFFORT: &[Field] = &[
    field(
        "effort",
        Takes::Choice(&["none", "minimal", "low", "medium", "high", "xhigh"]),
        "How much the model reasons.",
    ),
    field("summary", Takes::Text, "Not read: reasoning is returned whole."),
    field("generate_summary", Takes::Text, "Not read."),
];

const TOOL: &[Field] = &[
    field("type", Takes::Choice(&["function"]), "The kind of tool; there are no others here."),
    field("name", Takes::Text, "The function's name."),
    field("description", Takes::Text, "What it does."),
    field("parameters", Takes::Object, "A JSON Schema of its arguments."),
    field("strict", Takes::Bool, "Whether arguments must follow the schema."),
];

fn read_tools(fields: &Fields) -> Result<Vec<Value>, ApiError> {
    let mut names = Vec::new();
    let mut out = Vec::new();
    for (i, value) in fields.list("tools").iter().enumerate() {
        let tool = Fields::item(value, &format!("tools[{i}]"), TOOL)?;
        let name = tool.required_text("name")?;
        toolcall::check_name(&tool, name, &mut names)?;
        let mut function = tool.all().clone();
        function.remove("type");
        out.push(json!({ "type": "function", "function": function }));
    }
    Ok(out)
}

/// The messages that the input's items are.
fn input(fields: &Fields) -> Result<Vec<Message>, ApiError> {
    let mut out = Vec::new();
    out.extend(fields.text("instructions").map(|text| Message::new("system", text)));
    let items = match fields.required("input", "a string or a list")? {
        Value::String(text) => {
            out.push(Message::new("user", text.as_str()));
            return Ok(out);
        }
        Value::Array(items) => items,
        other => return Err(fields.wrong("input", format!("a string or a list, found {}", kind(other)))),
    };
    for (i, item) in items.iter().enumerate() {
        let path = format!("input[{i}]");
        let text = |name: &str| {
            let value = item[name].as_str().map(str::to_owned);
            value.ok_or_else(|| ApiError::field(format!("{path}.{name}"), "a string"))
        };
        match item["type"].as_str().unwrap_or("message") {
            "message" => {
                let role = text("role")?;
                if !matches!(role.as_str(), "system" | "developer" | "user" | "assistant") {
                    let expected = format!("one of system, developer, user, assistant, found {role:?}");
                    return Err(ApiError::field(format!("{path}.role"), expected));
                }
                out.push(Message::new(role, content(&item["content"], &format!("{path}.content"))?));
            }
            "function_call" => {
                let arguments = Value::from(text("arguments")?);
                let call = ToolCall { id: Some(text("call_id")?), name: text("name")?, arguments };
                match out.last_mut() {
                    // Calls of one turn are one message, also with what was said before them.
                    Some(last) if last.role == "assistant" => last.tool_calls.push(call),
                    _ => out.push(Message {
                        role: "assistant".into(),
                        content: Content::None,
                        tool_calls: vec![call],
                        ..Message::default()
                    }),
                }
            }
            "function_call_output" => {
                let id = text("call_id")?;
                let words = content(&item["output"], &format!("{path}.output"))?;
                let calls = out.iter().rev().flat_map(|m| &m.tool_calls);
                let name = calls.into_iter().find(|c| c.id.as_ref() == Some(&id)).map(|c| c.name.clone());
                out.push(Message { tool_call_id: Some(id), name, ..Message::new("tool", words) });
            }
            // What was thought before is no part of a conversation.
            "reasoning" => {}
            other => {
                let why = format!("an item of type {other:?} is none that this server keeps or runs");
                return Err(ApiError::unsupported(format!("{path}.type"), why));
            }
        }
    }
    Ok(out)
}

fn content(value: &Value, path: &str) -> Result<String, ApiError> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            let mut out = Vec::new();
            for (i, part) in parts.iter().enumerate() {
                match (part["type"].as_str(), part["text"].as_str(), part["refusal"].as_str()) {
                    (Some("input_text" | "output_text" | "text"), Some(text), _) => out.push(text),
                    (Some("refusal"), _, Some(text)) => out.push(text),
                    (found, ..) => {
                        let why = format!("a part of type {found:?}: models of this server read text only");
                        return Err(ApiError::unsupported(format!("{path}[{i}]"), why));
                    }
                }
            }
            Ok(out.join("\n"))
        }
        other => Err(ApiError::field(path, format!("a string or a list of parts, found {}", kind(other)))),
    }
}

fn task(call: &Call, loaded: &Loaded) -> Result<Task, ApiError> {
    let fields = &call.fields;
    let tools = read_tools(fields)?;
    let choice = toolcall::choice_openai(fields.get("tool_choice"), &tools)?;
    let format = match fields.object("text", TEXT)? {
        Some(text) => text.object("format", FORMAT)?,
        None => None,
    };
    let shape = match &format {
        Some(format) => match format.required_text("type")? {
            "json_object" => Some(Shape::JsonObject),
            "json_schema" => {
                let schema = format.required("schema", "a JSON Schema")?;
                Some(Shape::Schema(common::schema_value(format, "schema", schema)?))
            }
            _ => None,
        },
        None => None,
    };
    let mut variables = serde_json::Map::new();
    let effort = fields.object("reasoning", EFFORT)?;
    if let Some(effort) = effort.as_ref().and_then(|e| e.text("effort")) {
        variables.insert("enable_thinking".into(), (effort != "none").into());
        if effort != "none" {
            variables.insert("reasoning_effort".into(), effort.into());
        }
    }
    Ok(Task {
        messages: input(fields)?,
        tools,
        choice,
        parallel: fields.bool("parallel_tool_calls").unwrap_or(true),
        shape,
        shape_field: "text",
        variables,
        split_reasoning: true,
        budget: None,
        settings: common::settings(call, loaded, &["max_output_tokens"], "stop")?,
    })
}

/// What a response says of its request.
struct Head {
    id: String,
    created: u64,
    model: String,
    request: Fields,
    truncate: bool,
    /// Messages that were left out.
    left_out: usize,
}

impl Head {
    fn object(&self, output: Vec<Value>, ended: Option<&Summary>) -> Value {
        let get = |name: &str| self.request.get(name).cloned();
        let status = match ended.map(|s| &s.end) {
            None => "in_progress",
            Some(End::Length) => "incomplete",
            Some(_) => "completed",
        };
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": false,
            "error": null,
            "incomplete_details": null,
            "instructions": get("instructions"),
            "max_output_tokens": get("max_output_tokens"),
            "model": self.model,
            "output": output,
            "parallel_tool_calls": get("parallel_tool_calls").unwrap_or(true.into()),
            "previous_response_id": null,
            "reasoning": get("reasoning").unwrap_or_else(|| json!({ "effort": null, "summary": null })),
            "store": false,
            "temperature": get("temperature"),
            "text": get("text").unwrap_or_else(|| json!({ "format": { "type": "text" } })),
            "tool_choice": get("tool_choice").unwrap_or("auto".into()),
            "tools": self.request.list("tools"),
            "top_p": get("top_p"),
            "truncation": if self.truncate { "auto" } else { "disabled" },
            "usage": null,
            "metadata": get("metadata").unwrap_or_else(|| json!({})),
        });
        if self.left_out > 0 {
            response["truncated_messages"] = self.left_out.into();
        }
        if let Some(summary) = ended {
            if summary.end == End::Length {
                response["incomplete_details"] = json!({ "reason": "max_output_tokens" });
            }
            let mut usage = Usage::default();
            usage.add(summary);
            response["usage"] = json!({
                "input_tokens": usage.prompt,
                "input_tokens_details": { "cached_tokens": usage.cached },
                "output_tokens": usage.generated,
                "output_tokens_details": { "reasoning_tokens": usage.reasoning },
                "total_tokens": usage.prompt + usage.generated,
            });
        }
        response
    }
}

fn text_part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

fn message_item(id: &str, text: &str, status: &str) -> Value {
    let content = if status == "in_progress" { json!([]) } else { json!([text_part(text)]) };
    json!({ "id": id, "type": "message", "role": "assistant", "status": status, "content": content })
}

fn reasoning_item(id: &str, text: &str) -> Value {
    let content = match text.is_empty() {
        true => json!([]),
        false => json!([{ "type": "reasoning_text", "text": text }]),
    };
    json!({ "id": id, "type": "reasoning", "summary": [], "content": content })
}

fn call_item(id: &str, call_id: &str, name: &str, arguments: &str, status: &str) -> Value {
    json!({
        "id": id,
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": status,
    })
}

/// `POST /v1/responses/input_tokens`
pub(crate) async fn input_tokens(call: Call) -> Result<Response, ApiError> {
    let loaded = call.app.models.acquire(call.fields.text("model")).await?;
    let count = chat::count(task(&call, &loaded)?, loaded).await?;
    Ok(http::json(&json!({ "object": "response.input_tokens", "input_tokens": count })))
}

/// `POST /v1/responses`
pub(crate) async fn responses(call: Call) -> Result<Response, ApiError> {
    let loaded = call.app.models.acquire(call.fields.text("model")).await?;
    let task = task(&call, &loaded)?;
    let stream = call.fields.bool("stream").unwrap_or(false);
    let truncate = task.settings.truncate;
    let mut answers = chat::start(&call.app, loaded, task).await?;
    let head = Head {
        id: format!("resp_{}", new_id()),
        created: now(),
        model: answers.loaded.name.clone(),
        request: call.fields,
        truncate,
        left_out: answers.left_out,
    };
    if stream {
        let write = move |writer| write_events(writer, answers, head);
        return Ok(http::stream(&call.app, Framing::Events, write));
    }
    let whole = answers.collect().await?.pop().unwrap_or_default();
    Ok(http::json(&head.object(items(&whole), whole.summary.as_ref())))
}

fn items(whole: &Whole) -> Vec<Value> {
    let mut out = Vec::new();
    if !whole.reasoning.is_empty() {
        out.push(reasoning_item(&format!("rs_{}", new_id()), &whole.reasoning));
    }
    if !whole.content.is_empty() || whole.calls.is_empty() {
        out.push(message_item(&format!("msg_{}", new_id()), &whole.content, "completed"));
    }
    for call in &whole.calls {
        let id = call.id.clone().unwrap_or_else(new_id);
        out.push(call_item(&format!("fc_{}", new_id()), &id, &call.name, &call.arguments, "completed"));
    }
    out
}

/// The item that is being written.
enum Open {
    Reasoning { id: String, text: String },
    Message { id: String, text: String },
    Call { id: String, call_id: String, name: String, arguments: String },
}

/// Writes the events of a response, each with its number.
struct Events {
    writer: Writer,
    number: u64,
    open: Option<Open>,
    done: Vec<Value>,
}

impl Events {
    async fn send(&mut self, name: &str, mut event: Value) -> Result<(), Gone> {
        event["type"] = name.into();
        event["sequence_number"] = self.number.into();
        self.number += 1;
        self.writer.event(name, &event).await
    }

    /// Sends an event about the part that is being written.
    async fn part(&mut self, name: &str, id: &str, key: &str, value: Value) -> Result<(), Gone> {
        let mut event = json!({ "item_id": id, "output_index": self.done.len() });
        if !name.contains("function_call") {
            event["content_index"] = 0.into();
        }
        if name.contains("output_text") {
            event["logprobs"] = json!([]);
        }
        event[key] = value;
        self.send(name, event).await
    }

    async fn added(&mut self, item: Value) -> Result<(), Gone> {
        let index = self.done.len();
        self.send("response.output_item.added", json!({ "output_index": index, "item": item })).await
    }

    /// Ends the item that is being written.
    async fn close(&mut self) -> Result<(), Gone> {
        let item = match self.open.take() {
            None => return Ok(()),
            Some(Open::Message { id, text }) => {
                self.part("response.output_text.done", &id, "text", text.as_str().into()).await?;
                self.part("response.content_part.done", &id, "part", text_part(&text)).await?;
                message_item(&id, &text, "completed")
            }
            Some(Open::Reasoning { id, text }) => {
                self.part("response.reasoning_text.done", &id, "text", text.as_str().into()).await?;
                reasoning_item(&id, &text)
            }
            Some(Open::Call { id, call_id, name, arguments }) => {
                let whole = arguments.as_str().into();
                self.part("response.function_call_arguments.done", &id, "arguments", whole).await?;
                call_item(&id, &call_id, &name, &arguments, "completed")
            }
        };
        let index = self.done.len();
        let event = json!({ "output_index": index, "item": item });
        self.send("response.output_item.done", event).await?;
        self.done.push(item);
        Ok(())
    }

    async fn open_message(&mut self) -> Result<(), Gone> {
        self.close().await?;
        let id = format!("msg_{}", new_id());
        self.added(message_item(&id, "", "in_progress")).await?;
        self.part("response.content_part.added", &id, "part", text_part("")).await?;
        self.open = Some(Open::Message { id, text: String::new() });
        Ok(())
    }

    async fn write(&mut self, event: tools::Event) -> Result<(), Gone> {
        match event {
            tools::Event::Content(more) => {
                if !matches!(self.open, Some(Open::Message { .. })) {
                    self.open_message().await?;
                }
                let Some(Open::Message { id, text }) = &mut self.open else { return Ok(()) };
                text.push_str(&more);
                let id = id.clone();
                self.part("response.output_text.delta", &id, "delta", more.into()).await
            }
            tools::Event::Reasoning(more) => {
                if !matches!(self.open, Some(Open::Reasoning { .. })) {
                    self.close().await?;
                    let id = format!("rs_{}", new_id());
                    self.added(reasoning_item(&id, "")).await?;
                    self.open = Some(Open::Reasoning { id, text: String::new() });
                }
                let Some(Open::Reasoning { id, text }) = &mut self.open else { return Ok(()) };
                text.push_str(&more);
                let id = id.clone();
                self.part("response.reasoning_text.delta", &id, "delta", more.into()).await
            }
            tools::Event::ToolCallStart { id: call_id, name, .. } => {
                self.close().await?;
                let (id, call_id) = (format!("fc_{}", new_id()), call_id.unwrap_or_else(new_id));
                self.added(call_item(&id, &call_id, &name, "", "in_progress")).await?;
                self.open = Some(Open::Call { id, call_id, name, arguments: String::new() });
                Ok(())
            }
            tools::Event::ToolCallArguments { delta, .. } => {
                let Some(Open::Call { id, arguments, .. }) = &mut self.open else { return Ok(()) };
                arguments.push_str(&delta);
                let id = id.clone();
                self.part("response.function_call_arguments.delta", &id, "delta", delta.into()).await
            }
            tools::Event::ToolCallEnd { .. } => self.close().await,
        }
    }
}

async fn write_events(writer: Writer, mut answers: Answers, head: Head) -> Result<(), Gone> {
    let mut events = Events { writer, number: 0, open: None, done: Vec::new() };
    let begin = head.object(Vec::new(), None);
    events.send("response.created", json!({ "response": begin })).await?;
    events.send("response.in_progress", json!({ "response": begin })).await?;
    while let Some(step) = answers.next().await {
        let Step { events: news, summary, .. } = match step {
            Ok(step) => step,
            Err(e) => {
                let body = e.body(Protocol::OpenAi);
                let mut failed = head.object(events.done.clone(), None);
                failed["status"] = "failed".into();
                failed["error"] = json!({ "code": "server_error", "message": body["error"]["message"] });
                return events.send("response.failed", json!({ "response": failed })).await;
            }
        };
        for event in news {
            events.write(event).await?;
        }
        if let Some(summary) = summary {
            if events.done.is_empty() && events.open.is_none() {
                events.open_message().await?;
            }
            events.close().await?;
            let response = head.object(events.done.clone(), Some(&summary));
            let incomplete = summary.end == End::Length;
            let name = if incomplete { "response.incomplete" } else { "response.completed" };
            events.send(name, json!({ "response": response })).await?;
        }
    }
    Ok(())
}
