//! The inputs of a step on the device.
//!
//! Their places are fixed for a program, so that recorded launches can be replayed for every step: row counts,
//! positions and block tables are read from there.

use wootz_graph::op::Sections;
use wootz_graph::{BLOCK_TOKENS, Graph, GraphKey, NO_BLOCK, RunError, StepInputs};

use crate::args::{InputsArgs, Mut, Ptr};
use crate::machine::{HostBuffer, Kernel, Launch};

/// Threads of a block that takes inputs, words that each has on their way, and blocks at most: the way to the host's memory
/// takes no more at once.
const INPUT_THREADS: u32 = 256;
const INPUT_WORDS: u32 = 4;
const MOST_INPUT_BLOCKS: u32 = 16;

/// The launch that brings bytes of the host's memory to the device, whole words of 8.
pub(crate) fn take(from: &HostBuffer, to: u64, bytes: usize) -> Launch {
    let words = (bytes / 8) as u32;
    let args = InputsArgs { from: Ptr::new(from.address()), to: Mut::new(to), words, unused: 0 };
    let blocks = words.div_ceil(INPUT_THREADS * INPUT_WORDS).clamp(1, MOST_INPUT_BLOCKS);
    Launch::new(Kernel::new("inputs", "take_inputs"), [blocks, 1, 1], INPUT_THREADS, &args)
}

/// Where the block tables of a cache group lie, in bytes from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupPlaces {
    /// Slot of each token, u32.
    pub(crate) slots: usize,
    /// Number of the first block held, u32 by sequence.
    pub(crate) first: usize,
    /// Physical blocks, u32 `[sequences, max_blocks]`.
    pub(crate) blocks: usize,
}

/// Where the inputs of a step lie, in bytes from the start.
#[derive(Clone, Debug)]
pub(crate) struct StepPlaces {
    key: GraphKey,
    /// i32 by token.
    pub(crate) tokens: usize,
    /// i32 by token.
    pub(crate) positions: usize,
    /// i32 `[tokens, streams]`.
    pub(crate) streams: usize,
    has_streams: bool,
    /// u32 by token.
    pub(crate) sequences: usize,
    /// i32 by output row.
    pub(crate) outputs: usize,
    /// First row of each sequence, u32.
    pub(crate) starts: usize,
    /// Rows of each sequence, u32.
    pub(crate) counts: usize,
    /// Cached positions of each sequence after the step, u32.
    pub(crate) lengths: usize,
    /// Rows of one sequence that stand together, at most [`TILE_ROWS`]: first row and count, u32 `[tiles, 2]`.
    pub(crate) tiles: usize,
    /// Tiles at most.
    pub(crate) max_tiles: usize,
    pub(crate) groups: Vec<GroupPlaces>,
    /// Hidden states, f32 `[tokens, hidden_cols]`.
    pub(crate) hidden: usize,
    hidden_cols: u32,
    /// Blocks of a sequence at most.
    pub(crate) max_blocks: usize,
    bytes: usize,
}

/// Offset of the number of tokens.
pub(crate) const TOKENS: usize = 0;
/// Offset of the number of output rows.
pub(crate) const OUTPUTS: usize = 4;
/// Offset of the number of sequences.
pub(crate) const SEQUENCES: usize = 8;
/// Offset of the number of tiles.
pub(crate) const TILES: usize = 12;
/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 64;
/// Bytes of `StepCounts`.
const COUNTS: usize = 16;

impl StepPlaces {
    /// The places of what a graph reads, with block tables for `groups` cache groups.
    pub(crate) fn new(graph: &Graph, groups: usize) -> StepPlaces {
        StepPlaces::of(&graph.key, groups, graph.hidden_cols().unwrap_or(0), graph.has_streams())
    }

    fn of(key: &GraphKey, groups: usize, hidden_cols: u32, has_streams: bool) -> StepPlaces {
        let mut end = COUNTS;
        let mut take = |n: usize| {
            let at = end;
            // Each array starts on 16 bytes.
            end += (4 * n).next_multiple_of(16);
            at
        };
        let (tokens, seqs) = (key.tokens as usize, key.seqs as usize);
        // Each sequence ends in a tile that may not be full.
        let max_tiles = tokens / TILE_ROWS + seqs.min(tokens);
        let max_blocks = (key.kv_span as usize).div_ceil(BLOCK_TOKENS);
        let mut places = StepPlaces {
            key: *key,
            tokens: take(tokens),
            positions: take(tokens),
            streams: take(if has_streams { Sections::STREAMS as usize * tokens } else { 0 }),
            has_streams,
            sequences: take(tokens),
            outputs: take(key.output_rows() as usize),
            starts: take(seqs),
            counts: take(seqs),
            lengths: take(seqs),
            tiles: take(2 * max_tiles),
            max_tiles,
            groups: Vec::new(),
            hidden: 0,
            hidden_cols,
            max_blocks,
            bytes: 0,
        };
        places.groups = (0..groups)
            .map(|_| GroupPlaces { slots: take(tokens), first: take(seqs), blocks: take(seqs * max_blocks) })
            .collect();
        places.hidden = take(tokens * hidden_cols as usize);
        places.bytes = end;
        places
    }

