//! Calls whose name stands before their JSON arguments, apart from each other by special tokens.

use super::json::{ArgumentReader, Check};
use super::{Body, Calls, Step};

/// Longest head that is believed to be one, in bytes.
const MAX_HEAD: usize = 256;

/// How a family writes such calls. Empty strings stand for tokens that it has not.
#[derive(Debug)]
pub(super) struct HeadStyle {
    pub(super) call_open: &'static str,
    pub(super) head_end: &'static str,
    pub(super) call_close: &'static str,
    pub(super) section_close: &'static str,
    /// Whether the head may be a type, with the name on a line of its own and a fence behind it.
    pub(super) typed: bool,
    /// Reads id and name out of the head.
    pub(super) head: fn(&str) -> (Option<&str>, &str),
}

/// `[TOOL_CALLS]name[CALL_ID]id[ARGS]{…}`.
pub(super) const MISTRAL: HeadStyle = HeadStyle {
    call_open: "",
    head_end: "[ARGS]",
    call_close: "",
    section_close: "",
    typed: false,
    head: |head| match head.split_once("[CALL_ID]") {
        Some((name, id)) => (Some(id), name),
        None => (None, head),
    },
};

/// `<｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜>`, and the older form with a type
/// in the name's place and the arguments in a fence.
pub(super) const DEEPSEEK: HeadStyle = HeadStyle {
    call_open: "<｜tool▁call▁begin｜>",
    head_end: "<｜tool▁sep｜>",
    call_close: "<｜tool▁call▁end｜>",
    section_close: "<｜tool▁calls▁end｜>",
    typed: true,
    head: |head| (None, head),
};

/// `<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`.
pub(super) const KIMI: HeadStyle = HeadStyle {
    call_open: "<|tool_call_begin|>",
    head_end: "<|tool_call_argument_begin|>",
    call_close: "<|tool_call_end|>",
    section_close: "<|tool_calls_section_end|>",
    typed: false,
    head: |head| {
        let name = head.strip_prefix("functions.").unwrap_or(head);
        (Some(head), name.rsplit_once(':').map_or(name, |(name, _)| name))
    },
};

/// Reads calls of one style.
#[derive(Debug)]
pub(super) struct HeadCalls {
    style: &'static HeadStyle,
    place: Place,
    text: String,
    id: Option<String>,
    name: String,
    read: usize,
}

#[derive(Debug)]
enum Place {
    /// Before a call, or before the end of the section.
    Between,
    Head,
    /// The line with the name, in the older form of DeepSeek.
    NameLine,
    /// "```json" before the arguments.
    Fence,
    Arguments(ArgumentReader),
    /// Behind the arguments.
    After,
}

impl HeadCalls {
    pub(super) fn new(style: &'static HeadStyle) -> Self {
        let place = if style.call_open.is_empty() { Place::Head } else { Place::Between };
        Self { style, place, text: String::new(), id: None, name: String::new(), read: 0 }
    }

    fn head_done(&mut self) -> Step {
        let text = std::mem::take(&mut self.text);
        let head = text[..text.len() - self.style.head_end.len()].trim();
        if head == "function" && self.style.typed {
            self.place = Place::NameLine;
            return Step::More;
        }
        let (id, name) = (self.style.head)(head);
        self.id = id.map(|id| id.trim().to_owned());
        self.named(name)
    }

    fn named(&mut self, name: &str) -> Step {
        self.name = name.trim().to_owned();
        if self.name.is_empty() || self.name.contains(char::is_whitespace) {
            return Step::Bad;
        }
        self.place = Place::Fence;
        Step::More
    }
}

impl Body for HeadCalls {
    fn feed(&mut self, c: char, calls: &mut Calls) -> Step {
        match &mut self.place {
            Place::Between | Place::After if self.text.is_empty() && c.is_whitespace() => return Step::More,
            Place::After if self.text.is_empty() && c == '`' => return Step::More,
            Place::Between | Place::After | Place::Head | Place::NameLine => self.text.push(c),
            Place::Fence if c == '{' => {
                calls.start(self.id.take(), &self.name);
                let mut reader = ArgumentReader::default();
                let mut text = String::new();
                reader.feed(c, &mut text);
                calls.arguments(&text);
                self.place = Place::Arguments(reader);
                return Step::More;
            }
            Place::Fence if c.is_whitespace() || "`json".contains(c) => return Step::More,
            Place::Fence => return Step::Bad,
            Place::Arguments(reader) => {
                let mut text = String::new();
                match reader.feed(c, &mut text) {
                    Check::Bad | Check::Before => return Step::Bad,
                    Check::More => calls.arguments(&text),
                    Check::Done => {
                        calls.arguments(&text);
                        calls.end(true);
                        self.read += 1;
                        self.place = Place::After;
                        if self.style.call_close.is_empty() {
                            return Step::Done;
                        }
                    }
                }
                return Step::More;
            }
        }
        let style = self.style;
        match self.place {
            Place::Head if self.text.ends_with(style.head_end) => self.head_done(),
            Place::NameLine if c == '\n' => {
                let name = std::mem::take(&mut self.text);
                self.named(&name)
            }
            Place::Head | Place::NameLine if self.text.len() > MAX_HEAD => Step::Bad,
            Place::Head | Place::NameLine => Step::More,
            _ => {
                let after = matches!(self.place, Place::After);
                let token = if after { style.call_close } else { style.call_open };
                if self.text == token {
                    self.text.clear();
                    self.place = if after { Place::Between } else { Place::Head };
                    Step::More
                } else if self.text == style.section_close {
                    Step::Done
                } else if token.starts_with(&self.text) || style.section_close.starts_with(&self.text) {
                    Step::More
                } else if self.read == 0 {
                    Step::Bad
                } else {
                    Step::Unread(std::mem::take(&mut self.text))
                }
            }
        }
    }

    fn at_rest(&self) -> bool {
        self.read > 0 && matches!(self.place, Place::Between | Place::After)
    }
}
