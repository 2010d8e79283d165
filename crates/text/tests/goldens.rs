//! Token ids against the reference engine and against the published vocabulary test set.

mod common;

use serde_json::Value;
use wootz_text::{Segment, Tokenizer};

fn ids(row: &Value) -> Vec<u32> {
    let number = |id: &Value| u32::try_from(id.as_u64().unwrap()).unwrap();
    row.as_array().unwrap().iter().map(number).collect()
}

/// The ids come from llama.cpp: `scripts/make-token-goldens.py`.
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

/// Checksums of the ids that the `tokenizers` and `sentencepiece` packages give for random strings: see
/// `scripts/make-encoding-goldens.py`, which also prints the ids of one vocabulary.
#[test]
fn tokens_equal_those_of_independent_tokenizers() {
    let strings: Value = serde_json::from_str(include_str!("golden/pretokenizers.json")).unwrap();
    let golden: Value = serde_json::from_str(include_str!("golden/encodings.json")).unwrap();
    let golden = golden.as_object().unwrap();
    assert!(golden.len() >= 18, "only {} vocabularies", golden.len());
    let mut wrong = Vec::new();
    for (name, sums) in golden {
        let tokenizer = common::tokenizer(name);
        let texts = strings["strings"].as_array().unwrap();
        let sums = sums.as_array().unwrap();
        assert_eq!(texts.len(), sums.len(), "{name}");
        for (text, sum) in texts.iter().zip(sums) {
            let found = encode_words(&tokenizer, text.as_str().unwrap());
            if sum.as_str() != Some(&checksum(&found)) {
                wrong.push(format!("{name} {text}\n  found {found:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong.join("\n"));
}

/// FNV-1a over the ids as four bytes each.
fn checksum(ids: &[u32]) -> String {
    let bytes = ids.iter().flat_map(|id| id.to_le_bytes());
    let step = |sum: u64, byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3);
    format!("{}:{:016x}", ids.len(), bytes.fold(0xCBF2_9CE4_8422_2325, step))
}

fn encode_words(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(&[Segment::Text(text.as_bytes())], false)
}
