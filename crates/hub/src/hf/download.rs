//! Fetching the content of a file, with resumption and check.

use std::fs;
use std::io::{ErrorKind, Read};

use super::api::{Blob, Listing};
use super::cache::Repo;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::http::{Answer, Client, Failure, bad_reply, escape, network, shown};
use crate::progress::Progress;
use crate::reference::HfRef;
use crate::store::{self, Disk, Lock, Partial, make_folder};

/// Progress of at least this many bytes makes earlier failures forgotten.
const PROGRESS: u64 = 1 << 20;

/// What a fetch of files of one commit needs.
pub(crate) struct Transfer<'a> {
    pub(crate) client: &'a Client,
    pub(crate) config: &'a Config,
    pub(crate) disk: &'a dyn Disk,
    pub(crate) repo: &'a Repo,
    pub(crate) listing: &'a Listing,
    pub(crate) wanted: &'a HfRef,
}

impl Transfer<'_> {
    /// Refuses a set of files that the disk has no room for, before anything is fetched.
    pub(crate) fn check_room(&self, files: &[String]) -> Result<()> {
        let mut needed = 0_u64;
        for file in files {
            let blob = &self.listing.files[file];
            let path = self.repo.blob(&blob.name);
            let there = fs::metadata(&path).or_else(|_| fs::metadata(incomplete(&path)));
            let there = there.map_or(0, |about| about.len());
            if !self.repo.has(&self.listing.commit, file, blob.bytes) {
                needed = needed.saturating_add(blob.bytes.saturating_sub(there));
            }
        }
        if needed == 0 {
            return Ok(());
        }
        let folder = self.repo.blob("");
        make_folder(&folder)?;
        store::check_room(self.disk, &folder, needed)
    }

    /// Makes one file of the commit be there.
    pub(crate) fn fetch(&self, file: &str, progress: &mut dyn Progress) -> Result<()> {
        let commit = &self.listing.commit;
        let blob = &self.listing.files[file];
        if self.repo.has(commit, file, blob.bytes) {
            return Ok(());
        }
        let _lock = Lock::acquire(&self.repo.lock(&blob.name), progress)?;
        if self.repo.has(commit, file, blob.bytes) {
            return Ok(());
        }
        let path = self.repo.blob(&blob.name);
        if !fs::metadata(&path).is_ok_and(|about| about.len() == blob.bytes) {
            self.download(file, blob, progress)?;
        }
        self.repo.link(commit, file, &blob.name)
    }

    fn download(&self, file: &str, blob: &Blob, progress: &mut dyn Progress) -> Result<()> {
        let target = self.repo.blob(&blob.name);
        make_folder(&self.repo.blob(""))?;
        let what = format!("{file} of {}", self.wanted.id());
        let mut part = Partial::resume(self.disk, incomplete(&target))?;
        let mut resumed = part.len() > 0;
        loop {
            self.complete(&mut part, file, blob, &what, progress)?;
            // What an earlier transfer left may be damaged; one from nothing settles it.
            let right = blob.sha256.as_ref().is_none_or(|sha256| *sha256 == part.sha256());
            if right || !std::mem::replace(&mut resumed, false) {
                break;
            }
            part.restart()?;
        }
        part.finish(&target, blob.sha256.as_deref(), &what)?;
        progress.finish();
        Ok(())
    }

    /// Appends to `part` until it has the size of the file.
    fn complete(
        &self,
        part: &mut Partial<'_>,
        file: &str,
        blob: &Blob,
        what: &str,
        progress: &mut dyn Progress,
    ) -> Result<()> {
        let url = format!(
            "{}/{}/resolve/{}/{}",
            self.config.hf_endpoint,
            self.wanted.id(),
            self.listing.commit,
            escape(file, true)
        );
        if part.len() > blob.bytes {
            part.restart()?;
        }
        progress.begin(file, Some(blob.bytes));
        progress.advance(part.len());
        let mut attempts = self.client.attempts();
        while part.len() < blob.bytes {
            let before = part.len();
            let answer = self.client.get(&url, before, what);
            let Err(failure) = answer.and_then(|answer| self.receive(answer, part, file, blob, progress))
            else {
                continue;
            };
            if part.len() >= before.saturating_add(PROGRESS) {
                attempts.reset();
            }
            attempts.wait(failure, progress)?;
        }
        Ok(())
    }

    /// Takes in one answer, which may end early.
    fn receive(
        &self,
        answer: Answer,
        part: &mut Partial<'_>,
        file: &str,
        blob: &Blob,
        progress: &mut dyn Progress,
    ) -> Result<(), Failure> {
        self.check_tag(&answer, blob, file)?;
        let url = shown(&answer.url);
        match answer.status {
            206 => {
                let expected = format!("bytes {}-{}/{}", part.len(), blob.bytes - 1, blob.bytes);
                let range = answer.header("content-range").unwrap_or("nothing");
                if range != expected {
                    return Err(bad_reply(&url, format!("expected the range {expected}, found {range}")));
                }
            }
            200 => {
                if part.len() > 0 {
                    part.restart().map_err(Failure::Final)?;
                    progress.begin(file, Some(blob.bytes));
                }
                let length = answer.header("content-length").and_then(|length| length.parse::<u64>().ok());
                if let Some(length) = length
                    && length != blob.bytes
                {
                    let reason =
                        format!("the list of files says {} bytes, the file has {length}", blob.bytes);
                    return Err(bad_reply(&url, reason));
                }
            }
            status => {
                let reason = format!("status {status} for bytes from {} of {}", part.len(), blob.bytes);
                return Err(bad_reply(&url, reason));
            }
        }
        let mut body = answer.body();
        let mut block = vec![0; 128 << 10];
        loop {
            if progress.cancelled() {
                return Err(Failure::Final(Error::Cancelled));
            }
            let n = match body.read(&mut block) {
                Ok(n) => n,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => 0,
                Err(error) => return Err(Failure::Passing(network(&url, &error), None)),
            };
            if part.len() + n as u64 > blob.bytes {
                return Err(bad_reply(&url, format!("more than the {} bytes of the file", blob.bytes)));
            }
            if n == 0 {
                break;
            }
            part.write(&block[..n], Some(blob.bytes)).map_err(Failure::Final)?;
            progress.advance(n as u64);
        }
        if part.len() < blob.bytes {
            let error = Error::Interrupted { url, expected: blob.bytes, found: part.len() };
            return Err(Failure::Passing(error, None));
        }
        Ok(())
    }

    /// The hub names the content of a large file by its hash, before it sends it.
    fn check_tag(&self, answer: &Answer, blob: &Blob, file: &str) -> Result<(), Failure> {
        let Some(expected) = &blob.sha256 else { return Ok(()) };
        let Some(tag) = answer.first_header("x-linked-etag") else { return Ok(()) };
        let tag = tag.trim_start_matches("W/").trim_matches('"');
        if tag.eq_ignore_ascii_case(expected) {
            return Ok(());
        }
        Err(Failure::Final(Error::Checksum {
            what: format!("{file} of {}", self.wanted.id()),
            expected: expected.clone(),
            found: tag.into(),
        }))
    }
}

/// Where a content grows before it is complete.
fn incomplete(blob: &std::path::Path) -> std::path::PathBuf {
    let mut name = blob.as_os_str().to_owned();
    name.push(".incomplete");
    name.into()
}
