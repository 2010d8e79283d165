//! Many clients at once.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::place::{Place, tiny_spec};

fn body(i: usize) -> Value {
    json!({ "prompt": format!("{i}{}", "prompt ".repeat(1 + i % 7)), "max_tokens": 20 + i, "seed": i, "ignore_eos": true })
}

fn text(place: &Place, i: usize) -> String {
    place.ok("/v1/completions", &body(i))["choices"][0]["text"].as_str().unwrap().to_owned()
}

#[test]
fn the_same_seed_gives_the_same_text_whatever_the_load() {
    let alone: Vec<String> = {
        let place = Place::new();
        (0..17).map(|i| text(&place, i)).collect()
    };
    let place = Arc::new(Place::new());
    let threads: Vec<_> = (0..17)
        .map(|i| {
            let place = place.clone();
            std::thread::spawn(move || text(&place, i))
        })
        .collect();
    for (thread, alone) in threads.into_iter().zip(&alone) {
        assert_eq!(&thread.join().unwrap(), alone);
    }
    // They did run together.
    assert!(place.metric("wootz:batch_requests") > 1.5);
    place.await_metric("wootz:kv_blocks_used", 0.0);
}

/// Requests of all kinds: by themselves and behind common beginnings, short and long, one and several answers, with
/// samplers that remember, schemas, and every way to ask.
fn mixed(i: usize) -> (&'static str, Value) {
    let common = "Once there was a smith who forged a sword of iron. ".repeat(1 + i % 4);
    let messages = json!([{ "role": "user", "content": format!("{common}{i}") }]);
    let (path, mut body) = match i % 6 {
        0 => ("/v1/completions", json!({ "prompt": format!("{i} alone"), "n": 2 })),
        1 => ("/v1/completions", json!({ "prompt": format!("{common}{i}"), "mirostat": 2 })),
        2 => (
            "/v1/chat/completions",
            json!({ "messages": messages, "dry_multiplier": 0.8, "repeat_penalty": 1.2 }),
        ),
        3 => ("/v1/chat/completions", json!({ "messages": messages, "n": 3, "xtc_probability": 0.5 })),
        4 => ("/v1/chat/completions", json!({ "messages": messages, "regex": "([a-f]{4} ){30}" })),
        _ => ("/v1/completions", json!({ "prompt": common, "adaptive_target": 0.3, "logprobs": 2 })),
    };
    body["seed"] = (i * 7).into();
    body["max_tokens"] = (10 + i * 13 % 120).into();
    body["ignore_eos"] = (i % 6 != 4).into();
    (path, body)
}

fn choices(place: &Place, i: usize) -> Value {
    let (path, body) = mixed(i);
    place.ok(path, &body)["choices"].clone()
}

#[test]
fn mixed_requests_that_come_at_any_time_get_the_answers_that_they_get_alone() {
    // Each on a server of its own, where nothing was computed before.
    let alone: Vec<Value> = (0..17).map(|i| choices(&Place::new(), i)).collect();
    // Room for two at full length; the second and third time prefixes are known in other pieces.
    let place = Arc::new(Place::serving(vec![tiny_spec("tiny", 2).0], Default::default()));
    for turn in 0..3 {
        let threads: Vec<_> = (0..17)
            .map(|i| {
                let place = place.clone();
                std::thread::spawn(move || {
                    std::thread::sleep(std::time::Duration::from_millis((i * 5 + turn * 3) as u64 % 40));
                    choices(&place, i)
                })
            })
            .collect();
        for (i, (thread, alone)) in threads.into_iter().zip(&alone).enumerate() {
            assert_eq!(&thread.join().unwrap(), alone, "request {i}, turn {turn}");
        }
    }
    assert!(place.metric("wootz:batch_requests") > 1.5);
    assert!(place.metric("wootz:prompt_cached_tokens_total") > 1000.0);
    place.await_metric("wootz:kv_blocks_used", 0.0);
}

/// The text that continues a long prompt.
fn long(place: &Place, i: usize) -> Value {
    let prompt = format!("{i}{}", "x".repeat(900));
    let body = json!({ "prompt": prompt, "max_tokens": 700, "seed": i, "ignore_eos": true });
    place.ok("/v1/completions", &body)["choices"][0]["text"].clone()
}

#[test]
fn a_cache_that_runs_full_changes_no_answer() {
    let alone: Vec<Value> = {
        let place = Place::new();
        (0..5).map(|i| long(&place, i)).collect()
    };
    // Room for one at full length: 4,096 positions, where five want 8,000.
    let place = Arc::new(Place::serving(vec![tiny_spec("tiny", 1).0], Default::default()));
    let threads: Vec<_> = (0..5)
        .map(|i| {
            let place = place.clone();
            std::thread::spawn(move || long(&place, i))
        })
        .collect();
    for (thread, alone) in threads.into_iter().zip(&alone) {
        assert_eq!(&thread.join().unwrap(), alone);
    }
    assert!(place.metric("wootz:preempted_total") > 0.0);
    place.await_metric("wootz:kv_blocks_used", 0.0);
}
