//! A request on its way through the engine.

use std::time::Instant;

use wootz_text::stop::StopMatcher;
use wootz_text::stream::Utf8Stream;

use crate::constraint::Constraint;
use crate::context::{Context, Limits, RowsWanted, SequenceId, StepPart};
use crate::engine::Sink;
use crate::error::Error;
use crate::model::Model;
use crate::request::{Event, Finish, Overflow, Request, StopReason, Timings, TokenEvent};
use crate::sample::{LogitEdit, Picked, Sampler, Sampling, Threads};

pub(super) struct Job {
    pub(super) id: u64,
    pub(super) user: u64,
    pub(super) priority: i32,
    pub(super) constraint: Option<Box<dyn Constraint>>,
    model: std::sync::Arc<Model>,
    sink: Sink,
    /// Prompt and answer.
    tokens: Vec<u32>,
    prompt_tokens: usize,
    /// Length of prompt and answer at which generation ends.
    end: usize,
    /// Positions of the context, and the tokens at the start that stay where it is full.
    context: usize,
    keep: usize,
    end_reason: StopReason,
    show_special: bool,
    shown: Vec<u32>,
    cache_prompt: bool,
    sampler: Sampler,
    text: Utf8Stream,
    stop: StopMatcher,
    stop_texts: Vec<String>,
    sequence: Option<SequenceId>,
    timings: Timings,
    arrived: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
}

impl Job {
    pub(super) fn new(
        id: u64,
        request: Request,
        sink: Sink,
        model: &std::sync::Arc<Model>,
        limits: &Limits,
    ) -> Result<Job, Error> {
        let vocab = model.arch().hparams().vocab;
        if request.prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if let Some(token) = request.prompt.iter().find(|t| **t >= vocab) {
            return Err(Error::BadToken { token: *token, vocab });
        }
        let prompt = request.prompt.len();
        // The last token generated is never computed, so it needs no position.
        let room = (limits.context + 1).saturating_sub(prompt);
        let slides = matches!(request.overflow, Overflow::Slide { .. });
        if room == 0 || request.max_tokens.is_some_and(|n| n > room && !slides) {
            return Err(Error::ContextFull {
                prompt,
                max_tokens: request.max_tokens.unwrap_or(1),
                context: limits.context,
                hint: "; shorten the prompt, generate less or open a larger context",
            });
        }
        let (end, end_reason) = match request.max_tokens {
            Some(n) => (prompt.saturating_add(n), StopReason::Length),
            None => (prompt + room, StopReason::ContextFull),
        };
        let mut sampler = Sampler::new(request.sampling, &model.sampler_vocab())?;
        for token in &request.prompt {
            sampler.accept(*token);
        }
        Ok(Job {
            id,
            user: request.user,
            priority: request.priority,
            constraint: request.constraint,
            model: model.clone(),
            sink,
            tokens: request.prompt,
            prompt_tokens: prompt,
            end,
            context: limits.context,
            keep: match request.overflow {
                Overflow::Refuse => 0,
                Overflow::Slide { keep } => keep.min(limits.context / 2),
            },
            end_reason,
            show_special: request.show_special,
            shown: request.shown,
            cache_prompt: request.cache_prompt,
            sampler,
            text: Utf8Stream::new(),
            stop: StopMatcher::new(&request.stop),
            stop_texts: request.stop,
            sequence: None,
            timings: Timings { prompt_tokens: prompt, ..Timings::default() },
            arrived: Instant::now(),
            started: None,
            first_token: None,
        })
    }

    /// Opens the request's sequence, with what the cache holds of its tokens.
    pub(super) fn start(&mut self, context: &mut Context) -> Result<(), Error> {
        // The last token is always computed: its logits are needed.
        let known = if self.cache_prompt { &self.tokens[..self.tokens.len() - 1] } else { &[] };
        let (sequence, cached) = context.open_prefix(known)?;
        self.sequence = Some(sequence);
        if self.started.is_none() {
            let now = Instant::now();
            self.started = Some(now);
            self.timings.queued = now - self.arrived;
            self.timings.cached_tokens = cached;
        }
        Ok(())
    }

    /// Gives the sequence up for now; [`start`](Self::start) goes on from there.
    pub(super) fn pause(&mut self, context: &mut Context) {
        self.close(context);
    }

    /// Whether the next token would have no position.
    pub(super) fn is_full(&self) -> bool {
        self.tokens.len() > self.context
    }

    /// Drops half of the tokens behind those that stay, and gives the sequence up; [`start`](Self::start) goes on.
    pub(super) fn slide(&mut self, context: &mut Context) {
        self.close(context);
        let dropped = (self.tokens.len() - self.keep).div_ceil(2);
        self.tokens.drain(self.keep..self.keep + dropped);
        self.end -= dropped;
        self.timings.dropped_tokens += dropped;
    }

    /// Positions that the request holds once it has generated `more` tokens, or as many as it may.
    pub(super) fn length_soon(&self, more: usize) -> usize {
        self.end.min(self.tokens.len() + more)
    }

