//! Files that appear whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Error, Result};

/// A file under a temporary name in the folder of its target, renamed by [`commit`](AtomicFile::commit).
///
/// Dropped without a commit it removes itself, and the target stays as it was.
pub struct AtomicFile {
    target: Arc<Path>,
    temporary: PathBuf,
    /// `None` once it has been renamed.
    file: Option<BufWriter<File>>,
}

impl AtomicFile {
    /// Starts a file that is to replace `target`.
    ///
    /// # Errors
    /// Where the folder cannot be written to.
    pub fn create(target: impl AsRef<Path>) -> Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let target: Arc<Path> = Arc::from(target.as_ref());
        let failed = |cause| Error::io(&target, "create the file", cause);
        let name = target.file_name().ok_or_else(|| failed(io::ErrorKind::InvalidFilename.into()))?;
        let mut temporary = std::ffi::OsString::from(".");
        temporary.push(name);
        temporary.push(format!(".{}-{}.part", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed)));
        let temporary = target.with_file_name(temporary);
        let file = OpenOptions::new().write(true).create_new(true).open(&temporary).map_err(failed)?;
        Ok(Self { target, temporary, file: Some(BufWriter::with_capacity(1 << 20, file)) })
    }

    /// Puts the file on the disk and in the place of its target.
    ///
    /// # Errors
    /// Where the disk is full or the target cannot be replaced; the target then stays as it was.
    pub fn commit(mut self) -> Result<()> {
        let failed = |cause| Error::io(&self.target, "write the file", cause);
        if let Some(file) = &mut self.file {
            file.flush().and_then(|()| file.get_ref().sync_all()).map_err(failed)?;
            fs::rename(&self.temporary, &self.target).map_err(failed)?;
            self.file = None;
            sync_folder(&self.target);
        }
        Ok(())
    }
}

/// Makes the rename itself last; not all file systems can, and the content is safe without.
fn sync_folder(path: &Path) {
    #[cfg(unix)]
    if let Some(folder) = path.parent() {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
    }
    #[cfg(not(unix))]
    let _ = path;
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.as_mut().map_or(Ok(0), |file| file.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), Write::flush)
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            // What is buffered is not wanted any more; nor is an error of writing it.
            drop(file.into_parts());
            let _ = fs::remove_file(&self.temporary);
        }
    }
}
