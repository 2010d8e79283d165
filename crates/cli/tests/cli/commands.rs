//! Every command on a tiny model.

use serde_json::Value;
use wootz_arch::Setting;
use wootz_quant::WeightType;
use wootz_testkit::tiny;

use crate::place::{Place, changed};

const COMMANDS: [&str; 14] = [
    "run",
    "chat",
    "embed",
    "inspect",
    "tokenize",
    "template",
    "plan",
    "trace",
    "bench",
    "perplexity",
    "pull",
    "list",
    "devices",
    "selftest",
];

fn keys(object: &Value) -> Vec<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

#[test]
fn help_shows_an_example_and_defaults() {
    let place = Place::new();
    let overview = place.ok("--help");
    for command in COMMANDS {
        assert!(overview.contains(&format!("\n  {command} ")), "{overview}");
        let help = place.ok(&format!("{command} --help"));
        assert!(help.contains(&format!("Example: wootz {command}")), "{help}");
        // Options with a value say their default, as far as they have one.
        let defaults = [
            "run",
            "chat",
            "embed",
            "inspect",
            "template",
            "plan",
            "trace",
            "bench",
            "perplexity",
            "selftest",
        ];
        assert_eq!(help.contains("[default: "), defaults.contains(&command), "{help}");
    }
    assert!(place.ok("--version").starts_with("wootz "));
    let nothing = place.run("", b"");
    assert_eq!((nothing.status.code(), nothing.stdout.len()), (Some(2), 0));
    assert!(String::from_utf8(nothing.stderr).unwrap().contains("Usage:"));
}

#[test]
fn run_prints_the_answer_and_a_closing_line() {
    let place = Place::new();
    let output = place.run("run tiny.gguf hello -n 8 --seed 1 --ignore-eos", b"");
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{notes}");
    let json = place.json("run tiny.gguf hello -n 8 --seed 1 --ignore-eos --json");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{}\n", text(&json["text"])));
    let prompt = json["prompt_tokens"].as_array().unwrap().len();
    assert_eq!(notes.lines().count(), 1, "{notes}");
    assert!(notes.starts_with(&format!("prompt {prompt} tokens in ")), "{notes}");
    assert!(notes.contains("answer 8 tokens in ") && notes.ends_with("stopped at -n\n"), "{notes}");
}

#[test]
fn run_json_is_one_object_with_the_fields_promised() {
    let place = Place::new();
    let json = place.json("run tiny.gguf --raw hello -n 5 --seed 1 --ignore-eos --json");
    assert_eq!(keys(&json), ["prompt_tokens", "tokens", "text", "stop_reason", "timings"]);
    assert_eq!(json["prompt_tokens"], serde_json::json!([104, 101, 108, 108, 111]));
    assert_eq!(json["tokens"].as_array().unwrap().len(), 5);
    assert_eq!(json["stop_reason"], "length");
    assert_eq!(json["timings"]["prompt_n"], 5);
    assert_eq!(json["timings"]["generated_n"], 5);
    for key in ["prompt_ms", "generation_ms", "prompt_per_second", "generated_per_second"] {
        assert!(json["timings"][key].as_f64().unwrap() >= 0.0, "{key}");
    }
}

#[test]
fn run_applies_the_template_unless_raw() {
    let place = Place::new();
    let json = place.json("run tiny.gguf hi --system be -n 1 --temp 0 --ignore-eos --json");
    let ids: Vec<String> = json["prompt_tokens"].as_array().unwrap().iter().map(Value::to_string).collect();
    let prompt = place.ok_with("tokenize tiny.gguf --decode", ids.join(" ").as_bytes());
    let expected =
        "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(prompt, format!("{expected}\n"));
    assert_eq!(place.ok("template tiny.gguf --system be --user hi"), format!("{expected}\n"));
}

#[test]
fn run_reads_standard_input() {
    let place = Place::new();
    for args in ["run tiny.gguf", "run tiny.gguf -"] {
        let options = "-n 3 --temp 0 --ignore-eos";
        let given = place.ok(&format!("run tiny.gguf hello {options}"));
        assert_eq!(place.ok_with(&format!("{args} {options}"), b"hello\n"), given);
        // Without the template, the text is what it is.
        let raw = place.ok_with(&format!("{args} {options} --raw --json"), b"hello\n");
        let raw: Value = serde_json::from_str(&raw).unwrap();
        assert_eq!(raw["prompt_tokens"].as_array().unwrap().last(), Some(&10.into()));
    }
}

