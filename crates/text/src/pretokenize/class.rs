//! Characters of a byte string that need not be valid UTF-8, with the Unicode classes that rules speak of.

use unicode_general_category::{GeneralCategory as G, get_general_category};

/// A set of character classes.
pub(crate) type Class = u16;

/// Upper case and title case letters: `Lu`, `Lt`.
pub(crate) const UPPER: Class = 1;
/// Lower case letters: `Ll`.
pub(crate) const LOWER: Class = 1 << 1;
/// Letters without case: `Lm`, `Lo`.
pub(crate) const UNCASED: Class = 1 << 2;
/// Combining marks that take no room: `Mn`.
pub(crate) const NONSPACING: Class = 1 << 3;
/// Decimal digits: `Nd`.
pub(crate) const DIGIT: Class = 1 << 4;
/// Other numbers: `Nl`, `No`.
pub(crate) const NUMERAL: Class = 1 << 5;
/// Connector punctuation: `Pc`.
pub(crate) const CONNECTOR: Class = 1 << 6;
/// All other punctuation.
pub(crate) const STOP: Class = 1 << 7;
/// Symbols: `S`.
pub(crate) const SYMBOL: Class = 1 << 8;
/// White space: the property `White_Space`.
pub(crate) const SPACE: Class = 1 << 9;
/// Control and format characters, surrogates, private use: `Cc`, `Cf`, `Cs`, `Co`.
pub(crate) const CONTROL: Class = 1 << 10;

/// Other combining marks: `Mc`, `Me`.
pub(crate) const SPACING: Class = 1 << 11;

/// Letters: `L`.
pub(crate) const LETTER: Class = UPPER | LOWER | UNCASED;
/// Combining marks: `M`.
pub(crate) const MARK: Class = NONSPACING | SPACING;
/// Numbers: `N`.
pub(crate) const NUMBER: Class = DIGIT | NUMERAL;
/// Punctuation: `P`.
pub(crate) const PUNCT: Class = CONNECTOR | STOP;

/// One character, or one byte that starts none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ch {
    /// Code point; U+FFFD for a stray byte.
    pub(crate) code: u32,
    /// Bytes it takes in the text.
    pub(crate) len: usize,
    pub(crate) class: Class,
}

impl Ch {
    pub(crate) fn is(self, classes: Class) -> bool {
        self.class & classes != 0
    }

    pub(crate) fn is_newline(self) -> bool {
        self.code == 0x0A || self.code == 0x0D
    }

    /// ASCII lower case of the code point.
    pub(crate) fn folded(self) -> u32 {
        // In simple case folding the long s is an s.
        if self.code == 0x17F {
            return u32::from(b's');
        }
        char::from_u32(self.code).map_or(self.code, |c| u32::from(c.to_ascii_lowercase()))
    }
}

/// The class of a code point.
pub(crate) fn class_of(c: char) -> Class {
    match u8::try_from(c) {
        Ok(byte) if byte < 128 => ASCII[usize::from(byte)],
        _ => classify(c),
    }
}

fn classify(c: char) -> Class {
    let class = match get_general_category(c) {
        G::UppercaseLetter | G::TitlecaseLetter => UPPER,
        G::LowercaseLetter => LOWER,
        G::ModifierLetter | G::OtherLetter => UNCASED,
        G::NonspacingMark => NONSPACING,
        G::SpacingMark | G::EnclosingMark => SPACING,
        G::DecimalNumber => DIGIT,
        G::LetterNumber | G::OtherNumber => NUMERAL,
        G::ConnectorPunctuation => CONNECTOR,
        G::DashPunctuation
        | G::OpenPunctuation
        | G::ClosePunctuation
        | G::InitialPunctuation
        | G::FinalPunctuation
        | G::OtherPunctuation => STOP,
        G::MathSymbol | G::CurrencySymbol | G::ModifierSymbol | G::OtherSymbol => SYMBOL,
        G::Control | G::Format | G::Surrogate | G::PrivateUse => CONTROL,
        _ => 0,
    };
    if c.is_whitespace() { class | SPACE } else { class }
}

const ASCII: [Class; 128] = {
    let mut table = [0; 128];
    let mut i = 0;
    while i < 128 {
        let byte = i as u8;
        table[i] = match byte {
            b'A'..=b'Z' => UPPER,
            b'a'..=b'z' => LOWER,
            b'0'..=b'9' => DIGIT,
            b' ' => SPACE,
            b'\t'..=b'\r' => SPACE | CONTROL,
            0..=31 | 127 => CONTROL,
            b'_' => CONNECTOR,
            b'$' | b'+' | b'<' | b'=' | b'>' | b'^' | b'`' | b'|' | b'~' => SYMBOL,
            _ => STOP,
        };
        i += 1;
    }
    table
};

#[cfg(test)]
thread_local! {
    /// Calls of [`char_at`] in this thread: the work that a scanner did.
    pub(crate) static LOOKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// The character at `at`, `None` at the end.
pub(crate) fn char_at(text: &[u8], at: usize) -> Option<Ch> {
    #[cfg(test)]
    LOOKS.set(LOOKS.get() + 1);
    let rest = text.get(at..)?;
    let &first = rest.first()?;
    if first < 0x80 {
        return Some(Ch { code: u32::from(first), len: 1, class: ASCII[usize::from(first)] });
    }
    let len = match first {
        0xC2..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xF4 => 4,
        _ => 1,
    };
    match rest.get(..len).and_then(|bytes| std::str::from_utf8(bytes).ok()) {
        Some(valid) => valid.chars().next().map(|c| Ch { code: u32::from(c), len, class: class_of(c) }),
        None => Some(Ch { code: 0xFFFD, len: 1, class: SYMBOL }),
    }
}

/// The characters of a text from its beginning.
pub(crate) fn chars(text: &[u8]) -> impl Iterator<Item = Ch> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let ch = char_at(text, at)?;
        at += ch.len;
        Some(ch)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ascii_table_agrees_with_the_categories() {
        for byte in 0..128u8 {
            assert_eq!(ASCII[usize::from(byte)], classify(char::from(byte)), "{byte:#x}");
        }
    }

    #[test]
    fn decodes_every_char_and_walks_over_stray_bytes() {
        for c in (0..=0x10FFFF).filter_map(char::from_u32) {
            let mut bytes = [0; 4];
            let text = c.encode_utf8(&mut bytes).as_bytes();
            let expected = Ch { code: u32::from(c), len: text.len(), class: class_of(c) };
            assert_eq!(char_at(text, 0), Some(expected));
            if text.len() > 1 {
                assert_eq!(
                    char_at(&text[..text.len() - 1], 0).map(|ch| (ch.code, ch.len)),
                    Some((0xFFFD, 1))
                );
            }
        }
        assert_eq!(char_at(b"\xED\xA0\x80", 0).map(|ch| ch.len), Some(1));
        assert_eq!(char_at(b"\xC0\x80", 0).map(|ch| ch.len), Some(1));
        assert_eq!(char_at(b"", 0), None);
        assert_eq!(chars(b"a\xFF\xC3\xA9").map(|ch| ch.code).collect::<Vec<_>>(), [0x61, 0xFFFD, 0xE9]);
    }
}
