//! Which operation cases run on which emulated devices: the tests run them, the table in docs/metal.md lists them.

use wootz_metal::emulator::{Order, Profile};

/// Operation cases on a device.
pub(crate) struct Sweep {
    /// Words that the names of cases begin with.
    pub(crate) starts: &'static [&'static str],
    pub(crate) profile: fn() -> Profile,
    /// Whether it runs only when asked for.
    pub(crate) long: bool,
}

const SMALL: &[&str] = &[
    "norm", "rope", "activate", "glu", "add", "softcap", "gather", "mul", "lerp", "bonus", "join", "columns",
];
const RECURRENT: &[&str] = &["short-conv", "scan", "shift", "wkv"];
/// Weight types with products of their own, a plain type, and one whose blocks are not aligned.
const COMMON: &[&str] =
    &["linear Q4_0", "linear Q4_K", "linear Q6_K", "linear Q8_0", "linear F16", "linear MXFP4", "block"];

fn backward() -> Profile {
    Profile::unified().ordered(Order::Backward)
}

fn random() -> Profile {
    Profile::unified().ordered(Order::Random(3))
}

const fn short(starts: &'static [&'static str], profile: fn() -> Profile) -> Sweep {
    Sweep { starts, profile, long: false }
}

const fn long(starts: &'static [&'static str], profile: fn() -> Profile) -> Sweep {
    Sweep { starts, profile, long: true }
}

pub(crate) const SWEEPS: &[Sweep] = &[
    short(SMALL, Profile::unified),
    short(SMALL, Profile::discrete),
    short(&["embed"], Profile::unified),
    short(COMMON, Profile::unified),
    short(&["linear Q4_K", "linear F16", "block"], Profile::wide),
    short(&["attention"], Profile::unified),
    short(&["experts", "router"], Profile::unified),
    short(RECURRENT, Profile::unified),
    short(RECURRENT, Profile::discrete),
    short(RECURRENT, Profile::wide),
    long(SMALL, Profile::wide),
    long(SMALL, Profile::plain),
    long(SMALL, backward),
    long(SMALL, random),
    long(RECURRENT, Profile::plain),
    long(RECURRENT, backward),
    long(RECURRENT, random),
    long(&["linear", "block"], Profile::unified),
    long(COMMON, Profile::wide),
    long(COMMON, Profile::plain),
    long(&["attention"], Profile::wide),
    long(&["attention"], Profile::plain),
    long(&["attention"], backward),
    long(&["attention"], random),
    long(&["experts"], Profile::wide),
];
