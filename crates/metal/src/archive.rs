//! Where a device keeps compiled kernels between runs.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use crate::error::MetalError;
use crate::library::Sources;

/// The file of a device's compiled kernels. It is of these sources alone: others have another name.
pub fn file(folder: &Path, device: &str, sources: &Sources) -> PathBuf {
    let plain: String = device.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    folder.join(format!("{plain}-{}.metallib", digest(&(device, sources))))
}

/// Has a file written under another name and moves it into place, so that it is whole or not there.
///
/// # Errors
/// It cannot be written; the file that was there stays.
pub fn replace(path: &Path, write: impl FnOnce(&Path) -> Result<(), MetalError>) -> Result<(), MetalError> {
    let failed = |e: std::io::Error| MetalError::Archive { path: path.to_owned(), reason: e.to_string() };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    let partial = path.with_extension(format!("{}.partial", unique()));
    let result = write(&partial).and_then(|()| std::fs::rename(&partial, path).map_err(failed));
    if result.is_err() {
        // What was begun is of no use, and may not even be there.
        let _ = std::fs::remove_file(&partial);
    }
    result
}

/// A number for a value, as part of a file's name.
pub(crate) fn digest(value: &impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// A name that no other file of this machine has at the same time.
pub(crate) fn unique() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_kernels_and_devices_have_other_files() {
        let (folder, sources) = (Path::new("/archives"), Sources::default());
        let path = file(folder, "Apple M4 Pro", &sources);
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("Apple-M4-Pro-") && path.starts_with(folder), "{name}");
        assert_eq!(path, file(folder, "Apple M4 Pro", &sources));
        assert_ne!(path, file(folder, "Apple M4-Pro", &sources));
        let altered = sources.altered("norm.metal", "float mean = 0.0f;", "float mean = -0.0f;").unwrap();
        assert_ne!(path, file(folder, "Apple M4 Pro", &altered));
    }

    #[test]
    fn a_file_is_whole_or_as_it_was() {
        let folder = std::env::temp_dir().join(format!("wootz-archive-{}", unique()));
        let path = folder.join("kernels.metallib");
        let write = |text: &'static str| {
            move |to: &Path| {
                std::fs::write(to, text).unwrap();
                Ok(())
            }
        };
        replace(&path, write("first")).unwrap();
        replace(&path, write("second")).unwrap();
        let half = replace(&path, |to| {
            std::fs::write(to, "th").unwrap();
            Err(MetalError::Archive { path: to.to_owned(), reason: "the disk is full".into() })
        });
        assert!(matches!(half, Err(MetalError::Archive { .. })));
        assert!(matches!(replace(&path, |_| Ok(())), Err(MetalError::Archive { .. })), "nothing was written");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "second");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "nothing else is left");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
