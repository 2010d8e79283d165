//! Every operation case of the test kit on emulated devices, against the interpreter.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod common;

use common::{Setup, backend};
use wootz_graph::Backend as _;
use wootz_metal::emulator::{Order, Profile};
use wootz_testkit::{cases, check};

/// Runs all cases whose name starts with one of some words.
fn run(profile: Profile, starts: &[&str]) {
    let name = profile.name;
    let backend = backend(Setup::new(profile));
    let device = backend.open(0).unwrap();
    let mut ran = 0;
    let mut failures = Vec::new();
    for case in cases::all() {
        if !starts.iter().any(|s| case.name.starts_with(s)) {
            continue;
        }
        ran += 1;
        if let Err(message) = check(&backend, &*device, &case) {
            failures.push(message);
        }
    }
    assert!(ran > 0, "no case begins with {starts:?}");
    assert!(failures.is_empty(), "{name}, {} of {ran} fail:\n{}", failures.len(), failures.join("\n"));
}

const SMALL: &[&str] = &["norm", "rope", "activate", "glu", "add", "softcap", "gather"];

#[test]
fn small_operations() {
    for profile in Profile::all() {
        run(profile, SMALL);
    }
}

#[test]
fn small_operations_in_other_orders() {
    for order in [Order::Backward, Order::Random(3)] {
        run(Profile::unified().ordered(order), SMALL);
    }
}

#[test]
fn embeddings() {
    run(Profile::unified(), &["embed"]);
}

#[test]
fn products() {
    run(Profile::unified(), &["linear", "block"]);
}

#[test]
fn products_without_simdgroup_matrices() {
    run(Profile::wide(), &["linear Q4_K", "linear Q6_K", "linear F16", "linear MXFP4", "block"]);
}

#[test]
fn attention() {
    run(Profile::unified(), &["attention"]);
}

#[test]
fn attention_on_wide_simdgroups() {
    run(Profile::wide(), &["attention"]);
}

#[test]
fn experts() {
    run(Profile::unified(), &["experts"]);
}
