//! A thread that owns a context and answers requests.
//!
//! Each step, every running request is granted some of its uncomputed tokens under a token budget: first those that
//! generate, one token each, then prompts. So long prompts do not stop running answers.
//!
//! Requests start while the cache has room for what they hold and a little more. Where it runs full all the same, the
//! last that started waits again; what it has computed is kept as long as there is room, and its answer is the same.
//!
//! Where the device picks the tokens of all that run, the next step is queued while one is under way: the tokens go from
//! one to the other on the device, and what a request that ends had there is thrown away.

mod flight;
mod job;
mod schedule;
mod texts;
mod worker;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use wootz_graph::{DeviceInfo, MemoryUse, RunError, Wants};

use crate::context::{Context, Limits};
use crate::embed::{Embedding, Pooling};
use crate::error::Error;
use crate::model::Model;
use crate::request::{Event, Request};
use job::Job;
use texts::Texts;
use worker::Worker;

/// Receives the events of a request, on the engine's thread: it must not block.
pub type Sink = Box<dyn FnMut(Event) + Send>;

/// Settings of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// Requests that may wait; more are refused.
    pub queue: usize,
    /// Requests that may run at once, as far as the cache has room; never more than a step has tokens.
    pub running: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions { queue: 1024, running: 64 }
    }
}

/// What an engine has done and is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Requests that run.
    pub running: usize,
    /// Steps so far.
    pub steps: u64,
    /// Tokens computed in all steps.
    pub tokens: u64,
    /// Requests, summed over all steps.
    pub parts: u64,
    /// Steps that were queued while the one before was under way.
    pub queued_ahead: u64,
    /// How often a running request had to wait again, because the cache was full.
    pub preempted: u64,
    /// Blocks of the cache that running requests hold.
    pub blocks_used: usize,
    /// Blocks of the cache.
    pub blocks: usize,
}

enum Command {
    Submit(Box<Job>),
    Embed(Box<Texts>),
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
    stats: Arc<Mutex<EngineStats>>,
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
        let stats = Arc::new(Mutex::new(EngineStats::default()));
        let mut worker = Worker::new(context, options, inbox, waiting.clone(), stats.clone());
        let thread = std::thread::Builder::new().name("wootz-engine".into()).spawn(move || worker.run());
        let thread = Some(thread.map_err(|e| RunError::Device {
            device: device.id.clone(),
            reason: format!("cannot start the engine's thread: {e}"),
        })?);
        Ok(Engine {
            model,
            limits,
            device,
            options,
            commands,
            waiting,
            stats,
            next: AtomicU64::new(0),
            thread,
        })
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

    /// What the engine had done and was doing after its last step.
    pub fn stats(&self) -> EngineStats {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a request whose events go to `sink`.
    ///
    /// # Errors
    /// The request is empty, does not fit the context, or asks for something out of range; the queue is full.
    pub fn submit(&self, request: Request, sink: Sink) -> Result<Handle, Error> {
        self.model.check_generates()?;
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let job = Job::new(id, request, sink, &self.model, &self.limits)?;
        self.wait()?;
        self.commands.send(Command::Submit(Box::new(job))).map_err(|_| Error::Stopped)?;
        Ok(Handle { id, commands: self.commands.clone() })
    }

    /// Counts one more request that waits.
    ///
    /// # Errors
    /// The queue is full.
    fn wait(&self) -> Result<(), Error> {
        let limit = self.options.queue;
        let waiting = self.waiting.fetch_add(1, Ordering::Relaxed);
        if waiting >= limit {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(Error::QueueFull { waiting, limit });
        }
        Ok(())
    }

    /// Starts embedding texts, by the model's own way of pooling where `pooling` is `None`; `done` hears what became of
    /// them, on the engine's thread, and must not block. Texts of several requests run together in a step, between those
    /// of what else runs.
    ///
    /// # Errors
    /// As [`Context::embed`] but for failed steps; the queue is full, or the engine has stopped.
    pub fn start_embedding(
        &self,
        texts: Vec<Vec<u32>>,
        pooling: Option<Pooling>,
        done: impl FnOnce(Result<Vec<Embedding>, Error>) + Send + 'static,
    ) -> Result<Handle, Error> {
        let pooling = self.model.embeds_by(pooling)?;
        self.start_texts(texts, pooling, Wants::Hidden, Box::new(done))
    }

    /// Starts scoring pairs that [`Model::pair_tokens`] made, as [`start_embedding`](Self::start_embedding) does.
    ///
    /// # Errors
    /// As [`Context::rank`] but for failed steps; the queue is full, or the engine has stopped.
    pub fn start_ranking(
        &self,
        pairs: Vec<Vec<u32>>,
        done: impl FnOnce(Result<Vec<f32>, Error>) + Send + 'static,
    ) -> Result<Handle, Error> {
        let scores = self.model.scores()?;
        let reply = move |result: Result<Vec<Embedding>, Error>| done(result.map(|rows| scores.of(&rows)));
        self.start_texts(pairs, Pooling::Rank, Wants::Scores, Box::new(reply))
    }

    fn start_texts(
        &self,
        tokens: Vec<Vec<u32>>,
        pooling: Pooling,
        wants: Wants,
        reply: texts::Reply,
    ) -> Result<Handle, Error> {
        self.model.check_texts(&tokens, &self.limits)?;
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.wait()?;
        let texts = Texts { id, tokens, pooling, wants, done: Vec::new(), reply };
        self.commands.send(Command::Embed(Box::new(texts))).map_err(|_| Error::Stopped)?;
        Ok(Handle { id, commands: self.commands.clone() })
    }

    /// Embeddings of texts, as [`start_embedding`](Self::start_embedding) makes them.
    ///
    /// # Errors
    /// As [`Context::embed`]; the queue is full, or the engine has stopped.
    pub fn embed(&self, texts: Vec<Vec<u32>>, pooling: Option<Pooling>) -> Result<Vec<Embedding>, Error> {
        let (tx, rx) = channel();
        // The receiver waits for it below.
        self.start_embedding(texts, pooling, move |result| drop(tx.send(result)))?;
        rx.recv().map_err(|_| Error::Stopped)?
    }

    /// Scores of pairs, as [`start_ranking`](Self::start_ranking) makes them.
    ///
    /// # Errors
    /// As [`Context::rank`]; the queue is full, or the engine has stopped.
    pub fn rank(&self, pairs: Vec<Vec<u32>>) -> Result<Vec<f32>, Error> {
        let (tx, rx) = channel();
        // The receiver waits for it below.
        self.start_ranking(pairs, move |result| drop(tx.send(result)))?;
        rx.recv().map_err(|_| Error::Stopped)?
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
    /// Ends the request before its next step; its last event is [`Event::Done`], cancelled.
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
