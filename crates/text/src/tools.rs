//! Tool calls and reasoning in a model's output, told apart while it streams.
//!
//! Every family writes calls in its own way; [`OutputParser`] turns them all into [`Event`]s.
//! A call starts as soon as its name is certain and its arguments have begun; arguments are then
//! passed on as they come. What turns out to be no call is content. Only markup is dropped, and
//! white space around calls and reasoning.

mod channels;
mod head;
mod json;
mod literal;
mod sections;
mod xml;

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value as Json;

use crate::reasoning::{Delta, ReasoningSplitter, ReasoningTags};
use crate::template::{ChatTemplate, TemplateKind};
use channels::{Harmony, Recipients};
use sections::Sections;

/// Something that a model's output says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Text of the answer.
    Content(String),
    /// Text of the reasoning.
    Reasoning(String),
    /// A tool call begins.
    ToolCallStart {
        /// Place of the call among the answer's calls, from 0.
        index: usize,
        /// The id that the model gave, if its format has ids.
        id: Option<String>,
        /// The function's name.
        name: String,
    },
    /// More of a call's arguments; all deltas together are a JSON object.
    ToolCallArguments {
        /// The call's place.
        index: usize,
        /// Text to append.
        delta: String,
    },
    /// A call ends.
    ToolCallEnd {
        /// The call's place.
        index: usize,
        /// Whether the arguments are whole; not if the output broke off or went wrong.
        complete: bool,
    },
}

/// How a family writes tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ToolFormat {
    /// `<tool_call>` with JSON, function tags (Qwen3-Coder) or argument tags (GLM) inside.
    Tagged,
    /// `<seed:tool_call>` with function tags inside.
    Seed,
    /// `<minimax:tool_call>` with invoke tags inside.
    MiniMax,
    /// `<function=name>{…}</function>` (Functionary 3.1).
    Function,
    /// `>>>name` (Functionary 3.2).
    Recipients,
    /// Bare JSON at the start, or behind `<|python_tag|>` (Llama 3).
    Llama3,
    /// `[TOOL_CALLS]` with a list, or with name and `[ARGS]` (Mistral).
    Mistral,
    /// "```tool_code" with Python, or "```json" (Gemma 1 to 3).
    Gemma,
    /// `<|tool_call>call:name{…}<tool_call|>` (Gemma 4).
    Gemma4,
    /// `<｜tool▁calls▁begin｜>` (DeepSeek V3 and R1).
    DeepSeek,
    /// `<|tool_calls_section_begin|>` (Kimi K2).
    Kimi,
    /// Channels (gpt-oss).
    Harmony,
    /// `<|tool_call|>` or `<tool_call>` with JSON (Granite, Phi-4-mini).
    Granite,
    /// `<|START_ACTION|>` with a list (Command R7B and later).
    CommandR,
    /// `<|tool_call_start|>` with Python (LFM2).
    Lfm2,
    /// `<TOOLCALL>` or `<tool_calls>` with a list (Nemotron, Apriel).
    TaggedList,
}

impl ToolFormat {
    /// The format that a template's source asks for, if it speaks of tools at all.
    pub fn detect(template: &str) -> Option<Self> {
        // MiniMax M3 puts this before every tag, a form that is not read here.
        if template.contains("]<]minimax[>[") {
            return None;
        }
        let marks = [
            ("<seed:tool_call>", Self::Seed),
            ("<minimax:tool_call>", Self::MiniMax),
            ("<|tool_calls_section_begin|>", Self::Kimi),
            ("<｜tool▁calls▁begin｜>", Self::DeepSeek),
            ("<|tool_call>call:", Self::Gemma4),
            ("<|START_ACTION|>", Self::CommandR),
            ("<|tool_call_start|>", Self::Lfm2),
            ("<TOOLCALL>", Self::TaggedList),
            ("<tool_calls>[", Self::TaggedList),
            ("[TOOL_CALLS]", Self::Mistral),
            (">>>all", Self::Recipients),
        ];
        let marked = marks.iter().find(|(mark, _)| template.contains(mark)).map(|&(_, format)| format);
        marked.or_else(|| match TemplateKind::detect(template)? {
            TemplateKind::GptOss => Some(Self::Harmony),
            TemplateKind::Granite => Some(Self::Granite),
            TemplateKind::Gemma => Some(Self::Gemma),
            TemplateKind::FunctionaryV31 => Some(Self::Function),
            _ if template.contains("<tool_call>") => Some(Self::Tagged),
            _ if template.contains("<|tool_call|>") => Some(Self::Granite),
            TemplateKind::Llama3 => Some(Self::Llama3),
            _ => None,
        })
    }

