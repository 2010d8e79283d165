//! Outputs whose calls stand in sections between content.

use std::sync::Arc;

use super::head::{self, HeadCalls};
use super::json::JsonCalls;
use super::literal::{Collected, gemma_call, python_calls};
use super::xml::{self, TaggedCall, XmlCalls};
use super::{Body, Calls, Schemas, Step, ToolFormat};
use crate::stop::{Piece, Scanner};

/// Makes what reads a section.
type MakeBody = fn(&Arc<Schemas>) -> Box<dyn Body>;

/// A kind of section that a format has.
#[derive(Clone, Copy)]
struct Section {
    open: &'static str,
    close: &'static str,
    /// What reads the section; none for markup that is only dropped.
    body: Option<MakeBody>,
    /// Whether only tools that were offered count, as the markers are no proof of a call.
    only_known: bool,
}

impl std::fmt::Debug for Section {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.open)
    }
}

const fn section(open: &'static str, close: &'static str, body: MakeBody) -> Section {
    Section { open, close, body: Some(body), only_known: false }
}

const fn known(section: Section) -> Section {
    Section { only_known: true, ..section }
}

const fn dropped(open: &'static str) -> Section {
    Section { open, close: "", body: None, only_known: false }
}

fn json(_: &Arc<Schemas>) -> Box<dyn Body> {
    Box::new(JsonCalls::new())
}

fn tagged(schemas: &Arc<Schemas>) -> Box<dyn Body> {
    Box::new(TaggedCall::new(schemas))
}

fn functions(schemas: &Arc<Schemas>) -> Box<dyn Body> {
    Box::new(XmlCalls::new(&xml::FUNCTION, schemas, false))
}

fn named_function(schemas: &Arc<Schemas>) -> Box<dyn Body> {
    Box::new(XmlCalls::new(&xml::FUNCTION, schemas, true))
}

fn invocations(schemas: &Arc<Schemas>) -> Box<dyn Body> {
    Box::new(XmlCalls::new(&xml::INVOKE, schemas, false))
}

/// Mistral's two forms, told by the first character.
#[derive(Debug)]
struct Mistral(Option<Box<dyn Body>>);

impl Body for Mistral {
    fn feed(&mut self, c: char, calls: &mut Calls) -> Step {
        if self.0.is_none() && c.is_whitespace() {
            return Step::More;
        }
        let body = self.0.get_or_insert_with(|| match c {
            '[' | '{' => Box::new(JsonCalls::new()),
            _ => Box::new(HeadCalls::new(&head::MISTRAL)),
        });
        body.feed(c, calls)
    }

    fn at_rest(&self) -> bool {
        self.0.as_ref().is_some_and(|body| body.at_rest())
    }
}

/// The sections of a format.
fn sections(format: ToolFormat) -> Vec<Section> {
    // Models of this family at times forget the outer tag.
    let bare_function = known(section("<function=", "", named_function));
    match format {
        ToolFormat::Tagged => vec![section("<tool_call>", "</tool_call>", tagged), bare_function],
        ToolFormat::Seed => vec![section("<seed:tool_call>", "</seed:tool_call>", functions)],
        ToolFormat::MiniMax => vec![section("<minimax:tool_call>", "</minimax:tool_call>", invocations)],
        ToolFormat::Function => vec![section("<function=", "", named_function)],
        ToolFormat::Llama3 => vec![section("<|python_tag|>", "", json)],
        ToolFormat::Mistral => vec![section("[TOOL_CALLS]", "", |_| Box::new(Mistral(None)))],
        ToolFormat::Gemma => vec![
            known(section("```tool_code", "", |_| Box::new(Collected::new("```", python_calls)))),
            known(section("```json", "```", json)),
            known(section("```tool_call", "```", json)),
        ],
        ToolFormat::Gemma4 => {
            vec![section("<|tool_call>", "", |_| Box::new(Collected::new("<tool_call|>", gemma_call)))]
        }
        ToolFormat::DeepSeek => {
            vec![section("<｜tool▁calls▁begin｜>", "", |_| Box::new(HeadCalls::new(&head::DEEPSEEK)))]
        }
        ToolFormat::Kimi => {
            vec![section("<|tool_calls_section_begin|>", "", |_| Box::new(HeadCalls::new(&head::KIMI)))]
        }
        ToolFormat::Granite => vec![
            section("<|tool_call|>", "<|/tool_call|>", json),
            section("<tool_call>", "</tool_call>", tagged),
            dropped("<response>"),
            dropped("</response>"),
        ],
        ToolFormat::CommandR => vec![
            section("<|START_ACTION|>", "<|END_ACTION|>", json),
            dropped("<|START_RESPONSE|>"),
            dropped("<|END_RESPONSE|>"),
        ],
        ToolFormat::Lfm2 => vec![section("<|tool_call_start|>", "", |_| {
            Box::new(Collected::new("<|tool_call_end|>", python_calls))
        })],
        ToolFormat::TaggedList => {
            vec![section("<TOOLCALL>", "</TOOLCALL>", json), section("<tool_calls>", "</tool_calls>", json)]
        }
        ToolFormat::Harmony | ToolFormat::Recipients => Vec::new(),
    }
}

/// All texts that mark something in a format of sections.
pub(super) fn markers(format: ToolFormat) -> Vec<&'static str> {
    let inner: &[&'static str] = match format {
        ToolFormat::Mistral => &["[ARGS]", "[CALL_ID]"],
        ToolFormat::DeepSeek => &[
            head::DEEPSEEK.call_open,
            head::DEEPSEEK.head_end,
            head::DEEPSEEK.call_close,
            head::DEEPSEEK.section_close,
        ],
        ToolFormat::Kimi => {
            &[head::KIMI.call_open, head::KIMI.head_end, head::KIMI.call_close, head::KIMI.section_close]
        }
        ToolFormat::Tagged => &["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
        ToolFormat::Gemma4 => &["<|\"|>", "<tool_call|>"],
        ToolFormat::Lfm2 => &["<|tool_call_end|>"],
        _ => &[],
    };
    let outer = sections(format).into_iter().flat_map(|section| [section.open, section.close]);
    outer.filter(|marker| !marker.is_empty()).chain(inner.iter().copied()).collect()
}

