//! Answers that follow schemas, grammars and patterns, and calls of tools.

use serde_json::{Value, json};

use crate::place::Place;

fn chat(place: &Place, more: Value) -> Value {
    let mut body = json!({
        "messages": [{ "role": "user", "content": "go" }],
        "max_tokens": 400,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1,
        "min_p": 0,
    });
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body["seed"] = body.get("seed").cloned().unwrap_or(json!(3));
    place.ok("/v1/chat/completions", &body)
}

/// The text of a whole answer; answers of a random model are often cut at their limit.
fn text(reply: &Value) -> Option<String> {
    let choice = &reply["choices"][0];
    (choice["finish_reason"] == "stop").then(|| choice["message"]["content"].as_str().unwrap().to_owned())
}

#[test]
fn answers_follow_a_schema() {
    let place = Place::new();
    let schema = json!({
        "type": "object",
        "properties": {
            "size": { "type": "integer", "minimum": 1, "maximum": 99 },
            "kind": { "enum": ["big", "small"] },
            "flags": { "type": "array", "items": { "type": "boolean" }, "minItems": 2, "maxItems": 2 },
        },
        "required": ["size", "kind", "flags"],
        "additionalProperties": false,
    });
    for seed in 0..5 {
        for more in [
            json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "x", "schema": schema } } }),
            json!({ "json_schema": schema }),
        ] {
            let mut more = more;
            more["seed"] = seed.into();
            let reply = chat(&place, more);
            let text = text(&reply).unwrap_or_else(|| panic!("a schema of bounded size ends: {reply}"));
            let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
            assert!((1..=99).contains(&value["size"].as_i64().unwrap()), "{text}");
            assert!(["big", "small"].contains(&value["kind"].as_str().unwrap()), "{text}");
            assert_eq!(value["flags"].as_array().unwrap().len(), 2, "{text}");
            assert_eq!(value.as_object().unwrap().len(), 3, "{text}");
        }
    }
}

#[test]
fn answers_follow_patterns_and_grammars() {
    let place = Place::new();
    for seed in 0..5 {
        let pattern = chat(&place, json!({ "regex": "[a-c]{3}-(x|yy)", "seed": seed }));
        let word = text(&pattern).unwrap();
        assert!(word.len() >= 5 && word.as_bytes()[..3].iter().all(|b| (b'a'..=b'c').contains(b)), "{word}");
        assert!(word.ends_with("-x") || word.ends_with("-yy"), "{word}");
        let gbnf = "root ::= list\nlist ::= \"(\" (list | [0-9]) \")\"\n";
        let nested = chat(&place, json!({ "grammar": gbnf, "seed": seed }));
        if let Some(word) = text(&nested) {
            let inner = word.trim_start_matches('(').trim_end_matches(')');
            assert!(inner.len() == 1 && inner.as_bytes()[0].is_ascii_digit(), "{word}");
            assert_eq!(word.matches('(').count(), word.matches(')').count(), "{word}");
        }
        let lark = chat(&place, json!({ "grammar": "start: \"yes\" | \"no\"", "seed": seed }));
        assert!(["yes", "no"].contains(&text(&lark).unwrap().as_str()), "{lark}");
        let completion = place.ok(
            "/completion",
            &json!({ "prompt": "a", "grammar": "root ::= (\"ab\" | \"é\") \".\"", "seed": seed, "n_predict": 9 }),
        );
        assert!(["ab.", "é."].contains(&completion["content"].as_str().unwrap()), "{completion}");
        assert_eq!(completion["stop_type"], "eos");
    }
}

#[test]
fn any_object_is_an_object() {
    let place = Place::new();
    let mut whole = 0;
    for seed in 0..6 {
        let reply = chat(&place, json!({ "response_format": { "type": "json_object" }, "seed": seed }));
        if let Some(text) = text(&reply) {
            match serde_json::from_str::<Value>(&text) {
                Ok(value) => assert!(value.is_object(), "{text}"),
                // JSON has numbers that no double has.
                Err(e) => assert!(e.to_string().contains("number out of range"), "{e}: {text}"),
            }
            whole += 1;
        }
    }
    assert!(whole > 0);
}

