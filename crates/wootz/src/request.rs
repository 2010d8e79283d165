//! What is asked of the engine and what it answers.

use std::time::Duration;

use crate::constraint::Constraint;
use crate::error::Error;
use crate::sample::{Logprobs, SamplingParams};

/// A prompt to continue.
#[derive(Debug)]
pub struct Request {
    /// Token ids.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most; `None` for as many as fit the context.
    pub max_tokens: Option<usize>,
    /// How tokens are picked.
    pub sampling: SamplingParams,
    /// Texts that end generation and are not part of the answer.
    pub stop: Vec<String>,
    /// Whether text pieces of special tokens are part of the answer.
    pub show_special: bool,
    /// Special tokens whose text is part of the answer even where that of others is not.
    pub shown: Vec<u32>,
    /// Whether a prefix seen before may be reused, and this one be kept for reuse.
    pub cache_prompt: bool,
    /// What limits the answer.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Whose request this is: where requests wait, those of users with fewer running ones go first.
    pub user: u64,
    /// Waiting requests of a higher priority start first.
    pub priority: i32,
    /// What happens where the answer does not fit the context.
    pub overflow: Overflow,
}

/// What happens where prompt and answer do not fit the context. The prompt alone must fit in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// A request for more tokens than fit is refused.
    #[default]
    Refuse,
    /// Where the context is full, half of the tokens behind the first `keep` are dropped, and the answer goes on from
    /// those that are left until it has its `max_tokens`. Without those it ends where the context is full.
    Slide {
        /// Tokens at the start that stay, up to half of the context.
        keep: usize,
    },
}

impl Request {
    /// A request with default settings.
    pub fn new(prompt: Vec<u32>) -> Request {
        Request {
            prompt,
            max_tokens: None,
            sampling: SamplingParams::default(),
            stop: Vec::new(),
            show_special: false,
            shown: Vec::new(),
            cache_prompt: true,
            constraint: None,
            user: 0,
            priority: 0,
            overflow: Overflow::Refuse,
        }
    }

    /// Sets how many tokens are generated at most.
    pub fn max_tokens(mut self, n: usize) -> Request {
        self.max_tokens = Some(n);
        self
    }

    /// Sets how tokens are picked.
    pub fn sampling(mut self, sampling: SamplingParams) -> Request {
        self.sampling = sampling;
        self
    }

    /// Adds a text that ends generation.
    pub fn stop(mut self, text: impl Into<String>) -> Request {
        self.stop.push(text.into());
        self
    }
}

/// Something that happened to a request.
#[derive(Debug)]
pub enum Event {
    /// Part of the prompt is computed.
    Prompt {
        /// Tokens of the prompt that are computed or were cached.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// A token was generated.
    Token(TokenEvent),
    /// The request ended; nothing follows.
    Done(Finish),
    /// The request failed; nothing follows.
    Failed(Error),
}

/// A generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenEvent {
    /// Token id.
    pub token: u32,
    /// Text that became certain with this token: whole characters, no part of a stop text. Often empty.
    pub text: String,
    /// Log-probabilities, where the request asks for them.
    pub logprobs: Option<Logprobs>,
}

/// Why generation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model ended its answer.
    EndOfText,
    /// As many tokens as asked for.
    Length,
    /// The context is full.
    ContextFull,
    /// A stop text appeared.
    StopText(String),
    /// The request was cancelled.
    Cancelled,
}

impl StopReason {
    /// A short name, as `--json` prints it.
    pub fn name(&self) -> &'static str {
        match self {
            StopReason::EndOfText => "end_of_text",
            StopReason::Length => "length",
            StopReason::ContextFull => "context_full",
            StopReason::StopText(_) => "stop_text",
            StopReason::Cancelled => "cancelled",
        }
    }
}

/// How a request ended.
#[derive(Clone, Debug)]
pub struct Finish {
    /// Why.
    pub reason: StopReason,
    /// Text held back until the end was certain.
    pub text: String,
    /// Counts and times.
    pub timings: Timings,
}

/// Counts and times of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were found in the cache.
    pub cached_tokens: usize,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// Tokens of prompt and answer that were dropped as the context was full.
    pub dropped_tokens: usize,
    /// From the request's arrival to the start of its first step.
    pub queued: Duration,
    /// From the start of the first step to the first token.
    pub prompt: Duration,
    /// From the first token to the last.
    pub generation: Duration,
}

impl Timings {
    /// Computed prompt tokens per second.
    pub fn prompt_speed(&self) -> f64 {
        rate(self.prompt_tokens - self.cached_tokens, self.prompt)
    }

    /// Generated tokens per second, the first one left out: it belongs to the prompt's time.
    pub fn generation_speed(&self) -> f64 {
        rate(self.generated_tokens.saturating_sub(1), self.generation)
    }
}

fn rate(count: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}
