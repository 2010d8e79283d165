//! Models inside Python packages, fetched by pip.

use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, SystemTime};

use crate::config::Config;
use crate::error::{Error, Result, io_error};
use crate::progress::Progress;
use crate::reference::PipRef;
use crate::sets;
use crate::store::{Disk, Lock, Partial, check_room, make_folder, pause};
use crate::table::Packages;
use crate::wheel::Wheel;

/// A model in one package or, in pieces, in several.
pub(crate) struct PipModel<'a> {
    packages: &'a [PipRef],
    /// The short name, and what the table knows about the file.
    known: Option<(&'a str, &'a Packages)>,
}

/// A model in the cache.
pub(crate) struct CachedFile {
    /// The name of its folder: a short name and hash, or a package and version.
    pub(crate) key: String,
    pub(crate) path: PathBuf,
}

impl<'a> PipModel<'a> {
    /// A model of the table.
    pub(crate) fn of_table(name: &'a str, source: &'a Packages) -> Self {
        Self { packages: &source.packages, known: Some((name, source)) }
    }

    /// The model in any package.
    pub(crate) fn of_package(package: &'a PipRef) -> Self {
        Self { packages: std::slice::from_ref(package), known: None }
    }

    /// The name of the model's folder, if its version is known.
    ///
    /// A model of the table carries its hash, so that a new table fetches a new file.
    pub(crate) fn key(&self) -> Option<String> {
        match self.known {
            Some((name, known)) => Some(format!("{name}-{:.12}", known.sha256)),
            None => self.packages[0].version.as_ref().map(|_| self.packages[0].to_string()),
        }
    }

    /// The path of the model in the cache; for a package without version the last one fetched.
    pub(crate) fn cached(&self, config: &Config) -> Result<Option<PathBuf>> {
        if let (Some((_, known)), Some(key)) = (self.known, self.key()) {
            let path = models_folder(config).join(key).join(&known.file);
            return Ok(fs::metadata(&path).is_ok_and(|about| about.len() == known.bytes).then_some(path));
        }
        let key = self.key();
        let prefix = format!("{}==", self.packages[0].package);
        let fits = |file: &CachedFile| match &key {
            Some(key) => file.key == *key,
            None => file.key.starts_with(&prefix),
        };
        let fetched = |file: &CachedFile| {
            let changed = fs::metadata(&file.path).and_then(|about| about.modified());
            changed.unwrap_or(SystemTime::UNIX_EPOCH)
        };
        let found = all_files(config)?.into_iter().filter(fits).max_by_key(fetched);
        Ok(found.map(|file| file.path))
    }

    /// Fetches the packages and unpacks the model.
    ///
    /// Complete wheels stay until the model is there, so that an interrupted fetch goes on
    /// with the next package.
    pub(crate) fn fetch(
        &self,
        config: &Config,
        disk: &dyn Disk,
        progress: &mut dyn Progress,
    ) -> Result<PathBuf> {
        let work = self.work_folder(config);
        let _lock = self.lock(config, progress)?;
        if let Some(path) = self.cached(config)? {
            return Ok(path);
        }
        if let Some((_, known)) = self.known {
            // The wheels, hardly smaller than the model, and the model itself.
            let there = folder_bytes(&work);
            check_room(disk, &config.cache_dir, (2 * known.bytes).saturating_sub(there))?;
        }
        let mut wheels = Vec::new();
        for package in self.packages {
            wheels.push(wheel(config, disk, package, &work, progress)?);
        }
        let unpacked = self.unpack(config, disk, &wheels, &work, progress);
        // Wheels that are of no use must not be tried again.
        let keep = matches!(unpacked, Err(Error::Cancelled | Error::Io { .. }));
        if !keep {
            fs::remove_dir_all(&work).map_err(io_error("remove", &work))?;
        }
        unpacked
    }

    /// Removes the model and what an interrupted fetch left of it.
    ///
    /// Returns the bytes that became free, or `None` if there was nothing.
    pub(crate) fn remove(&self, config: &Config) -> Result<Option<u64>> {
        let _lock = self.lock(config, &mut ())?;
        let work = self.work_folder(config);
        let mut freed = None;
        if work.exists() {
            freed = Some(folder_bytes(&work));
            fs::remove_dir_all(&work).map_err(io_error("remove", &work))?;
        }
        if let Some(path) = self.cached(config)? {
            freed = Some(freed.unwrap_or(0) + remove_file(&path)?);
        }
        Ok(freed)
    }