#[test]
fn run_is_the_same_for_a_seed_and_another_for_another() {
    let place = Place::new();
    let tokens = |seed: u32, threads: u32| {
        let options =
            format!("-n 24 --temp 1.5 --top-k 0 --seed {seed} --threads {threads} --json --ignore-eos");
        place.json(&format!("run tiny.gguf hello {options}"))["tokens"].clone()
    };
    let first = tokens(1, 1);
    assert_eq!(first, tokens(1, 1));
    assert_eq!(first, tokens(1, 2));
    assert_ne!(first, tokens(2, 1));
}

#[test]
fn run_on_several_devices_gives_the_same_and_says_which_layers_went_where() {
    let place = Place::new();
    let options = "run tiny.gguf hello -n 24 --temp 1.5 --top-k 0 --seed 1 --json --ignore-eos";
    let expected = place.json(options)["tokens"].clone();
    let split = place.run(&format!("{options} --device cpu,cpu --split 1,1"), b"");
    let json: Value = serde_json::from_slice(&split.stdout).unwrap();
    assert_eq!(json["tokens"], expected);
    let told = String::from_utf8(split.stderr).unwrap();
    assert!(told.contains("layer 0 on cpu, layer 1 on cpu"), "{told}");
    let refused = place.run("run tiny.gguf hello --device cpu,cpu --split 1,x", b"");
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn run_ends_at_a_stop_text_and_leaves_it_out() {
    let place = Place::new();
    let options = "run tiny.gguf hello -n 60 --temp 1.5 --top-k 0 --top-p 1 --seed 3 --ignore-eos --json";
    let whole = place.json(options);
    let whole = text(&whole["text"]);
    // A stop text that does not begin the answer.
    let stop = whole.chars().skip(1).find(char::is_ascii_alphanumeric).expect("a letter among sixty tokens");
    let json = place.json(&format!("{options} --stop {stop} --stop not-in-it"));
    assert_eq!(json["stop_reason"], "stop_text");
    assert_eq!(Some(text(&json["text"])), whole.split(stop).next());
}

#[test]
fn run_reports_log_probabilities() {
    let place = Place::new();
    let options = "run tiny.gguf hello -n 4 --temp 0 --ignore-eos --logprobs 3";
    let json = place.json(&format!("{options} --json"));
    assert_eq!(keys(&json).last(), Some(&"logprobs"));
    let list = json["logprobs"].as_array().unwrap();
    assert_eq!(list.len(), 4);
    for (entry, token) in list.iter().zip(json["tokens"].as_array().unwrap()) {
        let top = entry["top"].as_array().unwrap();
        assert_eq!((&entry["token"], top.len()), (token, 3));
        let values: Vec<f64> = top.iter().map(|t| t["logprob"].as_f64().unwrap()).collect();
        assert!(values.is_sorted_by(|a, b| a >= b) && values[0] < 0.0, "{values:?}");
        assert_eq!(entry["logprob"], top[0]["logprob"], "greedy takes the most likely token");
    }
    let lines = place.ok(options);
    assert_eq!(lines.trim_end().lines().count(), 4, "{lines}");
}

#[test]
fn inspect_shows_what_the_file_holds() {
    let place = Place::new();
    let shown = place.ok("inspect tiny.gguf --ctx 64 --tensors");
    for part in [
        "architecture       llama",
        "trained context    512 tokens",
        "vocabulary         288 tokens, tokenizer gpt2 (gpt-2)",
        "for the cache of 64 tokens",
        "token_embd.weight                        Q8_0     128 x 288",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let json = place.json("inspect tiny.gguf --ctx 64 --json");
    assert_eq!(json["architecture"], "llama");
    assert_eq!(json["layers"], 2);
    assert_eq!(json["memory"]["context"], 64);
    assert_eq!(json["bytes"], std::fs::metadata(place.path("tiny.gguf")).unwrap().len());
    let tensors = json["tensors"].as_array().unwrap();
    let embedding = tensors.iter().find(|t| t["name"] == "token_embd.weight").unwrap();
    assert_eq!((&embedding["type"], &embedding["dims"]), (&"Q8_0".into(), &serde_json::json!([128, 288])));
}

#[test]
fn tokens_and_back() {
    let place = Place::new();
    let words = "the naïve äß 日本 \u{1f980}\ttab";
    let ids = place.ok_with("tokenize tiny.gguf --ids", words.as_bytes());
    let list: Vec<u32> = serde_json::from_str(&ids).unwrap();
    assert_eq!(list[0], 259, "the one merge makes `th`");
    assert_eq!(place.ok_with("tokenize tiny.gguf --decode", ids.as_bytes()), format!("{words}\n"));
    // Special tokens count where they are asked for only.
    let special = "tokenize tiny.gguf <|im_end|> --ids";
    assert_eq!(place.ok(&format!("{special} --special")), "[258]\n");
    assert!(place.ok(special).len() > 20);
    let table = place.ok("tokenize tiny.gguf that");
    assert_eq!(
        table.lines().collect::<Vec<_>>(),
        ["     259  \"th\"", "      97  \"a\"", "     116  \"t\"", "3 tokens"]
    );
}

#[test]
fn template_renders_messages_and_shows_its_source() {
    let place = Place::new();
    place.write("m.json", br#"[{"role":"user","content":"<|im_end|>"},{"role":"assistant","content":"b"}]"#);
    let rendered = place.ok("template tiny.gguf --messages m.json --no-generation-prompt");
    assert_eq!(rendered, "<|im_start|>user\n<|im_end|><|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n\n");
    let segments = place.ok("template tiny.gguf --messages m.json --segments");
    assert!(segments.contains("\ntext    \"<|im_end|>\"\n"), "the user's words are no markup: {segments}");
    assert!(place.ok("template tiny.gguf --source").starts_with("{% for m in messages %}"));
    let other = place.ok("template tiny.gguf --user hi --chat-template gemma");
    assert!(other.contains("<start_of_turn>user\nhi<end_of_turn>"), "{other}");
    // Files of RWKV have a template's name.
    place.write("named.gguf", &changed(&[("tokenizer.chat_template", "rwkv-world")], None));
    assert_eq!(place.ok("template named.gguf --user hi"), "User: hi\n\nAssistant:\n");
}

#[test]
fn plan_lists_steps_and_kernels() {
    let place = Place::new();
    for (tokens, rows) in [(1, 1), (64, 64)] {
        let plan = place.ok(&format!("plan tiny.gguf --tokens {tokens} --span 128"));
        let mut lines = plan.lines();
        let head = lines.next().unwrap();
        assert!(head.starts_with(&format!("plan for cpu: up to {rows} tokens, 1 sequences")), "{head}");
        let count: usize = lines.next().unwrap().split_once(" steps").unwrap().0.parse().unwrap();
        let steps: Vec<&str> = lines.collect();
        assert_eq!(steps.len(), count, "{plan}");
        // Both layers, and a kernel for attention in each.
        for layer in ["0", "1"] {
            let of_layer = steps.iter().filter(|s| s.split_whitespace().any(|word| word == layer));
            assert!(of_layer.filter(|s| s.contains("attention")).count() >= 1, "layer {layer}: {plan}");
        }
    }
}

#[test]
fn trace_prints_a_table_and_writes_events() {
    let place = Place::new();
    let table = place.ok("trace tiny.gguf -p 8 -n 2 --output trace.json --threads 1");
    assert!(table.starts_with("limits measured on cpu: "), "{table}");
    for part in ["\nprompt: ", "\ngeneration: ", "of limit  kernel and nodes", "dispatches; fused:"] {
        assert!(table.contains(part), "{table}");
    }
    // Chains of rows run several operations each.
    let fused =
        table.lines().find(|line| line.ends_with("rows+linear") && line.split_whitespace().count() == 4);
    let counts: Vec<usize> =
        fused.unwrap_or_default().split_whitespace().filter_map(|n| n.parse().ok()).collect();
    assert!(counts.len() == 3 && counts[1] > counts[0] && counts[2] == counts[0], "{table}");
    let trace: Value = serde_json::from_str(&place.read("trace.json")).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |phase: &str| events.iter().filter(|e| e["cat"] == phase).count();
    assert!(of("prompt") > 0 && of("generation") > of("prompt"));
    for event in events {
        assert_eq!(event["ph"], "X");
        assert!(event["dur"].as_f64().unwrap() >= 0.0 && event["args"]["bytes"].is_u64(), "{event}");
    }
}

#[test]
fn bench_has_three_forms() {
    let place = Place::new();
    let options = "bench tiny.gguf -p 16 -n 4 -d 0,8 -r 3 --threads 1";
    let json = place.json(&format!("{options} -o json"));
    let rows = json.as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|r| text(&r["test"])).collect();
    assert_eq!(names, ["pp16", "tg4", "pp16 @ d8", "tg4 @ d8"]);
    for row in rows {
        let samples: Vec<f64> =
            row["samples_ts"].as_array().unwrap().iter().map(|s| s.as_f64().unwrap()).collect();
        assert_eq!(samples.len(), 3);
        let mean = samples.iter().sum::<f64>() / 3.0;
        assert!((row["avg_ts"].as_f64().unwrap() / mean - 1.0).abs() < 1e-9);
        assert!(samples.contains(&row["median_ts"].as_f64().unwrap()), "{row}");
        assert!(row["stddev_ts"].as_f64().unwrap() >= 0.0 && row["first_token_ms"].as_f64().unwrap() > 0.0);
        assert!(row["submit_us"].is_null(), "processors pick no tokens");
    }
    let checksums: Vec<&str> = rows.iter().map(|r| text(&r["checksum"])).collect();
    let md = place.ok(options);
    assert_eq!(md.lines().count(), 2 + 4, "{md}");
    let csv = place.ok(&format!("{options} -o csv"));
    let mut lines = csv.lines();
    let columns = lines.next().unwrap().split(',').count();
    assert!(csv.starts_with("model,size,params,backend,threads,test,median_ts,avg_ts,stddev_ts,"), "{csv}");
    for (line, checksum) in lines.zip(&checksums) {
        assert_eq!(line.split(',').count(), columns, "{line}");
        // The same tokens in every run, whatever the form.
        assert!(line.ends_with(checksum) && md.contains(checksum), "{line}");
    }
}

#[test]
fn perplexity_and_divergence_from_itself() {
    let place = Place::new();
    place.write("text.txt", "Iron rusts in wet air, gold does not. ".repeat(6).as_bytes());
    let options = "perplexity tiny.gguf text.txt --chunk 32 --json";
    let json = place.json(&format!("{options} --save saved.bin"));
    assert_eq!(keys(&json), ["perplexity", "error", "tokens", "chunk"]);
    // Seven chunks, and the second half of each but for its last token is predicted.
    assert_eq!(json["tokens"], 7 * 15);
    let value = json["perplexity"].as_f64().unwrap();
    assert!((50.0..2000.0).contains(&value), "a random model of 288 tokens: {value}");
    let again = place.json(&format!("{options} --compare saved.bin --batch 7 --threads 2"));
    assert_eq!(again["perplexity"], json["perplexity"]);
    assert!(again["kl_mean"].as_f64().unwrap().abs() < 1e-6, "{again}");
    assert_eq!(again["same_top"], 1.0);
    // A model of another precision of cache differs, a little.
    let other = place.json(&format!("{options} --compare saved.bin --cache-type-k q4_0"));
    let kl = other["kl_mean"].as_f64().unwrap();
    assert!(kl > 1e-6 && kl < 0.5, "{other}");
    let line = place.ok("perplexity tiny.gguf text.txt --chunk 32 --chunks 1");
    assert!(line.starts_with("perplexity ") && line.ends_with(" over 15 tokens\n"), "{line}");
    assert_eq!(place.names(), ["saved.bin", "text.txt", "tiny.gguf"]);
}

#[test]
fn pull_and_list_and_devices() {
    let place = Place::new();
    let path = place.ok("pull ./tiny.gguf --print-path");
    assert_eq!(path.lines().count(), 1);
    assert!(std::path::Path::new(path.trim_end()).ends_with("tiny.gguf"), "{path}");
    // A folder with one model is that model.
    let folder = place.ok("pull . --print-path");
    assert!(folder.trim_end().ends_with("tiny.gguf"), "{folder}");
    let list = place.ok("list");
    assert!(list.contains("nothing yet") && list.contains("\n  smollm2 "), "{list}");
    let json = place.json("list --json");
    assert_eq!(json["cached"], serde_json::json!([]));
    assert!(json["short_names"].as_array().unwrap().len() >= 14);
    assert!(place.ok("devices").starts_with("cpu "));
    assert_eq!(place.json("devices --json")[0]["id"], "cpu");
}

#[test]
fn selftest_checks_the_kernels_of_this_machine() {
    let report = Place::new().ok("selftest");
    let last = report.lines().last().unwrap();
    assert!(last.ends_with(" cases passed, 0 failed"), "{report}");
    assert!(last.split_once(' ').unwrap().0.parse::<usize>().unwrap() > 50, "{report}");
}

/// A model of a family with a way of pooling.
fn write_pooled(place: &Place, name: &str, pooling: u32) {
    let bert = wootz_arch::find("bert").unwrap();
    let tiny = bert.tiny().with("pooling_type", Setting::U32(pooling));
    let types = tiny::Types(WeightType::F32, WeightType::F32);
    place.write(name, &tiny::build_model(bert, &tiny, types, 7));
}

fn numbers(line: &str) -> Vec<f64> {
    line.split_whitespace().map(|n| n.parse().unwrap()).collect()
}

#[test]
fn embed_prints_numbers_cosines_and_json() {
    let place = Place::new();
    write_pooled(&place, "bert.gguf", 1);
    let lines = place.ok("embed bert.gguf cat horse cat");
    let rows: Vec<Vec<f64>> = lines.lines().map(numbers).collect();
    assert!(rows.len() == 3 && rows[0] == rows[2] && rows.iter().all(|row| row.len() == 128));
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    assert!((dot(&rows[1], &rows[1]) - 1.0).abs() < 1e-6);
    let matrix: Vec<Vec<f64>> = place.ok("embed bert.gguf cat horse --cosine").lines().map(numbers).collect();
    assert!((matrix[0][1] - dot(&rows[0], &rows[1])).abs() < 1e-4 && matrix[1][1] == 1.0, "{matrix:?}");
    let json = place.json("embed bert.gguf cat horse --json");
    assert_eq!(keys(&json), ["embeddings", "cosine"]);
    assert_eq!(keys(&json["embeddings"][0]), ["text", "tokens", "embedding"]);
    assert_eq!(
        (text(&json["embeddings"][1]["text"]), &json["embeddings"][1]["tokens"]),
        ("horse", &7.into())
    );
    let found: Vec<f64> =
        json["embeddings"][0]["embedding"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
    assert_eq!(found, rows[0]);
    // Lines of standard input, other ways, fewer numbers.
    let output = place.run("embed bert.gguf --dimensions 8 --normalize -1", b"cat\n\nhorse\n");
    let short: Vec<Vec<f64>> = String::from_utf8(output.stdout).unwrap().lines().map(numbers).collect();
    assert!(short.len() == 2 && short[0].len() == 8);
    assert_eq!(place.ok("embed bert.gguf cat --pooling none").lines().count(), 5);
    assert_ne!(place.ok("embed bert.gguf cat --pooling cls"), place.ok("embed bert.gguf cat --pooling last"));
    // A model that generates text embeds where it is told how.
    assert_eq!(place.ok("embed tiny.gguf cat --pooling mean").lines().count(), 1);
    assert!(place.ok("inspect bert.gguf").contains("gives              embeddings, pooling mean\n"));
}

#[test]
fn embed_ranks_by_a_query() {
    let place = Place::new();
    write_pooled(&place, "ranker.gguf", 4);
    let json = place.json("embed ranker.gguf --query q cat horse dog --json");
    let ranking = json["ranking"].as_array().unwrap();
    let scores: Vec<f64> = ranking.iter().map(|r| r["score"].as_f64().unwrap()).collect();
    assert!(scores.len() == 3 && scores.is_sorted_by(|a, b| a >= b), "{json}");
    let lines = place.ok("embed ranker.gguf --query q cat horse dog");
    for (line, entry) in lines.lines().zip(ranking) {
        assert!(line.ends_with(text(&entry["text"])), "{line}, {entry}");
    }
}

#[test]
fn embed_says_what_is_wrong() {
    let place = Place::new();
    write_pooled(&place, "bert.gguf", 1);
    let error = |args: &str| {
        let output = place.run(args, b"");
        assert!(!output.status.success() && output.stdout.is_empty(), "{args}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(error("embed tiny.gguf cat"), "error: the model gives text, not embeddings\n");
    assert_eq!(error("embed bert.gguf cat --query a"), "error: the model gives embeddings, not rankings\n");
    assert_eq!(error("run bert.gguf cat"), "error: the model gives embeddings, not text\n");
    assert!(error("embed bert.gguf").contains("there is no text"));
    assert!(error("embed bert.gguf cat --pooling max").contains("expected one of none, mean, cls, last"));
    assert!(error("embed bert.gguf cat --dimensions 200").contains("200 dimensions are asked for"));
    let long = "a".repeat(20);
    let message = error(&format!("embed bert.gguf --ctx 16 cat {long}"));
    assert!(message.contains("text 2 has 22 tokens, the context 16"), "{message}");
    assert_eq!(place.ok(&format!("embed bert.gguf --ctx 16 {long} --truncate")).lines().count(), 1);
}
