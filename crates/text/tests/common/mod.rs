//! The vocabularies that `scripts/fetch-test-vocabs.py` fetches.

use std::path::PathBuf;

use wootz_gguf::Model;
use wootz_text::Tokenizer;

/// Names of all vocabularies in the cache.
pub(crate) fn names() -> Vec<String> {
    let folder = folder();
    let mut names: Vec<String> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}; {FETCH}", folder.display()))
        .filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.strip_suffix(".gguf")?.to_owned()))
        .collect();
    names.sort_unstable();
    assert!(names.len() >= 20, "{}: only {} vocabularies; {FETCH}", folder.display(), names.len());
    names
}

/// The tokenizer of a vocabulary; old files that name no pre-tokenizer get the one of their family.
pub(crate) fn tokenizer(name: &str) -> Tokenizer {
    let path = file(&format!("{name}.gguf"));
    let model = Model::open(&path).unwrap_or_else(|error| panic!("{error}"));
    let pre = match name {
        "ggml-vocab-aquila" => Some("default"),
        "ggml-vocab-gpt-neox" => Some("gpt-2"),
        _ => None,
    };
    Tokenizer::from_metadata(model.meta(), pre).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A file of the cache, which must be there.
pub(crate) fn file(name: &str) -> PathBuf {
    let path = folder().join(name);
    assert!(path.is_file(), "{} is missing; {FETCH}", path.display());
    path
}

const FETCH: &str = "fetch it with scripts/fetch-test-vocabs.py";

fn folder() -> PathBuf {
    let cache = std::env::var_os("WOOTZ_TEST_CACHE").map(PathBuf::from);
    let default = || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.cache"));
    cache.unwrap_or_else(default).join("vocabs")
}
