//! The engine's thread.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};

use wootz_graph::RunError;

use super::flight::Flight;
use super::job::Job;
use super::schedule::Budget;
use super::texts::Texts;
use super::{Command, EngineOptions, EngineStats, schedule};
use crate::constraint::{Constraint, ConstraintError};
use crate::context::{Context, RowsWanted, StepPart};
use crate::error::Error;
use crate::kv::KvError;
use crate::request::{StopReason, TokenEvent};

/// Positions beyond those it holds that the cache must have room for where a request starts.
const HEADROOM: usize = 256;

pub(super) struct Worker {
    pub(super) context: Context,
    options: EngineOptions,
    inbox: Receiver<Command>,
    pub(super) waiting: Arc<AtomicUsize>,
    stats: Arc<Mutex<EngineStats>>,
    queue: VecDeque<Job>,
    /// Requests with texts to be embedded.
    pub(super) texts: VecDeque<Texts>,
    /// In the order of their start.
    pub(super) running: Vec<Job>,
    /// The step under way.
    pub(super) flight: Option<Flight>,
}

/// A constraint on its way from its job through a step: its job's index and what preparing it gave.
type Prepared = (usize, Box<dyn Constraint>, Result<(), ConstraintError>);

impl Worker {
    pub(super) fn new(
        context: Context,
        options: EngineOptions,
        inbox: Receiver<Command>,
        waiting: Arc<AtomicUsize>,
        stats: Arc<Mutex<EngineStats>>,
    ) -> Worker {
        let (queue, texts, running) = (VecDeque::new(), VecDeque::new(), Vec::new());
        Worker { context, options, inbox, waiting, stats, queue, texts, running, flight: None }
    }

    pub(super) fn run(&mut self) {
        loop {
            if !self.take_commands() {
                break;
            }
            self.admit();
            if !self.running.is_empty() || self.flight.is_some() {
                self.step();
            }
            self.embed();
            self.tell();
        }
        self.land(None);
        for job in self.queue.drain(..).chain(self.running.drain(..)) {
            job.finish(&mut self.context, StopReason::Cancelled);
        }
    }

    /// Takes what has arrived, waiting where there is nothing else to do; `false` to stop.
    fn take_commands(&mut self) -> bool {
        loop {
            let generates = !self.queue.is_empty() || !self.running.is_empty() || self.flight.is_some();
            let idle = !generates && self.texts.is_empty();
            let command = if idle {
                self.tell();
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
                Command::Embed(texts) => self.texts.push_back(*texts),
                Command::Cancel(id) => self.cancel(id),
                Command::Call(f) => {
                    self.land(None);
                    f(&mut self.context);
                }
                Command::Stop => return false,
            }
        }
    }

