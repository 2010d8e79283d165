//! The headers that are printed from code: `kernels/args.h` and `kernels/grids.h`.
//!
//! `WOOTZ_UPDATE_SNAPSHOTS=1 cargo test -p wootz-metal --test headers` writes them.

use std::fmt::Write as _;
use std::path::Path;

use wootz_quant::Codebook;
use wootz_testkit::snapshot;

fn check(name: &str, text: &str) {
    snapshot(&Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels").join(name), text).unwrap();
}

#[test]
fn args() {
    check("args.h", &wootz_metal::args::header());
}

#[test]
fn grids() {
    let mut text = String::from(
        "// Codebooks of the IQ types, printed by tests/headers.rs from the decoders of wootz-quant: the indices of an\n\
         // entry's values, the first lowest.\n#pragma once\n",
    );
    for Codebook { name, entries, .. } in Codebook::all() {
        write!(text, "\nconstant ushort GRID_{name}[{}] = {{", entries.len()).unwrap();
        for (i, entry) in entries.iter().enumerate() {
            text.push_str(if i % 16 == 0 { "\n    " } else { " " });
            write!(text, "{entry},").unwrap();
        }
        text.push_str("\n};\n");
    }
    check("grids.h", &text);
}
