//! Checks of a device's kernels against plain code.

use std::sync::Arc;

use wootz_cpu::CpuOptions;
use wootz_graph::{DeviceInfo, DeviceLimits};
use wootz_testkit::{interpret, nmse, picks, tiny};

use crate::context::{Context, RowsWanted, StepPart};
use crate::error::Error;
use crate::model::{Model, ModelOptions};
use crate::options::ContextOptions;

/// Largest error of a model's logits, see [`nmse`].
const MODEL_LIMIT: f64 = 1e-5;

/// What a self-test found out beside the cases.
#[derive(Clone, Debug)]
pub struct Tested {
    /// The device.
    pub device: DeviceInfo,
    /// What it can do at most, measured on it.
    pub limits: Result<DeviceLimits, String>,
}

/// Runs every operation case on a device and against the scalar interpreter, then a tiny model of every family that
/// generates text; `report` hears each case's name and its error, or what went wrong.
///
/// # Errors
/// There is no such device.
pub fn selftest(name: &str, report: &mut dyn FnMut(&str, Result<f64, String>)) -> Result<Tested, Error> {
    let (backend, device) = crate::backends::open(name, CpuOptions::default(), &|_| true)?;
    for case in wootz_testkit::cases::all() {
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
    for family in wootz_arch::decoders() {
        let case = format!("model {}", family.name());
        report(&case, guarded(&case, || whole_model(family, name).map_err(|e| format!("{case}: {e}"))));
    }
    let limits = guarded("limits", || device.limits().map_err(|e| e.to_string()));
    Ok(Tested { device: device.info(), limits })
}

/// Runs a tiny model on a device and returns the error of its logits.
fn whole_model(family: &dyn wootz_arch::Architecture, device: &str) -> Result<f64, String> {
    let text: Vec<u32> = (0..70).map(|i| i * i * 11 % 256).collect();
    let bytes = tiny::build(family, tiny::Types::FLOAT, 7);
    let run = || -> Result<f64, Error> {
        let model = Arc::new(Model::from_bytes(bytes, &ModelOptions::default())?);
        let options = ContextOptions { device: device.to_owned(), context: Some(128), ..Default::default() };
        let mut context = Context::new(model.clone(), &options, &mut |_| ())?;
        let (sequence, _) = context.open_prefix(&[])?;
        let mut found = Vec::new();
        // A prompt, then a token at a time.
        let (prompt, rest) = text.split_at(60);
        for tokens in std::iter::once(prompt).chain(rest.chunks(1)) {
            let parts = [StepPart { sequence, tokens, rows: RowsWanted::All }];
            found.extend_from_slice(context.step(&parts)?.data);
        }
        let expected = interpret(model.arch(), model.weight_source(), &text, options.k_type);
        Ok(nmse(&found, &expected))
    };
    let error = run().map_err(|e| e.to_string())?;
    if error < MODEL_LIMIT { Ok(error) } else { Err(format!("error {error:.1e}, limit {MODEL_LIMIT:.0e}")) }
}

/// A kernel that fails is what a self-test is to find: the other cases still run.
fn guarded<T>(name: &str, run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    result.unwrap_or_else(|_| Err(format!("{name}: it panicked")))
}