    /// The name of the model among unfinished ones.
    fn work_name(&self) -> String {
        self.key().unwrap_or_else(|| self.packages[0].to_string())
    }

    fn work_folder(&self, config: &Config) -> PathBuf {
        config.cache_dir.join("partial").join(self.work_name())
    }

    fn lock(&self, config: &Config, progress: &mut dyn Progress) -> Result<Lock> {
        let name = format!("{}.lock", self.work_name());
        Lock::acquire(&config.cache_dir.join("locks").join(name), progress)
    }

    fn unpack(
        &self,
        config: &Config,
        disk: &dyn Disk,
        wheels: &[PathBuf],
        work: &Path,
        progress: &mut dyn Progress,
    ) -> Result<PathBuf> {
        let mut part = Partial::resume(disk, work.join("unpacked"))?;
        part.restart()?;
        let mut file = self.known.map(|(_, known)| known.file.clone());
        if let Some((_, known)) = self.known {
            progress.begin(&known.file, Some(known.bytes));
        }
        for path in wheels {
            let mut wheel = Wheel::open(path)?;
            let member = if wheels.len() > 1 { wheel.piece()? } else { wheel.model()? };
            if self.known.is_none() {
                let name = member.path.rsplit(['/', '\\']).next().unwrap_or_default();
                progress.begin(name, Some(member.bytes));
                check_room(disk, work, member.bytes)?;
                file = Some(name.to_owned());
            }
            wheel.unpack(&member, &mut part, progress)?;
        }
        let key = match (self.key(), wheels) {
            (Some(key), _) => key,
            (None, wheels) => format!("{}=={}", self.packages[0].package, version_of(&wheels[0])?),
        };
        let folder = models_folder(config).join(key);
        make_folder(&folder)?;
        let target = folder.join(file.unwrap_or_default());
        let sha256 = self.known.map(|(_, known)| known.sha256.as_str());
        part.finish(&target, sha256, &target.file_name().unwrap_or_default().to_string_lossy())?;
        progress.finish();
        Ok(target)
    }
}

fn models_folder(config: &Config) -> PathBuf {
    config.cache_dir.join("models")
}

/// All models from packages in the cache.
pub(crate) fn all_files(config: &Config) -> Result<Vec<CachedFile>> {
    let folder = models_folder(config);
    let mut found = Vec::new();
    for (key, path) in entries(&folder)? {
        for (name, path) in entries(&path)? {
            if sets::is_gguf(&name) && path.is_file() {
                found.push(CachedFile { key: key.clone(), path });
            }
        }
    }
    Ok(found)
}

/// Removes a file of the cache and returns the bytes that became free.
pub(crate) fn remove_file(path: &Path) -> Result<u64> {
    let bytes = fs::metadata(path).map_err(io_error("read", path))?.len();
    fs::remove_file(path).map_err(io_error("remove", path))?;
    if let Some(folder) = path.parent() {
        // The folder stays if something else is in it.
        let _ = fs::remove_dir(folder);
    }
    Ok(bytes)
}

