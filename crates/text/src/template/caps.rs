//! What a template can do, found by rendering small conversations, and how to suit it.

use serde_json::{Value as Json, json};

use super::mark::Level;
use super::{ChatInput, ChatTemplate, Content, Message, ToolCall};

/// What a template does with the parts of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// System messages reach the prompt.
    pub system: bool,
    /// Messages of the role `developer` reach the prompt.
    pub developer: bool,
    /// Content may be a string.
    pub text_content: bool,
    /// Content may be a list of parts.
    pub part_content: bool,
    /// An assistant's content may be absent beside tool calls.
    pub null_content: bool,
    /// Tool definitions reach the prompt.
    pub tools: bool,
    /// Tool calls reach the prompt.
    pub tool_calls: bool,
    /// Several calls in one message reach the prompt.
    pub parallel_tool_calls: bool,
    /// Tool answers reach the prompt.
    pub tool_answers: bool,
    /// Arguments are wanted as a string of JSON, not as an object.
    pub text_arguments: bool,
    /// The variable `enable_thinking` changes the prompt.
    pub thinking_switch: bool,
}

impl ChatTemplate {
    /// Finds out what the template can do; done once, then remembered.
    pub fn capabilities(&self) -> Capabilities {
        *self.caps.get_or_init(|| self.probe())
    }

    fn probe(&self) -> Capabilities {
        let user = || Message::new("user", "Qask");
        let calling = |arguments: &Json, content: Content, names: &[&str]| Message {
            role: "assistant".into(),
            content,
            tool_calls: names
                .iter()
                .map(|&name| ToolCall {
                    id: Some("call00001".into()),
                    name: name.into(),
                    arguments: arguments.clone(),
                })
                .collect(),
            ..Message::default()
        };
        let answer = || Message {
            tool_call_id: Some("call00001".into()),
            name: Some("Qtool".into()),
            ..Message::new("tool", "Qanswer")
        };
        let object = json!({"Qkey": "Qvalue"});
        let text = Json::from(object.to_string());
        let tool = json!({"type": "function", "function": {"name": "Qtool", "description": "Qabout",
            "parameters": {"type": "object", "properties": {"Qkey": {"type": "string"}}}}});
        let call = |arguments: &Json, content: Content, names: &[&str]| {
            self.try_out(vec![user(), calling(arguments, content, names), answer()], &[&tool], None)
        };
        let plain = self.try_out(vec![user()], &[], None);
        let developer = self.try_out(vec![Message::new("developer", "Qrule"), user()], &[], None);
        let parts = json!({"type": "text", "text": "Qask"});
        let parts = Message { content: Content::Parts(vec![parts]), ..user() };
        let parts = self.try_out(vec![parts], &[], None);
        let with_object = call(&object, "".into(), &["Qtool"]);
        let with_text = call(&text, "".into(), &["Qtool"]);
        let good = |prompt: &str| prompt.contains("Qkey") && !prompt.contains("\\\"");
        let text_arguments = !good(&with_object) && good(&with_text);
        let (arguments, called) = if text_arguments { (&text, &with_text) } else { (&object, &with_object) };
        let with_null = call(arguments, Content::None, &["Qtool"]);
        let switched = |on| self.try_out(vec![user()], &[], Some(on));
        Capabilities {
            system: self.try_out(vec![Message::new("system", "Qrule"), user()], &[], None).contains("Qrule"),
            developer: developer.contains("Qrule"),
            text_content: plain.contains("Qask"),
            part_content: parts.contains("Qask") && !parts.contains("'Qask'") && !parts.contains("\"Qask\""),
            null_content: with_null == *called,
            tools: self.try_out(vec![user()], &[&tool], None).contains("Qabout"),
            tool_calls: called.contains("Qkey") && called.contains("Qvalue"),
            parallel_tool_calls: call(arguments, "".into(), &["Qtool", "Qother"]).contains("Qother"),
            tool_answers: called.contains("Qanswer"),
            text_arguments,
            thinking_switch: switched(true) != switched(false),
        }
    }

    /// Renders a small conversation; a refusal is an empty prompt.
    fn try_out(&self, messages: Vec<Message>, tools: &[&Json], thinking: Option<bool>) -> String {
        let mut input = ChatInput {
            messages,
            tools: tools.iter().map(|&tool| tool.clone()).collect(),
            add_generation_prompt: true,
            ..ChatInput::default()
        };
        input.extra.extend(thinking.map(|on| ("enable_thinking".to_owned(), Json::from(on))));
        let rendered = super::on_deep_stack(self.fuel(&input), || self.pass(&input, Level::Nothing, '\0'));
        rendered.and_then(|prompt| prompt).unwrap_or_default()
    }

    /// Puts a conversation into the form that the template understands.
    ///
    /// Arguments become objects or strings; text parts become one string, lines apart; `null`
    /// content becomes empty where the template needs a string; `developer` becomes `system`;
    /// reasoning is also given as `thinking` where the template reads that;
    /// system messages go before the text of the next user message where the template knows none.
    #[must_use]
    pub fn adapt(&self, input: &ChatInput) -> ChatInput {
        let caps = self.capabilities();
        let mut out = input.clone();
        let mut rules = String::new();
        let mut messages = Vec::with_capacity(out.messages.len());
        for mut message in std::mem::take(&mut out.messages) {
            if message.role == "developer" && !caps.developer {
                message.role = "system".into();
            }
            message.content = match message.content {
                Content::Parts(parts) if !caps.part_content => joined(parts),
                Content::Text(text) if caps.part_content && !caps.text_content => {
                    Content::Parts(vec![json!({"type": "text", "text": text})])
                }
                Content::None if !caps.null_content => Content::Text(String::new()),
                content => content,
            };
            // gpt-oss's name for it; its template refuses both beside calls.
            let beside_calls = !message.tool_calls.is_empty()
                && !matches!(&message.content, Content::Text(text) if text.is_empty())
                && message.content != Content::None;
            if let (Some(text), true, false) =
                (&message.reasoning_content, self.source.contains(".thinking"), beside_calls)
            {
                message.extra.entry("thinking").or_insert_with(|| text.clone().into());
            }
            for call in &mut message.tool_calls {
                call.arguments = match &call.arguments {
                    Json::String(text) if !caps.text_arguments => match serde_json::from_str(text) {
                        Ok(object @ Json::Object(_)) => object,
                        _ => Json::String(text.clone()),
                    },
                    Json::Object(_) if caps.text_arguments => Json::String(call.arguments.to_string()),
                    same => same.clone(),
                };
            }
            match (&message.role[..], &mut message.content) {
                ("system", Content::Text(text)) if !caps.system => {
                    rules.push_str(text);
                    rules.push_str("\n\n");
                    continue;
                }
                ("user", Content::Text(text)) if !rules.is_empty() => {
                    *text = std::mem::take(&mut rules) + text;
                }
                _ => {}
            }
            messages.push(message);
        }
        if !rules.is_empty() {
            messages.push(Message::new("user", rules.trim_end()));
        }
        out.messages = messages;
        out
    }
}

/// The text of parts, lines apart; parts that are no text stay as they are.
fn joined(parts: Vec<Json>) -> Content {
    let texts: Option<Vec<&str>> =
        parts.iter().map(|part| part["text"].as_str().filter(|_| part["type"] == "text")).collect();
    match texts {
        Some(texts) => Content::Text(texts.join("\n")),
        None => Content::Parts(parts),
    }
}
