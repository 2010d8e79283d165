//! OpenAI's completions: texts continued without a template.

use axum::response::Response;
use serde_json::{Value, json};
use wootz::sample::Logprobs;
use wootz::{Finish, StopReason, Tokenizer};

use crate::api::openai::{Head, STREAM_OPTIONS, write_error};
use crate::chat::{Usage, timings};
use crate::common::{self, finite, new_id, now, piece};
use crate::error::{ApiError, Protocol};
use crate::fields::{Field, Takes, field};
use crate::http::{self, Call, Framing, Gone, Writer};
use crate::models::Loaded;
use crate::text::{self, Job, Prompt, Text, Texts};

pub(crate) const COMPLETIONS: &[Field] = &[
    field("prompt", Takes::Any, "A text or token ids, or a list of either."),
    field(
        "suffix",
        Takes::Text,
        "What follows the text to be written, for models that were taught to fill in.",
    ),
    field("max_tokens", common::TOKENS, "Tokens to generate at most; -1 for as many as fit, the default."),
    field("n", Takes::Int(1, 64), "Continuations of each prompt."),
    field("best_of", Takes::Int(1, 64), "Of so many continuations the n most likely are returned."),
    field("echo", Takes::Bool, "Whether the prompt stands before its continuation."),
    field("stream", Takes::Bool, "Whether the text comes piece by piece."),
    field("stream_options", Takes::Object, "`include_usage`: a last chunk with the counts of tokens."),
    field("logprobs", Takes::Int(0, 20), "Tell the log-probability of each token, and of so many others."),
    field("response_format", Takes::Object, "text, json_object or json_schema."),
];

/// Prompts of one request at most.
const PROMPTS: usize = 256;

/// `POST /v1/completions`
pub(crate) async fn completions(call: Call) -> Result<Response, ApiError> {
    let fields = &call.fields;
    let loaded = call.app.models.acquire(fields.text("model")).await?;
    let value = fields.required("prompt", "a string, a list of strings, or token ids")?;
    let mut prompts = Prompt::read_all(value, "prompt")?;
    if prompts.len() > PROMPTS {
        return Err(fields.wrong("prompt", format!("at most {PROMPTS} prompts, found {}", prompts.len())));
    }
    if let Some(suffix) = fields.text("suffix").filter(|s| !s.is_empty()) {
        for prompt in &mut prompts {
            *prompt = fill_in(&loaded, prompt.clone(), suffix, "suffix")?;
        }
    }
    let mut settings = common::settings(&call, &loaded, &["max_tokens"], "stop")?;
    let n = fields.count("n").unwrap_or(1);
    let best_of = fields.count("best_of").unwrap_or(n);
    if best_of < n {
        return Err(fields.wrong("best_of", format!("a number of at least `n`, {n}, found {best_of}")));
    }
    let stream = fields.bool("stream").unwrap_or(false);
    if stream && best_of > n {
        return Err(fields.wrong("best_of", "the value of `n`, as the best are known at the end only"));
    }
    let logprobs = fields.count("logprobs");
    settings.n = best_of;
    settings.sampling.n_probs = logprobs.or((best_of > n).then_some(0));
    let echo = fields.bool("echo").unwrap_or(false);
    if echo && (fields.has("suffix") || logprobs.is_some()) {
        return Err(fields.wrong("echo", "false beside `suffix` or `logprobs`"));
    }
    let options = fields.object("stream_options", STREAM_OPTIONS)?;
    let with_usage = options.is_some_and(|o| o.bool("include_usage") == Some(true));
    let job = Job { prompts, shape: common::shape(fields)?, settings };
    let mut texts = text::start(&call.app, loaded, job).await?;
    let head = Head { id: format!("cmpl-{}", new_id()), created: now(), model: texts.loaded.name.clone() };
    if stream {
        let shown = Shown { echo, logprobs: logprobs.is_some(), with_usage, n };
        let write = move |writer| write_texts(writer, texts, head, shown);
        return Ok(http::stream(&call.app, Framing::Events, write));
    }
    let all = texts.collect().await?;
    let usage = usage_of(&texts, all.iter().filter_map(|t| t.finish.as_ref()), best_of);
    let first = all.first().and_then(|t| t.finish.as_ref()).map(timings);
    let tokenizer = texts.loaded.model().tokenizer();
    let mut choices = Vec::new();
    for (prompt, group) in texts.prompts.iter().zip(all.chunks(best_of)) {
        let mut group: Vec<&Text> = group.iter().collect();
        if best_of > n {
            group.sort_by(|a, b| likelihood(b).total_cmp(&likelihood(a)));
            group.truncate(n);
        }
        for text in group {
            let before = if echo { prompt_text(tokenizer, prompt) } else { String::new() };
            let list = logprobs.map(|_| legacy_logprobs(tokenizer, &text.logprobs, &text.offsets));
            choices.push(json!({
                "index": choices.len(),
                "text": before + &text.text,
                "logprobs": list,
                "finish_reason": text.finish.as_ref().map(|f| finish_reason(&f.reason)),
            }));
        }
    }
    let mut reply = head.object("text_completion", choices);
    reply["usage"] = usage.openai();
    reply["timings"] = first.unwrap_or_default();
    texts.tell_dropped(&mut reply, all.iter().filter_map(|t| t.finish.as_ref()));
    Ok(http::json(&reply))
}

