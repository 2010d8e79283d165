//! Tools: how a conversation tells them to models whose template cannot, and the grammars of calls.

use serde_json::{Value, json};
use wootz::Tokenizer;
use wootz::template::{Content, Message};
use wootz::tools::ToolFormat;

use crate::chat::{Before, text_of};
use crate::constrain::{literal, schema_rule, until};
use crate::error::ApiError;
use crate::fields::{Field, Fields, Takes, field, kind};

/// Which tools an answer may or must call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Choice {
    None,
    #[default]
    Auto,
    Required,
    Named(String),
}

const FUNCTION: &[Field] = &[
    field("name", Takes::Text, "The function's name."),
    field("description", Takes::Text, "What it does."),
    field("parameters", Takes::Object, "A JSON Schema of its arguments."),
    field("strict", Takes::Bool, "Whether arguments must follow the schema."),
];

const TOOL: &[Field] = &[
    field("type", Takes::Choice(&["function"]), "The kind of tool."),
    field("function", Takes::Object, "The function."),
];

/// Reads OpenAI's `tools`.
///
/// # Errors
/// Names the field of the tool at fault.
pub(crate) fn read_openai(list: &[Value]) -> Result<Vec<Value>, ApiError> {
    let mut names = Vec::new();
    for (i, tool) in list.iter().enumerate() {
        let tool = Fields::item(tool, &format!("tools[{i}]"), TOOL)?;
        tool.required("function", "an object")?;
        let function = tool.object("function", FUNCTION)?.unwrap_or_default();
        let name = function.required_text("name")?;
        check_name(&function, name, &mut names)?;
    }
    Ok(list.to_vec())
}

/// Refuses names that no format of calls could carry, and two tools of one name.
pub(crate) fn check_name(fields: &Fields, name: &str, names: &mut Vec<String>) -> Result<(), ApiError> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b':' | b'/');
    if name.is_empty() || name.len() > 256 || !name.bytes().all(plain) {
        return Err(fields.wrong("name", "1 to 256 letters, digits, `_`, `-`, `.`, `:` or `/`"));
    }
    if names.iter().any(|other| other == name) {
        return Err(fields.wrong("name", format!("another name: two tools are called {name}")));
    }
    names.push(name.to_owned());
    Ok(())
}

/// Reads OpenAI's `tool_choice`.
///
/// # Errors
/// It is none of its forms, or names a tool that is not there.
pub(crate) fn choice_openai(value: Option<&Value>, tools: &[Value]) -> Result<Choice, ApiError> {
    let expected =
        "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": …}}";
    let choice = match value {
        None => Choice::Auto,
        Some(Value::String(text)) => match text.as_str() {
            "none" => Choice::None,
            "auto" => Choice::Auto,
            "required" => Choice::Required,
            _ => return Err(ApiError::field("tool_choice", expected)),
        },
        Some(Value::Object(map)) => {
            // The form of responses has the name outside.
            let name = map.get("function").and_then(|f| f.get("name")).or_else(|| map.get("name"));
            match name.and_then(Value::as_str) {
                Some(name) => Choice::Named(name.to_owned()),
                None => return Err(ApiError::field("tool_choice", expected)),
            }
        }
        Some(other) => {
            return Err(ApiError::field("tool_choice", format!("{expected}, found {}", kind(other))));
        }
    };
    check_choice(&choice, tools)?;
    Ok(choice)
}

/// Refuses choices among tools that are not there.
pub(crate) fn check_choice(choice: &Choice, tools: &[Value]) -> Result<(), ApiError> {
    match choice {
        Choice::Named(name) if !tools.iter().any(|t| name_of(t) == name) => {
            let names: Vec<&str> = tools.iter().map(name_of).take(20).collect();
            Err(ApiError::field("tool_choice", format!("the name of a tool of {names:?}, found {name:?}")))
        }
        Choice::Required if tools.is_empty() => {
            Err(ApiError::field("tools", "at least one tool, as `tool_choice` asks for a call"))
        }
        _ => Ok(()),
    }
}

fn function(tool: &Value) -> &Value {
    tool.get("function").unwrap_or(tool)
}

