//! The other protocols: Anthropic's, llama.cpp's, Ollama's, and OpenAI's responses.

use serde_json::{Value, json};

use crate::place::Place;

fn named_events(text: &str) -> Vec<(String, Value)> {
    let blocks = text.split("\n\n").filter_map(|block| block.strip_prefix("event: "));
    blocks
        .map(|block| {
            let (name, data) = block.split_once("\ndata: ").unwrap();
            (name.to_owned(), serde_json::from_str(data).unwrap())
        })
        .collect()
}

#[test]
fn anthropic_messages_stream_in_blocks() {
    let place = Place::new();
    let body = json!({
        "model": "tiny", "max_tokens": 20, "system": [{ "type": "text", "text": "be brief" }], "seed": 4,
        "messages": [{ "role": "user", "content": [{ "type": "text", "text": "hello" }] }], "ignore_eos": true,
    });
    let whole = place.ok("/v1/messages", &body);
    assert_eq!((&whole["type"], &whole["stop_reason"]), (&json!("message"), &json!("max_tokens")));
    let text = whole["content"][0]["text"].as_str().unwrap();
    assert_eq!(whole["usage"]["output_tokens"], 20);
    let mut stream = body.clone();
    stream["stream"] = true.into();
    let events = named_events(&place.post("/v1/messages", &stream).text());
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[..3], ["message_start", "ping", "content_block_start"]);
    assert_eq!(names[names.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    assert!(events.iter().all(|(name, event)| event["type"] == name.as_str()));
    let streamed: String = events.iter().filter_map(|(_, e)| e["delta"]["text"].as_str()).collect();
    assert_eq!(streamed, text);
    let count = place.ok("/v1/messages/count_tokens", &body);
    let usage = &whole["usage"];
    let prompt = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(count["input_tokens"], prompt);
}

#[test]
fn anthropic_tools_are_called_and_answered() {
    let place = Place::new();
    let schema = json!({ "type": "object", "properties": { "on": { "type": "boolean" } }, "required": ["on"], "additionalProperties": false });
    let body = json!({
        "max_tokens": 200, "seed": 1,
        "tools": [{ "name": "lamp", "description": "switch", "input_schema": schema }],
        "tool_choice": { "type": "tool", "name": "lamp", "disable_parallel_tool_use": true },
        "messages": [
            { "role": "user", "content": "on" },
            { "role": "assistant", "content": [{ "type": "tool_use", "id": "t1", "name": "lamp", "input": { "on": true } }] },
            { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t1", "content": "done" }, { "type": "text", "text": "off" }] },
        ],
    });
    let whole = place.ok("/v1/messages", &body);
    assert_eq!(whole["stop_reason"], "tool_use");
    let call = &whole["content"][0];
    assert_eq!((&call["type"], &call["name"]), (&json!("tool_use"), &json!("lamp")));
    assert!(call["input"]["on"].is_boolean());
    let mut stream = body;
    stream["stream"] = true.into();
    let events = named_events(&place.post("/v1/messages", &stream).text());
    let input: String = events.iter().filter_map(|(_, e)| e["delta"]["partial_json"].as_str()).collect();
    assert_eq!(serde_json::from_str::<Value>(&input).unwrap(), call["input"]);
    let wrong = |body: Value| {
        let reply = place.post("/v1/messages", &body);
        assert_eq!(reply.status, 400);
        reply.json()["error"]["message"].as_str().unwrap().to_owned()
    };
    let image = json!([{ "type": "image", "source": {} }]);
    assert!(
        wrong(json!({ "messages": [{ "role": "user", "content": image }] }))
            .starts_with("`messages[0].content[0]` is not supported")
    );
    assert!(
        wrong(json!({ "messages": [{ "role": "tool", "content": "x" }] })).starts_with("`messages[0].role`")
    );
}

#[test]
fn native_completions_tell_all_about_themselves() {
    let place = Place::new();
    let body = json!({ "prompt": "abc", "n_predict": 6, "seed": 1, "ignore_eos": true, "n_probs": 2, "return_tokens": true });
    let whole = place.ok("/completion", &body);
    assert_eq!((&whole["stop_type"], &whole["tokens_predicted"]), (&json!("limit"), &json!(6)));
    assert_eq!(whole["tokens"].as_array().unwrap().len(), 6);
    let probabilities = whole["completion_probabilities"].as_array().unwrap();
    assert_eq!((probabilities.len(), probabilities[0]["top_logprobs"].as_array().unwrap().len()), (6, 2));
    assert_eq!(whole["generation_settings"]["seed"], 1);
    let mut stream = body.clone();
    stream["stream"] = true.into();
    let events = place.events("/completion", &stream);
    let text: String = events.iter().map(|e| e["content"].as_str().unwrap()).collect();
    assert_eq!(text, whole["content"].as_str().unwrap());
    assert_eq!(events.last().unwrap()["stop"], true);
    let mut after = body.clone();
    after["post_sampling_probs"] = true.into();
    let after = place.ok("/completion", &after);
    assert!(after["completion_probabilities"][0]["prob"].as_f64().unwrap() > 0.0);
    let nothing = place.ok("/completion", &json!({ "prompt": "abc", "n_predict": 0 }));
    assert_eq!((&nothing["content"], &nothing["tokens_predicted"]), (&json!(""), &json!(0)));
    let only = place.ok("/completion", &json!({ "prompt": [97, "bc"], "n_predict": 1, "response_fields": ["tokens_evaluated", "generation_settings/seed"], "seed": 9 }));
    assert_eq!(only, json!({ "tokens_evaluated": 3, "seed": 9 }));
    let several = place.ok("/completion", &json!({ "prompt": ["a", "b"], "n_predict": 1 }));
    assert_eq!(several.as_array().unwrap().len(), 2);
    assert_eq!(
        place.refused("/infill", &json!({ "input_prefix": "a", "input_suffix": "b" })).1,
        "input_suffix"
    );
}

#[test]
fn tokens_go_there_and_back() {
    let place = Place::new();
    let tokens = place.ok("/tokenize", &json!({ "content": "the é<|im_end|>" }));
    let ids = tokens["tokens"].as_array().unwrap();
    assert_eq!(ids.last().unwrap(), 258);
    let text = place.ok("/detokenize", &json!({ "tokens": ids }));
    assert_eq!(text["content"], "the é<|im_end|>");
    let plain = place.ok("/tokenize", &json!({ "content": "<|im_end|>", "parse_special": false }));
    assert_eq!(plain["tokens"].as_array().unwrap().len(), 10);
    let pieces = place.ok("/tokenize", &json!({ "content": "é", "with_pieces": true }));
    assert_eq!(pieces["tokens"][0]["piece"], json!([0xc3]));
    assert_eq!(place.refused("/detokenize", &json!({ "tokens": [5, -1] })).1, "tokens[1]");
}

#[test]
fn ollama_chats_and_generates() {
    let place = Place::new();
    let options = json!({ "seed": 3, "num_predict": 8, "ignore_eos": true });
    let body = json!({ "model": "tiny", "messages": [{ "role": "user", "content": "hi" }], "options": options, "stream": false });
    let whole = place.ok("/api/chat", &body);
    assert_eq!(
        (&whole["done"], &whole["done_reason"], &whole["eval_count"]),
        (&json!(true), &json!("length"), &json!(8))
    );
    let mut stream = body.clone();
    stream.as_object_mut().unwrap().remove("stream");
    let reply = place.post("/api/chat", &stream);
    assert_eq!(reply.header("content-type"), "application/x-ndjson");
    let lines: Vec<Value> = reply.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let text: String = lines.iter().map(|l| l["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(text, whole["message"]["content"].as_str().unwrap());
    let generated =
        place.ok("/api/generate", &json!({ "prompt": "hi", "options": options, "stream": false }));
    assert_eq!(generated["response"], whole["message"]["content"]);
    let raw = place
        .ok("/api/generate", &json!({ "prompt": "hi", "raw": true, "options": options, "stream": false }));
    assert_eq!(raw["prompt_eval_count"], 2);
    let format = json!({ "type": "object", "properties": { "a": { "type": "boolean" } }, "required": ["a"], "additionalProperties": false });
    let shaped =
        place.ok("/api/chat", &json!({ "messages": body["messages"], "format": format, "stream": false }));
    let value: Value = serde_json::from_str(shaped["message"]["content"].as_str().unwrap()).unwrap();
    assert!(value["a"].is_boolean());
    let wrong = place.post("/api/chat", &json!({ "messages": body["messages"], "options": { "top_p": 7 } }));
    assert_eq!(
        (wrong.status, wrong.json()),
        (400, json!({ "error": "`options.top_p`: expected a number from 0 to 1, found 7" }))
    );
    let show = place.ok("/api/show", &json!({ "model": "tiny" }));
    assert_eq!(show["details"]["family"], "llama");
    assert_eq!(place.post("/api/show", &json!({ "model": "other" })).status, 404);
}

#[test]
fn responses_are_items() {
    let place = Place::new();
    let body = json!({ "input": "hi", "instructions": "be brief", "max_output_tokens": 12, "seed": 6, "ignore_eos": true });
    let whole = place.ok("/v1/responses", &body);
    assert_eq!((&whole["object"], &whole["status"]), (&json!("response"), &json!("incomplete")));
    assert_eq!(whole["incomplete_details"]["reason"], "max_output_tokens");
    let text = whole["output"][0]["content"][0]["text"].as_str().unwrap();
    let mut stream = body.clone();
    stream["stream"] = true.into();
    let events = named_events(&place.post("/v1/responses", &stream).text());
    let numbers: Vec<u64> = events.iter().map(|(_, e)| e["sequence_number"].as_u64().unwrap()).collect();
    assert!(numbers.iter().enumerate().all(|(i, n)| *n == i as u64));
    let deltas = events.iter().filter(|(name, _)| name == "response.output_text.delta");
    let streamed: String = deltas.map(|(_, e)| e["delta"].as_str().unwrap()).collect();
    assert_eq!(streamed, text);
    let (last, event) = events.last().unwrap();
    assert_eq!(
        (last.as_str(), &event["response"]["output"][0]["content"][0]["text"]),
        ("response.incomplete", &json!(text))
    );
    let tools = json!([{ "type": "function", "name": "f", "parameters": { "type": "object", "properties": {}, "additionalProperties": false } }]);
    let items = json!([
        { "role": "user", "content": [{ "type": "input_text", "text": "go" }] },
        { "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}" },
        { "type": "function_call_output", "call_id": "c1", "output": "ok" },
    ]);
    let called = place.ok("/v1/responses", &json!({ "input": items, "tools": tools, "tool_choice": "required", "parallel_tool_calls": false, "max_output_tokens": 200 }));
    assert_eq!(called["status"], "completed");
    assert_eq!(
        (&called["output"][0]["type"], &called["output"][0]["arguments"]),
        (&json!("function_call"), &json!("{}"))
    );
    assert_eq!(
        place.refused("/v1/responses", &json!({ "input": "x", "previous_response_id": "r" })).1,
        "previous_response_id"
    );
}
