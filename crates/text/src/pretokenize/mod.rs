//! Pre-tokenization: the cuts that byte-pair merges never cross, by the name in `tokenizer.ggml.pre`.
//!
//! Where the published regular expression of a model is known, it is followed, also where llama.cpp
//! approximates it (case and marks in `tekken`, `gpt-4o`, `kimi-k2`).
//! Every scanner runs in linear time and needs no regular expression engine.

pub(crate) mod class;
mod ranges;
mod stage;
#[cfg(test)]
mod tests;
mod words;

use stage::Stage;
use words::{Blanks, Contraction, Newlines, Number, Punct, Tail, Word, Words};

/// How a family of BPE tokenizers cuts text, and the switches that its name implies.
pub(crate) struct PreTokenizer {
    pub(crate) names: &'static [&'static str],
    stages: &'static [Stage],
    /// A piece that is a token is not built from merges.
    pub(crate) ignore_merges: bool,
    /// Whether texts begin with BOS if the file does not say.
    pub(crate) add_bos: bool,
    /// Tokens hold plain UTF-8 with `▁` for spaces and byte tokens, not the byte alphabet of GPT-2.
    pub(crate) plain: bool,
}

/// Work space of [`PreTokenizer::split`].
#[derive(Default)]
pub(crate) struct Pieces {
    ends: Vec<usize>,
    next: Vec<usize>,
}

impl PreTokenizer {
    /// Finds the pre-tokenizer of a `tokenizer.ggml.pre` value.
    pub(crate) fn by_name(name: &str) -> Option<&'static PreTokenizer> {
        ALL.iter().find(|pre| pre.names.contains(&name))
    }

    /// All names, in alphabetical order.
    pub(crate) fn names() -> Vec<&'static str> {
        let mut names: Vec<_> = ALL.iter().flat_map(|pre| pre.names.iter().copied()).collect();
        names.sort_unstable();
        names
    }

    /// Cuts a text; the result holds the end of each piece, ascending, and the last is the text's length.
    pub(crate) fn split<'a>(&self, text: &[u8], work: &'a mut Pieces) -> &'a [usize] {
        work.ends.clear();
        if !text.is_empty() {
            work.ends.push(text.len());
        }
        for stage in self.stages {
            work.next.clear();
            let mut start = 0;
            for &end in &work.ends {
                stage.split(text, start, end, &mut work.next);
                start = end;
            }
            std::mem::swap(&mut work.ends, &mut work.next);
        }
        &work.ends
    }
}

const GPT2: Words = Words {
    contraction: Contraction::Exact,
    word: Word::Spaced,
    number: Number::Spaced,
    punct: Punct::Other,
    tail: Tail::None,
    newlines: Newlines::None,
    blanks: Blanks::Run,
};

const LLAMA3: Words = Words {
    contraction: Contraction::AnyCase,
    word: Word::Letters,
    number: Number::UpTo(3),
    punct: Punct::Other,
    tail: Tail::Newlines,
    newlines: Newlines::WithSpace,
    blanks: Blanks::Run,
};

const QWEN2: Words = Words { number: Number::UpTo(1), ..LLAMA3 };

const GPT4O: Words =
    Words { contraction: Contraction::Suffix, word: Word::Cased, tail: Tail::NewlinesSlashes, ..LLAMA3 };

const DEEPSEEK3: Words = Words {
    contraction: Contraction::None,
    word: Word::Joined,
    number: Number::None,
    punct: Punct::Listed,
    ..LLAMA3
};

/// A family with no switches set.
const fn plain_family(names: &'static [&'static str], stages: &'static [Stage]) -> PreTokenizer {
    PreTokenizer { names, stages, ignore_merges: false, add_bos: false, plain: false }
}

