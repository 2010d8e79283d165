//! Every operation case on a GPU against the scalar interpreter. On a machine without one nothing runs, and the tests
//! say so.

use wootz_cuda::{CudaBackend, CudaOptions, Kernels};
use wootz_graph::Backend;
use wootz_testkit::picks;

/// Runs all cases; says which fail.
fn run(kernels: Kernels) {
    let backend = CudaBackend::new(CudaOptions { kernels });
    if backend.devices().unwrap().is_empty() {
        eprintln!("NOT RUN: there is no GPU that NVIDIA's driver knows");
        return;
    }
    let device = backend.open(0).unwrap();
    let mut worst = 0.0f64;
    let mut failures = Vec::new();
    let mut cases = wootz_testkit::cases::all();
    if kernels == Kernels::Fast {
        cases.extend(wootz_testkit::cases::large());
    }
    let count = cases.len();
    for case in cases {
        match wootz_testkit::check(&backend, &*device, &case) {
            Ok(error) => worst = worst.max(error / case.limit_half.max(f64::MIN_POSITIVE)),
            Err(e) => failures.push(e),
        }
    }
    println!("{count} cases, at most {worst:.2} of the error that is allowed");
    assert!(failures.is_empty(), "{} cases failed:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn tokens_are_picked_as_the_definition_says() {
    let backend = CudaBackend::default();
    if backend.devices().unwrap().is_empty() {
        eprintln!("NOT RUN: there is no GPU that NVIDIA's driver knows");
        return;
    }
    let device = backend.open(0).unwrap();
    for case in picks::all() {
        // Of more than 128 candidates the host picks.
        let picks = case.candidates() <= 128;
        assert_eq!(picks::check_picks(&backend, &*device, &case), Ok(picks), "{}", case.name);
    }
    assert_eq!(picks::check_fed_picks(&backend, &*device), Ok(true));
}

#[test]
fn cases_agree_with_the_interpreter() {
    run(Kernels::Fast);
}

#[test]
fn cases_agree_with_the_interpreter_with_plain_kernels() {
    run(Kernels::Simple);
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let backend = CudaBackend::default();
    let refused = backend.open(1000).err().expect("no machine has so many");
    assert!(refused.to_string().starts_with("cuda:1000 failed: there are "), "{refused}");
}
