//! What templates can do, and conversations made to suit them.

use serde_json::{Value as Json, json};
use wootz_text::template::{ChatInput, ChatTemplate, Content, Message, TemplateError, TemplateKind};

fn ours(name: &str) -> ChatTemplate {
    let path = format!("{}/tests/data/templates/{name}.jinja", env!("CARGO_MANIFEST_DIR"));
    ChatTemplate::new(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn input(messages: Json) -> ChatInput {
    let messages = Message::list_from_json(messages.as_array().unwrap()).unwrap();
    ChatInput { messages, ..ChatInput::default() }
}

#[test]
fn probing_tells_what_a_template_does() {
    let hermes = ours("hermes-thinking");
    let caps = hermes.capabilities();
    assert_eq!(hermes.kind(), Some(TemplateKind::Hermes));
    assert!(caps.system && caps.tools && caps.tool_calls && caps.parallel_tool_calls && caps.tool_answers);
    assert!(caps.thinking_switch && caps.text_content && caps.null_content);
    assert!(!caps.part_content && !caps.text_arguments && !caps.developer);
    let header = ours("header-tools");
    assert_eq!(header.kind(), Some(TemplateKind::Llama3));
    assert!(header.capabilities().tool_calls && !header.capabilities().parallel_tool_calls);
    assert!(header.capabilities().part_content && !header.capabilities().thinking_switch);
    let chatml = ChatTemplate::builtin("chatml").unwrap();
    assert!(!chatml.capabilities().tools && !chatml.capabilities().tool_calls);
    assert!(ours("parts").capabilities().part_content);
    let strings = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name + c.function.arguments }}{% endfor %}{% endfor %}";
    assert!(ChatTemplate::new(strings).unwrap().capabilities().text_arguments);
    let none = ChatTemplate::new("{{ raise_exception('no') }}").unwrap().capabilities();
    assert!(!none.system && !none.text_content && !none.tools && !none.thinking_switch);
}

#[test]
fn conversations_are_made_to_suit() {
    let source = "{% for m in messages %}{{ raise_exception('no system') if m.role == 'system' }}[{{ m.role + m.content }}]{% for c in m.tool_calls or [] %}{{ c.function.name + c.function.arguments }}{% endfor %}{% endfor %}";
    let chat = ChatTemplate::new(source).unwrap();
    let talk = input(json!([
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": null,
         "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]},
    ]));
    let mut with_developer_allowed = talk.clone();
    with_developer_allowed.messages[0].role = "system".into();
    assert!(matches!(chat.render(&with_developer_allowed), Err(TemplateError::Refused { .. })));
    let prompt = chat.render(&chat.adapt(&with_developer_allowed)).unwrap().text();
    assert_eq!(prompt, "[userBe kind.\n\na\nb][assistant]f{\"x\":1}");
    let objects = ours("hermes-thinking");
    let adapted = objects.adapt(&input(json!([
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "not json"}}]},
    ])));
    assert_eq!(adapted.messages[0].tool_calls[0].arguments, json!({"x": 1}));
    assert_eq!(adapted.messages[1].tool_calls[0].arguments, json!("not json"));
    let thinking =
        ours("typescript-macros").adapt(&input(json!([{"role": "assistant", "reasoning_content": "r"}])));
    assert!(thinking.messages[0].extra.is_empty());
    let reads = ChatTemplate::new("{{ messages[0].thinking }}").unwrap();
    let thinking = reads.adapt(&input(json!([{"role": "assistant", "reasoning_content": "r"}])));
    assert_eq!(reads.render(&thinking).unwrap().text(), "r");
    let image = json!([{"role": "user", "content": [{"type": "image"}]}]);
    assert!(matches!(chat.adapt(&input(image)).messages[0].content, Content::Parts(_)));
}

#[test]
fn wrong_messages_are_named() {
    let cases = [
        (json!([3]), "message 0: `message`: expected an object, found a number"),
        (json!([{"content": "x"}]), "message 0: `role`: expected a string, found nothing"),
        (
            json!([{"role": "user"}, {"role": "user", "content": 1}]),
            "message 1: `content`: expected a string, null or an array of objects, found a number",
        ),
        (
            json!([{"role": "user", "tool_calls": [{"function": {"name": "f", "arguments": 1}}]}]),
            "message 0: `tool_calls[].function.arguments`: expected a string or an object, found a number",
        ),
    ];
    for (list, want) in cases {
        let error = Message::list_from_json(list.as_array().unwrap()).unwrap_err();
        assert_eq!(error.to_string(), want);
    }
}
