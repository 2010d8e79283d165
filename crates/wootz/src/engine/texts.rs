//! Texts to be embedded or ranked, beside what generates.
//!
//! Between two steps of what generates, texts of the requests that wait run together in one step of their own: one of
//! each request in turns, as many as fit. So long lists hold up neither short ones nor answers.

use std::sync::atomic::Ordering;

use wootz_graph::Wants;

use super::worker::Worker;
use crate::embed::{Embedding, Pooling, Turn};
use crate::error::Error;
use crate::kv::KvError;

/// Hears what became of the texts, on the engine's thread: it must not block.
pub(crate) type Reply = Box<dyn FnOnce(Result<Vec<Embedding>, Error>) + Send>;

/// Texts of one request.
pub(super) struct Texts {
    pub(super) id: u64,
    pub(super) tokens: Vec<Vec<u32>>,
    pub(super) pooling: Pooling,
    pub(super) wants: Wants,
    pub(super) done: Vec<Embedding>,
    pub(super) reply: Reply,
}

impl Texts {
    fn kind(&self) -> (Pooling, Wants) {
        (self.pooling, self.wants)
    }
}

impl Worker {
    /// Runs one step of texts, where some wait.
    pub(super) fn embed(&mut self) {
        let Some(kind) = self.texts.front().map(Texts::kind) else { return };
        self.land(None);
        let alike = |texts: &Texts| texts.kind() == kind;
        let lengths = self.texts.iter().map(|texts| match alike(texts) {
            true => texts.tokens[texts.done.len()..].iter().map(Vec::len).collect(),
            false => Vec::new(),
        });
        let turns = self.context.turns(&lengths.collect::<Vec<_>>());
        let text = |(i, n): &Turn| {
            let texts = &self.texts[*i];
            texts.tokens[texts.done.len() + n].as_slice()
        };
        let together: Vec<&[u32]> = turns.iter().map(text).collect();
        let lengths: Vec<usize> = together.iter().map(|text| text.len()).collect();
        match self.context.pooled_together(&together, kind.0, kind.1) {
            Ok(embeddings) => {
                self.count(lengths.into_iter());
                for ((i, _), embedding) in turns.iter().zip(embeddings) {
                    self.texts[*i].done.push(embedding);
                }
                self.reply();
            }
            // What generates holds the cache, and gives it back as it ends.
            Err(Error::Kv(KvError::OutOfBlocks { .. })) if !self.running.is_empty() => {}
            Err(e) => {
                let mut failed: Vec<usize> = turns.iter().map(|(i, _)| *i).collect();
                failed.sort_unstable();
                failed.dedup();
                for i in failed.into_iter().rev() {
                    let error = self.failure(&e);
                    self.end(i, Err(error));
                }
            }
        }
    }

    /// Answers the requests whose texts are all done, and lets another be the first.
    fn reply(&mut self) {
        for i in (0..self.texts.len()).rev() {
            if self.texts[i].done.len() == self.texts[i].tokens.len() {
                let done = std::mem::take(&mut self.texts[i].done);
                self.end(i, Ok(done));
            }
        }
        if !self.texts.is_empty() {
            self.texts.rotate_left(1);
        }
    }

    fn end(&mut self, i: usize, result: Result<Vec<Embedding>, Error>) {
        if let Some(texts) = self.texts.remove(i) {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            (texts.reply)(result);
        }
    }

    /// Gives up a request whose texts wait.
    pub(super) fn cancel_texts(&mut self, id: u64) {
        if let Some(i) = self.texts.iter().position(|texts| texts.id == id) {
            self.texts.remove(i);
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
