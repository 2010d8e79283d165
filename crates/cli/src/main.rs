//! The wootz command.
#![forbid(unsafe_code)]

mod answer;
mod args;
mod commands;
mod common;
mod output;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use args::{Cli, Command};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) if e.use_stderr() && e.kind() != ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            output::note(&usage_error(&e.render().to_string()));
            return ExitCode::from(2);
        }
        Err(help) => help.exit(),
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            output::clear_progress();
            output::note(&format!("error: {}", output::causes(&e)));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Run(args) => commands::run::run(&args),
        Command::Chat(args) => commands::chat::run(&args),
        Command::Serve(args) => commands::serve::run(&args),
        Command::Embed(args) => commands::embed::run(&args),
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Tokenize(args) => commands::tokenize::run(&args),
        Command::Template(args) => commands::template::run(&args),
        Command::Plan(args) => commands::plan::run(&args),
        Command::Trace(args) => commands::trace::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Perplexity(args) => commands::perplexity::run(&args),
        Command::Pull(args) => commands::cache::pull(&args),
        Command::List(args) => commands::cache::list(&args),
        Command::Devices(args) => commands::devices::run(&args),
        Command::Selftest(args) => commands::selftest::run(&args),
    }
}

/// What is wrong with the command line and its tip as one line, without the usage.
fn usage_error(rendered: &str) -> String {
    let lines = rendered.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines =
        lines.take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"));
    format!("{}; see --help", lines.collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn a_usage_error_is_one_line() {
        let Err(e) = Cli::try_parse_from(["wootz", "run", "m", "--tmp", "1"]) else {
            panic!("--tmp is no argument");
        };
        let line = usage_error(&e.render().to_string());
        assert!(line.starts_with("error: unexpected argument '--tmp' found"), "{line}");
        assert!(line.contains("'--temp'") && !line.contains('\n'), "{line}");
    }
}
