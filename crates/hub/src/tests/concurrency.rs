//! Several processes at one cache, and one that is killed.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use super::server::Reply;
use super::site::{REPO, Site};
use super::{Folder, model, resolve, sha256};
use crate::hub::Hub;

const SIZE: usize = 2 << 20;

#[test]
fn two_at_once_fetch_one_content() {
    let content = model(1, SIZE);
    let site = Site::start([("m-Q4_0.gguf", content.clone())]);
    site.next_content(|reply| {
        // Long enough for the others to find the lock taken.
        thread::sleep(Duration::from_millis(300));
        Some(reply)
    });
    let cache = Folder::new();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let hub = Hub::with_config(site.config(&cache));
                let path = resolve(&hub, &format!("hf:{REPO}")).unwrap();
                assert_eq!(fs::read(path).unwrap(), content);
            });
        }
    });
    assert_eq!(site.contents.seen().len(), 1);
}

/// The variable that tells the child process which hub to ask.
const CHILD: &str = "WOOTZ_HUB_TEST_CHILD";

/// Run by the next test in a process of its own; alone it does nothing.
#[test]
fn child_process() {
    let Ok(task) = std::env::var(CHILD) else { return };
    let (endpoint, cache) = task.split_once(' ').unwrap();
    let mut config = crate::Config::with_cache_dir(cache).unwrap();
    config.hf_cache_dir = config.cache_dir.join("hub");
    config.hf_endpoint = endpoint.into();
    let _ = resolve(&Hub::with_config(config), &format!("hf:{REPO}"));
}

#[test]
fn a_killed_process_leaves_no_model_and_no_lock() {
    let content = model(1, SIZE);
    let site = Site::start([("m-Q4_0.gguf", content.clone())]);
    site.next_content(|reply| Some(Reply { cut: Some(1 << 20), hang: true, ..reply }));
    let cache = Folder::new();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tests::concurrency::child_process"])
        .env(CHILD, format!("{} {}", site.hub.url(), cache.path().display()))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let rest = format!("models--acme--Tiny-GGUF/blobs/{}.incomplete", sha256(&content));
    let rest = cache.path().join("hub").join(rest);
    while fs::metadata(&rest).map_or(0, |about| about.len()) < 1 << 20 {
        assert!(child.try_wait().unwrap().is_none(), "the child ended by itself");
        thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let hub = Hub::with_config(site.config(&cache));
    assert!(hub.list().unwrap().is_empty());
    let path = resolve(&hub, &format!("hf:{REPO}")).unwrap();
    assert_eq!(fs::read(path).unwrap(), content);
    assert_eq!(site.ranges(), [None, Some(format!("bytes={}-", 1 << 20))]);
}
