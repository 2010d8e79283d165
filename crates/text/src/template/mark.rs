//! Which characters of a rendered prompt came from outside the template.
//!
//! A template may trim, split, slice and join what it is given, so the origin of a character
//! cannot be had from positions. Instead the template is rendered a second time with strings in
//! which every character from outside is followed by a mark: one character that occurs nowhere
//! else. Marks travel with the characters through every string operation. The second text
//! without its marks must equal the first; then the marks tell the origin of every character.
//!
//! - White space gets no mark, so that trimming works; it counts as outside text when both its
//!   neighbours do.
//! - Words that consist only of letters, digits, `_`, `-` and `.` get none either: templates
//!   compare them (`"function"`, `"string"`), and they cannot be a special token.
//! - An assistant's own reasoning tags get none where the template knows them: templates split
//!   earlier answers there.
//! - If a template looks so closely that marks change its output, only what is dangerous is
//!   marked: whole special tokens in any letter case, and ends of a string that could become one
//!   with what the template puts beside it. A template that inspects even those sees them broken.

use crate::stop::{Automaton, Cursor};

/// How much of the outside text is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// Nothing: the plain rendering.
    Nothing,
    /// Every character but white space.
    Everything,
    /// Special tokens and what could become one.
    Dangerous,
}

/// Finds what looks like a special token.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    whole: Automaton,
    /// The tokens read backwards, for beginnings of a string that could end a token.
    backward: Automaton,
    longest: usize,
}

impl Guard {
    pub(super) fn new(special: &[String]) -> Self {
        let lower: Vec<Vec<u8>> = special.iter().map(|t| t.to_ascii_lowercase().into_bytes()).collect();
        let reversed = lower.iter().map(|t| t.iter().rev().copied().collect::<Vec<u8>>());
        Self {
            whole: Automaton::new(&lower),
            backward: Automaton::new(reversed),
            longest: lower.iter().map(Vec::len).max().unwrap_or(0),
        }
    }

    /// Dangerous byte ranges of a string, by their ends.
    fn ranges(&self, text: &str) -> Vec<std::ops::Range<usize>> {
        let bytes = text.as_bytes();
        let mut found = Vec::new();
        let mut at = Cursor::default();
        for (i, byte) in bytes.iter().enumerate() {
            at = self.whole.step(at, byte.to_ascii_lowercase());
            if let Some(hit) = self.whole.hit(at) {
                found.push(i + 1 - hit.len..i + 1);
            }
        }
        found.push(bytes.len() - self.whole.open(at)..bytes.len());
        let mut at = Cursor::default();
        for byte in bytes[..bytes.len().min(self.longest)].iter().rev() {
            at = self.backward.step(at, byte.to_ascii_lowercase());
        }
        found.push(0..self.backward.open(at));
        found
    }
}

/// Puts marks into strings.
pub(super) struct Marker<'a> {
    pub(super) level: Level,
    pub(super) mark: char,
    pub(super) guard: &'a Guard,
}

impl Marker<'_> {
    /// Marks a string from outside, except for the `trusted` substrings.
    pub(super) fn text(&self, text: &str, trusted: &[&str]) -> String {
        if self.level == Level::Nothing {
            return text.to_owned();
        }
        let mut out = String::with_capacity(text.len() * 2);
        let mut rest = text;
        while let Some((at, tag)) =
            trusted.iter().filter_map(|&tag| Some((rest.find(tag)?, tag))).min_by_key(|found| found.0)
        {
            self.append(&mut out, &rest[..at]);
            out.push_str(tag);
            rest = &rest[at + tag.len()..];
        }
        self.append(&mut out, rest);
        out
    }

    /// Marks the key of a map; plain words stay, as templates look them up.
    pub(super) fn key(&self, key: &str) -> String {
        self.text(key, &[])
    }

    fn append(&self, out: &mut String, text: &str) {
        let everything = self.level == Level::Everything && !is_word(text);
        let mut ranges = if everything { Vec::new() } else { self.guard.ranges(text) };
        ranges.sort_by_key(|range| range.start);
        let mut ranges = ranges.into_iter().peekable();
        let mut until = 0;
        for (i, c) in text.char_indices() {
            while let Some(range) = ranges.next_if(|range| range.start < i + c.len_utf8()) {
                until = until.max(range.end);
            }
            out.push(c);
            if (everything || i < until) && !c.is_whitespace() {
                out.push(self.mark);
            }
        }
    }
}

fn is_word(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'))
}

/// A character that occurs in none of the texts.
pub(super) fn unused(texts: &[&str]) -> Option<char> {
    // DEL takes one byte and no template or JSON writer changes it; then the noncharacters.
    let candidates = std::iter::once('\u{7f}').chain('\u{fdd0}'..='\u{fdef}');
    candidates.into_iter().find(|&c| texts.iter().all(|text| !text.contains(c)))
}

/// A rendered text without its marks, and for every character whether it came from outside.
pub(super) fn unmark(rendered: &str, mark: char) -> (String, Vec<bool>) {
    let mut text = String::with_capacity(rendered.len());
    let mut outside = Vec::with_capacity(rendered.len());
    for c in rendered.chars() {
        if c == mark {
            if let Some(last) = outside.last_mut() {
                *last = true;
            }
        } else {
            text.push(c);
            outside.push(false);
        }
    }
    // White space between two outside characters is outside text too.
    let mut last = false;
    let mut gap = 0;
    for (i, c) in text.chars().enumerate() {
        if c.is_whitespace() && !outside[i] {
            gap += 1;
            continue;
        }
        if last && outside[i] {
            outside[i - gap..i].fill(true);
        }
        last = outside[i];
        gap = 0;
    }
    (text, outside)
}
