//! What goes wrong ends in one line that says what, and leaves nothing behind.

use crate::place::{Place, changed, tiny_model};

/// The line holds all of these.
fn says(line: &str, parts: &[&str]) {
    for part in parts {
        assert!(line.contains(part), "{part:?} is not in: {line}");
    }
}

#[test]
fn files_that_are_no_models() {
    let place = Place::new();
    let whole = tiny_model();
    place.write("text.gguf", b"Once upon a time there was a file that was no model.\n");
    place.write("zip.gguf", b"PK\x03\x04\x14\x00\x00\x00\x08\x00 the rest of an archive");
    place.write("empty.gguf", b"");
    place.write("head.gguf", &whole[..100]);
    place.write("tail.gguf", &whole[..whole.len() - 10]);
    says(&place.fails("run text.gguf hi"), &["text.gguf", "not a GGUF file"]);
    says(&place.fails("run zip.gguf hi"), &["zip.gguf", "not a GGUF file", "ip"]);
    says(&place.fails("inspect empty.gguf"), &["empty.gguf", "not a GGUF file"]);
    for command in ["run FILE hi", "inspect FILE", "bench FILE", "tokenize FILE x"] {
        for file in ["head.gguf", "tail.gguf"] {
            let line = place.fails(&command.replace("FILE", file));
            says(&line, &[file]);
            assert!(["ends", "truncated", "bytes"].iter().any(|word| line.contains(word)), "{line}");
        }
    }
}

#[test]
fn models_that_cannot_run() {
    let place = Place::new();
    place.write("arch.gguf", &changed(&[("general.architecture", "novel")], None));
    place.write("tensor.gguf", &changed(&[], Some("blk.1.ffn_up.weight")));
    place.write("pre.gguf", &changed(&[("tokenizer.ggml.pre", "novel")], None));
    place.write("template.gguf", &changed(&[("tokenizer.chat_template", "{% for %}")], None));
    says(&place.fails("run arch.gguf hi"), &["arch.gguf", "unknown architecture \"novel\"", "llama"]);
    // What such a file holds can be seen all the same.
    says(&place.ok("inspect arch.gguf"), &["architecture       novel", "cannot run", "general.architecture"]);
    assert_eq!(place.json("inspect arch.gguf --json")["architecture"], "novel");
    says(&place.ok("inspect pre.gguf"), &["cannot run", "novel", "--pretokenizer"]);
    says(&place.fails("run tensor.gguf hi"), &["tensor.gguf", "blk.1.ffn_up.weight", "missing"]);
    says(&place.fails("run pre.gguf hi"), &["pre.gguf", "novel", "--pretokenizer"]);
    assert_eq!(place.ok("tokenize pre.gguf hi --ids --pretokenizer gpt-2"), "[104,105]\n");
    says(&place.fails("run template.gguf hi"), &["template"]);
}

#[test]
fn models_that_cannot_be_found() {
    let place = Place::new();
    place.write("two/a.gguf", &tiny_model());
    place.write("two/b.gguf", &tiny_model());
    place.write("none/readme.txt", b"nothing here");
    says(&place.fails("run ./nowhere.gguf hi"), &["no file", "nowhere.gguf"]);
    says(&place.fails("run ./tini.gguf hi"), &["did you mean", "tiny.gguf"]);
    says(&place.fails("run smolm2 hi"), &["smolm2", "did you mean", "smollm2"]);
    says(&place.fails("run two hi"), &["several models", "a.gguf", "b.gguf"]);
    says(&place.fails("run ./none hi"), &["none", "no GGUF file"]);
    says(&place.fails("run hf:nobody hi"), &["hf:nobody"]);
    says(&place.fails("run smollm2 hi --offline"), &["not in the cache"]);
    says(&place.fails("run hf:owner/repo hi --offline"), &["not in the cache"]);
    says(&place.fails("run pip:some-package hi --offline"), &["not in the cache"]);
}

