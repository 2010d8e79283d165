//! WordPiece: words of a normalized text, each spelled by the longest tokens from its start.

use unicode_normalization::char::decompose_canonical;

use super::prefix::PrefixIndex;
use super::space::SPACE;
use super::table::NONE;
use super::vocab::Vocab;
use crate::pretokenize::class::{CONTROL, Ch, NONSPACING, PUNCT, SPACE as BLANK, SYMBOL, chars, class_of};

pub(crate) struct WordPiece {
    index: PrefixIndex,
    lowercase: bool,
    strip_accents: bool,
    unknown: u32,
}

impl WordPiece {
    pub(crate) fn new(
        vocab: &Vocab,
        lowercase: bool,
        strip_accents: bool,
        unknown: Option<u32>,
    ) -> WordPiece {
        let index = PrefixIndex::new(0..vocab.len() as u32, &vocab.table);
        WordPiece { index, lowercase, strip_accents, unknown: unknown.unwrap_or(NONE) }
    }

    /// Appends the tokens of a text without special tokens.
    pub(crate) fn encode(&self, text: &[u8], out: &mut Vec<u32>) {
        let mut word = SPACE.to_vec();
        let finish = |word: &mut Vec<u8>, out: &mut Vec<u32>| {
            if word.len() > SPACE.len() {
                self.spell(word, out);
            }
            word.truncate(SPACE.len());
        };
        for ch in chars(text) {
            let Some(c) = char::from_u32(ch.code) else { continue };
            // Of the control characters only these are white space here; the others, and code points without a
            // meaning yet, are left out.
            let blank = ch.is(BLANK) && !ch.is(CONTROL) || matches!(c, '\t' | '\n' | '\r');
            if blank {
                finish(&mut word, out);
                continue;
            }
            if c == '\u{FFFD}' || ch.is(CONTROL) || ch.class == 0 {
                continue;
            }
            let alone = stands_alone(ch);
            if alone {
                finish(&mut word, out);
            }
            self.normalize(c, &mut word);
            if alone {
                finish(&mut word, out);
            }
        }
        finish(&mut word, out);
    }

    fn normalize(&self, c: char, word: &mut Vec<u8>) {
        let mut add = |c: char| {
            if self.lowercase {
                for c in c.to_lowercase() {
                    word.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                }
            } else {
                word.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            }
        };
        if self.strip_accents {
            decompose_canonical(c, |part| {
                if class_of(part) & NONSPACING == 0 {
                    add(part);
                }
            });
        } else {
            add(c);
        }
    }

    /// The longest tokens from the start on; the unknown token if they do not cover the word.
    fn spell(&self, word: &[u8], out: &mut Vec<u32>) {
        let before = out.len();
        let mut at = 0;
        while at < word.len() {
            match self.index.longest(&word[at..]) {
                Some((len, id)) => {
                    out.push(id);
                    at += len;
                }
                None => {
                    out.truncate(before);
                    if self.unknown != NONE {
                        out.push(self.unknown);
                    }
                    return;
                }
            }
        }
    }
}

/// Whether a character is a word of its own: punctuation, ASCII symbols, ideographs.
fn stands_alone(ch: Ch) -> bool {
    // The last range of the fifth row begins at 2B920 and not at 2B820 in the published tokenizers.
    ch.is(PUNCT)
        || (ch.code < 0x7F && ch.is(SYMBOL))
        || matches!(ch.code,
            0x4E00..=0x9FFF | 0x3400..=0x4DBF | 0x20000..=0x2A6DF | 0x2A700..=0x2B73F | 0x2B740..=0x2B81F
            | 0x2B920..=0x2CEAF | 0xF900..=0xFAFF | 0x2F800..=0x2FA1F)
}
