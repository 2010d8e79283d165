#!/usr/bin/env python3
"""Write crates/text/tests/golden/pretokenizers.json: how published rules cut strings.

The oracle is the `tokenizers` package (pip install tokenizers): its splitters run the regular expressions that
models publish, with the Oniguruma engine. The strings are random, out of characters that rules tell apart.

    python3 scripts/make-pretokenizer-goldens.py
"""

import json
import random
from pathlib import Path

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, Punctuation, Sequence, Split

STRINGS = 150

GPT2 = ByteLevel(add_prefix_space=False, use_regex=True)
# The same as a splitter, which leaves the text as it is for the steps that follow.
GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SPACE_END = r"\s+(?!\S)|\s+"
SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LEAD = r"[^\r\n\p{L}\p{N}]?"


def cased(suffix, han=""):
    """Words that end where lower case turns to upper case."""
    upper = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}" + han + "]"
    lower = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}" + han + "]"
    return f"{LEAD}{upper}*{lower}+{suffix}|{LEAD}{upper}+{lower}*{suffix}"


def words(contraction, word, number, punct, newlines=r"\s*[\r\n]+", blanks=SPACE_END):
    return "|".join(filter(None, [contraction, word, number, punct, newlines, blanks]))


PUNCT = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
PUNCT_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
LETTERS = LEAD + r"\p{L}+"
DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
HAN_KANA = "[一-龥぀-ゟ゠-ヿ]+"
BLOOM = " ?[^(\\s|.,!?…。，、।۔،)]+"
POWERS = "|".join(rf"\s{{{n}}}(?!\S)" for n in [512, 256, 128, 64, 32, 16, 8, 4])


def splits(*patterns):
    """Steps in order; a string is a regular expression whose matches are isolated."""
    steps = [Split(Regex(p), "isolated") if isinstance(p, str) else p for p in patterns]
    return Sequence(steps)


