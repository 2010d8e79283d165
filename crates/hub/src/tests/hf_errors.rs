//! Fetches from the hub that must fail, with the right error and nothing left behind.

use std::net::TcpListener;

use super::server::{Reply, Server};
use super::site::{REPO, Site};
use super::{Folder, model, resolve};
use crate::error::Error;
use crate::hub::Hub;

/// The error of a fetch whose faults the test has set.
fn error_of(site: &Site, reference: &str) -> (Error, Folder) {
    let cache = Folder::new();
    let error = resolve(&Hub::with_config(site.config(&cache)), reference).unwrap_err();
    (error, cache)
}

fn site() -> Site {
    Site::start([("m-Q4_K_M.gguf", model(1, 9000)), ("m-Q8_0.gguf", model(2, 9000))])
}

#[test]
fn wrong_content_is_refused_and_removed() {
    let site = site();
    site.next_content(|mut reply| {
        reply.body[5000] ^= 1;
        Some(reply)
    });
    let (error, cache) = error_of(&site, &format!("hf:{REPO}"));
    assert!(matches!(error, Error::Checksum { .. }), "{error}");
    assert_eq!(cache.files_but_locks(), [""; 0]);
    assert_eq!(site.ranges(), [None], "what came whole is not asked for again");
}

#[test]
fn a_content_of_another_name_is_refused_before_it_comes() {
    let site = site();
    site.next_of_hub(Some);
    site.next_of_hub(|mut reply| {
        reply.headers.retain(|(name, _)| name != "x-linked-etag");
        Some(reply.with("x-linked-etag", format!("\"{}\"", "0".repeat(64))))
    });
    let (error, cache) = error_of(&site, &format!("hf:{REPO}"));
    assert!(matches!(&error, Error::Checksum { found, .. } if *found == "0".repeat(64)), "{error}");
    assert!(cache.files_but_locks().iter().all(|file| file.ends_with(".incomplete")));
}

#[test]
fn right_content_that_is_no_model_is_refused() {
    let site = Site::start([("m-Q4_K_M.gguf", b"<html>not found</html>".to_vec())]);
    let (error, cache) = error_of(&site, &format!("hf:{REPO}"));
    assert!(matches!(&error, Error::NotGguf { found, .. } if found == b"<htm"), "{error}");
    assert_eq!(cache.files_but_locks(), [""; 0]);
}

#[test]
fn refusals_say_what_to_do() {
    type Check = fn(&Error) -> bool;
    let cases: [(Reply, Check, &str); 6] = [
        (
            Reply::new(401, "").with("x-error-code", "RepoNotFound"),
            |error| matches!(error, Error::Refused { gated: false, with_token: true, .. }),
            "the name may be wrong, or the token may not read it",
        ),
        (
            Reply::new(403, "").with("x-error-code", "GatedRepo"),
            |error| matches!(error, Error::Refused { gated: true, with_token: true, .. }),
            "accept its licence",
        ),
        (
            Reply::new(404, "").with("x-error-code", "RepoNotFound"),
            |error| matches!(error, Error::NotFound { .. }),
            "does not know acme/Tiny-GGUF (revision main)",
        ),
        (
            Reply::new(429, "").with("retry-after", "3600"),
            |error| matches!(error, Error::RateLimited { retry_after: Some(wait), .. } if wait.as_secs() == 3600),
            "try again in 3600 s",
        ),
        (Reply::new(400, ""), |error| matches!(error, Error::Status { status: 400, .. }), "status 400"),
        (Reply::new(200, "<html>"), |error| matches!(error, Error::BadReply { .. }), "unexpected answer"),
    ];
    for (reply, check, text) in cases {
        let site = site();
        let status = reply.status;
        site.next_of_hub(move |_| Some(reply));
        let (error, _) = error_of(&site, &format!("hf:{REPO}"));
        assert!(check(&error) && error.to_string().contains(text), "{status}: {error}");
        assert_eq!(site.hub.seen().len(), 1, "{status}: another try is pointless");
    }
}

#[test]
fn without_a_token_the_refusal_asks_for_one() {
    let site = site();
    site.next_of_hub(|_| Some(Reply::new(403, "").with("x-error-code", "GatedRepo")));
    let cache = Folder::new();
    let mut config = site.config(&cache);
    config.hf_token = None;
    let error = resolve(&Hub::with_config(config), &format!("hf:{REPO}")).unwrap_err();
    assert!(error.to_string().contains("set HF_TOKEN"), "{error}");
    assert!(site.hub.seen()[0].header("authorization").is_none());
}

