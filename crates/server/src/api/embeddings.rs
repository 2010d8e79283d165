//! Embeddings and rankings: the requests are read, but no model of this version gives either.

use axum::response::Response;
use serde_json::Value;

use crate::error::{ApiError, Kind};
use crate::fields::{Field, Takes, field};
use crate::http::Call;
use crate::text::Prompt;

pub(crate) const EMBEDDINGS: &[Field] = &[
    field("model", Takes::Text, "The model's name or alias; without it the first model."),
    field("input", Takes::Any, "A text or token ids, or a list of either."),
    field(
        "encoding_format",
        Takes::Choice(&["float", "base64"]),
        "How numbers are written; float by default.",
    ),
    field("dimensions", Takes::Int(1, i32::MAX as i64), "Numbers of each embedding."),
    field("user", Takes::Text, "The end user."),
];

pub(crate) const OLLAMA: &[Field] = &[
    field("model", Takes::Text, "The model's name or alias."),
    field("input", Takes::Any, "A text or a list of texts."),
    field("truncate", Takes::Bool, "Whether long inputs may be cut."),
    field("dimensions", Takes::Int(1, i32::MAX as i64), "Numbers of each embedding."),
    field("options", Takes::Object, "Not read."),
    field("keep_alive", Takes::Any, "Not read."),
];

pub(crate) const RERANK: &[Field] = &[
    field("model", Takes::Text, "The model's name or alias; without it the first model."),
    field("query", Takes::Text, "What is asked."),
    field("documents", Takes::Any, "The texts to rank."),
    field("top_n", Takes::Int(1, i64::MAX), "How many of the best are returned."),
    field("return_documents", Takes::Bool, "Whether the texts are returned too."),
];

/// `POST /v1/embeddings` and `POST /api/embed`
pub(crate) async fn embeddings(call: Call) -> Result<Response, ApiError> {
    let fields = &call.fields;
    let input = fields.required("input", "a string, a list of strings, or token ids")?;
    Prompt::read_all(input, "input")?;
    let loaded = call.app.models.acquire(fields.text("model")).await?;
    Err(without(&loaded.name, "embeddings"))
}

/// `POST /v1/rerank`
pub(crate) async fn rerank(call: Call) -> Result<Response, ApiError> {
    let fields = &call.fields;
    fields.required_text("query")?;
    let documents = fields.required("documents", "a list of strings")?;
    let texts = documents.as_array().is_some_and(|list| list.iter().all(Value::is_string));
    if !texts {
        return Err(fields.wrong("documents", "a list of strings"));
    }
    let loaded = call.app.models.acquire(fields.text("model")).await?;
    Err(without(&loaded.name, "rankings"))
}

fn without(model: &str, what: &str) -> ApiError {
    ApiError::new(Kind::Unsupported, format!("the model {model:?} gives no {what}: it generates text"))
}
