use std::borrow::Cow;
use std::ops::Range;

use crate::error::RunError;
use crate::key::{GraphKey, Outputs};
use crate::op::Sections;

/// Stands in a [`BlockTable`] for a recurrent state that is not kept.
pub const NO_BLOCK: u32 = u32::MAX;

/// A sequence's blocks in one cache group.
#[derive(Clone, Copy, Debug)]
pub struct BlockTable<'a> {
    /// Number of the first block held: those before it have left the window.
    pub first: u32,
    /// Physical blocks, in the order of positions; of states also [`NO_BLOCK`].
    pub blocks: &'a [u32],
}

/// The block tables of all sequences of a step in one cache group.
#[derive(Clone, Copy, Debug)]
pub struct TableSet<'a> {
    /// By the sequence numbers of [`StepInputs::sequences`].
    pub tables: &'a [BlockTable<'a>],
}

/// Stands for the token that the step before picked from an output row; see [`StepInputs::tokens`].
pub fn picked_token(row: u32) -> i32 {
    -1 - row as i32
}

/// What changes from step to step.
///
/// Tokens of one sequence stand together, with ascending positions that follow what the cache holds.
#[derive(Clone, Copy, Debug)]
pub struct StepInputs<'a> {
    /// Token ids. After a step that picks tokens, [`picked_token`] of a row of it stands for the token picked there, if
    /// it was the last step submitted.
    pub tokens: &'a [i32],
    /// Position of each token in its sequence.
    pub positions: &'a [i32],
    /// Positions of each token in [`Sections::STREAMS`] streams, one token after the other; empty where all streams
    /// stand where the token stands in its sequence.
    pub streams: &'a [i32],
    /// Sequence number of each token.
    pub sequences: &'a [u32],
    /// Rows to return; unused where the plan returns none or all.
    pub outputs: &'a [i32],
    /// Block tables by cache group.
    pub groups: &'a [TableSet<'a>],
    /// Hidden states `[tokens, cols]` of a plan that begins with them; unused by others.
    pub hidden: &'a [f32],
}

/// How many tokens and positions a plan's tables of embeddings have rows for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entries {
    /// Tokens.
    pub tokens: u64,
    /// Positions.
    pub positions: u64,
}

impl Entries {
    /// Where nothing is looked up.
    pub const ANY: Entries = Entries { tokens: u64::MAX, positions: u64::MAX };
}

impl<'a> StepInputs<'a> {
    /// The hidden states, of `cols` columns.
    ///
    /// # Errors
    /// There is not a row for each token.
    pub fn hidden_rows(&self, cols: u32) -> Result<&'a [f32], RunError> {
        if self.hidden.len() == self.tokens.len() * cols as usize {
            return Ok(self.hidden);
        }
        let (found, tokens) = (self.hidden.len(), self.tokens.len());
        Err(RunError::Input(format!("{found} numbers as hidden states of {tokens} tokens, {cols} of each")))
    }

    /// The part of `streams` that some of the tokens have.
    pub fn streams_of(&self, tokens: Range<usize>) -> &'a [i32] {
        let streams = Sections::STREAMS as usize;
        self.streams.get(streams * tokens.start..streams * tokens.end).unwrap_or(&[])
    }

    /// Positions of each token in all streams `[tokens, 4]`.
    pub fn stream_positions(&self) -> Cow<'a, [i32]> {
        match self.streams {
            [] => Cow::Owned(self.positions.iter().flat_map(|p| [*p; Sections::STREAMS as usize]).collect()),
            streams => Cow::Borrowed(streams),
        }
    }

    /// Rows that a step of a plan with this key returns.
    pub fn output_rows(&self, key: &GraphKey) -> usize {
        match key.outputs {
            Outputs::All => self.tokens.len(),
            Outputs::None | Outputs::Some(_) => self.outputs.len(),
        }
    }

    /// Checks that tokens have rows or stand for one of the `picked` tokens that the step before picked, and that
    /// positions have rows.
    ///
    /// # Errors
    /// One has none.
    pub fn check_entries(&self, entries: Entries, picked: usize) -> Result<(), RunError> {
        let known = |token: i32| match u64::try_from(token) {
            Ok(token) => token < entries.tokens,
            Err(_) => ((-1 - i64::from(token)) as u64) < picked as u64,
        };
        if let Some(token) = self.tokens.iter().find(|token| !known(**token)) {
            return Err(RunError::Input(format!(
                "token {token} is not in the vocabulary, and was not picked"
            )));
        }
        let known =
            |position: i32| u64::try_from(position).is_ok_and(|position| position < entries.positions);
        match self.positions.iter().find(|position| !known(**position)) {
            Some(position) => {
                let found = entries.positions;
                Err(RunError::Input(format!(
                    "position {position} is not among the {found} that the model knows"
                )))
            }
            None => Ok(()),
        }
    }

    /// Checks lengths against each other and against a plan's key.
    ///
    /// # Errors
    /// Lengths differ, are larger than the key, or a token's position has no block.
    pub fn check(&self, key: &GraphKey) -> Result<(), RunError> {
        let n = self.tokens.len();
        let bad = |what: String| Err(RunError::Input(what));
        if n == 0 || n > key.tokens as usize {
            return bad(format!("{n} tokens, the plan takes 1 to {}", key.tokens));
        }
        if self.positions.len() != n || self.sequences.len() != n {
            return bad(format!(
                "{n} tokens, {} positions, {} sequence numbers",
                self.positions.len(),
                self.sequences.len()
            ));
        }
        let streams = Sections::STREAMS as usize;
        if !self.streams.is_empty() && self.streams.len() != n * streams {
            return bad(format!("{} positions of {n} tokens in {streams} streams", self.streams.len()));
        }
        if let Some(position) = self.streams.iter().find(|position| **position < 0) {
            return bad(format!("position {position} of a stream"));
        }
        if self.outputs.len() > key.output_rows() as usize {
            return bad(format!(
                "{} output rows, the plan returns {}",
                self.outputs.len(),
                key.output_rows()
            ));
        }
        if let Some(row) = self.outputs.iter().find(|r| **r < 0 || **r as usize >= n) {
            return bad(format!("output row {row} of {n}"));
        }
        for (&position, &sequence) in self.positions.iter().zip(self.sequences) {
            if position < 0 {
                return bad(format!("position {position}"));
            }
            for (group, set) in self.groups.iter().enumerate() {
                if set.slot(sequence, position as usize).is_none() {
                    return bad(format!(
                        "sequence {sequence} has no block for position {position} in group {group}"
                    ));
                }
            }
        }
        Ok(())
    }
}

impl TableSet<'_> {
    /// Physical block and offset in it of a sequence's position.
    pub fn slot(&self, sequence: u32, position: usize) -> Option<(u32, usize)> {
        let table = self.tables.get(sequence as usize)?;
        let index = (position / crate::BLOCK_TOKENS).checked_sub(table.first as usize)?;
        Some((*table.blocks.get(index)?, position % crate::BLOCK_TOKENS))
    }
}

/// What a step returned.
#[derive(Clone, Copy, Debug)]
pub struct StepOutput<'a> {
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// `[rows, cols]`, row by row.
    pub data: &'a [f32],
}

impl<'a> StepOutput<'a> {
    /// One row.
    pub fn row(&self, row: usize) -> &'a [f32] {
        &self.data[row * self.cols..(row + 1) * self.cols]
    }
}
