//! A thread that owns a context and answers requests.
//!
//! Each step, every running request is granted some of its uncomputed tokens under a token budget: first those that
//! generate, one token each, then prompts in the order of arrival. So long prompts do not stop running answers.

mod job;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use wootz_graph::{DeviceInfo, MemoryUse, RunError};

use crate::context::{Context, Limits, RowsWanted, StepPart};
use crate::error::Error;
use crate::model::Model;
use crate::request::{Event, Request, StopReason, TokenEvent};
use job::Job;

/// Receives the events of a request, on the engine's thread: it must not block.
pub type Sink = Box<dyn FnMut(Event) + Send>;

/// Settings of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// Requests that may wait; more are refused.
    pub queue: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions { queue: 1024 }
    }
}

enum Command {
    Submit(Box<Job>),
    Cancel(u64),
    Call(Box<dyn FnOnce(&mut Context) + Send>),
    Stop,
}

/// Answers requests to one model on its own thread.
pub struct Engine {
    model: Arc<Model>,
    limits: Limits,
    device: DeviceInfo,
    options: EngineOptions,
    commands: Sender<Command>,
    waiting: Arc<AtomicUsize>,
    next: AtomicU64,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts a thread that owns `context`.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(context: Context, options: EngineOptions) -> Result<Engine, Error> {
        let (commands, inbox) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let (model, limits, device) = (context.model().clone(), context.limits(), context.device().clone());
        let mut worker =
            Worker { context, inbox, waiting: waiting.clone(), queue: VecDeque::new(), running: Vec::new() };
        let thread = std::thread::Builder::new().name("wootz-engine".into()).spawn(move || worker.run());
        let thread = Some(thread.map_err(|e| RunError::Device {
            device: device.id.clone(),
            reason: format!("cannot start the engine's thread: {e}"),
        })?);
        Ok(Engine { model, limits, device, options, commands, waiting, next: AtomicU64::new(0), thread })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// How much fits.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The device that computes.
    pub fn device(&self) -> &DeviceInfo {
        &self.device
    }

    /// Requests that wait for room.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Starts a request whose events go to `sink`.
    ///
    /// # Errors
    /// The request is empty, does not fit the context, or asks for something out of range; the queue is full.
    pub fn submit(&self, request: Request, sink: Sink) -> Result<Handle, Error> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let job = Job::new(id, request, sink, &self.model, &self.limits)?;
        let limit = self.options.queue;
        let waiting = self.waiting.fetch_add(1, Ordering::Relaxed);
        if waiting >= limit {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(Error::QueueFull { waiting, limit });
        }
        self.commands.send(Command::Submit(Box::new(job))).map_err(|_| Error::Stopped)?;
        Ok(Handle { id, commands: self.commands.clone() })
    }

    /// Starts a request and returns its events one by one.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn generate(&self, request: Request) -> Result<Generation, Error> {
        let (tx, events) = channel();
        let sink = Box::new(move |event| {
            // The receiver may be gone: its drop has cancelled the request.
            let _ = tx.send(event);
        });
        Ok(Generation { handle: self.submit(request, sink)?, events, done: false })
    }

    /// Runs `f` on the engine's thread between two steps and returns what it returns.
    ///
    /// # Errors
    /// The engine has stopped.
    pub fn with_context<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Context) -> R + Send + 'static,
    ) -> Result<R, Error> {
        let (tx, rx) = channel();
        let call = Box::new(move |context: &mut Context| {
            // The caller may have gone; then nobody needs the result.
            let _ = tx.send(f(context));
        });
        self.commands.send(Command::Call(call)).map_err(|_| Error::Stopped)?;
        rx.recv().map_err(|_| Error::Stopped)
    }

    /// Memory held by weights, caches and plans.
    ///
    /// # Errors
    /// The engine has stopped.
    pub fn memory(&self) -> Result<MemoryUse, Error> {
        self.with_context(|c| c.memory())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // The thread may have ended by a panic; there is nobody to tell.
        let _ = self.commands.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A request that was started.
#[derive(Clone)]
pub struct Handle {
    id: u64,
    commands: Sender<Command>,
}

impl Handle {
    /// Ends the request before its next step; its last event is [`Event::Done`] with [`StopReason::Cancelled`].
    pub fn cancel(&self) {
        // An engine that has stopped runs nothing that could be cancelled.
        let _ = self.commands.send(Command::Cancel(self.id));
    }
}

/// The events of a request, in order. Dropping it cancels the request.
pub struct Generation {
    handle: Handle,
    events: Receiver<Event>,
    done: bool,
}

impl Generation {
    /// A handle to cancel the request from elsewhere.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl Iterator for Generation {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        if self.done {
            return None;
        }
        let event = self.events.recv().unwrap_or(Event::Failed(Error::Stopped));
        self.done = matches!(event, Event::Done(_) | Event::Failed(_));
        Some(event)
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if !self.done {
            self.handle.cancel();
        }
    }
}

