//! Tool calls and reasoning in outputs of many families, however the output is cut.

use serde_json::{Value as Json, json};
use wootz_text::reasoning::ReasoningTags;
use wootz_text::template::{ChatInput, ChatTemplate, Message, ToolCall};
use wootz_text::tools::{Event, OutputParser, ToolFormat};

const FORMATS: [ToolFormat; 16] = [
    ToolFormat::Tagged,
    ToolFormat::Seed,
    ToolFormat::MiniMax,
    ToolFormat::Function,
    ToolFormat::Recipients,
    ToolFormat::Llama3,
    ToolFormat::Mistral,
    ToolFormat::Gemma,
    ToolFormat::Gemma4,
    ToolFormat::DeepSeek,
    ToolFormat::Kimi,
    ToolFormat::Harmony,
    ToolFormat::Granite,
    ToolFormat::CommandR,
    ToolFormat::Lfm2,
    ToolFormat::TaggedList,
];

fn tools() -> Vec<Json> {
    let tool = |name: &str| {
        json!({"type": "function", "function": {"name": name, "description": "Tells it.", "parameters": {"type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "opts": {"type": "object"}}}}})
    };
    vec![tool("get_weather"), tool("f")]
}

/// Small pseudo-random numbers (splitmix64).
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    fn pieces<'a>(&mut self, text: &'a str) -> Vec<&'a str> {
        let mut out = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let mut at = (1 + self.below(9)).min(rest.len());
            while !rest.is_char_boundary(at) {
                at += 1;
            }
            let (piece, tail) = rest.split_at(at);
            out.push(piece);
            rest = tail;
        }
        out
    }
}

fn run(parser: &mut OutputParser, pieces: &[&str]) -> Vec<Event> {
    let mut events: Vec<Event> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    events.extend(parser.finish());
    let mut merged: Vec<Event> = Vec::new();
    for event in events {
        match (merged.last_mut(), event) {
            (Some(Event::Content(a)), Event::Content(b)) => a.push_str(&b),
            (Some(Event::Reasoning(a)), Event::Reasoning(b)) => a.push_str(&b),
            (Some(Event::ToolCallArguments { delta: a, .. }), Event::ToolCallArguments { delta: b, .. }) => {
                a.push_str(&b);
            }
            (_, event) => merged.push(event),
        }
    }
    merged
}

/// Events as lines: `c:text`, `r:text`, `name#id(arguments)`, with `…` for a call cut short.
/// Checks on the way that calls are well formed.
fn lines(events: &[Event]) -> Vec<String> {
    let mut out = Vec::new();
    let mut open: Option<(usize, String, String)> = None;
    let mut next = 0;
    for event in events {
        match event {
            Event::Content(text) => out.push(format!("c:{text}")),
            Event::Reasoning(text) => out.push(format!("r:{text}")),
            Event::ToolCallStart { index, id, name } => {
                assert!(open.is_none() && *index == next && !name.is_empty(), "{events:?}");
                let id = id.as_ref().map(|id| format!("#{id}")).unwrap_or_default();
                open = Some((*index, format!("{name}{id}"), String::new()));
                next += 1;
            }
            Event::ToolCallArguments { index, delta } => {
                let call = open.as_mut().unwrap();
                assert_eq!(call.0, *index);
                call.2.push_str(delta);
            }
            Event::ToolCallEnd { index, complete } => {
                let (at, name, arguments) = open.take().unwrap();
                assert_eq!(at, *index);
                match complete {
                    true => {
                        let value: Json =
                            serde_json::from_str(&arguments).unwrap_or_else(|e| panic!("{e}: {arguments}"));
                        assert!(value.is_object());
                        out.push(format!("{name}({value})"));
                    }
                    false => out.push(format!("{name}({arguments}…")),
                }
            }
        }
    }
    assert!(open.is_none(), "{events:?}");
    out
}

