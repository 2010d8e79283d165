//! Opening models and engines.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::bail;
use wootz::template::ChatTemplate;
use wootz::{
    ByteSize, Context, ContextOptions, Engine, EngineOptions, Event, Finish, Generation, Model, ModelOptions,
    Repack,
};
use wootz_hub::{Hub, ModelRef};

use crate::args::{DeviceArgs, ModelArgs, Switch};
use crate::output::{self, Unit};

/// Finds a model's file, fetching it where it is not there.
pub(crate) fn resolve(name: &str, offline: bool) -> anyhow::Result<PathBuf> {
    let reference = ModelRef::parse(name)?;
    let hub = Hub::new(None)?;
    if offline {
        return Ok(hub.resolve_offline(&reference)?);
    }
    Ok(hub.resolve(&reference, &mut Download::default())?)
}

/// Draws downloads.
#[derive(Default)]
struct Download {
    bar: Option<indicatif::ProgressBar>,
}

impl wootz_hub::Progress for Download {
    fn begin(&mut self, name: &str, total: Option<u64>) {
        if !output::is_watched() {
            let size = total.map(|t| format!(" ({})", ByteSize(t))).unwrap_or_default();
            output::note(&format!("fetching {name}{size}"));
        }
        self.bar = Some(output::progress(name, total.unwrap_or(0), Unit::Bytes));
    }

    fn advance(&mut self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.inc(bytes);
        }
    }

    fn finish(&mut self) {
        output::clear_progress();
        self.bar = None;
    }

    fn waiting(&mut self, reason: &str) {
        match &self.bar {
            Some(bar) if output::is_watched() => bar.set_message(reason.to_owned()),
            _ => output::note(&format!("waiting: {reason}")),
        }
    }
}

/// Opens a model, without loading its weights.
pub(crate) fn open_model(args: &ModelArgs) -> anyhow::Result<Arc<Model>> {
    let path = resolve(&args.model, args.offline)?;
    let chat_template = args.chat_template.as_deref().map(template_source).transpose()?;
    let options = ModelOptions { pretokenizer: args.pretokenizer.clone(), chat_template };
    Ok(Arc::new(Model::open(&path, &options)?))
}

/// The source of a template given by name or file.
pub(crate) fn template_source(name: &str) -> anyhow::Result<String> {
    match ChatTemplate::builtin(name) {
        Ok(template) => Ok(template.source().to_owned()),
        // Not a name: a file, or neither.
        Err(unknown) => {
            std::fs::read_to_string(name).map_err(|e| anyhow::anyhow!("{unknown}; as a file: {e}"))
        }
    }
}

/// The options of a context that the command line asks for.
pub(crate) fn context_options(args: &DeviceArgs) -> ContextOptions {
    ContextOptions {
        device: args.device.clone(),
        split: args.split.clone(),
        threads: args.threads,
        repack: if args.repack == Switch::Off { Repack::Off } else { Repack::Auto },
        context: args.ctx,
        batch: args.batch,
        k_type: args.cache_type_k,
        v_type: args.cache_type_v,
        ..ContextOptions::default()
    }
}

/// Loads a model's weights, with a bar.
pub(crate) fn open_context(model: Arc<Model>, options: &ContextOptions) -> anyhow::Result<Context> {
    let bar = output::progress("loading", model.arch().weights().total_bytes(), Unit::Bytes);
    let context = Context::new(model, options, &mut |bytes| bar.set_position(bytes));
    output::clear_progress();
    let context = context?;
    if let [_, _, ..] = context.placement() {
        let mut first = 0;
        let places = context.placement().iter().map(|(device, layers)| {
            let range = match layers {
                1 => format!("layer {first}"),
                n => format!("layers {first} to {}", first + n - 1),
            };
            first += layers;
            format!("{range} on {}", device.id)
        });
        output::note(&places.collect::<Vec<_>>().join(", "));
    }
    Ok(context)
}

/// Loads a model and starts an engine.
pub(crate) fn open_engine(model: &ModelArgs, device: &DeviceArgs) -> anyhow::Result<Engine> {
    let context = open_context(open_model(model)?, &context_options(device))?;
    Ok(Engine::start(context, EngineOptions::default())?)
}

/// Tokens to generate at most, as the command line says it.
pub(crate) fn max_tokens(predict: i64) -> anyhow::Result<Option<usize>> {
    match predict {
        -1 => Ok(None),
        n if n > 0 => Ok(Some(n as usize)),
        n => bail!("-n takes a number of tokens, or -1, not {n}"),
    }
}

/// Prompts of at least so many tokens get a bar while they are computed.
const LONG_PROMPT: usize = 1024;

/// Follows a generation to its end, handing text on as it comes.
pub(crate) fn follow(
    generation: &mut Generation,
    mut on_token: impl FnMut(&wootz::TokenEvent) -> anyhow::Result<()>,
) -> anyhow::Result<Finish> {
    let mut bar = None;
    for event in generation {
        match event {
            Event::Prompt { done, total } if total >= LONG_PROMPT => {
                let bar = bar.get_or_insert_with(|| {
                    output::progress("reading the prompt", total as u64, Unit::Tokens)
                });
                bar.set_position(done as u64);
                if done == total {
                    output::clear_progress();
                }
            }
            Event::Prompt { .. } => {}
            Event::Token(token) => on_token(&token)?,
            Event::Done(finish) => return Ok(finish),
            Event::Failed(e) => return Err(e.into()),
        }
    }
    bail!("the engine ended without a result")
}

/// The closing line: counts and speeds.
pub(crate) fn summary(finish: &Finish) -> String {
    let t = &finish.timings;
    let cached = if t.cached_tokens > 0 { format!(", {} cached", t.cached_tokens) } else { String::new() };
    format!(
        "prompt {} tokens{cached} in {} ({:.1} tokens/s), answer {} tokens in {} ({:.1} tokens/s), {}",
        t.prompt_tokens,
        output::seconds(t.prompt),
        t.prompt_speed(),
        t.generated_tokens,
        output::seconds(t.generation),
        t.generation_speed(),
        match &finish.reason {
            wootz::StopReason::EndOfText => "ended by the model".to_owned(),
            wootz::StopReason::Length => "stopped at -n".to_owned(),
            wootz::StopReason::ContextFull => "stopped: the context is full".to_owned(),
            wootz::StopReason::StopText(text) => format!("stopped at {text:?}"),
            wootz::StopReason::Cancelled => "cancelled".to_owned(),
        }
    )
}
