//! Models from the hub, when things go well or can be mended.

use std::fs;
use std::time::Duration;

use super::server::Reply;
use super::site::{COMMIT, REPO, Site, TOKEN};
use super::{Folder, Recorder, model, resolve, sha256};
use crate::error::Error;
use crate::hub::Hub;
use crate::reference::ModelRef;

const BIG: usize = 3 << 20;

#[test]
fn a_model_is_fetched_once_into_the_shared_layout() {
    let (q4, q8) = (model(1, BIG), model(2, 5000));
    let site =
        Site::start([("m-Q4_K_M.gguf", q4.clone()), ("m-Q8_0.gguf", q8), ("README.md", b"x".to_vec())]);
    let cache = Folder::new();
    let hub = Hub::with_config(site.config(&cache));
    let mut heard = Recorder::default();
    let reference = ModelRef::parse(&format!("hf:{REPO}")).unwrap();

    let path = hub.resolve(&reference, &mut heard).unwrap();
    assert_eq!(fs::read(&path).unwrap(), q4);
    assert_eq!(heard.begun, [("m-Q4_K_M.gguf".to_owned(), Some(BIG as u64))]);
    assert_eq!((heard.bytes, heard.finished), (BIG as u64, 1));

    let blob = sha256(&q4);
    assert_eq!(
        cache.files(),
        [
            format!("hub/.locks/models--acme--Tiny-GGUF/{blob}.lock"),
            format!("hub/models--acme--Tiny-GGUF/blobs/{blob}"),
            "hub/models--acme--Tiny-GGUF/refs/main".into(),
            format!("hub/models--acme--Tiny-GGUF/snapshots/{COMMIT}/m-Q4_K_M.gguf"),
        ]
    );
    let repo = cache.path().join("hub/models--acme--Tiny-GGUF");
    assert_eq!(fs::read_to_string(repo.join("refs/main")).unwrap(), COMMIT);
    if cfg!(unix) {
        assert_eq!(fs::read_link(&path).unwrap().to_str(), Some(format!("../../blobs/{blob}").as_str()));
    }

    let requests = site.hub.seen().len();
    assert_eq!(hub.resolve(&reference, &mut ()).unwrap(), path);
    assert_eq!(hub.resolve_offline(&reference).unwrap(), path);
    assert_eq!(site.hub.seen().len(), requests, "the cache answers alone");
}

#[test]
fn the_token_goes_to_the_hub_and_nowhere_else() {
    let site = Site::start([("m-Q8_0.gguf", model(1, 100))]);
    let cache = Folder::new();
    resolve(&Hub::with_config(site.config(&cache)), &format!("hf:{REPO}")).unwrap();
    let bearer = format!("Bearer {TOKEN}");
    assert_eq!(site.hub.seen().len(), 2);
    assert!(site.hub.seen().iter().all(|request| request.header("authorization") == Some(&bearer)));
    assert_eq!(site.contents.seen().len(), 1);
    assert!(site.contents.seen().iter().all(|request| request.header("authorization").is_none()));
}

#[test]
fn a_redirect_to_the_same_server_keeps_the_token() {
    let site = Site::start([("m-Q8_0.gguf", model(1, 100))]);
    site.redirect_to_itself();
    let cache = Folder::new();
    resolve(&Hub::with_config(site.config(&cache)), &format!("hf:{REPO}")).unwrap();
    let seen = site.hub.seen();
    assert_eq!(seen.len(), 3);
    assert!(seen[2].path.starts_with("/content/") && seen[2].header("authorization").is_some());
}

#[test]
fn a_body_that_ends_early_is_continued() {
    let content = model(3, BIG);
    let site = Site::start([("m-Q4_0.gguf", content.clone())]);
    site.next_content(|reply| Some(Reply { cut: Some(1_000_000), ..reply }));
    site.next_content(|_| None);
    let cache = Folder::new();
    let mut heard = Recorder::default();
    let hub = Hub::with_config(site.config(&cache));
    let path = hub.resolve(&ModelRef::parse(&format!("hf:{REPO}")).unwrap(), &mut heard).unwrap();
    assert_eq!(fs::read(path).unwrap(), content);
    assert_eq!(site.ranges(), [None, Some("bytes=1000000-".into()), Some("bytes=1000000-".into())]);
    assert_eq!(heard.bytes, BIG as u64);
    assert_eq!(heard.waits.len(), 2);
}

