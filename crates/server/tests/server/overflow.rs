//! Prompts and answers that do not fit, and what is done about it where a request asks for that.

use serde_json::{Value, json};
use wootz_server::{ModelSpec, Preset, ServerOptions};

use crate::place::{CONTEXT, Place, tiny_spec};

fn said(role: &str, text: impl Into<String>) -> Value {
    json!({ "role": role, "content": text.into() })
}

/// Rules, and turns that together do not fit.
fn conversation() -> Vec<Value> {
    let mut messages = vec![said("system", "Rules.")];
    for i in 0..10 {
        messages.push(said("user", format!("question {i} {}", "why ".repeat(80))));
        messages.push(said("assistant", format!("answer {i} {}", "so ".repeat(80))));
    }
    messages.push(said("user", "last question"));
    messages
}

fn chat(messages: &[Value], more: Value) -> Value {
    let mut body = json!({ "messages": messages, "max_tokens": 30, "seed": 4, "ignore_eos": true });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn count(place: &Place, messages: &[Value]) -> usize {
    let reply = place.ok("/v1/chat/completions/input_tokens", &json!({ "messages": messages }));
    reply["input_tokens"].as_u64().unwrap() as usize
}

#[test]
fn the_oldest_turns_are_left_out_where_that_is_asked_for() {
    let place = Place::new();
    let whole = conversation();
    let refused = place.post("/v1/chat/completions", &chat(&whole, json!({})));
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (400, &json!("context_length_exceeded")));
    assert_eq!(refused.json()["error"]["n_prompt_tokens"], count(&place, &whole));
    let auto = json!({ "truncation": "auto" });
    let reply = place.ok("/v1/chat/completions", &chat(&whole, auto.clone()));
    let left_out = reply["truncated_messages"].as_u64().unwrap() as usize;
    // It is the answer to the conversation without its oldest turns, of which no more went than had to.
    let shorter = |n: usize| [&whole[..1], &whole[1 + n..]].concat();
    let by_hand = place.ok("/v1/chat/completions", &chat(&shorter(left_out), json!({})));
    assert_eq!(reply["choices"][0]["message"], by_hand["choices"][0]["message"]);
    assert_eq!(by_hand.get("truncated_messages"), None);
    assert!(left_out.is_multiple_of(2) && count(&place, &shorter(left_out)) + 30 <= CONTEXT);
    assert!(count(&place, &shorter(left_out - 2)) + 30 > CONTEXT);
    let events =
        place.events("/v1/chat/completions", &chat(&whole, json!({ "truncation": "auto", "stream": true })));
    assert_eq!(events.last().unwrap()["truncated_messages"], left_out);
    // What fits stays whole.
    assert_eq!(
        place.ok("/v1/chat/completions", &chat(&whole[..5], auto.clone())).get("truncated_messages"),
        None
    );
    // A question that does not fit alone is refused still.
    let long = [said("user", "x".repeat(2 * CONTEXT))];
    assert_eq!(place.post("/v1/chat/completions", &chat(&long, auto)).status, 400);
}

#[test]
fn behind_the_last_question_calls_of_tools_are_left_out() {
    let place = Place::new();
    let mut messages = vec![said("system", "Rules."), said("user", "old"), said("assistant", "old answer")];
    messages.push(said("user", "the question"));
    for i in 0..8 {
        let call = json!({ "id": format!("id{i}"), "type": "function", "function": { "name": "look", "arguments": "{}" } });
        messages.push(json!({ "role": "assistant", "content": null, "tool_calls": [call] }));
        messages.push(json!({ "role": "tool", "tool_call_id": format!("id{i}"), "content": format!("found {i} {}", "x".repeat(700)) }));
    }
    let prompt = place.ok("/apply-template", &chat(&messages, json!({ "truncation": "auto" })));
    let (text, tokens) = (prompt["prompt"].as_str().unwrap(), prompt["tokens"].as_u64().unwrap());
    assert!(tokens as usize + 30 <= CONTEXT);
    for (part, there) in [
        ("Rules.", true),
        ("old answer", false),
        ("the question", true),
        ("found 0", false),
        ("found 7", true),
    ] {
        assert_eq!(text.contains(part), there, "{part}");
    }
}

#[test]
fn every_protocol_that_has_the_choice_takes_it() {
    let place = Place::new();
    let whole = conversation();
    let responses = json!({ "input": whole, "max_output_tokens": 4, "truncation": "auto" });
    let reply = place.ok("/v1/responses", &responses);
    assert_eq!(reply["truncation"], "auto");
    assert!(reply["truncated_messages"].as_u64().unwrap() > 0);
    let ollama =
        json!({ "messages": whole, "stream": false, "truncate": true, "options": { "num_predict": 4 } });
    assert_eq!(place.ok("/api/chat", &ollama)["truncated_messages"], reply["truncated_messages"]);
    let refused = json!({ "messages": whole, "stream": false, "options": { "num_predict": 4 } });
    assert_eq!(place.post("/api/chat", &refused).status, 400);
    // A model's own default, which a request may take back.
    let (spec, _) = tiny_spec("tiny", 4);
    let spec = ModelSpec { preset: Preset { truncate: true, ..Preset::default() }, ..spec };
    let place = Place::serving(vec![spec], ServerOptions::default());
    assert!(place.ok("/v1/chat/completions", &chat(&whole, json!({})))["truncated_messages"].is_u64());
    let back = chat(&whole, json!({ "truncation": "disabled" }));
    assert_eq!(place.post("/v1/chat/completions", &back).status, 400);
}

#[test]
fn a_text_loses_what_stands_behind_its_first_tokens() {
    let place = Place::new();
    let prompt: Vec<u32> = (0..5000).map(|i| 97 + i * i % 26).collect();
    let body = |prompt: &[u32], more: Value| {
        let mut body = json!({ "prompt": prompt, "n_predict": 20, "seed": 2, "ignore_eos": true });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    assert_eq!(place.post("/completion", &body(&prompt, json!({}))).status, 400);
    let cut = place.ok("/completion", &body(&prompt, json!({ "truncation": "auto", "n_keep": 10 })));
    let left = [&prompt[..10], &prompt[5000 - (CONTEXT - 20 - 10)..]].concat();
    let by_hand = place.ok("/completion", &body(&left, json!({})));
    assert_eq!((&cut["content"], &cut["truncated"]), (&by_hand["content"], &json!(true)));
    assert_eq!((&cut["tokens_evaluated"], &by_hand["truncated"]), (&json!(CONTEXT - 20), &json!(false)));
    let openai = json!({ "prompt": prompt, "max_tokens": 20, "truncation": "auto" });
    assert_eq!(place.ok("/v1/completions", &openai)["truncated_tokens"], 5000 - (CONTEXT - 20));
    // An answer beyond the context ends there, or goes on.
    let long = |more: Value| {
        let mut body = body(&prompt[..100], more);
        body["n_predict"] = 5000.into();
        place.ok("/completion", &body)
    };
    let ends = long(json!({}));
    assert_eq!((&ends["tokens_predicted"], &ends["truncated"]), (&json!(CONTEXT + 1 - 100), &json!(false)));
    let slides = long(json!({ "truncation": "auto", "n_keep": -1 }));
    assert_eq!((&slides["tokens_predicted"], &slides["truncated"]), (&json!(5000), &json!(true)));
    // Up to there they are the same.
    let begin = ends["content"].as_str().unwrap();
    assert!(slides["content"].as_str().unwrap().starts_with(begin.trim_end_matches('\u{fffd}')));
    place.await_metric("wootz:kv_blocks_used", 0.0);
}
