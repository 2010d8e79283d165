//! What a chat template is given: messages, tools and the request's own settings.

use serde_json::{Map, Value as Json};

/// One conversation to render.
#[derive(Clone, Debug, Default)]
pub struct ChatInput {
    /// The conversation, oldest message first.
    pub messages: Vec<Message>,
    /// Tool definitions as OpenAI's `tools` array holds them; empty means none.
    pub tools: Vec<Json>,
    /// Whether the prompt ends with the opening of an assistant turn.
    pub add_generation_prompt: bool,
    /// Further template variables (`enable_thinking`, `documents`, `reasoning_effort`, …).
    pub extra: Map<String, Json>,
    /// The time that `strftime_now` tells.
    pub now: LocalTime,
}

/// One message of a conversation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Message {
    /// Who speaks; an identifier such as `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// What is said; [`Content::None`] where an assistant turn holds only tool calls.
    pub content: Content,
    /// The reasoning that led to an assistant's answer, without its markers.
    pub reasoning_content: Option<String>,
    /// Calls that an assistant turn makes.
    pub tool_calls: Vec<ToolCall>,
    /// The call that a tool's message answers.
    pub tool_call_id: Option<String>,
    /// The name of the speaker or of the tool.
    pub name: Option<String>,
    /// Further fields that the model's template knows.
    pub extra: Map<String, Json>,
}

/// The content of a message.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Content {
    /// No content (JSON `null`).
    #[default]
    None,
    /// Plain text.
    Text(String),
    /// A list of parts, as `[{"type": "text", "text": …}, {"type": "image"}, …]`.
    Parts(Vec<Json>),
}

/// A tool call in an assistant's message.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// The id that the tool's answer refers to.
    pub id: Option<String>,
    /// The function's name.
    pub name: String,
    /// The arguments: an object, or a string that holds one as JSON.
    pub arguments: Json,
}

/// A moment as seen on a wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalTime {
    /// Seconds since 1970-01-01 00:00 UTC.
    pub unix_seconds: i64,
    /// How many seconds local time is ahead of UTC.
    pub utc_offset: i32,
}

impl LocalTime {
    /// The present moment in UTC.
    pub fn now_utc() -> Self {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self { unix_seconds: since.map_or(0, |d| d.as_secs() as i64), utc_offset: 0 }
    }
}

impl Message {
    /// A message with plain text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: Content::Text(content.into()), ..Self::default() }
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Content::Text(text.to_owned())
    }
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        Content::Text(text)
    }
}

/// A message in OpenAI's form that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("message {index}: `{field}`: expected {expected}, found {found}")]
pub struct MessageError {
    /// Place of the message, from 0.
    pub index: usize,
    /// The field at fault.
    pub field: &'static str,
    /// What the field takes.
    pub expected: &'static str,
    /// The kind of value found.
    pub found: &'static str,
}

impl Message {
    /// Reads a list of messages in OpenAI's form; unknown fields are kept for the template.
    ///
    /// # Errors
    /// A field has the wrong type, or `role` is missing.
    pub fn list_from_json(list: &[Json]) -> Result<Vec<Self>, MessageError> {
        let read = |(index, value)| {
            Self::from_json(value).map_err(|(field, expected, found)| MessageError {
                index,
                field,
                expected,
                found,
            })
        };
        list.iter().enumerate().map(read).collect()
    }

    fn from_json(value: &Json) -> Result<Self, FieldError> {
        let map = value.as_object().ok_or(("message", "an object", kind(Some(value))))?;
        let mut message = Self { role: text(map, "role", "a string")?, ..Self::default() };
        for (key, value) in map {
            match key.as_str() {
                "role" => {}
                "content" => {
                    message.content = match value {
                        Json::Null => Content::None,
                        Json::String(text) => Content::Text(text.clone()),
                        Json::Array(parts) if parts.iter().all(Json::is_object) => {
                            Content::Parts(parts.clone())
                        }
                        other => {
                            let expected = "a string, null or an array of objects";
                            return Err(("content", expected, kind(Some(other))));
                        }
                    }
                }
                "reasoning_content" => message.reasoning_content = maybe(map, "reasoning_content")?,
                "tool_call_id" => message.tool_call_id = maybe(map, "tool_call_id")?,
                "name" => message.name = maybe(map, "name")?,
                "tool_calls" => {
                    let calls = match value {
                        Json::Null => &[],
                        Json::Array(calls) => calls.as_slice(),
                        other => return Err(("tool_calls", "an array", kind(Some(other)))),
                    };
                    message.tool_calls = calls.iter().map(ToolCall::from_json).collect::<Result<_, _>>()?;
                }
                _ => {
                    message.extra.insert(key.clone(), value.clone());
                }
            }
        }
        Ok(message)
    }
}

impl ToolCall {
    fn from_json(value: &Json) -> Result<Self, FieldError> {
        let field = "tool_calls[].function";
        let call = value.as_object().ok_or(("tool_calls[]", "an object", kind(Some(value))))?;
        let function = call.get("function").and_then(Json::as_object);
        let function = function.ok_or((field, "an object", kind(call.get("function"))))?;
        let arguments = match function.get("arguments") {
            Some(arguments @ (Json::Object(_) | Json::String(_))) => arguments.clone(),
            None | Some(Json::Null) => Json::Object(Map::new()),
            other => return Err(("tool_calls[].function.arguments", "a string or an object", kind(other))),
        };
        Ok(Self { id: maybe(call, "id")?, name: text(function, "name", "a string")?, arguments })
    }
}

/// Field, what it takes, what was found.
type FieldError = (&'static str, &'static str, &'static str);

fn text(map: &Map<String, Json>, field: &'static str, expected: &'static str) -> Result<String, FieldError> {
    let value = map.get(field);
    value.and_then(Json::as_str).map(str::to_owned).ok_or((field, expected, kind(value)))
}

fn maybe(map: &Map<String, Json>, field: &'static str) -> Result<Option<String>, FieldError> {
    match map.get(field) {
        None | Some(Json::Null) => Ok(None),
        Some(_) => text(map, field, "a string or null").map(Some),
    }
}

fn kind(value: Option<&Json>) -> &'static str {
    match value {
        None => "nothing",
        Some(Json::Null) => "null",
        Some(Json::Bool(_)) => "a boolean",
        Some(Json::Number(_)) => "a number",
        Some(Json::String(_)) => "a string",
        Some(Json::Array(_)) => "an array",
        Some(Json::Object(_)) => "an object",
    }
}
