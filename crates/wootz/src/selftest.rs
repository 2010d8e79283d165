//! Checks of a device's kernels against plain code.

use wootz_graph::DeviceKind;

use crate::error::Error;

/// Runs every operation case on a device and against the scalar interpreter; `report` hears each case's name and its
/// error, or what went wrong.
///
/// # Errors
/// There is no such device.
pub fn selftest(device: &str, report: &mut dyn FnMut(&str, Result<f64, String>)) -> Result<(), Error> {
    let (backend, device) = crate::backends::open(device, None, &|_| true)?;
    let mut cases = wootz_testkit::cases::all();
    // GPUs refuse what only encoders need.
    if device.info().kind == DeviceKind::Cpu {
        cases.extend(wootz_testkit::cases::encoders());
    }
    for case in cases {
        // A kernel that fails is what this is to find: the other cases still run.
        let run = || wootz_testkit::check(&*backend, &*device, &case);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        let result = result.unwrap_or_else(|_| Err(format!("{}: it panicked", case.name)));
        report(&case.name, result);
    }
    Ok(())
}
