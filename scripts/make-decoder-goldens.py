#!/usr/bin/env python3
"""Write crates/wootz/tests/golden/decoders.json: logits of tiny models computed with numpy from published formulas.

Their weights follow a formula that the tests know too.

    pip install numpy
    python3 scripts/make-decoder-goldens.py
"""

import json
import math
from pathlib import Path

import numpy as np

from recurrent_models import mamba, mamba2
from rwkv_models import rwkv6, rwkv7
from tiny_models import VOCAB, attend, listed, rms_norm, rotate, silu, softmax, tiny_weights, turn

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parent / "crates/wootz/tests/golden/decoders.json"

DIM = 128
# The tokens after which logits are kept: in the middle of the text, and at its end.
TEXT = [(i * 37 + i * i * 11) % 256 for i in range(90)]
KEPT = [0, 40, 89]


def linear(get, x, name):
    return x @ get(f"{name}.weight").T + get(f"{name}.bias")


def attention_shapes(heads, kv_heads, width):
    """Shapes of the weights outside layers and of attention, with biases of q, k and v for models that have them."""
    shapes = {"token_embd.weight": (VOCAB, DIM), "output.weight": (VOCAB, DIM)}
    for part, count in [("q", heads), ("k", kv_heads), ("v", kv_heads)]:
        shapes[f"attn_{part}.weight"] = (count * width, DIM)
        shapes[f"attn_{part}.bias"] = (1, count * width)
    return {**shapes, "attn_output.weight": (DIM, heads * width)}


def yarn(half, base, factor, context, beta_fast=32.0, beta_slow=1.0):
    """Turns of each pair per position, and the factor on rotated elements (https://arxiv.org/abs/2309.00071); the ends
    of the ramp are whole dimensions."""
    pair = lambda beta: half * math.log(context / (beta * 2 * math.pi)) / math.log(base)
    low, high = max(math.floor(pair(beta_fast)), 0), min(math.ceil(pair(beta_slow)), 2 * half - 1)
    plain = base ** (-np.arange(half) / half)
    scaled = np.clip((np.arange(half) - low) / max(high - low, 0.001), 0.0, 1.0)
    return plain * (1.0 - scaled) + plain / factor * scaled, 0.1 * math.log(factor) + 1.0


def gpt_oss(ids):
    heads, kv_heads, width, experts, used, ff, window = 4, 2, 64, 6, 2, 96, 24
    get = tiny_weights({
        **attention_shapes(heads, kv_heads, width),
        "attn_sinks.weight": (1, heads),
        "ffn_gate_inp.weight": (experts, DIM),
        "ffn_gate_inp.bias": (1, experts),
        "ffn_gate_exps.weight": (experts * ff, DIM),
        "ffn_gate_exps.bias": (experts, ff),
        "ffn_up_exps.weight": (experts * ff, DIM),
        "ffn_up_exps.bias": (experts, ff),
        "ffn_down_exps.weight": (experts * DIM, ff),
        "ffn_down_exps.bias": (experts, DIM),
    })
    turns, magnitude = yarn(width // 2, 150000.0, 8.0, 64)
    angle = np.arange(len(ids))[:, None] * turns
    x = get("token_embd.weight")[ids]
    for layer in range(2):
        name = lambda tensor: f"blk.{layer}.{tensor}"
        h = rms_norm(x, get(name("attn_norm.weight")))
        q, k, v = (linear(get, h, name(f"attn_{n}")).reshape(len(ids), -1, width) for n in "qkv")
        q, k = (turn(heads, angle) * magnitude for heads in (q, k))
        y = attend(q, k, v, True, window if layer % 2 == 0 else None, get(name("attn_sinks.weight")))
        x = x + linear(get, y, name("attn_output"))
        h = rms_norm(x, get(name("post_attention_norm.weight")))
        scores = linear(get, h, name("ffn_gate_inp"))
        chosen = np.argsort(-scores, axis=-1)[:, :used]
        weights = softmax(np.take_along_axis(scores, chosen, axis=-1))
        matrix = lambda part, e: get(name(f"ffn_{part}_exps.weight")).reshape(experts, -1, ff if part == "down" else DIM)[e]
        product = lambda x, part, e: matrix(part, e) @ x + get(name(f"ffn_{part}_exps.bias"))[e]
        y = np.zeros_like(x)
        for token in range(len(ids)):
            for e, share in zip(chosen[token], weights[token]):
                gate = np.minimum(product(h[token], "gate", e), 7.0)
                up = np.clip(product(h[token], "up", e), -7.0, 7.0)
                y[token] += share * product(gate / (1.0 + np.exp(-1.702 * gate)) * (up + 1.0), "down", e)
        x = x + y
    return rms_norm(x, get("output_norm.weight")) @ get("output.weight").T


def qwen_vl(ids, width, base, head_norm):
    """The text side: all streams of positions stand where the token does, so that sections make no difference."""
    heads, kv_heads, ff = 4, 2, 160
    get = tiny_weights({
        **attention_shapes(heads, kv_heads, width),
        "attn_q_norm.weight": (1, width),
        "attn_k_norm.weight": (1, width),
        "ffn_gate.weight": (ff, DIM),
        "ffn_up.weight": (ff, DIM),
        "ffn_down.weight": (DIM, ff),
    })
    x = get("token_embd.weight")[ids]
    for layer in range(2):
        name = lambda tensor: f"blk.{layer}.{tensor}"
        product = lambda x, tensor: x @ get(name(f"{tensor}.weight")).T
        h = rms_norm(x, get(name("attn_norm.weight")))
        if head_norm:
            q, k, v = (product(h, f"attn_{n}").reshape(len(ids), -1, width) for n in "qkv")
            q, k = (rms_norm(y, get(name(f"attn_{n}_norm.weight"))) for n, y in (("q", q), ("k", k)))
        else:
            q, k, v = (linear(get, h, name(f"attn_{n}")).reshape(len(ids), -1, width) for n in "qkv")
        x = x + product(attend(rotate(q, base), rotate(k, base), v, True), "attn_output")
        h = rms_norm(x, get(name("ffn_norm.weight")))
        x = x + product(silu(product(h, "ffn_gate")) * product(h, "ffn_up"), "ffn_down")
    head = "token_embd.weight" if head_norm else "output.weight"
    return rms_norm(x, get("output_norm.weight")) @ get(head).T


MODELS = {
    "gpt-oss": gpt_oss,
    "qwen2vl": lambda ids: qwen_vl(ids, 32, 1e6, False),
    "qwen3vl": lambda ids: qwen_vl(ids, 64, 1e6, True),
    "mamba": mamba,
    "mamba2": mamba2,
    "rwkv6": rwkv6,
    "rwkv7": rwkv7,
}


def main():
    logits = {name: [listed(row) for row in run(TEXT)[KEPT]] for name, run in MODELS.items()}
    golden = {"text": TEXT, "kept": KEPT, "logits": logits}
    GOLDEN.write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
