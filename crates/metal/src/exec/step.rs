//! What the host gives each step: tokens, positions, places in the cache.

use std::ops::Range;

use wootz_graph::op::Sections;
use wootz_graph::{BLOCK_TOKENS, Entries, Graph, GraphKey, RunError, Sampling, StepInputs};

use crate::args::{PickEdit, PickRow, TokenSpan, TokenTile};

/// Row counts of a step that runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) tokens: u32,
    pub(super) outputs: u32,
    /// Entries of [`StepPart::Tiles`].
    pub(super) tiles: u32,
    /// Entries of [`StepPart::Runs`].
    pub(super) runs: u32,
    /// Entries of [`StepPart::Blocks`].
    pub(super) blocks: u32,
    /// Entries of [`StepPart::Picks`].
    pub(super) picks: u32,
    /// Entries of [`StepPart::Edits`].
    pub(super) edits: u32,
}

/// Tokens of a tile; as in attention_tiles.metal.
pub(super) const TILE: u32 = 32;

/// A part of a step's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepPart {
    Tokens,
    Positions,
    OutputRows,
    /// Runs of up to [`TILE`] tokens of one sequence.
    Tiles,
    /// Runs of tokens of one sequence, whole.
    Runs,
    /// Slot in the cache group that each token is written to.
    Slots(u32),
    /// A [`TokenSpan`] for each token.
    Spans(u32),
    /// Physical blocks of all sequences and groups, one list after the other.
    Blocks,
    /// A [`PickRow`] for each row from which a token is picked.
    Picks,
    /// Changes of their logits.
    Edits,
    /// Hidden states that another device has computed.
    Hidden,
    /// Positions of each token in all streams.
    Streams,
}

/// Places of the parts: those before the blocks have their full size, whatever the step.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepLayout {
    tokens: u64,
    outputs: u64,
    tiles: u64,
    runs: u64,
    groups: u64,
    hidden_cols: u32,
    /// Positions of a token in streams, if any.
    streams: u32,
}

const ALIGN: u64 = 256;

impl StepLayout {
    /// What a graph reads, with `groups` cache groups.
    pub(super) fn new(graph: &Graph, groups: usize) -> StepLayout {
        let streams = if graph.has_streams() { Sections::STREAMS } else { 0 };
        StepLayout::of(&graph.key, groups, graph.hidden_cols().unwrap_or(0), streams)
    }

    fn of(key: &GraphKey, groups: usize, hidden_cols: u32, streams: u32) -> StepLayout {
        let round = |elements: u32| (4 * u64::from(elements)).next_multiple_of(ALIGN);
        // Every sequence may end in a tile that is not full.
        let tiles = key.tokens / TILE + key.seqs.min(key.tokens);
        StepLayout {
            tokens: round(key.tokens),
            outputs: round(key.output_rows()),
            tiles: round(2 * tiles),
            runs: round(2 * key.seqs.min(key.tokens)),
            groups: groups as u64,
            hidden_cols,
            streams,
        }
    }

    /// First byte of a part in a step with these counts.
    pub(super) fn offset(&self, part: StepPart, counts: Counts) -> u64 {
        let end = |part| (self.offset(part, counts) + self.bytes(part, counts)).next_multiple_of(ALIGN);
        let group = |g: u64| 2 * self.tokens + self.outputs + self.tiles + self.runs + g * 5 * self.tokens;
        match part {
            StepPart::Tokens => 0,
            StepPart::Positions => self.tokens,
            StepPart::OutputRows => 2 * self.tokens,
            StepPart::Tiles => 2 * self.tokens + self.outputs,
            StepPart::Runs => 2 * self.tokens + self.outputs + self.tiles,
            StepPart::Slots(g) => group(u64::from(g)),
            StepPart::Spans(g) => group(u64::from(g)) + self.tokens,
            StepPart::Blocks => group(self.groups),
            StepPart::Picks => end(StepPart::Blocks),
            StepPart::Edits => end(StepPart::Picks),
            StepPart::Hidden => end(StepPart::Edits),
            StepPart::Streams => end(StepPart::Hidden),
        }
    }

    /// Bytes of a part in a step with these counts.
    pub(super) fn bytes(&self, part: StepPart, counts: Counts) -> u64 {
        match part {
            StepPart::Tokens | StepPart::Positions | StepPart::Slots(_) => 4 * u64::from(counts.tokens),
            StepPart::OutputRows => 4 * u64::from(counts.outputs),
            StepPart::Tiles => 8 * u64::from(counts.tiles),
            StepPart::Runs => 8 * u64::from(counts.runs),
            StepPart::Spans(_) => 16 * u64::from(counts.tokens),
            StepPart::Blocks => 4 * u64::from(counts.blocks),
            StepPart::Picks => size_of::<PickRow>() as u64 * u64::from(counts.picks),
            StepPart::Edits => size_of::<PickEdit>() as u64 * u64::from(counts.edits),
            StepPart::Hidden => 4 * u64::from(counts.tokens) * u64::from(self.hidden_cols),
            StepPart::Streams => 4 * u64::from(counts.tokens) * u64::from(self.streams),
        }
    }

