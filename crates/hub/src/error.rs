//! What can go wrong while a model is looked for, fetched or removed.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error as ThisError;

/// The result of a function of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong while a model is looked for, fetched or removed.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// Neither a short name nor a path.
    #[error("no model is called {name:?} and there is no such file{}", did_you_mean(suggestions))]
    UnknownName {
        /// What was asked for.
        name: String,
        /// Names close to it.
        suggestions: Vec<String>,
    },
    /// A reference that breaks the rules of its form.
    #[error("{reference:?} names no model: {reason}")]
    BadReference {
        /// What was asked for.
        reference: String,
        /// What is wrong with it, and what would be right.
        reason: String,
    },
    /// A short name that is also a model in the current folder.
    #[error(
        "{name:?} is a short name and also a model in this folder: say ./{name} for the file, name:{name} for the short name"
    )]
    Ambiguous {
        /// What was asked for.
        name: String,
    },
    /// A path that leads nowhere.
    #[error("there is no file or folder {}{}", path.display(), did_you_mean(suggestions))]
    NoSuchPath {
        /// The path.
        path: PathBuf,
        /// Similar names in the same folder.
        suggestions: Vec<String>,
    },
    /// A folder, repository or package without a GGUF file.
    #[error("{place} holds no GGUF file")]
    NoModel {
        /// The folder, repository or wheel.
        place: String,
    },
    /// More than one model where one was expected.
    #[error("{place} holds several models, name one of them: {}", list(found))]
    SeveralModels {
        /// The folder, repository or wheel.
        place: String,
        /// The models found, by their first file.
        found: Vec<String>,
    },
    /// No file of a repository has the name or weight type asked for.
    #[error("{place} has no file or weight type {wanted:?}, it has: {}", list(found))]
    NoMatch {
        /// The repository.
        place: String,
        /// The file or weight type asked for.
        wanted: String,
        /// The models found, by their first file.
        found: Vec<String>,
    },
    /// A split model that lacks some of its files.
    #[error("the split model {file:?} in {place} is incomplete, it lacks: {}", list(missing))]
    MissingShards {
        /// The folder or repository.
        place: String,
        /// The file that was named.
        file: String,
        /// Names of the files that are not there.
        missing: Vec<String>,
    },
    /// A fetched file that is no GGUF file.
    #[error("{what} is no GGUF file: it starts with {found:02x?}, expected \"GGUF\"")]
    NotGguf {
        /// The file.
        what: String,
        /// Its first bytes.
        found: Vec<u8>,
    },
    /// A model that is not in the cache, with fetching not allowed.
    #[error("{reference} is not in the cache, and this run may not fetch it")]
    NotCached {
        /// The model.
        reference: String,
    },
    /// A path where only a cached model makes sense.
    #[error("{} is not in the cache of wootz; remove it yourself", path.display())]
    NotInCache {
        /// The path.
        path: PathBuf,
    },
    /// No place for the cache.
    #[error("no home folder is known, so there is no place for the cache: set WOOTZ_CACHE")]
    NoCacheFolder,
    /// A token with characters that no token has.
    #[error("the access token from {origin} is no token: it has spaces or control characters")]
    BadToken {
        /// The variable or file it came from.
        origin: String,
    },
    /// Python could not be started.
    #[error("cannot start {command} to run pip: {source} (set WOOTZ_PYTHON to a Python with pip)")]
    NoPython {
        /// The command.
        command: String,
        /// Why not.
        source: io::Error,
    },
    /// pip ended with an error.
    #[error("pip could not fetch {package}: {message}")]
    Pip {
        /// The package.
        package: String,
        /// What pip said last.
        message: String,
    },
    /// A wheel that cannot be read.
    #[error("the wheel {wheel} cannot be read: {reason}")]
    Wheel {
        /// The file name of the wheel.
        wheel: String,
        /// Why not.
        reason: String,
    },
    /// The hub wants to know who asks (401), or does not let this user in (403).
    #[error("the hub refuses {what}: {}", access_hint(*gated, *with_token))]
    Refused {
        /// The repository.
        what: String,
        /// Whether the hub says that a licence has to be accepted first.
        gated: bool,
        /// Whether the request carried a token.
        with_token: bool,
    },
    /// The hub has no such repository, revision or file (404).
    #[error("the hub does not know {what}")]
    NotFound {
        /// The repository, revision or file.
        what: String,
    },
    /// Too many requests (429), for longer than this crate waits.
    #[error("{host} takes no more requests for now{}", try_after(*retry_after))]
    RateLimited {
        /// The server.
        host: String,
        /// The wait that the server asks for.
        retry_after: Option<Duration>,
    },
    /// Any other status that is an error.
    #[error("{url} answered with status {status}")]
    Status {
        /// The address.
        url: String,
        /// The HTTP status.
        status: u16,
    },
    /// No connection, or one that broke, after all attempts.
    #[error("cannot fetch {url}: {reason}")]
    Network {
        /// The address.
        url: String,
        /// What happened at the last attempt.
        reason: String,
    },
    /// A connection that ended early, at every attempt.
    #[error("{url} ended early, at {found} of {expected} bytes; another try resumes there")]
    Interrupted {
        /// The address.
        url: String,
        /// The size of the file in bytes.
        expected: u64,
        /// Bytes received.
        found: u64,
    },
    /// An answer that does not fit the protocol.
    #[error("unexpected answer from {url}: {reason}")]
    BadReply {
        /// The address.
        url: String,
        /// What does not fit.
        reason: String,
    },
    /// A file with other content than promised.
    #[error("{what} is damaged: expected SHA-256 {expected}, found {found}")]
    Checksum {
        /// The file.
        what: String,
        /// The promised hash.
        expected: String,
        /// The hash of what came.
        found: String,
    },
    /// No room for the file.
    #[error("no room in {}: {}", path.display(), room(*needed, *available))]
    DiskFull {
        /// The folder.
        path: PathBuf,
        /// Bytes still to be written, if known.
        needed: Option<u64>,
        /// Bytes free, if known.
        available: Option<u64>,
    },
    /// Any other failure of the file system.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The caller asked to stop.
    #[error("stopped; another try goes on from here")]
    Cancelled,
}

