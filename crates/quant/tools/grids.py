"""Writes src/grids.rs: the codebooks of the IQ types, taken from the `gguf` package (pip install gguf).

Usage: python tools/grids.py > src/grids.rs
A codebook entry is one u16: the indices of its values, lowest element in the lowest bits.
"""

import textwrap

from gguf import quants

BOOKS = [
    ("IQ2_XXS", "256 entries of 8 magnitudes"),
    ("IQ2_XS", "512 entries of 8 magnitudes"),
    ("IQ2_S", "1024 entries of 8 magnitudes"),
    ("IQ3_XXS", "256 entries of 4 magnitudes"),
    ("IQ3_S", "512 entries of 4 magnitudes"),
    ("IQ1_S", "2048 entries of 8 values in -1..=1; also that of IQ1_M"),
]

print("//! Codebooks of the IQ types, written by `tools/grids.py`; do not edit by hand.\n")
print("use crate::grid::unpack;\n")
for name, what in BOOKS:
    cls = getattr(quants, name)
    cls.init_grid()
    count, width = cls.grid_shape
    values = list(cls.grid_map)
    bits = 16 // width
    index = {v: i for i, v in enumerate(values)}
    rows = cls.grid.reshape(count, width)
    words = [sum(index[int(v)] << (bits * i) for i, v in enumerate(row)) for row in rows]
    if name == "IQ1_S":
        values = [8 * v for v in values]
        what += ", times 8"
    print(f"/// {what[0].upper()}{what[1:]}.")
    print(f"pub(crate) static {name}: [[i8; {width}]; {count}] = unpack(&{values}, &[")
    text = ", ".join(str(w) for w in words) + ","
    print(textwrap.indent("\n".join(textwrap.wrap(text, 104)), "    "))
    print("]);\n")
