//! Queues, times, clients that go away or read slowly, and the stop.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wootz_server::ServerOptions;

use crate::place::{PATIENCE, Place};

/// An answer that takes longer than any test.
fn endless() -> Value {
    json!({ "prompt": "a", "max_tokens": 4000, "ignore_eos": true, "stream": true })
}

#[test]
fn a_full_queue_says_when_to_come_again() {
    let options = ServerOptions { running: 1, queue: 1, ..ServerOptions::default() };
    let place = Place::with(options);
    let running = place.begin("/v1/completions", &endless());
    place.await_metric("wootz:requests_processing", 1.0);
    let waiting = place.begin("/v1/completions", &endless());
    assert_eq!((running.status, waiting.status), (200, 200));
    place.await_metric("wootz:requests_deferred", 1.0);
    let refused = place.post("/v1/completions", &endless());
    assert_eq!((refused.status, refused.header("retry-after")), (429, "1"));
    assert_eq!(refused.json()["error"]["code"], "queue_full");
    assert_eq!(place.metric("wootz:requests_refused_total"), 1.0);
}

#[test]
fn a_client_that_goes_away_ends_its_answer() {
    let place = Place::new();
    let mut streaming = place.begin("/v1/completions", &endless());
    assert!(streaming.more());
    drop(streaming);
    place.await_metric("wootz:requests_cancelled_total", 1.0);
    // Also where nothing was to come before the end.
    let mut body = endless();
    body["stream"] = false.into();
    let stream = std::net::TcpStream::connect(place.address).unwrap();
    let text = body.to_string();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{text}",
        text.len()
    );
    std::io::Write::write_all(&mut &stream, head.as_bytes()).unwrap();
    place.await_metric("wootz:requests_processing", 1.0);
    drop(stream);
    place.await_metric("wootz:requests_cancelled_total", 2.0);
    place.await_metric("wootz:requests_processing", 0.0);
    place.await_metric("wootz:kv_blocks_used", 0.0);
}

#[test]
fn a_slow_reader_holds_up_nobody() {
    let place = Place::new();
    let slow: Vec<_> = (0..3).map(|_| place.begin("/v1/completions", &endless())).collect();
    for _ in 0..3 {
        place.ok("/v1/completions", &json!({ "prompt": "b", "max_tokens": 30, "ignore_eos": true }));
    }
    // Their answers go on unread, as far as they may be.
    assert!(slow.iter().all(|reply| reply.status == 200));
    for mut reply in slow {
        let start = Instant::now();
        while reply.more() {
            assert!(start.elapsed() < PATIENCE);
        }
        assert!(reply.text().ends_with("data: [DONE]\n\n"));
    }
}

#[test]
fn time_is_up_at_some_time() {
    let options = ServerOptions { timeout: Some(Duration::from_millis(200)), ..ServerOptions::default() };
    let place = Place::with(options);
    let mut body = endless();
    let events = place.events("/v1/completions", &body);
    assert_eq!(events.last().unwrap()["error"]["type"], "timeout_error");
    body["stream"] = false.into();
    assert_eq!(place.post("/v1/completions", &body).status, 504);
    place.await_metric("wootz:requests_processing", 0.0);
    // llama.cpp's own limit ends the text, which is no error.
    let place = Place::new();
    let native = json!({ "prompt": "a", "n_predict": 4000, "ignore_eos": true, "t_max_predict_ms": 50 });
    assert_eq!(place.ok("/completion", &native)["stop_type"], "limit");
    place.await_metric("wootz:requests_processing", 0.0);
}

#[test]
fn a_quiet_stream_shows_that_it_lives() {
    let options =
        ServerOptions { running: 1, keep_alive: Duration::from_millis(20), ..ServerOptions::default() };
    let place = Place::with(options);
    let _running = place.begin("/v1/completions", &endless());
    place.await_metric("wootz:requests_processing", 1.0);
    let mut waiting = place.begin("/v1/completions", &endless());
    assert!(waiting.more());
    assert_eq!(waiting.text(), ": still here\n\n");
}

#[test]
fn a_stop_waits_for_answers_and_then_no_longer() {
    let short = json!({ "prompt": "a", "max_tokens": 100, "ignore_eos": true, "stream": true });
    let mut place = Place::new();
    let mut reply = place.begin("/v1/completions", &short);
    assert!(reply.more());
    place.ask_to_stop();
    let reply = reply.whole();
    assert!(reply.text().ends_with("data: [DONE]\n\n"));
    place.end().unwrap();

    let options = ServerOptions { grace: Duration::from_millis(50), ..ServerOptions::default() };
    let mut place = Place::with(options);
    let mut reply = place.begin("/v1/completions", &endless());
    assert!(reply.more());
    place.ask_to_stop();
    place.end().unwrap();
    while reply.more() {}
    assert!(!reply.text().contains("[DONE]"));
}
