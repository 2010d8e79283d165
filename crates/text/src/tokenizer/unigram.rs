//! SentencePiece in its unigram form: the cheapest path through all tokens that spell the normalized text.

use super::Work;
use super::prefix::PrefixIndex;
use super::space::SPACE;
use super::table::NONE;
use super::vocab::{Attr, BuildError, Vocab};
use crate::pretokenize::class::char_at;

/// How much worse than the worst token an unknown character is (SentencePiece: `kUnkPenalty`).
const UNKNOWN_PENALTY: f64 = 10.0;

pub(crate) struct Unigram {
    index: PrefixIndex,
    /// Tokens that normalization leaves alone.
    user: PrefixIndex,
    scores: Vec<f64>,
    unknown: u32,
    unknown_score: f64,
    charsmap: Charsmap,
    add_space_prefix: bool,
    merge_spaces: bool,
}

/// Best way to reach an offset of the text.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    score: f64,
    from: usize,
    id: u32,
}

impl Unigram {
    pub(crate) fn new(
        vocab: &Vocab,
        scores: &[f32],
        unknown: Option<u32>,
        charsmap: Charsmap,
        add_space_prefix: bool,
        merge_spaces: bool,
    ) -> Result<Unigram, BuildError> {
        if scores.is_empty() {
            return Err(BuildError::Missing { what: "scores (tokenizer.ggml.scores)" });
        }
        let matched = Attr::NORMAL.or(Attr::USER).or(Attr::UNUSED);
        let lowest = vocab.with(Attr::NORMAL).map(|id| f64::from(scores[id as usize]));
        let lowest = lowest.fold(f64::INFINITY, f64::min);
        // A score of zero makes user-defined tokens win: the others are logarithms of probabilities.
        let score = |(id, &score): (u32, &f32)| {
            if vocab.attr(id).is(Attr::USER) { 0.0 } else { f64::from(score) }
        };
        Ok(Unigram {
            index: PrefixIndex::new(vocab.with(matched), &vocab.table),
            user: PrefixIndex::new(vocab.with(Attr::USER), &vocab.table),
            scores: (0..).zip(scores).map(score).collect(),
            unknown: unknown.unwrap_or(NONE),
            unknown_score: if lowest.is_finite() { lowest } else { 0.0 } - UNKNOWN_PENALTY,
            charsmap,
            add_space_prefix,
            merge_spaces,
        })
    }

    /// Appends the tokens of a text without special tokens.
    pub(crate) fn encode(&self, text: &[u8], work: &mut Work, out: &mut Vec<u32>) {
        let Work { spelled, steps, .. } = work;
        self.normalize(text, spelled);
        steps.clear();
        let unreached = Step { score: f64::NEG_INFINITY, from: 0, id: NONE };
        steps.resize(spelled.len() + 1, unreached);
        steps[0].score = 0.0;
        let mut at = 0;
        while let Some(ch) = char_at(spelled, at) {
            let base = steps[at].score;
            let mut reach = |end: usize, id: u32, score: f64| {
                if base + score > steps[end].score {
                    steps[end] = Step { score: base + score, from: at, id };
                }
            };
            let mut spells_char = false;
            self.index.prefixes(&spelled[at..], |len, id| {
                spells_char |= len == ch.len;
                reach(at + len, id, self.scores[id as usize]);
            });
            if !spells_char {
                reach(at + ch.len, NONE, self.unknown_score);
            }
            at += ch.len;
        }
        let first = out.len();
        let mut end = spelled.len();
        let mut after_unknown = false;
        while end > 0 {
            let step = steps[end];
            // A run of unknown characters is one unknown token.
            let unknown = step.id == NONE || step.id == self.unknown;
            let id = if unknown { self.unknown } else { step.id };
            if id != NONE && !(unknown && after_unknown) {
                out.push(id);
            }
            after_unknown = unknown;
            end = step.from;
        }
        out[first..].reverse();
    }

    /// Replaces characters by the table, and spaces by `▁`.
    fn normalize(&self, text: &[u8], out: &mut Vec<u8>) {
        out.clear();
        let (mut prefixed, mut in_word) = (false, false);
        let mut at = 0;
        while at < text.len() {
            let rest = &text[at..];
            let (normal, used) = self.normal_prefix(rest);
            at += used;
            for &byte in normal {
                if byte == b' ' {
                    in_word = false;
                    if !self.merge_spaces {
                        out.extend_from_slice(SPACE);
                    }
                    continue;
                }
                if !in_word {
                    in_word = true;
                    if (self.add_space_prefix && !prefixed) || self.merge_spaces {
                        out.extend_from_slice(SPACE);
                        prefixed = true;
                    }
                }
                out.push(byte);
            }
        }
    }

    /// The normal form of the first characters of a text, and how many bytes they are.
    fn normal_prefix<'a>(&'a self, text: &'a [u8]) -> (&'a [u8], usize) {
        if let Some((len, _)) = self.user.longest(text) {
            return (&text[..len], len);
        }
        if let Some((normal, len)) = self.charsmap.longest(text) {
            return (normal, len);
        }
        match char_at(text, 0) {
            Some(ch) if ch.len == 1 && text[0] >= 0x80 => ("\u{FFFD}".as_bytes(), 1),
            Some(ch) => (&text[..ch.len], ch.len),
            None => (&[], 0),
        }
    }
}

/// A table of replacements: a double array over byte strings, and the replacements, each ended by a zero.
///
/// Format: the `precompiled_charsmap` of SentencePiece, a Darts double array.
#[derive(Default)]
pub(crate) struct Charsmap {
    units: Vec<u32>,
    replacements: Vec<u8>,
}

impl Charsmap {
    pub(crate) fn new(blob: &[u8]) -> Result<Charsmap, BuildError> {
        if blob.is_empty() {
            return Ok(Charsmap::default());
        }
        let bad = |what| BuildError::Charsmap { what };
        let (size, rest) = blob.split_first_chunk().ok_or(bad("shorter than its length field"))?;
        let size = u32::from_le_bytes(*size) as usize;
        if !size.is_multiple_of(4) {
            return Err(bad("the array is no multiple of 4 bytes"));
        }
        let (array, replacements) = rest.split_at_checked(size).ok_or(bad("the array is cut short"))?;
        if replacements.last() != Some(&0) {
            return Err(bad("the last replacement has no end"));
        }
        let unit = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        Ok(Charsmap { units: array.chunks_exact(4).map(unit).collect(), replacements: replacements.to_vec() })
    }

    /// The replacement of the longest entry that `text` begins with, and the length of that entry.
    fn longest(&self, text: &[u8]) -> Option<(&[u8], usize)> {
        // A unit: bits 0–7 label, 8 has a value, 9 wide offset, 10–30 offset; bit 31 marks a value.
        let offset = |unit: u32| (unit >> 10) << ((unit & (1 << 9)) >> 6);
        let mut found = None;
        let mut node = offset(*self.units.first()?);
        for (i, &byte) in text.iter().enumerate() {
            node ^= u32::from(byte);
            let Some(&unit) = self.units.get(node as usize) else { break };
            if byte == 0 || unit & (1 << 31 | 0xFF) != u32::from(byte) {
                break;
            }
            node ^= offset(unit);
            if unit & (1 << 8) != 0 {
                let Some(&value) = self.units.get(node as usize) else { break };
                found = Some(((value & !(1 << 31)) as usize, i + 1));
            }
        }
        let (start, len) = found?;
        let replacement = self.replacements.get(start..)?;
        let end = replacement.iter().position(|&b| b == 0)?;
        Some((&replacement[..end], len))
    }
}
