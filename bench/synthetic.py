#!/usr/bin/env python3
"""Write a GGUF file in the shape of a known model, with random weights, to measure the speed of models that no registry has.

    python3 -m pip install gguf numpy
    python3 bench/synthetic.py llama-3.2-1b VOCABULARY.gguf OUT.gguf

The types are those that llama.cpp's Q4_K_M gives each tensor (gpt-oss: MXFP4 experts, Q8_0 for the other matrices), or with
`--type` one for all matrices. The tokenizer is copied from any GGUF file with at most as
many tokens, and filled up with unused ones. What such a model says is noise.
"""

import argparse
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type, GGUFReader, GGUFValueType, GGUFWriter
from gguf import RopeScalingType

UNUSED_TOKEN = 5


@dataclass
class Shape:
    arch: str
    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int
    rope_base: float
    epsilon: float
    tied: bool
    biases: bool
    context: int
    # Of a layer, and those that a token goes through; `inner` is then the width of one.
    experts: int = 0
    used: int = 0
    head_norms: bool = False
    # Positions that every second layer looks back; and by how much positions go beyond a first context, which is that long.
    window: int = 0
    yarn: tuple[float, int] | None = None

    @property
    def gpt_oss(self):
        """Whether there are attention sinks, and biases of everything."""
        return self.arch == "gpt-oss"


SHAPES = {
    "llama-3.2-1b": Shape("llama", 16, 2048, 8192, 32, 8, 64, 128256, 5e5, 1e-5, True, False, 131072),
    "llama-2-7b": Shape("llama", 32, 4096, 11008, 32, 32, 128, 32000, 1e4, 1e-5, False, False, 4096),
    "llama-3-8b": Shape("llama", 32, 4096, 14336, 32, 8, 128, 128256, 5e5, 1e-5, False, False, 8192),
    "qwen2.5-7b": Shape("qwen2", 28, 3584, 18944, 28, 4, 128, 152064, 1e6, 1e-6, False, True, 32768),
    "qwen3-30b-a3b": Shape(
        "qwen3moe", 48, 2048, 768, 32, 4, 128, 151936, 1e6, 1e-6, False, False, 40960, 128, 8, True
    ),
    "gpt-oss-20b": Shape(
        "gpt-oss", 24, 2880, 2880, 64, 8, 64, 201088, 1.5e5, 1e-5, False, True, 131072, 32, 4,
        window=128, yarn=(32.0, 4096),
    ),
    # Small enough for a CPU's memory and patience.
    "small-experts": Shape("qwen3moe", 8, 1024, 512, 16, 4, 64, 32768, 1e6, 1e-6, False, False, 8192, 32, 4, True),
}
# Blocks after which a tensor repeats: a prime number, so that no two rows are the same.
DISTINCT_BLOCKS = 262_139
# Scales that keep weights of random codes at a standard deviation of some hundredths, as those of real models are; by
# their places in a block.
SCALES = {
    Type.Q4_K: [(0, 8e-5), (2, 6e-4)],
    Type.Q6_K: [(208, 6.2e-5)],
    Type.Q4_0: [(0, 4e-3)],
    Type.Q8_0: [(0, 2.5e-4)],
}
# As much for MXFP4: the exponent of 2^-7, in the first byte.
MXFP4_EXPONENT = 120
# The upper byte of numbers in BF16 from 2^-7 to 2^-5, but for the sign.
BF16_EXPONENT = 0x3C


def tensors(shape):
    """Name, dimensions (rows and columns, or elements) and type of each tensor."""

    def better(layer):
        """Whether the recipe spends more bits on this layer."""
        eighth = shape.layers // 8
        return layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2

    # What the recipe gives most matrices, some of them and experts.
    most, some, experts_type = (Type.Q8_0, Type.Q8_0, Type.MXFP4) if shape.gpt_oss else (Type.Q4_K, Type.Q6_K, Type.Q4_K)
    queries, keys = shape.heads * shape.head, shape.kv_heads * shape.head
    yield "token_embd.weight", (shape.vocabulary, shape.width), some if shape.tied else most
    yield "output_norm.weight", (shape.width,), Type.F32
    if not shape.tied:
        yield "output.weight", (shape.vocabulary, shape.width), some
    for layer in range(shape.layers):
        good = some if better(layer) else most
        matrices = [
            ("attn_q", queries, shape.width, most), ("attn_k", keys, shape.width, most),
            ("attn_v", keys, shape.width, good), ("attn_output", shape.width, queries, most),
        ]
        kind, experts = ("_exps", (shape.experts,)) if shape.experts else ("", ())
        blocks = [
            ("ffn_gate", shape.inner, shape.width, experts_type), ("ffn_up", shape.inner, shape.width, experts_type),
            ("ffn_down", shape.width, shape.inner, experts_type if shape.gpt_oss else good),
        ]
        for norm in ["attn_norm", "post_attention_norm" if shape.gpt_oss else "ffn_norm"]:
            yield f"blk.{layer}.{norm}.weight", (shape.width,), Type.F32
        for norm in ["attn_q_norm", "attn_k_norm"] if shape.head_norms else []:
            yield f"blk.{layer}.{norm}.weight", (shape.head,), Type.F32
        if shape.experts:
            yield f"blk.{layer}.ffn_gate_inp.weight", (shape.experts, shape.width), Type.F32
        if shape.gpt_oss:
            yield f"blk.{layer}.ffn_gate_inp.bias", (shape.experts,), Type.F32
            yield f"blk.{layer}.attn_sinks.weight", (shape.heads,), Type.F32
        for name, rows, columns, ty in blocks:
            yield f"blk.{layer}.{name}{kind}.weight", (*experts, rows, columns), ty
            if shape.gpt_oss:
                yield f"blk.{layer}.{name}{kind}.bias", (*experts, rows), Type.F32
        for name, rows, columns, ty in matrices:
            yield f"blk.{layer}.{name}.weight", (rows, columns), ty
            if shape.biases and (shape.gpt_oss or name != "attn_output"):
                yield f"blk.{layer}.{name}.bias", (rows,), Type.F32


