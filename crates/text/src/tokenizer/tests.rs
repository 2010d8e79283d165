use proptest::prelude::*;

use super::*;

const NORMAL: TokenType = TokenType::Normal;
const CONTROL: TokenType = TokenType::Control;
const USER: TokenType = TokenType::UserDefined;

fn source<'a>(model: &'a str, tokens: &[(&'a str, TokenType, f32)]) -> VocabSource<'a> {
    VocabSource {
        model,
        pre: Some("gpt-2"),
        tokens: tokens.iter().map(|token| token.0.as_bytes()).collect(),
        types: tokens.iter().map(|token| token.1).collect(),
        scores: tokens.iter().map(|token| token.2).collect(),
        ..VocabSource::default()
    }
}

fn words(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(&[Segment::Text(text.as_bytes())], false)
}

fn markup(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(&[Segment::Markup(text)], false)
}

/// SentencePiece with pieces for `a`, doubled up to 16.
fn letters() -> VocabSource<'static> {
    let mut tokens = vec![
        ("<unk>", TokenType::Unknown, 0.0),
        ("<s>", CONTROL, 0.0),
        ("</s>", CONTROL, 0.0),
        ("<0x62>", TokenType::Byte, 0.0),
        ("▁", NORMAL, -9.0),
        ("a", NORMAL, -10.0),
    ];
    let doubled = ["aa", "aaaa", "aaaaaaaa", "aaaaaaaaaaaaaaaa"];
    tokens.extend(doubled.iter().zip(1u8..).map(|(&text, rank)| (text, NORMAL, -f32::from(rank))));
    tokens.push(("▁a", NORMAL, -20.0));
    source("llama", &tokens)
}

#[test]
fn unknown_names_are_refused_and_listed() {
    let unknown = source("sentencepiece", &[("a", NORMAL, 0.0)]);
    let message = Tokenizer::new(&unknown).err().unwrap().to_string();
    assert!(message.contains("\"sentencepiece\"") && message.contains("gpt2"), "{message}");

    let mut bpe = source("gpt2", &[("a", NORMAL, 0.0), ("b", NORMAL, 0.0), ("ab", NORMAL, 0.0)]);
    bpe.merges = vec![b"a b"];
    bpe.pre = Some("gpt-9");
    let message = Tokenizer::new(&bpe).err().unwrap().to_string();
    assert!(message.contains("\"gpt-9\"") && message.contains("llama-bpe"), "{message}");
    for none in [None, Some("")] {
        bpe.pre = none;
        assert!(matches!(Tokenizer::new(&bpe), Err(BuildError::NoPreTokenizer { .. })));
    }
    bpe.pre = Some("qwen2");
    assert_eq!(words(&Tokenizer::new(&bpe).unwrap(), "abba"), [2, 1, 0]);
}

#[test]
fn damaged_vocabularies_are_refused() {
    let tokens = [("a", NORMAL, 0.0), ("b", NORMAL, 0.0)];
    let mut bpe = source("gpt2", &tokens);
    assert!(matches!(Tokenizer::new(&bpe), Err(BuildError::Missing { .. })));
    bpe.merges = vec![b"a b", b"ab"];
    assert!(matches!(Tokenizer::new(&bpe), Err(BuildError::Merge { index: 1, .. })));
    bpe.merges = vec![b"a b"];
    bpe.add_eos = Some(true);
    assert!(matches!(Tokenizer::new(&bpe), Err(BuildError::NoSpecial { what: "EOS" })));
    bpe.special.eos = Some(7);
    assert!(matches!(Tokenizer::new(&bpe), Err(BuildError::NoSpecial { what: "EOS" })));

    let mut unigram = source("t5", &tokens);
    unigram.add_eos = Some(false);
    for bad in [&[1, 0][..], &[8, 0, 0, 0, 0], &[3, 0, 0, 0, 1, 1, 1, 0], &[4, 0, 0, 0, 1, 1, 1, 1, 65]] {
        unigram.precompiled_charsmap = bad.to_vec();
        assert!(matches!(Tokenizer::new(&unigram), Err(BuildError::Charsmap { .. })), "{bad:?}");
    }
    unigram.scores.clear();
    unigram.precompiled_charsmap.clear();
    assert!(matches!(Tokenizer::new(&unigram), Err(BuildError::Missing { .. })));
}

#[test]
fn best_score_merges_first_and_leftmost_of_equals() {
    let tokenizer = Tokenizer::new(&letters()).unwrap();
    // The prefix merges last: its token has the worst score.
    assert_eq!(words(&tokenizer, "a"), [10]);
    assert_eq!(words(&tokenizer, "aaa"), [4, 6, 5]);
    assert_eq!(words(&tokenizer, &"a".repeat(23)), [4, 9, 7, 6, 5]);
    // A byte token, and the unknown token for each byte that has none.
    assert_eq!(words(&tokenizer, "bé"), [4, 3, 0, 0]);
    assert_eq!(tokenizer.encode(&[], true), [1]);
    assert!(words(&tokenizer, "").is_empty());
}

#[test]
fn space_goes_before_text_and_is_taken_off_again() {
    let tokenizer = Tokenizer::new(&letters()).unwrap();
    let ids = tokenizer.encode(&[Segment::Markup("a</s>a"), Segment::Text(b"</s>")], true);
    // After a special token the text begins anew.
    assert_eq!(ids[..4], [1, 10, 2, 10]);
    assert_eq!(tokenizer.decode(&ids[..2], false), b"a");
    assert_eq!(tokenizer.decode(&[1, 4, 10], false), b" a");
    assert_eq!(tokenizer.decode(&[10, 10], false), b"a a");
    assert_eq!(tokenizer.decode(&[1, 10, 2], true), b"<s>a</s>");
    let bare = VocabSource { add_space_prefix: Some(false), ..letters() };
    let tokenizer = Tokenizer::new(&bare).unwrap();
    assert_eq!(words(&tokenizer, "a a"), [5, 10]);
    assert_eq!(tokenizer.decode(&[10], false), b" a");
}

fn chat() -> VocabSource<'static> {
    let mut source = source(
        "gpt2",
        &[
            ("h", NORMAL, 0.0),
            ("i", NORMAL, 0.0),
            ("hi", NORMAL, 0.0),
            ("<|end|>", CONTROL, 0.0),
            ("<|user|>", USER, 0.0),
            ("<b>", USER, 0.0),
            ("Ġ", NORMAL, 0.0),
            ("<", NORMAL, 0.0),
            ("|", NORMAL, 0.0),
            (">", NORMAL, 0.0),
            ("b", NORMAL, 0.0),
            ("<|end|><|x|>", CONTROL, 0.0),
            ("é", USER, 0.0),
        ],
    );
    source.merges = vec![b"h i"];
    source
}