/// Names and paths of what is in a folder, sorted; nothing if it is none.
fn entries(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(io_error("read", folder)(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(io_error("read", folder))?;
        if let Ok(name) = entry.file_name().into_string() {
            found.push((name, entry.path()));
        }
    }
    found.sort();
    Ok(found)
}

/// The version in the name of a wheel, `NAME-VERSION-….whl`.
fn version_of(wheel: &Path) -> Result<String> {
    let name = wheel.file_name().unwrap_or_default().to_string_lossy();
    let version = name.split('-').nth(1).filter(|version| !version.is_empty());
    version.map(str::to_owned).ok_or_else(|| Error::Wheel {
        wheel: name.clone().into_owned(),
        reason: "its name holds no version".into(),
    })
}

/// The wheel of a package: one that an earlier fetch left, or a new one.
fn wheel(
    config: &Config,
    disk: &dyn Disk,
    package: &PipRef,
    work: &Path,
    progress: &mut dyn Progress,
) -> Result<PathBuf> {
    let folder = work.join(&package.package);
    let done = folder.join("done");
    if let Some(wheel) = wheel_in(&done)? {
        return Ok(wheel);
    }
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(io_error("remove", &folder))?;
    }
    let (fresh, scratch) = (folder.join("fresh"), folder.join("scratch"));
    make_folder(&fresh)?;
    make_folder(&scratch)?;
    progress.begin(&package.to_string(), None);
    if let Err(error) = run_pip(config, package, &folder, progress) {
        // What pip left is of no use, and the folder above may hold complete wheels.
        let _ = fs::remove_dir_all(&folder);
        let _ = fs::remove_dir(work);
        return Err(match error {
            Error::Pip { message, .. } if message.contains(DISK_FULL) => {
                let available = disk.available(&config.cache_dir).ok();
                Error::DiskFull { path: config.cache_dir.clone(), needed: None, available }
            }
            error => error,
        });
    }
    // pip copies a file to its destination, so only its success tells that it is complete.
    fs::rename(&fresh, &done).map_err(io_error("rename", &fresh))?;
    fs::remove_dir_all(&scratch).map_err(io_error("remove", &scratch))?;
    progress.finish();
    wheel_in(&done)?
        .ok_or_else(|| Error::Pip { package: package.to_string(), message: "it brought no wheel".into() })
}

fn wheel_in(folder: &Path) -> Result<Option<PathBuf>> {
    Ok(entries(folder)?.into_iter().find(|(name, _)| name.ends_with(".whl")).map(|(_, path)| path))
}

/// How Python names a full disk.
const DISK_FULL: &str = "[Errno 28]";

/// Runs `pip download` into `folder/fresh`, with its temporary files in `folder/scratch`.
fn run_pip(config: &Config, package: &PipRef, folder: &Path, progress: &mut dyn Progress) -> Result<()> {
    let log = folder.join("pip.log");
    let stderr = fs::File::create(&log).map_err(io_error("create", &log))?;
    let mut command = Command::new(&config.python);
    command
        .args(["-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"])
        .args(["--no-deps", "--only-binary=:all:", "--dest"])
        .arg(folder.join("fresh"))
        .args(&config.pip_args)
        .arg(package.to_string())
        .env("TMPDIR", folder.join("scratch"))
        .env("PYTHONUTF8", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr);
    let child = command.spawn().map_err(|source| Error::NoPython {
        command: config.python.to_string_lossy().into_owned(),
        source,
    })?;
    let status = watch(child, folder, progress)?;
    if status.success() {
        return Ok(());
    }
    let mut said = String::new();
    let read = fs::File::open(&log).and_then(|mut file| file.read_to_string(&mut said));
    read.map_err(io_error("read", &log))?;
    Err(Error::Pip { package: package.to_string(), message: last_words(&said, status) })
}

/// Waits for pip, telling how much it has written.
fn watch(mut child: Child, folder: &Path, progress: &mut dyn Progress) -> Result<ExitStatus> {
    let mut told = 0;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) => {}
            Err(error) => return Err(io_error("wait for pip in", folder)(error)),
        }
        // pip keeps the same bytes in several files for a while.
        let there = file_sizes(folder).into_iter().max().unwrap_or(0);
        if there > told {
            progress.advance(there - told);
            told = there;
        }
        if let Err(stop) = pause(Duration::from_millis(50), progress) {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
            return Err(stop);
        }
    }
}

/// Bytes in all files under a folder, as far as they can be read.
fn folder_bytes(folder: &Path) -> u64 {
    file_sizes(folder).into_iter().sum()
}

fn file_sizes(folder: &Path) -> Vec<u64> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(about) if about.is_dir() => file_sizes(&entry.path()),
        Ok(about) => vec![about.len()],
        Err(_) => Vec::new(),
    });
    sizes.flatten().collect()
}

/// The line of pip's output that tells most.
fn last_words(said: &str, status: ExitStatus) -> String {
    let lines = || said.lines().map(str::trim).filter(|line| !line.is_empty());
    let error = lines().rev().find_map(|line| line.strip_prefix("ERROR: "));
    match error.or_else(|| lines().next_back()) {
        Some(line) => line.to_owned(),
        None => format!("it ended with {status} and said nothing"),
    }
}