    /// Tokens of which no step computes anything yet.
    pub(super) fn pending(&self, context: &Context) -> usize {
        self.sequence.map_or(0, |s| self.tokens.len().saturating_sub(context.length(s)))
    }

    /// Whether no step follows the one that picks the next token, as it is the last or has no position.
    pub(super) fn ends_with_next(&self) -> bool {
        self.tokens.len() + 1 >= self.end || self.tokens.len() >= self.context
    }

    /// The next `n` tokens; the last of all returns its logits.
    pub(super) fn part(&self, context: &Context, n: usize) -> StepPart<'_> {
        let sequence = self.sequence.expect("running requests have a sequence");
        let first = context.length(sequence);
        let last = first + n == self.tokens.len();
        StepPart {
            sequence,
            tokens: &self.tokens[first..first + n],
            rows: if last { RowsWanted::Last } else { RowsWanted::None },
        }
    }

    /// A token that the device picks in the step under way and takes as its input in the next.
    pub(super) fn part_ahead(&self) -> StepPart<'_> {
        let sequence = self.sequence.expect("running requests have a sequence");
        StepPart { sequence, tokens: &[0], rows: RowsWanted::Last }
    }

    /// How a device picks the next token, or the one after it with `ahead` 1; `None` where only the host can.
    pub(super) fn sampling<'a>(
        &self,
        ahead: usize,
        context: &mut Context,
        edits: &'a mut Vec<LogitEdit>,
    ) -> Option<Sampling<'a>> {
        let sampling = self.sampler.on_device(ahead, edits).filter(|_| self.constraint.is_none())?;
        context.can_pick(&sampling).then_some(sampling)
    }

    /// Takes the token that the device picked; `ahead` says that the next step computes it already.
    pub(super) fn take(
        &mut self,
        picked: Picked,
        ahead: bool,
        context: &mut Context,
    ) -> Result<TokenEvent, Error> {
        let token = self.sampler.picked(picked)?;
        self.sampler.accept(token);
        if let Some(sequence) = self.sequence.filter(|_| ahead) {
            context.settle(sequence, token)?;
        }
        Ok(TokenEvent { token, text: String::new(), logprobs: None })
    }

    /// Picks the next token.
    pub(super) fn next_token(&mut self, threads: &dyn Threads, logits: &[f32]) -> Result<TokenEvent, Error> {
        let mask = self.constraint.as_ref().and_then(|c| c.mask());
        let sampled = self.sampler.sample_on(threads, logits, mask.as_ref())?;
        drop(mask);
        self.sampler.accept(sampled.token);
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(sampled.token)?;
        }
        Ok(TokenEvent { token: sampled.token, text: String::new(), logprobs: sampled.logprobs })
    }

    /// Tells what the step brought; why generation ends, where it does.
    pub(super) fn advance(&mut self, context: &Context, token: Option<TokenEvent>) -> Option<StopReason> {
        let Some(mut event) = token else {
            if self.first_token.is_some() {
                // Computed again after a pause.
                return None;
            }
            let done = self.sequence.map_or(0, |s| context.len(s));
            (self.sink)(Event::Prompt { done, total: self.prompt_tokens });
            return None;
        };
        let now = Instant::now();
        match self.first_token {
            None => {
                self.timings.prompt = now - self.started.unwrap_or(now);
                self.first_token = Some(now);
                (self.sink)(Event::Prompt { done: self.prompt_tokens, total: self.prompt_tokens });
            }
            Some(first) => self.timings.generation = now - first,
        }
        self.timings.generated_tokens += 1;
        let token = event.token;
        self.tokens.push(token);
        let ends = self.model.tokenizer().is_eog(token);
        let special = self.show_special || self.shown.contains(&token);
        if !ends || special {
            let bytes = self.model.tokenizer().piece(token, special);
            let step = self.stop.push(&self.text.push(&bytes));
            event.text = step.text;
            if let Some(stop) = step.stop {
                (self.sink)(Event::Token(event));
                return Some(StopReason::StopText(self.stop_texts[stop].clone()));
            }
        }
        (self.sink)(Event::Token(event));
        if ends || self.constraint.as_ref().is_some_and(|c| c.is_complete()) {
            return Some(StopReason::EndOfText);
        }
        (self.tokens.len() >= self.end).then(|| self.end_reason.clone())
    }

    /// Ends the request.
    pub(super) fn finish(mut self, context: &mut Context, reason: StopReason) {
        self.close(context);
        let mut text = String::new();
        if !matches!(reason, StopReason::StopText(_)) {
            // An unfinished character first, then what could have begun a stop text.
            let step = self.stop.push(&self.text.finish());
            text = step.text;
            text.push_str(&self.stop.finish());
        }
        let timings = self.timings;
        (self.sink)(Event::Done(Finish { reason, text, timings }));
    }

    /// Ends the request with an error.
    pub(super) fn fail(mut self, context: &mut Context, error: Error) {
        self.close(context);
        (self.sink)(Event::Failed(error));
    }

    fn close(&mut self, context: &mut Context) {
        if let Some(sequence) = self.sequence.take() {
            context.close(sequence);
        }
    }
}
