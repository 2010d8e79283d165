//! A conversation as template values.

use minijinja::Value;
use serde_json::{Map, Value as Json};

use super::date::strftime;
use super::mark::Marker;
use super::{ChatInput, Content, Message, SpecialTokens, TemplateError};

/// Variables that the renderer sets.
const RESERVED: [&str; 10] = [
    "messages",
    "tools",
    "add_generation_prompt",
    "bos_token",
    "eos_token",
    "pad_token",
    "unk_token",
    "strftime_now",
    "raise_exception",
    "tojson",
];

/// Refuses roles that are no identifiers and extra variables with reserved names.
pub(super) fn check(input: &ChatInput) -> Result<(), TemplateError> {
    for (index, message) in input.messages.iter().enumerate() {
        let role = &message.role;
        if role.is_empty() || !role.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-') {
            return Err(TemplateError::Role { index, role: role.clone() });
        }
    }
    match input.extra.keys().find(|name| RESERVED.contains(&name.as_str())) {
        Some(name) => Err(TemplateError::Reserved { name: name.clone() }),
        None => Ok(()),
    }
}

/// Every string from outside.
pub(super) fn strings(input: &ChatInput) -> Vec<&str> {
    let mut out = Vec::new();
    input.tools.iter().for_each(|tool| json_strings(tool, &mut out));
    map_strings(&input.extra, &mut out);
    for message in &input.messages {
        match &message.content {
            Content::None => {}
            Content::Text(text) => out.push(text),
            Content::Parts(parts) => parts.iter().for_each(|part| json_strings(part, &mut out)),
        }
        out.extend(message.reasoning_content.as_deref());
        out.extend(message.tool_call_id.as_deref());
        out.extend(message.name.as_deref());
        for call in &message.tool_calls {
            out.extend(call.id.as_deref());
            out.push(&call.name);
            json_strings(&call.arguments, &mut out);
        }
        map_strings(&message.extra, &mut out);
    }
    out
}

fn json_strings<'a>(value: &'a Json, out: &mut Vec<&'a str>) {
    match value {
        Json::String(text) => out.push(text),
        Json::Array(items) => items.iter().for_each(|item| json_strings(item, out)),
        Json::Object(map) => map_strings(map, out),
        _ => {}
    }
}

fn map_strings<'a>(map: &'a Map<String, Json>, out: &mut Vec<&'a str>) {
    for (key, value) in map {
        out.push(key);
        json_strings(value, out);
    }
}

/// The variables of one rendering.
pub(super) fn context(
    input: &ChatInput,
    tokens: &SpecialTokens,
    marker: &Marker<'_>,
    trusted: &[&str],
) -> Value {
    let list = |items: &[Json]| match items.is_empty() {
        true => Value::from(()),
        false => items.iter().map(|item| json(item, marker, &[])).collect(),
    };
    let token = |text: &Option<String>| Value::from(text.as_deref().unwrap_or_default());
    let now = input.now;
    let messages: Value = input.messages.iter().map(|m| message(m, marker, trusted)).collect();
    let mut vars = vec![
        ("messages".to_owned(), messages),
        ("tools".to_owned(), list(&input.tools)),
        ("documents".to_owned(), Value::from(())),
        ("add_generation_prompt".to_owned(), Value::from(input.add_generation_prompt)),
        ("bos_token".to_owned(), token(&tokens.bos)),
        ("eos_token".to_owned(), token(&tokens.eos)),
        ("pad_token".to_owned(), token(&tokens.pad)),
        ("unk_token".to_owned(), token(&tokens.unk)),
        ("strftime_now".to_owned(), Value::from_function(move |format: String| strftime(now, &format))),
    ];
    let extra = input.extra.iter();
    vars.extend(extra.map(|(name, value)| (name.clone(), json(value, marker, &[]))));
    Value::from_pairs(vars)
}

fn message(message: &Message, marker: &Marker<'_>, trusted: &[&str]) -> Value {
    let trusted = if message.role == "assistant" { trusted } else { &[] };
    let text = |text: &String| Value::from(marker.text(text, &[]));
    let content = match &message.content {
        Content::None => Value::from(()),
        Content::Text(text) => Value::from(marker.text(text, trusted)),
        Content::Parts(parts) => parts.iter().map(|part| json(part, marker, trusted)).collect(),
    };
    let mut fields =
        vec![("role".to_owned(), Value::from(message.role.as_str())), ("content".into(), content)];
    let optional = [
        ("reasoning_content", &message.reasoning_content),
        ("tool_call_id", &message.tool_call_id),
        ("name", &message.name),
    ];
    for (key, value) in optional {
        fields.extend(value.as_ref().map(|value| (key.to_owned(), text(value))));
    }
    if !message.tool_calls.is_empty() {
        let calls = message.tool_calls.iter().map(|call| {
            let function = Value::from_pairs([
                ("name", text(&call.name)),
                ("arguments", json(&call.arguments, marker, &[])),
            ]);
            let id = call.id.as_ref().map(|id| ("id", text(id)));
            Value::from_pairs(id.into_iter().chain([("type", "function".into()), ("function", function)]))
        });
        fields.push(("tool_calls".to_owned(), calls.collect()));
    }
    let extra = message.extra.iter();
    fields.extend(extra.map(|(key, value)| (marker.key(key), json(value, marker, &[]))));
    Value::from_pairs(fields)
}

fn json(value: &Json, marker: &Marker<'_>, trusted: &[&str]) -> Value {
    match value {
        Json::Null => Value::from(()),
        Json::Bool(yes) => Value::from(*yes),
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(int), ..) => Value::from(int),
            (None, Some(int), _) => Value::from(int),
            (None, None, float) => Value::from(float.unwrap_or_default()),
        },
        Json::String(text) => Value::from(marker.text(text, trusted)),
        Json::Array(items) => items.iter().map(|item| json(item, marker, trusted)).collect(),
        Json::Object(map) => {
            Value::from_pairs(map.iter().map(|(key, value)| (marker.key(key), json(value, marker, trusted))))
        }
    }
}
