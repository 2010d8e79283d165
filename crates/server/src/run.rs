//! From an engine's thread to the tasks that answer requests.
//!
//! The engine never waits: each run has a channel with room for all that it can generate. A run that is dropped, as
//! its client has gone, is cancelled before the engine's next step.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tracing::Span;
use tracing::field::Empty;
use wootz::{Event, Handle, Request, StopReason};

use crate::error::{ApiError, Kind};
use crate::http::millis;
use crate::metrics::{Metrics, add};
use crate::models::Loaded;

/// Events that wait for a slow client at most; a run whose client is further behind is ended.
const BACKLOG: usize = 1 << 16;

/// One or several answers that are being generated to one request.
pub(crate) struct Run {
    model: Arc<Loaded>,
    metrics: Arc<Metrics>,
    events: mpsc::Receiver<(usize, Event)>,
    /// Kept while answers have yet to start: the channel ends with the last sender.
    sender: Option<mpsc::Sender<(usize, Event)>>,
    handles: Vec<Handle>,
    /// Answers that start once the first has computed the prompt that they share.
    later: Vec<Request>,
    /// Answers that have not ended.
    open: usize,
    deadline: Option<tokio::time::Instant>,
    timeout: Duration,
}

/// Prompts from this length on are computed once and then shared by all answers to them.
const SHARED_FROM: usize = 64;

impl Run {
    /// Starts answers to the requests.
    ///
    /// # Errors
    /// A request does not fit, or the queue is full.
    pub(crate) fn start(
        model: Arc<Loaded>,
        metrics: Arc<Metrics>,
        mut requests: Vec<Request>,
        timeout: Option<Duration>,
    ) -> Result<Run, ApiError> {
        let open = requests.len();
        let first = requests.first();
        let shares = first.is_some_and(|first| {
            first.cache_prompt
                && first.prompt.len() >= SHARED_FROM
                && requests.iter().all(|r| r.prompt == first.prompt)
        });
        let later = if shares { requests.split_off(1) } else { Vec::new() };
        let (sender, events) = mpsc::channel(BACKLOG);
        let deadline = timeout.map(|t| tokio::time::Instant::now() + t);
        let timeout = timeout.unwrap_or_default();
        let sender = Some(sender);
        let mut run =
            Run { model, metrics, events, sender, handles: Vec::new(), later, open, deadline, timeout };
        run.submit(requests)?;
        Ok(run)
    }

    fn submit(&mut self, requests: Vec<Request>) -> Result<(), ApiError> {
        if let Some(sender) = self.sender.take() {
            for request in requests {
                self.submit_one(request, sender.clone())?;
            }
            if !self.later.is_empty() {
                self.sender = Some(sender);
            }
        }
        Ok(())
    }

    fn submit_one(&mut self, request: Request, sender: mpsc::Sender<(usize, Event)>) -> Result<(), ApiError> {
        let index = self.handles.len();
        let metrics = self.metrics.clone();
        let mut record = Record { metrics, span: self.span(index), arrived: Instant::now(), last: None };
        let sink = Box::new(move |event: Event| {
            record.event(&event);
            // A receiver that is gone has cancelled the run; one that is full is told by the channel's end.
            let _ = sender.try_send((index, event));
        });
        let handle = self.model.engine.submit(request, sink).inspect_err(|e| {
            if matches!(e, wootz::Error::QueueFull { .. }) {
                add(&self.metrics.refused, 1);
            }
        })?;
        self.handles.push(handle);
        Ok(())
    }

    /// The span of an answer, inside that of its request.
    fn span(&self, index: usize) -> Span {
        tracing::info_span!(
            "answer",
            model = self.model.name,
            index,
            queue_ms = Empty,
            first_token_ms = Empty,
            prompt_tokens = Empty,
            cached_tokens = Empty,
            tokens = Empty,
            tokens_per_second = Empty,
            end = Empty,
        )
    }

    /// The next event of any answer, with the answer's index; `None` when all have ended.
    ///
    /// # Errors
    /// An answer failed, or the time is up; nothing follows.
    pub(crate) async fn next(&mut self) -> Option<Result<(usize, Event), ApiError>> {
        if self.open == 0 {
            return None;
        }
        let received = match self.deadline {
            None => self.events.recv().await,
            Some(deadline) => match tokio::time::timeout_at(deadline, self.events.recv()).await {
                Ok(received) => received,
                Err(_) => {
                    self.open = 0;
                    let message =
                        format!("the request took longer than {} seconds", self.timeout.as_secs_f64());
                    return Some(Err(ApiError::new(Kind::Timeout, message)));
                }
            },
        };
        let Some((index, event)) = received else {
            self.open = 0;
            return Some(Err(wootz::Error::Stopped.into()));
        };
        if self.events.len() + 1 >= BACKLOG {
            self.open = 0;
            let message = format!("the client is {BACKLOG} tokens behind");
            return Some(Err(ApiError::new(Kind::Timeout, message)));
        }
        match &event {
            Event::Prompt { done, total } if done == total => {
                let later = std::mem::take(&mut self.later);
                if let Err(e) = self.submit(later) {
                    self.open = 0;
                    return Some(Err(e));
                }
            }
            Event::Done(_) => self.open -= 1,
            Event::Failed(_) => self.open = 0,
            _ => {}
        }
        match event {
            Event::Failed(e) => Some(Err(e.into())),
            event => Some(Ok((index, event))),
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // Answers that have ended are not known to the engine any more.
        self.handles.iter().for_each(Handle::cancel);
    }
}

/// What is told of an answer in metrics and in its span.
struct Record {
    metrics: Arc<Metrics>,
    span: Span,
    arrived: Instant,
    /// When the last token came.
    last: Option<Instant>,
}

impl Record {
    /// Takes an event down, on the engine's thread.
    fn event(&mut self, event: &Event) {
        let Record { metrics, span, .. } = self;
        match event {
            Event::Prompt { .. } => {}
            Event::Token(_) => {
                let now = Instant::now();
                match self.last.replace(now) {
                    None => {
                        metrics.first_token.observe(now - self.arrived);
                        span.record("first_token_ms", millis(now - self.arrived));
                    }
                    Some(before) => metrics.between_tokens.observe(now - before),
                }
            }
            Event::Done(finish) => {
                let t = &finish.timings;
                metrics.queued.observe(t.queued);
                add(&metrics.prompt_tokens, t.prompt_tokens as u64);
                add(&metrics.cached_tokens, t.cached_tokens as u64);
                add(&metrics.generated_tokens, t.generated_tokens as u64);
                add(&metrics.prompt_micros, t.prompt.as_micros() as u64);
                add(&metrics.generation_micros, t.generation.as_micros() as u64);
                let counter = match finish.reason {
                    StopReason::Cancelled => &metrics.cancelled,
                    _ => &metrics.finished,
                };
                add(counter, 1);
                span.record("queue_ms", millis(t.queued));
                span.record("prompt_tokens", t.prompt_tokens);
                span.record("cached_tokens", t.cached_tokens);
                span.record("tokens", t.generated_tokens);
                span.record("tokens_per_second", (t.generation_speed() * 10.0).round() / 10.0);
                span.record("end", finish.reason.name());
                span.in_scope(|| tracing::info!("answered"));
            }
            Event::Failed(e) => {
                add(&metrics.failed, 1);
                span.record("end", "failed");
                span.in_scope(|| tracing::error!("{e}"));
            }
        }
    }
}
