//! What several protocols read and write alike.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use wootz::Tokenizer;
use wootz::sample::{Logprobs, TokenLogprob};

use crate::chat::Settings;
use crate::constrain::Shape;
use crate::error::ApiError;
use crate::fields::{Field, Fields, Takes, field, kind};
use crate::http::Call;
use crate::models::Loaded;
use crate::sampling;

/// Most tokens that a field may ask for; what does not fit the context is left out in any case.
pub(crate) const TOKENS: Takes = Takes::Int(-1, i32::MAX as i64);

/// Fields that all generation has.
pub(crate) const GENERATION: &[Field] = &[
    field("model", Takes::Text, "The model's name or alias; without it the first model."),
    field("stop", Takes::Texts, "Texts that end the answer and are no part of it."),
    field("cache_prompt", Takes::Bool, "Whether a prefix computed before may be reused; true by default."),
    field(
        "priority",
        Takes::Int(-1000, 1000),
        "Waiting requests of a higher priority start first; 0 by default.",
    ),
    field("user", Takes::Text, "The end user; users take turns where requests wait."),
    field(
        "truncation",
        Takes::Choice(&["auto", "disabled"]),
        "auto: a conversation that does not fit loses its oldest turns, a text its beginning; refused by default.",
    ),
];

/// Fields that limit the form of the answer.
pub(crate) const SHAPES: &[Field] = &[
    field(
        "grammar",
        Takes::Text,
        "A grammar that the answer follows, in llama.cpp's (GBNF) or Lark's syntax.",
    ),
    field("json_schema", Takes::Any, "A JSON Schema that the answer follows."),
    field("regex", Takes::Text, "A regular expression that the whole answer matches."),
];

/// Stop texts of one request at most.
const STOPS: usize = 64;

