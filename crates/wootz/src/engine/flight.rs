//! Steps whose tokens the device picks: one is under way while the next is queued.

use super::worker::Worker;
use crate::context::{Picking, RowsWanted, StepPart};
use crate::error::Error;
use crate::request::TokenEvent;
use crate::sample::{LogitEdit, Sampling};

/// A step under way.
pub(super) struct Flight {
    picking: Picking,
    parts: Vec<Part>,
}

/// What a step does for a request.
struct Part {
    /// The request's number: it may end while the step is under way.
    job: u64,
    tokens: usize,
    /// The row from which a token is picked.
    row: Option<u32>,
    /// Whether its token is the one that the step before picked.
    fed: bool,
}

impl Flight {
    /// The row from which a request's token is picked.
    fn row(&self, job: u64) -> Option<u32> {
        self.parts.iter().find(|p| p.job == job)?.row
    }

    /// Whether a request's token comes from the step before.
    fn feeds(&self, job: u64) -> bool {
        self.parts.iter().any(|p| p.job == job && p.fed)
    }
}

impl Worker {
    /// Starts a step whose tokens the device picks; `false` where it cannot pick for all.
    pub(super) fn take_off(&mut self) -> Result<bool, Error> {
        self.flight = self.start_picking(None)?;
        Ok(self.flight.is_some())
    }

    /// Queues the step after the one under way, if the device can pick for all that run.
    pub(super) fn queue_ahead(&mut self) -> Option<Flight> {
        let flight = self.flight.take();
        // What fails here is tried again, and told, once the step under way is over.
        let next = self.start_picking(flight.as_ref()).ok().flatten();
        self.flight = flight;
        if next.is_some() {
            self.stats().queued_ahead += 1;
        }
        next
    }

    /// Starts the step after `before`, which is under way.
    fn start_picking(&mut self, before: Option<&Flight>) -> Result<Option<Flight>, Error> {
        // A device that cannot even do this picks nothing, and nobody need be asked for more.
        if !self.context.can_pick(&Sampling::GREEDY) {
            return Ok(None);
        }
        let picked = |job: u64| before.and_then(|flight| flight.row(job));
        let pending = self.running.iter().map(|job| match picked(job.id) {
            Some(_) => usize::from(!job.ends_with_next()),
            None => job.pending(&self.context),
        });
        let pending: Vec<usize> = pending.collect();
        let grants = self.grants(&pending);
        let picks: Vec<usize> = grants.iter().filter(|(i, n)| pending[*i] == *n).map(|(i, _)| *i).collect();
        if picks.is_empty() {
            return Ok(None);
        }
        let mut edits: Vec<Vec<LogitEdit>> = vec![Vec::new(); picks.len()];
        let context = &mut self.context;
        let sampling = picks.iter().zip(&mut edits).map(|(i, edits)| {
            let job = &self.running[*i];
            job.sampling(usize::from(picked(job.id).is_some()), context, edits)
        });
        let Some(sampling) = sampling.collect::<Option<Vec<Sampling<'_>>>>() else { return Ok(None) };
        let (mut parts, mut steps, mut fed) = (Vec::new(), Vec::<StepPart<'_>>::new(), Vec::new());
        let mut rows = 0;
        for (i, tokens) in &grants {
            let job = &self.running[*i];
            let source = picked(job.id);
            let step = match source {
                Some(_) => job.part_ahead(),
                None => job.part(&self.context, *tokens),
            };
            let picks = step.rows == RowsWanted::Last;
            let row = picks.then_some(rows);
            rows += u32::from(picks);
            parts.push(Part { job: job.id, tokens: *tokens, row, fed: source.is_some() });
            steps.push(step);
            fed.push(source);
        }
        let picking = self.context.start_picking(&steps, &fed, &sampling)?;
        Ok(Some(Flight { picking, parts }))
    }

    /// Waits for the step under way, if there is one, and deals with what it brought; `next` was queued after it.
    pub(super) fn land(&mut self, next: Option<Flight>) {
        let Some(Flight { picking, parts }) = self.flight.take() else { return };
        let place = |worker: &Worker, job: u64| worker.running.iter().position(|j| j.id == job);
        let outcome: Vec<(usize, Result<Option<TokenEvent>, Error>)> =
            match self.context.finish_picking(picking) {
                Ok(picked) => {
                    let feeds = |job: u64| next.as_ref().is_some_and(|next| next.feeds(job));
                    let mut outcome = Vec::new();
                    for part in &parts {
                        // A request that was cancelled is not there any more.
                        let Some(i) = place(self, part.job) else { continue };
                        let token = part.row.and_then(|row| picked.get(row as usize));
                        let context = &mut self.context;
                        let job = &mut self.running[i];
                        let event = token.map(|token| job.take(*token, feeds(part.job), context));
                        outcome.push((i, event.transpose()));
                    }
                    self.flight = next;
                    outcome
                }
                Err(e) => {
                    if let Some(next) = next {
                        self.context.abandon(next.picking);
                    }
                    let failed = parts.iter().filter_map(|part| place(self, part.job));
                    failed.map(|i| (i, Err(self.failure(&e)))).collect()
                }
            };
        self.count(parts.iter().map(|p| p.tokens));
        self.advance(outcome);
    }
}
