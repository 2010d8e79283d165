//! Spaces written as `▁`, and where a text can be cut because no token reaches across.

use std::borrow::Cow;

use super::table::ByteTable;

/// `▁`, which stands for a space.
pub(crate) const SPACE: &[u8] = "▁".as_bytes();

/// Appends `text` with `▁` for each space.
pub(crate) fn escape(text: &[u8], out: &mut Vec<u8>) {
    for (i, word) in text.split(|&b| b == b' ').enumerate() {
        if i > 0 {
            out.extend_from_slice(SPACE);
        }
        out.extend_from_slice(word);
    }
}

/// `text` with a space for each `▁`.
pub(crate) fn unescape(text: &[u8]) -> Cow<'_, [u8]> {
    let Some(first) = find(text, 0) else { return Cow::Borrowed(text) };
    let mut out = text[..first].to_vec();
    let mut rest = &text[first..];
    while let Some(&byte) = rest.first() {
        match rest.strip_prefix(SPACE) {
            Some(after) => {
                out.push(b' ');
                rest = after;
            }
            None => {
                out.push(byte);
                rest = &rest[1..];
            }
        }
    }
    Cow::Owned(out)
}

/// Start of the first `▁` from `from` on.
fn find(text: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        at += text.get(at..)?.iter().position(|&b| b == SPACE[0])?;
        if text[at..].starts_with(SPACE) {
            return Some(at);
        }
        at += 1;
    }
}

/// Where an escaped text falls into parts that no merge joins: before `▁`, unless a token spells it after the same
/// byte.
pub(crate) struct Breaks {
    joined: [bool; 256],
}

impl Breaks {
    /// The breaks that all strings of the tables respect.
    pub(crate) fn new<'a>(tables: impl IntoIterator<Item = &'a ByteTable>) -> Breaks {
        let mut joined = [false; 256];
        for table in tables {
            for string in table.iter() {
                let mut at = 1;
                while let Some(start) = find(string, at) {
                    if !string[..start].ends_with(SPACE) {
                        joined[usize::from(string[start - 1])] = true;
                    }
                    at = start + 1;
                }
            }
        }
        Breaks { joined }
    }

    /// Calls `part` for each part of an escaped text.
    pub(crate) fn parts(&self, text: &[u8], mut part: impl FnMut(&[u8])) {
        let (mut start, mut at) = (0, 1);
        while let Some(space) = find(text, at) {
            if !text[..space].ends_with(SPACE) && !self.joined[usize::from(text[space - 1])] {
                part(&text[start..space]);
                start = space;
            }
            at = space + 1;
        }
        if start < text.len() {
            part(&text[start..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_and_unescapes() {
        let mut out = Vec::new();
        escape(b" a  b ", &mut out);
        assert_eq!(out, "▁a▁▁b▁".as_bytes());
        assert_eq!(unescape(&out).as_ref(), b" a  b ");
        assert!(matches!(unescape(b"ab\xE2\x96"), Cow::Borrowed(_)));
    }

    #[test]
    fn breaks_before_spaces_that_no_token_spans() {
        let mut table = ByteTable::with_capacity(0, 0);
        for token in ["▁a", "▁▁", "▁▁b", ">▁<"] {
            table.push(token.as_bytes()).unwrap();
        }
        let breaks = Breaks::new([&table]);
        let mut parts = Vec::new();
        breaks.parts("▁a▁▁b>▁<c▁▁".as_bytes(), |part| {
            parts.push(String::from_utf8_lossy(part).into_owned())
        });
        assert_eq!(parts, ["▁a", "▁▁b>▁<c", "▁▁"]);
        breaks.parts(b"", |_| unreachable!("no part of nothing"));
    }
}
