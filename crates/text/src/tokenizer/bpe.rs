//! Byte-pair encoding with ranked merges.
//!
//! A merge is stored with the token it makes: the two halves of a pair are found by the text of both and the length
//! of the first. So building needs no look-up of halves, and a vocabulary of 500,000 merges is ready at once.

use super::Work;
use super::merge::{Pairs, Wholes};
use super::space::{self, Breaks};
use super::table::{ByteTable, NONE};
use super::vocab::{BuildError, Vocab};
use crate::pretokenize::PreTokenizer;

/// The merges of a vocabulary.
pub(crate) struct Bpe {
    pub(crate) pre: &'static PreTokenizer,
    /// Token of each byte: by its glyph, or by `<0xXX>` in plain vocabularies.
    bytes: [u32; 256],
    /// Tokens for a byte that has none: the unknown token, or those of U+FFFD if no valid UTF-8 holds the byte.
    replacement: Vec<u32>,
    /// The ways to make each symbol: from `firsts[id]` to `firsts[id + 1]`.
    splits: Vec<Split>,
    firsts: Vec<u32>,
    /// Results of merges that are no tokens; numbered from the end of the vocabulary.
    extra: ByteTable,
    tokens: u32,
    breaks: Breaks,
    wholes: Wholes,
}

/// A merge: the length of its first half in bytes, and its place in the list of merges.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Split {
    left: u32,
    rank: u32,
}

impl Bpe {
    pub(crate) fn new(
        vocab: &Vocab,
        merges: &[&[u8]],
        pre: &'static PreTokenizer,
        unknown: Option<u32>,
    ) -> Result<Bpe, BuildError> {
        if merges.is_empty() {
            return Err(BuildError::Missing { what: "merges (tokenizer.ggml.merges)" });
        }
        let tokens = vocab.len() as u32;
        let too_large = || BuildError::TooLarge { tokens: vocab.len() };
        let mut extra = ByteTable::with_capacity(0, 0);
        let mut made = Vec::with_capacity(merges.len());
        let mut joined = Vec::new();
        let mut previous = NONE;
        for (index, merge) in merges.iter().enumerate() {
            let bad = || BuildError::Merge { index, merge: String::from_utf8_lossy(merge).into_owned() };
            // A token may itself be a space, so the separator is looked for after the first byte.
            let left = merge.iter().skip(1).position(|&b| b == b' ').ok_or_else(bad)? + 1;
            joined.clear();
            joined.extend_from_slice(&merge[..left]);
            joined.extend_from_slice(&merge[left + 1..]);
            // Vocabularies list tokens in the order of their merges: the id is most likely the last or the next one.
            let likely = [previous.wrapping_add(1), previous];
            let guess = likely.into_iter().find(|&id| id < tokens && vocab.table.get(id) == joined);
            let known = || vocab.table.find(&joined).or_else(|| Some(tokens + extra.find(&joined)?));
            previous = match guess.or_else(known) {
                Some(id) => id,
                None => {
                    tokens.checked_add(extra.push(&joined).ok_or_else(too_large)?).ok_or_else(too_large)?
                }
            };
            made.push((previous, Split { left: left as u32, rank: index as u32 }));
        }
        let symbols = vocab.len() + extra.len();
        let (splits, firsts) = group(&made, symbols);
        let mut glyph = [0; 4];
        let byte_tokens = vocab.byte_tokens();
        let byte = |byte: usize| {
            if pre.plain {
                return byte_tokens[byte].unwrap_or(NONE);
            }
            let glyph = glyph_of(byte as u8).encode_utf8(&mut glyph).as_bytes();
            vocab.table.find(glyph).unwrap_or(NONE)
        };
        let mut bpe = Bpe {
            pre,
            bytes: std::array::from_fn(byte),
            replacement: unknown.filter(|_| pre.plain).into_iter().collect(),
            splits,
            firsts,
            breaks: Breaks::new([&vocab.table, &extra]),
            wholes: Wholes::new(vocab.len()),
            extra,
            tokens,
        };
        if !pre.plain {
            let mut replacement = Vec::new();
            bpe.encode(&vocab.table, "\u{FFFD}".as_bytes(), &mut Work::default(), &mut replacement);
            bpe.replacement = replacement;
        }
        Ok(bpe)
    }

    /// Appends the tokens of a text without special tokens.
    pub(crate) fn encode(&self, table: &ByteTable, text: &[u8], work: &mut Work, out: &mut Vec<u32>) {
        if self.pre.plain {
            self.encode_plain(table, text, work, out);
        } else {
            self.encode_glyphs(table, text, work, out);
        }
    }

