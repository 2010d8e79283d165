//! The headers that are printed from code: `kernels/args.h`, and the codebooks of all backends.
//!
//! `WOOTZ_UPDATE_SNAPSHOTS=1 cargo test -p wootz-metal --test headers` writes them.

use std::fmt::Write as _;
use std::path::Path;

use wootz_quant::Codebook;
use wootz_testkit::snapshot;

fn check(path: &str, text: &str) {
    snapshot(&Path::new(env!("CARGO_MANIFEST_DIR")).join(path), text).unwrap();
}

#[test]
fn args() {
    check("kernels/args.h", &wootz_metal::args::header());
}

#[test]
fn grids() {
    let mut text = String::from(
        "// Codebooks of the IQ types, printed by tests/headers.rs of wootz-metal from the decoders: the indices of an\n\
         // entry's values, the first lowest.\n#pragma once\n",
    );
    for Codebook { name, entries, .. } in Codebook::all() {
        write!(text, "\nBLOCK_TABLE ushort GRID_{name}[{}] = {{", entries.len()).unwrap();
        for (i, entry) in entries.iter().enumerate() {
            text.push_str(if i % 16 == 0 { "\n    " } else { " " });
            write!(text, "{entry},").unwrap();
        }
        text.push_str("\n};\n");
    }
    check("../quant/kernels/grids.h", &text);
}
