//! A text to be continued as it is, without a template.

use std::sync::Arc;

use serde_json::Value;
use tokio::time::Instant;
use wootz::sample::Logprobs;
use wootz::{Event, Finish, Segment};

use crate::chat::{Limits, Settings, blocking, requests};
use crate::constrain::Shape;
use crate::error::ApiError;
use crate::fields::kind;
use crate::models::Loaded;
use crate::run::Run;
use crate::server::App;

/// A prompt as requests give it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
    /// Texts and tokens in turns.
    Mixed(Vec<Prompt>),
}

impl Prompt {
    /// Reads one prompt: a string, a list of tokens, or a list of both.
    ///
    /// # Errors
    /// Names the field at fault.
    pub(crate) fn read(value: &Value, param: &str) -> Result<Prompt, ApiError> {
        let expected = "a string or a list of strings and token ids";
        match value {
            Value::String(text) => Ok(Prompt::Text(text.clone())),
            Value::Array(list) => {
                let item = |v: &Value| match v {
                    Value::String(text) => Ok(Prompt::Text(text.clone())),
                    Value::Number(n) => match n.as_u64().and_then(|id| u32::try_from(id).ok()) {
                        Some(id) => Ok(Prompt::Tokens(vec![id])),
                        None => Err(ApiError::field(param, format!("token ids, found {n}"))),
                    },
                    other => Err(ApiError::field(param, format!("{expected}, found {}", kind(other)))),
                };
                list.iter().map(item).collect::<Result<_, _>>().map(Prompt::Mixed)
            }
            other => Err(ApiError::field(param, format!("{expected}, found {}", kind(other)))),
        }
    }

    /// Reads one or several prompts: a list of strings, or of lists, is several.
    ///
    /// # Errors
    /// Names the field at fault.
    pub(crate) fn read_all(value: &Value, param: &str) -> Result<Vec<Prompt>, ApiError> {
        match value {
            Value::Array(list)
                if !list.is_empty()
                    && (list.iter().all(Value::is_string) || list.iter().any(Value::is_array)) =>
            {
                list.iter().enumerate().map(|(i, v)| Prompt::read(v, &format!("{param}[{i}]"))).collect()
            }
            one => Ok(vec![Prompt::read(one, param)?]),
        }
    }

    /// The tokens; in texts, special tokens are recognised, as all of the prompt is the sender's markup.
    pub(crate) fn tokens(&self, loaded: &Loaded) -> Vec<u32> {
        let tokenizer = loaded.model().tokenizer();
        match self {
            Prompt::Text(text) => tokenizer.encode(&[Segment::Markup(text)], true),
            Prompt::Tokens(tokens) => tokens.clone(),
            Prompt::Mixed(list) => {
                let mut out = Vec::new();
                for (i, part) in list.iter().enumerate() {
                    match part {
                        Prompt::Text(text) => {
                            out.extend(tokenizer.encode(&[Segment::Markup(text)], i == 0));
                        }
                        other => out.extend(other.tokens(loaded)),
                    }
                }
                out
            }
        }
    }
}

/// Continuations to be generated.
pub(crate) struct Job {
    /// Each is continued as many times as the settings say.
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) shape: Option<(Shape, &'static str)>,
    pub(crate) settings: Settings,
}

/// Continuations that are being generated.
pub(crate) struct Texts {
    run: Run,
    /// Those to the first prompt come first.
    pub(crate) count: usize,
    pub(crate) prompts: Vec<Vec<u32>>,
    /// Tokens of all prompts that were dropped, as they did not fit.
    pub(crate) dropped: usize,
    pub(crate) loaded: Arc<Loaded>,
    pub(crate) started: Instant,
}

/// What became known of a continuation.
#[derive(Default)]
pub(crate) struct Piece {
    pub(crate) index: usize,
    pub(crate) text: String,
    pub(crate) token: Option<u32>,
    pub(crate) logprobs: Option<Logprobs>,
    /// Set with the last piece.
    pub(crate) finish: Option<Finish>,
}

/// A whole continuation.
#[derive(Default)]
pub(crate) struct Text {
    pub(crate) text: String,
    pub(crate) tokens: Vec<u32>,
    pub(crate) logprobs: Vec<Logprobs>,
    /// Bytes of the text before each token.
    pub(crate) offsets: Vec<usize>,
    pub(crate) finish: Option<Finish>,
}

