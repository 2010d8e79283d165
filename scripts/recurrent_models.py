"""Tiny recurrent models for `make-decoder-goldens.py`, in f64 from published formulas.

No state is carried from token to token: each result is the sum over all tokens before it that a recurrence adds up to.
"""

import numpy as np

from tiny_models import VOCAB, rms_norm, silu, weight

DIM, INNER, LAYERS, WIDTH = 128, 256, 2, 4
# Mamba's states of a channel and columns of its time step; Mamba-2's heads, states and groups.
STATE, RANK = 16, 32
HEADS, STATE_2, GROUPS = 8, 32, 2


def convolve(x, factors, summands):
    """Each column over the last tokens: `factors` [columns, width], the newest token last."""
    padded = np.vstack([np.zeros((factors.shape[1] - 1, x.shape[1])), x])
    return np.stack([(padded[t : t + factors.shape[1]].T * factors).sum(axis=1) for t in range(len(x))]) + summands


def scan(x, step, rates, b, c, skip):
    """Selective scan of one head: x [tokens, width], step [tokens], rates [states], b and c [tokens, states].

    What token s leaves in token t's result is x[s] step[s] Σ_n c[t, n] b[s, n] exp(rates[n] Σ_{s < r <= t} step[r]).
    """
    passed = np.cumsum(step)
    between = passed[:, None] - passed[None, :]
    decay = np.exp(between[:, :, None] * rates[None, None, :])
    weights = np.einsum("tn,sn,tsn->ts", c, b, decay) * step[None, :]
    return np.tril(weights) @ x + skip * x


def softplus(x):
    return np.logaddexp(0.0, x)


def mamba_block(get, h):
    x, z = np.split(h @ get("ssm_in.weight", 2 * INNER, DIM).T, 2, axis=1)
    x = silu(convolve(x, get("ssm_conv1d.weight", INNER, WIDTH), get("ssm_conv1d.bias", 1, INNER)[0]))
    low, b, c = np.split(x @ get("ssm_x.weight", RANK + 2 * STATE, INNER).T, [RANK, RANK + STATE], axis=1)
    # As Falcon Mamba has them.
    low, b, c = (rms_norm(part, 1.0) for part in (low, b, c))
    step = softplus(low @ get("ssm_dt.weight", INNER, RANK).T + get("ssm_dt.bias", 1, INNER)[0])
    rates, skip = get("ssm_a", INNER, STATE), get("ssm_d", 1, INNER)[0]
    heads = [scan(x[:, [i]], step[:, i], rates[i], b, c, skip[i]) for i in range(INNER)]
    return np.hstack(heads) * silu(z) @ get("ssm_out.weight", DIM, INNER).T


def mamba2_block(get, h):
    columns = INNER + 2 * GROUPS * STATE_2
    projected = h @ get("ssm_in.weight", INNER + columns + HEADS, DIM).T
    z, xbc, step = np.split(projected, [INNER, INNER + columns], axis=1)
    xbc = silu(convolve(xbc, get("ssm_conv1d.weight", columns, WIDTH), get("ssm_conv1d.bias", 1, columns)[0]))
    x, b, c = np.split(xbc, [INNER, INNER + GROUPS * STATE_2], axis=1)
    step = softplus(step + get("ssm_dt.bias", 1, HEADS)[0])
    rates, skip = get("ssm_a", HEADS, 1), get("ssm_d", HEADS, 1)
    width, heads = INNER // HEADS, []
    for i in range(HEADS):
        own = slice(i // (HEADS // GROUPS) * STATE_2, (i // (HEADS // GROUPS) + 1) * STATE_2)
        head = x[:, i * width : (i + 1) * width]
        heads.append(scan(head, step[:, i], np.repeat(rates[i], STATE_2), b[:, own], c[:, own], skip[i, 0]))
    y = (np.hstack(heads) * silu(z)).reshape(len(h), GROUPS, INNER // GROUPS)
    y = rms_norm(y, get("ssm_norm.weight", GROUPS, INNER // GROUPS)).reshape(len(h), INNER)
    return y @ get("ssm_out.weight", DIM, INNER).T


def logits(block, ids):
    embeddings = weight("token_embd.weight", VOCAB, DIM)
    x = embeddings[ids]
    for layer in range(LAYERS):
        get = lambda name, rows, cols: weight(f"blk.{layer}.{name}", rows, cols)
        x = x + block(get, rms_norm(x, get("attn_norm.weight", 1, DIM)))
    return rms_norm(x, weight("output_norm.weight", 1, DIM)) @ embeddings.T


def mamba(ids):
    return logits(mamba_block, ids)


def mamba2(ids):
    return logits(mamba2_block, ids)
