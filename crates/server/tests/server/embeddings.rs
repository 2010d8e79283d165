//! Embeddings and rankings, with tiny models of random weights.

use std::sync::Arc;

use serde_json::{Value, json};
use wootz::{Context, ContextOptions, Model, ModelOptions};
use wootz_arch::{Setting, TinyModel};
use wootz_quant::WeightType;
use wootz_server::{ModelSpec, Preset, ServerOptions};
use wootz_testkit::tiny;

use crate::place::{Place, tiny_spec};

/// Context of the encoders.
const CONTEXT: usize = 64;

/// A model of a family; all ways of pooling have the same weights.
fn spec(name: &str, family: &'static str, change: fn(TinyModel) -> TinyModel) -> ModelSpec {
    let load = move |memory| {
        let arch = wootz_arch::find(family)?;
        let types = tiny::Types(WeightType::F32, WeightType::F32);
        let bytes = tiny::build_model(arch, &change(arch.tiny()), types, 7);
        let model = Arc::new(Model::from_bytes(bytes, &ModelOptions::default())?);
        let options = ContextOptions {
            context: Some(CONTEXT),
            threads: Some(1),
            sequences: 2,
            memory,
            ..ContextOptions::default()
        };
        Ok(Context::new(model, &options, &mut |_| ())?)
    };
    let source = "(tiny)".to_owned();
    let (name, aliases, preset) = (name.to_owned(), Vec::new(), Preset::default());
    ModelSpec { name, aliases, source, path: None, load: Arc::new(load), preset }
}

fn pooled(tiny: TinyModel, number: u32) -> TinyModel {
    tiny.with("pooling_type", Setting::U32(number))
}

