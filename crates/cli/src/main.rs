//! The wootz command.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod common;
mod output;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            output::clear_progress();
            let chain: Vec<String> = e.chain().map(ToString::to_string).collect();
            eprintln!("error: {}", join_causes(&chain));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Run(args) => commands::run::run(&args),
        Command::Chat(args) => commands::chat::run(&args),
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

/// A chain of causes as one line; causes that their effect's text already holds are left out.
fn join_causes(chain: &[String]) -> String {
    let mut line = String::new();
    for cause in chain.iter().filter(|c| !c.is_empty()) {
        if !line.contains(cause.as_str()) {
            if !line.is_empty() {
                line.push_str(": ");
            }
            line.push_str(cause);
        }
    }
    line
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
    fn causes_are_joined_once() {
        let chain = ["cannot open x: no such file".to_owned(), "no such file".to_owned()];
        assert_eq!(join_causes(&chain), "cannot open x: no such file");
        let chain = ["a".to_owned(), "b".to_owned()];
        assert_eq!(join_causes(&chain), "a: b");
    }
}
