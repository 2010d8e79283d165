#!/usr/bin/env python3
"""Write crates/text/tests/golden/encodings.json: checksums of the ids that other tokenizers give.

The oracles are the `tokenizers` package (BPE, WordPiece, Unigram) and the `sentencepiece` package, fed with the vocabularies
that fetch-test-vocabs.py fetched; the strings are those of pretokenizers.json. `gguf` reads the files.

    pip install tokenizers sentencepiece protobuf gguf
    python3 scripts/make-encoding-goldens.py            # all
    python3 scripts/make-encoding-goldens.py smollm2    # one, with its ids
"""

import importlib.util
import json
import os
import sys
from pathlib import Path

import sentencepiece
from gguf import GGUFReader
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parent / "crates/text/tests/golden"
CACHE = Path(os.environ.get("WOOTZ_TEST_CACHE") or HERE.parent / ".cache") / "vocabs"
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)

spec = importlib.util.spec_from_file_location("rules", HERE / "make-pretokenizer-goldens.py")
rules = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rules)


class Vocab:
    def __init__(self, name):
        self.reader = GGUFReader(CACHE / f"{name}.gguf")
        self.model, self.pre = self.one("model"), self.one("pre")
        self.tokens = [bytes(part).decode() for part in self.list("tokens")]
        self.types = [int(part[0]) for part in self.list("token_type")]
        self.merges = [bytes(part).decode() for part in self.list("merges")]
        self.scores = [float(part[0]) for part in self.list("scores")]

    def field(self, key):
        return self.reader.fields.get(f"tokenizer.ggml.{key}")

    def one(self, key):
        field = self.field(key)
        return field and field.contents()

    def list(self, key):
        field = self.field(key)
        return [field.parts[index] for index in field.data] if field else []


def bpe(vocab, name):
    """Byte-level BPE: a rule cuts the text, and bytes become glyphs."""
    ids = {token: index for index, token in enumerate(vocab.tokens)}
    merges = []
    for merge in vocab.merges:
        left, right = merge[0] + merge[1:].split(" ", 1)[0], merge[1:].split(" ", 1)[1]
        merges.append((left, right))
    ignore = vocab.pre == "llama-bpe"
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=ignore))
    steps = [rules.RULES[name]]
    # The rules with the pattern of GPT-2 make glyphs themselves.
    if name not in ("gpt-2", "starcoder", "falcon"):
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.pre_tokenizer = rules.Sequence(steps)
    add_user_tokens(tokenizer, vocab)
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def gemma4(vocab):
    """BPE on plain text with byte tokens, spaces as U+2581."""
    ids = {token: index for index, token in enumerate(vocab.tokens)}
    merges = [tuple(merge[0] + part if i == 0 else part for i, part in enumerate(merge[1:].split(" ", 1)))
              for merge in vocab.merges]
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    # No merge makes runs of line breaks; the published tokenizer has them as added tokens.
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^\n]+|[\n]+"), "isolated")
    tokenizer.add_tokens([AddedToken("\n" * n, normalized=False) for n in range(31, 0, -1) if "\n" * n in ids])
    add_user_tokens(tokenizer, vocab)
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def add_user_tokens(tokenizer, vocab):
    user = [token for token, kind in zip(vocab.tokens, vocab.types) if kind == USER]
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in user])


def wordpiece(vocab):
    ids = {}
    for index, token in enumerate(vocab.tokens):
        if vocab.types[index] == CONTROL:
            ids[token] = index
        elif token.startswith("\u2581"):
            ids[token[1:]] = index
        else:
            ids["##" + token] = index
    model = models.WordPiece(vocab=ids, unk_token="[UNK]", max_input_chars_per_word=10**6)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def unigram(vocab):
    """Unigram over the text that SentencePiece normalizes; the scores are summed in double precision, for ties."""
    pieces = list(zip(vocab.tokens, vocab.scores))
    unknown = vocab.one("unknown_token_id")
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=unknown, byte_fallback=False))
    normalize = processor(vocab, model_type=1).normalize
    return lambda text: tokenizer.encode(normalize(text), add_special_tokens=False).ids


