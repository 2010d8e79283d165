//! Every operation case on the CPU against the scalar interpreter.

use wootz_cpu::{CpuBackend, CpuOptions, Isa};
use wootz_graph::Backend;

/// Runs all cases; says which fail.
fn run(options: CpuOptions) {
    let backend = CpuBackend::new(options);
    let device = backend.open(0).unwrap();
    let cases = wootz_testkit::cases::all();
    let results = cases.iter().map(|case| wootz_testkit::check(&backend, &*device, case));
    let failures: Vec<String> = results.filter_map(Result::err).collect();
    assert!(failures.is_empty(), "{} cases failed:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn cases_agree_with_the_interpreter() {
    run(CpuOptions { threads: Some(2), ..CpuOptions::default() });
}

#[test]
fn cases_agree_with_the_interpreter_in_plain_code() {
    run(CpuOptions { threads: Some(1), isa: Some(Isa::Scalar), ..CpuOptions::default() });
}
