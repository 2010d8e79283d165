//! The hub's cache on disk, in the layout that other tools share:
//!
//! ```text
//! models--OWNER--REPO/blobs/HASH             contents, by entity tag
//! models--OWNER--REPO/refs/REVISION          the commit of a branch or tag, as text
//! models--OWNER--REPO/snapshots/COMMIT/FILE  links to the contents
//! .locks/models--OWNER--REPO/HASH.lock       held while a content is fetched
//! ```

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::config::Config;
use crate::error::{Result, io_error};
use crate::reference::{HfRef, is_repo_part};
use crate::sets::{self, FileSet};
use crate::store::{make_folder, scratch_name, write_error};

/// The cache of one repository.
pub(crate) struct Repo {
    folder: PathBuf,
    locks: PathBuf,
}

/// The files of one commit, as far as they were fetched.
pub(crate) struct Snapshot {
    pub(crate) commit: String,
    pub(crate) folder: PathBuf,
    changed: SystemTime,
}

/// A model in the cache.
pub(crate) struct CachedSet {
    pub(crate) reference: HfRef,
    /// The files, relative to their folder.
    pub(crate) set: FileSet,
    /// The folder of their commit.
    pub(crate) folder: PathBuf,
}

impl Repo {
    pub(crate) fn new(config: &Config, wanted: &HfRef) -> Self {
        let name = format!("models--{}--{}", wanted.owner, wanted.repo);
        Self { folder: config.hf_cache_dir.join(&name), locks: config.hf_cache_dir.join(".locks").join(name) }
    }

    pub(crate) fn blob(&self, name: &str) -> PathBuf {
        self.folder.join("blobs").join(name)
    }

    pub(crate) fn lock(&self, blob: &str) -> PathBuf {
        self.locks.join(format!("{blob}.lock"))
    }