    /// The data of a step and its counts. `entries` are those of the tables of embeddings, `picked` is the number of
    /// tokens that the step before has picked, `outputs` that of output rows.
    pub(super) fn pack(
        &self,
        inputs: &StepInputs<'_>,
        sampling: &[Sampling<'_>],
        (entries, picked, outputs): (Entries, usize, usize),
    ) -> Result<(Vec<u8>, Counts), RunError> {
        inputs.check_entries(entries, picked)?;
        let mut counts =
            Counts { tokens: inputs.tokens.len() as u32, outputs: outputs as u32, ..Counts::default() };
        let mut data = vec![0u8; self.offset(StepPart::Blocks, counts) as usize];
        let mut put = |part: StepPart, bytes: &[u8]| {
            let at = self.offset(part, counts) as usize;
            data[at..at + bytes.len()].copy_from_slice(bytes);
        };
        put(StepPart::Tokens, bytemuck::cast_slice(inputs.tokens));
        put(StepPart::Positions, bytemuck::cast_slice(inputs.positions));
        put(StepPart::OutputRows, bytemuck::cast_slice(inputs.outputs));
        let runs = runs(inputs);
        let tiles = tiles(&runs);
        put(StepPart::Tiles, bytemuck::cast_slice(&tiles));
        let whole: Vec<TokenTile> =
            runs.iter().map(|r| TokenTile { first: r.start as u32, count: r.len() as u32 }).collect();
        put(StepPart::Runs, bytemuck::cast_slice(&whole));
        let ends = ends(inputs, &runs);
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
                // A state that is not kept has no slot, and none is used.
                slots.push(block.wrapping_mul(BLOCK_TOKENS as u32) + at as u32);
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
        counts.tiles = tiles.len() as u32;
        counts.runs = whole.len() as u32;
        counts.blocks = blocks.len() as u32;
        let (rows, edits) = picks(sampling);
        counts.picks = rows.len() as u32;
        counts.edits = edits.len() as u32;
        let hidden = if self.hidden_cols > 0 { inputs.hidden_rows(self.hidden_cols)? } else { &[] };
        let streams = if self.streams > 0 { inputs.stream_positions() } else { Default::default() };
        for (part, bytes) in [
            (StepPart::Picks, bytemuck::cast_slice(&rows)),
            (StepPart::Edits, bytemuck::cast_slice(&edits)),
            (StepPart::Hidden, bytemuck::cast_slice(hidden)),
            (StepPart::Streams, bytemuck::cast_slice(&streams)),
        ] {
            if !bytes.is_empty() {
                data.resize(self.offset(part, counts) as usize, 0);
                data.extend_from_slice(bytes);
            }
        }
        Ok((data, counts))
    }
}

/// How the token of each row is picked, as kernels read it, and the changes of all rows.
fn picks(sampling: &[Sampling<'_>]) -> (Vec<PickRow>, Vec<PickEdit>) {
    let halves = |x: f64| (x.to_bits() as u32, (x.to_bits() >> 32) as u32);
    let row = |s: &Sampling<'_>| {
        let ((top_p_low, top_p_high), (uniform_low, uniform_high)) =
            (halves(f64::from(s.top_p)), halves(s.uniform));
        PickRow {
            repeat_penalty: s.repeat_penalty,
            frequency_penalty: s.frequency_penalty,
            presence_penalty: s.presence_penalty,
            top_k: s.top_k.max(1),
            top_p_low,
            top_p_high,
            min_p_below: s.min_p_below,
            temperature: s.temperature,
            uniform_low,
            uniform_high,
        }
    };
    let edits = sampling.iter().zip(0..).flat_map(|(s, row)| {
        s.edits.iter().map(move |e| PickEdit { row, token: e.token, bias: e.bias, seen: e.seen })
    });
    (sampling.iter().map(row).collect(), edits.collect())
}

/// Tokens of each sequence, which stand together.
fn runs(inputs: &StepInputs<'_>) -> Vec<Range<usize>> {
    let mut first = 0;
    let runs = inputs.sequences.chunk_by(|a, b| a == b);
    runs.map(|run| {
        first += run.len();
        first - run.len()..first
    })
    .collect()
}

fn tiles(runs: &[Range<usize>]) -> Vec<TokenTile> {
    let cut = |run: &Range<usize>| {
        let run = run.clone();
        run.clone()
            .step_by(TILE as usize)
            .map(move |first| TokenTile { first: first as u32, count: TILE.min((run.end - first) as u32) })
    };
    runs.iter().flat_map(cut).collect()
}

/// Positions of each token's sequence after the step.
fn ends(inputs: &StepInputs<'_>, runs: &[Range<usize>]) -> Vec<u32> {
    let mut ends = vec![0; inputs.tokens.len()];
    for run in runs {
        let last = inputs.positions[run.clone()].iter().max().copied().unwrap_or(0);
        ends[run.clone()].fill(last as u32 + 1);
    }
    ends
}

#[cfg(test)]
mod tests {
    use wootz_graph::{BlockTable, Outputs, TableSet, Wants};

