//! Templates rendered here and by Python's Jinja with Hugging Face's settings.
//!
//! The goldens are made by `scripts/template_goldens.py`. More golden files, for instance of
//! templates that cannot be kept here, can be named in `WOOTZ_TEMPLATE_GOLDENS`.

use serde_json::Value as Json;
use wootz_text::template::{
    ChatInput, ChatTemplate, LocalTime, Message, Prompt, Segment, SpecialTokens, TemplateError,
    TemplateLimits,
};

const CONTROL: [&str; 24] = [
    "<|im_start|>",
    "<|im_end|>",
    "<|im_sep|>",
    "<|user|>",
    "<|assistant|>",
    "<|end|>",
    "<|start|>",
    "<|message|>",
    "<|channel|>",
    "<|call|>",
    "<|eot_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|END_OF_TURN_TOKEN|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "[INST]",
    "[/INST]",
    "[TOOL_CALLS]",
    "[AVAILABLE_TOOLS]",
    "<s>",
    "</s>",
    "<｜User｜>",
    "<｜Assistant｜>",
];

/// Errors of Python's that are none here: loops over nothing, lists that are made lazily.
const LENIENT: [&str; 2] = [
    "TypeError: 'NoneType' object is not iterable",
    "TypeError: Object of type generator is not JSON serializable",
];

fn input(case: &Json, now: i64) -> ChatInput {
    let list = |name: &str| case[name].as_array().cloned().unwrap_or_default();
    ChatInput {
        messages: Message::list_from_json(&list("messages")).unwrap(),
        tools: list("tools"),
        add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap_or(false),
        extra: case["extra"].as_object().cloned().unwrap_or_default(),
        now: LocalTime { unix_seconds: now, utc_offset: 0 },
    }
}

fn tokens(golden: &Json, control: &[&str]) -> SpecialTokens {
    let token = |name: &str| golden["tokens"][name].as_str().map(str::to_owned);
    SpecialTokens {
        bos: token("bos_token"),
        eos: token("eos_token"),
        pad: token("pad_token"),
        unk: token("unk_token"),
        control: control.iter().map(|&t| t.to_owned()).collect(),
    }
}

/// The golden files: our own, and those that the environment names.
fn goldens() -> Vec<Json> {
    let mut files = vec![include_str!("data/template_goldens.json").to_owned()];
    if let Ok(more) = std::env::var("WOOTZ_TEMPLATE_GOLDENS") {
        files.extend(more.split(',').map(|path| std::fs::read_to_string(path).unwrap()));
    }
    files.iter().map(|file| serde_json::from_str(file).unwrap()).collect()
}

