//! One step of pre-tokenization: cuts a fragment into pieces without losing a byte.

use super::class::{Ch, DIGIT, LETTER, MARK, NUMBER, PUNCT, SPACE, SYMBOL, char_at};
use super::ranges;
use super::words::{Memo, Words, run, up_to};

/// A step; every regular expression named here isolates its matches, and what lies between them stays whole.
pub(crate) enum Stage {
    /// The alternation of words, numbers, punctuation and white space.
    Words(Words),
    /// `[\r\n]`
    EachNewline,
    /// `\p{N}`
    EachNumber,
    /// `\p{N}+`
    NumberRuns,
    /// `\p{N}{1,3}`
    NumbersUpTo3,
    /// `[0-9][0-9][0-9]`
    ThreeAsciiDigits,
    /// `[\p{P}$+<=>^~|]+`, with the backtick if set.
    PunctRuns { backtick: bool },
    /// `[\p{P}!-/:-@\[-`{-~]`
    EachPunct,
    /// `\s?\p{L}+`
    SpacedLetters,
    /// `\s?\p{P}+`
    SpacedPunct,
    /// `\s?[…]+` over a table of ranges.
    SpacedRanges(ranges::Table),
    /// `\s+$`
    TrailingSpace,
    /// `[…]+|[…]+|…` over tables of ranges.
    RangeRuns(&'static [ranges::Table]),
    /// `[^\n]+|[\n]+`
    Lines,
    /// ` ?[^(\s|.,!?…。，、।۔،)]+`
    Phrases,
    /// `\d{1,3}(?=(?:\d{3})*\b)`
    DigitGroupsBeforeBoundary,
    /// Runs of `\p{N}` in threes, counted from the right.
    NumberGroups,
    /// `(?=(\d{3})+(?!\d))`: cuts, and isolates nothing.
    DigitCuts,
    /// `<sentinel:[0-9]+>`
    Sentinels,
    /// `(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z`
    ImageTokens,
    /// `([\t\n]|    |  )`
    Indents,
}

impl Stage {
    /// Cuts `text[start..end]` and appends the end of each piece to `out`.
    pub(crate) fn split(&self, text: &[u8], start: usize, end: usize, out: &mut Vec<usize>) {
        let text = &text[..end];
        let each = |wanted: fn(Ch) -> bool| {
            move |at| char_at(text, at).filter(|&ch| wanted(ch)).map(|ch| at + ch.len)
        };
        let spaced = |at: usize, wanted: &dyn Fn(Ch) -> bool| {
            let after = at + char_at(text, at).filter(|ch| ch.is(SPACE)).map_or(0, |ch| ch.len);
            // A space that is itself wanted may start the run.
            [after, at].into_iter().find_map(|from| Some(run(text, from, wanted)).filter(|&e| e > from))
        };
        match self {
            Stage::Words(words) => {
                let mut memo = Memo::default();
                isolate(text, start, out, |at| words.matches(text, at, &mut memo));
            }
            Stage::EachNewline => isolate(text, start, out, each(Ch::is_newline)),
            Stage::EachNumber => isolate(text, start, out, each(|ch| ch.is(NUMBER))),
            Stage::NumberRuns => isolate(text, start, out, |at| {
                Some(run(text, at, |ch| ch.is(NUMBER))).filter(|&end| end > at)
            }),
            Stage::NumbersUpTo3 => isolate(text, start, out, |at| up_to(text, at, 3, |ch| ch.is(NUMBER))),
            Stage::ThreeAsciiDigits => isolate(text, start, out, |at| {
                let digits = text.get(at..at + 3)?;
                digits.iter().all(u8::is_ascii_digit).then_some(at + 3)
            }),
            Stage::PunctRuns { backtick } => isolate(text, start, out, |at| {
                let wanted = |ch: Ch| {
                    let ascii_symbol = ch.code < 0x80 && ch.is(SYMBOL);
                    ch.is(PUNCT) || (ascii_symbol && (*backtick || ch.code != u32::from(b'`')))
                };
                Some(run(text, at, wanted)).filter(|&end| end > at)
            }),
            Stage::EachPunct => {
                let wanted = |ch: Ch| ch.is(PUNCT) || (ch.code < 0x80 && ch.is(SYMBOL));
                isolate(text, start, out, each(wanted));
            }
            Stage::SpacedLetters => isolate(text, start, out, |at| spaced(at, &|ch| ch.is(LETTER))),
            Stage::SpacedPunct => isolate(text, start, out, |at| spaced(at, &|ch| ch.is(PUNCT))),
            Stage::SpacedRanges(table) => {
                isolate(text, start, out, |at| spaced(at, &|ch| ranges::contains(table, ch.code)));
            }
            Stage::TrailingSpace => trailing_space(text, start, out),
            Stage::RangeRuns(tables) => isolate(text, start, out, |at| {
                tables.iter().find_map(|table| {
                    let end = run(text, at, |ch| ranges::contains(table, ch.code));
                    (end > at).then_some(end)
                })
            }),
            Stage::Lines => isolate(text, start, out, |at| {
                let newline = text[at] == b'\n';
                Some(run(text, at, |ch| (ch.code == 0x0A) == newline))
            }),
            Stage::Phrases => isolate(text, start, out, |at| {
                let from = at + usize::from(text[at] == b' ');
                Some(run(text, from, in_phrase)).filter(|&end| end > from)
            }),
            Stage::DigitGroupsBeforeBoundary => {
                number_groups(text, start, out, DIGIT, |next| {
                    !next.is_some_and(|ch| ch.is(LETTER | MARK | NUMBER) || ch.is(super::class::CONNECTOR))
                });
            }
            Stage::NumberGroups => number_groups(text, start, out, NUMBER, |_| true),
            Stage::DigitCuts => digit_cuts(text, start, out),
            Stage::Sentinels => isolate(text, start, out, |at| sentinel(text, at)),
            Stage::ImageTokens => isolate(text, start, out, |at| image_token(text, at)),
            Stage::Indents => isolate(text, start, out, |at| match &text[at..] {
                [b'\t' | b'\n', ..] => Some(at + 1),
                [b' ', b' ', b' ', b' ', ..] => Some(at + 4),
                [b' ', b' ', ..] => Some(at + 2),
                _ => None,
            }),
        }
    }
}

/// Appends the ends of the matches and of the gaps between them.
fn isolate(text: &[u8], start: usize, out: &mut Vec<usize>, mut matches: impl FnMut(usize) -> Option<usize>) {
    let (mut gap, mut at) = (start, start);
    while let Some(ch) = char_at(text, at) {
        let Some(end) = matches(at) else {
            at += ch.len;
            continue;
        };
        if gap < at {
            out.push(at);
        }
        out.push(end);
        (gap, at) = (end, end);
    }
    if gap < at {
        out.push(at);
    }
}

fn trailing_space(text: &[u8], start: usize, out: &mut Vec<usize>) {
    let (mut at, mut space) = (start, start);
    while let Some(ch) = char_at(text, at) {
        at += ch.len;
        if !ch.is(SPACE) {
            space = at;
        }
    }
    if start < space {
        out.push(space);
    }
    if space < at {
        out.push(at);
    }
}

fn in_phrase(ch: Ch) -> bool {
    const BARRED: &str = "(|.,!?…。，、।۔،)";
    !ch.is(SPACE) && !BARRED.chars().any(|c| u32::from(c) == ch.code)
}

/// Isolates runs of `class` in threes, the first group shorter, where `wanted` accepts what follows the run.
fn number_groups(
    text: &[u8],
    start: usize,
    out: &mut Vec<usize>,
    class: u16,
    wanted: impl Fn(Option<Ch>) -> bool,
) {
    let (mut gap, mut at) = (start, start);
    while let Some(ch) = char_at(text, at) {
        if !ch.is(class) {
            at += ch.len;
            continue;
        }
        let run_start = at;
        let mut count = 0usize;
        at = run(text, at, |ch| ch.is(class));
        super::class::chars(&text[run_start..at]).for_each(|_| count += 1);
        if !wanted(char_at(text, at)) {
            continue;
        }
        if gap < run_start {
            out.push(run_start);
        }
        let mut end = run_start;
        for ch in super::class::chars(&text[run_start..at]) {
            end += ch.len;
            count -= 1;
            if count.is_multiple_of(3) {
                out.push(end);
            }
        }
        gap = at;
    }
    if gap < at {
        out.push(at);
    }
}

fn digit_cuts(text: &[u8], start: usize, out: &mut Vec<usize>) {
    let (mut gap, mut at) = (start, start);
    while let Some(ch) = char_at(text, at) {
        if !ch.is(DIGIT) {
            at += ch.len;
            continue;
        }
        let end = run(text, at, |ch| ch.is(DIGIT));
        let mut left = super::class::chars(&text[at..end]).count();
        for ch in super::class::chars(&text[at..end]) {
            if left.is_multiple_of(3) && gap < at {
                out.push(at);
                gap = at;
            }
            left -= 1;
            at += ch.len;
        }
    }
    if gap < at {
        out.push(at);
    }
}

fn sentinel(text: &[u8], at: usize) -> Option<usize> {
    let digits = text[at..].strip_prefix(b"<sentinel:")?;
    let count = digits.iter().take_while(|b| b.is_ascii_digit()).count();
    let end = text.len() - digits.len() + count;
    (count > 0 && text.get(end) == Some(&b'>')).then_some(end + 1)
}

fn image_token(text: &[u8], at: usize) -> Option<usize> {
    let code = text[at..].strip_prefix(b"IMGIMG")?;
    let count = code.iter().take_while(|b| (b'A'..=b'I').contains(b)).count();
    let end = text.len() - code.len() + count;
    ((1..=4).contains(&count) && text.get(end) == Some(&b'Z')).then_some(end + 1)
}
