"""Writes the golden files beside it with the gguf package, the reference implementation of the format.

    pip install gguf==0.19.0
    python make.py            write the files
    python make.py --check    compare them with what would be written

The tests read these files, and compare them byte for byte with what the crate's own writer makes.
"""

import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFEndian, GGUFValueType, GGUFWriter

HERE = Path(__file__).parent


def pattern(count, seed):
    """Bytes that a test can compute again: seed + 7 i, modulo 256."""
    return ((np.arange(count) * 7 + seed) % 256).astype(np.uint8)


def everything(path, endian):
    """Every value type, arrays of every type, a nested array, tensors of one to four dimensions."""
    writer = GGUFWriter(path, "golden", endianess=endian)
    writer.add_custom_alignment(64)
    writer.add_uint8("scalar.u8", 200)
    writer.add_int8("scalar.i8", -100)
    writer.add_uint16("scalar.u16", 60000)
    writer.add_int16("scalar.i16", -30000)
    writer.add_uint32("scalar.u32", 4000000000)
    writer.add_int32("scalar.i32", -2000000000)
    writer.add_float32("scalar.f32", 1.5e-5)
    writer.add_bool("scalar.true", True)
    writer.add_bool("scalar.false", False)
    writer.add_string("scalar.string", "rust – 錆 🦀")
    writer.add_uint64("scalar.u64", 2**64 - 1)
    writer.add_int64("scalar.i64", -(2**63))
    writer.add_float64("scalar.f64", 0.1)
    arrays = {
        "u8": (GGUFValueType.UINT8, [0, 128, 255]),
        "i8": (GGUFValueType.INT8, [-128, 0, 127]),
        "u16": (GGUFValueType.UINT16, [0, 65535]),
        "i16": (GGUFValueType.INT16, [-32768, 32767]),
        "u32": (GGUFValueType.UINT32, [1, 2, 4294967295]),
        "i32": (GGUFValueType.INT32, [-1, 0, 1]),
        "f32": (GGUFValueType.FLOAT32, [0.5, -2.25]),
        "bool": (GGUFValueType.BOOL, [True, False, True]),
        "string": (GGUFValueType.STRING, ["", "a", "bc", "日本", b"\xff\xfe"]),
        "u64": (GGUFValueType.UINT64, [2**63]),
        "i64": (GGUFValueType.INT64, [-1, 2**62]),
        "f64": (GGUFValueType.FLOAT64, [1e300, -0.0]),
        "nested": (GGUFValueType.ARRAY, [[1, 2], [3]]),
    }
    for name, (ty, values) in arrays.items():
        writer.add_key_value(f"array.{name}", values, GGUFValueType.ARRAY, sub_type=ty)
    writer.add_tensor("vector.f32", np.arange(5, dtype=np.float32) * 0.25)
    writer.add_tensor("matrix.f16", np.arange(12, dtype=np.float16).reshape(3, 4))
    writer.add_tensor("cube.i16", np.arange(24, dtype=np.int16).reshape(2, 3, 4))
    writer.add_tensor("four.i8", np.arange(24, dtype=np.int8).reshape(2, 1, 3, 4))
    quantised = [Type.Q4_0, Type.Q8_0, Type.Q4_K, Type.Q6_K, Type.IQ4_XS, Type.IQ2_XXS, Type.TQ2_0, Type.MXFP4]
    for seed, ty in enumerate(quantised):
        elements, size = gguf.GGML_QUANT_SIZES[ty]
        rows, cols = 3, 256
        data = pattern(rows * cols // elements * size, seed).reshape(rows, -1)
        writer.add_tensor(f"quantised.{ty.name}", data, raw_dtype=ty)
    finish(writer)


def shards(path):
    """Five tensors in three files."""
    writer = GGUFWriter(path, "golden", split_max_tensors=2)
    writer.add_block_count(1)
    for number in range(5):
        writer.add_tensor(f"t{number}", np.full((2, 4), number, dtype=np.float32))
    finish(writer)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_all(folder):
    everything(folder / "everything.gguf", GGUFEndian.LITTLE)
    everything(folder / "big-endian.gguf", GGUFEndian.BIG)
    shards(folder / "set.gguf")


def main():
    if "--check" not in sys.argv[1:]:
        write_all(HERE)
        return
    with tempfile.TemporaryDirectory() as folder:
        write_all(Path(folder))
        for new in sorted(Path(folder).iterdir()):
            if new.read_bytes() != (HERE / new.name).read_bytes():
                sys.exit(f"{new.name} differs")
            if "big" not in new.name:
                reader = gguf.GGUFReader(HERE / new.name)
                print(new.name, len(reader.fields), "fields", len(reader.tensors), "tensors")


if __name__ == "__main__":
    main()