#[test]
fn control_tokens_are_found_in_markup_only() {
    let tokenizer = Tokenizer::new(&chat()).unwrap();
    assert_eq!(markup(&tokenizer, "hi<|end|>hi"), [2, 3, 2]);
    assert!(!words(&tokenizer, "hi<|end|>").contains(&3));
    // User-defined tokens are text, unless they look like markup.
    assert_eq!(words(&tokenizer, "<b>é"), [5, 12]);
    assert!(!words(&tokenizer, "<|user|>").contains(&4));
    assert_eq!(markup(&tokenizer, "<|user|>"), [4]);
    // Leftmost, then longest.
    assert_eq!(markup(&tokenizer, "<|end|><|x|><|end|>"), [11, 3]);
    // Not across the border between a template and a user's words, in any order.
    for segments in
        [[Segment::Markup("<|en"), Segment::Text(b"d|>")], [Segment::Text(b"<|en"), Segment::Markup("d|>")]]
    {
        assert!(!tokenizer.encode(&segments, false).contains(&3));
    }
    assert_eq!(tokenizer.encode(&[Segment::Markup("<|en"), Segment::Markup("d|>")], false), [3]);
    // Words do merge across the border.
    assert_eq!(tokenizer.encode(&[Segment::Markup("h"), Segment::Text(b"i")], false), [2]);
    // Nor can a user-defined token at the border swallow the beginning of markup.
    let mut greedy = chat();
    greedy.tokens[12] = b"h<";
    let tokenizer = Tokenizer::new(&greedy).unwrap();
    assert_eq!(tokenizer.encode(&[Segment::Text(b"h"), Segment::Markup("<|end|>")], false), [0, 3]);
}

