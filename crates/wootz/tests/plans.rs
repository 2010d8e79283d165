//! Snapshots of the plans of every family's tiny model: what is fused, in which order, with which waits.
//!
//! After a change that is meant to change plans, run with `WOOTZ_UPDATE_SNAPSHOTS=1` and read the difference.

use std::path::Path;

use wootz::{Model, ModelOptions};
use wootz_arch::ARCHITECTURES;
use wootz_quant::WeightType;
use wootz_testkit::{snapshot, tiny};

#[test]
fn plans_are_those_of_the_snapshots() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/plans");
    let mut changed = Vec::new();
    for arch in ARCHITECTURES {
        let bytes = tiny::build(*arch, tiny::Types(WeightType::Q4_0, WeightType::Q8_0), 7);
        let model = Model::from_bytes(bytes, &ModelOptions::default()).unwrap();
        let plans = ["cpu", "cuda", "metal"].map(|b| [(b, "decode", 1), (b, "prefill", 64)]);
        for (backend, name, tokens) in plans.into_iter().flatten() {
            let plan = wootz::plan(&model, backend, tokens, 256).unwrap().to_string();
            let prefix = if backend == "cpu" { String::new() } else { format!("{backend}-") };
            let path = folder.join(format!("{prefix}{}-{name}.txt", arch.name()));
            changed.extend(snapshot(&path, &plan).err());
        }
    }
    assert!(changed.is_empty(), "plans differ from their snapshots:\n{}", changed.join("\n"));
}
