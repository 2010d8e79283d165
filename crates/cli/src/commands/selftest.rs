//! `wootz selftest`

use crate::args::SelftestArgs;
use crate::output;

pub(crate) fn run(args: &SelftestArgs) -> anyhow::Result<()> {
    let mut passed = 0;
    let mut failures = Vec::new();
    let mut worst: Option<(f64, String)> = None;
    wootz::selftest(&args.device, &mut |name, result| match result {
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
    let found = wootz::devices()?;
    for device in found.iter().flat_map(|b| b.devices.iter().flatten()).filter(|d| d.id == args.device) {
        output::println(&format!("{} {} ({})", device.id, device.name, device.features.join(", ")))?;
    }
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