fn name_of(tool: &Value) -> &str {
    function(tool)["name"].as_str().unwrap_or_default()
}

/// Whether the arguments of a tool must follow its schema.
pub(crate) fn is_strict(tool: &Value) -> bool {
    function(tool)["strict"] == true
}

/// Tells tools, calls and answers of tools in plain words, for templates that know nothing of them.
///
/// The form of calls is that of Hermes, which most models have seen. `knows_calls` says that the template can write
/// calls and answers itself.
pub(crate) fn in_words(messages: Vec<Message>, tools: &[Value], knows_calls: bool) -> Vec<Message> {
    let mut out: Vec<Message> = Vec::with_capacity(messages.len() + 1);
    for message in messages {
        if knows_calls || (message.role != "tool" && message.tool_calls.is_empty()) {
            out.push(message);
            continue;
        }
        if message.role == "tool" {
            let answer = format!("<tool_response>\n{}\n</tool_response>", text_of(&message.content));
            // Answers to calls of one turn are one turn.
            match out.last_mut() {
                Some(Message { role, content: Content::Text(text), .. })
                    if role == "user" && text.ends_with("</tool_response>") =>
                {
                    text.push('\n');
                    text.push_str(&answer);
                }
                _ => out.push(Message::new("user", answer)),
            }
            continue;
        }
        let mut text = text_of(&message.content);
        for call in &message.tool_calls {
            if !text.is_empty() {
                text.push('\n');
            }
            let arguments = match &call.arguments {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let name = Value::from(call.name.as_str());
            text.push_str(&format!(
                "<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>"
            ));
        }
        out.push(Message { tool_calls: Vec::new(), ..Message::new("assistant", text) });
    }
    if !tools.is_empty() {
        let list: Vec<String> = tools.iter().map(Value::to_string).collect();
        let words = format!(
            "You may call functions to help with the user's request. They are described inside <tools></tools>:\n\
             <tools>\n{}\n</tools>\n\
             For each call write a JSON object with the function's name and arguments inside \
             <tool_call></tool_call>:\n\
             <tool_call>\n{{\"name\": NAME, \"arguments\": OBJECT}}\n</tool_call>",
            list.join("\n")
        );
        match out.first_mut() {
            Some(first) if matches!(first.role.as_str(), "system" | "developer") => {
                first.content = Content::Text(format!("{}\n\n{words}", text_of(&first.content)));
            }
            _ => out.insert(0, Message::new("system", words)),
        }
    }
    out
}

/// How a format writes a call: all but the arguments, which are JSON everywhere here.
struct Form {
    /// Before all calls.
    open: &'static str,
    /// Before the name.
    call: &'static str,
    /// Between name and arguments.
    middle: &'static str,
    /// Behind the arguments.
    end: &'static str,
    /// Between two calls.
    between: &'static str,
    /// Behind all calls.
    close: &'static str,
    /// Whether several calls can stand in one answer.
    several: bool,
}

const fn form(
    open: &'static str,
    (call, middle, end): (&'static str, &'static str, &'static str),
    between: &'static str,
    close: &'static str,
    several: bool,
) -> Form {
    Form { open, call, middle, end, between, close, several }
}

const JSON: (&str, &str, &str) = ("{\"name\": \"", "\", \"arguments\": ", "}");

/// The form that a model of this format is held to; none for formats whose arguments are no JSON.
fn form_of(format: ToolFormat, template: &str) -> Option<Form> {
    let tagged = ("<tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>");
    Some(match format {
        ToolFormat::Tagged => form("", tagged, "\n", "", true),
        ToolFormat::Granite if template.contains("<|tool_call|>") => {
            form("<|tool_call|>[", JSON, ", ", "]", true)
        }
        ToolFormat::Granite => form("", tagged, "\n", "", true),
        ToolFormat::TaggedList if template.contains("<TOOLCALL>") => {
            form("<TOOLCALL>[", JSON, ", ", "]</TOOLCALL>", true)
        }
        ToolFormat::TaggedList => form("<tool_calls>[", JSON, ", ", "]</tool_calls>", true),
        ToolFormat::Llama3 => form("", ("{\"name\": \"", "\", \"parameters\": ", "}"), "", "", false),
        ToolFormat::Mistral if template.contains("[ARGS]") => {
            form("", ("[TOOL_CALLS]", "[ARGS]", ""), "", "", true)
        }
        ToolFormat::Mistral => form("[TOOL_CALLS][", JSON, ", ", "]", true),
        ToolFormat::Function => form("", ("<function=", ">", "</function>"), "", "", true),
        ToolFormat::Gemma => form("```json\n[", JSON, ", ", "]\n```", true),
        ToolFormat::DeepSeek => form(
            "<｜tool▁calls▁begin｜>",
            ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
            "\n",
            "<｜tool▁calls▁end｜>",
            true,
        ),
        ToolFormat::Kimi => form(
            "<|tool_calls_section_begin|>",
            ("<|tool_call_begin|>functions.", ":0<|tool_call_argument_begin|>", "<|tool_call_end|>"),
            "",
            "<|tool_calls_section_end|>",
            true,
        ),
        ToolFormat::Harmony => form(
            "",
            ("<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", ""),
            "",
            "",
            false,
        ),
        // The prompt ends with the first `>>>`.
        ToolFormat::Recipients => form("", ("", "\n", ""), ">>>", "", true),
        _ => return None,
    })
}

/// What a grammar of calls is made of.
pub(crate) struct Grammar<'a> {
    pub(crate) tokenizer: &'a Tokenizer,
    pub(crate) format: ToolFormat,
    pub(crate) template: &'a str,
    pub(crate) tools: &'a [Value],
    pub(crate) choice: &'a Choice,
    pub(crate) parallel: bool,
    /// Whether there must be a call; if not, text may stand in its place.
    pub(crate) forced: bool,
    pub(crate) before: Option<&'a Before>,
}

impl Grammar<'_> {
    /// The grammar in Lark's syntax.
    ///
    /// # Errors
    /// Calls of the model's format are not JSON, so that they cannot be held to a schema.
    pub(crate) fn lark(&self) -> Result<String, ApiError> {
        let Some(form) = form_of(self.format, self.template) else {
            let field = if self.forced { "tool_choice" } else { "tools" };
            let why = "this model's calls are not written in JSON, so they cannot be held to a schema; use \"auto\" \
                       without `strict`";
            return Err(ApiError::unsupported(field, why));
        };
        let literal =
            |text: &str| if text.is_empty() { String::new() } else { literal(self.tokenizer, text) };
        let mut rules = String::new();
        let mut names = Vec::new();
        let wanted = |tool: &&Value| match self.choice {
            Choice::Named(name) => name_of(tool) == name,
            _ => true,
        };
        for (i, tool) in self.tools.iter().filter(wanted).enumerate() {
            let schema = match function(tool).get("parameters") {
                Some(schema @ Value::Object(_)) if self.forced || is_strict(tool) => schema.clone(),
                _ => json!({ "type": "object" }),
            };
            let head = literal(&format!("{}{}{}", form.call, name_of(tool), form.middle));
            let rule = format!("call_{i}: {head} args_{i} {}\n", literal(form.end));
            rules.push_str(&rule);
            rules.push_str(&format!("args_{i}: {}\n", schema_rule(&schema)));
            names.push(format!("call_{i}"));
        }
        rules.push_str(&format!("call: {}\n", names.join(" | ")));
        let more = match (self.parallel && form.several, literal(form.between)) {
            (true, between) => format!("({between} call)*"),
            (false, _) => String::new(),
        };
        let calls = format!("{} call {more} {}", literal(form.open), literal(form.close));
        rules.push_str(&format!("calls: {calls}\n"));
        let reasoning = match self.before {
            Some(before) => {
                rules.push_str(&before.rules(self.tokenizer));
                "reasoning "
            }
            None => "",
        };
        if self.forced {
            return Ok(format!("start: {reasoning}calls\n{rules}"));
        }
        // Text goes on until the marker of a call, from which on the schema holds.
        let marker = if form.open.is_empty() { form.call } else { form.open };
        let begins = marker.split(['{', '[']).next().unwrap_or_default().trim_end();
        if begins.is_empty() {
            // Calls begin at once or not at all; an answer in words begins otherwise.
            let words = match self.format {
                ToolFormat::Recipients => "words: \"all\\n\" /(.|\\n)*/\n",
                _ => "words: /[^{](.|\\n)*/\n",
            };
            return Ok(format!("start: {reasoning}(words | calls)\n{words}{rules}"));
        }
        let rest = marker.strip_prefix(begins).unwrap_or_default();
        let head = until(self.tokenizer, "words", begins);
        let body = rules.replacen(
            &format!("calls: {calls}\n"),
            &format!("calls: {}\n", self.behind(&form, &more, rest, begins)?),
            1,
        );
        Ok(format!("start: {reasoning}(words calls)? TEXT\nTEXT: /(.|\\n)*/\n{head}{body}"))
    }

    /// The calls behind a marker that the text before them has ended with already.
    fn behind(&self, form: &Form, more: &str, rest: &str, begins: &str) -> Result<String, ApiError> {
        let literal =
            |text: &str| if text.is_empty() { String::new() } else { literal(self.tokenizer, text) };
        if !form.open.is_empty() {
            return Ok(format!("{} call {more} {}", literal(rest), literal(form.close)));
        }
        // The first call has lost its head to the marker.
        let mut alternatives = Vec::new();
        for (i, tool) in self.tools.iter().enumerate() {
            let head = format!("{}{}{}", form.call, name_of(tool), form.middle);
            let head = head.strip_prefix(begins).unwrap_or_default();
            alternatives.push(format!("{} args_{i} {}", literal(head), literal(form.end)));
        }
        Ok(format!("({}) {more}", alternatives.join(" | ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}})
    }

    #[test]
    fn tools_are_read_and_faults_named() {
        assert_eq!(read_openai(&[tool("a"), tool("b")]).unwrap().len(), 2);
        let message = |list: &[Value]| read_openai(list).unwrap_err().message;
        assert_eq!(message(&[json!(1)]), "`tools[0]`: expected an object, found a number");
        assert_eq!(
            message(&[json!({"type": "function"})]),
            "`tools[0].function`: expected an object; it is missing"
        );
        assert_eq!(
            message(&[tool("a"), tool("a")]),
            "`tools[1].function.name`: expected another name: two tools are called a"
        );
        assert!(message(&[tool("a b")]).starts_with("`tools[0].function.name`: expected 1 to 256 letters"));
        assert!(
            message(&[json!({"type": "web_search"})]).contains("`tools[0].type`: expected one of function")
        );
    }

    #[test]
    fn choices_are_read_in_all_forms() {
        let tools = [tool("a")];
        let read = |value: Value| choice_openai(Some(&value), &tools);
        assert_eq!(choice_openai(None, &tools).unwrap(), Choice::Auto);
        assert_eq!(read(json!("required")).unwrap(), Choice::Required);
        let named = Choice::Named("a".into());
        assert_eq!(read(json!({"type": "function", "function": {"name": "a"}})).unwrap(), named);
        assert_eq!(read(json!({"type": "function", "name": "a"})).unwrap(), named);
        assert!(read(json!({"type": "function", "name": "b"})).is_err());
        assert!(read(json!("any")).is_err());
        assert!(choice_openai(Some(&json!("required")), &[]).is_err());
    }

    #[test]
    fn calls_and_answers_are_told_in_words() {
        let call = wootz::template::ToolCall { id: None, name: "a".into(), arguments: json!({"x": 1}) };
        let messages = vec![
            Message::new("user", "go"),
            Message { tool_calls: vec![call], ..Message::new("assistant", "") },
            Message::new("tool", "one"),
            Message::new("tool", "two"),
        ];
        let out = in_words(messages, &[tool("a")], false);
        let roles: Vec<&str> = out.iter().map(|m| m.role.as_str()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "user"]);
        assert!(text_of(&out[0].content).contains("<tools>\n{\"type\":\"function\""));
        assert_eq!(
            text_of(&out[2].content),
            "<tool_call>\n{\"name\": \"a\", \"arguments\": {\"x\":1}}\n</tool_call>"
        );
        assert_eq!(
            text_of(&out[3].content),
            "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>"
        );
    }
}
