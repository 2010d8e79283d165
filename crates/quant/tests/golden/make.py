"""Writes golden.bin for tests/golden.rs with independent decoders and quantisers.

    pip install gguf
    python tests/golden/make.py --ggml libggml-base.so

`gguf` decodes most types and quantises some. A build of ggml (such as the shared library that comes with the
package llama-cpp-python) does the rest, and is compared with `gguf` where both know a type.

golden.bin is a list of records: kind u8, type id u32, length of input u32, length of output u32, input, output; all
little endian. Kinds:
  1  decode: blocks, values (f32)
  2  decode of pseudo-random blocks: count (u32), digest of the values (u64)
  3  encode, bytes determined: stream and elements (u32 each), more values (f32); blocks of both
  4  encode, search: stream and elements (u32 each), squared error and weighted squared error of the reference (f64)
"""

import argparse
import ctypes
import struct
from pathlib import Path

import numpy as np
from gguf import quants
from gguf.constants import GGMLQuantizationType as G

np.seterr(all="ignore")
U64 = np.uint64

# name: id, elements, bytes, offsets of the f16 fields
TYPES = {
    "Q4_0": (2, 32, 18, [0]),
    "Q4_1": (3, 32, 20, [0, 2]),
    "Q5_0": (6, 32, 22, [0]),
    "Q5_1": (7, 32, 24, [0, 2]),
    "Q8_0": (8, 32, 34, [0]),
    "Q8_1": (9, 32, 36, [0, 2]),
    "Q2_K": (10, 256, 84, [80, 82]),
    "Q3_K": (11, 256, 110, [108]),
    "Q4_K": (12, 256, 144, [0, 2]),
    "Q5_K": (13, 256, 176, [0, 2]),
    "Q6_K": (14, 256, 210, [208]),
    "Q8_K": (15, 256, 292, []),
    "IQ2_XXS": (16, 256, 66, [0]),
    "IQ2_XS": (17, 256, 74, [0]),
    "IQ3_XXS": (18, 256, 98, [0]),
    "IQ1_S": (19, 256, 50, [0]),
    "IQ4_NL": (20, 32, 18, [0]),
    "IQ3_S": (21, 256, 110, [0]),
    "IQ2_S": (22, 256, 82, [0]),
    "IQ4_XS": (23, 256, 136, [0]),
    "IQ1_M": (29, 256, 56, []),
    "TQ1_0": (34, 256, 54, [52]),
    "TQ2_0": (35, 256, 66, [64]),
    "MXFP4": (39, 32, 17, []),
    "NVFP4": (40, 64, 36, []),
    "Q1_0": (41, 128, 18, [0]),
    "Q2_0": (42, 64, 18, [0]),
}
PLAIN = {
    "F32": (0, "<f4"),
    "F16": (1, "<f2"),
    "I8": (24, "<i1"),
    "I16": (25, "<i2"),
    "I32": (26, "<i4"),
    "I64": (27, "<i8"),
    "F64": (28, "<f8"),
    "BF16": (30, None),
}
EXACT_GGUF = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4"]
EXACT_GGML = EXACT_GGUF + ["Q8_1", "Q8_K", "Q1_0", "Q2_0", "NVFP4"]
SEARCHED = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"]
RANDOM_BLOCKS = 512
SEARCH_ELEMENTS = 64 * 256


def mix(z):
    z = (z ^ (z >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> U64(27))) * U64(0x94D049BB133111EB)
    return z ^ (z >> U64(31))


def words(stream, count):
    """splitmix64 from the state `stream << 32`."""
    return mix((U64(stream) << U64(32)) + (np.arange(count, dtype=U64) + U64(1)) * U64(0x9E3779B97F4A7C15))