#[test]
fn roles_come_by_id_or_by_name() {
    let mut source = chat();
    let tokenizer = Tokenizer::new(&source).unwrap();
    assert_eq!((tokenizer.special_ids().eot, tokenizer.eog()), (Some(3), &[3][..]));
    assert!(tokenizer.is_control(3) && !tokenizer.is_control(5) && tokenizer.is_control(4));
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (None, None));
    source.special.eos = Some(2);
    source.special.eot = Some(99);
    let tokenizer = Tokenizer::new(&source).unwrap();
    assert_eq!((tokenizer.eos(), tokenizer.eog()), (Some(2), &[2, 3][..]));
    // Hidden and shown.
    assert_eq!(tokenizer.decode(&[2, 3, 4, 5], false), b"hi<|user|><b>");
    assert_eq!(tokenizer.decode(&[2, 3], true), b"hi<|end|>");
    assert_eq!(tokenizer.piece(6, false).as_ref(), b" ");
    assert_eq!(tokenizer.piece(12, false).as_ref(), "é".as_bytes());

    // With a token that ends calls, <|end|> ends only a part of the answer, and is shown.
    source.tokens[4] = b"<|return|>";
    source.tokens[12] = b"<|call|>";
    source.special = SpecialIds::default();
    let tokenizer = Tokenizer::new(&source).unwrap();
    assert_eq!(tokenizer.eog(), [4, 12]);
    assert_eq!(tokenizer.piece(3, false).as_ref(), b"<|end|>");
}

#[test]
fn white_space_beside_some_special_tokens_belongs_to_them() {
    let phi = VocabSource { name: "Phi-3 mini", ..chat() };
    let tokenizer = Tokenizer::new(&phi).unwrap();
    assert_eq!(markup(&tokenizer, "hi <|end|> \n hi"), [2, 6, 3, 2]);
    let segments = [Segment::Markup("<|end|>"), Segment::Text(b" hi"), Segment::Markup("<|end|>")];
    assert_eq!(tokenizer.encode(&segments, false), [3, 2, 3]);
    assert_eq!(markup(&Tokenizer::new(&chat()).unwrap(), "<|end|> hi"), [3, 6, 2]);

    let mut jina = VocabSource { pre: Some("jina-v2-code"), ..chat() };
    jina.tokens[3] = b"<mask>";
    assert_eq!(markup(&Tokenizer::new(&jina).unwrap(), "hi \t<mask> hi"), [2, 3, 6, 2]);
}

#[test]
fn merges_through_text_that_is_no_token() {
    // "hi" is no token, but "hi" + "h" makes one; what stays unmerged is spelled in bytes.
    let mut source = source("gpt2", &[("h", NORMAL, 0.0), ("i", NORMAL, 0.0), ("hih", NORMAL, 0.0)]);
    source.merges = vec![b"h i", b"hi h", b"h i"];
    let tokenizer = Tokenizer::new(&source).unwrap();
    assert_eq!(words(&tokenizer, "hih"), [2]);
    assert_eq!(words(&tokenizer, "hihi"), [0, 1, 0, 1]);
    assert_eq!(words(&tokenizer, "hhihi"), [0, 0, 1, 0, 1]);
    // Only the halves that a merge names go together: "h" and "ih" do not.
    source.merges = vec![b"i h", b"hi h"];
    assert_eq!(words(&Tokenizer::new(&source).unwrap(), "hih"), [0, 1, 0]);
}

#[test]
fn bytes_without_a_token_become_the_replacement_character() {
    let mut source = source(
        "gpt2",
        &[
            ("a", NORMAL, 0.0),
            ("ï", NORMAL, 0.0),
            ("¿", NORMAL, 0.0),
            ("½", NORMAL, 0.0),
            ("ï¿½", NORMAL, 0.0),
        ],
    );
    source.merges = vec!["ï ¿".as_bytes(), "ï¿ ½".as_bytes()];
    let tokenizer = Tokenizer::new(&source).unwrap();
    assert_eq!(tokenizer.encode(&[Segment::Text(b"a\xFFa")], false), [0, 4, 0]);
    assert_eq!(tokenizer.decode(&[4], false), "\u{FFFD}".as_bytes());
    assert_eq!(tokenizer.encode(&[Segment::Text(b"\xEF")], false), [1]);
}

