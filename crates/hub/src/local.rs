//! Models named by a path.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result, io_error};
use crate::sets::{self, FileSet};
use crate::suggest::nearest;

/// The file that opens the model at `path`: a file, any file of a split model, or a folder.
pub(crate) fn resolve(path: &Path) -> Result<PathBuf> {
    let about = match fs::metadata(path) {
        Ok(about) => about,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(no_such_path(path)),
        Err(error) => return Err(io_error("read", path)(error)),
    };
    if about.is_dir() {
        return in_folder(path);
    }
    let (folder, Some(name)) = (folder_of(path), path.file_name().and_then(|name| name.to_str())) else {
        return Ok(path.into());
    };
    // Only a split model needs a look at its folder.
    let alone = sets::group([name.to_owned()]);
    if alone.first().is_none_or(|set| set.missing.is_empty()) {
        return Ok(path.into());
    }
    let all = sets::group(names_in(folder)?);
    match all.into_iter().find(|set| set.files.iter().any(|file| file == name)) {
        Some(set) => first_of(folder, &set),
        None => Ok(path.into()),
    }
}

/// Whether the path is a GGUF file or a folder with one.
pub(crate) fn holds_model(path: &Path) -> bool {
    if path.is_dir() {
        return names_in(path).is_ok_and(|names| !sets::group(names).is_empty());
    }
    let mut magic = [0; 4];
    let read = fs::File::open(path).and_then(|mut file| std::io::Read::read_exact(&mut file, &mut magic));
    read.is_ok() && magic == *MAGIC
}

/// The first bytes of every GGUF file.
pub(crate) const MAGIC: &[u8; 4] = b"GGUF";

fn in_folder(folder: &Path) -> Result<PathBuf> {
    let place = || folder.display().to_string();
    match sets::group(names_in(folder)?).as_slice() {
        [] => Err(Error::NoModel { place: place() }),
        [set] => first_of(folder, set),
        several => {
            let found = several.iter().map(|set| set.first().to_owned()).collect();
            Err(Error::SeveralModels { place: place(), found })
        }
    }
}

fn first_of(folder: &Path, set: &FileSet) -> Result<PathBuf> {
    if set.missing.is_empty() {
        return Ok(folder.join(set.first()));
    }
    Err(Error::MissingShards {
        place: folder.display().to_string(),
        file: set.first().to_owned(),
        missing: set.missing.clone(),
    })
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Names of the files in a folder; names that are not Unicode are no models.
fn names_in(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).map_err(io_error("read", folder))?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(io_error("read", folder))?;
        if let (Ok(name), true) = (entry.file_name().into_string(), entry.path().is_file()) {
            names.push(name);
        }
    }
    Ok(names)
}

fn no_such_path(path: &Path) -> Error {
    let folder = folder_of(path);
    let typed = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let names = names_in(folder).unwrap_or_default();
    let models = names.iter().map(String::as_str).filter(|name| sets::is_gguf(name));
    let near = nearest(typed, models).into_iter();
    Error::NoSuchPath {
        path: path.into(),
        suggestions: near.map(|name| path.with_file_name(name).display().to_string()).collect(),
    }
}
