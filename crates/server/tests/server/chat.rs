//! OpenAI's chat and completions.

use serde_json::{Value, json};

use crate::place::{CONTEXT, Place};

fn hello() -> Value {
    json!({ "messages": [{ "role": "user", "content": "hello" }], "max_tokens": 24, "seed": 5, "ignore_eos": true })
}

fn with(mut body: Value, more: Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn content(events: &[Value], index: u64) -> String {
    let choices = events.iter().filter_map(|e| e["choices"].get(0)).filter(|c| c["index"] == index);
    choices.filter_map(|c| c["delta"]["content"].as_str()).collect()
}

#[test]
fn a_stream_says_the_same_as_a_whole_answer() {
    let place = Place::new();
    let whole = place.ok("/v1/chat/completions", &hello());
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(!text.is_empty());
    assert_eq!(whole["object"], "chat.completion");
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(whole["usage"]["completion_tokens"], 24);
    let stream = with(hello(), json!({ "stream": true, "stream_options": { "include_usage": true } }));
    let events = place.events("/v1/chat/completions", &stream);
    assert_eq!(content(&events, 0), text);
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let (usage, finish) = (&events[events.len() - 1], &events[events.len() - 2]);
    assert_eq!(finish["choices"][0]["finish_reason"], "length");
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["total_tokens"], whole["usage"]["total_tokens"]);
    let reply = place.post("/v1/chat/completions", &stream);
    assert!(reply.text().ends_with("data: [DONE]\n\n"));
    // Without the option there is no chunk of usage.
    let events = place.events("/v1/chat/completions", &with(hello(), json!({ "stream": true })));
    assert!(events.iter().all(|e| e.get("usage").is_none()));
}

