//! Standard output, progress bars and units.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use wootz::gguf::AtomicFile;

/// The bar on the screen, so that an error can take it away first.
static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// What a bar counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Bytes,
    Chunks,
    Tests,
    Tokens,
}

/// Standard output takes no more: nobody reads on, or the disk is full. There is no use in going on.
#[derive(Debug)]
pub(crate) struct OutputFailed(io::Error);

impl fmt::Display for OutputFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot write to standard output: {}", self.0)
    }
}

impl std::error::Error for OutputFailed {}

/// A progress bar on standard error; silent where that is no terminal.
pub(crate) fn progress(label: &str, total: u64, unit: Unit) -> ProgressBar {
    let counts = match unit {
        Unit::Bytes => "{bytes}/{total_bytes} {bytes_per_sec}",
        Unit::Chunks => "{pos}/{len} chunks",
        Unit::Tests => "{pos}/{len} tests",
        Unit::Tokens => "{pos}/{len} tokens",
    };
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(10));
    let style = ProgressStyle::with_template(&format!("{{msg}} {{wide_bar}} {counts} {{eta}}"));
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(label.to_owned());
    if let Ok(mut current) = BAR.lock() {
        *current = Some(bar.clone());
    }
    bar
}

/// Takes the bar off the screen.
pub(crate) fn clear_progress() {
    if let Some(bar) = BAR.lock().ok().and_then(|mut bar| bar.take()) {
        bar.finish_and_clear();
    }
}

/// Writes to standard output at once.
///
/// # Errors
/// Standard output is closed or full.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    write(text.as_bytes())
}

/// Writes bytes, which need not be text, to standard output at once.
///
/// # Errors
/// Standard output is closed or full.
pub(crate) fn write(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(|e| OutputFailed(e).into())
}

/// A failure's chain of causes as one line; causes that their effect's text already holds are left out.
pub(crate) fn causes(e: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in e.chain().map(ToString::to_string).filter(|c| !c.is_empty()) {
        if !line.contains(&cause) {
            if !line.is_empty() {
                line.push_str(": ");
            }
            line.push_str(&cause);
        }
    }
    line.replace(['\r', '\n'], " ")
}

/// Writes a line to standard error; that nobody reads it is no failure.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Writes a file that is whole or not there.
///
/// # Errors
/// It cannot be written.
pub(crate) fn write_file(path: &Path, content: &str) -> anyhow::Result<()> {
    let mut file = AtomicFile::create(path)?;
    file.write_all(content.as_bytes()).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(file.commit()?)
}

/// Writes a line to standard output.
///
/// # Errors
/// Standard output is closed or full.
pub(crate) fn println(text: &str) -> anyhow::Result<()> {
    print(&format!("{text}\n"))
}

/// Whether a person reads standard error.
pub(crate) fn is_watched() -> bool {
    io::stderr().is_terminal()
}

/// A time for people.
pub(crate) fn seconds(time: Duration) -> String {
    let s = time.as_secs_f64();
    if s < 1.0 { format!("{:.0} ms", s * 1e3) } else { format!("{s:.2} s") }
}

/// Whole text of standard input or a file; `-` is standard input.
///
/// # Errors
/// It cannot be read.
pub(crate) fn read_input(path: &Path) -> anyhow::Result<Vec<u8>> {
    if path.as_os_str() == "-" {
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut io::stdin().lock(), &mut bytes).context("cannot read standard input")?;
        return Ok(bytes);
    }
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Text of an argument, or of standard input where it is missing or `-`.
///
/// # Errors
/// Standard input cannot be read, or is not UTF-8.
pub(crate) fn text_argument(argument: Option<&str>) -> anyhow::Result<String> {
    match argument {
        Some(text) if text != "-" => Ok(text.to_owned()),
        _ => {
            if io::stdin().is_terminal() {
                note("(reading the text from standard input; end with Ctrl-D)");
            }
            let bytes = read_input(Path::new("-"))?;
            String::from_utf8(bytes).map_err(|e| {
                let at = e.utf8_error().valid_up_to();
                anyhow::anyhow!(
                    "standard input is not UTF-8: byte {at} is 0x{:02x}; convert it first",
                    e.as_bytes()[at]
                )
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_joined_once() {
        let inner = anyhow::anyhow!("no such file");
        assert_eq!(causes(&inner.context("cannot open x: no such file")), "cannot open x: no such file");
        assert_eq!(causes(&anyhow::anyhow!("b").context("a")), "a: b");
        assert_eq!(causes(&anyhow::anyhow!("two\nlines")), "two lines");
    }

    #[test]
    fn times_read_well() {
        assert_eq!(seconds(Duration::from_millis(42)), "42 ms");
        assert_eq!(seconds(Duration::from_millis(1500)), "1.50 s");
    }
}
