//! Embeddings of texts, and documents ranked by a query, by every protocol that has them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::response::Response;
use base64::engine::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::{Value, json};
use wootz::embed::Norm;
use wootz::{Embedding, Engine, Handle, Model};

use super::ollama::KEEP_ALIVE;
use crate::chat::blocking;
use crate::error::{ApiError, Kind};
use crate::fields::{Field, Fields, Takes, field, kind};
use crate::http::{self, Call};
use crate::metrics::add;
use crate::models::Loaded;
use crate::text::Prompt;

const MODEL: Field = field("model", Takes::Text, "The model's name or alias; without it the first model.");
const TRUNCATE: Field =
    field("truncate", Takes::Bool, "Whether texts beyond the context are cut; false by default.");
const DIMENSIONS: Field = field(
    "dimensions",
    Takes::Int(1, i32::MAX as i64),
    "Numbers of each embedding: the first so many of the model's, normalised again.",
);
const OPTIONS: Field = field("options", Takes::Object, "Not read.");

pub(crate) const EMBEDDINGS: &[Field] = &[
    MODEL,
    TRUNCATE,
    DIMENSIONS,
    field("input", Takes::Any, "A text or token ids, or a list of either."),
    field(
        "encoding_format",
        Takes::Choice(&["float", "base64"]),
        "How numbers are written: as numbers, or as base64 of their bytes as little-endian f32; float by default.",
    ),
    field("user", Takes::Text, "The end user."),
];

pub(crate) const NATIVE: &[Field] = &[
    MODEL,
    TRUNCATE,
    field("content", Takes::Any, "A text or token ids, or a list of either."),
    field("input", Takes::Any, "Another name of the same."),
    field(
        "embd_normalize",
        Takes::Int(-1, 64),
        "What embeddings are divided by: -1 nothing, 0 the largest magnitude of 32,760, 1 the sum of magnitudes, 2 \
         the Euclidean length (by default), p the p-norm.",
    ),
];

pub(crate) const OLLAMA: &[Field] = &[
    MODEL,
    TRUNCATE,
    DIMENSIONS,
    field("input", Takes::Any, "A text or a list of texts."),
    OPTIONS,
    KEEP_ALIVE,
];

pub(crate) const OLLAMA_OLD: &[Field] =
    &[MODEL, TRUNCATE, field("prompt", Takes::Text, "The text."), OPTIONS, KEEP_ALIVE];

pub(crate) const RERANK: &[Field] = &[
    MODEL,
    TRUNCATE,
    field("query", Takes::Text, "What is asked."),
    field("documents", Takes::Any, "The texts to rank: strings, or objects with a `text`."),
    field("top_n", Takes::Int(1, i64::MAX), "How many of the best are returned; all by default."),
    field("return_documents", Takes::Bool, "Whether the texts are returned too; false by default."),
];

/// A text as tokens.
type Tokens = Vec<u32>;

/// Hears the results of a request's texts.
type Done<T> = Box<dyn FnOnce(Result<Vec<T>, wootz::Error>) + Send>;

/// Takes texts back from the engine as their request ends, which does nothing once they are done.
struct CancelOnDrop(Handle);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// `POST /v1/embeddings`
pub(crate) async fn openai(call: Call) -> Result<Response, ApiError> {
    let texts = Texts::read(&call, "input").await?;
    let base64 = call.fields.text("encoding_format") == Some("base64");
    let (model, tokens) = (texts.loaded.name.clone(), texts.count);
    let rows = texts.single_rows(&call).await?;
    let numbers =
        |row: Vec<f32>| if base64 { Numbers::Base64(base64_of(&row)) } else { Numbers::Floats(row) };
    let items = rows.into_iter().map(numbers).enumerate();
    let items = items.map(|(index, embedding)| Item { object: "embedding", index, embedding });
    write(&List {
        object: "list",
        data: items.collect(),
        model,
        usage: json!({ "prompt_tokens": tokens, "total_tokens": tokens }),
    })
}

/// `POST /embedding`
pub(crate) async fn native(call: Call) -> Result<Response, ApiError> {
    let name = if call.fields.has("content") { "content" } else { "input" };
    let number = call.fields.int("embd_normalize").unwrap_or(2);
    let norm = Norm::from_number(number).unwrap_or(Norm::P(2));
    let texts = Texts::read(&call, name).await?;
    let embeddings = texts.embed(&call).await?;
    let rows = embeddings.into_iter().map(|mut e| {
        e.rows.iter_mut().for_each(|row| norm.apply(row));
        e.rows
    });
    write(&rows.enumerate().map(|(index, embedding)| Rows { index, embedding }).collect::<Vec<_>>())
}

/// `POST /api/embed`
pub(crate) async fn ollama(call: Call) -> Result<Response, ApiError> {
    let start = Instant::now();
    let texts = Texts::read(&call, "input").await?;
    let (model, tokens) = (texts.loaded.name.clone(), texts.count);
    let embeddings = texts.single_rows(&call).await?;
    let total_duration = start.elapsed().as_nanos() as u64;
    write(&OllamaReply { model, embeddings, total_duration, load_duration: 0, prompt_eval_count: tokens })
}

