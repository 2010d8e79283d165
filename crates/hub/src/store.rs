//! Files that appear whole or not at all.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::error::{Error, Result, io_error};
use crate::local::MAGIC;
use crate::progress::Progress;

/// The disk, as far as it can be full. Tests have one of their own.
pub(crate) trait Disk: Send + Sync {
    /// Opens a file to write at its end, made when absent.
    fn append(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Bytes that this user may still write in `folder`.
    fn available(&self, folder: &Path) -> io::Result<u64>;
}

/// A file being written.
pub(crate) trait DiskFile: Write {
    /// Forgets what is in the file.
    fn clear(&mut self) -> io::Result<()>;
    /// Waits until the content is on the disk.
    fn sync(&mut self) -> io::Result<()>;
}

/// The real disk.
pub(crate) struct RealDisk;

impl Disk for RealDisk {
    fn append(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(File::options().create(true).append(true).open(path)?))
    }

    fn available(&self, folder: &Path) -> io::Result<u64> {
        fs4::available_space(folder)
    }
}

impl DiskFile for File {
    fn clear(&mut self) -> io::Result<()> {
        self.set_len(0)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

/// What stays free on a disk: a full system disk harms more than a missing model.
const RESERVE: u64 = 64 << 20;

/// A name beside `path` that no other thread or process uses.
pub(crate) fn scratch_name(path: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    path.with_file_name(format!(".{name}.{}-{count}.tmp", std::process::id()))
}

/// Refuses a transfer of `needed` bytes that `folder` has no room for.
pub(crate) fn check_room(disk: &dyn Disk, folder: &Path, needed: u64) -> Result<()> {
    // A file system that does not tell its free space shows a full disk later.
    let Ok(available) = disk.available(folder) else { return Ok(()) };
    if available >= needed.saturating_add(RESERVE) {
        return Ok(());
    }
    Err(Error::DiskFull { path: folder.into(), needed: Some(needed), available: Some(available) })
}

/// Makes a folder and those above it.
pub(crate) fn make_folder(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(|error| write_error("create", folder, error))
}

/// A failed write: no room, or anything else.
pub(crate) fn write_error(action: &'static str, path: &Path, source: io::Error) -> Error {
    if !is_full(&source) {
        return io_error(action, path)(source);
    }
    Error::DiskFull { path: path.parent().unwrap_or(path).into(), needed: None, available: None }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}

/// A file under a temporary name, with the hash of what is in it so far.
pub(crate) struct Partial<'d> {
    disk: &'d dyn Disk,
    path: PathBuf,
    file: Box<dyn DiskFile>,
    hash: Sha256,
    len: u64,
    start: Vec<u8>,
}

impl<'d> Partial<'d> {
    /// Opens the file at `path` and takes over what an earlier transfer left in it.
    pub(crate) fn resume(disk: &'d dyn Disk, path: PathBuf) -> Result<Self> {
        let file = disk.append(&path).map_err(|error| write_error("create", &path, error))?;
        let mut this = Self { disk, path, file, hash: Sha256::new(), len: 0, start: Vec::new() };
        let mut left = File::open(&this.path).map_err(io_error("read", &this.path))?;
        let mut block = vec![0; 1 << 20];
        loop {
            match left.read(&mut block) {
                Ok(0) => return Ok(this),
                Ok(n) => this.count(&block[..n]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(io_error("read", &this.path)(error)),
            }
        }
    }

    /// Bytes in the file.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Starts again from nothing.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.file.clear().map_err(|error| write_error("write", &self.path, error))?;
        self.hash = Sha256::new();
        self.len = 0;
        self.start.clear();
        Ok(())
    }

    /// Appends bytes. When the disk is full the file goes, so that the disk is not.
    pub(crate) fn write(&mut self, bytes: &[u8], total: Option<u64>) -> Result<()> {
        match self.file.write_all(bytes) {
            Ok(()) => {
                self.count(bytes);
                Ok(())
            }
            Err(error) => Err(self.give_up(error, total)),
        }
    }

    fn give_up(&mut self, error: io::Error, total: Option<u64>) -> Error {
        if !is_full(&error) {
            return io_error("write", &self.path)(error);
        }
        self.discard();
        let folder = self.path.parent().unwrap_or(&self.path);
        Error::DiskFull { path: folder.into(), needed: total, available: self.disk.available(folder).ok() }
    }

    fn count(&mut self, bytes: &[u8]) {
        let missing = MAGIC.len() - self.start.len();
        self.start.extend(bytes.iter().take(missing));
        self.hash.update(bytes);
        self.len += bytes.len() as u64;
    }

    /// The SHA-256 of what is in the file, 64 hexadecimal digits.
    pub(crate) fn sha256(&self) -> String {
        let digest = self.hash.clone().finalize();
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Gives the file its final name, if it has the hash and starts as a GGUF file does.
    ///
    /// A file that fails the check is removed.
    pub(crate) fn finish(mut self, target: &Path, sha256: Option<&str>, what: &str) -> Result<()> {
        let found = self.sha256();
        if let Some(expected) = sha256
            && expected != found
        {
            self.discard();
            return Err(Error::Checksum { what: what.into(), expected: expected.into(), found });
        }
        if self.start != MAGIC {
            self.discard();
            return Err(Error::NotGguf { what: what.into(), found: self.start });
        }
        if let Err(error) = self.file.sync() {
            return Err(self.give_up(error, None));
        }
        drop(self.file);
        fs::rename(&self.path, target).map_err(|error| write_error("create", target, error))
    }

    fn discard(&mut self) {
        // What cannot be removed is checked, and written over, by the next transfer.
        let _ = self.file.clear();
        let _ = fs::remove_file(&self.path);
    }
}

/// Keeps other processes away from a transfer while it lives.
///
/// The lock file stays behind, empty: removing it would let two processes hold locks
/// on different files of one name.
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Waits for the lock file at `path`, telling `progress` that it does.
    pub(crate) fn acquire(path: &Path, progress: &mut dyn Progress) -> Result<Self> {
        if let Some(folder) = path.parent() {
            make_folder(folder)?;
        }
        let file = File::options().create(true).truncate(false).write(true).open(path);
        let file = file.map_err(|error| write_error("create", path, error))?;
        let mut told = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self { _file: file }),
                // Without locks two transfers may spoil each other, which the hash shows.
                Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {
                    return Ok(Self { _file: file });
                }
                Err(TryLockError::Error(error)) => return Err(io_error("lock", path)(error)),
                Err(TryLockError::WouldBlock) => {}
            }
            if !std::mem::replace(&mut told, true) {
                progress.waiting("another process is fetching this model");
            }
            pause(Duration::from_millis(100), progress)?;
        }
    }
}

/// Sleeps, unless the caller wants to stop.
pub(crate) fn pause(mut time: Duration, progress: &mut dyn Progress) -> Result<()> {
    const STEP: Duration = Duration::from_millis(100);
    loop {
        if progress.cancelled() {
            return Err(Error::Cancelled);
        }
        if time.is_zero() {
            return Ok(());
        }
        let step = time.min(STEP);
        std::thread::sleep(step);
        time -= step;
    }
}