#[test]
fn progress_makes_earlier_failures_forgotten() {
    let content = model(3, 4 * BIG);
    let site = Site::start([("m-Q4_0.gguf", content.clone())]);
    for _ in 0..6 {
        site.next_content(|reply| Some(Reply { cut: Some(3 << 19), ..reply }));
    }
    let cache = Folder::new();
    let mut config = site.config(&cache);
    config.attempts = 2;
    let path = resolve(&Hub::with_config(config), &format!("hf:{REPO}")).unwrap();
    assert_eq!(fs::read(path).unwrap(), content);
    assert_eq!(site.ranges().len(), 7);
}

#[test]
fn an_interrupted_fetch_is_resumed_by_the_next_one() {
    let content = model(4, BIG);
    let site = Site::start([("m-Q4_0.gguf", content.clone())]);
    let cache = Folder::new();
    let reference = ModelRef::parse(&format!("hf:{REPO}")).unwrap();
    let mut stopping = Recorder { stop_after: Some(1 << 20), ..Recorder::default() };
    let error = Hub::with_config(site.config(&cache)).resolve(&reference, &mut stopping).unwrap_err();
    assert!(matches!(error, Error::Cancelled), "{error}");
    let blob = sha256(&content);
    let rest = format!("hub/models--acme--Tiny-GGUF/blobs/{blob}.incomplete");
    assert_eq!(cache.files_but_locks(), std::slice::from_ref(&rest));
    let there = fs::metadata(cache.path().join(rest)).unwrap().len();
    assert!(there >= 1 << 20 && there < BIG as u64, "{there}");

    let hub = Hub::with_config(site.config(&cache));
    assert!(matches!(hub.resolve_offline(&reference), Err(Error::NotCached { .. })));
    let mut heard = Recorder::default();
    let path = hub.resolve(&reference, &mut heard).unwrap();
    assert_eq!(fs::read(path).unwrap(), content);
    assert_eq!(site.ranges(), [None, Some(format!("bytes={there}-"))]);
    assert_eq!(heard.bytes, BIG as u64);
}

#[test]
fn damaged_remains_are_fetched_anew() {
    for remains in [b"not the start of this file".to_vec(), model(5, BIG + 1), model(6, BIG)] {
        let content = model(5, BIG);
        let site = Site::start([("m-Q4_0.gguf", content.clone())]);
        let cache = Folder::new();
        cache.write(&format!("hub/models--acme--Tiny-GGUF/blobs/{}.incomplete", sha256(&content)), &remains);
        let path = resolve(&Hub::with_config(site.config(&cache)), &format!("hf:{REPO}")).unwrap();
        assert_eq!(fs::read(path).unwrap(), content);
        assert_eq!(site.ranges().last(), Some(&None));
    }
}

#[test]
fn complete_remains_only_need_the_check() {
    let content = model(5, BIG);
    let site = Site::start([("m-Q4_0.gguf", content.clone())]);
    let cache = Folder::new();
    cache.write(&format!("hub/models--acme--Tiny-GGUF/blobs/{}.incomplete", sha256(&content)), &content);
    let path = resolve(&Hub::with_config(site.config(&cache)), &format!("hf:{REPO}")).unwrap();
    assert_eq!(fs::read(path).unwrap(), content);
    assert!(site.contents.seen().is_empty());
}

#[test]
fn a_server_without_ranges_starts_again() {
    let content = model(7, BIG);
    let site = Site::start([("m-Q4_0.gguf", content.clone())]);
    let cache = Folder::new();
    cache.write(
        &format!("hub/models--acme--Tiny-GGUF/blobs/{}.incomplete", sha256(&content)),
        &content[..100_000],
    );
    let whole = content.clone();
    site.next_content(move |_| Some(Reply::new(200, whole)));
    let mut heard = Recorder::default();
    let hub = Hub::with_config(site.config(&cache));
    let path = hub.resolve(&ModelRef::parse(&format!("hf:{REPO}")).unwrap(), &mut heard).unwrap();
    assert_eq!(fs::read(path).unwrap(), content);
    assert_eq!(site.ranges(), [Some("bytes=100000-".into())]);
    assert_eq!((heard.begun.len(), heard.bytes), (2, BIG as u64));
}