/// The engine's thread.
struct Worker {
    context: Context,
    inbox: Receiver<Command>,
    waiting: Arc<AtomicUsize>,
    queue: VecDeque<Job>,
    running: Vec<Job>,
}

impl Worker {
    fn run(&mut self) {
        loop {
            if !self.take_commands() {
                break;
            }
            self.admit();
            if !self.running.is_empty() {
                self.step();
            }
        }
        for job in self.queue.drain(..).chain(self.running.drain(..)) {
            job.finish(&mut self.context, StopReason::Cancelled);
        }
    }

    /// Takes what has arrived, waiting where there is nothing else to do; `false` to stop.
    fn take_commands(&mut self) -> bool {
        loop {
            let idle = self.queue.is_empty() && self.running.is_empty();
            let command = if idle {
                match self.inbox.recv() {
                    Ok(command) => command,
                    Err(_) => return false,
                }
            } else {
                match self.inbox.try_recv() {
                    Ok(command) => command,
                    Err(TryRecvError::Empty) => return true,
                    Err(TryRecvError::Disconnected) => return false,
                }
            };
            match command {
                Command::Submit(job) => self.queue.push_back(*job),
                Command::Cancel(id) => self.cancel(id),
                Command::Call(f) => f(&mut self.context),
                Command::Stop => return false,
            }
        }
    }

    fn cancel(&mut self, id: u64) {
        if let Some(i) = self.queue.iter().position(|j| j.id == id) {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            if let Some(job) = self.queue.remove(i) {
                job.finish(&mut self.context, StopReason::Cancelled);
            }
        }
        if let Some(i) = self.running.iter().position(|j| j.id == id) {
            self.running.remove(i).finish(&mut self.context, StopReason::Cancelled);
        }
    }

    /// Starts waiting requests while there is room for their longest course.
    fn admit(&mut self) {
        while self.running.len() < self.context.limits().sequences {
            let Some(mut job) = self.queue.pop_front() else { break };
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            match job.start(&mut self.context) {
                Ok(()) => self.running.push(job),
                Err(e) => job.fail(&mut self.context, e),
            }
        }
    }

    /// Runs one step and deals with what it returns.
    fn step(&mut self) {
        let grants = self.grants();
        let parts: Vec<StepPart<'_>> =
            grants.iter().map(|(i, n)| self.running[*i].part(&self.context, *n)).collect();
        let rows: Vec<bool> = parts.iter().map(|p| p.rows == RowsWanted::Last).collect();
        let outcome: Vec<Result<Option<TokenEvent>, Error>> = match self.context.step(&parts) {
            Ok(output) => {
                let mut row = 0;
                let take = |(grant, wanted): (&(usize, usize), &bool)| {
                    if !wanted {
                        return Ok(None);
                    }
                    row += 1;
                    self.running[grant.0].next_token(output.row(row - 1)).map(Some)
                };
                grants.iter().zip(&rows).map(take).collect()
            }
            Err(e) => {
                let reason = e.to_string();
                let device = self.context.device().id.clone();
                let failure = || RunError::Device { device: device.clone(), reason: reason.clone() };
                grants.iter().map(|_| Err(failure().into())).collect()
            }
        };
        let mut ended: Vec<(usize, Result<StopReason, Error>)> = Vec::new();
        for ((i, _), result) in grants.iter().zip(outcome) {
            match result.map(|token| self.running[*i].advance(&self.context, token)) {
                Ok(None) => {}
                Ok(Some(reason)) => ended.push((*i, Ok(reason))),
                Err(e) => ended.push((*i, Err(e))),
            }
        }
        ended.sort_by_key(|(i, _)| std::cmp::Reverse(*i));
        for (i, result) in ended {
            let job = self.running.remove(i);
            match result {
                Ok(reason) => job.finish(&mut self.context, reason),
                Err(e) => job.fail(&mut self.context, e),
            }
        }
    }

    /// Which running request computes how many tokens in the next step.
    fn grants(&self) -> Vec<(usize, usize)> {
        let mut budget = self.context.limits().batch;
        let mut grants = Vec::new();
        let pending: Vec<usize> = self.running.iter().map(|j| j.pending(&self.context)).collect();
        for (i, n) in pending.iter().enumerate().filter(|(_, n)| **n == 1) {
            if budget > 0 {
                grants.push((i, *n));
                budget -= 1;
            }
        }
        for (i, n) in pending.iter().enumerate().filter(|(_, n)| **n > 1) {
            let n = (*n).min(budget);
            if n > 0 {
                grants.push((i, n));
                budget -= n;
            }
        }
        grants
    }
}
