//! `wootz pull` and `wootz list`

use serde_json::json;
use wootz::ByteSize;
use wootz_hub::{Hub, short_names};

use crate::args::{ListArgs, PullArgs};
use crate::{common, output};

pub(crate) fn pull(args: &PullArgs) -> anyhow::Result<()> {
    let path = common::resolve(&args.model, false)?;
    let path = path.display();
    output::println(&if args.print_path {
        path.to_string()
    } else {
        format!("{} is ready at {path}", args.model)
    })
}

pub(crate) fn list(args: &ListArgs) -> anyhow::Result<()> {
    let cached = Hub::new(None)?.list()?;
    if args.json {
        let cached: Vec<_> = cached
            .iter()
            .map(|m| json!({ "model": m.reference.to_string(), "paths": m.paths, "bytes": m.bytes }))
            .collect();
        let names: Vec<_> =
            short_names().iter().map(|n| json!({ "name": n.name, "about": n.about })).collect();
        return output::println(&json!({ "cached": cached, "short_names": names }).to_string());
    }
    let mut text = String::from("In the cache:\n");
    if cached.is_empty() {
        text.push_str("  nothing yet\n");
    }
    for model in &cached {
        text.push_str(&format!("  {:<48} {:>10}\n", model.reference.to_string(), ByteSize(model.bytes)));
    }
    text.push_str("\nShort names:\n");
    for name in short_names() {
        text.push_str(&format!("  {:<20} {}\n", name.name, name.about));
    }
    output::print(&text)
}
