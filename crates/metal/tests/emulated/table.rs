//! The table of operations in docs/metal.md is what the tests run.
//!
//! `WOOTZ_UPDATE_SNAPSHOTS=1 cargo test -p wootz-metal` writes it.

use std::collections::BTreeMap;
use std::path::Path;

use wootz_testkit::snapshot;

use crate::common::CASES;
use crate::sweeps::SWEEPS;

const BEGIN: &str = "<!-- table of operations: printed by crates/metal/tests/emulated/table.rs -->\n";
const END: &str = "<!-- end of the table -->\n";

/// What a case tries, without sizes: its first word, and the type of a product.
fn group(name: &str) -> String {
    let mut words = name.split([' ', ',']);
    let first = words.next().unwrap_or("").to_owned();
    match first.as_str() {
        "linear" | "embed" | "experts" | "activate" | "glu" => {
            format!("{first} {}", words.next().unwrap_or(""))
        }
        _ => first,
    }
}

fn table() -> String {
    let mut rows: BTreeMap<String, (usize, Vec<String>)> = BTreeMap::new();
    for case in CASES.iter() {
        let row = rows.entry(group(&case.name)).or_default();
        row.0 += 1;
        for sweep in SWEEPS.iter().filter(|s| s.starts.iter().any(|w| case.name.starts_with(w))) {
            let profile = (sweep.profile)();
            let order = format!("{:?}", profile.order).split('(').next().unwrap_or("").to_lowercase();
            let mark = if sweep.long { "\\*" } else { "" };
            let device = if order == "forward" {
                format!("{}{mark}", profile.name)
            } else {
                format!("{}, {order}{mark}", profile.name)
            };
            if !row.1.contains(&device) {
                row.1.push(device);
            }
        }
    }
    let mut text = String::from("| operation | cases | emulated on |\n|---|---|---|\n");
    for (name, (cases, devices)) in rows {
        text += &format!("| {name} | {cases} | {} |\n", devices.join("; "));
    }
    text
}

#[test]
fn the_table_of_operations_is_that_of_the_tests() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metal.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    snapshot(&path, &format!("{before}{BEGIN}{}{END}{after}", table())).unwrap();
}
