//! `wootz devices`

use serde_json::json;
use wootz::ByteSize;

use crate::args::DevicesArgs;
use crate::output;

pub(crate) fn run(args: &DevicesArgs) -> anyhow::Result<()> {
    let devices = wootz::devices()?;
    if args.json {
        let list: Vec<_> = devices
            .iter()
            .map(|d| {
                json!({
                    "id": d.id, "name": d.name, "kind": format!("{:?}", d.kind), "memory_total": d.memory_total,
                    "memory_free": d.memory_free, "features": d.features,
                })
            })
            .collect();
        return output::println(&serde_json::Value::from(list).to_string());
    }
    for d in devices {
        let memory = match (d.memory_free, d.memory_total) {
            (Some(free), Some(total)) => format!("{} of {} free", ByteSize(free), ByteSize(total)),
            _ => "memory unknown".to_owned(),
        };
        output::println(&format!("{:<8} {} ({memory}; {})", d.id, d.name, d.features.join(", ")))?;
    }
    Ok(())
}
