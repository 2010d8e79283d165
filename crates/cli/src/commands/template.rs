//! `wootz template`

use anyhow::Context as _;
use wootz::template::{ChatInput, Message, Segment};

use crate::args::TemplateArgs;
use crate::{common, output};

pub(crate) fn run(args: &TemplateArgs) -> anyhow::Result<()> {
    let model = common::open_model(&args.model)?;
    if args.source {
        let template = model.template().context("the model has no chat template; ChatML is used")?;
        return output::println(template.source());
    }
    let json = |path: &std::path::Path| -> anyhow::Result<Vec<serde_json::Value>> {
        let bytes = output::read_input(path)?;
        serde_json::from_slice(&bytes).with_context(|| format!("{} is not a JSON list", path.display()))
    };
    let messages = match &args.messages {
        Some(path) => Message::list_from_json(&json(path)?)?,
        None => {
            let system = args.system.as_ref().map(|s| Message::new("system", s));
            system.into_iter().chain([Message::new("user", &args.user)]).collect()
        }
    };
    let tools = args.tools.as_deref().map(json).transpose()?.unwrap_or_default();
    let add_generation_prompt = !args.no_generation_prompt;
    let prompt =
        model.chat_prompt(&ChatInput { messages, tools, add_generation_prompt, ..ChatInput::default() })?;
    if !args.segments {
        return output::println(&prompt.text());
    }
    let mut lines = String::new();
    for segment in &prompt.segments {
        let kind = if matches!(segment, Segment::Markup(_)) { "markup" } else { "text" };
        lines.push_str(&format!("{kind:<7} {:?}\n", segment.as_str()));
    }
    lines.push_str(&format!("{} tokens", model.prompt_tokens(&prompt).len()));
    output::println(&lines)
}
