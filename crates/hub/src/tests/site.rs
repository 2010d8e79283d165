//! A hub with one repository: a server for lists and redirects, another for contents.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use super::server::{Reply, Request, Server};
use super::{Folder, config, sha256};
use crate::config::{Config, Token};

pub(crate) const REPO: &str = "acme/Tiny-GGUF";
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub(crate) const TOKEN: &str = "hf_secret";

/// A reply in the place of the right one, or a change of it.
pub(crate) type Fault = Box<dyn FnOnce(Reply) -> Option<Reply> + Send>;

#[derive(Default)]
struct State {
    commit: String,
    files: BTreeMap<String, Vec<u8>>,
    /// Faults of the next answers of the hub, of the content server.
    hub_faults: VecDeque<Fault>,
    content_faults: VecDeque<Fault>,
    /// Whether contents are redirected to the hub's own address.
    same_origin: bool,
}

/// The two servers and what they serve.
pub(crate) struct Site {
    state: Arc<Mutex<State>>,
    pub(crate) hub: Server,
    pub(crate) contents: Server,
}

impl Site {
    pub(crate) fn start<const N: usize>(files: [(&str, Vec<u8>); N]) -> Self {
        let files = files.into_iter().map(|(name, content)| (name.to_owned(), content)).collect();
        let state = Arc::new(Mutex::new(State { commit: COMMIT.into(), files, ..State::default() }));
        let shared = state.clone();
        let contents = Server::start(move |request| {
            let mut state = shared.lock().unwrap();
            let reply = content(&state, request);
            let fault = state.content_faults.pop_front();
            drop(state);
            fault.map_or(Some(reply.clone()), |fault| fault(reply))
        });
        let (shared, content_url) = (state.clone(), contents.url());
        let hub = Server::start(move |request| {
            let mut state = shared.lock().unwrap();
            let reply = hub_reply(&state, request, &content_url);
            let fault = state.hub_faults.pop_front();
            drop(state);
            fault.map_or(Some(reply.clone()), |fault| fault(reply))
        });
        Self { state, hub, contents }
    }

    pub(crate) fn config(&self, cache: &Folder) -> Config {
        let mut config = config(cache);
        config.hf_endpoint = self.hub.url();
        config.hf_token = Token::new(TOKEN, "test").unwrap();
        config
    }

    pub(crate) fn next_of_hub(&self, fault: impl FnOnce(Reply) -> Option<Reply> + Send + 'static) {
        self.state.lock().unwrap().hub_faults.push_back(Box::new(fault));
    }

    pub(crate) fn next_content(&self, fault: impl FnOnce(Reply) -> Option<Reply> + Send + 'static) {
        self.state.lock().unwrap().content_faults.push_back(Box::new(fault));
    }

    /// A new commit with other files.
    pub(crate) fn commit<const N: usize>(&self, commit: &str, files: [(&str, Vec<u8>); N]) {
        let mut state = self.state.lock().unwrap();
        state.commit = commit.into();
        state.files = files.into_iter().map(|(name, content)| (name.to_owned(), content)).collect();
    }

    pub(crate) fn redirect_to_itself(&self) {
        self.state.lock().unwrap().same_origin = true;
    }

    /// The `range` headers of all requests for contents.
    pub(crate) fn ranges(&self) -> Vec<Option<String>> {
        let seen = self.contents.seen();
        seen.iter().map(|request| request.header("range").map(str::to_owned)).collect()
    }
}

fn hub_reply(state: &State, request: &Request, content_url: &str) -> Reply {
    if request.path == format!("/api/models/{REPO}/revision/main?blobs=true") {
        let siblings = state.files.iter().map(|(name, content)| {
            serde_json::json!({
                "rfilename": name, "size": content.len(), "blobId": "1234567890",
                "lfs": { "sha256": sha256(content), "size": content.len(), "pointerSize": 130 },
            })
        });
        let siblings: Vec<_> = siblings.collect();
        let list = serde_json::json!({ "id": REPO, "sha": state.commit, "siblings": siblings });
        return Reply::new(200, list.to_string());
    }
    if request.path.starts_with("/content/") {
        return content(state, request);
    }
    let prefix = format!("/{REPO}/resolve/{}/", state.commit);
    let Some(name) = request.path.strip_prefix(&prefix) else { return Reply::new(404, "no such thing") };
    let Some(file) = state.files.get(name) else {
        return Reply::new(404, "no such file").with("x-error-code", "EntryNotFound");
    };
    let place = if state.same_origin { "" } else { content_url };
    Reply::new(302, "")
        .with("location", format!("{place}/content/{name}?signature=1"))
        .with("x-repo-commit", &state.commit)
        .with("x-linked-size", file.len())
        .with("x-linked-etag", format!("\"{}\"", sha256(file)))
}

fn content(state: &State, request: &Request) -> Reply {
    let name = request.path.strip_prefix("/content/").and_then(|path| path.split('?').next());
    let Some(file) = name.and_then(|name| state.files.get(name)) else { return Reply::new(404, "") };
    let range = request.header("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
    let Some(from) = range.map(|from| from.parse::<usize>().unwrap()) else {
        return Reply::new(200, file.as_slice()).with("etag", "\"of the storage\"");
    };
    if from >= file.len() {
        return Reply::new(416, "").with("content-range", format!("bytes */{}", file.len()));
    }
    let range = format!("bytes {from}-{}/{}", file.len() - 1, file.len());
    Reply::new(206, &file[from..]).with("content-range", range)
}