#[test]
fn plain_bpe_takes_runs_of_line_breaks_whole() {
    let mut source = source(
        "gemma4",
        &[
            ("<bos>", CONTROL, 0.0),
            ("\n", NORMAL, 0.0),
            ("\n\n", NORMAL, 0.0),
            ("▁a", NORMAL, 0.0),
            ("▁", NORMAL, 0.0),
            ("a", NORMAL, 0.0),
            ("<0xC3>", TokenType::Byte, 0.0),
            ("<unk>", TokenType::Unknown, 0.0),
        ],
    );
    source.merges = vec!["▁ a".as_bytes()];
    source.special.bos = Some(0);
    source.special.unknown = Some(7);
    let tokenizer = Tokenizer::new(&source).unwrap();
    assert_eq!(tokenizer.encode(&[Segment::Text(b"a a\n\na\n\n\n")], true), [0, 5, 3, 2, 5, 1, 1, 1]);
    assert_eq!(words(&tokenizer, "é"), [6, 7]);
    assert_eq!(tokenizer.decode(&[3, 6, 2], false), b" a\xC3\n\n");
}

#[test]
fn unigram_takes_the_best_path_over_normalized_text() {
    let mut source = source(
        "t5",
        &[
            ("<pad>", CONTROL, 0.0),
            ("</s>", CONTROL, 0.0),
            ("<unk>", TokenType::Unknown, 0.0),
            ("▁", NORMAL, -2.0),
            ("▁ab", NORMAL, -3.0),
            ("ab", NORMAL, -2.5),
            ("c", NORMAL, -2.0),
            ("abc", NORMAL, -4.0),
            ("<x>", USER, -99.0),
        ],
    );
    source.add_space_prefix = Some(true);
    source.remove_extra_whitespaces = true;
    let tokenizer = Tokenizer::new(&source).unwrap();
    assert_eq!(tokenizer.encode(&[Segment::Text(b"abc")], true), [4, 6, 1]);
    assert_eq!(words(&tokenizer, "  ab   abc "), [4, 4, 6]);
    assert_eq!(words(&tokenizer, "ab<x>c"), [4, 8, 3, 6]);
    // A run of unknown characters is one token.
    assert_eq!(words(&tokenizer, "éàc"), [3, 2, 6]);
    assert!(words(&tokenizer, " \t ".trim()).is_empty());
    assert_eq!(tokenizer.decode(&[4, 6, 4], false), b"abc ab");
}

#[test]
fn wordpiece_spells_words_from_their_start() {
    let mut tokens = vec![("x", NORMAL, 0.0); 104];
    tokens[100] = ("[UNK]", TokenType::Unknown, 0.0);
    tokens[101] = ("[CLS]", CONTROL, 0.0);
    tokens[102] = ("[SEP]", CONTROL, 0.0);
    tokens.extend(["▁run", "ning", "▁e", "▁漢", "▁.", "▁ı"].map(|text| (text, NORMAL, 0.0)));
    let cased = VocabSource { lowercase: Some(false), ..source("bert", &tokens) };
    let tokenizer = Tokenizer::new(&source("bert", &tokens)).unwrap();
    assert_eq!(tokenizer.encode(&[Segment::Text(b"Running RUN")], true), [101, 104, 105, 104, 102]);
    assert_eq!(words(&tokenizer, "É.漢漢run\u{200b}\u{b}ning"), [106, 108, 107, 107, 104, 105]);
    assert_eq!(words(&tokenizer, "runner run"), [100, 104]);
    assert_eq!(words(&Tokenizer::new(&cased).unwrap(), "Run run é"), [100, 104, 100]);
    assert_eq!(tokenizer.decode(&[101, 104, 105, 108], false), b"running .");
}

#[test]
fn rwkv_takes_the_longest_token() {
    let source = source(
        "rwkv",
        &[
            ("<s>", CONTROL, 0.0),
            (r"\n", NORMAL, 0.0),
            (r"\xc3", NORMAL, 0.0),
            ("ab", NORMAL, 0.0),
            ("abc", NORMAL, 0.0),
            ("c", NORMAL, 0.0),
        ],
    );
    let tokenizer = Tokenizer::new(&source).unwrap();
    assert_eq!(tokenizer.encode(&[Segment::Text(b"abcab\nc\xC3z")], false), [4, 3, 1, 5, 2]);
    assert_eq!(tokenizer.decode(&[4, 1, 2], false), b"abc\n\xC3");
}

/// Look-ups of pairs that encoding a text takes.
fn lookups(tokenizer: &Tokenizer, text: &[u8]) -> u64 {
    let mut encoder = Encoder::new(tokenizer);
    encoder.marked_up(text, &[]);
    assert!(!encoder.out.is_empty());
    encoder.work.merger.lookups
}