    /// Bytes of all inputs.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes the inputs of a step; `outputs` is the number of rows that it returns.
    ///
    /// # Errors
    /// They do not fit the key, or name blocks that `blocks` (by group) says do not exist.
    pub(crate) fn fill(
        &self,
        inputs: &StepInputs<'_>,
        outputs: usize,
        blocks: &[u32],
        to: &mut [u8],
    ) -> Result<(), RunError> {
        inputs.check(&self.key)?;
        let bad = |what: String| Err(RunError::Input(what));
        let seqs = inputs.sequences.iter().max().map_or(0, |s| *s as usize + 1);
        if seqs > self.key.seqs as usize {
            return bad(format!("{seqs} sequences, the plan takes {}", self.key.seqs));
        }
        if inputs.groups.len() < self.groups.len() {
            return bad(format!(
                "block tables of {} cache groups of {}",
                inputs.groups.len(),
                self.groups.len()
            ));
        }
        let mut put = |at: usize, values: &[u32]| {
            to[at..at + 4 * values.len()].copy_from_slice(bytemuck::cast_slice(values));
        };
        put(TOKENS, &[inputs.tokens.len() as u32]);
        put(OUTPUTS, &[outputs as u32]);
        put(SEQUENCES, &[seqs as u32]);
        put(self.tokens, bytemuck::cast_slice(inputs.tokens));
        put(self.positions, bytemuck::cast_slice(inputs.positions));
        if self.has_streams {
            put(self.streams, bytemuck::cast_slice(&inputs.stream_positions()));
        }
        put(self.sequences, inputs.sequences);
        put(self.outputs, bytemuck::cast_slice(inputs.outputs));
        if self.hidden_cols > 0 {
            put(self.hidden, bytemuck::cast_slice(inputs.hidden_rows(self.hidden_cols)?));
        }
        let mut rows = vec![[0u32; 3]; seqs];
        for (row, (sequence, position)) in inputs.sequences.iter().zip(inputs.positions).enumerate() {
            let [start, count, length] = &mut rows[*sequence as usize];
            if *count == 0 {
                *start = row as u32;
            }
            *count += 1;
            *length = (*length).max(*position as u32 + 1);
        }
        let mut tiles: Vec<[u32; 2]> = Vec::new();
        for [start, count, _] in &rows {
            let firsts = (0..*count).step_by(TILE_ROWS);
            tiles.extend(firsts.map(|first| [start + first, (count - first).min(TILE_ROWS as u32)]));
        }
        put(TILES, &[tiles.len() as u32]);
        put(self.tiles, tiles.as_flattened());
        for (at, field) in [(self.starts, 0), (self.counts, 1), (self.lengths, 2)] {
            for (sequence, row) in rows.iter().enumerate() {
                put(at + 4 * sequence, &row[field..=field]);
            }
        }
        for (index, (places, set)) in self.groups.iter().zip(inputs.groups).enumerate() {
            for (row, (sequence, position)) in inputs.sequences.iter().zip(inputs.positions).enumerate() {
                // `check` has found a block for every token.
                let (block, at) = set.slot(*sequence, *position as usize).unwrap_or_default();
                // A state that is not kept has no slot, and none is used.
                let slot = block.wrapping_mul(BLOCK_TOKENS as u32) + at as u32;
                put(places.slots + 4 * row, &[slot]);
            }
            for (sequence, row) in rows.iter().enumerate().filter(|(_, r)| r[1] > 0) {
                let table = &set.tables[sequence];
                let held = (row[2] as usize).div_ceil(BLOCK_TOKENS).saturating_sub(table.first as usize);
                let held = &table.blocks[..held.min(table.blocks.len())];
                if held.len() > self.max_blocks {
                    return bad(format!(
                        "{} blocks of a sequence, the plan takes {}",
                        held.len(),
                        self.max_blocks
                    ));
                }
                let limit = blocks.get(index).copied().unwrap_or(0);
                if let Some(block) = held.iter().find(|b| **b >= limit && **b != NO_BLOCK) {
                    return bad(format!("cache block {block} of {limit}"));
                }
                put(places.first + 4 * sequence, &[table.first]);
                put(places.blocks + 4 * sequence * self.max_blocks, held);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wootz_graph::{BlockTable, Outputs, TableSet, Wants};

    fn key() -> GraphKey {
        GraphKey { tokens: 8, seqs: 2, outputs: Outputs::Some(2), kv_span: 128, wants: Wants::Hidden }
    }

    fn read(bytes: &[u8], at: usize, n: usize) -> Vec<u32> {
        bytes[at..at + 4 * n].as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
    }

    #[test]
    fn sequences_may_come_in_any_order() {
        let places = StepPlaces::of(&key(), 1, 2, false);
        let tables = [BlockTable { first: 0, blocks: &[7, 3] }, BlockTable { first: 1, blocks: &[2, 5, 4] }];
        let inputs = StepInputs {
            tokens: &[9, 8, 7],
            positions: &[64, 65, 31],
            streams: &[],
            sequences: &[1, 1, 0],
            outputs: &[2, 0],
            groups: &[TableSet { tables: &tables }],
            hidden: &[0.5; 6],
        };
        let mut bytes = vec![0; places.bytes()];
        places.fill(&inputs, 2, &[8], &mut bytes).unwrap();
        assert_eq!(read(&bytes, TOKENS, 4), [3, 2, 2, 2]);
        assert_eq!(read(&bytes, places.tiles, 4), [2, 1, 0, 2]);
        assert_eq!(read(&bytes, places.tokens, 3), [9, 8, 7]);
        assert_eq!(read(&bytes, places.hidden, 6), [0.5f32.to_bits(); 6]);
        assert_eq!(read(&bytes, places.starts, 2), [2, 0]);
        assert_eq!(read(&bytes, places.counts, 2), [1, 2]);
        assert_eq!(read(&bytes, places.lengths, 2), [32, 66]);
        let group = places.groups[0];
        assert_eq!(read(&bytes, group.slots, 3), [5 * 32, 5 * 32 + 1, 7 * 32 + 31]);
        assert_eq!(read(&bytes, group.first, 2), [0, 1]);
        assert_eq!(read(&bytes, group.blocks, 6), [7, 0, 0, 0, 2, 5]);
    }

    #[test]
    fn inputs_that_do_not_fit_are_refused() {
        let places = StepPlaces::of(&key(), 1, 0, true);
        let mut bytes = vec![0; places.bytes()];
        let tables = [BlockTable { first: 0, blocks: &[7] }; 3];
        let groups = [TableSet { tables: &tables }];
        let inputs = StepInputs {
            tokens: &[1],
            positions: &[0],
            streams: &[],
            sequences: &[0],
            outputs: &[],
            groups: &groups,
            hidden: &[],
        };
        assert!(places.fill(&inputs, 0, &[8], &mut bytes).is_ok());
        let mut fails = |inputs: StepInputs<'_>, blocks: u32| {
            let error = places.fill(&inputs, 0, &[blocks], &mut bytes);
            assert!(matches!(error, Err(RunError::Input(_))), "{error:?}");
        };
        fails(inputs, 7);
        fails(StepInputs { sequences: &[2], ..inputs }, 8);
        fails(StepInputs { positions: &[32], ..inputs }, 8);
        fails(StepInputs { groups: &[], ..inputs }, 8);
        fails(StepInputs { streams: &[1, 2, 3], ..inputs }, 8);
        fails(StepInputs { streams: &[1, 2, 3, -1], ..inputs }, 8);
    }

    #[test]
    fn streams_stand_where_the_token_does_unless_told_otherwise() {
        let places = StepPlaces::of(&key(), 1, 0, true);
        let mut bytes = vec![0; places.bytes()];
        let tables = [BlockTable { first: 0, blocks: &[7] }];
        let inputs = StepInputs {
            tokens: &[1, 2],
            positions: &[4, 5],
            streams: &[],
            sequences: &[0, 0],
            outputs: &[],
            groups: &[TableSet { tables: &tables }],
            hidden: &[],
        };
        places.fill(&inputs, 0, &[8], &mut bytes).unwrap();
        assert_eq!(read(&bytes, places.streams, 8), [4, 4, 4, 4, 5, 5, 5, 5]);
        let told = StepInputs { streams: &[4, 0, 1, 0, 4, 0, 2, 0], ..inputs };
        places.fill(&told, 0, &[8], &mut bytes).unwrap();
        assert_eq!(read(&bytes, places.streams, 8), [4, 0, 1, 0, 4, 0, 2, 0]);
    }
}