/// The mean log-probability of a text's tokens.
fn likelihood(text: &Text) -> f64 {
    let sum: f64 = text.logprobs.iter().map(|l| finite(l.chosen.logprob)).sum();
    sum / text.logprobs.len().max(1) as f64
}

fn prompt_text(tokenizer: &Tokenizer, prompt: &[u32]) -> String {
    String::from_utf8_lossy(&tokenizer.decode(prompt, false)).into_owned()
}

fn finish_reason(reason: &StopReason) -> &'static str {
    match reason {
        StopReason::Length | StopReason::ContextFull => "length",
        _ => "stop",
    }
}

/// Counts over all prompts; each is counted once.
fn usage_of<'a>(texts: &Texts, finishes: impl Iterator<Item = &'a Finish>, each: usize) -> Usage {
    let mut usage = Usage::default();
    for (i, finish) in finishes.enumerate() {
        usage.generated += finish.timings.generated_tokens;
        if i % each == 0 {
            usage.cached += finish.timings.cached_tokens;
        }
    }
    usage.prompt = texts.prompts.iter().map(Vec::len).sum();
    usage
}

/// Log-probabilities as OpenAI's older form has them.
fn legacy_logprobs(tokenizer: &Tokenizer, list: &[Logprobs], offsets: &[usize]) -> Value {
    let texts: Vec<String> = list.iter().map(|l| piece(tokenizer, l.chosen.token).0).collect();
    let values: Vec<f64> = list.iter().map(|l| finite(l.chosen.logprob)).collect();
    let top = list.iter().map(|l| {
        let entry = |t: &wootz::sample::TokenLogprob| (piece(tokenizer, t.token).0, finite(t.logprob).into());
        Value::Object(l.top.iter().map(entry).collect())
    });
    json!({
        "tokens": texts,
        "token_logprobs": values,
        "top_logprobs": top.collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}

#[derive(Clone, Copy)]
struct Shown {
    echo: bool,
    logprobs: bool,
    with_usage: bool,
    n: usize,
}

async fn write_texts(writer: Writer, mut texts: Texts, head: Head, shown: Shown) -> Result<(), Gone> {
    let model = texts.loaded.model().clone();
    let mut offsets = vec![0; texts.count];
    let mut finishes = vec![None; texts.count];
    if shown.echo {
        for (i, prompt) in texts.prompts.clone().iter().enumerate() {
            for k in 0..shown.n {
                let text = prompt_text(model.tokenizer(), prompt);
                let choice = json!({ "index": i * shown.n + k, "text": text, "logprobs": null, "finish_reason": null });
                writer.object(&head.object("text_completion", vec![choice])).await?;
            }
        }
    }
    while let Some(piece) = texts.next().await {
        let piece = match piece {
            Ok(piece) => piece,
            Err(e) => return write_error(&writer, &e, Protocol::OpenAi).await,
        };
        let list = piece.logprobs.as_ref().filter(|_| shown.logprobs).map(|logprobs| {
            legacy_logprobs(model.tokenizer(), std::slice::from_ref(logprobs), &[offsets[piece.index]])
        });
        offsets[piece.index] += piece.text.len();
        if piece.text.is_empty() && list.is_none() && piece.finish.is_none() {
            continue;
        }
        let choice = json!({
            "index": piece.index,
            "text": piece.text,
            "logprobs": list,
            "finish_reason": piece.finish.as_ref().map(|f| finish_reason(&f.reason)),
        });
        let mut chunk = head.object("text_completion", vec![choice]);
        if let Some(finish) = piece.finish {
            chunk["timings"] = timings(&finish);
            texts.tell_dropped(&mut chunk, std::iter::once(&finish));
            finishes[piece.index] = Some(finish);
        }
        writer.object(&chunk).await?;
    }
    if shown.with_usage {
        let usage = usage_of(&texts, finishes.iter().flatten(), shown.n);
        let mut chunk = head.object("text_completion", Vec::new());
        chunk["usage"] = usage.openai();
        writer.object(&chunk).await?;
    }
    writer.raw("data: [DONE]\n\n".to_owned()).await
}

/// A prompt between whose parts the model writes, by the tokens that its vocabulary has for that.
///
/// # Errors
/// The vocabulary has none.
pub(crate) fn fill_in(
    loaded: &Loaded,
    prefix: Prompt,
    suffix: &str,
    param: &str,
) -> Result<Prompt, ApiError> {
    let tokenizer = loaded.model().tokenizer();
    let ids = tokenizer.special_ids();
    let (Some(before), Some(after), Some(middle)) = (ids.fim_prefix, ids.fim_suffix, ids.fim_middle) else {
        let why = "the model's vocabulary has no tokens for filling in";
        return Err(ApiError::unsupported(param, why));
    };
    let plain =
        |text: &str| Prompt::Tokens(tokenizer.encode(&[wootz::Segment::Text(text.as_bytes())], false));
    let prefix = match prefix {
        Prompt::Text(text) => plain(&text),
        other => Prompt::Tokens(other.tokens(loaded)),
    };
    let begin = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let begin: Vec<u32> = begin.into_iter().chain([before]).collect();
    Ok(Prompt::Mixed(vec![
        Prompt::Tokens(begin),
        prefix,
        Prompt::Tokens(vec![after]),
        plain(suffix),
        Prompt::Tokens(vec![middle]),
    ]))
}