static ALL: &[PreTokenizer] = &[
    plain_family(
        &["default"],
        &[
            Stage::PunctRuns { backtick: false },
            Stage::Words(GPT2),
            Stage::NumberRuns,
            Stage::ThreeAsciiDigits,
        ],
    ),
    plain_family(
        &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "jina-v1-en",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v2-code",
            "roberta-bpe",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "exaone4",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
        ],
        &[Stage::Words(GPT2)],
    ),
    plain_family(
        &["starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"],
        &[Stage::EachNumber, Stage::Words(GPT2)],
    ),
    plain_family(
        &["falcon"],
        &[Stage::PunctRuns { backtick: true }, Stage::Words(GPT2), Stage::ThreeAsciiDigits],
    ),
    PreTokenizer {
        ignore_merges: true,
        add_bos: true,
        ..plain_family(
            &[
                "llama3",
                "llama-v3",
                "llama-bpe",
                "falcon3",
                "falcon-h1",
                "pixtral",
                "midm-2.0",
                "lfm2",
                "jina-v5-nano",
            ],
            &[Stage::Words(LLAMA3)],
        )
    },
    plain_family(&["dbrx", "smaug-bpe", "chatglm-bpe"], &[Stage::Words(LLAMA3)]),
    PreTokenizer { ignore_merges: true, ..plain_family(&["glm4", "glm5"], &[Stage::Words(LLAMA3)]) },
    plain_family(&["jais-2"], &[Stage::Words(Words { blanks: Blanks::Powers, ..LLAMA3 })]),
    PreTokenizer {
        ignore_merges: true,
        ..plain_family(
            &["minicpm5"],
            &[Stage::NumbersUpTo3, Stage::Words(Words { number: Number::Run, ..LLAMA3 })],
        )
    },
    plain_family(
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
            "bailingmoe",
            "bailingmoe2",
            "llada-moe",
        ],
        &[Stage::Words(QWEN2)],
    ),
    plain_family(
        &["qwen35"],
        &[Stage::Words(Words { word: Word::LettersMarks, punct: Punct::OtherNoMarks, ..QWEN2 })],
    ),
    plain_family(&["ufakzeka"], &[Stage::Words(Words { contraction: Contraction::None, ..QWEN2 })]),
    plain_family(&["seed-coder"], &[Stage::Words(Words { tail: Tail::None, ..QWEN2 })]),
    plain_family(&["laguna"], &[Stage::Lines, Stage::Words(QWEN2)]),
    plain_family(
        &["exaone-moe"],
        &[Stage::Words(Words { word: Word::Phrase, tail: Tail::NewlineSlash, ..QWEN2 })],
    ),
    plain_family(
        &["deepseek-llm"],
        &[
            Stage::EachNewline,
            Stage::SpacedRanges(ranges::CASED),
            Stage::SpacedRanges(ranges::MARKS),
            Stage::TrailingSpace,
            Stage::RangeRuns(&[ranges::EAST_ASIAN]),
            Stage::NumberRuns,
        ],
    ),
    plain_family(
        &["deepseek-coder"],
        &[
            Stage::EachNewline,
            Stage::SpacedLetters,
            Stage::SpacedPunct,
            Stage::RangeRuns(&[ranges::EAST_ASIAN]),
            Stage::EachNumber,
        ],
    ),
    plain_family(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        &[Stage::NumbersUpTo3, Stage::RangeRuns(&[ranges::HAN_KANA]), Stage::Words(DEEPSEEK3)],
    ),
    plain_family(
        &["spark2_5"],
        &[
            Stage::NumbersUpTo3,
            Stage::RangeRuns(&[ranges::HAN_KANA]),
            Stage::Words(Words { tail: Tail::None, newlines: Newlines::Single, ..DEEPSEEK3 }),
            Stage::EachNumber,
        ],
    ),
    plain_family(
        &["afmoe"],
        &[Stage::NumberGroups, Stage::RangeRuns(&[ranges::AFMOE]), Stage::Words(DEEPSEEK3)],
    ),
    PreTokenizer {
        ignore_merges: true,
        ..plain_family(
            &["youtu"],
            &[
                Stage::RangeRuns(&[
                    ranges::YOUTU_HANGUL,
                    ranges::YOUTU_PUNCT,
                    ranges::YOUTU_BOPOMOFO,
                    ranges::HAN_KANA,
                ]),
                Stage::Words(Words { number: Number::UpTo(1), ..GPT4O }),
            ],
        )
    },
    plain_family(&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], &[Stage::Words(GPT4O)]),
    PreTokenizer {
        ignore_merges: true,
        ..plain_family(&["granite-embed-multi-97m"], &[Stage::Words(GPT4O)])
    },
    plain_family(&["tiny_aya", "cohere2moe"], &[Stage::DigitGroupsBeforeBoundary, Stage::Words(GPT4O)]),
    PreTokenizer {
        ignore_merges: true,
        add_bos: true,
        ..plain_family(
            &["tekken"],
            &[Stage::Words(Words { contraction: Contraction::None, number: Number::UpTo(1), ..GPT4O })],
        )
    },
    plain_family(
        &["kimi-k2"],
        &[Stage::Words(Words { word: Word::HanThenCased, tail: Tail::Newlines, ..GPT4O })],
    ),
    plain_family(&["superbpe"], &[Stage::NumberRuns, Stage::DigitCuts]),
    plain_family(&["poro-chat", "bloom", "gpt3-finnish"], &[Stage::Phrases]),
    plain_family(&["viking"], &[Stage::Phrases, Stage::EachNumber]),
    PreTokenizer {
        add_bos: true,
        ..plain_family(
            &["chameleon"],
            &[
                Stage::Sentinels,
                Stage::ImageTokens,
                Stage::Indents,
                Stage::EachNumber,
                Stage::EachPunct,
                Stage::Words(GPT2),
            ],
        )
    },
    PreTokenizer {
        add_bos: true,
        plain: true,
        ..plain_family(&["gemma4", "granite-embed-multi-311m"], &[Stage::Lines])
    },
    PreTokenizer { plain: true, ..plain_family(&["sarvam-moe"], &[Stage::Lines]) },
];
