"""What the scripts share that compute tiny models with numpy: weights by a formula that the tests know too
(`wootz_testkit::tiny::named_elements`), and the pieces of transformers, in f64 from published formulas."""

import math

import numpy as np

VOCAB = 288


def weight(name, rows, cols):
    """Numbers from the weight's name alone: FNV-1a of it, then a multiplicative hash of each index."""
    seed = 0x811C9DC5
    for byte in name.encode():
        seed = (seed ^ byte) * 0x01000193 & 0xFFFFFFFF
    index = np.arange(rows * cols, dtype=np.uint64)
    mixed = (index * np.uint64(2654435761) + np.uint64(seed)) & np.uint64(0xFFFFFFFF)
    mixed = (mixed ^ (mixed >> np.uint64(15))) * np.uint64(2246822519) & np.uint64(0xFFFFFFFF)
    mixed = mixed ^ (mixed >> np.uint64(13))
    unit = (mixed >> np.uint64(8)).astype(np.float64) / 2.0**23 - 1.0
    if name.endswith(".bias"):
        numbers = 0.1 * unit
    elif name.endswith("time_mix_decay.weight"):
        numbers = unit - 2.0
    elif name.endswith(".ssm_a"):
        numbers = -((unit + 1.001) ** 2) * 0.4
    elif rows == 1 or name.endswith("norm.weight"):
        numbers = 1.0 + 0.2 * unit
    else:
        numbers = unit * math.sqrt(3.0 / cols)
    return numbers.astype(np.float32).astype(np.float64).reshape(rows, cols)


def tiny_weights(shapes, dim=128):
    """Gives weights by the name that GGUF files have for them; `shapes` by that name without the layer, else a vector."""
    def get(name):
        kind = name.split(".", 2)[2] if name.startswith("blk.") else name
        numbers = weight(name, *shapes.get(kind, (1, dim)))
        return numbers[0] if len(numbers) == 1 else numbers
    return get


def rms_norm(x, scale, eps=1e-5):
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * scale


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def silu(x):
    return x / (1.0 + np.exp(-x))


def turn(x, angle):
    """Turns element i of [tokens, heads, width] with element i + width / 2 by [tokens, width / 2]."""
    half = x.shape[-1] // 2
    a, b, angle = x[..., :half], x[..., half:], angle[:, None, :]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], axis=-1)


def rotate(x, base):
    """Rotary positions of [tokens, heads, width], from 0 on."""
    half = x.shape[-1] // 2
    return turn(x, np.arange(len(x))[:, None] * base ** (-np.arange(half) / half))


def attend(q, k, v, causal, window=None, sinks=None):
    """[tokens, heads, width] each; key heads are shared by equal parts of the query heads. `sinks` are scores of each
    head that take part in its softmax and add no value."""
    share = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, share, axis=1), np.repeat(v, share, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1])
    back = np.arange(len(q))[:, None] - np.arange(len(q))[None, :]
    if causal:
        scores = np.where(back >= 0, scores, -np.inf)
    if window:
        scores = np.where(back < window, scores, -np.inf)
    if sinks is not None:
        sinks = np.broadcast_to(sinks[:, None, None], (*scores.shape[:2], 1))
        scores = np.concatenate([scores, sinks], axis=-1)
    weights = softmax(scores)[..., : len(q)]
    return np.einsum("hqk,khd->qhd", weights, v).reshape(len(q), -1)


def listed(x):
    return [float(f"{v:.7g}") for v in np.atleast_1d(x)]