    /// Special texts of the format: where they are control tokens, they must reach the parser
    /// as text.
    pub fn markers(self) -> Vec<&'static str> {
        match self {
            Self::Harmony => channels::HARMONY.to_vec(),
            Self::Recipients => vec![">>>"],
            other => sections::markers(other),
        }
    }
}

/// Turns a model's output into events.
///
/// ```
/// use wootz_text::tools::{Event, OutputParser, ToolFormat};
///
/// let tools = [serde_json::json!({"type": "function", "function": {"name": "now"}})];
/// let mut parser = OutputParser::new(Some(ToolFormat::Tagged), None, false, &tools);
/// let mut events = Vec::new();
/// for piece in ["Let me look.\n<tool_", "call>{\"name\": \"now\", \"argu", "ments\": {}}</tool_call>"] {
///     events.extend(parser.push(piece));
/// }
/// events.extend(parser.finish());
/// assert_eq!(events, [
///     Event::Content("Let me look.".into()),
///     Event::ToolCallStart { index: 0, id: None, name: "now".into() },
///     Event::ToolCallArguments { index: 0, delta: "{}".into() },
///     Event::ToolCallEnd { index: 0, complete: true },
/// ]);
/// ```
#[derive(Debug)]
pub struct OutputParser {
    splitter: Option<ReasoningSplitter>,
    engine: Engine,
    calls: Calls,
}

#[derive(Debug)]
enum Engine {
    Sections(Sections),
    Harmony(Harmony),
    Recipients(Recipients),
}

impl OutputParser {
    /// A parser for one answer.
    ///
    /// `opened` says that the prompt ended inside the reasoning. `tools` are the definitions as
    /// in OpenAI's `tools`; without any, nothing is read as a call.
    pub fn new(
        format: Option<ToolFormat>,
        reasoning: Option<ReasoningTags>,
        opened: bool,
        tools: &[Json],
    ) -> Self {
        let schemas = Arc::new(Schemas::new(tools));
        let engine = match format {
            Some(ToolFormat::Harmony) => Engine::Harmony(Harmony::new()),
            Some(ToolFormat::Recipients) => Engine::Recipients(Recipients::new()),
            other => Engine::Sections(Sections::new(other, &schemas)),
        };
        let splitter = match engine {
            Engine::Harmony(_) => None,
            _ => reasoning.map(|tags| ReasoningSplitter::new(tags, opened)),
        };
        Self { splitter, engine, calls: Calls::new(schemas) }
    }

    /// A parser for the answer to a prompt of this template.
    pub fn for_template(template: &ChatTemplate, prompt: &str, tools: &[Json]) -> Self {
        let reasoning = ReasoningTags::detect(template.source());
        let opened = reasoning.is_some_and(|tags| tags.opened_by(prompt));
        let reasoning = reasoning.unwrap_or(ReasoningTags::THINK);
        Self::new(ToolFormat::detect(template.source()), Some(reasoning), opened, tools)
    }

    /// Takes the next piece of output.
    pub fn push(&mut self, text: &str) -> Vec<Event> {
        match &mut self.splitter {
            None => self.answer(text),
            Some(splitter) => splitter.push(text).into_iter().for_each(|delta| self.delta(delta)),
        }
        std::mem::take(&mut self.calls.events)
    }

    /// Ends the output and gives what was held back.
    pub fn finish(&mut self) -> Vec<Event> {
        let rest = self.splitter.as_mut().map(ReasoningSplitter::finish).unwrap_or_default();
        rest.into_iter().for_each(|delta| self.delta(delta));
        match &mut self.engine {
            Engine::Sections(sections) => sections.finish(&mut self.calls),
            Engine::Harmony(harmony) => harmony.finish(&mut self.calls),
            Engine::Recipients(recipients) => recipients.finish(&mut self.calls),
        }
        self.calls.finish();
        std::mem::take(&mut self.calls.events)
    }

    fn delta(&mut self, delta: Delta) {
        match delta {
            Delta::Reasoning(text) => self.calls.push(Event::Reasoning(text)),
            Delta::Content(text) => self.answer(&text),
        }
    }

    fn answer(&mut self, text: &str) {
        match &mut self.engine {
            Engine::Sections(sections) => sections.push(text, &mut self.calls),
            Engine::Harmony(harmony) => harmony.push(text, &mut self.calls),
            Engine::Recipients(recipients) => recipients.push(text, &mut self.calls),
        }
    }
}

