//! Where the recurrent states of a step's sequences come from and go to.

use std::collections::HashSet;
use std::ops::Range;

use crate::cache::{BLOCK_TOKENS, CacheGroup, Reach};
use crate::error::RunError;
use crate::step::{NO_BLOCK, StepInputs};

/// Tokens of one sequence in a step, and the blocks of a group of states that they go through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateRun {
    /// Rows of the step's values.
    pub tokens: Range<usize>,
    /// The block with the state before the first token; `None` at the start of a sequence, where the state is zero.
    pub from: Option<u32>,
    /// Where the state is written to after the tokens before a row: (row, block), in ascending order. The last row is
    /// the end of `tokens`; those before it end a block. A table may say of these that the state is not kept.
    pub writes: Vec<(usize, u32)>,
}

impl StepInputs<'_> {
    /// The runs of a step in a group of states.
    ///
    /// # Errors
    /// There is no such group, a position has no block, positions do not follow each other, or a run uses a block that
    /// another writes.
    pub fn state_runs(&self, group: u32) -> Result<Vec<StateRun>, RunError> {
        let bad = |what: String| RunError::Input(what);
        let set = self.groups.get(group as usize).ok_or_else(|| bad(format!("no cache group {group}")))?;
        let mut runs: Vec<StateRun> = Vec::new();
        let mut start = 0;
        for run in self.sequences.chunk_by(|a, b| a == b) {
            let (sequence, tokens) = (run[0], start..start + run.len());
            let positions = &self.positions[tokens.clone()];
            let first =
                usize::try_from(positions[0]).map_err(|_| bad(format!("position {}", positions[0])))?;
            if !positions.iter().zip(positions[0]..).all(|(found, expected)| *found == expected) {
                return Err(bad(format!("positions of sequence {sequence} that do not follow each other")));
            }
            let block = |position: usize| {
                let slot = set.slot(sequence, position).map(|(block, _)| block);
                slot.filter(|block| *block != NO_BLOCK).ok_or_else(|| {
                    bad(format!("sequence {sequence} has no state of position {position} in group {group}"))
                })
            };
            let from = first.checked_sub(1).map(block).transpose()?;
            let mut writes = Vec::new();
            let mut at = first;
            while at < first + run.len() {
                let end = ((at / BLOCK_TOKENS + 1) * BLOCK_TOKENS).min(first + run.len());
                let is_last = end == first + run.len();
                let kept = set.slot(sequence, at).is_none_or(|(block, _)| block != NO_BLOCK);
                if is_last || kept {
                    writes.push((tokens.start + end - first, block(at)?));
                }
                at = end;
            }
            start = tokens.end;
            runs.push(StateRun { tokens, from, writes });
        }
        let mut written = HashSet::new();
        for (_, block) in runs.iter().flat_map(|run| &run.writes) {
            if !written.insert(*block) {
                return Err(bad(format!("state {block} is written twice")));
            }
        }
        for run in &runs {
            let own = |block: &u32| run.writes.iter().any(|(_, own)| own == block);
            if let Some(block) = run.from.filter(|block| written.contains(block) && !own(block)) {
                return Err(bad(format!("state {block} is read and written by different sequences")));
            }
        }
        Ok(runs)
    }

    /// Checks the runs of every group of states, that their blocks exist, and that tables of others leave none out.
    ///
    /// # Errors
    /// As [`state_runs`](Self::state_runs), or a block does not exist.
    pub fn check_states(&self, groups: &[CacheGroup]) -> Result<(), RunError> {
        for (index, group) in (0..).zip(groups) {
            if group.reach != Reach::State {
                let mut tables = self.groups.get(index as usize).map_or(&[][..], |set| set.tables).iter();
                if tables.any(|table| table.blocks.contains(&NO_BLOCK)) {
                    return Err(RunError::Input(format!("a table of group {index} leaves blocks out")));
                }
                continue;
            }
            for run in self.state_runs(index)? {
                let mut blocks = run.from.iter().chain(run.writes.iter().map(|(_, block)| block));
                if let Some(block) = blocks.find(|block| **block >= group.blocks) {
                    return Err(RunError::Input(format!("state {block} of {}", group.blocks)));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::{BlockTable, TableSet};

    fn runs(
        positions: &[i32],
        sequences: &[u32],
        tables: &[BlockTable<'_>],
    ) -> Result<Vec<StateRun>, RunError> {
        let tokens = vec![0; positions.len()];
        let groups = [TableSet { tables }];
        let inputs = StepInputs {
            tokens: &tokens,
            positions,
            streams: &[],
            sequences,
            outputs: &[],
            groups: &groups,
            hidden: &[],
        };
        inputs.state_runs(0)
    }

    #[test]
    fn states_are_written_where_a_block_ends_and_at_the_end() {
        let tables = [BlockTable { first: 0, blocks: &[7, 3] }, BlockTable { first: 1, blocks: &[2, 5, 4] }];
        let positions: Vec<i32> = (0..33).chain(64..66).collect();
        let sequences: Vec<u32> = [0; 33].into_iter().chain([1, 1]).collect();
        let found = runs(&positions, &sequences, &tables).unwrap();
        let first = StateRun { tokens: 0..33, from: None, writes: vec![(32, 7), (33, 3)] };
        let second = StateRun { tokens: 33..35, from: Some(2), writes: vec![(35, 5)] };
        // Position 63 is in the block before: block 1 of the sequence, the first that its table holds.
        assert_eq!(found, [first, second]);
        // A table may leave checkpoints out.
        let holes = [BlockTable { first: 0, blocks: &[NO_BLOCK, NO_BLOCK, 3] }];
        let found = runs(&positions[..33], &[0; 33], &holes[..1]).unwrap_err().to_string();
        assert!(found.contains("no state of position 32"), "{found}");
        let positions: Vec<i32> = (0..70).collect();
        let found = runs(&positions, &[0; 70], &holes).unwrap();
        assert_eq!(found, [StateRun { tokens: 0..70, from: None, writes: vec![(70, 3)] }]);
        // Within a block the state is changed where it is.
        let found = runs(&[5, 6], &[0, 0], &tables).unwrap();
        assert_eq!(found, [StateRun { tokens: 0..2, from: Some(7), writes: vec![(2, 7)] }]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let tables = [BlockTable { first: 1, blocks: &[7, 3] }, BlockTable { first: 0, blocks: &[7, 9] }];
        for (positions, sequences, what) in [
            (&[32, 33][..], &[0, 0][..], "no state of position 31"),
            (&[40, 42], &[0, 0], "do not follow each other"),
            (&[64, 3], &[0, 1], "written by different sequences"),
            (&[96], &[0], "no state of position 96"),
            (&[-1], &[0], "position -1"),
        ] {
            let error = runs(positions, sequences, &tables).unwrap_err().to_string();
            assert!(error.contains(what), "{positions:?}: {error}");
        }
        let both = [BlockTable { first: 0, blocks: &[3] }; 2];
        let error = runs(&[3, 3], &[0, 1], &both).unwrap_err().to_string();
        assert!(error.contains("written twice"), "{error}");
    }
}