/// Reads output with sections.
#[derive(Debug)]
pub(super) struct Sections {
    schemas: Arc<Schemas>,
    sections: Vec<Section>,
    scanner: Scanner,
    mode: Mode,
    /// Llama 3: a call may stand without any marker.
    bare: bool,
}

#[derive(Debug)]
enum Mode {
    /// Nothing but white space so far, and a bare call may begin.
    Start(String),
    Content,
    /// In a section; the text read since the last event, and what closes the section.
    Body {
        body: Box<dyn Body>,
        raw: String,
        close: &'static str,
    },
    /// Behind a section's body: looks for its closing tag.
    Close {
        close: &'static str,
        text: String,
    },
}

/// Stands for the separators between bare calls.
const SEMICOLON: &str = ";";

impl Sections {
    pub(super) fn new(format: Option<ToolFormat>, schemas: &Arc<Schemas>) -> Self {
        let any = !schemas.text_parameters.is_empty();
        let mut sections = format.map(sections).unwrap_or_default();
        // Without tools there are no calls, but dropped markup stays dropped.
        sections.retain(|section| any || section.body.is_none());
        let bare = any && format == Some(ToolFormat::Llama3);
        Self {
            schemas: schemas.clone(),
            scanner: Scanner::new(sections.iter().map(|section| section.open)),
            sections,
            mode: if bare { Mode::Start(String::new()) } else { Mode::Content },
            bare,
        }
    }

    pub(super) fn push(&mut self, text: &str, calls: &mut Calls) {
        let mut text = text.to_owned();
        while !text.is_empty() {
            text = self.step(&text, calls);
        }
    }

    /// Reads some of `text` and gives what is to be read next.
    fn step(&mut self, text: &str, calls: &mut Calls) -> String {
        match &mut self.mode {
            Mode::Content => self.content(text, calls),
            Mode::Start(space) => {
                let body = text.trim_start();
                space.push_str(&text[..text.len() - body.len()]);
                if body.is_empty() {
                    return String::new();
                }
                let space = std::mem::take(space);
                if body.starts_with('{') {
                    calls.only_known = true;
                    let body = Box::new(JsonCalls::new());
                    self.mode = Mode::Body { body, raw: space, close: SEMICOLON };
                } else {
                    calls.content(&space);
                    self.mode = Mode::Content;
                }
                body.to_owned()
            }
            Mode::Close { close, text: seen } => {
                for (at, c) in text.char_indices() {
                    let rest = &text[at + c.len_utf8()..];
                    seen.push(c);
                    let tag = seen.trim_start();
                    if tag == *close {
                        self.mode = if self.bare { Mode::Start(String::new()) } else { Mode::Content };
                        return rest.to_owned();
                    }
                    if !close.starts_with(tag) {
                        let bare_call = *close == SEMICOLON && tag == "{";
                        let again = format!("{}{rest}", std::mem::take(seen));
                        self.mode = if bare_call { Mode::Start(String::new()) } else { Mode::Content };
                        return again;
                    }
                }
                String::new()
            }
            Mode::Body { body, raw, close } => {
                for (at, c) in text.char_indices() {
                    let rest = &text[at + c.len_utf8()..];
                    raw.push(c);
                    let before = calls.pushed;
                    let step = body.feed(c, calls);
                    if before != calls.pushed {
                        raw.clear();
                    }
                    let unread = match step {
                        Step::More => continue,
                        Step::Done => String::new(),
                        Step::Unread(unread) => unread,
                        Step::Bad => {
                            let raw = std::mem::take(raw);
                            self.mode = Mode::Content;
                            if calls.open {
                                calls.end(false);
                            }
                            calls.content(&raw);
                            return rest.to_owned();
                        }
                    };
                    self.mode = match *close {
                        "" => Mode::Content,
                        close => Mode::Close { close, text: String::new() },
                    };
                    return format!("{unread}{rest}");
                }
                String::new()
            }
        }
    }

    fn content(&mut self, text: &str, calls: &mut Calls) -> String {
        if self.sections.is_empty() {
            calls.push(super::Event::Content(text.to_owned()));
            return String::new();
        }
        let mut rest = text;
        while let Some(piece) = self.scanner.next(&mut rest) {
            let marker = match piece {
                Piece::Text(text) => {
                    calls.content(&text);
                    continue;
                }
                Piece::Marker(marker) => self.sections[marker],
            };
            if let Some(body) = marker.body {
                calls.only_known = marker.only_known;
                let raw = marker.open.to_owned();
                self.mode = Mode::Body { body: body(&self.schemas), raw, close: marker.close };
                break;
            }
        }
        rest.to_owned()
    }

    pub(super) fn finish(&mut self, calls: &mut Calls) {
        match std::mem::replace(&mut self.mode, Mode::Content) {
            Mode::Start(space) => calls.content(&space),
            Mode::Content => calls.content(&self.scanner.take()),
            // The call is whole; its closing tag was cut off.
            Mode::Close { .. } => {}
            Mode::Body { mut body, raw, .. } => {
                if calls.open {
                    body.finish(calls);
                    calls.end(false);
                } else if !body.at_rest() {
                    calls.content(&raw);
                }
            }
        }
    }
}