/// What a tool's parameter takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParameterKind {
    /// A string.
    Text,
    /// Not known to be a string: JSON if it reads as such.
    Any,
}

/// The tools that may be called.
#[derive(Debug, Default)]
struct Schemas {
    text_parameters: HashMap<String, Vec<String>>,
}

impl Schemas {
    fn new(tools: &[Json]) -> Self {
        let read = |tool: &Json| {
            let function = tool.get("function").unwrap_or(tool);
            let properties = function["parameters"]["properties"].as_object();
            let texts = properties.into_iter().flatten().filter(|(_, spec)| spec["type"] == "string");
            let texts = texts.map(|(key, _)| key.clone()).collect();
            Some((function["name"].as_str()?.to_owned(), texts))
        };
        Self { text_parameters: tools.iter().filter_map(read).collect() }
    }

    fn kind(&self, tool: &str, parameter: &str) -> ParameterKind {
        match self.text_parameters.get(tool) {
            Some(texts) if texts.iter().any(|text| text == parameter) => ParameterKind::Text,
            _ => ParameterKind::Any,
        }
    }
}

/// Collects events and keeps them in order.
#[derive(Debug)]
struct Calls {
    events: Vec<Event>,
    schemas: Arc<Schemas>,
    /// Whether only tools that were offered count as calls.
    only_known: bool,
    next: usize,
    open: bool,
    /// How often something was passed on.
    pushed: usize,
    /// White space that is content if more content follows.
    space: String,
    /// White space is to be skipped: a call was the last event.
    after_call: bool,
}

impl Calls {
    fn new(schemas: Arc<Schemas>) -> Self {
        Self {
            events: Vec::new(),
            schemas,
            only_known: false,
            next: 0,
            open: false,
            pushed: 0,
            space: String::new(),
            after_call: false,
        }
    }

    fn push(&mut self, event: Event) {
        self.pushed += 1;
        match (self.events.last_mut(), event) {
            (Some(Event::Content(last)), Event::Content(text)) => last.push_str(&text),
            (Some(Event::Reasoning(last)), Event::Reasoning(text)) => last.push_str(&text),
            (Some(Event::ToolCallArguments { delta: last, .. }), Event::ToolCallArguments { delta, .. }) => {
                last.push_str(&delta)
            }
            (_, event) => self.events.push(event),
        }
    }

    /// Content; white space at its end waits for more.
    fn content(&mut self, text: &str) {
        let text = if self.after_call { text.trim_start() } else { text };
        let body = text.trim_end();
        if !body.is_empty() {
            self.after_call = false;
            let mut shown = std::mem::take(&mut self.space);
            shown.push_str(body);
            self.push(Event::Content(shown));
        }
        self.space.push_str(&text[body.len()..]);
    }

    fn is_open(&self) -> bool {
        self.open
    }

    fn knows(&self, name: &str) -> bool {
        self.schemas.text_parameters.contains_key(name)
    }

    fn may_call(&self, name: &str) -> bool {
        !self.only_known || self.knows(name)
    }

    fn start(&mut self, id: Option<String>, name: &str) {
        self.space.clear();
        self.open = true;
        self.push(Event::ToolCallStart { index: self.next, id, name: name.to_owned() });
    }

    fn arguments(&mut self, delta: &str) {
        if self.open && !delta.is_empty() {
            self.push(Event::ToolCallArguments { index: self.next, delta: delta.to_owned() });
        }
    }

    fn end(&mut self, complete: bool) {
        self.push(Event::ToolCallEnd { index: self.next, complete });
        self.next += 1;
        self.open = false;
        self.after_call = true;
    }

    fn finish(&mut self) {
        let space = std::mem::take(&mut self.space);
        if !self.after_call && !space.is_empty() {
            self.push(Event::Content(space));
        }
    }
}

/// What a character did to a body.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// The body goes on.
    More,
    /// The body ends with it.
    Done,
    /// The body ended before this text, which ends with the character.
    Unread(String),
    /// This is no call.
    Bad,
}

/// Reads what stands between the markers of a section.
trait Body: std::fmt::Debug + Send {
    /// Reads one character.
    fn feed(&mut self, c: char, calls: &mut Calls) -> Step;

    /// Passes on what is held back when the output ends inside the body.
    fn finish(&mut self, _calls: &mut Calls) {}

    /// Whether all calls so far are whole and none has begun: what was read since is markup.
    fn at_rest(&self) -> bool {
        false
    }
}