RULES = {
    "gpt-2": splits(GPT2),
    "starcoder": splits(Digits(individual_digits=True), GPT2),
    "falcon": splits(Punctuation("contiguous"), GPT2, "[0-9][0-9][0-9]"),
    "default": splits(r"[\p{P}\$\+<=>\^~\|]+", GPT2_SPLIT, r"\p{N}+", "[0-9][0-9][0-9]"),
    "llama-bpe": splits(words(SUFFIX, LETTERS, r"\p{N}{1,3}", PUNCT)),
    "qwen2": splits(words(SUFFIX, LETTERS, r"\p{N}", PUNCT)),
    "qwen35": splits(
        words(SUFFIX, LEAD + r"[\p{L}\p{M}]+", r"\p{N}", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*")
    ),
    "jais-2": splits(
        words(SUFFIX, LETTERS, r"\p{N}{1,3}", PUNCT, blanks=POWERS + r"|\s{1,2}(?!\S)|\s{1}")
    ),
    "minicpm5": splits(r"\p{N}{1,3}", words(SUFFIX, LETTERS, r"\p{N}+", PUNCT)),
    "bailingmoe": splits(
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
    "seed-coder": splits(words(SUFFIX, LETTERS, r"\p{N}{1}", r" ?[^\s\p{L}\p{N}\r\n]+")),
    "ufakzeka": splits(words("", LETTERS, r"\p{N}", PUNCT)),
    "laguna": splits(r"[^\n]+|[\n]+", words(SUFFIX, LETTERS, r"\p{N}", PUNCT)),
    "exaone-moe": splits(
        words(
            SUFFIX,
            LEAD + r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
            r"\p{N}",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
            r"\s*[\r\n]",
        )
    ),
    "gpt-4o": splits(words("", cased(SUFFIX + "?"), r"\p{N}{1,3}", PUNCT_SLASH)),
    "tekken": splits(words("", cased(""), r"\p{N}", PUNCT_SLASH)),
    "tiny_aya": splits(
        r"\d{1,3}(?=(?:\d{3})*\b)", words("", cased(SUFFIX + "?"), r"\p{N}{1,3}", PUNCT_SLASH)
    ),
    "youtu": splits(
        "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + HAN_KANA,
        words("", cased(SUFFIX + "?"), r"\p{N}", PUNCT_SLASH),
    ),
    "kimi-k2": splits(
        words(r"[\p{Han}]+", cased(SUFFIX + "?", r"&&[^\p{Han}]"), r"\p{N}{1,3}", PUNCT)
    ),
    "deepseek-v3": splits(r"\p{N}{1,3}", HAN_KANA, DEEPSEEK3),
    "spark2_5": splits(
        r"\p{N}{1,3}",
        HAN_KANA,
        DEEPSEEK3.replace(r"[\p{P}\p{S}]+[\r\n]*", r"[\p{P}\p{S}]+").replace(r"\s*[\r\n]+", r"[\r\n]"),
        r"\p{N}",
    ),
    "deepseek-coder": splits(
        "[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", Digits(individual_digits=True)
    ),
    "bloom": splits(BLOOM),
    "viking": splits(BLOOM, r"\p{N}"),
    "superbpe": splits(r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    "chameleon": splits(
        "<sentinel:[0-9]+>",
        "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
        "([\t\n]|    |  )",
        Digits(individual_digits=True),
        Punctuation("isolated"),
        GPT2,
    ),
    "gemma4": splits(r"[^\n]+|[\n]+"),
}

# Words, and characters of every class and script that a rule names.
ATOMS = (
    ["'s", "'S", "'re", "'LL", "'ve", "'m", "'d", "'T", "'ſ", "'", "don't", "I'M"]
    + ["hello", "World", "HTTPServer", "iPhone", "ǅungla", "naïve", "École", "ÀÉ", "straße", "İ"]
    + ["日本", "漢字", "々〇", "かな", "カナー", "한국어", "ㄱㄴ", "ㄅㄆ", "ไทย", "ສະ", "မြန်", "ខ្មែរ", "नमस्ते", "عربي", "עברית"]
    + ["a\u0301", "\u0301", "e\u0308\u0323", "\u20dd", "\u093f", "ʰ", "ª", "ﾟ"]
    + ["1", "12", "123", "1234", "1234567", "٣٤٥", "²", "½", "Ⅷ", "３", "1²", "12ab", "x99"]
    + ["!", "?", ",", ".", "...", "/", "//", "\\", "-", "_", "__", "(", ")", "[", "]", "#", "@", "&", "%", "*"]
    + ["$", "+", "=", "<", ">", "|", "~", "^", "`", "€", "→", "∑", "©", "😀", "👩\u200d👧", "。", "、", "，", "！", "…", "“", "”", "—", "।"]
    + [" ", " ", " ", "  ", "   ", "    ", "\n", "\n", "\n\n", "\r\n", "\r", "\t", "\t\t", "\u00a0", "\u3000", "\u2003", "\u0085", "\u2028", "\x0b"]
    + ["\x00", "\x1b", "\x7f", "\u200b", "\ufeff", "\ue000", "\ufffd", "\x1c"]
    + ["<sentinel:12>", "<sentinel:>", "IMGIMGABCDZ", "IMGIMGAZ", "IMGIMGABCDEZ", "IMGIMGZ"]
)


def strings():
    rng = random.Random(20240607)
    out = [" " * 600, "\n" + " " * 40 + "x", "a  b", " 1", "x\n\n  y\n ", "1234567 12 1234a a1234 1234.5"]
    while len(out) < STRINGS:
        parts = []
        for _ in range(rng.randint(3, 14)):
            atom = rng.choice(ATOMS)
            parts.append(atom * rng.choice([1, 1, 1, 1, 2, 3]))
            if rng.random() < 0.25:
                parts.append(" ")
        out.append("".join(parts))
    return out


def lengths(rule, text):
    """Lengths of the pieces in characters, which must cover the text."""
    ends = [0]
    for _, (start, end) in rule.pre_tokenize_str(text):
        assert start == ends[-1], (text, start, ends)
        ends.append(end)
    assert ends[-1] == len(text), text
    return " ".join(str(b - a) for a, b in zip(ends, ends[1:]))


def main():
    texts = strings()
    golden = {
        "strings": texts,
        "lengths": {name: [lengths(rule, text) for text in texts] for name, rule in RULES.items()},
    }
    path = Path(__file__).resolve().parent.parent / "crates/text/tests/golden/pretokenizers.json"
    path.write_text(json.dumps(golden, ensure_ascii=True, indent=0, separators=(",", ":")) + "\n")
    print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