#[test]
fn prompts_seen_before_are_cached() {
    let place = Place::new();
    let long = json!({ "messages": [{ "role": "user", "content": "word ".repeat(40) }], "max_tokens": 2 });
    let first = place.ok("/v1/chat/completions", &long);
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let again = place.ok("/v1/chat/completions", &long);
    let tokens = again["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], tokens - 1);
    let without = place.ok("/v1/chat/completions", &with(long, json!({ "cache_prompt": false })));
    assert_eq!(without["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert!(without["choices"][0]["message"]["content"].is_string());
}

#[test]
fn several_answers_differ_and_share_their_prompt() {
    let place = Place::new();
    let body = with(hello(), json!({ "n": 3, "messages": [{ "role": "user", "content": "a".repeat(100) }] }));
    let reply = place.ok("/v1/chat/completions", &body);
    let texts: Vec<&str> = reply["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["message"]["content"].as_str().unwrap())
        .collect();
    assert_eq!(texts.len(), 3);
    assert!(texts[0] != texts[1] && texts[1] != texts[2]);
    assert_eq!(reply["usage"]["completion_tokens"], 72);
    let events = place.events("/v1/chat/completions", &with(body.clone(), json!({ "stream": true })));
    for (index, text) in texts.iter().enumerate() {
        assert_eq!(content(&events, index as u64), *text);
    }
    // Only the first computes the prompt.
    let computed =
        place.metric("wootz:prompt_tokens_total") - place.metric("wootz:prompt_cached_tokens_total");
    let prompt = reply["usage"]["prompt_tokens"].as_f64().unwrap();
    assert!(computed < 2.0 * prompt, "{computed} of {prompt}");
    // The second answer is that of the next seed.
    let second = place.ok("/v1/chat/completions", &with(body, json!({ "n": 1, "seed": 6 })));
    assert_eq!(second["choices"][0]["message"]["content"], texts[1]);
}

#[test]
fn log_probabilities_are_those_of_a_distribution() {
    let place = Place::new();
    let body = with(hello(), json!({ "logprobs": true, "top_logprobs": 3, "max_tokens": 4 }));
    let reply = place.ok("/v1/chat/completions", &body);
    let list = reply["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(list.len(), 4);
    for entry in list {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        let values: Vec<f64> = top.iter().map(|t| t["logprob"].as_f64().unwrap()).collect();
        assert!(
            values.is_sorted_by(|a, b| a >= b) && values.iter().map(|v| v.exp()).sum::<f64>() <= 1.0 + 1e-4
        );
        assert!(entry["bytes"].is_array() && entry["logprob"].as_f64().unwrap() <= 0.0);
    }
    let events = place.events("/v1/chat/completions", &with(body, json!({ "stream": true })));
    let streamed: Vec<Value> = events
        .iter()
        .filter_map(|e| e["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(&streamed, list);
    let (message, param) =
        place.refused("/v1/chat/completions", &with(hello(), json!({ "top_logprobs": 3 })));
    assert_eq!(
        (message.as_str(), param),
        ("`top_logprobs`: expected `logprobs`: true beside it", json!("top_logprobs"))
    );
}

#[test]
fn biases_bans_and_stops_are_kept() {
    let place = Place::new();
    // Token 65 is the byte A.
    let body = with(hello(), json!({ "logit_bias": { "65": 100 }, "max_tokens": 5 }));
    let forced = place.ok("/v1/chat/completions", &body);
    assert_eq!(forced["choices"][0]["message"]["content"], "AAAAA");
    let body = with(body, json!({ "stop": ["AAA"] }));
    let stopped = place.ok("/v1/chat/completions", &body);
    assert_eq!(stopped["choices"][0]["message"]["content"], "");
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let pairs = with(hello(), json!({ "logit_bias": [[65, false], [66, 100], ["B", 0]], "max_tokens": 2 }));
    assert_eq!(place.ok("/v1/chat/completions", &pairs)["choices"][0]["message"]["content"], "BB");
}

#[test]
fn wrong_fields_are_named() {
    let place = Place::new();
    let refused = |more: Value| place.refused("/v1/chat/completions", &with(hello(), more));
    let param = |more: Value| refused(more).1;
    assert_eq!(refused(json!({ "n": 0 })).0, "`n`: expected a whole number from 1 to 64, found 0");
    assert_eq!(refused(json!({ "top_p": 1.5 })).0, "`top_p`: expected a number from 0 to 1, found 1.5");
    assert_eq!(param(json!({ "messages": [] })), "messages");
    assert_eq!(param(json!({ "messages": "hello" })), "messages");
    assert_eq!(param(json!({ "messages": [{ "role": "king", "content": "x" }] })), "messages[0].role");
    assert_eq!(param(json!({ "messages": [{ "role": "user", "content": 1 }] })), "messages[0].content");
    let image = json!([{ "type": "image_url", "image_url": { "url": "data:" } }]);
    let (message, at) = refused(json!({ "messages": [{ "role": "user", "content": image }] }));
    assert_eq!(at, "messages[0].content[0]");
    assert!(message.contains("read text only"), "{message}");
    assert_eq!(param(json!({ "stream_options": { "include_usage": 1 } })), "stream_options.include_usage");
    assert_eq!(param(json!({ "logit_bias": { "x": 1 } })), "logit_bias");
    assert_eq!(param(json!({ "logit_bias": { "99999": 1 } })), "logit_bias");
    assert_eq!(param(json!({ "max_tokens": 0 })), "max_tokens");
    assert_eq!(param(json!({ "modalities": ["audio"] })), "modalities");
    assert_eq!(param(json!({ "samplers": ["luck"] })), "samplers");
    assert_eq!(param(json!({ "repeat_penalty": 0 })), "repeat_penalty");
    // What is harmless or unknown passes.
    place.ok(
        "/v1/chat/completions",
        &with(hello(), json!({ "modalities": ["text"], "store": true, "new": 1, "n": null })),
    );
}

#[test]
fn a_prompt_beyond_the_context_is_refused_with_the_numbers() {
    let place = Place::new();
    let body = json!({ "messages": [{ "role": "user", "content": "a".repeat(CONTEXT) }] });
    let reply = place.post("/v1/chat/completions", &body);
    assert_eq!(reply.status, 400);
    let error = &reply.json()["error"];
    assert_eq!(error["code"], "context_length_exceeded");
    assert_eq!(error["n_ctx"], CONTEXT);
    assert!(error["n_prompt_tokens"].as_u64().unwrap() > CONTEXT as u64);
}

#[test]
fn an_answer_that_was_begun_goes_on() {
    let place = Place::new();
    let messages = |last: Value| json!([{ "role": "user", "content": "hi" }, last]);
    let prompt =
        |messages: Value| place.ok("/apply-template", &json!({ "messages": messages }))["prompt"].clone();
    let begun = prompt(messages(json!({ "role": "assistant", "content": "It is" })));
    assert_eq!(begun, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nIt is");
    let parts = prompt(
        json!([{ "role": "user", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] }]),
    );
    assert_eq!(parts, "<|im_start|>user\na\nb<|im_end|>\n<|im_start|>assistant\n");
}

#[test]
fn completions_continue_texts() {
    let place = Place::new();
    let body = json!({ "prompt": "abc", "max_tokens": 6, "seed": 1, "ignore_eos": true });
    let one = place.ok("/v1/completions", &body);
    let text = one["choices"][0]["text"].as_str().unwrap();
    assert_eq!(
        (one["object"].as_str(), one["choices"][0]["finish_reason"].as_str()),
        (Some("text_completion"), Some("length"))
    );
    // The same prompt as tokens, and among others.
    let tokens = place.ok("/v1/completions", &with(body.clone(), json!({ "prompt": [97, 98, 99] })));
    assert_eq!(tokens["choices"][0]["text"], text);
    let several = place.ok("/v1/completions", &with(body.clone(), json!({ "prompt": ["x", "abc"], "n": 2 })));
    assert_eq!(several["choices"].as_array().unwrap().len(), 4);
    assert_eq!(several["choices"][2]["text"], text);
    assert_eq!(several["usage"]["prompt_tokens"], 4);
    let echo = place.ok("/v1/completions", &with(body.clone(), json!({ "echo": true })));
    assert_eq!(echo["choices"][0]["text"], format!("abc{text}"));
    let events = place.events("/v1/completions", &with(body.clone(), json!({ "stream": true })));
    let streamed: String = events.iter().map(|e| e["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(streamed, text);
    let legacy = place.ok("/v1/completions", &with(body.clone(), json!({ "logprobs": 2 })));
    let logprobs = &legacy["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"].as_array().unwrap().len(), 6);
    assert_eq!(logprobs["text_offset"][0], 0);
    let best = place.ok("/v1/completions", &with(body.clone(), json!({ "best_of": 4, "n": 2 })));
    assert_eq!(best["choices"].as_array().unwrap().len(), 2);
    assert_eq!(place.refused("/v1/completions", &json!({})).1, "prompt");
    assert_eq!(
        place.refused("/v1/completions", &with(body.clone(), json!({ "prompt": [99999] }))).0,
        "token 99999 is not in the vocabulary of 288 tokens"
    );
    assert_eq!(
        place.refused("/v1/completions", &with(body.clone(), json!({ "prompt": "" }))).0,
        "the prompt has no tokens"
    );
    assert_eq!(place.refused("/v1/completions", &with(body, json!({ "suffix": "x" }))).1, "suffix");
}
