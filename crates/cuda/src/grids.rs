//! Writes the codebooks of the IQ types for kernels, from those of `crates/quant`.

use std::fmt::Write;

use wootz_quant::Codebook;

use crate::testing::compare_with_file;

/// After a change of the codebooks, run with `WOOTZ_UPDATE_SNAPSHOTS=1`.
#[test]
fn the_header_has_the_codebooks_of_the_types() {
    let mut text = String::from(
        "// Codebooks of the IQ types, written by the test of src/grids.rs; do not edit by hand.\n\
         // An entry packs the indices of its values, lowest bits first.\n#pragma once\n",
    );
    for book in Codebook::all() {
        let (name, bits) = (book.name, 16 / book.width);
        let list = |numbers: Vec<String>| {
            let lines: Vec<String> =
                numbers.chunks(20).map(|line| format!("    {}", line.join(","))).collect();
            lines.join(",\n")
        };
        let entries = list(book.entries.iter().map(u16::to_string).collect());
        let values = book.values.iter().map(i8::to_string).collect::<Vec<_>>().join(", ");
        let result = write!(
            text,
            "\nBLOCK_TABLE int8_t {name}_VALUES[{}] = {{{values}}};\n\
             BLOCK_TABLE uint16_t {name}_ENTRIES[{}] = {{\n{entries}\n}};\n\
             BLOCK_FN int grid_{name}(uint32_t i, uint32_t j) {{\n\
             \x20   return {name}_VALUES[{name}_ENTRIES[i] >> ({bits} * j) & {}];\n}}\n",
            book.values.len(),
            book.entries.len(),
            (1 << bits) - 1,
        );
        result.unwrap();
    }
    compare_with_file("kernels/grids.h", &text);
}
