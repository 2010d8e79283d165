//! Byte-pair encoding with ranked merges.

use std::collections::HashMap;

use super::Work;
use super::merge::{Pairs, Symbol};
use super::table::{ByteTable, Mixer, NONE};
use super::vocab::{BuildError, Vocab};
use crate::pretokenize::PreTokenizer;
use crate::pretokenize::class::char_at;

/// The merges, on ids.
pub(crate) struct Bpe {
    pub(crate) pre: &'static PreTokenizer,
    /// Symbol of each byte, in the alphabet of GPT-2.
    bytes: [u32; 256],
    /// Token to spell each byte with when a symbol is no token.
    fallback: [u32; 256],
    unknown: u32,
    /// Pair of ids to rank and merged id.
    pairs: HashMap<u64, (u32, u32), Mixer>,
    /// Symbols that occur in merges and are no tokens; numbered from the end of the vocabulary.
    extra: ByteTable,
    tokens: u32,
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
        let mut bpe = Bpe {
            pre,
            bytes: [NONE; 256],
            fallback: [NONE; 256],
            unknown: unknown.filter(|_| pre.plain).unwrap_or(NONE),
            pairs: HashMap::with_capacity_and_hasher(merges.len(), Mixer::new()),
            extra: ByteTable::with_capacity(0, 0),
            tokens: vocab.len() as u32,
        };
        let too_large = || BuildError::TooLarge { tokens: vocab.len() };
        let mut joined = Vec::new();
        let mut previous = NONE;
        for (index, merge) in merges.iter().enumerate() {
            let bad = || BuildError::Merge { index, merge: String::from_utf8_lossy(merge).into_owned() };
            // A token may itself be a space, so the separator is looked for after the first byte.
            let space = merge.iter().skip(1).position(|&b| b == b' ').ok_or_else(bad)? + 1;
            let (left, right) = (&merge[..space], &merge[space + 1..]);
            joined.clear();
            joined.extend_from_slice(left);
            joined.extend_from_slice(right);
            let left = bpe.symbol(vocab, left).ok_or_else(too_large)?;
            let right = bpe.symbol(vocab, right).ok_or_else(too_large)?;
            // Vocabularies list tokens in the order of their merges: the next id is the likely one.
            let next = previous.wrapping_add(1);
            let merged = if next < bpe.tokens && vocab.table.get(next) == joined {
                next
            } else {
                bpe.symbol(vocab, &joined).ok_or_else(too_large)?
            };
            previous = merged;
            bpe.pairs.entry(pair(left, right)).or_insert((index as u32, merged));
        }
        let mut glyph = [0; 4];
        let byte_tokens = vocab.byte_tokens();
        for byte in 0..=255u8 {
            let i = usize::from(byte);
            if pre.plain {
                bpe.fallback[i] = byte_tokens[i].unwrap_or(NONE);
            } else {
                let glyph = glyph_of(byte).encode_utf8(&mut glyph).as_bytes();
                bpe.fallback[i] = vocab.table.find(glyph).unwrap_or(NONE);
                bpe.bytes[i] = bpe.find(&vocab.table, glyph).unwrap_or(NONE);
            }
        }
        Ok(bpe)
    }

    fn find(&self, table: &ByteTable, text: &[u8]) -> Option<u32> {
        table.find(text).or_else(|| self.extra.find(text).map(|id| self.tokens + id))
    }

    fn symbol(&mut self, vocab: &Vocab, text: &[u8]) -> Option<u32> {
        match self.find(&vocab.table, text) {
            Some(id) => Some(id),
            None => self.tokens.checked_add(self.extra.push(text)?).filter(|&id| id != NONE),
        }
    }

    /// Appends the tokens of a text without special tokens.
    pub(crate) fn encode(&self, table: &ByteTable, text: &[u8], work: &mut Work, out: &mut Vec<u32>) {
        let Work { merger, pieces, spelled, .. } = work;
        let mut start = 0;
        for &end in self.pre.split(text, pieces) {
            let piece = &text[start..end];
            start = end;
            if let Some(id) = self.whole(table, piece, spelled) {
                out.push(id);
                continue;
            }
            merger.clear();
            let mut at = 0;
            while at < piece.len() {
                let (len, id) = if self.pre.plain {
                    let len = char_at(piece, at).map_or(1, |ch| ch.len);
                    (len, self.find(table, &piece[at..at + len]).unwrap_or(NONE))
                } else {
                    (1, self.bytes[usize::from(piece[at])])
                };
                merger.push(at as u32, len as u32, id);
                at += len;
            }
            merger.run(self, |symbol| {
                if symbol.id < self.tokens {
                    return out.push(symbol.id);
                }
                for &byte in &piece[symbol.start as usize..symbol.end() as usize] {
                    let id = self.fallback[usize::from(byte)];
                    let id = if id == NONE { self.unknown } else { id };
                    if id != NONE {
                        out.push(id);
                    }
                }
            });
        }
    }

    /// The token of a piece that is taken whole, past the merges.
    fn whole(&self, table: &ByteTable, piece: &[u8], spelled: &mut Vec<u8>) -> Option<u32> {
        if self.pre.plain {
            // No merge makes the tokens for runs of line breaks.
            return piece.iter().all(|&b| b == b'\n').then(|| table.find(piece))?;
        }
        if !self.pre.ignore_merges || piece.len() > table.longest() {
            return None;
        }
        spelled.clear();
        for &byte in piece {
            spelled.extend_from_slice(glyph_of(byte).encode_utf8(&mut [0; 4]).as_bytes());
        }
        table.find(spelled)
    }
}

impl Pairs for Bpe {
    fn merge(&self, left: &Symbol, right: &Symbol) -> Option<(u32, u32)> {
        self.pairs.get(&pair(left.id, right.id)).copied()
    }
}

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
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
