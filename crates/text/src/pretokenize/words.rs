//! The alternation that most tokenizers split words with, as a set of choices.
//!
//! Published as a regular expression per model; every variant tries, in this order: a contraction, a word, a
//! number, a run of punctuation, white space up to the last line break, other white space.

use super::class::{Ch, LETTER, LOWER, MARK, NUMBER, PUNCT, SPACE, SYMBOL, UNCASED, UPPER, char_at};

/// Choices of one model family.
#[derive(Clone, Copy)]
pub(crate) struct Words {
    pub(crate) contraction: Contraction,
    pub(crate) word: Word,
    pub(crate) number: Number,
    pub(crate) punct: Punct,
    pub(crate) tail: Tail,
    pub(crate) newlines: Newlines,
    pub(crate) blanks: Blanks,
}

/// `'s`, `'t`, `'re`, `'ve`, `'m`, `'ll`, `'d`.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Contraction {
    None,
    /// Lower case only, a piece of its own.
    Exact,
    /// Any case, a piece of its own.
    AnyCase,
    /// Any case, at the end of a word.
    Suffix,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Word {
    /// ` ?\p{L}+`
    Spaced,
    /// `[^\r\n\p{L}\p{N}]?\p{L}+`
    Letters,
    /// `[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+`
    LettersMarks,
    /// `[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+`
    Joined,
    /// `[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+`
    Phrase,
    /// `[^\r\n\p{L}\p{N}]?[Lu Lt Lm Lo M]*[Ll Lm Lo M]+` or `[^\r\n\p{L}\p{N}]?[Lu Lt Lm Lo M]+[Ll Lm Lo M]*`
    Cased,
    /// `[\p{Han}]+`, then [`Word::Cased`] without Han.
    HanThenCased,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Number {
    /// Numbers are no alternative (an earlier stage took them).
    None,
    /// ` ?\p{N}+`
    Spaced,
    /// `\p{N}+`
    Run,
    /// `\p{N}{1,n}`
    UpTo(usize),
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Punct {
    /// ` ?[^\s\p{L}\p{N}]+`
    Other,
    /// ` ?[^\s\p{L}\p{M}\p{N}]+`
    OtherNoMarks,
    /// ` ?[\p{P}\p{S}]+`
    Listed,
}

/// What may follow punctuation.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Tail {
    None,
    /// `[\r\n]*`
    Newlines,
    /// `[\r\n/]*`
    NewlinesSlashes,
    /// `[\r\n/]?`
    NewlineSlash,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Newlines {
    /// No alternative of their own.
    None,
    /// `\s*[\r\n]+`
    WithSpace,
    /// `[\r\n]`
    Single,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Blanks {
    /// `\s+(?!\S)|\s+`
    Run,
    /// `\s{512}(?!\S)|\s{256}(?!\S)|…|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}`
    Powers,
}

/// State within one fragment, so that no run is scanned twice.
#[derive(Default)]
pub(crate) struct Memo {
    /// White space before this offset holds no line break.
    blank_until: usize,
}

/// End of the longest run of characters that `wanted` accepts.
pub(crate) fn run(text: &[u8], mut at: usize, wanted: impl Fn(Ch) -> bool) -> usize {
    while let Some(ch) = char_at(text, at).filter(|&ch| wanted(ch)) {
        at += ch.len;
    }
    at
}

fn is_at(text: &[u8], at: usize, classes: u16) -> bool {
    char_at(text, at).is_some_and(|ch| ch.is(classes))
}

impl Words {
    /// End of the piece that starts at `at`, if one of the alternatives matches there.
    pub(crate) fn matches(&self, text: &[u8], at: usize, memo: &mut Memo) -> Option<usize> {
        let ch = char_at(text, at)?;
        let early = match self.contraction {
            Contraction::Exact => contraction(text, at, |ch| ch.code),
            Contraction::AnyCase => contraction(text, at, Ch::folded),
            Contraction::None | Contraction::Suffix => None,
        };
        early
            .or_else(|| self.word(text, at, ch))
            .or_else(|| self.number(text, at, ch))
            .or_else(|| self.punct(text, at, ch))
            .or_else(|| self.space(text, at, ch, memo))
    }

    fn word(&self, text: &[u8], at: usize, ch: Ch) -> Option<usize> {
        let lead = |barred: u16, word: u16| {
            let body = if !ch.is_newline() && !ch.is(barred) { at + ch.len } else { at };
            // Only where nothing follows the lead may it be the word itself.
            let from = if is_at(text, body, word) { body } else { at };
            Some(run(text, from, |ch| ch.is(word))).filter(|&end| end > from)
        };
        match self.word {
            Word::Spaced => spaced(text, at, ch, |ch| ch.is(LETTER)),
            Word::Letters => lead(LETTER | NUMBER, LETTER),
            Word::LettersMarks => lead(LETTER | NUMBER, LETTER | MARK),
            Word::Joined => {
                let letter = |ch: Ch| ch.code < 0x80 && ch.is(LETTER);
                let end = run(text, at + ch.len, letter);
                if ch.code < 0x80 && ch.is(PUNCT | SYMBOL) && end > at + ch.len {
                    return Some(end);
                }
                lead(LETTER | PUNCT | SYMBOL, LETTER | MARK)
            }
            Word::Phrase => {
                let from = if ch.is_newline() || ch.is(LETTER | NUMBER) { at } else { at + ch.len };
                phrase(text, from)
            }
            Word::Cased => self.cased(text, at, ch, |_| true),
            Word::HanThenCased => {
                let han = run(text, at, |ch| is_han(ch.code));
                if han > at {
                    return Some(han);
                }
                self.cased(text, at, ch, |ch| !is_han(ch.code))
            }
        }
    }

    /// A word that ends where lower case turns to upper case.
    fn cased(&self, text: &[u8], at: usize, ch: Ch, allowed: impl Fn(Ch) -> bool) -> Option<usize> {
        let head = |ch: Ch| ch.is(UPPER | UNCASED | MARK) && allowed(ch);
        let tail = |ch: Ch| ch.is(LOWER | UNCASED | MARK) && allowed(ch);
        let has_lead = !ch.is_newline() && !ch.is(LETTER | NUMBER);
        let from = if has_lead { at + ch.len } else { at };

        // The head takes all it can; then it gives back as little as lets the tail have one character.
        let mut head_end = from;
        let mut given_back = None;
        while let Some(ch) = char_at(text, head_end).filter(|&ch| head(ch)) {
            head_end += ch.len;
            if tail(ch) {
                given_back = Some(head_end);
            }
        }
        let end = run(text, head_end, tail);
        let end = if end > head_end {
            end
        } else if let Some(end) = given_back {
            end
        } else if has_lead && head(ch) {
            // The lead, a mark, is a word without what follows.
            from
        } else if head_end > from {
            head_end
        } else {
            return None;
        };
        let suffix =
            (self.contraction == Contraction::Suffix).then(|| contraction(text, end, Ch::folded)).flatten();
        Some(suffix.unwrap_or(end))
    }

    fn number(&self, text: &[u8], at: usize, ch: Ch) -> Option<usize> {
        match self.number {
            Number::None => None,
            Number::Spaced => spaced(text, at, ch, |ch| ch.is(NUMBER)),
            Number::Run => ch.is(NUMBER).then(|| run(text, at, |ch| ch.is(NUMBER))),
            Number::UpTo(most) => up_to(text, at, most, |ch| ch.is(NUMBER)),
        }
    }

    fn punct(&self, text: &[u8], at: usize, ch: Ch) -> Option<usize> {
        let end = match self.punct {
            Punct::Other => spaced(text, at, ch, |ch| !ch.is(SPACE | LETTER | NUMBER)),
            Punct::OtherNoMarks => spaced(text, at, ch, |ch| !ch.is(SPACE | LETTER | MARK | NUMBER)),
            Punct::Listed => spaced(text, at, ch, |ch| ch.is(PUNCT | SYMBOL)),
        }?;
        let slash = |ch: Ch| ch.code == u32::from(b'/');
        Some(match self.tail {
            Tail::None => end,
            Tail::Newlines => run(text, end, Ch::is_newline),
            Tail::NewlinesSlashes => run(text, end, |ch| ch.is_newline() || slash(ch)),
            Tail::NewlineSlash => up_to(text, end, 1, |ch| ch.is_newline() || slash(ch)).unwrap_or(end),
        })
    }

    fn space(&self, text: &[u8], at: usize, ch: Ch, memo: &mut Memo) -> Option<usize> {
        if !ch.is(SPACE) {
            return None;
        }
        if self.newlines == Newlines::Single && ch.is_newline() {
            return Some(at + ch.len);
        }
        if self.newlines == Newlines::WithSpace && at >= memo.blank_until {
            let mut end = at;
            let mut line_end = None;
            while let Some(ch) = char_at(text, end).filter(|ch| ch.is(SPACE)) {
                end += ch.len;
                if ch.is_newline() {
                    line_end = Some(end);
                }
            }
            memo.blank_until = end;
            if line_end.is_some() {
                return line_end;
            }
        }
        match self.blanks {
            Blanks::Run => {
                let mut last = at;
                let mut end = at;
                while let Some(ch) = char_at(text, end).filter(|ch| ch.is(SPACE)) {
                    last = end;
                    end += ch.len;
                }
                // The last one before a word belongs to the word.
                Some(if end == text.len() || last == at { end } else { last })
            }
            Blanks::Powers => Some(power_of_blanks(text, at)),
        }
    }
}

/// ` ?[wanted]+`
fn spaced(text: &[u8], at: usize, ch: Ch, wanted: impl Fn(Ch) -> bool) -> Option<usize> {
    let from = if ch.code == u32::from(b' ') { at + 1 } else { at };
    Some(run(text, from, wanted)).filter(|&end| end > from)
}

/// `[wanted]{1,most}`
pub(crate) fn up_to(text: &[u8], at: usize, most: usize, wanted: impl Fn(Ch) -> bool) -> Option<usize> {
    let mut end = at;
    for _ in 0..most {
        match char_at(text, end).filter(|&ch| wanted(ch)) {
            Some(ch) => end += ch.len,
            None => break,
        }
    }
    Some(end).filter(|&end| end > at)
}

fn contraction(text: &[u8], at: usize, letter: impl Fn(Ch) -> u32) -> Option<usize> {
    if text.get(at) != Some(&b'\'') {
        return None;
    }
    let first = char_at(text, at + 1)?;
    let after = at + 1 + first.len;
    let one = u8::try_from(letter(first)).ok()?;
    if matches!(one, b's' | b't' | b'm' | b'd') {
        return Some(after);
    }
    let second = char_at(text, after)?;
    let two = u8::try_from(letter(second)).ok()?;
    matches!([one, two], [b'r', b'e'] | [b'v', b'e'] | [b'l', b'l']).then_some(after + second.len)
}

fn phrase(text: &[u8], from: usize) -> Option<usize> {
    let mut end = from;
    while let Some(ch) = char_at(text, end) {
        let joins = ch.is(LETTER)
            || (end > from && ch.is(MARK))
            || (end > from && ch.code == u32::from(b' ') && is_at(text, end + 1, LETTER));
        if !joins {
            break;
        }
        end += ch.len;
    }
    Some(end).filter(|&end| end > from)
}

fn power_of_blanks(text: &[u8], at: usize) -> usize {
    let mut ends = Vec::with_capacity(513);
    let mut end = at;
    while let Some(ch) = char_at(text, end).filter(|ch| ch.is(SPACE) && ends.len() < 513) {
        end += ch.len;
        ends.push(end);
    }
    // The last one before a word belongs to the word.
    let free = if end == text.len() || ends.len() == 513 { ends.len() } else { ends.len() - 1 };
    let count = match free {
        0 => 1,
        1..4 => free.min(2),
        _ => 1 << free.ilog2().min(9),
    };
    ends[count - 1]
}

/// Whether the script of a code point is Han (Unicode `Scripts.txt`).
fn is_han(code: u32) -> bool {
    matches!(code,
        0x2E80..=0x2E99 | 0x2E9B..=0x2EF3 | 0x2F00..=0x2FD5 | 0x3005 | 0x3007 | 0x3021..=0x3029
        | 0x3038..=0x303B | 0x3400..=0x4DBF | 0x4E00..=0x9FFF | 0xF900..=0xFA6D | 0xFA70..=0xFAD9
        | 0x16FE2..=0x16FE3 | 0x16FF0..=0x16FF6 | 0x20000..=0x2A6DF | 0x2A700..=0x2B81D
        | 0x2B820..=0x2CEAD | 0x2CEB0..=0x2EBE0 | 0x2EBF0..=0x2EE5D | 0x2F800..=0x2FA1D
        | 0x30000..=0x3134A | 0x31350..=0x33479)
}
