//! SentencePiece in its byte-pair form: neighbours merge to the token with the best score.

use super::Work;
use super::merge::{Pairs, Symbol};
use super::table::{ByteTable, NONE};
use super::vocab::{BuildError, Vocab};
use crate::pretokenize::class::char_at;

/// `▁`, which stands for a space.
pub(crate) const SPACE: &[u8] = "▁".as_bytes();

pub(crate) struct Spm {
    /// Merge priority of each token, lower first.
    ranks: Vec<u32>,
    bytes: [u32; 256],
    unknown: u32,
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
            spelled.extend_from_slice(SPACE);
        }
        escape_spaces(text, spelled);
        merger.clear();
        let mut at = 0;
        while let Some(ch) = char_at(spelled, at) {
            let id = table.find(&spelled[at..at + ch.len]).unwrap_or(NONE);
            merger.push(at as u32, ch.len as u32, id);
            at += ch.len;
        }
        let pairs = Scored { spm: self, table, text: spelled };
        merger.run(&pairs, |symbol| {
            if symbol.id != NONE {
                return out.push(symbol.id);
            }
            for &byte in &spelled[symbol.start as usize..symbol.end() as usize] {
                let id = self.bytes[usize::from(byte)];
                let id = if id == NONE { self.unknown } else { id };
                if id != NONE {
                    out.push(id);
                }
            }
        });
    }
}

struct Scored<'a> {
    spm: &'a Spm,
    table: &'a ByteTable,
    text: &'a [u8],
}

impl Pairs for Scored<'_> {
    fn merge(&self, left: &Symbol, right: &Symbol) -> Option<(u32, u32)> {
        let id = self.table.find(&self.text[left.start as usize..right.end() as usize])?;
        Some((self.spm.ranks[id as usize], id))
    }
}

/// Appends `text` with `▁` for each space.
pub(crate) fn escape_spaces(text: &[u8], out: &mut Vec<u8>) {
    for (i, word) in text.split(|&b| b == b' ').enumerate() {
        if i > 0 {
            out.extend_from_slice(SPACE);
        }
        out.extend_from_slice(word);
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

    #[test]
    fn escapes_every_space() {
        let mut out = Vec::new();
        escape_spaces(b" a  b ", &mut out);
        assert_eq!(out, "▁a▁▁b▁".as_bytes());
    }
}