    fn encode_glyphs(&self, table: &ByteTable, text: &[u8], work: &mut Work, out: &mut Vec<u32>) {
        let Work { merger, pieces, spelled, .. } = work;
        let ranked = Ranked { bpe: self, table };
        let mut start = 0;
        for &end in self.pre.split(text, pieces) {
            let piece = &text[start..end];
            start = end;
            spelled.clear();
            for &byte in piece {
                spelled.extend_from_slice(glyph_of(byte).encode_utf8(&mut [0; 4]).as_bytes());
            }
            if self.pre.ignore_merges
                && let Some(id) = table.find(spelled)
            {
                out.push(id);
                continue;
            }
            self.wholes.encode(table, spelled, out, |out| {
                merger.clear();
                let mut end = 0;
                for &byte in piece {
                    end += glyph_of(byte).len_utf8();
                    merger.push(end, self.bytes[usize::from(byte)]);
                }
                merger.run(spelled, &ranked, |symbol, id| {
                    if id < self.tokens {
                        return out.push(id);
                    }
                    let glyphs = std::str::from_utf8(symbol).unwrap_or_default();
                    self.spell(glyphs.chars().filter_map(byte_of), out);
                });
            });
        }
    }

    fn encode_plain(&self, table: &ByteTable, text: &[u8], work: &mut Work, out: &mut Vec<u32>) {
        let Work { merger, pieces, spelled, .. } = work;
        spelled.clear();
        space::escape(text, spelled);
        let ranked = Ranked { bpe: self, table };
        let mut start = 0;
        for &end in self.pre.split(spelled, pieces) {
            let piece = &spelled[start..end];
            start = end;
            // No merge makes the tokens for runs of line breaks.
            if piece.iter().all(|&b| b == b'\n')
                && let Some(id) = table.find(piece)
            {
                out.push(id);
                continue;
            }
            self.breaks.parts(piece, |part| {
                self.wholes.encode(table, part, out, |out| {
                    merger.characters(part, |ch| table.find(ch));
                    merger.run(part, &ranked, |symbol, id| {
                        if id < self.tokens {
                            return out.push(id);
                        }
                        self.spell(symbol.iter().copied(), out);
                    });
                });
            });
        }
    }

    /// Appends the tokens of single bytes.
    ///
    /// Some vocabularies lack control characters; those are left out, as by the tokenizers that were published.
    fn spell(&self, bytes: impl Iterator<Item = u8>, out: &mut Vec<u32>) {
        for byte in bytes {
            let never_valid = matches!(byte, 0xC0..=0xC1 | 0xF5..=0xFF);
            match self.bytes[usize::from(byte)] {
                NONE if self.pre.plain || never_valid => out.extend_from_slice(&self.replacement),
                NONE => {}
                id => out.push(id),
            }
        }
    }
}

/// Groups merges by the symbol they make, each group ordered by the length of the first half; of equals the first.
fn group(made: &[(u32, Split)], symbols: usize) -> (Vec<Split>, Vec<u32>) {
    let mut firsts = vec![0u32; symbols + 1];
    for &(id, _) in made {
        firsts[id as usize + 1] += 1;
    }
    for id in 0..symbols {
        firsts[id + 1] += firsts[id];
    }
    let mut next = firsts.clone();
    let mut splits = vec![Split::default(); made.len()];
    for &(id, split) in made {
        splits[next[id as usize] as usize] = split;
        next[id as usize] += 1;
    }
    for ends in firsts.windows(2) {
        splits[ends[0] as usize..ends[1] as usize].sort_unstable();
    }
    (splits, firsts)
}

struct Ranked<'a> {
    bpe: &'a Bpe,
    table: &'a ByteTable,
}

impl Pairs for Ranked<'_> {
    fn merge(&self, joined: &[u8], left: usize) -> Option<(u32, u32)> {
        let bpe = self.bpe;
        let id = self.table.find(joined).or_else(|| Some(bpe.tokens + bpe.extra.find(joined)?))?;
        let splits = &bpe.splits[bpe.firsts[id as usize] as usize..bpe.firsts[id as usize + 1] as usize];
        let split = splits.get(splits.partition_point(|split| (split.left as usize) < left))?;
        (split.left as usize == left).then_some((split.rank, id))
    }
}

/// The character that stands for a byte in the alphabet of GPT-2: itself where it prints, else one from U+0100 on.
pub(crate) fn glyph_of(byte: u8) -> char {
    let code = u32::from(byte);
    match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
        0..=0x20 => char::from_u32(0x100 + code).unwrap_or_default(),
        0x7F..=0xA0 => char::from_u32(0x100 + code - 0x7F + 0x21).unwrap_or_default(),
        _ => '\u{143}',
    }
}

/// The byte that a character of that alphabet stands for.
pub(crate) fn byte_of(glyph: char) -> Option<u8> {
    match u32::from(glyph) {
        code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7F) as u8),
        0x143 => Some(0xAD),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_a_bijection_on_printing_characters() {
        let mut seen = std::collections::HashSet::new();
        let mut next = 0x100;
        for byte in 0..=255u8 {
            let glyph = glyph_of(byte);
            assert!(seen.insert(glyph));
            assert_eq!(byte_of(glyph), Some(byte));
            // GPT-2 hands out U+0100 and up in the order of the bytes.
            if u32::from(glyph) != u32::from(byte) {
                assert_eq!(u32::from(glyph), next);
                next += 1;
            }
        }
        assert_eq!((glyph_of(b' '), glyph_of(b'\n')), ('Ġ', 'Ċ'));
        assert_eq!(byte_of(' '), None);
        assert_eq!(byte_of('\u{144}'), None);
    }
}
