//! The ways to name a model.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::local;
use crate::suggest::nearest;
use crate::table::{self, ShortName, short_names};

/// The name of a model, as a user gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelRef {
    /// A GGUF file, any file of a split model, or a folder with one model.
    Path(PathBuf),
    /// A short name of the table.
    Name(&'static ShortName),
    /// A repository on the hub.
    Hf(HfRef),
    /// A Python package with a GGUF file inside.
    Pip(PipRef),
}

/// A model in a repository on the hub: `OWNER/REPO[@REVISION][:FILE-OR-QUANT]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HfRef {
    /// Who owns the repository.
    pub owner: String,
    /// The name of the repository.
    pub repo: String,
    /// A branch, a tag or a commit; `main` unless said otherwise.
    pub revision: String,
    /// A file name or a weight type such as `Q4_K_M`; none leaves the choice to wootz.
    pub selector: Option<String>,
}

/// A Python package: `PACKAGE[==VERSION]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PipRef {
    /// The package, in the normal form of package indexes: lower case, `-` between words.
    pub package: String,
    /// The version; none means the newest.
    pub version: Option<String>,
}

/// The branch that a reference means when it names none.
const MAIN: &str = "main";

impl ModelRef {
    /// Reads a model reference.
    ///
    /// `hf:`, `pip:` and `name:` say what follows. Anything else is a short name if
    /// the table has it, and a path if it looks like one or exists.
    ///
    /// # Errors
    /// [`Error::BadReference`] for a form that cannot be right, [`Error::Ambiguous`] for
    /// a short name that is also a model in the current folder, [`Error::UnknownName`]
    /// with the nearest names for anything else. Whether a path exists is for
    /// [`Hub::resolve`](crate::Hub::resolve) to say.
    pub fn parse(text: &str) -> Result<Self> {
        Self::parse_in(text, Path::new(""))
    }

    /// The same with `folder` in the place of the current one.
    pub(crate) fn parse_in(text: &str, folder: &Path) -> Result<Self> {
        let bad = |reason: &str| Error::BadReference { reference: text.into(), reason: reason.into() };
        if text.trim().is_empty() {
            return Err(bad("it is empty"));
        }
        if let Some(rest) = text.strip_prefix("hf:") {
            return HfRef::parse(rest).map(Self::Hf);
        }
        if let Some(rest) = text.strip_prefix("pip:") {
            return PipRef::parse(rest).map(Self::Pip);
        }
        if let Some(rest) = text.strip_prefix("name:") {
            return table::find(rest).map(Self::Name).ok_or_else(|| unknown(rest));
        }
        if text.starts_with("http://") || text.starts_with("https://") {
            return Err(bad("an address cannot be opened; download the file, or write hf:OWNER/REPO:FILE"));
        }
        let path = &folder.join(text);
        if let Some(entry) = table::find(text) {
            if local::holds_model(path) {
                return Err(Error::Ambiguous { name: text.into() });
            }
            return Ok(Self::Name(entry));
        }
        if looks_like_path(text) || path.exists() {
            return Ok(Self::Path(path.into()));
        }
        let (start, _) = text.split_once(':').unwrap_or((text, ""));
        if start.matches('/').count() == 1 && HfRef::parse(text).is_ok() {
            return Err(bad(&format!("there is no such file; for a repository on the hub write hf:{text}")));
        }
        if text.contains(['/', '\\']) {
            return Ok(Self::Path(path.into()));
        }
        Err(unknown(text))
    }
}

/// Whether a text can only be meant as a path.
fn looks_like_path(text: &str) -> bool {
    text.starts_with(['.', '/', '\\', '~'])
        || text.contains('\\')
        || text.ends_with(['/'])
        || text.to_lowercase().ends_with(".gguf") && !text.contains(':')
}

fn unknown(name: &str) -> Error {
    let names = short_names().iter().flat_map(|entry| std::iter::once(&entry.name).chain(&entry.aliases));
    Error::UnknownName { name: name.into(), suggestions: nearest(name, names.map(String::as_str)) }
}

