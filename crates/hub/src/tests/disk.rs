//! Full disks, which a pretended disk plays.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::site::{REPO, Site};
use super::{Folder, model, resolve};
use crate::error::Error;
use crate::hub::Hub;
use crate::store::{Disk, DiskFile};

/// A disk that tells one amount of free space and has another.
pub(crate) struct SmallDisk {
    pub(crate) told: u64,
    pub(crate) left: Arc<AtomicU64>,
}

impl SmallDisk {
    pub(crate) fn new(told: u64, left: u64) -> Arc<Self> {
        Arc::new(Self { told, left: Arc::new(AtomicU64::new(left)) })
    }
}

struct SmallFile {
    file: File,
    left: Arc<AtomicU64>,
}

impl Disk for SmallDisk {
    fn append(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = File::options().create(true).append(true).open(path)?;
        Ok(Box::new(SmallFile { file, left: self.left.clone() }))
    }

    fn available(&self, _folder: &Path) -> io::Result<u64> {
        Ok(self.told)
    }
}

impl Write for SmallFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.left.load(Ordering::Relaxed);
        if left == 0 {
            return Err(ErrorKind::StorageFull.into());
        }
        let n = self.file.write(&bytes[..bytes.len().min(left as usize)])?;
        self.left.fetch_sub(n as u64, Ordering::Relaxed);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl DiskFile for SmallFile {
    fn clear(&mut self) -> io::Result<()> {
        self.file.set_len(0)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_all()
    }
}

const SIZE: usize = 3 << 20;

#[test]
fn a_disk_that_fills_up_is_left_as_it_was() {
    let content = model(1, SIZE);
    let site = Site::start([("m-Q4_0.gguf", content.clone())]);
    let cache = Folder::new();
    let disk = SmallDisk::new(u64::MAX, 1_000_000);
    let error = resolve(&Hub::with_disk(site.config(&cache), disk), &format!("hf:{REPO}")).unwrap_err();
    assert!(
        matches!(error, Error::DiskFull { needed: Some(n), available: Some(_), .. } if n == SIZE as u64),
        "{error}"
    );
    assert_eq!(cache.files_but_locks(), [""; 0]);
    assert_eq!(site.contents.seen().len(), 1, "another try is pointless");
    let path = resolve(&Hub::with_config(site.config(&cache)), &format!("hf:{REPO}")).unwrap();
    assert_eq!(fs::read(path).unwrap(), content);
}

#[test]
fn a_disk_that_is_too_small_is_refused_beforehand() {
    let site = Site::start([("m-Q4_0.gguf", model(1, SIZE))]);
    let cache = Folder::new();
    let disk = SmallDisk::new(5_000_000, u64::MAX);
    let error = resolve(&Hub::with_disk(site.config(&cache), disk), &format!("hf:{REPO}")).unwrap_err();
    assert!(error.to_string().contains("3.1 MB needed, 5.0 MB free"), "{error}");
    assert!(site.contents.seen().is_empty());
    assert_eq!(cache.files_but_locks(), [""; 0]);
}
