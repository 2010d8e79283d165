//! Token ids against the reference engine and against the published vocabulary test set.

mod common;

use serde_json::Value;
use wootz_text::{Segment, Tokenizer};

fn ids(row: &Value) -> Vec<u32> {
    let number = |id: &Value| u32::try_from(id.as_u64().unwrap()).unwrap();
    row.as_array().unwrap().iter().map(number).collect()
}

/// Ids of `tests/golden/tokens.json`, measured with llama.cpp 11434; see the note beside the file.
#[test]
fn tokens_equal_those_of_the_reference_engine() {
    let golden: Value = serde_json::from_str(include_str!("golden/tokens.json")).unwrap();
    let strings: Vec<&str> =
        golden["strings"].as_array().unwrap().iter().map(|s| s.as_str().unwrap()).collect();
    let tokenizers = golden["tokenizers"].as_object().unwrap();
    assert_eq!((strings.len(), tokenizers.len()), (46, 10));
    let mut wrong = Vec::new();
    for (name, modes) in tokenizers {
        let tokenizer = common::tokenizer(name);
        for (mode, rows) in modes.as_object().unwrap() {
            for (text, row) in strings.iter().zip(rows.as_array().unwrap()) {
                let markup = [Segment::Markup(text)];
                let found = match mode.as_str() {
                    "default" => tokenizer.encode(&markup, true),
                    "no_bos" => tokenizer.encode(&markup, false),
                    "no_bos_no_special" => tokenizer.encode(&[Segment::Text(text.as_bytes())], false),
                    other => panic!("unknown mode {other}"),
                };
                if found != ids(row) {
                    wrong.push(format!("{name} {mode} {text:?}\n  found    {found:?}\n  expected {row}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn tokens_equal_the_vocabulary_test_set() {
    let mut sets = 0;
    let mut wrong = Vec::new();
    for name in common::names() {
        let input = common::file(&format!("{name}.gguf")).with_extension("gguf.inp");
        if !input.exists() {
            continue;
        }
        sets += 1;
        let input = std::fs::read_to_string(input).unwrap();
        let output = std::fs::read_to_string(common::file(&format!("{name}.gguf.out"))).unwrap();
        let tokenizer = common::tokenizer(&name);
        let texts: Vec<&str> = input.split_terminator("\n__ggml_vocab_test__\n").collect();
        let rows: Vec<&str> = output.split_terminator('\n').collect();
        assert_eq!(texts.len(), rows.len(), "{name}");
        for (text, row) in texts.iter().zip(rows) {
            let expected: Vec<u32> = row.split_whitespace().map(|id| id.parse().unwrap()).collect();
            let found = encode_words(&tokenizer, text);
            if found != expected {
                wrong.push(format!("{name} {text:?}\n  found    {found:?}\n  expected {expected:?}"));
            }
        }
    }
    assert!(sets >= 15, "only {sets} sets with expectations");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn encode_words(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(&[Segment::Text(text.as_bytes())], false)
}