#[test]
fn work_grows_linearly_with_the_text() {
    let mut bpe = source(
        "gpt2",
        &[
            ("a", NORMAL, 0.0),
            ("aa", NORMAL, 0.0),
            ("aaaa", NORMAL, 0.0),
            ("b", NORMAL, 0.0),
            ("ab", NORMAL, 0.0),
        ],
    );
    bpe.merges = vec![b"a b", b"a a", b"aa aa"];
    let bpe = Tokenizer::new(&bpe).unwrap();
    let spm = Tokenizer::new(&letters()).unwrap();
    let equal = vec![b'a'; 1 << 20];
    let mixed: Vec<u8> =
        (0..1u32 << 20).map(|i| b'a' + (i.wrapping_mul(2_654_435_761) >> 31) as u8).collect();
    for tokenizer in [&bpe, &spm] {
        for text in [&equal, &mixed] {
            let (half, all) = (lookups(tokenizer, &text[..1 << 19]), lookups(tokenizer, text));
            assert!(all <= 3 * text.len() as u64 + 3, "{all}");
            assert!(all.abs_diff(2 * half) <= all / 100, "{half} and {all}");
        }
    }
}

fn token() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(prop::sample::select(&b"ab <|>\xE2\x96\x81\n\\x"[..]), 0..5),
        Just("▁a".as_bytes().to_vec()),
        Just(b"<0x61>".to_vec()),
        Just("Ġa".as_bytes().to_vec()),
        Just(b"<|end|>".to_vec()),
        Just(b"</s>".to_vec()),
    ]
}

proptest! {
    /// Whatever a file says, building ends in a tokenizer or an error, and the tokenizer handles any text.
    #[test]
    fn no_vocabulary_panics(
        model in prop::sample::select(MODELS),
        pre in prop::option::of(prop::sample::select(PreTokenizer::names())),
        tokens in prop::collection::vec((token(), -1i32..8, any::<f32>()), 0..24),
        merges in prop::collection::vec((token(), token()), 0..8),
        ids in prop::array::uniform4(prop::option::of(0u32..30)),
        flags in prop::array::uniform4(prop::option::of(any::<bool>())),
        charsmap in prop::collection::vec(any::<u8>(), 0..40),
        text in prop::collection::vec(prop::sample::select(&b"ab <|>\xE2\x96\x81\n\\xend/s\xFF"[..]), 0..40),
    ) {
        let mut map = Vec::new();
        if flags[3] == Some(true) {
            map.extend_from_slice(&(charsmap.len() as u32 / 8 * 4).to_le_bytes());
            map.extend_from_slice(&charsmap);
            map.push(0);
        }
        let merges: Vec<Vec<u8>> = merges.into_iter().map(|(a, b)| [a, b].join(&b' ')).collect();
        let source = VocabSource {
            model,
            pre,
            name: if flags[0] == Some(true) { "phi-3" } else { "" },
            architecture: "jina-bert-v3",
            tokens: tokens.iter().map(|token| token.0.as_slice()).collect(),
            types: tokens.iter().map(|token| TokenType::from(token.1)).collect(),
            scores: tokens.iter().map(|token| token.2).collect(),
            merges: merges.iter().map(Vec::as_slice).collect(),
            special: SpecialIds { bos: ids[0], eos: ids[1], unknown: ids[2], separator: ids[3], ..SpecialIds::default() },
            add_bos: flags[0],
            add_eos: flags[1],
            add_space_prefix: flags[2],
            remove_extra_whitespaces: flags[3] == Some(true),
            precompiled_charsmap: map,
            lowercase: flags[0],
            strip_accents: flags[1],
        };
        let Ok(tokenizer) = Tokenizer::new(&source) else { return Ok(()) };
        let lossy = String::from_utf8_lossy(&text);
        let out = tokenizer.encode(&[Segment::Text(&text), Segment::Markup(&lossy), Segment::Text(&text)], true);
        for &id in &out {
            prop_assert!((id as usize) < tokenizer.vocab_size());
        }
        for special in [false, true] {
            tokenizer.decode(&out, special);
        }
        for id in 0..=tokenizer.vocab_size() as u32 {
            tokenizer.piece(id, true);
            tokenizer.is_eog(id);
        }
    }
}