#[test]
fn a_split_model_is_fetched_whole() {
    let shards = [model(1, 1000), model(2, 2000), model(3, 3000)];
    let site = Site::start([
        ("q/m-Q4_K_M-00001-of-00003.gguf", shards[0].clone()),
        ("q/m-Q4_K_M-00002-of-00003.gguf", shards[1].clone()),
        ("q/m-Q4_K_M-00003-of-00003.gguf", shards[2].clone()),
        ("m-Q8_0.gguf", model(4, 10)),
    ]);
    let cache = Folder::new();
    let hub = Hub::with_config(site.config(&cache));
    let path = resolve(&hub, &format!("hf:{REPO}:q4_k_m")).unwrap();
    assert!(path.ends_with("q/m-Q4_K_M-00001-of-00003.gguf"), "{}", path.display());
    for (index, shard) in shards.iter().enumerate() {
        let name = format!("m-Q4_K_M-0000{}-of-00003.gguf", index + 1);
        assert_eq!(&fs::read(path.with_file_name(name)).unwrap(), shard);
    }
    assert_eq!(site.contents.seen().len(), 3);

    // A set that lost a file is no model, and only that file is fetched again.
    let lost = path.with_file_name("m-Q4_K_M-00002-of-00003.gguf");
    fs::remove_file(fs::canonicalize(&lost).unwrap()).unwrap();
    let reference = ModelRef::parse(&format!("hf:{REPO}:q4_k_m")).unwrap();
    assert!(matches!(hub.resolve_offline(&reference), Err(Error::NotCached { .. })));
    assert_eq!(hub.resolve(&reference, &mut ()).unwrap(), path);
    assert_eq!(fs::read(lost).unwrap(), shards[1]);
    assert_eq!(site.contents.seen().len(), 4);
}

#[test]
fn a_cached_model_of_another_type_does_not_answer_for_the_preferred_one() {
    let site = Site::start([("m-Q4_K_M.gguf", model(1, 100)), ("m-Q8_0.gguf", model(2, 100))]);
    let cache = Folder::new();
    let hub = Hub::with_config(site.config(&cache));
    let q8 = resolve(&hub, &format!("hf:{REPO}:Q8_0")).unwrap();
    let plain = ModelRef::parse(&format!("hf:{REPO}")).unwrap();
    assert_eq!(hub.resolve_offline(&plain).unwrap(), q8, "offline there is no other");
    assert!(hub.resolve(&plain, &mut ()).unwrap().ends_with("m-Q4_K_M.gguf"));
    assert!(hub.resolve_offline(&plain).unwrap().ends_with("m-Q4_K_M.gguf"));
}

#[test]
fn offline_mode_asks_nobody() {
    let site = Site::start([("m-Q4_K_M.gguf", model(1, 100))]);
    let cache = Folder::new();
    let mut config = site.config(&cache);
    config.hf_offline = true;
    let error = resolve(&Hub::with_config(config), &format!("hf:{REPO}")).unwrap_err();
    assert!(matches!(error, Error::NotCached { .. }), "{error}");
    assert!(site.hub.seen().is_empty());
}

#[test]
fn busy_servers_are_asked_again() {
    let content = model(8, 5000);
    let site = Site::start([("m-Q4_0.gguf", content.clone())]);
    site.next_of_hub(|_| Some(Reply::new(503, "busy")));
    site.next_of_hub(|_| Some(Reply::new(429, "slow down").with("retry-after", "0")));
    site.next_of_hub(|_| None);
    site.next_content(|_| Some(Reply::new(500, "oops")));
    site.next_content(|_| Some(Reply::new(429, "slow down")));
    let cache = Folder::new();
    let mut heard = Recorder::default();
    let hub = Hub::with_config(site.config(&cache));
    let path = hub.resolve(&ModelRef::parse(&format!("hf:{REPO}")).unwrap(), &mut heard).unwrap();
    assert_eq!(fs::read(path).unwrap(), content);
    assert_eq!(heard.waits.len(), 5);
    assert!(heard.waits[0].contains("status 503"), "{}", heard.waits[0]);
    assert!(heard.waits[1].contains("no more requests for now; try again in 0 s"), "{}", heard.waits[1]);
}

