"""Tiny RWKV models for `make-decoder-goldens.py`, in f64 from published formulas."""

import math

import numpy as np

from tiny_models import VOCAB, silu, tiny_weights

DIM = 128


def layer_norm(x, get, name, eps=1e-5, groups=1):
    parts = x.reshape(len(x), groups, -1)
    mean = parts.mean(axis=-1, keepdims=True)
    parts = (parts - mean) / np.sqrt(((parts - mean) ** 2).mean(axis=-1, keepdims=True) + eps)
    return parts.reshape(x.shape) * get(f"{name}.weight") + get(f"{name}.bias")


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def before(x):
    """The rows of the tokens before, 0 for the first."""
    return np.concatenate([np.zeros_like(x[:1]), x[:-1]])


RWKV_SHAPES = {
    "token_embd.weight": (VOCAB, DIM),
    "output.weight": (VOCAB, DIM),
    "time_mix_key.weight": (DIM, DIM),
    "time_mix_value.weight": (DIM, DIM),
    "time_mix_receptance.weight": (DIM, DIM),
    "time_mix_output.weight": (DIM, DIM),
    "channel_mix_key.weight": (160, DIM),
    "channel_mix_value.weight": (DIM, 160),
}


def rwkv(ids, get, time_mix, gated, rescale):
    x = layer_norm(get("token_embd.weight")[ids], get, "token_embd_norm")
    for layer in range(2):
        weight = lambda tensor: get(f"blk.{layer}.{tensor}.weight")
        h = layer_norm(x, get, f"blk.{layer}.attn_norm")
        x = x + time_mix(layer, weight, h, before(h)) @ weight("time_mix_output").T
        h = layer_norm(x, get, f"blk.{layer}.attn_norm_2")
        mixed = lambda part: h + (before(h) - h) * weight(f"channel_mix_lerp_{part}")
        y = np.maximum(mixed("k") @ weight("channel_mix_key").T, 0.0) ** 2 @ weight("channel_mix_value").T
        if gated:
            y = sigmoid(mixed("r") @ weight("channel_mix_receptance").T) * y
        x = (x + y) * (0.5 if rescale else 1.0)
    return layer_norm(x, get, "output_norm") @ get("output.weight").T


def rwkv6(ids):
    """https://arxiv.org/abs/2404.05892"""
    heads, mix = 4, 16
    get = tiny_weights({
        **RWKV_SHAPES,
        "time_mix_w1.weight": (5 * mix, DIM),
        "time_mix_w2.weight": (5 * DIM, mix),
        "time_mix_lerp_fused.weight": (5, DIM),
        "time_mix_first.weight": (heads, DIM // heads),
        "time_mix_decay_w1.weight": (32, DIM),
        "time_mix_decay_w2.weight": (DIM, 32),
        "time_mix_gate.weight": (DIM, DIM),
        "channel_mix_receptance.weight": (DIM, DIM),
    })

    def time_mix(layer, weight, h, past):
        x = h + (past - h) * weight("time_mix_lerp_x")
        small = np.tanh(x @ weight("time_mix_w1").T).reshape(len(h), 5, mix)
        own = [small[:, i] @ weight("time_mix_w2").reshape(5, DIM, mix)[i].T for i in range(5)]
        w, k, v, r, g = (h + (past - h) * (weight("time_mix_lerp_fused")[i] + own[i]) for i in range(5))
        r, k, v, g = (y @ weight(f"time_mix_{name}").T
                      for y, name in ((r, "receptance"), (k, "key"), (v, "value"), (g, "gate")))
        w = np.tanh(w @ weight("time_mix_decay_w1").T) @ weight("time_mix_decay_w2").T + weight("time_mix_decay")
        r, k, v, w = (y.reshape(len(h), heads, -1) for y in (r, k, v, np.exp(-np.exp(w))))
        first, out = weight("time_mix_first"), np.zeros((len(h), heads, DIM // heads))
        state = np.zeros((heads, DIM // heads, DIM // heads))
        for t in range(len(h)):
            new = k[t][:, :, None] * v[t][:, None, :]
            out[t] = np.einsum("hi,hij->hj", r[t], state + first[:, :, None] * new)
            state = w[t][:, :, None] * state + new
        y = layer_norm(out.reshape(len(h), DIM), get, f"blk.{layer}.time_mix_ln", 64e-5, heads)
        return y * silu(g)

    return rwkv(ids, get, time_mix, True, True)


def rwkv7(ids):
    """https://arxiv.org/abs/2503.14456"""
    heads, width = 4, DIM // 4
    get = tiny_weights({
        **RWKV_SHAPES,
        "time_mix_lerp_fused.weight": (6, DIM),
        **{f"time_mix_{part}1.weight": (rank, DIM) for part, rank in (("w", 32), ("a", 16), ("v", 16), ("g", 48))},
        **{f"time_mix_{part}2.weight": (DIM, rank) for part, rank in (("w", 32), ("a", 16), ("v", 16), ("g", 48))},
    })
    kept = {}

    def time_mix(layer, weight, h, past):
        r, w, k, v, a, g = (h + (past - h) * weight("time_mix_lerp_fused")[i] for i in range(6))
        lora = lambda x, part, between: between(x @ weight(f"time_mix_{part}1").T) @ weight(f"time_mix_{part}2").T
        same = lambda x: x
        decay = np.exp(-math.exp(-0.5) * sigmoid(lora(w, "w", np.tanh) + weight("time_mix_w0")))
        value = v @ weight("time_mix_value").T
        if layer == 0:
            kept["v"] = value
        else:
            value = value + (kept["v"] - value) * sigmoid(lora(v, "v", same) + weight("time_mix_v0"))
        r, key = r @ weight("time_mix_receptance").T, k @ weight("time_mix_key").T
        rate = sigmoid(lora(a, "a", same) + weight("time_mix_a0"))
        split = lambda x: x.reshape(len(h), heads, width)
        removal = split(key * weight("time_mix_k_k"))
        removal = removal / np.maximum(np.linalg.norm(removal, axis=-1, keepdims=True), 1e-12)
        key = key * (1.0 + (rate - 1.0) * weight("time_mix_k_a"))
        r, key, value, decay, rate = map(split, (r, key, value, decay, rate))
        out, state = np.zeros((len(h), heads, width)), np.zeros((heads, width, width))
        for t in range(len(h)):
            removed = np.einsum("hi,hij->hj", -removal[t], state)
            state = decay[t][:, :, None] * state + key[t][:, :, None] * value[t][:, None, :]
            state = state + (removal[t] * rate[t])[:, :, None] * removed[:, None, :]
            out[t] = np.einsum("hi,hij->hj", r[t], state)
        y = layer_norm(out.reshape(len(h), DIM), get, f"blk.{layer}.time_mix_ln", 64e-5, heads)
        score = (r * key * weight("time_mix_r_k").reshape(heads, width)).sum(axis=-1, keepdims=True)
        return (y + (score * value).reshape(len(h), DIM)) * lora(g, "g", sigmoid)

    return rwkv(ids, get, time_mix, False, False)