    pub(crate) fn snapshot_folder(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// Whether a file of a commit is there.
    pub(crate) fn has(&self, commit: &str, file: &str, bytes: u64) -> bool {
        fs::metadata(self.snapshot_folder(commit).join(file)).is_ok_and(|about| about.len() == bytes)
    }

    /// Snapshots that may answer for a revision, best first.
    ///
    /// With `exact` only the commit that the revision is known to stand for.
    pub(crate) fn snapshots(&self, revision: &str, exact: bool) -> Result<Vec<Snapshot>> {
        let mut all = self.all_snapshots()?;
        let known = fs::read_to_string(self.folder.join("refs").join(revision));
        let known = known.map_or_else(|_| revision.to_owned(), |commit| commit.trim().to_owned());
        all.retain(|snapshot| !exact || snapshot.commit == known);
        // An explicit commit has no substitute.
        let is_commit = revision.len() == 40 && revision.bytes().all(|b| b.is_ascii_hexdigit());
        all.retain(|snapshot| !is_commit || snapshot.commit == revision);
        all.sort_by_key(|snapshot| (snapshot.commit != known, std::cmp::Reverse(snapshot.changed)));
        Ok(all)
    }

    fn all_snapshots(&self) -> Result<Vec<Snapshot>> {
        let folders = subfolders(&self.folder.join("snapshots"))?;
        let snapshot = |(commit, folder): (String, PathBuf)| {
            let changed = fs::metadata(&folder).and_then(|about| about.modified());
            Snapshot { commit, folder, changed: changed.unwrap_or(SystemTime::UNIX_EPOCH) }
        };
        Ok(folders.into_iter().map(snapshot).collect())
    }

    /// The models in a snapshot.
    pub(crate) fn sets(&self, snapshot: &Snapshot) -> Result<Vec<FileSet>> {
        let mut names = Vec::new();
        collect_files(&snapshot.folder, "", &mut names)?;
        Ok(sets::group(names))
    }

    /// Makes a content appear as a file of a commit.
    pub(crate) fn link(&self, commit: &str, file: &str, blob: &str) -> Result<()> {
        let target = self.snapshot_folder(commit).join(file);
        let folder = target.parent().unwrap_or(&target);
        make_folder(folder)?;
        let source = self.blob(blob);
        // Contents are two levels up from a snapshot, and one more for each folder of the file.
        let up = "../".repeat(2 + file.matches('/').count());
        let fresh = scratch_name(&target);
        // Some systems and disks know no symbolic links.
        let linked = symlink(Path::new(&format!("{up}blobs/{blob}")), &fresh)
            .or_else(|_| fs::hard_link(&source, &fresh))
            .or_else(|_| fs::rename(&source, &fresh));
        linked
            .and_then(|()| fs::rename(&fresh, &target))
            .map_err(|error| write_error("create", &target, error))
    }

    /// Records the commit that a revision stands for.
    pub(crate) fn point(&self, revision: &str, commit: &str) -> Result<()> {
        if revision == commit {
            return Ok(());
        }
        let path = self.folder.join("refs").join(revision);
        make_folder(path.parent().unwrap_or(&path))?;
        let fresh = scratch_name(&path);
        let written = fs::File::create(&fresh).and_then(|mut file| file.write_all(commit.as_bytes()));
        let written = written.and_then(|()| fs::rename(&fresh, &path));
        written.map_err(|error| {
            let _ = fs::remove_file(&fresh);
            write_error("create", &path, error)
        })
    }

    /// Removes files of all commits, and contents that no other file shares.
    ///
    /// Returns the bytes that became free.
    pub(crate) fn remove(&self, files: &[String]) -> Result<u64> {
        let mut freed = 0;
        let snapshots = self.all_snapshots()?;
        for path in snapshots.iter().flat_map(|snapshot| files.iter().map(|file| snapshot.folder.join(file)))
        {
            let Ok(content) = fs::canonicalize(&path) else { continue };
            let bytes = fs::metadata(&content).map_err(io_error("read", &content))?.len();
            fs::remove_file(&path).map_err(io_error("remove", &path))?;
            if content.exists() {
                if self.is_linked(&content)? {
                    continue;
                }
                fs::remove_file(&content).map_err(io_error("remove", &content))?;
            }
            freed += bytes;
        }
        self.tidy()?;
        Ok(freed)
    }

    fn is_linked(&self, content: &Path) -> Result<bool> {
        for snapshot in self.all_snapshots()? {
            let mut names = Vec::new();
            collect_files(&snapshot.folder, "", &mut names)?;
            let same = |name: &String| {
                fs::canonicalize(snapshot.folder.join(name)).is_ok_and(|path| path == content)
            };
            if names.iter().any(same) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes empty snapshots, and the whole repository if nothing is left of it.
    fn tidy(&self) -> Result<()> {
        let mut kept = false;
        for snapshot in self.all_snapshots()? {
            let mut names = Vec::new();
            collect_files(&snapshot.folder, "", &mut names)?;
            if names.is_empty() {
                fs::remove_dir_all(&snapshot.folder).map_err(io_error("remove", &snapshot.folder))?;
            } else {
                kept = true;
            }
        }
        // A content without a link may be one that another process is fetching.
        let blobs = fs::read_dir(self.folder.join("blobs")).is_ok_and(|mut entries| entries.next().is_some());
        if kept || blobs {
            return Ok(());
        }
        fs::remove_dir_all(&self.folder).map_err(io_error("remove", &self.folder))
    }
}

/// All complete models in the cache; one that several commits share is listed once.
pub(crate) fn all_sets(config: &Config) -> Result<Vec<CachedSet>> {
    let mut found = Vec::new();
    for (name, _) in subfolders(&config.hf_cache_dir)? {
        let Some((owner, repo)) = name.strip_prefix("models--").and_then(|name| name.split_once("--")) else {
            continue;
        };
        if !is_repo_part(owner) || !is_repo_part(repo) {
            continue;
        }
        let Ok(mut reference) = HfRef::parse(&format!("{owner}/{repo}")) else { continue };
        let cache = Repo::new(config, &reference);
        let mut seen = Vec::new();
        for snapshot in cache.snapshots(&reference.revision, false)? {
            for set in cache.sets(&snapshot)? {
                if !set.missing.is_empty() || seen.contains(&set.files) {
                    continue;
                }
                seen.push(set.files.clone());
                reference.selector = Some(set.first().to_owned());
                found.push(CachedSet { reference: reference.clone(), set, folder: snapshot.folder.clone() });
            }
        }
    }
    Ok(found)
}

/// Names and paths of the folders in a folder, sorted; none if it does not exist.
fn subfolders(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io_error("read", folder)(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(io_error("read", folder))?;
        if let (Ok(name), true) = (entry.file_name().into_string(), entry.path().is_dir()) {
            found.push((name, entry.path()));
        }
    }
    found.sort();
    Ok(found)
}

/// Paths of all files under a folder, with `/` between their parts; broken links are none.
fn collect_files(folder: &Path, prefix: &str, names: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(io_error("read", folder))? {
        let entry = entry.map_err(io_error("read", folder))?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            collect_files(&entry.path(), &format!("{prefix}{name}/"), names)?;
        } else if entry.path().is_file() {
            names.push(format!("{prefix}{name}"));
        }
    }
    Ok(())
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    let target = target.to_string_lossy().replace('/', "\\");
    std::os::windows::fs::symlink_file(target, link)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_target: &Path, _link: &Path) -> io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}
