//! `wootz serve`

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tracing_subscriber::filter::LevelFilter;
use wootz::{Context, ContextOptions, Model, ModelOptions};
use wootz_server::{Loader, ModelSpec, Preset, Presets, Server, ServerOptions};

use crate::args::{LogFormat, ServeArgs};
use crate::{common, output};

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<()> {
    let models = models(args)?;
    let options = options(args)?;
    if !args.host.is_loopback() && options.api_keys.is_empty() {
        output::note("note: other machines can use this server, and no --api-key is needed");
    }
    start_log(args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("wootz-http")
        .enable_all()
        .build()
        .context("cannot start the threads of the server")?;
    let result = runtime.block_on(async {
        let names: Vec<String> = models.iter().map(|m| m.name.clone()).collect();
        let address = SocketAddr::new(args.host, args.port);
        let server = Server::bind(address, models, options).await?;
        output::println(&format!("serving {} at http://{}", names.join(", "), server.address()))?;
        server.run(stop()).await?;
        anyhow::Ok(())
    });
    // Engines end with the tasks that hold them.
    runtime.shutdown_timeout(Duration::from_secs(5));
    result
}

/// Sends the log to standard error.
fn start_log(args: &ServeArgs) -> anyhow::Result<()> {
    let level = match (args.quiet, args.verbose) {
        (true, _) => LevelFilter::ERROR,
        (_, true) => LevelFilter::DEBUG,
        _ => LevelFilter::INFO,
    };
    let lines = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .with_ansi(false)
        .with_writer(std::io::stderr);
    let started = match args.log_format {
        LogFormat::Text => lines.try_init(),
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).try_init(),
    };
    started.map_err(|e| anyhow::anyhow!("cannot start the log: {e}"))
}

/// Waits for Ctrl-C, or for the signal that asks programs to end.
async fn stop() {
    let interrupt = async {
        // Without a handler the signal ends the program at once, which is a stop too.
        let _ = tokio::signal::ctrl_c().await;
    };
    #[cfg(unix)]
    let terminate = async {
        use tokio::signal::unix::{SignalKind, signal};
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => terminate.recv().await,
            Err(_) => std::future::pending().await,
        }
    };
    #[cfg(not(unix))]
    let terminate = std::future::pending::<Option<()>>();
    tokio::select! {
        () = interrupt => {}
        _ = terminate => {}
    }
}

fn options(args: &ServeArgs) -> anyhow::Result<ServerOptions> {
    let mut api_keys = args.api_key.clone();
    if api_keys.is_empty() {
        api_keys.extend(std::env::var("WOOTZ_API_KEY").ok().filter(|key| !key.is_empty()));
    }
    if let Some(path) = &args.api_key_file {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        api_keys.extend(
            text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')).map(str::to_owned),
        );
        ensure!(!api_keys.is_empty(), "{} holds no key", path.display());
    }
    ensure!(api_keys.iter().all(|key| !key.is_empty()), "an API key is empty");
    for origin in &args.origin {
        let known = origin == "*" || (origin.contains("://") && !origin.ends_with('/'));
        ensure!(
            known,
            "--origin takes a scheme and a host, such as https://example.org, or *, not {origin:?}"
        );
    }
    let seconds = |n: u64| (n > 0).then(|| Duration::from_secs(n));
    Ok(ServerOptions {
        api_keys,
        origins: args.origin.clone(),
        body_limit: args.body_limit << 20,
        queue: args.queue,
        running: args.running,
        timeout: seconds(args.timeout),
        grace: Duration::from_secs(args.grace),
        models_max: args.models_max,
        memory: args.memory.map(|mib| (mib as u64) << 20),
        unload_after: seconds(args.unload_after),
        ..ServerOptions::default()
    })
}

/// What a model is loaded with.
struct Source {
    reference: String,
    offline: bool,
    pretokenizer: Option<String>,
    chat_template: Option<String>,
    options: ContextOptions,
}

fn models(args: &ServeArgs) -> anyhow::Result<Vec<ModelSpec>> {
    let sampling = args.sampling.params();
    sampling.validate()?;
    let preset = Preset {
        sampling: sampling.clone(),
        system: args.system.clone(),
        max_tokens: common::max_tokens(args.predict)?,
        truncate: args.truncate,
    };
    let options = ContextOptions { sequences: args.parallel, ..common::context_options(&args.device) };
    let mut specs = Vec::new();
    for (i, reference) in args.models.iter().enumerate() {
        let first = i == 0;
        // The first model's own names, in the order of --alias.
        let mut aliases = if first { args.alias.clone() } else { Vec::new() };
        let name = if aliases.is_empty() { short_name(reference) } else { aliases.remove(0) };
        if name != *reference {
            aliases.push(reference.clone());
        }
        let source = Source {
            reference: reference.clone(),
            offline: args.offline,
            pretokenizer: args.pretokenizer.clone().filter(|_| first),
            chat_template: args.chat_template.clone().filter(|_| first),
            options: options.clone(),
        };
        specs.push(spec(name, aliases, source, preset.clone()));
    }
    if let Some(path) = &args.presets {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let presets = Presets::parse(&text).with_context(|| format!("{}", path.display()))?;
        ensure!(!presets.models.is_empty() || !specs.is_empty(), "{} names no model", path.display());
        for (name, entry) in presets.models {
            let source = Source {
                reference: entry.model,
                offline: args.offline,
                pretokenizer: None,
                chat_template: entry.chat_template,
                options: ContextOptions {
                    context: entry.ctx.or(options.context),
                    sequences: entry.parallel.unwrap_or(options.sequences),
                    ..options.clone()
                },
            };
            let preset = Preset {
                sampling: entry.sampling.unwrap_or_else(|| sampling.clone()),
                system: entry.system.or_else(|| args.system.clone()),
                max_tokens: entry.max_tokens.or(preset.max_tokens),
                truncate: entry.truncate.unwrap_or(preset.truncate),
            };
            specs.push(spec(name, entry.aliases, source, preset));
        }
    }
    Ok(specs)
}

fn spec(name: String, aliases: Vec<String>, source: Source, preset: Preset) -> ModelSpec {
    let reference = source.reference.clone();
    let path = Some(PathBuf::from(&reference)).filter(|path| path.is_file());
    let load: Loader = Arc::new(move |memory| Ok(load(&source, memory)?));
    ModelSpec { name, aliases, source: reference, path, load, preset }
}

fn load(source: &Source, memory: Option<u64>) -> anyhow::Result<Context> {
    let path = common::resolve(&source.reference, source.offline)?;
    let chat_template = source.chat_template.as_deref().map(common::template_source).transpose()?;
    let options = ModelOptions { pretokenizer: source.pretokenizer.clone(), chat_template };
    let model = Arc::new(Model::open(&path, &options)?);
    Ok(Context::new(model, &ContextOptions { memory, ..source.options.clone() }, &mut |_| ())?)
}

/// A model's name in requests: that of its file without the ending, or the reference itself.
fn short_name(reference: &str) -> String {
    let path = Path::new(reference);
    let file = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")) && !reference.contains(':');
    match path.file_stem().filter(|_| file).and_then(|s| s.to_str()) {
        Some(stem) => stem.to_owned(),
        None => reference.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_files() {
        assert_eq!(short_name("models/a.b-q4.gguf"), "a.b-q4");
        assert_eq!(short_name("smollm2"), "smollm2");
        assert_eq!(short_name("hf:owner/repo:file.gguf"), "hf:owner/repo:file.gguf");
    }
}
