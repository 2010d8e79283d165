//! `wootz selftest`

use crate::args::SelftestArgs;
use crate::output;

pub(crate) fn run(args: &SelftestArgs) -> anyhow::Result<()> {
    let mut passed = 0;
    let mut failures = Vec::new();
    let mut worst: Option<(f64, String)> = None;
    let tested = wootz::selftest(&args.device, &mut |name, result| match result {
        Ok(error) => {
            passed += 1;
            if worst.as_ref().is_none_or(|(e, _)| error > *e) {
                worst = Some((error, name.to_owned()));
            }
        }
        Err(message) => failures.push(message),
    })?;
    for failure in &failures {
        output::println(&format!("FAILED {failure}"))?;
    }
    let (device, version) = (&tested.device, env!("CARGO_PKG_VERSION"));
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    output::println(&format!("wootz {version}, {os} {arch}"))?;
    output::println(&format!("{} {} ({})", device.id, device.name, device.features.join(", ")))?;
    output::println(&match &tested.limits {
        Ok(limits) => {
            let (bytes, ops) = (limits.bytes_per_second / 1e9, limits.ops_per_second / 1e12);
            format!("weights are read at {bytes:.1} GB/s, products run at {ops:.3} TFLOPS")
        }
        Err(e) => format!("speed not measured: {e}"),
    })?;
    if let Some((error, name)) = worst {
        output::println(&format!("largest error {error:.1e}, in: {name}"))?;
    }
    output::println(&format!("{passed} cases passed, {} failed", failures.len()))?;
    if failures.is_empty() {
        Ok(())
    } else {
        anyhow::bail!("{} cases failed on {}", failures.len(), args.device)
    }
}