#[test]
fn what_cannot_be_kept_is_refused() {
    let place = Place::new();
    let refused = |more: Value| {
        let mut body = json!({ "messages": [{ "role": "user", "content": "go" }], "max_tokens": 9 });
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        place.refused("/v1/chat/completions", &body)
    };
    let schema = |schema: Value| refused(json!({ "json_schema": schema }));
    for bad in [
        json!({ "type": "nothing" }),
        json!({ "type": "object", "properties": { "a": { "$ref": "#/nowhere" } }, "required": ["a"] }),
        json!({ "type": "string", "pattern": "(" }),
        json!({ "not": { "pattern": "a" } }),
        json!({ "type": "array", "uniqueItems": true, "contains": { "type": "integer" } }),
    ] {
        let (message, param) = schema(bad.clone());
        assert_eq!(param, "json_schema", "{bad}");
        assert!(message.starts_with("`json_schema` cannot be honoured: "), "{message}");
    }
    assert_eq!(refused(json!({ "regex": "(" })).1, "regex");
    assert_eq!(
        refused(json!({ "grammar": "root ::= missing" })).0,
        "`grammar`: expected a grammar: the rule root uses missing, which is not defined"
    );
    assert_eq!(refused(json!({ "grammar": "start: missing" })).1, "grammar");
    assert_eq!(refused(json!({ "regex": "a", "grammar": "start: \"a\"" })).1, "regex");
    let format = json!({ "response_format": { "type": "yaml" } });
    assert_eq!(refused(format).1, "response_format.type");
}

fn tool(name: &str, parameters: Value) -> Value {
    json!({ "type": "function", "function": { "name": name, "description": "does it", "parameters": parameters } })
}

fn weather() -> Value {
    tool(
        "get_weather",
        json!({
            "type": "object",
            "properties": { "place": { "$ref": "#/$defs/place" }, "days": { "type": "integer", "maximum": 9, "minimum": 1 } },
            "required": ["place", "days"],
            "additionalProperties": false,
            "$defs": { "place": { "enum": ["Bern", "Oslo"] } },
        }),
    )
}

#[test]
fn a_call_that_must_be_is_made_and_follows_its_schema() {
    let place = Place::new();
    let time = tool("get_time", json!({ "type": "object", "properties": {}, "additionalProperties": false }));
    for (choice, only) in [
        (json!("required"), None),
        (json!({ "type": "function", "function": { "name": "get_weather" } }), Some("get_weather")),
    ] {
        for seed in 0..4 {
            let more = json!({
                "tools": [weather(), time], "tool_choice": choice, "seed": seed, "parallel_tool_calls": false,
            });
            let reply = chat(&place, more);
            let choice = &reply["choices"][0];
            assert_eq!(choice["finish_reason"], "tool_calls", "{reply}");
            let calls = choice["message"]["tool_calls"].as_array().unwrap();
            assert_eq!(calls.len(), 1);
            assert!(calls[0]["id"].as_str().is_some_and(|id| !id.is_empty()));
            let name = calls[0]["function"]["name"].as_str().unwrap();
            assert!(only.is_none_or(|only| only == name));
            let arguments: Value =
                serde_json::from_str(calls[0]["function"]["arguments"].as_str().unwrap()).unwrap();
            match name {
                "get_weather" => {
                    assert!(["Bern", "Oslo"].contains(&arguments["place"].as_str().unwrap()));
                    assert!((1..=9).contains(&arguments["days"].as_i64().unwrap()));
                }
                other => assert_eq!((other, &arguments), ("get_time", &json!({}))),
            }
        }
    }
}

