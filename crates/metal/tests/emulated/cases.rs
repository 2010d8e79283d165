//! Every operation case of the test kit on emulated devices, against the interpreter.

use wootz_graph::Backend as _;
use wootz_testkit::check;

use crate::common::{CASES, Setup, backend};
use crate::sweeps::{SWEEPS, Sweep};

/// Runs the cases of a sweep; says which fail.
fn run(sweep: &Sweep) -> Vec<String> {
    let profile = (sweep.profile)();
    let name = format!("{} {:?}", profile.name, profile.order);
    let backend = backend(Setup::new(profile));
    let device = backend.open(0).unwrap();
    let chosen: Vec<_> =
        CASES.iter().filter(|c| sweep.starts.iter().any(|s| c.name.starts_with(s))).collect();
    assert!(!chosen.is_empty(), "no case begins with {:?}", sweep.starts);
    let results = chosen.into_iter().map(|case| check(&backend, &*device, case));
    results.filter_map(Result::err).map(|e| format!("{name}: {e}")).collect()
}

fn run_all(long: bool) {
    let failures: Vec<String> = SWEEPS.iter().filter(|s| s.long == long).flat_map(run).collect();
    assert!(failures.is_empty(), "{} cases fail:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn operations_agree_with_the_interpreter() {
    run_all(false);
}

#[test]
#[ignore = "takes minutes; see docs/metal.md"]
fn operations_agree_with_the_interpreter_on_all_devices() {
    run_all(true);
}