#[test]
fn a_silent_connection_counts_as_broken() {
    let content = model(9, 5000);
    let site = Site::start([("m-Q4_0.gguf", content.clone())]);
    site.next_content(|reply| Some(Reply { cut: Some(2000), hang: true, ..reply }));
    let cache = Folder::new();
    let mut config = site.config(&cache);
    config.silence = Duration::from_millis(300);
    let path = resolve(&Hub::with_config(config), &format!("hf:{REPO}")).unwrap();
    assert_eq!(fs::read(path).unwrap(), content);
    assert_eq!(site.ranges(), [None, Some("bytes=2000-".into())]);
}

#[test]
fn models_are_listed_and_removed() {
    let (old, new, same) = (model(1, 1000), model(2, 2000), model(3, 3000));
    let site = Site::start([("m-Q4_K_M.gguf", old), ("m-Q8_0.gguf", same.clone())]);
    let cache = Folder::new();
    let hub = Hub::with_config(site.config(&cache));
    resolve(&hub, &format!("hf:{REPO}")).unwrap();
    resolve(&hub, &format!("hf:{REPO}:Q8_0")).unwrap();
    // The next commit has a new Q4_K_M; fetching Q2_K makes it known.
    let commit = "f".repeat(40);
    site.commit(
        &commit,
        [("m-Q4_K_M.gguf", new.clone()), ("m-Q8_0.gguf", same), ("m-Q2_K.gguf", model(4, 10))],
    );
    resolve(&hub, &format!("hf:{REPO}:Q2_K")).unwrap();
    let path = resolve(&hub, &format!("hf:{REPO}:Q4_K_M")).unwrap();
    assert_eq!(fs::read(path).unwrap(), new);
    let fetched = site.contents.seen().len();
    resolve(&hub, &format!("hf:{REPO}:Q8_0")).unwrap();
    assert_eq!(site.contents.seen().len(), fetched, "the content of Q8_0 is the same in both commits");

    let listed: Vec<_> =
        hub.list().unwrap().into_iter().map(|model| (model.reference, model.bytes)).collect();
    assert_eq!(
        listed,
        [
            (format!("hf:{REPO}:m-Q2_K.gguf"), 10),
            (format!("hf:{REPO}:m-Q4_K_M.gguf"), 2000),
            (format!("hf:{REPO}:m-Q8_0.gguf"), 3000),
        ]
    );
    for model in hub.list().unwrap() {
        let reference = ModelRef::parse(&model.reference).unwrap();
        assert_eq!(hub.resolve_offline(&reference).unwrap(), model.paths[0]);
    }

    let remove = |model: &str| hub.remove(&ModelRef::parse(model).unwrap());
    let error = remove(&format!("hf:{REPO}")).unwrap_err();
    assert!(matches!(&error, Error::SeveralModels { found, .. } if found.len() == 3), "{error}");
    assert_eq!(remove(&format!("hf:{REPO}:Q8_0")).unwrap(), 3000);
    assert!(matches!(remove(&format!("hf:{REPO}:Q8_0")), Err(Error::NotCached { .. })));
    assert_eq!(remove(&format!("hf:{REPO}:Q4_K_M")).unwrap(), 3000, "both commits");
    assert_eq!(remove(&format!("hf:{REPO}")).unwrap(), 10);
    assert!(hub.list().unwrap().is_empty());
    assert_eq!(cache.files_but_locks(), [""; 0]);
}

#[test]
fn content_that_another_file_shares_stays() {
    let site = Site::start([("a-Q4_0.gguf", model(1, 1000)), ("b-Q8_0.gguf", model(1, 1000))]);
    let cache = Folder::new();
    let hub = Hub::with_config(site.config(&cache));
    resolve(&hub, &format!("hf:{REPO}:Q4_0")).unwrap();
    let shared = resolve(&hub, &format!("hf:{REPO}:Q8_0")).unwrap();
    assert_eq!(site.contents.seen().len(), 1);
    let remove = |model: &str| hub.remove(&ModelRef::parse(model).unwrap()).unwrap();
    assert_eq!(remove(&format!("hf:{REPO}:Q4_0")), 0);
    assert_eq!(fs::read(shared).unwrap(), model(1, 1000));
    assert_eq!(remove(&format!("hf:{REPO}:Q8_0")), 1000);
    assert_eq!(cache.files_but_locks(), [""; 0]);
}