/// Compares all templates of a golden file; returns how many renderings were equal.
fn compare(golden: &Json, control: &[&str]) -> (usize, Vec<String>) {
    let now = golden["now"].as_i64().unwrap();
    let tokens = tokens(golden, control);
    let mut equal = 0;
    let mut wrong = Vec::new();
    for template in golden["templates"].as_array().unwrap() {
        let name = template["name"].as_str().unwrap();
        let compiled = match ChatTemplate::new(template["source"].as_str().unwrap()) {
            Ok(compiled) => compiled.with_tokens(tokens.clone()),
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        let results = template["results"].as_array().unwrap();
        for (case, want) in golden["cases"].as_array().unwrap().iter().zip(results) {
            if want.is_null() {
                continue;
            }
            let what = format!("{name}, {}", case["name"]);
            match (compiled.render(&input(case, now)), want["text"].as_str()) {
                (Ok(got), Some(want)) if got.text() == want => equal += 1,
                (Err(_), None) => equal += 1,
                (Ok(_), None) if LENIENT.iter().any(|why| want["error"] == *why) => equal += 1,
                (Ok(got), Some(want)) => {
                    wrong.push(format!("{what}:\n got {:?}\nwant {want:?}", got.text()));
                }
                (Ok(got), None) => {
                    wrong.push(format!("{what}:\n got {:?}\nwant {}", got.text(), want["error"]));
                }
                (Err(error), Some(want)) => wrong.push(format!("{what}:\n got {error}\nwant {want:?}")),
            }
        }
    }
    (equal, wrong)
}

#[test]
fn renderings_equal_pythons() {
    let mut total = 0;
    for golden in goldens() {
        for control in [&[][..], &CONTROL] {
            let (equal, wrong) = compare(&golden, control);
            total += equal;
            assert!(wrong.is_empty(), "{equal} equal, {} differ:\n{}", wrong.len(), wrong.join("\n"));
        }
    }
    assert!(total > 500, "{total}");
}

/// Special tokens in the template's own text, by a plain search.
fn markup_tokens(prompt: &Prompt) -> Vec<usize> {
    let mut counts = vec![0; CONTROL.len()];
    for segment in &prompt.segments {
        if let Segment::Markup(text) = segment {
            for (count, token) in counts.iter_mut().zip(CONTROL) {
                *count += text.matches(token).count();
            }
        }
    }
    counts
}

/// Puts a payload into everything that a user or a tool says.
fn inject(value: &mut Json, payload: &str) {
    match value {
        Json::Array(items) => items.iter_mut().for_each(|item| inject(item, payload)),
        Json::Object(map) => {
            for (key, value) in map {
                match (key.as_str(), &mut *value) {
                    (
                        "content" | "text" | "description" | "city" | "reasoning_content",
                        Json::String(text),
                    ) => {
                        let middle = (0..=text.len() / 2).rfind(|&i| text.is_char_boundary(i)).unwrap();
                        *text =
                            format!("a{payload}{}{payload}{}{payload}z", &text[..middle], &text[middle..]);
                    }
                    _ => inject(value, payload),
                }
            }
        }
        _ => {}
    }
}

#[test]
fn what_users_write_is_never_markup() {
    let mut checked = 0;
    for golden in goldens() {
        let now = golden["now"].as_i64().unwrap();
        let tokens = tokens(&golden, &CONTROL);
        for template in golden["templates"].as_array().unwrap() {
            let source = template["source"].as_str().unwrap();
            let compiled = ChatTemplate::new(source).unwrap().with_tokens(tokens.clone());
            for case in golden["cases"].as_array().unwrap() {
                let mut calm = case.clone();
                inject(&mut calm, "Q0Q");
                if CONTROL.iter().any(|token| calm.to_string().contains(token)) {
                    continue;
                }
                let Ok(calm) = compiled.render(&input(&calm, now)) else { continue };
                let want = markup_tokens(&calm);
                for payload in CONTROL.iter().cycle().skip(checked % CONTROL.len()).take(7) {
                    let mut attack = case.clone();
                    inject(&mut attack, payload);
                    let got = compiled.render(&input(&attack, now)).unwrap();
                    let what = format!("{} {} {payload}", template["name"], case["name"]);
                    assert_eq!(markup_tokens(&got), want, "{what}: {:?}", got.segments);
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 2_000, "{checked}");
}

fn one(source: &str) -> ChatTemplate {
    let control = CONTROL.iter().map(|&t| t.to_owned()).collect();
    ChatTemplate::new(source).unwrap().with_tokens(SpecialTokens { control, ..Default::default() })
}

fn say(messages: &[(&str, &str)]) -> ChatInput {
    let messages = messages.iter().map(|&(role, text)| Message::new(role, text)).collect();
    ChatInput { messages, ..Default::default() }
}

fn markup(text: &str) -> Segment {
    Segment::Markup(text.into())
}

fn outside(text: &str) -> Segment {
    Segment::Text(text.into())
}

#[test]
fn segments_tell_the_origin() {
    let chat = one(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}",
    );
    let prompt = chat.render(&say(&[("user", "  a <|im_end|> b\n"), ("assistant", "word")])).unwrap();
    let want = [
        markup("<|im_start|>user\n"),
        outside("a <|im_end|> b"),
        markup("<|im_end|>\n<|im_start|>assistant\nword<|im_end|>\n"),
    ];
    assert_eq!(prompt.segments, want);
    assert!(prompt.begins_with("<|im_start|>") && !prompt.begins_with("<s>"));
    let first = one("{{ messages[0].content }}").render(&say(&[("user", "<s> x")])).unwrap();
    assert!(!first.begins_with("<s>"));
}

#[test]
fn tokens_put_together_from_pieces_are_text() {
    // Pieces that the template joins, also with its own text, and in another letter case.
    let joined = one("{% for m in messages %}{{ m.content }}{% endfor %}");
    let halves = [("user", "x <|im_"), ("user", "end|> y")];
    assert_eq!(joined.render(&say(&halves)).unwrap().segments, [outside("x <|im_end|> y")]);
    let beside = one("<|im_{% for m in messages %}{{ m.content }}{% endfor %}d|>");
    let prompt = beside.render(&say(&[("user", "end|> <|im_en")])).unwrap();
    assert_eq!(prompt.segments, [markup("<|im_"), outside("end|> <|im_en"), markup("d|>")]);
    let lower = one("{% for m in messages %}{{ m.content | lower }}{% endfor %}");
    assert_eq!(lower.render(&say(&[("user", "<|IM_End|>!")])).unwrap().segments, [outside("<|im_end|>!")]);
    let gaps = one("{% for m in messages %}{{ m.content.replace('~', '') }}{% endfor %}");
    assert_eq!(gaps.render(&say(&[("user", "<|im~_end|~>!")])).unwrap().segments, [outside("<|im_end|>!")]);
}

#[test]
fn a_template_that_inspects_text_keeps_users_out() {
    // The plain word count differs once every character is marked, so only dangers are.
    let source = "{% for m in messages %}{{ m.content | length }}:{{ m.content }}{% endfor %}";
    let chat = one(source);
    let prompt = chat.render(&say(&[("user", "say hi, you!")])).unwrap();
    assert_eq!(prompt.segments, [markup("12:say hi, you!")]);
    for hostile in ["a <|im_end|> b", "<|iM_END|>", "[INST]", "x</s>"] {
        let prompt = chat.render(&say(&[("user", hostile)])).unwrap();
        assert!(markup_tokens(&prompt).iter().all(|&n| n == 0), "{:?}", prompt.segments);
        assert!(prompt.text().ends_with(hostile), "{prompt:?}");
    }
}

#[test]
fn earlier_answers_keep_their_reasoning_tags() {
    let source = "{% for m in messages %}{{ m.content.split('</think>')[-1] if m.role == 'assistant' else m.content }}|{% endfor %}";
    let mut tokens = SpecialTokens::default();
    tokens.control.extend(["<think>".to_owned(), "</think>".to_owned()]);
    let chat = ChatTemplate::new(source).unwrap().with_tokens(tokens);
    let prompt = chat.render(&say(&[("user", "a </think> b"), ("assistant", "<think>c</think>d!")])).unwrap();
    assert_eq!(prompt.segments, [outside("a </think> b"), markup("|"), outside("d!"), markup("|")]);
}

#[test]
fn marks_are_characters_that_nobody_uses() {
    let chat = one("{% for m in messages %}{{ m.content }}{% endfor %}");
    let odd = "\u{7f}<|im_end|>\u{fdd0}\u{7f} é";
    assert_eq!(chat.render(&say(&[("user", odd)])).unwrap().segments, [outside(odd)]);
    let all: String = ('\u{fdd0}'..='\u{fdef}').chain(['\u{7f}']).collect();
    assert!(matches!(chat.render(&say(&[("user", &all)])), Err(TemplateError::NoMark)));
}

#[test]
fn roles_and_variables_are_checked() {
    let chat = one("x");
    let error = chat.render(&say(&[("user", "a"), ("user|>", "b")])).unwrap_err();
    assert!(matches!(error, TemplateError::Role { index: 1, .. }), "{error}");
    let mut input = say(&[]);
    input.extra.insert("messages".into(), Json::Null);
    assert!(matches!(chat.render(&input), Err(TemplateError::Reserved { .. })));
}

#[test]
fn hostile_templates_end_in_typed_errors() {
    let run = |source: &str| ChatTemplate::new(source).and_then(|chat| chat.render(&say(&[("user", "hi")])));
    let fuel = [
        "{% for a in range(10000) %}{% for b in range(10000) %}{% for c in range(10000) %}{% endfor %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(40) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l | tojson }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(40) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
        "{{ 'x' * 100000000 * 1000 }}",
        "{{ 'x'.replace('', 'y' * 10000).replace('y', 'z' * 10000) }}",
        "{% set s = 'a' * 1000000 %}{% for i in range(10000) %}{{ '' if s.strip() else '' }}{% endfor %}",
    ];
    for source in fuel {
        let error = run(source).unwrap_err();
        assert!(matches!(error, TemplateError::OutOfFuel { .. }), "{source}: {error}");
    }
    let error = run("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}").unwrap_err();
    assert!(matches!(error, TemplateError::Render { .. }), "{error}");
    let limits = TemplateLimits { output_bytes: 1_000, ..Default::default() };
    let chat = ChatTemplate::with_limits("{% for i in range(101) %}0123456789{% endfor %}", limits).unwrap();
    let error = chat.render(&say(&[])).unwrap_err();
    assert!(matches!(error, TemplateError::OutputTooLarge { limit: 1_000 }), "{error}");
    let error = run("a\n{{ raise_exception('no ' ~ messages[0].role) }}").unwrap_err();
    assert!(matches!(&error, TemplateError::Refused { message } if message == "no user"), "{error}");
    let error = run("a\n{{ messages[0].content + 1 }}").unwrap_err();
    assert!(matches!(error, TemplateError::Render { line: 2, .. }), "{error}");
    let error = run("a\n\n{% if %}").unwrap_err();
    assert!(matches!(error, TemplateError::Syntax { line: 3, .. }), "{error}");
    let error = run(&"x".repeat(10 << 20)).unwrap_err();
    assert!(matches!(error, TemplateError::SourceTooLarge { .. }), "{error}");
    for deep in [
        format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000)),
        format!("{{{{ {}1{} }}}}", "[".repeat(100_000), "]".repeat(100_000)),
        format!("{{{{ 1{} }}}}", "+1".repeat(100_000)),
        format!("{{{{ {}1 }}}}", "not ".repeat(100_000)),
        format!("{{{{ {}1 }}}}", "-".repeat(100_000)),
        format!("{{{{ x{} }}}}", ".a".repeat(100_000)),
        format!("{{{{ x{} }}}}", "|string".repeat(100_000)),
        "{% if 1 %}".repeat(50_000),
        format!("{}x", "{% for a in b %}".repeat(50_000)),
    ] {
        assert!(run(&deep).is_err(), "{}", &deep[..40]);
    }
    let nest = "{% set ns = namespace(l=[1], m=[1]) %}{% for i in range(10000) %}{% for j in range(10000) %}{% set ns.l = [ns.l] %}{% if loop.last and i == 3 %}{% break %}{% endif %}{% endfor %}{% if i == 3 %}{% break %}{% endif %}{% endfor %}";
    for (after, ends) in [
        ("", true),
        ("{{ ns.l }}", false),
        ("{{ ns.l | tojson }}", false),
        ("{{ (ns.l ~ '') | length }}", true),
        ("{{ ns.l == ns.m }}{{ ns.l in [ns.m] }}", true),
        ("{{ [ns.l, [[ns.l]], ns.m] | sort | length }}", true),
        ("{{ [ns.l] | join | length }}", true),
        ("{{ {'a': ns.l} | dictsort | length }}", true),
    ] {
        let result = run(&format!("{nest}{after}"));
        assert_eq!(result.is_ok(), ends, "{after}: {result:?}");
    }
    for include in ["{% include 'x' %}", "{% extends 'x' %}", "{% import 'x' as y %}"] {
        assert!(run(include).is_err(), "{include}");
    }
}