    use super::*;

    fn tokens(tokens: u64) -> Entries {
        Entries { tokens, positions: 71 }
    }

    #[test]
    fn parts_hold_what_the_step_says() {
        // 40 tokens of one sequence from position 10 on, and one of another whose first blocks have left the window.
        let positions: Vec<i32> = (10..50).chain([70]).collect();
        let sequences: Vec<u32> = [0; 40].into_iter().chain([1]).collect();
        let tables = [BlockTable { first: 0, blocks: &[5, 3] }, BlockTable { first: 2, blocks: &[7] }];
        let groups = [TableSet { tables: &tables }];
        let inputs = StepInputs {
            tokens: &[1; 41],
            positions: &positions,
            streams: &[],
            sequences: &sequences,
            outputs: &[40],
            groups: &groups,
            hidden: &[0.5; 3 * 41],
        };
        let key =
            GraphKey { tokens: 64, seqs: 2, outputs: Outputs::Some(1), kv_span: 256, wants: Wants::Logits };
        let layout = StepLayout::of(&key, 1, 3, 0);
        let edits = [wootz_graph::LogitEdit { token: 9, bias: 0.5, seen: 3 }];
        let sampling = Sampling { edits: &edits, top_k: 7, uniform: 0.5, ..Sampling::GREEDY };
        let (data, counts) = layout.pack(&inputs, &[sampling], (tokens(2), 0, 1)).unwrap();
        assert_eq!(
            counts,
            Counts { tokens: 41, outputs: 1, tiles: 3, runs: 2, blocks: 3, picks: 1, edits: 1 }
        );
        let part = |part: StepPart| -> Vec<u32> {
            let at = layout.offset(part, counts) as usize;
            let bytes = layout.bytes(part, counts) as usize;
            data[at..at + bytes]
                .chunks_exact(4)
                .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect()
        };
        assert_eq!(part(StepPart::Tiles), [0, 32, 32, 8, 40, 1]);
        assert_eq!(part(StepPart::Runs), [0, 40, 40, 1]);
        assert_eq!(part(StepPart::Positions)[39..], [49, 70]);
        assert_eq!(part(StepPart::OutputRows), [40]);
        let slots = part(StepPart::Slots(0));
        assert_eq!((slots[0], slots[22], slots[40]), (5 * 32 + 10, 3 * 32, 7 * 32 + 6));
        let spans = part(StepPart::Spans(0));
        assert_eq!(spans[..4], [0, 0, 10, 50]);
        assert_eq!(spans[160..], [2, 2, 70, 71]);
        assert_eq!(part(StepPart::Blocks), [5, 3, 7]);
        let row = part(StepPart::Picks);
        assert_eq!((row.len(), row[3], row[9]), (10, 7, 0x3fe0_0000));
        assert_eq!(part(StepPart::Edits), [0, 9, 0.5f32.to_bits(), 3]);
        assert_eq!(part(StepPart::Hidden), [0.5f32.to_bits(); 3 * 41]);
        assert!(layout.pack(&StepInputs { hidden: &[0.5; 40], ..inputs }, &[], (tokens(2), 0, 1)).is_err());
        // A token that the table of embeddings does not have, and one that the step before did not pick.
        assert!(layout.pack(&inputs, &[], (tokens(1), 0, 1)).is_err());
        // A position that its table does not have.
        let short = Entries { positions: 70, ..tokens(2) };
        assert!(layout.pack(&inputs, &[], (short, 0, 1)).is_err());
        let fed = StepInputs { tokens: &[wootz_graph::picked_token(1); 41], ..inputs };
        assert!(layout.pack(&fed, &[], (tokens(2), 1, 1)).is_err());
        assert!(layout.pack(&fed, &[], (tokens(2), 2, 1)).is_ok());
    }
}
