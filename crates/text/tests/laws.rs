//! Laws that need no expected ids, on real vocabularies of every kind.

mod common;

use std::collections::HashMap;
use std::sync::LazyLock;

use proptest::prelude::*;
use wootz_text::{Segment, Tokenizer};

/// A vocabulary of each kind, and whether decoding gives back what was encoded.
const KINDS: [(&str, Lossless); 8] = [
    ("smollm2", Lossless::Bytes),
    ("ggml-vocab-llama-bpe", Lossless::Bytes),
    ("ggml-vocab-gpt-neox", Lossless::Bytes),
    ("ggml-vocab-llama-spm", Lossless::ButUnderline),
    ("gemma3-270m", Lossless::ButUnderline),
    ("ggml-vocab-gemma-4", Lossless::ButUnderline),
    ("ggml-vocab-bert-bge", Lossless::No),
    ("ggml-vocab-nomic-bert-moe", Lossless::No),
];

#[derive(Clone, Copy, PartialEq)]
enum Lossless {
    /// All bytes come back.
    Bytes,
    /// All but `▁`, which becomes a space.
    ButUnderline,
    /// The text is normalized.
    No,
}

static TOKENIZERS: LazyLock<HashMap<&str, Tokenizer>> =
    LazyLock::new(|| KINDS.iter().map(|&(name, _)| (name, common::tokenizer(name))).collect());

/// Words, markup of several models, white space, scripts, stray bytes.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    const ATOMS: &[&str] = &[
        "Hello",
        " world",
        "  ",
        "\n",
        "\n\n\n",
        "\t",
        "é",
        "漢字",
        "नमस्ते",
        "😀",
        "<|im_end|>",
        "<|im_start|>",
        "</s>",
        "<s>",
        "<bos>",
        "<end_of_turn>",
        "<|eot_id|>",
        "<|endoftext|>",
        "<unk>",
        "[SEP]",
        "<0x0A>",
        "'ll",
        "1234",
        "!?",
        "e\u{301}",
        "\u{a0}",
        "\0",
    ];
    let atom = prop_oneof![
        4 => prop::sample::select(ATOMS).prop_map(|atom| atom.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 1..6),
    ];
    prop::collection::vec(atom, 0..16).prop_map(|atoms| atoms.concat())
}

fn text(tokenizer: &Tokenizer, bytes: &[u8]) -> Vec<u32> {
    tokenizer.encode(&[Segment::Text(bytes)], false)
}

#[test]
fn complete_vocabularies_spell_every_byte() {
    for name in ["ggml-vocab-llama-bpe", "ggml-vocab-gemma-4", "ggml-vocab-llama-spm", "gemma3-270m"] {
        let tokenizer = &TOKENIZERS[name];
        for byte in 0..=255 {
            assert_eq!(tokenizer.decode(&text(tokenizer, &[byte]), false), [byte], "{name} {byte:#x}");
        }
    }
}

proptest! {
    #[test]
    fn decoding_gives_back_the_text(input in bytes()) {
        for (name, lossless) in KINDS {
            let tokenizer = &TOKENIZERS[name];
            let ids = text(tokenizer, &input);
            let decoded = tokenizer.decode(&ids, false);
            let with_bos = tokenizer.encode(&[Segment::Text(&input)], true);
            prop_assert_eq!(&tokenizer.decode(&with_bos, false), &decoded, "{}", name);
            if lossless == Lossless::No {
                continue;
            }
            let underline = "▁".as_bytes();
            if lossless == Lossless::ButUnderline && input.windows(3).any(|w| w == underline) {
                continue;
            }
            // A byte that the vocabulary cannot spell comes back as U+FFFD or not at all.
            let spelled = input.iter().map(|&byte| tokenizer.decode(&text(tokenizer, &[byte]), false));
            prop_assert_eq!(&decoded, &spelled.collect::<Vec<_>>().concat(), "{}", name);
        }
    }

    #[test]
    fn words_never_give_control_tokens(input in bytes()) {
        for (name, _) in KINDS {
            let tokenizer = &TOKENIZERS[name];
            for id in text(tokenizer, &input) {
                let unknown = tokenizer.special_ids().unknown == Some(id);
                prop_assert!(unknown || !tokenizer.is_control(id), "{} {}", name, id);
            }
        }
    }

    #[test]
    fn borders_of_segments_change_nothing_but_markup(parts in prop::collection::vec(bytes(), 0..4)) {
        for (name, _) in KINDS {
            let tokenizer = &TOKENIZERS[name];
            let segments: Vec<_> = parts.iter().map(|part| Segment::Text(part)).collect();
            prop_assert_eq!(tokenizer.encode(&segments, false), text(tokenizer, &parts.concat()), "{}", name);
        }
    }

    #[test]
    fn markup_between_words_is_found_and_words_stay_words(before in bytes(), after in bytes()) {
        for (name, markup) in [("smollm2", "<|im_end|>"), ("gemma3-270m", "<end_of_turn>"), ("ggml-vocab-llama-spm", "</s>")] {
            let tokenizer = &TOKENIZERS[name];
            let end = tokenizer.token_to_id(markup).unwrap();
            let segments = [Segment::Text(&before), Segment::Markup(markup), Segment::Text(&after)];
            let expected = [text(tokenizer, &before), vec![end], text(tokenizer, &after)].concat();
            prop_assert_eq!(tokenizer.encode(&segments, false), expected, "{}", name);
            prop_assert!(tokenizer.is_eog(end) && tokenizer.is_control(end));
        }
    }
}

#[test]
fn every_token_has_a_piece_and_a_piece_of_plain_text_decodes_to_itself() {
    for name in common::names() {
        let tokenizer = common::tokenizer(&name);
        for id in 0..tokenizer.vocab_size() as u32 {
            let shown = tokenizer.piece(id, true);
            let hidden = tokenizer.piece(id, false);
            assert!(hidden.is_empty() || hidden == shown, "{name} {id}");
            assert!(!shown.is_empty() || tokenizer.token_text(id).is_empty(), "{name} {id}");
        }
        assert!(tokenizer.piece(u32::MAX, true).is_empty());
    }
}

#[test]
fn known_names_end_generations() {
    for (name, ends) in [
        ("smollm2", &["<|im_end|>", "<|endoftext|>", "<reponame>"][..]),
        ("gemma3-270m", &["<end_of_turn>", "<eos>", "</s>"]),
        ("ggml-vocab-llama-bpe", &["<|eot_id|>", "<|end_of_text|>"]),
        ("ggml-vocab-phi-3", &["<|end|>", "<|endoftext|>", "</s>"]),
        ("ggml-vocab-llama-spm", &["</s>"]),
        (
            "qwen2.5-coder-0.5b",
            &["<|im_end|>", "<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "</s>"],
        ),
    ] {
        let tokenizer = common::tokenizer(name);
        let mut ids: Vec<_> = ends.iter().map(|end| tokenizer.token_to_id(end).unwrap()).collect();
        ids.sort_unstable();
        assert_eq!(tokenizer.eog(), ids, "{name}");
    }
}
