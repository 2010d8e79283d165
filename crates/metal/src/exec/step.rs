//! What the host gives each step: tokens, positions, places in the cache.

use wootz_graph::{BLOCK_TOKENS, GraphKey, RunError, StepInputs};

use crate::args::TokenSpan;

/// Row counts of a step that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) tokens: u32,
    pub(super) outputs: u32,
}

/// A part of a step's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepPart {
    Tokens,
    Positions,
    OutputRows,
    /// Slot in the cache group that each token is written to.
    Slots(u32),
    /// A [`TokenSpan`] for each token.
    Spans(u32),
    /// Physical blocks of all sequences and groups, one list after the other.
    Blocks,
}

/// Places of the parts: all but the blocks have their full size, whatever the step.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepLayout {
    tokens: u64,
    outputs: u64,
    groups: u64,
}

const ALIGN: u64 = 256;

impl StepLayout {
    pub(super) fn new(key: &GraphKey, groups: usize) -> StepLayout {
        let round = |elements: u32| (4 * u64::from(elements)).next_multiple_of(ALIGN);
        StepLayout { tokens: round(key.tokens), outputs: round(key.output_rows()), groups: groups as u64 }
    }

    /// First byte of a part.
    pub(super) fn offset(&self, part: StepPart) -> u64 {
        let group = |g: u64| 2 * self.tokens + self.outputs + g * 5 * self.tokens;
        match part {
            StepPart::Tokens => 0,
            StepPart::Positions => self.tokens,
            StepPart::OutputRows => 2 * self.tokens,
            StepPart::Slots(g) => group(u64::from(g)),
            StepPart::Spans(g) => group(u64::from(g)) + self.tokens,
            StepPart::Blocks => group(self.groups),
        }
    }

    /// Bytes of a part in a step whose data has `total` bytes.
    pub(super) fn bytes(&self, part: StepPart, counts: Counts, total: u64) -> u64 {
        match part {
            StepPart::Tokens | StepPart::Positions | StepPart::Slots(_) => 4 * u64::from(counts.tokens),
            StepPart::OutputRows => 4 * u64::from(counts.outputs),
            StepPart::Spans(_) => 16 * u64::from(counts.tokens),
            StepPart::Blocks => total - self.offset(StepPart::Blocks),
        }
    }

    /// The data of a step; `vocab` is the number of entries of the embedding table.
    pub(super) fn pack(&self, inputs: &StepInputs<'_>, vocab: u64) -> Result<Vec<u8>, RunError> {
        if let Some(token) = inputs.tokens.iter().find(|t| **t < 0 || **t as u64 >= vocab) {
            return Err(RunError::Input(format!("token {token} is not in the vocabulary")));
        }
        let mut data = vec![0u8; self.offset(StepPart::Blocks) as usize];
        let mut put = |part: StepPart, bytes: &[u8]| {
            let at = self.offset(part) as usize;
            data[at..at + bytes.len()].copy_from_slice(bytes);
        };
        put(StepPart::Tokens, bytemuck::cast_slice(inputs.tokens));
        put(StepPart::Positions, bytemuck::cast_slice(inputs.positions));
        put(StepPart::OutputRows, bytemuck::cast_slice(inputs.outputs));
        let ends = ends(inputs);
        let mut blocks: Vec<u32> = Vec::new();
        for (g, set) in inputs.groups.iter().enumerate() {
            // Each sequence's list once, in the order in which sequences come.
            let mut starts: Vec<Option<u32>> = vec![None; set.tables.len()];
            let (mut slots, mut spans) = (Vec::new(), Vec::new());
            for (token, sequence) in inputs.sequences.iter().enumerate() {
                let position = inputs.positions[token] as usize;
                let slot = set.slot(*sequence, position);
                let (block, at) = slot.ok_or_else(|| RunError::Input("a position without a block".into()))?;
                let table = &set.tables[*sequence as usize];
                let start = *starts[*sequence as usize].get_or_insert_with(|| {
                    blocks.extend_from_slice(table.blocks);
                    (blocks.len() - table.blocks.len()) as u32
                });
                slots.push(block * BLOCK_TOKENS as u32 + at as u32);
                spans.push(TokenSpan {
                    table: start,
                    first: table.first,
                    position: position as u32,
                    end: ends[token],
                });
            }
            put(StepPart::Slots(g as u32), bytemuck::cast_slice(&slots));
            put(StepPart::Spans(g as u32), bytemuck::cast_slice(&spans));
        }
        data.extend_from_slice(bytemuck::cast_slice(&blocks));
        Ok(data)
    }
}

/// Positions of each token's sequence after the step. Tokens of a sequence stand together.
fn ends(inputs: &StepInputs<'_>) -> Vec<u32> {
    let mut ends = vec![0; inputs.tokens.len()];
    let mut first = 0;
    while first < ends.len() {
        let sequence = inputs.sequences[first];
        let run = inputs.sequences[first..].iter().take_while(|s| **s == sequence).count();
        let last = inputs.positions[first..first + run].iter().max().copied().unwrap_or(0);
        ends[first..first + run].fill(last as u32 + 1);
        first += run;
    }
    ends
}