/// Reads what all generation has; `limit` is the first field present that says how many tokens to generate.
pub(crate) fn settings(
    call: &Call,
    loaded: &Loaded,
    limits: &[&'static str],
    stop: &'static str,
) -> Result<Settings, ApiError> {
    loaded.model().check_generates()?;
    let fields = &call.fields;
    let mut sampling = sampling::params(fields, &loaded.preset.sampling, loaded.model().tokenizer())?;
    sampling.n_probs = None;
    let limit = limits.iter().find(|name| fields.has(name));
    let max_tokens = match limit.and_then(|name| fields.int(name)) {
        None => loaded.preset.max_tokens,
        Some(-1) => None,
        Some(0) => {
            let name = limit.copied().unwrap_or_default();
            return Err(fields.wrong(name, "a whole number of at least 1, or -1 for as many as fit, found 0"));
        }
        Some(n) => usize::try_from(n).ok(),
    };
    let stops = fields.texts(stop);
    if stops.len() > STOPS {
        return Err(fields.wrong(stop, format!("at most {STOPS} texts, found {}", stops.len())));
    }
    Ok(Settings {
        sampling,
        max_tokens,
        stop: stops.into_iter().filter(|text| !text.is_empty()).collect(),
        n: 1,
        cache_prompt: fields.bool("cache_prompt").unwrap_or(true),
        priority: fields.int("priority").unwrap_or(0) as i32,
        user: call.user,
        truncate: fields.text("truncation").map_or(loaded.preset.truncate, |t| t == "auto"),
        keep: 0,
    })
}

const FORMAT: &[Field] = &[
    field("type", Takes::Choice(&["text", "json_object", "json_schema"]), "The form."),
    field("json_schema", Takes::Object, "Name and schema."),
    field("schema", Takes::Any, "A schema, beside json_object."),
];

const NAMED_SCHEMA: &[Field] = &[
    field("name", Takes::Text, "The schema's name."),
    field("description", Takes::Text, "What it is for."),
    field("schema", Takes::Any, "The schema."),
    field("strict", Takes::Bool, "The schema is kept to in any case."),
];

/// The form of the answer that a request asks for, with the field that does.
///
/// # Errors
/// More than one field does, or one has a wrong value.
pub(crate) fn shape(fields: &Fields) -> Result<Option<(Shape, &'static str)>, ApiError> {
    let mut found: Vec<(Shape, &'static str)> = Vec::new();
    if let Some(shape) = response_format(fields)? {
        found.push((shape, "response_format"));
    }
    if let Some(text) = fields.text("grammar").filter(|text| !text.trim().is_empty()) {
        found.push((Shape::from_grammar(text), "grammar"));
    }
    if let Some(schema) = fields.get("json_schema") {
        found.push((Shape::Schema(schema_value(fields, "json_schema", schema)?), "json_schema"));
    }
    if let Some(pattern) = fields.text("regex") {
        found.push((Shape::Regex(pattern.to_owned()), "regex"));
    }
    if found.len() > 1 {
        let names: Vec<&str> = found.iter().map(|(_, name)| *name).collect();
        return Err(ApiError::field(names[1], format!("nothing beside `{}`", names[0])));
    }
    Ok(found.pop())
}

fn response_format(fields: &Fields) -> Result<Option<Shape>, ApiError> {
    let Some(format) = fields.object("response_format", FORMAT)? else { return Ok(None) };
    match format.required_text("type")? {
        "json_object" => Ok(Some(match format.get("schema") {
            Some(schema) => Shape::Schema(schema_value(&format, "schema", schema)?),
            None => Shape::JsonObject,
        })),
        "json_schema" => {
            format.required("json_schema", "an object")?;
            let named = format.object("json_schema", NAMED_SCHEMA)?.unwrap_or_default();
            let schema = named.required("schema", "a JSON Schema")?;
            Ok(Some(Shape::Schema(schema_value(&named, "schema", schema)?)))
        }
        _ => Ok(None),
    }
}

pub(crate) fn schema_value(fields: &Fields, name: &str, value: &Value) -> Result<Value, ApiError> {
    match value {
        Value::Object(_) | Value::Bool(_) => Ok(value.clone()),
        other => Err(fields.wrong(name, format!("a JSON Schema, found {}", kind(other)))),
    }
}

/// Fields about reasoning.
pub(crate) const REASONING: &[Field] = &[
    field(
        "reasoning_effort",
        Takes::Choice(&["none", "minimal", "low", "medium", "high", "xhigh"]),
        "How much the model reasons, where its template knows; none switches it off.",
    ),
    field("enable_thinking", Takes::Bool, "Whether the model reasons, where its template knows."),
    field(
        "reasoning_format",
        Takes::Choice(&["auto", "deepseek", "none"]),
        "`none` leaves reasoning in the content; otherwise it is told apart.",
    ),
    field(
        "reasoning_budget",
        Takes::Int(-1, i32::MAX as i64),
        "Tokens of reasoning at most, after which it is ended; 0 switches it off, -1 for no limit.",
    ),
    field("thinking_budget_tokens", Takes::Int(-1, i32::MAX as i64), "Another name of reasoning_budget."),
    field("chat_template_kwargs", Takes::Object, "Further variables of the chat template."),
];

/// How the fields of reasoning want it.
pub(crate) struct Reasoning {
    /// Variables of the template.
    pub(crate) variables: Map<String, Value>,
    /// Whether it is told apart.
    pub(crate) split: bool,
    /// Tokens of it at most.
    pub(crate) budget: Option<usize>,
}

/// Reads the fields of reasoning.
pub(crate) fn reasoning(fields: &Fields) -> Reasoning {
    let mut variables = fields.map("chat_template_kwargs").cloned().unwrap_or_default();
    if let Some(effort) = fields.text("reasoning_effort") {
        variables.insert("enable_thinking".into(), (effort != "none").into());
        if effort != "none" {
            variables.insert("reasoning_effort".into(), effort.into());
        }
    }
    if let Some(on) = fields.bool("enable_thinking") {
        variables.insert("enable_thinking".into(), on.into());
    }
    let budget = fields.int("reasoning_budget").or(fields.int("thinking_budget_tokens"));
    if budget == Some(0) {
        variables.entry("enable_thinking").or_insert(false.into());
    }
    Reasoning {
        variables,
        split: fields.text("reasoning_format") != Some("none"),
        budget: budget.and_then(|n| usize::try_from(n).ok()),
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// A new id of 9 letters and digits, as the strictest templates want it for calls.
pub(crate) fn new_id() -> String {
    static STATE: OnceLock<RandomState> = OnceLock::new();
    static NEXT: AtomicU64 = AtomicU64::new(0);
    const DIGITS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut number = STATE.get_or_init(RandomState::new).hash_one(NEXT.fetch_add(1, Ordering::Relaxed));
    let mut id = String::with_capacity(9);
    for _ in 0..9 {
        id.push(char::from(DIGITS[(number % 36) as usize]));
        number /= 36;
    }
    id
}

/// A date and time as `2026-01-31T12:34:56Z`.
pub(crate) fn timestamp(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that the day that some lack is their last.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, year) = if month < 10 { (month + 3, year) } else { (month - 9, year + 1) };
    let year = year + era * 400;
    format!("{year:04}-{month:02}-{date:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// The text of a token, and its bytes.
pub(crate) fn piece(tokenizer: &Tokenizer, token: u32) -> (String, Vec<u8>) {
    let bytes = tokenizer.piece(token, true).into_owned();
    (String::from_utf8_lossy(&bytes).into_owned(), bytes)
}

/// Negative infinity is not in JSON; OpenAI writes this for what is out of the question.
pub(crate) fn finite(logprob: f32) -> f64 {
    f64::from(logprob).max(-9999.0)
}

/// Log-probabilities at one position, as OpenAI's chat writes them.
pub(crate) fn chat_logprobs(tokenizer: &Tokenizer, logprobs: &Logprobs) -> Value {
    let entry = |t: &TokenLogprob| {
        let (text, bytes) = piece(tokenizer, t.token);
        json!({ "token": text, "logprob": finite(t.logprob), "bytes": bytes })
    };
    let mut chosen = entry(&logprobs.chosen);
    chosen["top_logprobs"] = logprobs.top.iter().map(entry).collect();
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(timestamp(0), "1970-01-01T00:00:00Z");
        assert_eq!(timestamp(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(timestamp(1_709_251_199), "2024-02-29T23:59:59Z");
        assert_eq!(timestamp(4_102_444_800), "2100-01-01T00:00:00Z");
    }

    #[test]
    fn ids_are_of_nine_letters_and_digits_and_differ() {
        let ids: std::collections::HashSet<String> = (0..1000).map(|_| new_id()).collect();
        assert_eq!(ids.len(), 1000);
        assert!(ids.iter().all(|id| id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric())));
    }

    #[test]
    fn only_one_field_may_shape_the_answer() {
        let read = |value: Value| {
            let map = value.as_object().unwrap().clone();
            let table = &[field("response_format", Takes::Object, "")];
            shape(&Fields::check(map, "", &[SHAPES, table]).unwrap().0)
        };
        assert_eq!(read(json!({})).unwrap(), None);
        assert_eq!(read(json!({"response_format": {"type": "text"}})).unwrap(), None);
        let object = read(json!({"response_format": {"type": "json_object"}})).unwrap();
        assert_eq!(object, Some((Shape::JsonObject, "response_format")));
        assert!(matches!(read(json!({"grammar": "root ::= \"a\""})).unwrap(), Some((Shape::Gbnf(_), _))));
        assert!(matches!(read(json!({"grammar": "start: \"a\""})).unwrap(), Some((Shape::Lark(_), _))));
        let e = read(json!({"regex": "a", "json_schema": {}})).unwrap_err();
        assert_eq!(e.message, "`regex`: expected nothing beside `json_schema`");
        let e = read(json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}))
            .unwrap_err();
        assert_eq!(e.param.as_deref(), Some("response_format.json_schema.schema"));
    }
}
