//! What tests share.

use std::path::{Path, PathBuf};

/// The folder of this package.
pub(crate) fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Names and texts of the sources of kernels, sorted by name, then those of the headers that all backends share.
pub(crate) fn sources() -> Vec<(String, String)> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder().join("kernels")).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    let own = paths.into_iter().map(|path| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, std::fs::read_to_string(path).unwrap())
    });
    let shared =
        wootz_quant::KERNEL_HEADERS.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    own.chain(shared).collect()
}

/// Compares a text with a file of the package, or writes the file where `WOOTZ_UPDATE_SNAPSHOTS` is set.
pub(crate) fn compare_with_file(path: &str, text: &str) {
    wootz_testkit::snapshot(&folder().join(path), text).unwrap();
}