fn place() -> Place {
    let models = vec![
        spec("mean", "bert", |tiny| pooled(tiny, 1)),
        spec("rows", "bert", |tiny| pooled(tiny, 0)),
        spec("ranker", "bert", |tiny| pooled(tiny, 4).with_tensor("cls.weight")),
        spec("judge", "qwen3", |tiny| {
            let labels = Setting::Strs(vec!["yes".into(), "no".into()]);
            let template = Setting::Str("<|im_start|>{query}<|im_end|>{document}<|im_end|>".into());
            pooled(tiny, 4)
                .with("classifier.output_labels", labels)
                .with_key("tokenizer.chat_template.rerank", template)
        }),
        tiny_spec("llama", 1).0,
    ];
    Place::serving(models, ServerOptions::default())
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

fn length(v: &[f64]) -> f64 {
    v.iter().map(|x| x * x).sum::<f64>().sqrt()
}

fn assert_close(a: &[f64], b: &[f64]) {
    assert_eq!(a.len(), b.len());
    let worst = a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
    assert!(worst < 1e-6, "{worst:.1e} apart");
}

/// Numbers of a text in base64, by the standard's definition.
fn from_base64(text: &str) -> Vec<f64> {
    let value = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u8> = text.bytes().filter(|c| *c != b'=').map(value).collect();
    let bits = digits.iter().flat_map(|d| (0..6).rev().map(move |i| (d >> i) & 1)).collect::<Vec<u8>>();
    let bytes: Vec<u8> = bits.chunks_exact(8).map(|b| b.iter().fold(0, |all, bit| all << 1 | bit)).collect();
    bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect()
}

#[test]
fn openai_has_one_normalised_embedding_of_each_input() {
    let place = place();
    let reply =
        place.ok("/v1/embeddings", &json!({ "model": "mean", "input": ["a cat", "a dog!", "a cat"] }));
    assert_eq!((&reply["object"], &reply["model"]), (&json!("list"), &json!("mean")));
    // Letters, and one token at each end.
    assert_eq!(reply["usage"], json!({ "prompt_tokens": 6 + 7 + 6, "total_tokens": 19 }));
    let data = reply["data"].as_array().unwrap();
    let rows: Vec<Vec<f64>> = data.iter().map(|d| numbers(&d["embedding"])).collect();
    assert_eq!(data[2]["index"], 2);
    assert!(rows.iter().all(|row| row.len() == 128 && (length(row) - 1.0).abs() < 1e-6));
    assert!(rows[0] == rows[2] && rows[0] != rows[1]);
    // Alone, as base64, as tokens, cut to fewer dimensions.
    let one = |body: Value| place.ok("/v1/embeddings", &body)["data"][0]["embedding"].clone();
    assert_eq!(numbers(&one(json!({ "model": "mean", "input": "a dog!" }))), rows[1]);
    let base64 = one(json!({ "model": "mean", "input": "a dog!", "encoding_format": "base64" }));
    assert_eq!(from_base64(base64.as_str().unwrap()).len(), 128);
    assert_close(&from_base64(base64.as_str().unwrap()), &rows[1]);
    let tokens = place.ok("/tokenize", &json!({ "model": "mean", "content": "a dog!", "add_special": true }));
    assert_eq!(numbers(&one(json!({ "model": "mean", "input": tokens["tokens"] }))), rows[1]);
    let lists = json!({ "model": "mean", "input": [tokens["tokens"], [5, 6]] });
    assert_eq!(place.ok("/v1/embeddings", &lists)["data"].as_array().unwrap().len(), 2);
    let short = numbers(&one(json!({ "model": "mean", "input": "a dog!", "dimensions": 16 })));
    let expected: Vec<f64> = rows[1][..16].iter().map(|x| x / length(&rows[1][..16])).collect();
    assert_close(&short, &expected);
    let text = place.post("/v1/embeddings", &json!({ "model": "mean", "input": "a" })).text();
    let longest = text.split([',', '[', ']']).filter(|n| n.starts_with("0.0")).map(str::len).max();
    assert!(longest.unwrap() <= 14, "digits that an f32 does not have: {text}");
}

#[test]
fn llama_cpp_has_rows_and_norms_to_choose() {
    let place = place();
    let reply = place.ok("/embedding", &json!({ "model": "mean", "content": "a cat" }));
    let mean = numbers(&reply[0]["embedding"][0]);
    assert!((length(&mean) - 1.0).abs() < 1e-6);
    let plain = json!({ "model": "mean", "content": ["a cat"], "embd_normalize": -1 });
    let plain = numbers(&place.ok("/embeddings", &plain)[0]["embedding"][0]);
    assert_close(&plain.iter().map(|x| x / length(&plain)).collect::<Vec<_>>(), &mean);
    let largest = json!({ "model": "mean", "input": "a cat", "embd_normalize": 0 });
    let largest = numbers(&place.ok("/embedding", &largest)[0]["embedding"][0]);
    assert!((largest.iter().fold(0.0, |m: f64, x| m.max(x.abs())) - 32760.0).abs() < 0.01);
    // A row of each token, whose mean is that of the other model.
    let rows = place.ok("/embedding", &json!({ "model": "rows", "content": "a cat", "embd_normalize": -1 }));
    let rows: Vec<Vec<f64>> = rows[0]["embedding"].as_array().unwrap().iter().map(numbers).collect();
    assert_eq!(rows.len(), 6);
    let sum: Vec<f64> = (0..128).map(|i| rows.iter().map(|r| r[i]).sum::<f64>() / 6.0).collect();
    assert_close(&sum, &plain);
    let message = place.refused("/v1/embeddings", &json!({ "model": "rows", "input": "a" })).0;
    assert!(message.contains("an embedding of each token"), "{message}");
}

#[test]
fn ollama_embeds_by_both_of_its_endpoints() {
    let place = place();
    let reply =
        place.ok("/api/embed", &json!({ "model": "mean", "input": ["a cat", "b"], "dimensions": 32 }));
    assert_eq!((&reply["model"], &reply["prompt_eval_count"]), (&json!("mean"), &json!(9)));
    let rows: Vec<Vec<f64>> = reply["embeddings"].as_array().unwrap().iter().map(numbers).collect();
    assert!(rows.len() == 2 && rows.iter().all(|r| r.len() == 32 && (length(r) - 1.0).abs() < 1e-6));
    let one = place.ok("/api/embed", &json!({ "model": "mean", "input": "a cat" }));
    let old = place.ok("/api/embeddings", &json!({ "model": "mean", "prompt": "a cat" }));
    let old = numbers(&old["embedding"]);
    let same: Vec<f64> = old.iter().map(|x| x / length(&old)).collect();
    assert_close(&numbers(&one["embeddings"][0]), &same);
    let show = place.ok("/api/show", &json!({ "model": "mean" }));
    assert_eq!(show["capabilities"], json!(["embedding"]));
}

#[test]
fn long_texts_are_cut_only_where_asked() {
    let place = place();
    let long = "a".repeat(CONTEXT);
    for (path, name) in [("/v1/embeddings", "input"), ("/embedding", "content")] {
        let body = |truncate: bool| json!({ "model": "mean", name: ["b", long], "truncate": truncate });
        let reply = place.post(path, &body(false));
        let error = &reply.json()["error"];
        assert_eq!((reply.status, &error["code"]), (400, &json!("context_length_exceeded")), "{error}");
        assert_eq!((&error["n_prompt_tokens"], &error["n_ctx"]), (&json!(CONTEXT + 2), &json!(CONTEXT)));
        assert_eq!(error["param"], format!("{name}[1]"));
        assert_eq!(place.post(path, &body(true)).status, 200);
    }
    let cut = place.ok("/v1/embeddings", &json!({ "model": "mean", "input": long, "truncate": true }));
    let whole = place.ok("/v1/embeddings", &json!({ "model": "mean", "input": "a".repeat(CONTEXT - 2) }));
    assert_eq!(cut["data"], whole["data"]);
    assert_eq!(place.post("/api/embed", &json!({ "model": "mean", "input": long })).status, 400);
    let pair = json!({ "model": "ranker", "query": "a", "documents": ["b", long] });
    assert_eq!(place.refused("/rerank", &pair).1, "documents[1]");
}

#[test]
fn documents_are_ranked_the_best_first() {
    let place = place();
    for (model, tokens) in [("ranker", 3 * 5 + 11), ("judge", 3 * 6 + 11)] {
        let documents = json!(["dog", { "text": "cat" }, "horse"]);
        let body =
            json!({ "model": model, "query": "a b", "documents": documents, "return_documents": true });
        let reply = place.ok("/v1/rerank", &body);
        let results = reply["results"].as_array().unwrap();
        let scores: Vec<f64> = results.iter().map(|r| r["relevance_score"].as_f64().unwrap()).collect();
        assert!(scores.len() == 3 && scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
        let texts = ["dog", "cat", "horse"];
        for result in results {
            assert_eq!(result["document"]["text"], texts[result["index"].as_u64().unwrap() as usize]);
        }
        if model == "judge" {
            assert!(scores.iter().all(|s| (0.0..=1.0).contains(s)), "{scores:?}");
        }
        // Letters, and the markup around query and document.
        assert_eq!(reply["usage"]["total_tokens"], tokens);
        let best = json!({ "model": model, "query": "a b", "documents": texts, "top_n": 1 });
        for path in ["/rerank", "/reranking", "/v1/reranking"] {
            let best = place.ok(path, &best);
            assert_eq!(best["results"].as_array().unwrap().len(), 1);
            assert_eq!(best["results"][0]["index"], results[0]["index"]);
            assert_eq!(best["results"][0]["relevance_score"], results[0]["relevance_score"]);
            assert!(best["results"][0].get("document").is_none());
        }
    }
}

#[test]
fn models_do_what_they_are_made_for() {
    let place = place();
    // Models that generate do not embed at all.
    for (path, body) in [
        ("/v1/embeddings", json!({ "model": "llama", "input": "a" })),
        ("/embedding", json!({ "model": "llama", "content": "a" })),
        ("/v1/rerank", json!({ "model": "llama", "query": "a", "documents": ["b"] })),
    ] {
        let reply = place.post(path, &body);
        assert_eq!(
            (reply.status, &reply.json()["error"]["type"]),
            (501, &json!("not_supported_error")),
            "{path}"
        );
    }
    assert_eq!(place.post("/api/embed", &json!({ "model": "llama", "input": ["a"] })).status, 501);
    assert_eq!(place.post("/api/embeddings", &json!({ "model": "llama", "prompt": "a" })).status, 501);
    // Models that embed do nothing else.
    let chat = json!({ "model": "mean", "messages": [{ "role": "user", "content": "a" }], "max_tokens": 4 });
    let streamed = json!({ "model": "mean", "messages": chat["messages"], "max_tokens": 4, "stream": true });
    let shaped = json!({ "model": "mean", "prompt": "a", "json_schema": {} });
    for (path, body) in [
        ("/v1/chat/completions", chat.clone()),
        ("/v1/chat/completions", streamed),
        ("/v1/completions", json!({ "model": "mean", "prompt": "a" })),
        ("/v1/responses", json!({ "model": "mean", "input": "a" })),
        ("/completion", shaped),
    ] {
        assert_eq!(place.refused(path, &body).0, "the model gives embeddings, not text", "{path}");
    }
    assert_eq!(place.post("/v1/messages", &chat).status, 400);
    assert_eq!(place.post("/api/generate", &json!({ "model": "mean", "prompt": "a" })).status, 400);
    let pair = json!({ "model": "mean", "query": "a", "documents": ["b"] });
    assert_eq!(place.refused("/v1/rerank", &pair).0, "the model gives embeddings, not rankings");
    let text = json!({ "model": "ranker", "input": "b" });
    assert_eq!(place.refused("/v1/embeddings", &text).0, "the model gives rankings, not embeddings");
}

#[test]
fn wrong_requests_name_their_field() {
    let place = place();
    let refused = |path: &str, body: Value| place.refused(path, &body).1;
    let embed = |input: Value| refused("/v1/embeddings", json!({ "model": "mean", "input": input }));
    assert_eq!(embed(json!({})), "input");
    assert_eq!(embed(json!([])), "input");
    assert_eq!(embed(json!(["a", 5])), "input");
    assert_eq!(embed(json!(["a", {}])), "input");
    assert_eq!(embed(json!([[5], ["a"]])), "input[1]");
    assert_eq!(embed(json!([[5], []])), "input[1]");
    assert_eq!(place.post("/v1/embeddings", &json!({ "model": "mean", "input": [[5], [9999]] })).status, 400);
    assert_eq!(refused("/v1/embeddings", json!({ "model": "mean" })), "input");
    let dimensions = json!({ "model": "mean", "input": "a", "dimensions": 129 });
    assert_eq!(refused("/v1/embeddings", dimensions), "dimensions");
    let form = json!({ "model": "mean", "input": "a", "encoding_format": "hex" });
    assert_eq!(refused("/v1/embeddings", form), "encoding_format");
    let rank = |documents: Value| {
        refused("/v1/rerank", json!({ "model": "ranker", "query": "a", "documents": documents }))
    };
    assert_eq!(rank(json!("a")), "documents");
    assert_eq!(rank(json!([])), "documents");
    assert_eq!(rank(json!(["a", 1])), "documents[1]");
    assert_eq!(refused("/v1/rerank", json!({ "model": "ranker", "documents": ["a"] })), "query");
}

#[test]
fn many_requests_at_once_get_what_they_get_alone() {
    let place = place();
    let inputs: Vec<Value> = (0..12)
        .map(|i| (0..1 + i % 5).map(|k| "ab c".repeat(1 + (i * 7 + k * 3) % 12)).collect::<Vec<_>>().into())
        .collect();
    let body = |input: &Value| json!({ "model": "mean", "input": input });
    let alone: Vec<Value> =
        inputs.iter().map(|i| place.ok("/v1/embeddings", &body(i))["data"].clone()).collect();
    std::thread::scope(|scope| {
        for (input, expected) in inputs.iter().zip(&alone) {
            let place = &place;
            scope.spawn(move || {
                for _ in 0..3 {
                    assert_eq!(place.ok("/v1/embeddings", &body(input))["data"], *expected);
                }
            });
        }
    });
    assert_eq!(place.metric("wootz:requests_deferred"), 0.0);
}