#[test]
fn settings_that_cannot_be() {
    let place = Place::new();
    let run = |options: &str| place.fails(&format!("run tiny.gguf hi {options}"));
    says(&run("--device abacus"), &["abacus", "cpu"]);
    says(&run("--ctx 100000000000"), &["context", "memory", "smaller"]);
    says(&run("--ctx 8"), &["prompt of", "8 tokens"]);
    says(&run("--ctx 64 -n 100"), &["100 to generate", "64 tokens"]);
    says(&run("-n 0"), &["-n"]);
    says(&run("-n -2"), &["-n"]);
    says(&run("-n many"), &["'many'", "--predict", "--help"]);
    says(&run("--top-p 1.5"), &["top", "1.5"]);
    says(&run("--temp NaN"), &["temp", "NaN"]);
    says(&run("--mirostat 3"), &["mirostat", "3"]);
    says(&run("--samplers top_k;novel"), &["novel"]);
    says(&run("--logit-bias 5"), &["'5'", "--logit-bias"]);
    says(&run("--logit-bias 999+1"), &["999", "288"]);
    says(&run("--cache-type-k q9"), &["q9", "f16"]);
    says(&run("--chat-template novel"), &["novel"]);
    says(&run("--threads 0"), &["--threads", "at least 1"]);
    says(&run("--batch 0"), &["--batch"]);
    says(&run("--ctx 0"), &["--ctx"]);
    says(&run("--tmp 1"), &["'--tmp'", "'--temp'"]);
    says(&run("--raw --system x"), &["--system", "--raw"]);
    says(&place.fails("plan tiny.gguf --backend abacus"), &["abacus", "cpu"]);
    says(&place.fails("plan tiny.gguf --tokens 0"), &["--tokens"]);
    says(&place.fails("bench tiny.gguf -p 0 -n 0"), &["nothing to measure"]);
    says(&place.fails("bench tiny.gguf -r 0"), &["--repeats", "at least 1"]);
    says(&place.fails("trace tiny.gguf -p 0"), &["--prompt", "at least 1"]);
    says(&place.fails("selftest --device abacus"), &["abacus", "cpu"]);
    says(&place.fails("novel"), &["'novel'"]);
    says(&place.fails("tokenize tiny.gguf 1,x --decode"), &["\"x\""]);
    says(&place.fails("tokenize tiny.gguf 288 --decode"), &["288"]);
}

#[test]
fn an_instruction_set_that_is_none() {
    let place = Place::new();
    for args in ["run tiny.gguf hi", "devices", "selftest"] {
        let output = place.command(args).env("WOOTZ_CPU_ISA", "nonsense").output().unwrap();
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), line.lines().count()), (Some(1), 1), "{line}");
        says(&line, &["error: ", "WOOTZ_CPU_ISA", "nonsense"]);
    }
}

#[test]
fn input_that_is_no_text() {
    let place = Place::new();
    for args in ["run tiny.gguf", "run tiny.gguf --raw", "tokenize tiny.gguf"] {
        let line = place.fails_with(args, b"abc\xffdef");
        says(&line, &["not UTF-8", "byte 3", "0xff"]);
    }
    says(&place.fails_with("chat tiny.gguf", b"\xff\xfe\n"), &["UTF-8"]);
    says(&place.fails("run tiny.gguf"), &["prompt is empty"]);
    says(&place.fails_with("run tiny.gguf", b"\n"), &["prompt is empty"]);
    says(&place.fails("run tiny.gguf --raw"), &["no tokens"]);
    place.write("m.json", b"{\"role\": 1}");
    says(&place.fails("template tiny.gguf --messages m.json"), &["m.json", "JSON list"]);
    says(&place.fails("template tiny.gguf --messages none.json"), &["none.json"]);
}

#[test]
fn perplexity_of_what_does_not_fit() {
    let place = Place::new();
    place.write("short.txt", b"too short");
    place.write("long.txt", "Iron rusts in wet air. ".repeat(10).as_bytes());
    place.write("not-saved.bin", b"some other file");
    let line = place.fails("perplexity tiny.gguf short.txt --chunk 64 --save saved.bin");
    says(&line, &["9 tokens", "64"]);
    says(&place.fails("perplexity tiny.gguf long.txt --chunk 0"), &["tokens"]);
    says(&place.fails("perplexity tiny.gguf none.txt"), &["none.txt"]);
    says(&place.fails("perplexity tiny.gguf long.txt --chunk 32 --save no/where.bin"), &["where.bin"]);
    says(&place.fails("perplexity tiny.gguf long.txt --compare not-saved.bin"), &["not-saved.bin", "--save"]);
    place.ok("perplexity tiny.gguf long.txt --chunk 32 --save saved.bin");
    let compare = "--compare saved.bin";
    says(&place.fails(&format!("perplexity tiny.gguf long.txt --chunk 16 {compare}")), &["--chunk 32", "16"]);
    place.write("other.txt", "Gold does not rust. ".repeat(20).as_bytes());
    let line = place.fails(&format!("perplexity tiny.gguf other.txt --chunk 32 {compare}"));
    says(&line, &["saved.bin", "another text"]);
    let saved = std::fs::read(place.path("saved.bin")).unwrap();
    place.write("saved.bin", &saved[..saved.len() - 1]);
    says(&place.fails(&format!("perplexity tiny.gguf long.txt --chunk 32 {compare}")), &["saved.bin"]);
}

#[test]
fn files_that_cannot_be_written() {
    let place = Place::new();
    says(&place.fails("trace tiny.gguf -p 2 -n 1 --output no/trace.json"), &["trace.json"]);
    says(&place.fails("chat tiny.gguf --load none.json"), &["none.json"]);
}

#[test]
fn a_reader_that_leaves_ends_the_run() {
    let place = Place::new();
    for args in [
        "run tiny.gguf hi -n 300 --ignore-eos --seed 1",
        "inspect tiny.gguf",
        "bench tiny.gguf -p 1 -n 1 -r 1",
    ] {
        let mut child = place.spawn(args);
        drop(child.stdin.take());
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), line.lines().count()), (Some(1), 1), "{line}");
        says(&line, &["error: cannot write to standard output: "]);
    }
}
