//! The hub's list of a repository's files.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::config::Config;
use crate::error::Result;
use crate::http::{Client, bad_reply, escape};
use crate::progress::Progress;
use crate::reference::HfRef;

/// The files of a repository at one commit.
pub(crate) struct Listing {
    /// The commit that the revision stands for.
    pub(crate) commit: String,
    /// The files by path.
    pub(crate) files: BTreeMap<String, Blob>,
}

/// The content of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Blob {
    /// The name of its content in the cache, the hub's entity tag: the SHA-256 of a large
    /// file, the git object id of a small one.
    pub(crate) name: String,
    /// The size in bytes.
    pub(crate) bytes: u64,
    /// The SHA-256, if the hub knows it.
    pub(crate) sha256: Option<String>,
}

/// The longest list that is read, in bytes.
const LONGEST: u64 = 64 << 20;

#[derive(Deserialize)]
struct Info {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

pub(crate) fn list(
    client: &Client,
    config: &Config,
    wanted: &HfRef,
    progress: &mut dyn Progress,
) -> Result<Listing> {
    let url = format!(
        "{}/api/models/{}/revision/{}?blobs=true",
        config.hf_endpoint,
        wanted.id(),
        escape(&wanted.revision, false)
    );
    let what = format!("{} (revision {})", wanted.id(), wanted.revision);
    client.retried(progress, |client| {
        let text = client.get(&url, 0, &what)?.text(LONGEST)?;
        read(&text).map_err(|reason| bad_reply(&url, reason))
    })
}

fn read(text: &[u8]) -> Result<Listing, String> {
    let info: Info = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if !is_hash(&info.sha) {
        return Err(format!("{:?} is no commit", info.sha));
    }
    let mut files = BTreeMap::new();
    for sibling in info.siblings {
        // What is listed becomes part of paths here.
        if !is_safe_path(&sibling.rfilename) {
            continue;
        }
        let blob = match (sibling.lfs, sibling.blob_id, sibling.size) {
            (Some(lfs), _, _) => {
                let sha256 = lfs.sha256.to_lowercase();
                if sha256.len() != 64 || !is_hash(&sha256) {
                    return Err(format!("{:?} is no SHA-256", lfs.sha256));
                }
                Blob { name: sha256.clone(), bytes: lfs.size, sha256: Some(sha256) }
            }
            (None, Some(id), Some(bytes)) if is_hash(&id) => Blob { name: id, bytes, sha256: None },
            // Without size and hash nothing can be checked.
            _ => continue,
        };
        files.insert(sibling.rfilename, blob);
    }
    Ok(Listing { commit: info.sha, files })
}

fn is_hash(text: &str) -> bool {
    (7..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Whether a path stays inside the folder it is relative to, on every system.
fn is_safe_path(path: &str) -> bool {
    !path.contains(['\\', ':'])
        && !path.chars().any(char::is_control)
        && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_sizes_and_hashes() {
        let sha = "ab".repeat(32);
        let text = format!(
            r#"{{"id": "o/r", "sha": "0123456789abcdef0123456789abcdef01234567", "siblings": [
                {{"rfilename": "big.gguf", "size": 5, "blobId": "1111111", "lfs": {{"sha256": "{sha}", "size": 5, "pointerSize": 130}}}},
                {{"rfilename": "dir/small.gguf", "size": 7, "blobId": "2222222"}},
                {{"rfilename": "unknown.gguf"}},
                {{"rfilename": "../../evil.gguf", "size": 7, "blobId": "2222222"}},
                {{"rfilename": "/evil.gguf", "size": 7, "blobId": "2222222"}},
                {{"rfilename": "c:\\evil.gguf", "size": 7, "blobId": "2222222"}},
                {{"rfilename": "a.gguf", "size": 7, "blobId": "../../x"}}
            ]}}"#
        );
        let listing = read(text.as_bytes()).unwrap();
        assert_eq!(listing.files.keys().collect::<Vec<_>>(), ["big.gguf", "dir/small.gguf"]);
        assert_eq!(listing.files["big.gguf"], Blob { name: sha.clone(), bytes: 5, sha256: Some(sha) });
        assert_eq!(listing.files["dir/small.gguf"], Blob { name: "2222222".into(), bytes: 7, sha256: None });
    }

    #[test]
    fn refuses_what_is_no_list() {
        for text in ["", "<html>", "[]", r#"{"siblings": []}"#, r#"{"sha": "../..", "siblings": []}"#] {
            assert!(read(text.as_bytes()).is_err(), "{text}");
        }
        let text = r#"{"sha": "0123456789abcdef", "siblings": [
            {"rfilename": "a.gguf", "lfs": {"sha256": "../../../../etc/x", "size": 5}}]}"#;
        assert!(read(text.as_bytes()).is_err());
    }
}