    fn cancel(&mut self, id: u64) {
        self.cancel_texts(id);
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

    /// Starts waiting requests while there is room.
    fn admit(&mut self) {
        let limit = self.options.running.clamp(1, self.context.limits().batch);
        while self.running.len() < limit && !self.queue.is_empty() {
            let mut users = HashMap::new();
            for job in &self.running {
                *users.entry(job.user).or_default() += 1;
            }
            let waiting = self.queue.iter().map(|j| (j.priority, j.user));
            let Some(next) = schedule::next(waiting, &users).filter(|i| self.has_room(&self.queue[*i]))
            else {
                break;
            };
            let Some(mut job) = self.queue.remove(next) else { break };
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            match job.start(&mut self.context) {
                Ok(()) => self.running.push(job),
                Err(e) => job.fail(&mut self.context, e),
            }
        }
    }

    /// Whether the caches have room for a request beside those that run.
    fn has_room(&self, job: &Job) -> bool {
        if self.running.is_empty() {
            return true;
        }
        let mut left: Vec<usize> = self.context.blocks().collect();
        self.running.iter().chain([job]).all(|job| {
            let needed = self.context.blocks_for(job.length_soon(HEADROOM));
            left.iter_mut().zip(needed).all(|(left, needed)| match left.checked_sub(needed) {
                Some(rest) => {
                    *left = rest;
                    true
                }
                None => false,
            })
        })
    }

    /// Makes the last request that started, of those with the lowest priority, wait again.
    pub(super) fn preempt(&mut self) {
        let last = self.running.iter().enumerate().rev().min_by_key(|(_, job)| job.priority);
        if let Some(i) = last.map(|(i, _)| i) {
            let mut job = self.running.remove(i);
            job.pause(&mut self.context);
            self.wait_again(job);
            self.stats().preempted += 1;
        }
    }

    /// Puts a request that has run before all that wait.
    fn wait_again(&mut self, job: Job) {
        self.queue.push_front(job);
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// Starts a step, or goes on with the one under way.
    fn step(&mut self) {
        if self.flight.is_some() {
            let next = self.queue_ahead();
            return self.land(next);
        }
        match self.take_off() {
            Ok(true) => {}
            Ok(false) => self.step_on_host(),
            Err(Error::Kv(KvError::OutOfBlocks { .. })) if self.running.len() > 1 => self.preempt(),
            // It fails again there, and its requests with it.
            Err(_) => self.step_on_host(),
        }
    }

    /// Which running request computes how many of its pending tokens in the next step.
    pub(super) fn grants(&self, pending: &[usize]) -> Vec<(usize, usize)> {
        let budget = Budget::new(self.context.device().kind, self.context.limits().batch);
        schedule::grants(pending, budget)
    }

    /// Runs one step and picks tokens from the rows that it returns.
    fn step_on_host(&mut self) {
        let pending: Vec<usize> = self.running.iter().map(|j| j.pending(&self.context)).collect();
        let grants = self.grants(&pending);
        // Only those whose last token is computed pick a next one.
        let picks = |(i, n): &(usize, usize)| pending[*i] == *n;
        let mut constraints: Vec<Prepared> = grants
            .iter()
            .filter(|grant| picks(grant))
            .filter_map(|(i, _)| Some((*i, self.running[*i].constraint.take()?, Ok(()))))
            .collect();
        let parts: Vec<StepPart<'_>> =
            grants.iter().map(|(i, n)| self.running[*i].part(&self.context, *n)).collect();
        let rows: Vec<bool> = parts.iter().map(|p| p.rows == RowsWanted::Last).collect();
        let threads = self.context.threads();
        let context = &mut self.context;
        // What may come next is found out while the device works.
        let output = std::thread::scope(|scope| {
            if !constraints.is_empty() {
                scope.spawn(|| {
                    for (_, constraint, result) in &mut constraints {
                        *result = constraint.prepare();
                    }
                });
            }
            context.step(&parts)
        });
        let mut broken = HashMap::new();
        for (i, constraint, result) in constraints {
            self.running[i].constraint = Some(constraint);
            if let Err(e) = result {
                broken.insert(i, e);
            }
        }
        let outcome: Vec<Result<Option<TokenEvent>, Error>> = match output {
            Ok(output) => {
                let mut row = 0;
                let take = |(grant, wanted): (&(usize, usize), &bool)| {
                    if !wanted {
                        return Ok(None);
                    }
                    row += 1;
                    match broken.remove(&grant.0) {
                        Some(e) => Err(e.into()),
                        None => self.running[grant.0].next_token(&*threads, output.row(row - 1)).map(Some),
                    }
                };
                grants.iter().zip(&rows).map(take).collect()
            }
            Err(Error::Kv(KvError::OutOfBlocks { .. })) if self.running.len() > 1 => return self.preempt(),
            Err(e) => grants.iter().map(|_| Err(self.failure(&e))).collect(),
        };
        self.count(grants.iter().map(|(_, n)| *n));
        self.advance(grants.iter().map(|(i, _)| *i).zip(outcome).collect());
    }

    /// What requests hear of a step that failed.
    pub(super) fn failure(&self, e: &Error) -> Error {
        let device = self.context.device().id.clone();
        RunError::Device { device, reason: e.to_string() }.into()
    }

    /// Counts a step with this many tokens of each request.
    pub(super) fn count(&self, tokens: impl ExactSizeIterator<Item = usize>) {
        let mut stats = self.stats();
        stats.steps += 1;
        stats.parts += tokens.len() as u64;
        stats.tokens += tokens.sum::<usize>() as u64;
    }

    /// Brings running requests, by their index, what a step gave them, and ends those that are over.
    pub(super) fn advance(&mut self, outcome: Vec<(usize, Result<Option<TokenEvent>, Error>)>) {
        // Those that run no longer: they have ended, or go on with fewer tokens.
        let mut gone: Vec<(usize, Result<Option<StopReason>, Error>)> = Vec::new();
        for (i, result) in outcome {
            let result = result.map(|token| self.running[i].advance(&self.context, token));
            if !matches!(result, Ok(None)) || self.running[i].is_full() {
                gone.push((i, result));
            }
        }
        gone.sort_by_key(|(i, _)| std::cmp::Reverse(*i));
        for (i, result) in gone {
            let mut job = self.running.remove(i);
            match result {
                Ok(Some(reason)) => job.finish(&mut self.context, reason),
                Ok(None) => {
                    job.slide(&mut self.context);
                    self.wait_again(job);
                }
                Err(e) => job.fail(&mut self.context, e),
            }
        }
    }

    pub(super) fn stats(&self) -> std::sync::MutexGuard<'_, EngineStats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the present state to those who ask.
    fn tell(&self) {
        let groups = self.context.cache_stats().groups;
        let mut stats = self.stats();
        stats.running = self.running.len();
        stats.blocks = groups.iter().map(|g| g.total).sum();
        stats.blocks_used = groups.iter().map(|g| g.used).sum();
    }
}
