//! Tokens picked on the device: the same, to the last bit of every sum, as plain code picks.

use wootz_graph::Backend as _;
use wootz_metal::emulator::{Order, Profile};
use wootz_metal::library::Sources;
use wootz_testkit::picks;

use crate::common::{Setup, backend};

#[test]
fn devices_pick_what_plain_code_picks() {
    let profiles = [
        Profile::unified(),
        Profile::discrete().untraced(),
        Profile::wide().ordered(Order::Backward).untraced(),
        Profile::plain().ordered(Order::Random(3)).untraced(),
    ];
    for (i, profile) in profiles.into_iter().enumerate() {
        let name = profile.name;
        let backend = backend(Setup::new(profile));
        let device = backend.open(0).unwrap();
        // Every access is checked on the first device alone, and not in the largest rows.
        let cases = picks::all().into_iter().filter(|c| i > 0 || !c.name.contains("50021"));
        for case in cases {
            assert_eq!(picks::check_picks(&backend, &*device, &case), Ok(true), "{name}");
        }
    }
}

#[test]
fn mistakes_in_picking_are_found() {
    let sort = "        for (uint stride = run / 2; stride > 0; stride /= 2) {\n";
    let barrier = "            threadgroup_barrier(mem_flags::mem_threadgroup);\n";
    let loop_head = "            for (uint i = tid; i < count / 2";
    let mistakes = [
        // Threads that sort do not wait for each other.
        (format!("{sort}{barrier}{loop_head}"), format!("{sort}{loop_head}")),
        // A draw from the last lane alone, ties that go to the highest token, a bias that is left out.
        ("sum = f64_add(sum, f64_of(own));".into(), "sum = f64_of(own);".into()),
        ("ulong(turned) << 32 | ulong(~token)".into(), "ulong(turned) << 32 | ulong(token)".into()),
        ("x = bounded(x + edit->bias);".into(), "x = bounded(x);".into()),
    ];
    for (old, new) in mistakes {
        let sources = Sources::default().altered("sampling.metal", &old, &new).unwrap();
        let backend = backend(Setup { sources, ..Setup::new(Profile::unified()) });
        let device = backend.open(0).unwrap();
        let cases = picks::all().into_iter().filter(|c| c.name.contains(" 300 tokens, 40"));
        let found: Vec<_> = cases.map(|case| picks::check_picks(&backend, &*device, &case)).collect();
        assert!(found.iter().any(Result::is_err), "{new:?} is not found");
    }
}

#[test]
fn picked_tokens_are_the_next_step_s_input() {
    for profile in [Profile::unified(), Profile::discrete()] {
        let backend = backend(Setup::new(profile));
        assert_eq!(picks::check_fed_picks(&backend, &*backend.open(0).unwrap()), Ok(true));
    }
}