#[test]
fn an_expired_link_is_a_refusal_of_the_file() {
    let site = site();
    site.next_content(|_| Some(Reply::new(404, "")));
    let (error, _) = error_of(&site, &format!("hf:{REPO}"));
    assert!(error.to_string().contains("m-Q4_K_M.gguf of acme/Tiny-GGUF"), "{error}");
}

#[test]
fn attempts_are_counted() {
    let site = site();
    for _ in 0..10 {
        site.next_content(|_| Some(Reply::new(503, "")));
    }
    let cache = Folder::new();
    let mut config = site.config(&cache);
    config.attempts = 3;
    let error = resolve(&Hub::with_config(config), &format!("hf:{REPO}")).unwrap_err();
    assert!(matches!(error, Error::Status { status: 503, .. }), "{error}");
    assert_eq!(site.contents.seen().len(), 3);
}

#[test]
fn a_connection_that_always_breaks_is_reported_with_its_place() {
    let site = site();
    for _ in 0..3 {
        site.next_content(|reply| Some(Reply { cut: Some(2000), ..reply }));
    }
    let cache = Folder::new();
    let mut config = site.config(&cache);
    config.attempts = 3;
    let error = resolve(&Hub::with_config(config), &format!("hf:{REPO}")).unwrap_err();
    assert!(matches!(error, Error::Interrupted { expected: 9000, found: 6000, .. }), "{error}");
    assert!(!error.to_string().contains("signature"), "{error}");
}

#[test]
fn nobody_at_the_address() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let cache = Folder::new();
    let mut config = super::config(&cache);
    config.hf_endpoint = format!("http://{free}");
    let error = resolve(&Hub::with_config(config), &format!("hf:{REPO}")).unwrap_err();
    assert!(matches!(error, Error::Network { .. }), "{error}");
}

#[test]
fn an_address_that_is_none() {
    let cache = Folder::new();
    for endpoint in ["", "huggingface.co", "ftp://hub.example", "https://"] {
        let mut config = super::config(&cache);
        config.hf_endpoint = endpoint.into();
        let error = resolve(&Hub::with_config(config), &format!("hf:{REPO}")).unwrap_err();
        assert!(error.to_string().contains("HF_ENDPOINT"), "{endpoint}: {error}");
    }
}

#[test]
fn endless_redirects_are_left() {
    let server = Server::start(|request| Some(Reply::new(302, "").with("location", &request.path)));
    let cache = Folder::new();
    let mut config = super::config(&cache);
    config.hf_endpoint = server.url();
    let error = resolve(&Hub::with_config(config), &format!("hf:{REPO}")).unwrap_err();
    assert!(error.to_string().contains("redirects without end"), "{error}");
}

#[test]
fn lengths_that_do_not_fit_are_refused() {
    type Change = fn(Reply) -> Reply;
    let changes: [(Change, &str); 2] = [
        (|_| Reply::new(200, model(1, 9001)), "says 9000 bytes, the file has 9001"),
        (|reply| Reply { status: 206, ..reply }, "expected the range bytes 0-8999/9000"),
    ];
    for (change, text) in changes {
        let site = site();
        site.next_content(move |reply| Some(change(reply)));
        let (error, _) = error_of(&site, &format!("hf:{REPO}"));
        assert!(matches!(error, Error::BadReply { .. }) && error.to_string().contains(text), "{error}");
    }
}

#[test]
fn models_that_are_not_in_the_repository() {
    let (error, _) = error_of(&site(), &format!("hf:{REPO}:Q5_K_M"));
    assert!(matches!(&error, Error::NoMatch { found, .. } if found.len() == 2), "{error}");
    let site = Site::start([("README.md", b"x".to_vec()), ("mmproj-F16.gguf", model(1, 9))]);
    let (error, _) = error_of(&site, &format!("hf:{REPO}"));
    assert!(matches!(error, Error::NoModel { .. }), "{error}");
    let site = Site::start([("a-Q4_0.gguf", model(1, 9)), ("b-Q4_0.gguf", model(2, 9))]);
    let (error, _) = error_of(&site, &format!("hf:{REPO}"));
    assert!(matches!(error, Error::SeveralModels { .. }), "{error}");
    let site = Site::start([("a-Q4_0-00002-of-00002.gguf", model(1, 9))]);
    let (error, _) = error_of(&site, &format!("hf:{REPO}"));
    assert!(error.to_string().contains("it lacks: a-Q4_0-00001-of-00002.gguf"), "{error}");
    assert!(site.contents.seen().is_empty());
}
