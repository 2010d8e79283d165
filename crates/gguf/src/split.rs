//! The names of the files of a split model: `NAME-00002-of-00005.gguf`.

use std::path::{Path, PathBuf};

/// How the name of shard `number` (from 1) of `count` ends.
pub(crate) fn suffix(number: u32, count: u32) -> String {
    format!("-{number:05}-of-{count:05}.gguf")
}

/// The part of the path before the suffix, where `path` is named as that shard.
pub(crate) fn stem(path: &Path, number: u32, count: u32) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let stem = name.strip_suffix(&suffix(number, count))?;
    Some(path.with_file_name(stem))
}

/// The path of another shard of the set.
pub(crate) fn path(stem: &Path, number: u32, count: u32) -> PathBuf {
    let mut path = stem.as_os_str().to_owned();
    path.push(suffix(number, count));
    path.into()
}