/// Tokenizes the prompt and starts its continuations, where that holds up nobody.
///
/// # Errors
/// The prompt does not fit, a grammar is not sound, or the queue is full.
pub(crate) async fn start(app: &Arc<App>, loaded: Arc<Loaded>, job: Job) -> Result<Texts, ApiError> {
    let app = app.clone();
    blocking(move || {
        let span = tracing::debug_span!("prepare").entered();
        let Job { prompts, shape, settings } = job;
        let grammar = match &shape {
            Some((shape, field)) => Some(loaded.grammars()?.shape(shape, None, field)?),
            None => None,
        };
        let limits = Limits { grammar, ..Limits::default() };
        let mut prompts: Vec<Vec<u32>> = prompts.iter().map(|prompt| prompt.tokens(&loaded)).collect();
        let context = loaded.engine.limits().context;
        let mut dropped = 0;
        let mut all = Vec::new();
        for prompt in &mut prompts {
            let room = (context + 1).saturating_sub(prompt.len());
            let mut settings = settings.clone();
            if settings.truncate {
                dropped += cut(prompt, &settings, context);
            } else if room > 0 {
                // A bound that is above what fits is no wish for so much.
                settings.max_tokens = settings.max_tokens.map(|n| n.min(room));
            }
            all.extend(requests(&settings, prompt, &limits, &[]));
        }
        drop(span);
        let count = all.len();
        let run = Run::start(loaded.clone(), app.metrics.clone(), all, app.options.timeout)?;
        Ok(Texts { run, count, prompts, dropped, loaded, started: Instant::now() })
    })
    .await
}

/// Drops tokens of a prompt that leaves no room for its continuation, behind those that stay; returns how many.
fn cut(prompt: &mut Vec<u32>, settings: &Settings, context: usize) -> usize {
    let longest = context - settings.reserve(context);
    let dropped = prompt.len().saturating_sub(longest);
    let keep = settings.keep.min(longest / 2);
    if dropped > 0 {
        prompt.drain(keep..keep + dropped);
    }
    dropped
}

impl Texts {
    /// Puts into a reply how many tokens of prompts and texts were dropped, if any were.
    pub(crate) fn tell_dropped<'a>(&self, reply: &mut Value, finishes: impl Iterator<Item = &'a Finish>) {
        let dropped = self.dropped + finishes.map(|f| f.timings.dropped_tokens).sum::<usize>();
        if dropped > 0 {
            reply["truncated_tokens"] = dropped.into();
        }
    }

    /// What comes next of any continuation; `None` when all have ended.
    ///
    /// # Errors
    /// A continuation failed; nothing follows.
    pub(crate) async fn next(&mut self) -> Option<Result<Piece, ApiError>> {
        loop {
            let (index, event) = match self.run.next().await? {
                Ok(event) => event,
                Err(e) => return Some(Err(e)),
            };
            match event {
                Event::Prompt { .. } | Event::Failed(_) => {}
                Event::Token(t) => {
                    let (text, logprobs) = (t.text, t.logprobs);
                    return Some(Ok(Piece { index, text, token: Some(t.token), logprobs, finish: None }));
                }
                Event::Done(finish) => {
                    let text = finish.text.clone();
                    return Some(Ok(Piece { index, text, finish: Some(finish), ..Piece::default() }));
                }
            }
        }
    }

    /// All continuations, whole.
    ///
    /// # Errors
    /// A continuation failed.
    pub(crate) async fn collect(&mut self) -> Result<Vec<Text>, ApiError> {
        let mut all: Vec<Text> = (0..self.count).map(|_| Text::default()).collect();
        while let Some(piece) = self.next().await {
            let piece = piece?;
            let text = &mut all[piece.index];
            if piece.token.is_some() {
                text.offsets.push(text.text.len());
            }
            text.text.push_str(&piece.text);
            text.tokens.extend(piece.token);
            text.logprobs.extend(piece.logprobs);
            if piece.finish.is_some() {
                text.finish = piece.finish;
            }
        }
        Ok(all)
    }
}
