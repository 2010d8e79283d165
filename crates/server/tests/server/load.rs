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