/// Parses whole, by characters and in random pieces, and expects the same each time.
fn check(format: ToolFormat, opened: bool, text: &str, want: &[&str]) {
    let tools = tools();
    let parser = || OutputParser::new(Some(format), Some(ReasoningTags::THINK), opened, &tools);
    let whole = run(&mut parser(), &[text]);
    assert_eq!(lines(&whole), want, "{format:?}: {text}");
    let chars: Vec<&str> = text.split("").filter(|c| !c.is_empty()).collect();
    assert_eq!(run(&mut parser(), &chars), whole, "{text}");
    let mut rng = Rng(text.len() as u64);
    for _ in 0..20 {
        assert_eq!(run(&mut parser(), &rng.pieces(text)), whole, "{text}");
    }
}

#[test]
fn hermes_and_qwen() {
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1, {\"y\": \"</tool_call>\"}]}}\n</tool_call>";
    let want = r#"f({"x":[1,{"y":"</tool_call>"}]})"#;
    check(ToolFormat::Tagged, false, call, &[want]);
    check(
        ToolFormat::Tagged,
        false,
        &format!("Let me see.\n\n{call}\n{call}\n done "),
        &["c:Let me see.", want, want, "c:done "],
    );
    check(
        ToolFormat::Tagged,
        false,
        &format!("<think>\nhm <tool_call> no\n</think>\n\n{call}"),
        &["r:hm <tool_call> no", want],
    );
    check(ToolFormat::Tagged, true, &format!("hm\n</think>\n{call}"), &["r:hm", want]);
    check(ToolFormat::Tagged, false, "plain text\n with  space \n", &["c:plain text\n with  space \n"]);
    // Keys in another order, an id, wrapped functions, arguments as a string, none at all.
    let t = |body: &str, want: &str| {
        check(ToolFormat::Tagged, false, &format!("<tool_call>{body}</tool_call>"), &[want])
    };
    t(r#"{"arguments":{"a":1},"id":"i7","name":"f"}"#, r#"f#i7({"a":1})"#);
    t(r#"{"type":"function","function":{"name":"f","arguments":{"a":-1.5e3}}}"#, r#"f({"a":-1500.0})"#);
    t(r#"{"name":"f","arguments":"{\"a\": \"b\"}"}"#, r#"f({"a":"b"})"#);
    t(r#"{"name":"f"}"#, "f({})");
    t(r#"{"name":"f","arguments":null,"n":12 }"#, "f({})");
    t(r#"[{"name":"f","parameters":{}}]"#, "f({})");
    t("{\"name\":\"f\",\"arguments\":{\"code\":\"a\nb\t\u{1}\"}}", "f({\"code\":\"a\\nb\\t\\u0001\"})");
}

#[test]
fn malformed_calls_are_content() {
    let t = |body: &str, want: &[&str]| check(ToolFormat::Tagged, false, body, want);
    t("<tool_call>{\"name\": f}</tool_call>", &["c:<tool_call>{\"name\": f}</tool_call>"]);
    t("<tool_call>{\"name\": \"f\"", &["c:<tool_call>{\"name\": \"f\""]);
    t("a <tool_call>{\"foo\": 1}</tool_call> b", &["c:a <tool_call>{\"foo\": 1}</tool_call> b"]);
    t("a <tool_call", &["c:a <tool_call"]);
    t("<tool_call>{} <tool_call>{\"name\":\"f\"}</tool_call>", &["c:<tool_call>{}", "f({})"]);
    t("<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": 1", &["f({\"a\": 1…"]);
    t("<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": oops}} more", &["f({\"a\": …", "c:oops}} more"]);
    t("<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": 1}} no end", &["f({\"a\":1})", "c:no end"]);
    t("<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": 1}}</tool_", &["f({\"a\":1})"]);
    t(
        "<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>",
        &["c:<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>"],
    );
}

#[test]
fn without_tools_nothing_is_a_call() {
    let text = "<tool_call>{\"name\":\"f\"}</tool_call>";
    let mut parser = OutputParser::new(Some(ToolFormat::Tagged), None, false, &[]);
    assert_eq!(lines(&run(&mut parser, &[text])), [format!("c:{text}")]);
}

#[test]
fn qwen_coder_and_its_kin() {
    let text = "Sure.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nNew \"York\"\n12</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=opts>\n{\"a\": [true]}\n</parameter>\n<parameter=other>\nnot json\n</parameter>\n</function>\n</tool_call>";
    let want = r#"get_weather({"city":"New \"York\"\n12","days":3,"opts":{"a":[true]},"other":"not json"})"#;
    check(ToolFormat::Tagged, false, text, &["c:Sure.", want]);
    check(ToolFormat::Seed, false, &text.replace("tool_call>", "seed:tool_call>"), &["c:Sure.", want]);
    check(
        ToolFormat::Tagged,
        false,
        "<function=f>\n<parameter=city>\n12\n</parameter>\n</function>",
        &[r#"f({"city":"12"})"#],
    );
    check(ToolFormat::Tagged, false, "<function=unknown>\nx", &["c:<function=unknown>\nx"]);
    check(ToolFormat::Tagged, false, "<tool_call>\n<function=f>\n</function>\n</tool_call>", &["f({})"]);
    check(
        ToolFormat::Tagged,
        false,
        "<tool_call>\n<function=f>\n<parameter=city>\nhalf\n</para",
        &["f({\"city\": \"half\n</para…".replace('\n', "\\n").as_str()],
    );
    let text = "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"city\">a<b</parameter>\n<parameter name=\"days\">2</parameter>\n</invoke>\n<invoke name=\"f\">\n</invoke>\n</minimax:tool_call>";
    check(ToolFormat::MiniMax, false, text, &[r#"f({"city":"a<b","days":2})"#, "f({})"]);
}

#[test]
fn glm() {
    let text = "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>\nRom</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>f</tool_call>";
    check(
        ToolFormat::Tagged,
        true,
        &format!("hm</think>\n{text}"),
        &["r:hm", "get_weather({\"city\":\"\\nRom\",\"days\":3})", "f({})"],
    );
    check(
        ToolFormat::Tagged,
        false,
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rom</arg_value></tool_call>",
        &[r#"get_weather({"city":"Rom"})"#],
    );
    check(ToolFormat::Tagged, false, "the <tool_call> tag is used so", &["c:the <tool_call> tag is used so"]);
}

#[test]
fn llama() {
    check(ToolFormat::Llama3, false, r#" {"name": "f", "parameters": {"a": 1}}"#, &[r#"f({"a":1})"#]);
    check(
        ToolFormat::Llama3,
        false,
        r#"<|python_tag|>{"name": "f", "parameters": {"a": 1}}"#,
        &[r#"f({"a":1})"#],
    );
    check(
        ToolFormat::Llama3,
        false,
        r#"{"name": "f", "parameters": {}}; {"type": "function", "name": "f", "parameters": {}}"#,
        &["f({})", "f({})"],
    );
    check(
        ToolFormat::Llama3,
        false,
        "{\"name\": \"f\", \"parameters\": {}}\n{\"name\": \"f\"}",
        &["f({})", "f({})"],
    );
    check(ToolFormat::Llama3, false, r#"{"name": "Bob", "age": 3}"#, &[r#"c:{"name": "Bob", "age": 3}"#]);
    check(ToolFormat::Llama3, false, "{ not json }", &["c:{ not json }"]);
    check(ToolFormat::Llama3, false, r#"Text {"name": "f"}"#, &[r#"c:Text {"name": "f"}"#]);
    check(
        ToolFormat::Function,
        false,
        "ok <function=f>{\"a\": 1}</function><function=f>{}</function>",
        &["c:ok", r#"f({"a":1})"#, "f({})"],
    );
}

#[test]
fn functionary_recipients() {
    check(
        ToolFormat::Recipients,
        false,
        "all\nHello\n>>> not a header\nx>>>f\n{\"a\": 1}",
        &["c:Hello\n>>> not a header\nx", r#"f({"a":1})"#],
    );
    check(ToolFormat::Recipients, false, "f\n{\"a\": 1}\n>>>f\n{}", &[r#"f({"a":1})"#, "f({})"]);
    check(ToolFormat::Recipients, false, "Just text", &["c:Just text"]);
    check(ToolFormat::Recipients, false, "f\nno json", &["c:no json"]);
}

#[test]
fn mistral() {
    check(
        ToolFormat::Mistral,
        false,
        r#"[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "abc123def"}, {"name": "f", "arguments": {}}]"#,
        &[r#"f({"a":1})"#, "f({})"],
    );
    check(
        ToolFormat::Mistral,
        false,
        r#"[TOOL_CALLS] [{"id": "abc123def", "name": "f", "arguments": {"a": 1}}] "#,
        &[r#"f#abc123def({"a":1})"#],
    );
    check(
        ToolFormat::Mistral,
        false,
        r#"Hm.[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]f[CALL_ID]x1[ARGS]{}"#,
        &["c:Hm.", r#"f({"a":1})"#, "f#x1({})"],
    );
    check(ToolFormat::Mistral, false, "[TOOL_CALLS]not a call at all", &["c:[TOOL_CALLS]not a call at all"]);
}

#[test]
fn gemma() {
    check(
        ToolFormat::Gemma,
        false,
        "Ok:\n```tool_code\nprint(get_weather(city='Rom', days=2))\n```",
        &["c:Ok:", r#"get_weather({"city":"Rom","days":2})"#],
    );
    check(
        ToolFormat::Gemma,
        false,
        "```json\n{\"name\": \"f\", \"parameters\": {\"a\": null}}\n```\nDone",
        &[r#"f({"a":null})"#, "c:Done"],
    );
    check(ToolFormat::Gemma, false, "```json\n{\"x\": 1}\n```\n", &["c:```json\n{\"x\": 1}\n```\n"]);
    check(ToolFormat::Gemma, false, "```tool_code\nimport os\n```", &["c:```tool_code\nimport os\n```"]);
    check(
        ToolFormat::Gemma4,
        false,
        "<|tool_call>call:f{a:<|\"|>x<|\"|>,n:2}<tool_call|><|tool_call>call:f{}<tool_call|>",
        &[r#"f({"a":"x","n":2})"#, "f({})"],
    );
    check(
        ToolFormat::Lfm2,
        false,
        "<|tool_call_start|>[f(a=\"x\"), f()]<|tool_call_end|>Now",
        &[r#"f({"a":"x"})"#, "f({})", "c:Now"],
    );
}

#[test]
fn deepseek_and_kimi() {
    let old = "Hm<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": \"`\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    check(ToolFormat::DeepSeek, false, old, &["c:Hm", r#"f({"a":"`"})"#, "f({})"]);
    let new = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜> x";
    check(ToolFormat::DeepSeek, false, new, &[r#"f({"a":1})"#, "f({})", "c:x"]);
    check(
        ToolFormat::DeepSeek,
        true,
        &format!("why\n</think>\n\n{new}"),
        &["r:why", r#"f({"a":1})"#, "f({})", "c:x"],
    );
    check(ToolFormat::DeepSeek, false, "<｜tool▁calls▁begin｜>oops", &["c:<｜tool▁calls▁begin｜>oops"]);
    let kimi = "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": 1}<|tool_call_end|><|tool_call_begin|>functions.f:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>";
    check(ToolFormat::Kimi, false, kimi, &[r#"f#functions.f:0({"a":1})"#, "f#functions.f:1({})"]);
}

#[test]
fn harmony() {
    let text = "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|call|>";
    check(ToolFormat::Harmony, false, text, &["r:Think.", "c:I look.", r#"f({"a":1})"#]);
    check(
        ToolFormat::Harmony,
        false,
        " to=functions.f<|channel|>commentary json<|message|>{}<|call|>",
        &["f({})"],
    );
    check(ToolFormat::Harmony, false, "<|channel|>final<|message|>Hi <b>\n<|return|>", &["c:Hi <b>\n"]);
    check(ToolFormat::Harmony, false, "no header here", &["c:no header here"]);
    check(
        ToolFormat::Harmony,
        false,
        "<|channel|>commentary to=python<|message|>print(1)<|call|>",
        &["c:print(1)"],
    );
    check(
        ToolFormat::Harmony,
        false,
        "<|channel|>commentary to=functions.f<|message|>{\"a\": <|call|>",
        &["f({\"a\": …"],
    );
    check(ToolFormat::Harmony, false, "<|channel|>final<|message|>cut <|en", &["c:cut "]);
}

#[test]
fn granite_command_r_and_nemotron() {
    check(
        ToolFormat::Granite,
        false,
        r#"<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]"#,
        &[r#"f({"a":1})"#],
    );
    check(ToolFormat::Granite, false, "<think>t</think>\n<response>Hi</response>", &["r:t", "c:Hi"]);
    check(
        ToolFormat::Granite,
        false,
        "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
        &["f({})"],
    );
    check(
        ToolFormat::CommandR,
        false,
        "<|START_ACTION|>[\n {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {\"a\": 1}}\n]<|END_ACTION|>",
        &[r#"f#0({"a":1})"#],
    );
    check(ToolFormat::CommandR, false, "<|START_RESPONSE|>Hi<|END_RESPONSE|>", &["c:Hi"]);
    check(
        ToolFormat::TaggedList,
        false,
        "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {}}]</TOOLCALL>",
        &["f({})"],
    );
}

#[test]
fn any_output_is_read_the_same_in_any_pieces() {
    let mut rng = Rng(99);
    let tools = tools();
    let common = [
        "{\"name\": \"f\", \"arguments\": {\"a\": \"x\"}}",
        "{\"name\":",
        "\"f\"",
        "{",
        "}",
        "[",
        "]",
        ",",
        " ",
        "\n",
        "text",
        "é",
        "<think>",
        "</think>",
        "\"",
        "{\"a\": 1}",
        "<function=f>",
        "<parameter=city>",
        "</parameter>",
        "</function>",
        "f",
        "f(a=1)",
        "```",
        ";",
        "<|im_end",
        "to=functions.f",
        "name=\"f\">",
        "<parameter name=\"city\">",
        "</invoke>",
        "<invoke name=\"f\">",
        "all\n",
        "functions.f:0",
        "function",
    ];
    let (mut called, mut plain) = (0, 0);
    for format in FORMATS {
        let mut bits: Vec<&str> = common.to_vec();
        for _ in 0..4 {
            bits.extend(format.markers());
        }
        for _ in 0..1_500 {
            let text: String = (0..1 + rng.below(12)).map(|_| bits[rng.below(bits.len())]).collect();
            let opened = rng.below(4) == 0;
            let parser = || OutputParser::new(Some(format), Some(ReasoningTags::THINK), opened, &tools);
            let whole = run(&mut parser(), &[&text]);
            let got = run(&mut parser(), &rng.pieces(&text));
            assert_eq!(got, whole, "{format:?} {text:?}");
            lines(&whole);
            let calls = whole.iter().any(|event| matches!(event, Event::ToolCallStart { .. }));
            called += usize::from(calls);
            // Where there is no call and no markup to drop, every letter is still there.
            let drops = ["<think>", "</think>", "response>", "_RESPONSE|>", "<|start|>", "<|channel|>"];
            let dropped = drops.iter().any(|mark| text.contains(mark));
            if !calls && !dropped && !matches!(format, ToolFormat::Harmony | ToolFormat::Recipients) {
                let shown: String = whole
                    .iter()
                    .map(|event| match event {
                        Event::Content(text) | Event::Reasoning(text) => text.as_str(),
                        _ => "",
                    })
                    .collect();
                let letters = |text: &str| {
                    let bare =
                        format.markers().iter().fold(text.to_owned(), |text, mark| text.replace(mark, ""));
                    bare.split_whitespace().collect::<String>()
                };
                assert_eq!(letters(&shown), letters(&text), "{format:?}");
                plain += 1;
            }
        }
    }
    assert!(called > 500 && plain > 5_000, "{called} {plain}");
}

#[test]
fn formats_are_told_from_templates() {
    let cases = [
        ("<|im_start|> <tool_call>{\"name\"", Some(ToolFormat::Tagged)),
        ("<|im_start|> <tool_call><function=", Some(ToolFormat::Tagged)),
        ("[INST] [TOOL_CALLS]", Some(ToolFormat::Mistral)),
        ("<|start_header_id|>", Some(ToolFormat::Llama3)),
        ("<|start_header_id|> <function=", Some(ToolFormat::Function)),
        ("<|start|> <|channel|>", Some(ToolFormat::Harmony)),
        ("<start_of_turn>", Some(ToolFormat::Gemma)),
        ("<|start_of_role|> <|tool_call|>", Some(ToolFormat::Granite)),
        ("<｜User｜> <｜tool▁calls▁begin｜>", Some(ToolFormat::DeepSeek)),
        ("<|im_middle|> <|tool_calls_section_begin|>", Some(ToolFormat::Kimi)),
        ("[gMASK] <tool_call> <arg_key>", Some(ToolFormat::Tagged)),
        ("<|im_start|>", None),
        ("nothing known", None),
    ];
    for (template, want) in cases {
        assert_eq!(ToolFormat::detect(template), want, "{template}");
    }
    for format in FORMATS {
        assert!(!format.markers().is_empty() && format.markers().iter().all(|marker| !marker.is_empty()));
    }
}

/// What each template writes for a call in an earlier turn is what its model writes: read back,
/// it must be the same call.
#[test]
fn calls_that_templates_write_are_read_back() {
    let mut files = vec![include_str!("data/template_goldens.json").to_owned()];
    if let Ok(more) = std::env::var("WOOTZ_TEMPLATE_GOLDENS") {
        files.extend(more.split(',').map(|path| std::fs::read_to_string(path).unwrap()));
    }
    let mut read = Vec::new();
    let mut wrong = Vec::new();
    for file in files {
        let golden: Json = serde_json::from_str(&file).unwrap();
        for template in golden["templates"].as_array().unwrap() {
            let name = template["name"].as_str().unwrap();
            let source = template["source"].as_str().unwrap();
            let chat = ChatTemplate::new(source).unwrap();
            if ToolFormat::detect(source).is_none() || !chat.capabilities().tool_calls {
                continue;
            }
            let arguments = json!({"city": "Rom \"2\"\n<b>", "days": 3, "opts": {"a": [true, null, 1.5]}});
            let call = |id: &str| ToolCall {
                id: Some(id.into()),
                name: "get_weather".into(),
                arguments: arguments.clone(),
            };
            let count = 1 + usize::from(chat.capabilities().parallel_tool_calls);
            let mut input = ChatInput { tools: tools(), add_generation_prompt: true, ..Default::default() };
            input.messages.push(Message::new("user", "Q"));
            let prompt = chat.render(&chat.adapt(&input)).unwrap().text();
            input.add_generation_prompt = false;
            input.messages.push(Message {
                role: "assistant".into(),
                tool_calls: ["call00001", "call00002"][..count].iter().map(|id| call(id)).collect(),
                ..Message::default()
            });
            let Ok(turn) = chat.render(&chat.adapt(&input)) else {
                wrong.push(format!("{name}: does not render"));
                continue;
            };
            // Templates open a turn in slightly other words when they write an old one.
            let turn = turn.text();
            let mut same = prompt.bytes().zip(turn.bytes()).take_while(|(a, b)| a == b).count();
            // Not in the middle of a tag.
            if same < prompt.len() || turn[same..].starts_with("think>") {
                same = turn.as_bytes()[..same].iter().rposition(|b| b"<[>\n".contains(b)).unwrap();
                same += usize::from(b">\n".contains(&turn.as_bytes()[same]));
            }
            let (before, output) = turn.split_at(same);
            let mut parser = OutputParser::for_template(&chat, before, &tools());
            let got = lines(&run(&mut parser, &[output]));
            // What ends the turn is content here.
            let calls: Vec<&String> = got.iter().filter(|line| !line.starts_with("r:")).take(count).collect();
            let want = format!("({arguments})");
            let right = |line: &&String| line.starts_with("get_weather") && line.ends_with(&want);
            if calls.len() == count && calls.iter().all(right) {
                read.push(name.to_owned());
            } else {
                wrong.push(format!("{name}: {output:?}\n  {got:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} read: {read:?}\n{} not:\n{}", read.len(), wrong.len(), wrong.join("\n"));
    assert!(read.len() >= 4, "{read:?}");
}
