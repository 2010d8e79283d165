use proptest::prelude::*;
use serde_json::Value;

use super::class::{LOOKS, char_at};
use super::{ALL, Pieces, PreTokenizer};

/// Lengths in characters of the pieces of a text.
fn lengths(pre: &PreTokenizer, text: &str) -> Vec<usize> {
    let mut start = 0;
    let mut work = Pieces::default();
    let count = |&end: &usize| {
        let piece = &text[start..end];
        start = end;
        piece.chars().count()
    };
    pre.split(text.as_bytes(), &mut work).iter().map(count).collect()
}

/// The lengths come from the published regular expressions: `scripts/make-pretokenizer-goldens.py`.
#[test]
fn cuts_equal_those_of_the_published_expressions() {
    let golden: Value = serde_json::from_str(include_str!("../../tests/golden/pretokenizers.json")).unwrap();
    let texts = golden["strings"].as_array().unwrap();
    let rules = golden["lengths"].as_object().unwrap();
    assert!(texts.len() >= 150 && rules.len() >= 25);
    let mut wrong = Vec::new();
    for (name, rows) in rules {
        let pre = PreTokenizer::by_name(name).unwrap_or_else(|| panic!("{name} is unknown"));
        for (text, row) in texts.iter().zip(rows.as_array().unwrap()) {
            let (text, row) = (text.as_str().unwrap(), row.as_str().unwrap());
            let expected: Vec<usize> = row.split(' ').map(|len| len.parse().unwrap()).collect();
            let found = lengths(pre, text);
            if found != expected {
                wrong.push(format!("{name} {text:?}\n  found    {found:?}\n  expected {expected:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn names_are_unique_and_found() {
    let names = PreTokenizer::names();
    assert!(names.windows(2).all(|pair| pair[0] < pair[1]), "{names:?}");
    for name in names {
        assert!(PreTokenizer::by_name(name).is_some_and(|pre| pre.names.contains(&name)));
    }
    assert!(PreTokenizer::by_name("gpt-5").is_none());
}

/// Bytes in which letters, digits, spaces, marks, Han, stray bytes and markup of every rule meet.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    const ATOMS: &[&[u8]] = &[
        b" ",
        b"\n",
        b"\r\n",
        b"a",
        b"Bc",
        b"'",
        b"'ll",
        b"7",
        b"123",
        b".",
        b"/",
        b"\xC3",
        b"\xFF",
        "é".as_bytes(),
        "\u{301}".as_bytes(),
        "漢".as_bytes(),
        "\u{3000}".as_bytes(),
        "½".as_bytes(),
        b"IMGIMGABZ",
        b"<sentinel:1>",
    ];
    let atom = prop::sample::select(ATOMS);
    prop_oneof![
        prop::collection::vec(atom, 0..40).prop_map(|atoms| atoms.concat()),
        prop::collection::vec(any::<u8>(), 0..60),
    ]
}

/// Characters that the pre-tokenizer looks at to cut a text.
fn looks(pre: &PreTokenizer, text: &[u8]) -> u64 {
    let before = LOOKS.get();
    pre.split(text, &mut Pieces::default());
    LOOKS.get() - before
}

#[test]
fn work_grows_linearly_with_the_text() {
    let unit = [
        "a",
        "A",
        "aA",
        "文",
        "文A",
        "\u{301}",
        "\u{301}A",
        "1",
        "²1",
        "1a",
        "'",
        "'l",
        "'\u{17F}",
        " ",
        " \n",
        "\n ",
        "\r",
        "\t",
        "\u{3000}",
        ".",
        " .",
        "./",
        "_",
        "€",
        "\0",
        "IMGIMG",
        "IMGIMGA",
        "<sentinel:",
        "<sentinel:1",
        "<",
        "a ",
        " a",
        "a b",
        "한",
        "カ",
        "\u{FFFD}",
    ];
    for pre in ALL {
        for unit in unit {
            let text = unit.repeat(40_000);
            let half = looks(pre, &text.as_bytes()[..unit.len() * 20_000]);
            let all = looks(pre, text.as_bytes());
            // Up to six steps, each of which may look at a character a few times.
            let chars = text.chars().count() as u64;
            assert!(all <= 40 * chars, "{:?} {unit:?}: {all} looks at {chars} characters", pre.names);
            assert!(all <= 2 * half + half / 50, "{:?} {unit:?}: {half} then {all}", pre.names);
        }
    }
}

proptest! {
    #[test]
    fn pieces_cover_the_text_and_keep_characters_whole(text in bytes()) {
        let mut work = Pieces::default();
        for pre in ALL {
            let mut start = 0;
            for &end in pre.split(&text, &mut work) {
                prop_assert!(start < end, "{:?} cuts off nothing", pre.names);
                let mut at = start;
                while at < end {
                    at += char_at(&text, at).unwrap().len;
                }
                prop_assert_eq!(at, end);
                start = end;
            }
            prop_assert_eq!(start, text.len());
        }
    }
}
