//! Checks of a device's kernels against plain code.

use wootz_cpu::CpuOptions;
use wootz_graph::DeviceKind;
use wootz_testkit::picks;

use crate::error::Error;

/// Runs every operation case on a device and against the scalar interpreter; `report` hears each case's name and its
/// error, or what went wrong.
///
/// # Errors
/// There is no such device.
pub fn selftest(device: &str, report: &mut dyn FnMut(&str, Result<f64, String>)) -> Result<(), Error> {
    let (backend, device) = crate::backends::open(device, CpuOptions::default(), &|_| true)?;
    let mut cases = wootz_testkit::cases::all();
    // GPUs refuse what only encoders need.
    if device.info().kind == DeviceKind::Cpu {
        cases.extend(wootz_testkit::cases::encoders());
    }
    for case in cases {
        let run = || wootz_testkit::check(&*backend, &*device, &case);
        report(&case.name, guarded(&case.name, run));
    }
    for case in picks::all() {
        let result = guarded(&case.name, || picks::check_picks(&*backend, &*device, &case));
        // Not every device picks tokens.
        if result != Ok(false) {
            report(&case.name, result.map(|_| 0.0));
        }
    }
    Ok(())
}

/// A kernel that fails is what a self-test is to find: the other cases still run.
fn guarded<T>(name: &str, run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    result.unwrap_or_else(|_| Err(format!("{name}: it panicked")))
}
