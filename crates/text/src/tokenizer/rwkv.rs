//! The tokenizer of RWKV: always the longest token that the rest of the text begins with.

use super::prefix::PrefixIndex;
use super::table::NONE;
use super::vocab::Vocab;

pub(crate) struct Rwkv {
    index: PrefixIndex,
    unknown: u32,
}

impl Rwkv {
    pub(crate) fn new(vocab: &Vocab, unknown: Option<u32>) -> Rwkv {
        let index = PrefixIndex::new(0..vocab.len() as u32, &vocab.table);
        Rwkv { index, unknown: unknown.unwrap_or(NONE) }
    }

    /// Appends the tokens of a text without special tokens.
    pub(crate) fn encode(&self, text: &[u8], out: &mut Vec<u32>) {
        let mut at = 0;
        while at < text.len() {
            let (len, id) = self.index.longest(&text[at..]).unwrap_or((1, self.unknown));
            at += len;
            if id != NONE {
                out.push(id);
            }
        }
    }
}

/// Reads the escapes that token texts are written with: `\t`, `\n`, `\r`, `\xHH`, and `\` before any other.
pub(crate) fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let Some((&escape, after)) = rest.split_first() else { break };
        rest = after;
        let hex = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        match (escape, after.split_at_checked(2)) {
            (b't', _) => out.push(b'\t'),
            (b'n', _) => out.push(b'\n'),
            (b'r', _) => out.push(b'\r'),
            (b'x', Some((digits, after))) if hex(digits).is_some() => {
                out.extend(hex(digits));
                rest = after;
            }
            _ => out.push(escape),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_escapes() {
        assert_eq!(unescape(br"a\n\t\r\\\'\x00\xff!"), b"a\n\t\r\\'\x00\xFF!");
        assert_eq!(unescape(br"\x1"), b"x1");
        assert_eq!(unescape(b"\\"), b"");
    }
}