#[test]
fn sixty_tools_stream_their_arguments() {
    let place = Place::new();
    let nested = |i: usize| {
        json!({
            "type": "object",
            "properties": { "edit": { "type": "object", "properties": {
                "line": { "type": "integer", "minimum": 0, "maximum": 99 },
                "mode": { "enum": [format!("m{i}"), "all"] },
            }, "required": ["line", "mode"], "additionalProperties": false } },
            "required": ["edit"],
            "additionalProperties": false,
        })
    };
    let tools: Vec<Value> = (0..60).map(|i| tool(&format!("tool_{i}"), nested(i))).collect();
    let body = json!({
        "messages": [{ "role": "user", "content": "go" }],
        "tools": tools,
        "tool_choice": "required",
        "parallel_tool_calls": false,
        "max_tokens": 300,
        "stream": true,
        "seed": 2,
    });
    // Told in words, so many tools do not fit the tiny context.
    assert_eq!(place.post("/v1/chat/completions", &body).json()["error"]["code"], "context_length_exceeded");
    let mut body = body;
    let short: Vec<Value> = tools
        .iter()
        .map(|t| json!({ "type": "function", "function": { "name": t["function"]["name"] } }))
        .collect();
    body["tools"] = short.into();
    let events = place.events("/v1/chat/completions", &body);
    let calls: Vec<&Value> =
        events.iter().filter_map(|e| e["choices"][0]["delta"]["tool_calls"].get(0)).collect();
    let name = calls[0]["function"]["name"].as_str().unwrap();
    assert!(name.starts_with("tool_"), "{name}");
    assert!(calls.iter().all(|c| c["index"] == 0));
}

#[test]
fn strict_tools_leave_words_free() {
    let place = Place::new();
    let mut strict = weather();
    strict["function"]["strict"] = true.into();
    for seed in 0..3 {
        let more = json!({ "tools": [strict], "seed": seed, "max_tokens": 60, "ignore_eos": true });
        let reply = chat(&place, more);
        assert_eq!(reply["choices"][0]["finish_reason"], "length");
    }
}

#[test]
fn tools_and_choices_are_checked() {
    let place = Place::new();
    let param = |more: Value| {
        let mut body = json!({ "messages": [{ "role": "user", "content": "go" }], "max_tokens": 9 });
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        place.refused("/v1/chat/completions", &body).1
    };
    assert_eq!(param(json!({ "tools": [{ "type": "function" }] })), "tools[0].function");
    assert_eq!(param(json!({ "tools": [weather()], "tool_choice": "any" })), "tool_choice");
    assert_eq!(
        param(
            json!({ "tools": [weather()], "tool_choice": { "type": "function", "function": { "name": "x" } } })
        ),
        "tool_choice"
    );
    assert_eq!(param(json!({ "tool_choice": "required" })), "tools");
    let bad =
        tool("x", json!({ "type": "object", "properties": { "a": { "type": "what" } }, "required": ["a"] }));
    assert_eq!(param(json!({ "tools": [bad], "tool_choice": "required" })), "tools");
    assert_eq!(param(json!({ "tools": [weather()], "regex": "a" })), "regex");
}

/// A template that writes tools itself and has the marks of some format in it.
fn template(marks: &str) -> String {
    format!(
        "{{% if tools %}}{{{{ tools | tojson }}}}{marks}{{% endif %}}{{% for m in messages %}}<|im_start|>{{{{ m.role }}}}\n\
         {{{{ m.content }}}}<|im_end|>\n{{% endfor %}}{{% if add_generation_prompt %}}<|im_start|>assistant\n{{% endif %}}"
    )
}

