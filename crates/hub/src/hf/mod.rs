//! Models from repositories on the hub.

mod api;
mod cache;
mod download;

pub(crate) use cache::{Repo, all_sets};

use std::path::PathBuf;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::http::Client;
use crate::progress::Progress;
use crate::reference::HfRef;
use crate::sets::{self, FileSet, PREFERRED, Unchosen};
use crate::store::Disk;

/// The path of a cached model.
///
/// With `exact`, a reference without a file or weight type is only answered by a model of
/// the type that wootz prefers, since the hub may have that one; and a branch only by the
/// commit it pointed to at the last fetch.
pub(crate) fn cached(config: &Config, wanted: &HfRef, exact: bool) -> Result<Option<PathBuf>> {
    let repo = Repo::new(config, wanted);
    let selector = match (&wanted.selector, exact) {
        (None, true) => Some(PREFERRED[0]),
        (selector, _) => selector.as_deref(),
    };
    for snapshot in repo.snapshots(&wanted.revision, exact)? {
        let mut sets = repo.sets(&snapshot)?;
        sets.retain(|set| set.missing.is_empty());
        match sets::choose(&sets, selector) {
            Ok(set) => return Ok(Some(snapshot.folder.join(set.first()))),
            Err(Unchosen::Empty | Unchosen::NoMatch) => {}
            Err(Unchosen::Several(found)) => {
                return Err(Error::SeveralModels { place: wanted.id(), found });
            }
        }
    }
    Ok(None)
}

/// Fetches a model and returns the path of its first file.
pub(crate) fn fetch(
    config: &Config,
    disk: &dyn Disk,
    wanted: &HfRef,
    progress: &mut dyn Progress,
) -> Result<PathBuf> {
    let client = Client::new(config)?;
    let listing = api::list(&client, config, wanted, progress)?;
    let sets = sets::group(listing.files.keys().cloned());
    let set = chosen(&sets, wanted)?;
    let repo = Repo::new(config, wanted);
    let transfer =
        download::Transfer { client: &client, config, disk, repo: &repo, listing: &listing, wanted };
    transfer.check_room(&set.files)?;
    for file in &set.files {
        transfer.fetch(file, progress)?;
    }
    repo.point(&wanted.revision, &listing.commit)?;
    Ok(repo.snapshot_folder(&listing.commit).join(set.first()))
}

fn chosen<'s>(sets: &'s [FileSet], wanted: &HfRef) -> Result<&'s FileSet> {
    let place = wanted.id();
    let set = sets::choose(sets, wanted.selector.as_deref()).map_err(|why| match why {
        Unchosen::Empty => Error::NoModel { place: place.clone() },
        Unchosen::Several(found) => Error::SeveralModels { place: place.clone(), found },
        Unchosen::NoMatch => Error::NoMatch {
            place: place.clone(),
            wanted: wanted.selector.clone().unwrap_or_default(),
            found: sets.iter().map(|set| set.first().to_owned()).collect(),
        },
    })?;
    if set.missing.is_empty() {
        return Ok(set);
    }
    Err(Error::MissingShards { place, file: set.first().to_owned(), missing: set.missing.clone() })
}
