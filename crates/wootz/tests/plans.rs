//! Snapshots of the plans of every family's tiny model: what is fused, in which order, with which waits.
//!
//! After a change that is meant to change plans, run with `WOOTZ_UPDATE_SNAPSHOTS=1` and read the difference.

use std::path::{Path, PathBuf};

use wootz::{Model, ModelOptions};
use wootz_arch::{decoders, encoders};
use wootz_quant::WeightType;
use wootz_testkit::{snapshot, tiny};

/// The file of a plan.
fn path(backend: &str, family: &str, name: &str) -> PathBuf {
    let prefix = if backend == "cpu" { String::new() } else { format!("{backend}-") };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/plans");
    folder.join(format!("{prefix}{family}-{name}.txt"))
}

#[test]
fn plans_are_those_of_the_snapshots() {
    let mut changed = Vec::new();
    for arch in encoders() {
        let bytes = tiny::build(arch, tiny::Types(WeightType::Q4_0, WeightType::Q8_0), 7);
        let model = Model::from_bytes(bytes, &ModelOptions::default()).unwrap();
        for backend in ["cpu", "cuda", "metal"] {
            let plan = wootz::plan(&model, backend, 64, 256).unwrap().to_string();
            changed.extend(snapshot(&path(backend, arch.name(), "encode"), &plan).err());
        }
    }
    for arch in decoders() {
        let bytes = tiny::build(arch, tiny::Types(WeightType::Q4_0, WeightType::Q8_0), 7);
        let model = Model::from_bytes(bytes, &ModelOptions::default()).unwrap();
        let plans = ["cpu", "cuda", "metal"].map(|b| [(b, "decode", 1), (b, "prefill", 64)]);
        for (backend, name, tokens) in plans.into_iter().flatten() {
            let plan = wootz::plan(&model, backend, tokens, 256).unwrap().to_string();
            changed.extend(snapshot(&path(backend, arch.name(), name), &plan).err());
        }
    }
    assert!(changed.is_empty(), "plans differ from their snapshots:\n{}", changed.join("\n"));
}