#[test]
fn calls_follow_their_schema_in_every_format() {
    let formats = [
        "<tool_call>",
        "<start_of_turn>",
        "<|start_header_id|>",
        "[TOOL_CALLS]",
        "[TOOL_CALLS][ARGS]",
        "<｜tool▁calls▁begin｜>",
        "<|tool_calls_section_begin|>",
        "<|start_of_role|><|tool_call|>",
        "<|start_of_role|>",
        "<TOOLCALL>",
        "<tool_calls>[",
        "<|start_header_id|><function=",
        ">>>all",
        "<|channel|><|start|>",
    ];
    for marks in formats {
        let place = Place::templated(&template(marks));
        for strict in [false, true] {
            let mut tool = weather();
            let mut more = json!({ "parallel_tool_calls": false, "seed": 1, "max_tokens": 600 });
            if strict {
                // With the free choice the model may just talk, but not call as it likes.
                tool["function"]["strict"] = true.into();
                more["max_tokens"] = 30.into();
            } else {
                more["tool_choice"] = "required".into();
            }
            more["tools"] = json!([tool]);
            let reply = chat(&place, more);
            let choice = &reply["choices"][0];
            if strict {
                assert!(choice["message"].is_object(), "{marks}: {reply}");
                continue;
            }
            assert_eq!(choice["finish_reason"], "tool_calls", "{marks}: {reply}");
            let call = &choice["message"]["tool_calls"][0]["function"];
            assert_eq!(call["name"], "get_weather", "{marks}");
            let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
            assert!((1..=9).contains(&arguments["days"].as_i64().unwrap()), "{marks}: {arguments}");
        }
    }
    // Formats that are no JSON can be asked for calls, but not be forced to.
    let place = Place::templated(&template("<|tool_call_start|>"));
    chat(&place, json!({ "tools": [weather()], "max_tokens": 5 }));
    let forced = json!({
        "messages": [{ "role": "user", "content": "go" }], "tools": [weather()], "tool_choice": "required",
    });
    let (message, param) = place.refused("/v1/chat/completions", &forced);
    assert_eq!(param, "tool_choice", "{message}");
}

#[test]
fn reasoning_is_told_apart_and_ends_in_time() {
    let thinking = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n\
        {% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}{% endif %}";
    let place = Place::templated(thinking);
    // Printable letters only, so that every token is a character.
    let letters: Vec<Value> =
        (0..288).filter(|id| !(97..=122).contains(id)).map(|id| json!([id, -100])).collect();
    let message = |more: Value| {
        let mut more = more;
        more["max_tokens"] = 60.into();
        chat(&place, more)["choices"][0]["message"].clone()
    };
    let free = message(json!({ "logit_bias": letters, "ignore_eos": true }));
    assert_eq!((free["content"].as_str(), free["reasoning_content"].as_str().unwrap().len()), (Some(""), 60));
    let short = message(json!({ "logit_bias": letters, "ignore_eos": true, "reasoning_budget": 7 }));
    assert_eq!(short["reasoning_content"].as_str().unwrap().len(), 7, "{short}");
    assert!(!short["content"].as_str().unwrap().is_empty(), "{short}");
    let off = message(json!({ "logit_bias": letters, "reasoning_effort": "none", "ignore_eos": true }));
    assert_eq!((off.get("reasoning_content"), off["content"].as_str().unwrap().len()), (None, 60));
    let whole = message(
        json!({ "logit_bias": letters, "reasoning_budget": 3, "reasoning_format": "none", "ignore_eos": true }),
    );
    assert!(whole["content"].as_str().unwrap().contains("</think>"), "{whole}");
    // A schema holds for what follows the reasoning.
    let shaped = message(json!({ "json_schema": { "enum": ["a", "b"] }, "reasoning_budget": 4 }));
    assert!(["\"a\"", "\"b\""].contains(&shaped["content"].as_str().unwrap()), "{shaped}");
    let anthropic = json!({
        "messages": [{ "role": "user", "content": "go" }], "max_tokens": 60, "logit_bias": letters,
        "ignore_eos": true, "thinking": { "type": "enabled", "budget_tokens": 5 },
    });
    let blocks = place.ok("/v1/messages", &anthropic)["content"].clone();
    assert_eq!((&blocks[0]["type"], &blocks[1]["type"]), (&json!("thinking"), &json!("text")));
    assert_eq!(blocks[0]["thinking"].as_str().unwrap().len(), 5);
}
