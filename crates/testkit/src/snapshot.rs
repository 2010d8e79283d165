//! Texts kept in files.

use std::path::Path;

/// Compares a text with a file, or writes the file where `WOOTZ_UPDATE_SNAPSHOTS` is set.
///
/// # Errors
/// The file is absent or differs, or cannot be written; the message has its path and the text.
pub fn snapshot(path: &Path, text: &str) -> Result<(), String> {
    if std::env::var_os("WOOTZ_UPDATE_SNAPSHOTS").is_some() {
        let folder = path.parent().unwrap_or(Path::new("."));
        let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(path, text));
        return written.map_err(|e| format!("{}: {e}", path.display()));
    }
    match std::fs::read_to_string(path) {
        Ok(found) if found == text => Ok(()),
        _ => Err(format!("{} differs from:\n{text}", path.display())),
    }
}
