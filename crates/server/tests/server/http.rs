//! What all endpoints have in common.

use serde_json::{Value, json};
use wootz_server::ServerOptions;

use crate::place::Place;

#[test]
fn the_page_and_its_files_are_served() {
    let place = Place::new();
    let page = place.get("/");
    assert_eq!(page.status, 200);
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    assert!(page.header("content-security-policy").contains("default-src 'none'"));
    for file in page.text().split('"').filter(|part| part.ends_with(".js") || part.ends_with(".css")) {
        let reply = place.get(&format!("/{file}"));
        assert_eq!(reply.status, 200, "{file}");
        let kind = if file.ends_with(".js") { "text/javascript" } else { "text/css" };
        assert!(reply.header("content-type").starts_with(kind), "{file}");
    }
    let tag = page.header("etag");
    let again = place.send("GET", "/", &[("If-None-Match", tag)], b"").whole();
    assert_eq!((again.status, again.body.len()), (304, 0));
    let head = place.send("HEAD", "/", &[], b"").whole();
    assert_eq!((head.status, head.body.len()), (200, 0));
}

#[test]
fn errors_have_the_form_of_their_protocol() {
    let place = Place::new();
    let missing = place.get("/v1/nothing");
    assert_eq!(missing.status, 404);
    assert_eq!(missing.json()["error"]["type"], "not_found_error");
    let method = place.get("/v1/chat/completions");
    assert_eq!((method.status, method.header("allow")), (405, "POST, OPTIONS"));
    let broken = |path: &str| place.send("POST", path, &[], b"{\"a\"").whole();
    assert!(broken("/v1/completions").json()["error"]["message"].as_str().unwrap().contains("not JSON"));
    let anthropic = broken("/v1/messages");
    assert_eq!((anthropic.status, &anthropic.json()["type"]), (400, &json!("error")));
    assert!(broken("/api/chat").json()["error"].is_string());
    let list = place.send("POST", "/tokenize", &[], b"[1]").whole();
    assert_eq!(list.json()["error"]["message"], "the body: expected a JSON object, found a list");
}

#[test]
fn keys_are_asked_for_in_every_form() {
    let options = ServerOptions { api_keys: vec!["one".into(), "two".into()], ..ServerOptions::default() };
    let place = Place::with(options);
    let models = |headers: &[(&str, &str)]| place.send("GET", "/v1/models", headers, b"").whole();
    let without = models(&[]);
    assert_eq!((without.status, &without.json()["error"]["code"]), (401, &json!("invalid_api_key")));
    assert_eq!(without.header("www-authenticate"), "Bearer");
    assert_eq!(models(&[("Authorization", "Bearer three")]).status, 401);
    assert_eq!(models(&[("Authorization", "Bearer two")]).status, 200);
    assert_eq!(models(&[("Authorization", "bearer one")]).status, 200);
    assert_eq!(models(&[("X-Api-Key", "one")]).status, 200);
    assert_eq!(place.get("/").status, 200);
    assert_eq!(place.get("/openapi.json").status, 200);
    assert_eq!(place.get("/metrics").status, 401);
}

#[test]
fn other_origins_and_hosts_are_kept_out() {
    let place =
        Place::with(ServerOptions { origins: vec!["https://a.example".into()], ..ServerOptions::default() });
    let post =
        |headers: &[(&str, &str)]| place.send("POST", "/tokenize", headers, b"{\"content\": \"a\"}").whole();
    let allowed = post(&[("Origin", "https://a.example")]);
    assert_eq!(allowed.status, 200);
    assert_eq!(allowed.header("access-control-allow-origin"), "https://a.example");
    let own = format!("http://{}", place.address);
    let same = post(&[("Origin", &own)]);
    assert_eq!((same.status, same.header("access-control-allow-origin")), (200, ""));
    assert_eq!(post(&[("Origin", "https://b.example")]).status, 403);
    let get = place.send("GET", "/v1/models", &[("Origin", "https://b.example")], b"").whole();
    assert_eq!((get.status, get.header("access-control-allow-origin")), (200, ""));
    let ask = [
        ("Origin", "https://a.example"),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "content-type"),
    ];
    let preflight = place.send("OPTIONS", "/v1/chat/completions", &ask, b"").whole();
    assert_eq!(preflight.status, 204);
    assert_eq!(preflight.header("access-control-allow-headers"), "content-type");
    assert_eq!(post(&[("Host", "evil.example")]).status, 403);
    assert_eq!(post(&[("Host", "localhost:99")]).status, 200);
}

#[test]
fn large_bodies_are_refused() {
    let place = Place::with(ServerOptions { body_limit: 1000, ..ServerOptions::default() });
    let reply = place.post("/tokenize", &json!({ "content": "a".repeat(2000) }));
    assert_eq!(reply.status, 413);
    assert_eq!(reply.json()["error"]["message"], "the request is longer than 1000 bytes");
    assert_eq!(place.post("/tokenize", &json!({ "content": "a".repeat(900) })).status, 200);
}

#[test]
fn every_response_has_an_id() {
    let place = Place::new();
    let given = place.send("GET", "/v1/models", &[("X-Request-Id", "my-1")], b"").whole();
    assert_eq!((given.header("x-request-id"), given.header("request-id")), ("my-1", "my-1"));
    let odd = place.send("GET", "/v1/models", &[("X-Request-Id", "a b")], b"").whole();
    assert!(odd.header("x-request-id").starts_with("req_"));
}

#[test]
fn the_document_lists_every_endpoint_with_its_fields() {
    let place = Place::new();
    let document = place.get("/openapi.json").json();
    let chat =
        &document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"];
    let properties = chat["schema"]["properties"].as_object().unwrap();
    assert_eq!(properties["n"]["type"], json!(["integer", "null"]));
    assert!(properties.contains_key("temperature") && properties.contains_key("tools"));
    // Every path answers something other than 404, whatever is sent.
    for (path, item) in document["paths"].as_object().unwrap() {
        let path = path.replace("{id}", "tiny");
        for method in item.as_object().unwrap().keys() {
            let reply = place.send(&method.to_ascii_uppercase(), &path, &[], b"{}").whole();
            assert!(
                ![404, 405, 500].contains(&reply.status),
                "{method} {path}: {} {}",
                reply.status,
                reply.text()
            );
        }
    }
}

#[test]
fn health_and_metrics_tell_the_state() {
    let place = Place::new();
    place.ok("/v1/completions", &json!({"prompt": "abc", "max_tokens": 5, "ignore_eos": true}));
    assert_eq!(place.get("/health").json(), json!({"status": "ok"}));
    assert_eq!(place.metric("wootz:prompt_tokens_total"), 3.0);
    assert_eq!(place.metric("wootz:tokens_predicted_total"), 5.0);
    assert_eq!(place.metric("wootz:time_to_first_token_seconds_count"), 1.0);
    assert_eq!(place.metric("wootz:inter_token_seconds_count"), 4.0);
    place.await_metric("wootz:kv_blocks_used", 0.0);
    let props = place.get("/props").json();
    assert_eq!(props["default_generation_settings"]["n_ctx"], 4096);
    assert!(props["chat_template"].as_str().unwrap().contains("<|im_start|>"));
    assert_eq!(place.get("/slots").json().as_array().map(Vec::len), Some(4));
    let tags = place.get("/api/tags").json();
    assert_eq!(tags["models"][0]["name"], "tiny");
    let one: Value = place.get("/v1/models/tiny-alias").json();
    assert_eq!(one["id"], "tiny");
    assert_eq!(place.get("/v1/models/other").status, 404);
}
