//! Emulated devices for tests.

use std::sync::{Arc, LazyLock};

use wootz_metal::emulator::{Emulators, Profile, Toolchain};
use wootz_metal::library::Sources;
use wootz_metal::{MetalBackend, MetalOptions};
use wootz_testkit::cases::{self, Case};
use wootz_testkit::models::cache_dir;

/// Every operation case: their weights take seconds to make.
pub(crate) static CASES: LazyLock<Vec<Case>> = LazyLock::new(cases::all);

/// What a test's device is made of.
pub(crate) struct Setup {
    pub(crate) profile: Profile,
    pub(crate) sources: Sources,
    pub(crate) options: MetalOptions,
}

impl Setup {
    pub(crate) fn new(profile: Profile) -> Setup {
        Setup { profile, sources: Sources::default(), options: MetalOptions::default() }
    }
}

/// The compiler of the emulator, which tests do not go without.
pub(crate) fn toolchain() -> Toolchain {
    Toolchain::find(&cache_dir()).unwrap_or_else(|e| panic!("{e}"))
}

/// A backend with one device.
pub(crate) fn backend(setup: Setup) -> MetalBackend {
    let emulators = Emulators::with(vec![setup.profile], setup.sources, toolchain());
    MetalBackend::new("metal-emulator", setup.options, Arc::new(emulators))
}