def random_bytes(stream, count):
    return words(stream, -(-count // 8)).view(np.uint8)[:count].copy()


def random_values(stream, count):
    """Exactly representable, about normal with deviation 0.58, every 61st value times 4."""
    parts = words(stream, count).view(np.uint16).reshape(count, 4).astype(np.int64)
    values = ((parts.sum(axis=1) - 131070) / 65536).astype(np.float32)
    values[::61] *= np.float32(4)
    return values


def digest(values):
    """Sum of mixed bits and positions; every NaN counts as the same one."""
    bits = values.astype("<f4").view(np.uint32).copy()
    bits[np.isnan(values)] = 0x7FC00000
    return int(mix(bits.astype(U64) | (np.arange(len(bits), dtype=U64) << U64(32))).sum(dtype=U64))


def c_name(name):
    return name[0].lower() + name[1:] if name.endswith("_K") else name.lower()


def c_decode(lib, name, blocks):
    _, elements, size, _ = TYPES[name]
    out = np.empty(len(blocks) // size * elements, dtype=np.float32)
    fn = getattr(lib, f"dequantize_row_{c_name(name)}")
    fn(blocks.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(len(out)))
    return out


def c_encode(lib, name, values):
    _, elements, size, _ = TYPES[name]
    out = np.zeros(len(values) // elements * size, dtype=np.uint8)
    fn = getattr(lib, f"quantize_row_{c_name(name)}_ref")
    fn(values.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(len(values)))
    return out


def decode(lib, name, blocks):
    if name == "Q8_1":  # no decoder anywhere: scale times byte
        b = blocks.reshape(-1, 36)
        return (b[:, :2].copy().view("<f2").astype(np.float32) * b[:, 4:].view(np.int8)).astype(np.float32).ravel()
    try:
        values = quants.dequantize(blocks, G[name]).astype(np.float32).ravel()
    except (NotImplementedError, KeyError):
        return c_decode(lib, name, blocks)
    assert digest(values) == digest(c_decode(lib, name, blocks)), f"the oracles differ for {name}"
    return values


def edge_blocks(name, stream):
    """Zeros, ones, then random blocks with ordinary, subnormal and largest scales."""
    _, _, size, halves = TYPES[name]
    blocks = [np.zeros(size, np.uint8), np.full(size, 255, np.uint8)]
    for k, scale in enumerate([-0.0123, 6e-8, 65504]):
        block = random_bytes(stream + k, size)
        for at in halves:
            block[at : at + 2] = np.array([scale], "<f2").view(np.uint8)
        if name == "Q8_K":
            block[:4] = np.array([scale], "<f4").view(np.uint8)
        blocks.append(block)
    return np.concatenate(blocks)


def half_up_edges(elements):
    """Values whose codes sit on rounding boundaries, and a block of zeros, of equals, and of one spike."""
    rows = [
        np.zeros(elements),
        np.full(elements, 0.5),
        np.full(elements, -3.0),
        (np.arange(elements) % 31 - 15) / 2,
        np.where(np.arange(elements) == 7, -100.0, 0.001),
        (np.arange(elements) - elements / 2) * 1e-6,
    ]
    return np.concatenate(rows).astype(np.float32)


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--ggml", required=True, help="shared library of ggml")
    args.add_argument("--out", default=Path(__file__).with_name("golden.bin"))
    args = args.parse_args()
    lib = ctypes.CDLL(args.ggml)
    if hasattr(lib, "ggml_init"):
        lib.ggml_init.restype = ctypes.c_void_p
        lib.ggml_init((ctypes.c_uint64 * 3)())  # fills tables
    out = []

    def record(kind, ident, given, expected):
        out.append(struct.pack("<BIII", kind, ident, len(given), len(expected)) + given + expected)

    for name, (ident, elements, size, _) in TYPES.items():
        edges = edge_blocks(name, 1000 + 10 * ident)
        record(1, ident, edges.tobytes(), decode(lib, name, edges).astype("<f4").tobytes())
        many = random_bytes(ident, RANDOM_BLOCKS * size)
        value = digest(decode(lib, name, many))
        record(2, ident, struct.pack("<I", RANDOM_BLOCKS), struct.pack("<Q", value))
    for name, (ident, kind) in PLAIN.items():
        data = random_bytes(ident, 64)
        if name == "BF16":
            values = quants.dequantize(data, G.BF16)
        else:
            values = data.view(kind).astype(np.float32)
        record(1, ident, data.tobytes(), values.astype("<f4").tobytes())

    for name in EXACT_GGML:
        ident, elements, _, _ = TYPES[name]
        count = max(512, 2 * elements)
        edges = half_up_edges(elements)
        values = np.concatenate([random_values(ident, count), edges])
        blocks = c_encode(lib, name, values)
        if name in EXACT_GGUF:
            assert (quants.quantize(values, G[name]) == blocks).all(), f"the oracles differ for {name}"
        record(3, ident, struct.pack("<II", ident, count) + edges.astype("<f4").tobytes(), blocks.tobytes())
    values = random_values(1, 256)
    record(3, 1, struct.pack("<II", 1, 256), values.astype("<f2").tobytes())
    record(3, 30, struct.pack("<II", 1, 256), quants.quantize(values, G.BF16).tobytes())

    for name in SEARCHED:
        ident = TYPES[name][0]
        values = random_values(7000 + ident, SEARCH_ELEMENTS)
        error = decode(lib, name, c_encode(lib, name, values)).astype(np.float64) - values
        weights = np.abs(values.astype(np.float64))
        record(
            4,
            ident,
            struct.pack("<II", 7000 + ident, SEARCH_ELEMENTS),
            struct.pack("<dd", (error**2).sum(), (weights * error**2).sum()),
        )
    Path(args.out).write_bytes(b"".join(out))


if __name__ == "__main__":
    main()
