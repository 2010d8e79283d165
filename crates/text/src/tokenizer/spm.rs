//! SentencePiece in its byte-pair form: neighbours merge to the token with the best score.

use super::Work;
use super::merge::{Pairs, Wholes};
use super::space::{self, Breaks};
use super::table::{ByteTable, NONE};
use super::vocab::{BuildError, Vocab};

pub(crate) struct Spm {
    /// Merge priority of each token, lower first.
    ranks: Vec<u32>,
    bytes: [u32; 256],
    unknown: u32,
    breaks: Breaks,
    wholes: Wholes,
}

impl Spm {
    pub(crate) fn new(vocab: &Vocab, scores: &[f32], unknown: Option<u32>) -> Result<Spm, BuildError> {
        if scores.is_empty() {
            return Err(BuildError::Missing { what: "scores (tokenizer.ggml.scores)" });
        }
        let single = |byte: u8| vocab.table.find(&[byte]);
        let tokens = vocab.byte_tokens();
        let byte = |i: usize| tokens[i].or_else(|| single(i as u8)).unwrap_or(NONE);
        Ok(Spm {
            ranks: scores.iter().map(|&score| rank(score)).collect(),
            bytes: std::array::from_fn(byte),
            unknown: unknown.unwrap_or(NONE),
            breaks: Breaks::new([&vocab.table]),
            wholes: Wholes::new(vocab.len()),
        })
    }

    /// Appends the tokens of a text without special tokens, after a space if `prefix` is set.
    pub(crate) fn encode(
        &self,
        table: &ByteTable,
        text: &[u8],
        prefix: bool,
        work: &mut Work,
        out: &mut Vec<u32>,
    ) {
        let Work { merger, spelled, .. } = work;
        spelled.clear();
        if prefix {
            spelled.extend_from_slice(space::SPACE);
        }
        space::escape(text, spelled);
        let pairs = Scored { ranks: &self.ranks, table };
        self.breaks.parts(spelled, |part| {
            self.wholes.encode(table, part, out, |out| {
                merger.characters(part, |ch| table.find(ch));
                merger.run(part, &pairs, |text, id| {
                    if id != NONE {
                        return out.push(id);
                    }
                    for &byte in text {
                        let id = self.bytes[usize::from(byte)];
                        let id = if id == NONE { self.unknown } else { id };
                        if id != NONE {
                            out.push(id);
                        }
                    }
                });
            });
        });
    }
}

struct Scored<'a> {
    ranks: &'a [u32],
    table: &'a ByteTable,
}

impl Pairs for Scored<'_> {
    fn merge(&self, joined: &[u8], _: usize) -> Option<(u32, u32)> {
        let id = self.table.find(joined)?;
        Some((self.ranks[id as usize], id))
    }
}

/// Orders scores from the highest; equal scores get equal ranks, and no score the last rank, which means no merge.
fn rank(score: f32) -> u32 {
    // Adding zero makes the two zeros equal.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    let lowest = NONE - 1;
    if score.is_nan() { lowest } else { (!ascending).min(lowest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_follow_scores() {
        let scores = [f32::INFINITY, 3.5, 1.0, 0.0, -0.5, -7.0, f32::MIN, f32::NEG_INFINITY];
        for pair in scores.windows(2) {
            assert!(rank(pair[0]) < rank(pair[1]), "{pair:?}");
        }
        assert_eq!(rank(0.0), rank(-0.0));
        assert_eq!(rank(f32::NAN), NONE - 1);
        assert!(rank(f32::NEG_INFINITY) < NONE);
    }
}
