//! `wootz devices`

use serde_json::json;
use wootz::ByteSize;

use crate::args::DevicesArgs;
use crate::output;

pub(crate) fn run(args: &DevicesArgs) -> anyhow::Result<()> {
    let found = wootz::devices()?;
    if args.json {
        let list: Vec<_> = found
            .iter()
            .flat_map(|b| b.devices.iter().flatten())
            .map(|d| {
                json!({
                    "id": d.id, "name": d.name, "kind": format!("{:?}", d.kind), "memory_total": d.memory_total,
                    "memory_free": d.memory_free, "features": d.features,
                })
            })
            .collect();
        return output::println(&serde_json::Value::from(list).to_string());
    }
    let mut missing = Vec::new();
    for backend in found {
        let devices = match backend.devices {
            Ok(devices) if devices.is_empty() => {
                missing
                    .push(format!("{:<8} no devices: there is no driver, or it knows none", backend.backend));
                continue;
            }
            Ok(devices) => devices,
            Err(e) => {
                missing.push(format!("{:<8} {e}", backend.backend));
                continue;
            }
        };
        for d in devices {
            let memory = match (d.memory_free, d.memory_total) {
                (Some(free), Some(total)) => {
                    format!("{} of {} free", ByteSize(free), ByteSize(total))
                }
                (None, Some(total)) => ByteSize(total).to_string(),
                _ => "memory unknown".to_owned(),
            };
            output::println(&format!("{:<8} {} ({memory}; {})", d.id, d.name, d.features.join(", ")))?;
        }
    }
    missing.iter().try_for_each(|line| output::println(line))
}