def stored(dimensions, ty):
    """Dimensions of the array of bytes (of f32 for vectors) that holds a tensor."""
    if ty == Type.F32:
        return dimensions
    elements, size = GGML_QUANT_SIZES[ty]
    *rows, columns = dimensions
    if columns % elements:
        raise SystemExit(f"{ty.name} has blocks of {elements}, which {columns} columns do not fill")
    return *rows, columns // elements * size


def values(random, name, dimensions, ty):
    if ty == Type.F32:
        ones = "norm" in name
        return numpy.ones(dimensions, numpy.float32) if ones else random.standard_normal(dimensions, numpy.float32) / 10
    elements, size = GGML_QUANT_SIZES[ty]
    count = numpy.prod(dimensions, dtype=int) // elements
    # Random bytes cost more time than everything else.
    blocks = random.integers(0, 256, (min(count, DISTINCT_BLOCKS), size), numpy.uint8)
    if ty == Type.BF16:
        blocks[:, 1] = BF16_EXPONENT | blocks[:, 1] & 0x80
    if ty == Type.MXFP4:
        blocks[:, 0] = MXFP4_EXPONENT
    for place, scale in SCALES.get(ty, []):
        blocks[:, place : place + 2] = numpy.frombuffer(numpy.float16(scale).tobytes(), numpy.uint8)
    return numpy.resize(blocks, (count, size)).reshape(stored(dimensions, ty))


def copy_tokenizer(writer, source, size):
    fills = {"tokens": lambda i: f"[unused {i}]", "token_type": lambda i: UNUSED_TOKEN, "scores": lambda i: 0.0}
    for key, field in GGUFReader(source).fields.items():
        if not key.startswith("tokenizer."):
            continue
        content = field.contents()
        if field.types[0] != GGUFValueType.ARRAY:
            writer.add_key_value(key, content, field.types[0])
            continue
        fill = fills.get(key.rpartition(".")[2])
        if fill:
            if len(content) > size:
                raise SystemExit(f"{source}: {len(content)} tokens, expected at most {size}")
            content = content + [fill(i) for i in range(len(content), size)]
        writer.add_array(key, content)


def write(shape, name, ty, vocabulary, out):
    def typed():
        return ((tensor, dims, ty if ty and own != Type.F32 else own) for tensor, dims, own in tensors(shape))

    writer = GGUFWriter(out, shape.arch)
    writer.add_name(f"{name} with random weights")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.used)
        writer.add_expert_feed_forward_length(shape.inner)
    writer.add_key_length(shape.head)
    writer.add_value_length(shape.head)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_freq_base(shape.rope_base)
    if shape.window:
        writer.add_sliding_window(shape.window)
    if shape.yarn:
        factor, context = shape.yarn
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(factor)
        writer.add_rope_scaling_orig_ctx_len(context)
    writer.add_layer_norm_rms_eps(shape.epsilon)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_quantization_version(2)
    copy_tokenizer(writer, vocabulary, shape.vocabulary)
    for tensor, dimensions, own in typed():
        array = stored(dimensions, own)
        floats = own == Type.F32
        element = numpy.dtype(numpy.float32 if floats else numpy.uint8)
        size = int(numpy.prod(array)) * element.itemsize
        writer.add_tensor_info(tensor, array, element, size, None if floats else own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    random = numpy.random.Generator(numpy.random.SFC64(0))
    for tensor, dimensions, own in typed():
        writer.write_tensor_data(values(random, tensor, dimensions, own))
    writer.close()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--type", choices=[ty.name for ty in SCALES] + ["BF16"], help="of all matrices")
    parser.add_argument("--layers", type=int, help="as many, in place of the model's")
    parser.add_argument("vocabulary", type=Path, help="a GGUF file with a tokenizer")
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    part = options.out.with_name(f".{os.getpid()}-{options.out.name}")
    try:
        ty = Type[options.type] if options.type else None
        shape = SHAPES[options.shape]
        shape = replace(shape, layers=options.layers or shape.layers)
        write(shape, options.shape, ty, options.vocabulary, part)
        os.replace(part, options.out)
    finally:
        part.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
