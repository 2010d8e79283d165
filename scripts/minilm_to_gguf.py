"""Write the model of a sentence-transformers BERT as GGUF: weights as they are, as f32."""

import json
import struct

U32, F32, BOOL, STRING, ARRAY, I32 = 4, 6, 7, 8, 9, 5
ALIGNMENT = 32

GLOBAL = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.LayerNorm": "token_embd_norm",
}
LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
SPECIAL = {"bos": "[CLS]", "cls": "[CLS]", "unknown": "[UNK]", "seperator": "[SEP]", "padding": "[PAD]", "mask": "[MASK]"}


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def pack(kind, value):
    if kind == ARRAY:
        kind, items = value
        return struct.pack("<IQ", kind, len(items)) + b"".join(pack(kind, item) for item in items)
    return string(value) if kind == STRING else struct.pack({U32: "<I", F32: "<f", BOOL: "<?", I32: "<i"}[kind], value)


def tensor_name(name):
    """The name that GGUF files have for a tensor; None for one that they lack."""
    stem, _, part = name.rpartition(".")
    if stem.startswith("encoder.layer."):
        _, _, layer, inner = stem.split(".", 3)
        return f"blk.{layer}.{LAYER[inner]}.{part}"
    return f"{GLOBAL[stem]}.{part}" if stem in GLOBAL else None


def metadata(config, pooling, words):
    """Key, type and value of every entry."""
    way = {"pooling_mode_mean_tokens": 1, "pooling_mode_cls_token": 2}
    mode = next(number for key, number in way.items() if pooling[key])
    # GGUF marks the start of a word instead of its continuation.
    special = [word.startswith("[") and word.endswith("]") for word in words]
    plain = [w if s else w[2:] if w.startswith("##") else "\u2581" + w for w, s in zip(words, special)]
    entries = [
        ("general.architecture", STRING, "bert"),
        ("bert.block_count", U32, config["num_hidden_layers"]),
        ("bert.context_length", U32, config["max_position_embeddings"]),
        ("bert.embedding_length", U32, config["hidden_size"]),
        ("bert.feed_forward_length", U32, config["intermediate_size"]),
        ("bert.attention.head_count", U32, config["num_attention_heads"]),
        ("bert.attention.layer_norm_epsilon", F32, config["layer_norm_eps"]),
        ("bert.attention.causal", BOOL, False),
        ("bert.pooling_type", U32, mode),
        ("tokenizer.ggml.model", STRING, "bert"),
        ("tokenizer.ggml.token_type_count", U32, config["type_vocab_size"]),
        ("tokenizer.ggml.tokens", ARRAY, (STRING, plain)),
        ("tokenizer.ggml.token_type", ARRAY, (I32, [3 if s else 1 for s in special])),
    ]
    return entries + [(f"tokenizer.ggml.{r}_token_id", U32, words.index(t)) for r, t in SPECIAL.items()]


def convert(read, out):
    """`read` gives a file of the model's folder by its name; `out` is a file that takes bytes."""
    data = read("model.safetensors")
    (length,) = struct.unpack("<Q", data[:8])
    tensors = [
        (tensor_name(name), info["shape"], data[8 + length + info["data_offsets"][0] : 8 + length + info["data_offsets"][1]])
        for name, info in sorted(json.loads(data[8 : 8 + length]).items())
        if tensor_name(name) and info["dtype"] == "F32"
    ]
    config, pooling = json.loads(read("config.json")), json.loads(read("1_Pooling/config.json"))
    entries = metadata(config, pooling, read("vocab.txt").decode().split("\n")[: config["vocab_size"]])
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries))
    head += b"".join(string(key) + struct.pack("<I", kind) + pack(kind, value) for key, kind, value in entries)
    at = 0
    for name, shape, numbers in tensors:
        head += string(name) + struct.pack("<I", len(shape))
        head += b"".join(struct.pack("<Q", size) for size in reversed(shape)) + struct.pack("<IQ", 0, at)
        at += len(numbers) + -len(numbers) % ALIGNMENT
    out.write(head + bytes(-len(head) % ALIGNMENT))
    for _, _, numbers in tensors:
        out.write(numbers + bytes(-len(numbers) % ALIGNMENT))