/// `POST /api/embeddings`
pub(crate) async fn ollama_old(call: Call) -> Result<Response, ApiError> {
    let texts = Texts::read(&call, "prompt").await?;
    let mut embeddings = texts.embed(&call).await?;
    let embedding = embeddings.pop().and_then(|mut e| e.rows.pop()).unwrap_or_default();
    write(&OllamaOldReply { embedding })
}

/// `POST /v1/rerank`
pub(crate) async fn rerank(call: Call) -> Result<Response, ApiError> {
    let fields = &call.fields;
    let query = fields.required_text("query")?.to_owned();
    let documents = documents(fields)?;
    let loaded = call.app.models.acquire(fields.text("model")).await?;
    let (shared, texts) = (loaded.clone(), documents.clone());
    let pairs = blocking(move || {
        let model = shared.model();
        Ok(texts.iter().map(|text| model.pair_tokens(&query, text)).collect())
    });
    let texts = Texts::new(&call, loaded, pairs.await?, |i| format!("documents[{i}]"))?;
    let (model, tokens) = (texts.loaded.name.clone(), texts.count);
    let scores = texts.run(&call, |engine, pairs, done| engine.start_ranking(pairs, done)).await?;
    let mut ranked: Vec<(usize, f32)> = scores.into_iter().enumerate().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    ranked.truncate(fields.count("top_n").unwrap_or(usize::MAX));
    let with_text = fields.bool("return_documents").unwrap_or(false);
    let results = ranked.into_iter().map(|(index, relevance_score)| Ranked {
        index,
        relevance_score,
        document: with_text.then(|| json!({ "text": documents[index] })),
    });
    write(&Ranking {
        object: "list",
        model,
        results: results.collect(),
        usage: json!({ "prompt_tokens": tokens, "total_tokens": tokens }),
    })
}

fn documents(fields: &Fields) -> Result<Vec<String>, ApiError> {
    const EXPECTED: &str = "a list of strings, or of objects with a `text`";
    let list = fields.required("documents", EXPECTED)?.as_array();
    let list = list.filter(|list| !list.is_empty()).ok_or_else(|| fields.wrong("documents", EXPECTED))?;
    let text = |(i, value): (usize, &Value)| {
        let text = value.as_str().or_else(|| value.get("text")?.as_str()).map(str::to_owned);
        let found = || format!("a string, or an object with a `text`, found {}", kind(value));
        text.ok_or_else(|| ApiError::field(format!("documents[{i}]"), found()))
    };
    list.iter().enumerate().map(text).collect()
}

/// Texts of a request as tokens.
struct Texts {
    loaded: Arc<Loaded>,
    tokens: Vec<Tokens>,
    /// Tokens of all texts.
    count: usize,
}

impl Texts {
    /// Reads the texts of a field, for the model that the request names.
    ///
    /// # Errors
    /// The field is missing, empty or of another form; a text does not fit and must not be cut.
    async fn read(call: &Call, name: &'static str) -> Result<Texts, ApiError> {
        let fields = &call.fields;
        let value = fields.required(name, "a string, a list of strings, or token ids")?;
        let prompts = Prompt::read_all(value, name)?;
        let several = prompts.len() > 1;
        let param = move |i: usize| if several { format!("{name}[{i}]") } else { name.to_owned() };
        let loaded = call.app.models.acquire(fields.text("model")).await?;
        let shared = loaded.clone();
        let tokens = blocking(move || {
            prompts.iter().enumerate().map(|(i, p)| tokens(shared.model(), p, &param(i))).collect()
        });
        Texts::new(call, loaded, tokens.await?, param)
    }

    fn new(
        call: &Call,
        loaded: Arc<Loaded>,
        mut tokens: Vec<Tokens>,
        param: impl Fn(usize) -> String,
    ) -> Result<Texts, ApiError> {
        let context = loaded.engine.limits().context;
        let cut = call.fields.bool("truncate").unwrap_or(false);
        for (i, text) in tokens.iter_mut().enumerate() {
            if cut {
                loaded.model().cut_tokens(text, context);
            }
            let error = if text.is_empty() {
                wootz::Error::EmptyPrompt
            } else if text.len() > context {
                wootz::Error::TextTooLong { tokens: text.len(), context }
            } else {
                continue;
            };
            return Err(ApiError { param: Some(param(i)), ..error.into() });
        }
        let count = tokens.iter().map(Vec::len).sum();
        Ok(Texts { loaded, tokens, count })
    }