def processor(vocab, model_type):
    proto = sentencepiece_model_pb2.ModelProto()
    proto.trainer_spec.model_type = model_type
    proto.trainer_spec.byte_fallback = BYTE in vocab.types
    kinds = sentencepiece_model_pb2.ModelProto.SentencePiece.Type
    unknown = vocab.one("unknown_token_id") or 0
    for index, token in enumerate(vocab.tokens):
        kind = vocab.types[index]
        # SentencePiece wants one unknown token and spells user-defined spaces its own way.
        if kind == UNKNOWN and index != unknown:
            kind = CONTROL
        if kind == USER:
            token = token.replace(" ", "\u2581")
        proto.pieces.add(piece=token, score=vocab.scores[index], type=kinds.Value(kinds.Name(kind)))
    proto.trainer_spec.unk_piece = vocab.tokens[unknown]
    prefix = vocab.one("add_space_prefix")
    proto.normalizer_spec.add_dummy_prefix = True if prefix is None else prefix
    proto.normalizer_spec.remove_extra_whitespaces = bool(vocab.one("remove_extra_whitespaces"))
    proto.normalizer_spec.escape_whitespaces = True
    charsmap = vocab.list("precompiled_charsmap")
    proto.normalizer_spec.precompiled_charsmap = b"".join(bytes(part) for part in charsmap)
    return sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())


def checksum(ids):
    """FNV-1a over the ids as four bytes each."""
    value = 0xCBF29CE484222325
    for byte in b"".join(token.to_bytes(4, "little") for token in ids):
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return f"{len(ids)}:{value:016x}"


BPE_RULES = {
    "ggml-vocab-gpt-2": "gpt-2",
    "ggml-vocab-gpt-neox": "gpt-2",
    "ggml-vocab-mpt": "gpt-2",
    "ggml-vocab-falcon": "falcon",
    "ggml-vocab-starcoder": "starcoder",
    "ggml-vocab-refact": "starcoder",
    "ggml-vocab-command-r": "starcoder",
    "smollm2": "starcoder",
    "ggml-vocab-llama-bpe": "llama-bpe",
    "ggml-vocab-qwen2": "qwen2",
    "ggml-vocab-qwen35": "qwen35",
    "qwen2.5-coder-0.5b": "qwen2",
    "ggml-vocab-deepseek-coder": "deepseek-coder",
}


def oracle(name):
    vocab = Vocab(name)
    if name in BPE_RULES:
        return bpe(vocab, BPE_RULES[name])
    if vocab.model == "gemma4":
        return gemma4(vocab)
    if vocab.model == "bert":
        return wordpiece(vocab)
    if vocab.model == "t5":
        return unigram(vocab)
    if vocab.model == "llama":
        return processor(vocab, model_type=2).encode
    return None


def main():
    """Makes all checksums, or renews those of the vocabularies named on the command line and prints their ids."""
    texts = json.loads((GOLDEN / "pretokenizers.json").read_text())["strings"]
    out = GOLDEN / "encodings.json"
    names = sys.argv[1:]
    golden = json.loads(out.read_text()) if names else {}
    for path in sorted(CACHE.glob("*.gguf")):
        if names and path.stem not in names:
            continue
        encode = oracle(path.stem)
        if encode is None:
            print(f"{path.stem}: no oracle", file=sys.stderr)
            continue
        ids = [encode(text) for text in texts]
        golden[path.stem] = [checksum(row) for row in ids]
        if names:
            for text, row in zip(texts, ids):
                print(json.dumps(text), row)
    out.write_text(json.dumps(golden, indent=0, separators=(",", ":"), sort_keys=True) + "\n")
    print(out, out.stat().st_size, len(golden), "vocabularies")


if __name__ == "__main__":
    main()