impl FromStr for ModelRef {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

impl fmt::Display for ModelRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Name(entry) => f.write_str(&entry.name),
            Self::Hf(reference) => write!(f, "hf:{reference}"),
            Self::Pip(reference) => write!(f, "pip:{reference}"),
        }
    }
}

impl HfRef {
    /// Reads `OWNER/REPO[@REVISION][:FILE-OR-QUANT]`.
    ///
    /// # Errors
    /// [`Error::BadReference`] with what is wrong.
    pub fn parse(text: &str) -> Result<Self> {
        let bad =
            |reason: &str| Error::BadReference { reference: format!("hf:{text}"), reason: reason.into() };
        let (place, selector) = match text.split_once(':') {
            Some((_, "")) => {
                return Err(bad("a file or a weight type such as Q4_K_M is expected after the colon"));
            }
            Some((place, selector)) => (place, Some(selector)),
            None => (text, None),
        };
        let (place, revision) = match place.split_once('@') {
            Some((_, "")) => return Err(bad("a branch, tag or commit is expected after the @")),
            Some((place, revision)) => (place, revision),
            None => (place, MAIN),
        };
        let form = || bad("hf:OWNER/REPO is expected, with :FILE-OR-QUANT after it if you like");
        let (owner, repo) = place.split_once('/').ok_or_else(form)?;
        if !is_repo_part(owner) || !is_repo_part(repo) {
            return Err(form());
        }
        // A revision is part of a path in the cache.
        if !revision.split('/').all(|part| is_repo_part(part) && part != "..") {
            return Err(bad("this is no branch, tag or commit"));
        }
        if selector.is_some_and(|selector| selector.chars().any(char::is_control)) {
            return Err(bad("a file name has no control characters"));
        }
        Ok(Self {
            owner: owner.into(),
            repo: repo.into(),
            revision: revision.into(),
            selector: selector.map(str::to_owned),
        })
    }

    /// `OWNER/REPO`.
    pub fn id(&self) -> String {
        format!("{}/{}", self.owner, self.repo)
    }
}

/// Whether the hub allows this as the name of an owner or a repository.
pub(crate) fn is_repo_part(part: &str) -> bool {
    !part.is_empty()
        && part.len() <= 96
        && !part.starts_with(['.', '-'])
        && !part.contains("..")
        && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

impl fmt::Display for HfRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.repo)?;
        if self.revision != MAIN {
            write!(f, "@{}", self.revision)?;
        }
        match &self.selector {
            Some(selector) => write!(f, ":{selector}"),
            None => Ok(()),
        }
    }
}

impl PipRef {
    /// Reads `PACKAGE[==VERSION]`.
    ///
    /// # Errors
    /// [`Error::BadReference`] with what is wrong.
    pub fn parse(text: &str) -> Result<Self> {
        let bad =
            |reason: &str| Error::BadReference { reference: format!("pip:{text}"), reason: reason.into() };
        let (package, version) = match text.split_once("==") {
            Some((package, version)) => (package.trim(), Some(version.trim())),
            None => (text.trim(), None),
        };
        let is_word = |text: &str, more: &[u8]| {
            text.starts_with(|c: char| c.is_ascii_alphanumeric())
                && text.bytes().all(|b| {
                    b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-') || more.contains(&b)
                })
        };
        if !is_word(package, b"") {
            return Err(bad("pip:PACKAGE or pip:PACKAGE==VERSION is expected"));
        }
        if version.is_some_and(|version| !is_word(version, b"!+")) {
            return Err(bad("a version such as 1.0.2 is expected after =="));
        }
        Ok(Self { package: normal_package(package), version: version.map(str::to_owned) })
    }
}

/// The normal form of a package name: lower case, runs of `-_.` as one `-` (PEP 503).
pub(crate) fn normal_package(name: &str) -> String {
    let words = name.split(['-', '_', '.']).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-").to_lowercase()
}

impl fmt::Display for PipRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.version {
            Some(version) => write!(f, "{}=={version}", self.package),
            None => f.write_str(&self.package),
        }
    }
}