    /// Has the engine work on the texts; a client that goes away takes them back.
    async fn run<T: Send + 'static>(
        self,
        call: &Call,
        start: impl FnOnce(&Engine, Vec<Tokens>, Done<T>) -> Result<Handle, wootz::Error>,
    ) -> Result<Vec<T>, ApiError> {
        let (metrics, begun) = (&call.app.metrics, Instant::now());
        let (tell, told) = tokio::sync::oneshot::channel();
        let done = Box::new(move |result| {
            // The client may have gone; then nobody needs the result.
            let _ = tell.send(result);
        });
        let handle = start(&self.loaded.engine, self.tokens, done).inspect_err(|e| {
            if matches!(e, wootz::Error::QueueFull { .. }) {
                add(&metrics.refused, 1);
            }
        })?;
        let _guard = CancelOnDrop(handle);
        let told = async { told.await.unwrap_or(Err(wootz::Error::Stopped)) };
        let result = match call.app.options.timeout {
            None => told.await.map_err(ApiError::from),
            Some(limit) => match tokio::time::timeout(limit, told).await {
                Ok(result) => result.map_err(ApiError::from),
                Err(_) => Err(late(limit)),
            },
        };
        let results = result.inspect_err(|_| add(&metrics.failed, 1))?;
        add(&metrics.prompt_tokens, self.count as u64);
        add(&metrics.prompt_micros, begun.elapsed().as_micros() as u64);
        add(&metrics.finished, 1);
        Ok(results)
    }

    /// Embeddings as the model gives them.
    async fn embed(self, call: &Call) -> Result<Vec<Embedding>, ApiError> {
        self.run(call, |engine, texts, done| engine.start_embedding(texts, None, done)).await
    }

    /// One normalised embedding of each text, of as many numbers as asked for.
    async fn single_rows(self, call: &Call) -> Result<Vec<Vec<f32>>, ApiError> {
        if self.loaded.model().pooling() == Some(wootz::Pooling::None) {
            let message = "the model gives an embedding of each token: ask at /embedding";
            return Err(ApiError::new(Kind::Invalid, message));
        }
        let dimensions = call.fields.count("dimensions");
        let embeddings = self.embed(call).await?;
        let row = |mut e: Embedding| {
            let own = e.rows.first().map_or(0, Vec::len);
            let shortened = e.shorten(dimensions.unwrap_or(own), Norm::P(2));
            shortened.map_err(|e| ApiError { param: Some("dimensions".into()), ..e.into() })?;
            Ok(e.rows.pop().unwrap_or_default())
        };
        embeddings.into_iter().map(row).collect()
    }
}

fn late(limit: Duration) -> ApiError {
    ApiError::new(Kind::Timeout, format!("the request took longer than {} seconds", limit.as_secs_f64()))
}

/// Tokens of one text, in which no special token is recognised.
fn tokens(model: &Model, prompt: &Prompt, param: &str) -> Result<Tokens, ApiError> {
    let mixed = || ApiError::field(param, "a string, or a list of token ids");
    match prompt {
        Prompt::Text(text) => Ok(model.tokenize(text.as_bytes())),
        Prompt::Tokens(tokens) => Ok(tokens.clone()),
        Prompt::Mixed(list) => {
            let part = |p: &Prompt| match p {
                Prompt::Tokens(tokens) => Ok(tokens.clone()),
                _ => Err(mixed()),
            };
            Ok(list.iter().map(part).collect::<Result<Vec<_>, _>>()?.concat())
        }
    }
}

#[derive(Serialize)]
struct List {
    object: &'static str,
    data: Vec<Item>,
    model: String,
    usage: Value,
}

#[derive(Serialize)]
struct Item {
    object: &'static str,
    index: usize,
    embedding: Numbers,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Numbers {
    Floats(Vec<f32>),
    Base64(String),
}

#[derive(Serialize)]
struct Rows {
    index: usize,
    embedding: Vec<Vec<f32>>,
}

#[derive(Serialize)]
struct OllamaReply {
    model: String,
    embeddings: Vec<Vec<f32>>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
}

#[derive(Serialize)]
struct OllamaOldReply {
    embedding: Vec<f32>,
}

#[derive(Serialize)]
struct Ranking {
    object: &'static str,
    model: String,
    results: Vec<Ranked>,
    usage: Value,
}

#[derive(Serialize)]
struct Ranked {
    index: usize,
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<Value>,
}

/// A response whose numbers have as many digits as an f32 needs, which those of [`Value`] have not.
fn write(reply: &impl Serialize) -> Result<Response, ApiError> {
    let text = serde_json::to_string(reply).map_err(|e| ApiError::new(Kind::Internal, e.to_string()))?;
    Ok(http::content("application/json", text))
}

/// Numbers as base64 (RFC 4648) of their bytes as little-endian f32.
fn base64_of(numbers: &[f32]) -> String {
    STANDARD.encode(numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_standard() {
        // 1.0 is 00 00 80 3f, -2.5 is 00 00 20 c0.
        assert_eq!(base64_of(&[1.0]), "AACAPw==");
        assert_eq!(base64_of(&[1.0, -2.5]), "AACAPwAAIMA=");
        assert_eq!(base64_of(&[1.0, -2.5, 0.0]), "AACAPwAAIMAAAAAA");
        assert_eq!(base64_of(&[]), "");
    }
}
