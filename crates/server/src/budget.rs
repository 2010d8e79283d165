//! An end to reasoning that goes on for too long.

use std::sync::Arc;

use wootz::sample::BitMask;
use wootz::{Constraint, ConstraintError, Model, Segment};

use crate::chat::Before;

/// Lets an answer reason for so many tokens, then writes the end of reasoning in the model's place.
pub(crate) struct Budget {
    model: Arc<Model>,
    open: &'static str,
    close: &'static str,
    place: Place,
    /// Tokens of reasoning that are left.
    left: usize,
    /// What is written when none are left.
    end: Vec<u32>,
    /// Text that may hold the beginning of a tag.
    text: Vec<u8>,
    forced: Option<BitMask<'static>>,
    inner: Option<Box<dyn Constraint>>,
}

/// Where an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Before what may open the reasoning.
    Start,
    Inside,
    /// In the end that is being written, by how many of its tokens.
    Ending(usize),
    Behind,
}

impl Budget {
    /// A budget of `tokens` for the reasoning that `before` describes, on top of what else limits the answer.
    pub(crate) fn new(
        model: Arc<Model>,
        before: &Before,
        tokens: usize,
        inner: Option<Box<dyn Constraint>>,
    ) -> Budget {
        let close = before.tags.close;
        let end = model.tokenizer().encode(&[Segment::Markup(&format!("\n{close}\n\n"))], false);
        Budget {
            model,
            open: before.tags.open,
            close,
            place: if before.opened { Place::Inside } else { Place::Start },
            left: tokens,
            end,
            text: Vec::new(),
            forced: None,
            inner,
        }
    }

    fn contains(&self, tag: &str) -> bool {
        self.text.windows(tag.len()).any(|window| window == tag.as_bytes())
    }
}

impl std::fmt::Debug for Budget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Budget").field("place", &self.place).field("left", &self.left).finish_non_exhaustive()
    }
}

impl Constraint for Budget {
    fn prepare(&mut self) -> Result<(), ConstraintError> {
        if self.place == Place::Inside && self.left == 0 {
            self.place = Place::Ending(0);
        }
        self.forced = None;
        let Place::Ending(at) = self.place else {
            return self.inner.as_mut().map_or(Ok(()), |i| i.prepare());
        };
        let Some(&token) = self.end.get(at) else { return Ok(()) };
        if let (0, Some(inner)) = (at, &mut self.inner) {
            inner.prepare()?;
            if inner.mask().is_some_and(|mask| !mask.allows(token)) {
                // In the midst of a character; the next token may end it.
                self.place = Place::Inside;
                return Ok(());
            }
        }
        self.forced = Some(BitMask::from_tokens([token], self.model.tokenizer().vocab_size()));
        Ok(())
    }

    fn mask(&self) -> Option<BitMask<'_>> {
        match &self.forced {
            Some(forced) => Some(forced.clone()),
            None => self.inner.as_ref()?.mask(),
        }
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        match self.place {
            Place::Behind => {}
            Place::Ending(at) if at + 1 >= self.end.len() => self.place = Place::Behind,
            Place::Ending(at) => self.place = Place::Ending(at + 1),
            Place::Start => {
                self.text.extend_from_slice(&self.model.tokenizer().piece(token, true));
                let text = self.text.trim_ascii_start();
                if text.starts_with(self.open.as_bytes()) {
                    self.text.clear();
                    self.place = Place::Inside;
                } else if !self.open.as_bytes().starts_with(text) {
                    self.place = Place::Behind;
                }
            }
            Place::Inside => {
                self.left = self.left.saturating_sub(1);
                self.text.extend_from_slice(&self.model.tokenizer().piece(token, true));
                if self.contains(self.close) {
                    self.place = Place::Behind;
                }
                let keep = self.text.len().min(self.close.len() - 1);
                self.text.drain(..self.text.len() - keep);
            }
        }
        match &mut self.inner {
            Some(inner) => inner.accept(token),
            None => Ok(()),
        }
    }

    fn is_complete(&self) -> bool {
        self.inner.as_ref().is_some_and(|inner| inner.is_complete())
    }
}
