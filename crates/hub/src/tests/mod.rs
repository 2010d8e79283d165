//! Tests against a local server of the hub's shape, and against pip with local packages.

mod concurrency;
mod disk;
mod hf;
mod hf_errors;
mod names;
mod pip;
mod server;
mod site;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::config::Config;
use crate::error::Result;
use crate::hub::Hub;
use crate::progress::Progress;
use crate::reference::ModelRef;

/// A folder that goes with the test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("wootz-hub-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn write(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// Paths of all files in the folder, with `/` between their parts, sorted.
    pub(crate) fn files(&self) -> Vec<String> {
        fn walk(folder: &Path, base: &Path, found: &mut Vec<String>) {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    walk(&path, base, found);
                } else {
                    found.push(path.strip_prefix(base).unwrap().to_str().unwrap().replace('\\', "/"));
                }
            }
        }
        let mut found = Vec::new();
        walk(&self.0, &self.0, &mut found);
        found.sort();
        found
    }

    /// The same without the empty lock files.
    pub(crate) fn files_but_locks(&self) -> Vec<String> {
        let mut files = self.files();
        files.retain(|file| !file.ends_with(".lock"));
        files
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A configuration that reads nothing from the environment and waits for nobody.
pub(crate) fn config(cache: &Folder) -> Config {
    let cache = cache.path().as_os_str().to_owned();
    let mut config = Config::from_lookup(&|name| (name == "WOOTZ_CACHE").then(|| cache.clone())).unwrap();
    config.backoff = Duration::from_millis(1);
    config
}

pub(crate) fn resolve(hub: &Hub, model: &str) -> Result<PathBuf> {
    hub.resolve(&ModelRef::parse(model).unwrap(), &mut ())
}

/// The content of a pretended model: the magic, then bytes that differ by `seed`.
pub(crate) fn model(seed: u32, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let noise = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    });
    b"GGUF".iter().copied().chain(noise).take(bytes).collect()
}

pub(crate) fn sha256(content: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Remembers what it is told, and stops after some bytes.
#[derive(Default)]
pub(crate) struct Recorder {
    pub(crate) begun: Vec<(String, Option<u64>)>,
    pub(crate) bytes: u64,
    pub(crate) finished: usize,
    pub(crate) waits: Vec<String>,
    pub(crate) stop_after: Option<u64>,
}

impl Progress for Recorder {
    fn begin(&mut self, name: &str, total: Option<u64>) {
        self.begun.push((name.into(), total));
        self.bytes = 0;
    }

    fn advance(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    fn finish(&mut self) {
        self.finished += 1;
    }

    fn waiting(&mut self, reason: &str) {
        self.waits.push(reason.into());
    }

    fn cancelled(&mut self) -> bool {
        self.stop_after.is_some_and(|limit| self.bytes >= limit)
    }
}