/// Makes [`Error::Io`] for `action` on `path`.
pub(crate) fn io_error(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
    let path = path.into();
    move |source| Error::Io { action, path, source }
}

/// Bytes as people read them, in powers of ten.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0;
        match n {
            0..1_000 => write!(f, "{n} bytes"),
            1_000..1_000_000 => write!(f, "{:.1} kB", n as f64 / 1e3),
            1_000_000..1_000_000_000 => write!(f, "{:.1} MB", n as f64 / 1e6),
            _ => write!(f, "{:.2} GB", n as f64 / 1e9),
        }
    }
}

/// The most entries that a message lists.
const LISTED: usize = 24;

fn list(names: &[String]) -> String {
    let mut text = names.iter().take(LISTED).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > LISTED {
        text += &format!(" and {} more", names.len() - LISTED);
    }
    text
}

fn did_you_mean(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => format!("; did you mean {one}?"),
        [most @ .., last] => format!("; did you mean {} or {last}?", most.join(", ")),
    }
}

fn access_hint(gated: bool, with_token: bool) -> &'static str {
    match (gated, with_token) {
        (true, true) => "accept its licence on the hub's page with the account of your token",
        (true, false) => "accept its licence on the hub's page and set HF_TOKEN to your token",
        (false, true) => "the name may be wrong, or the token may not read it",
        (false, false) => "the name may be wrong; for a private repository set HF_TOKEN to your token",
    }
}

fn try_after(wait: Option<Duration>) -> String {
    wait.map(|wait| format!("; try again in {} s", wait.as_secs())).unwrap_or_default()
}

fn room(needed: Option<u64>, available: Option<u64>) -> String {
    match (needed, available) {
        (Some(needed), Some(available)) => format!("{} needed, {} free", Bytes(needed), Bytes(available)),
        (Some(needed), None) => format!("{} more needed", Bytes(needed)),
        (None, Some(available)) => format!("{} free", Bytes(available)),
        (None, None) => "the disk is full".into(),
    }
}
