//! Writes the codebooks of the IQ types for kernels, from those of `crates/quant`.

use std::fmt::Write;

use crate::testing::{compare_with_file, folder};

/// One codebook: name, values, and entries of packed indices of values.
struct Grid<'a> {
    name: &'a str,
    /// Values of an entry.
    width: usize,
    values: Vec<i32>,
    entries: Vec<u32>,
}

/// The numbers between the next brackets, and what follows.
fn numbers(text: &str) -> (Vec<i64>, &str) {
    let (_, rest) = text.split_once("&[").unwrap();
    let (list, rest) = rest.split_once(']').unwrap();
    (list.split(',').filter_map(|n| n.trim().parse().ok()).collect(), rest)
}

fn parse(source: &str) -> Vec<Grid<'_>> {
    let parts = source.split("pub(crate) static ").skip(1);
    let grid = |part| {
        let (name, rest): (&str, &str) = str::split_once(part, ": [[i8; ").unwrap();
        let (width, rest) = rest.split_once("]; ").unwrap();
        let (count, rest) = rest.split_once(']').unwrap();
        let (values, rest) = numbers(rest);
        let (entries, _) = numbers(rest);
        assert_eq!(entries.len(), count.parse::<usize>().unwrap(), "{name}");
        Grid {
            name,
            width: width.parse().unwrap(),
            values: values.into_iter().map(|v| v as i32).collect(),
            entries: entries.into_iter().map(|e| e as u32).collect(),
        }
    };
    parts.map(grid).collect()
}

/// After a change of the codebooks, run with `WOOTZ_UPDATE_SNAPSHOTS=1`.
#[test]
fn the_header_has_the_codebooks_of_the_types() {
    let source = std::fs::read_to_string(folder().join("../quant/src/grids.rs")).unwrap();
    let grids = parse(&source);
    assert_eq!(grids.len(), 6);
    let mut text = String::from(
        "// Codebooks of the IQ types, written by the test of src/grids.rs; do not edit by hand.\n\
         // An entry packs the indices of its values, lowest bits first.\n#pragma once\n",
    );
    for grid in grids {
        let (name, bits) = (grid.name, 16 / grid.width);
        let list = |numbers: Vec<String>| {
            let lines: Vec<String> =
                numbers.chunks(20).map(|line| format!("    {}", line.join(","))).collect();
            lines.join(",\n")
        };
        let entries = list(grid.entries.iter().map(u32::to_string).collect());
        let values = grid.values.iter().map(i32::to_string).collect::<Vec<_>>().join(", ");
        let result = write!(
            text,
            "\nBLOCK_TABLE int8_t {name}_VALUES[{}] = {{{values}}};\n\
             BLOCK_TABLE uint16_t {name}_ENTRIES[{}] = {{\n{entries}\n}};\n\
             BLOCK_FN int grid_{name}(uint32_t i, uint32_t j) {{\n\
             \x20   return {name}_VALUES[{name}_ENTRIES[i] >> ({bits} * j) & {}];\n}}\n",
            grid.values.len(),
            grid.entries.len(),
            (1 << bits) - 1,
        );
        result.unwrap();
    }
    compare_with_file("kernels/grids.h", &text);
}
