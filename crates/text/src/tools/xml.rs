//! Calls whose arguments stand one by one between tags.

use std::sync::Arc;

use serde_json::Value as Json;

use super::json::{ArgumentReader, Check, JsonCalls, push_escaped};
use super::literal::python_value;
use super::{Body, Calls, ParameterKind, Schemas, Step};
use crate::stop::{Piece, Scanner};

/// Longest name that is believed to be one, in bytes.
const MAX_NAME: usize = 256;

/// How a family writes its tags.
#[derive(Debug)]
pub(super) struct XmlStyle {
    pub(super) call_open: &'static str,
    pub(super) call_close: &'static str,
    pub(super) parameter_open: &'static str,
    pub(super) parameter_close: &'static str,
    /// What ends a name in an opening tag.
    pub(super) name_end: &'static str,
}

/// `<function=name><parameter=key>value</parameter></function>`, also with a JSON object for all
/// parameters.
pub(super) const FUNCTION: XmlStyle = XmlStyle {
    call_open: "<function=",
    call_close: "</function>",
    parameter_open: "<parameter=",
    parameter_close: "</parameter>",
    name_end: ">",
};

/// `<invoke name="name"><parameter name="key">value</parameter></invoke>`.
pub(super) const INVOKE: XmlStyle = XmlStyle {
    call_open: "<invoke name=\"",
    call_close: "</invoke>",
    parameter_open: "<parameter name=\"",
    parameter_close: "</parameter>",
    name_end: "\">",
};

/// Writes arguments one by one as a JSON object.
#[derive(Debug)]
struct Parameters {
    schemas: Arc<Schemas>,
    name: String,
    count: usize,
    kind: ParameterKind,
    /// Value read so far, of a kind that must be whole to be written.
    value: String,
    begun: bool,
}

impl Parameters {
    fn new(schemas: &Arc<Schemas>) -> Self {
        let schemas = schemas.clone();
        Self {
            schemas,
            name: String::new(),
            count: 0,
            kind: ParameterKind::Any,
            value: String::new(),
            begun: false,
        }
    }

    fn start(&mut self, name: &str, calls: &mut Calls) {
        self.name = name.to_owned();
        self.count = 0;
        calls.start(None, name);
    }

    fn key(&mut self, key: &str, calls: &mut Calls) {
        self.kind = self.schemas.kind(&self.name, key);
        self.value.clear();
        self.begun = false;
        let mut text = String::from(if self.count == 0 { "{\"" } else { ", \"" });
        push_escaped(&mut text, key);
        text.push_str("\": ");
        if self.kind == ParameterKind::Text {
            text.push('"');
        }
        self.count += 1;
        calls.arguments(&text);
    }

    /// A part of the value; text is passed on at once, without the line break it may begin with.
    fn part(&mut self, part: &str, calls: &mut Calls) {
        let fresh = !std::mem::replace(&mut self.begun, true);
        let part = if fresh { part.strip_prefix('\n').unwrap_or(part) } else { part };
        if self.kind == ParameterKind::Text {
            let mut text = String::new();
            push_escaped(&mut text, part);
            calls.arguments(&text);
        } else {
            self.value.push_str(part);
        }
    }

    fn value_done(&mut self, calls: &mut Calls) {
        if self.kind == ParameterKind::Text {
            calls.arguments("\"");
            return;
        }
        let value = std::mem::take(&mut self.value);
        // Some templates show values as Python writes them, so some models do too.
        let json = serde_json::from_str::<Json>(&value).ok().or_else(|| python_value(&value));
        calls.arguments(&json.unwrap_or(Json::String(value)).to_string());
    }

    fn call_done(&mut self, calls: &mut Calls) {
        calls.arguments(if self.count == 0 { "{}" } else { "}" });
        calls.end(true);
    }
}

/// Reads calls of one style.
#[derive(Debug)]
pub(super) struct XmlCalls {
    style: &'static XmlStyle,
    parameters: Parameters,
    place: Place,
    text: String,
    read: usize,
}

#[derive(Debug)]
enum Place {
    Between,
    Name,
    /// Before a parameter or the end of the call.
    Inside,
    Json(ArgumentReader),
    Key,
    Value(Scanner),
}

impl XmlCalls {
    /// Reads calls; `named` says that the first opening tag has been read up to its name.
    pub(super) fn new(style: &'static XmlStyle, schemas: &Arc<Schemas>, named: bool) -> Self {
        let place = if named { Place::Name } else { Place::Between };
        Self { style, parameters: Parameters::new(schemas), place, text: String::new(), read: 0 }
    }

    /// Ends the text before `tag`, which was just read.
    fn take_name(&mut self) -> Option<String> {
        let text = std::mem::take(&mut self.text);
        let name = text.strip_suffix(self.style.name_end)?.trim();
        (!name.is_empty() && !name.contains('\n')).then(|| name.to_owned())
    }
}

impl Body for XmlCalls {
    fn feed(&mut self, c: char, calls: &mut Calls) -> Step {
        let style = self.style;
        match &mut self.place {
            Place::Between | Place::Inside if self.text.is_empty() && c.is_whitespace() => Step::More,
            Place::Between => {
                self.text.push(c);
                if self.text == style.call_open {
                    self.text.clear();
                    self.place = Place::Name;
                } else if !style.call_open.starts_with(&self.text) {
                    return match self.read {
                        0 => Step::Bad,
                        _ => Step::Unread(std::mem::take(&mut self.text)),
                    };
                }
                Step::More
            }
            Place::Name | Place::Key => {
                self.text.push(c);
                if !self.text.ends_with(style.name_end) {
                    return if self.text.len() > MAX_NAME || c == '\n' { Step::Bad } else { Step::More };
                }
                let Some(name) = self.take_name() else { return Step::Bad };
                if matches!(self.place, Place::Name) {
                    if !calls.may_call(&name) {
                        return Step::Bad;
                    }
                    self.parameters.start(&name, calls);
                    self.place = Place::Inside;
                } else {
                    self.parameters.key(&name, calls);
                    let close = style.parameter_close;
                    self.place = Place::Value(Scanner::new([close.to_owned(), format!("\n{close}")]));
                }
                Step::More
            }
            Place::Inside
                if self.text.is_empty() && c == '{' && self.parameters.count == 0 && calls.is_open() =>
            {
                let mut reader = ArgumentReader::default();
                let mut text = String::new();
                reader.feed(c, &mut text);
                calls.arguments(&text);
                self.place = Place::Json(reader);
                Step::More
            }
            Place::Inside => {
                self.text.push(c);
                if self.text == style.parameter_open {
                    self.text.clear();
                    self.place = Place::Key;
                } else if self.text == style.call_close {
                    self.text.clear();
                    match calls.is_open() {
                        true => self.parameters.call_done(calls),
                        false => self.parameters.count = 0,
                    }
                    self.read += 1;
                    self.place = Place::Between;
                } else if !style.parameter_open.starts_with(&self.text)
                    && !style.call_close.starts_with(&self.text)
                {
                    return Step::Bad;
                }
                Step::More
            }
            Place::Json(reader) => {
                let mut text = String::new();
                let check = reader.feed(c, &mut text);
                if matches!(check, Check::Bad | Check::Before) {
                    return Step::Bad;
                }
                calls.arguments(&text);
                if check == Check::Done {
                    calls.end(true);
                    self.place = Place::Inside;
                }
                Step::More
            }
            Place::Value(scanner) => {
                let mut buffer = [0; 4];
                let mut input: &str = c.encode_utf8(&mut buffer);
                while let Some(piece) = scanner.next(&mut input) {
                    match piece {
                        Piece::Text(text) => self.parameters.part(&text, calls),
                        Piece::Marker(_) => {
                            self.parameters.value_done(calls);
                            self.place = Place::Inside;
                            break;
                        }
                    }
                }
                Step::More
            }
        }
    }

    fn finish(&mut self, calls: &mut Calls) {
        if let Place::Value(scanner) = &mut self.place {
            let held = scanner.take();
            self.parameters.part(&held, calls);
        }
    }

    fn at_rest(&self) -> bool {
        // Inside without an open call: its closing tag was cut off.
        matches!(self.place, Place::Inside) || (self.read > 0 && matches!(self.place, Place::Between))
    }
}

/// GLM's calls: `name<arg_key>key</arg_key><arg_value>value</arg_value>…`, up to `</tool_call>`.
#[derive(Debug)]
pub(super) struct GlmCall {
    parameters: Parameters,
    place: GlmPlace,
}

#[derive(Debug)]
enum GlmPlace {
    Name(Scanner, String),
    /// Between parameters: looks for a key or the end.
    Between(Scanner),
    Key(Scanner, String),
    /// Between key and value.
    Gap(Scanner),
    Value(Scanner),
}

impl GlmCall {
    pub(super) fn new(schemas: &Arc<Schemas>) -> Self {
        let scanner = Scanner::new(["<arg_key>", "</tool_call>", "\n"]);
        Self { parameters: Parameters::new(schemas), place: GlmPlace::Name(scanner, String::new()) }
    }

    fn between() -> GlmPlace {
        GlmPlace::Between(Scanner::new(["<arg_key>", "</tool_call>"]))
    }

    fn piece(&mut self, piece: Piece, calls: &mut Calls) -> Step {
        let key = || GlmPlace::Key(Scanner::new(["</arg_key>"]), String::new());
        self.place = match (&mut self.place, piece) {
            (GlmPlace::Name(_, name), Piece::Text(text)) if name.len() + text.len() <= MAX_NAME => {
                name.push_str(&text);
                return Step::More;
            }
            (GlmPlace::Name(_, name), Piece::Marker(marker)) => {
                let name = std::mem::take(name);
                let name = name.trim();
                let word = |c: char| c.is_alphanumeric() || "_-.:/".contains(c);
                if name.is_empty() || !name.chars().all(word) || !calls.may_call(name) {
                    return Step::Bad;
                }
                self.parameters.start(name, calls);
                match marker {
                    0 => key(),
                    1 => return self.end(calls),
                    _ => Self::between(),
                }
            }
            (GlmPlace::Between(_) | GlmPlace::Gap(_), Piece::Text(text)) if text.trim().is_empty() => {
                return Step::More;
            }
            (GlmPlace::Between(_), Piece::Marker(0)) => key(),
            (GlmPlace::Between(_), Piece::Marker(_)) => return self.end(calls),
            (GlmPlace::Key(_, key), Piece::Text(text)) if key.len() + text.len() <= MAX_NAME => {
                key.push_str(&text);
                return Step::More;
            }
            (GlmPlace::Key(_, key), Piece::Marker(_)) => {
                self.parameters.key(key.trim(), calls);
                GlmPlace::Gap(Scanner::new(["<arg_value>"]))
            }
            (GlmPlace::Gap(_), Piece::Marker(_)) => GlmPlace::Value(Scanner::new(["</arg_value>"])),
            (GlmPlace::Value(_), Piece::Text(text)) => {
                self.parameters.begun = true;
                self.parameters.part(&text, calls);
                return Step::More;
            }
            (GlmPlace::Value(_), Piece::Marker(_)) => {
                self.parameters.value_done(calls);
                Self::between()
            }
            _ => return Step::Bad,
        };
        Step::More
    }

    /// Ends the call; the closing tag is left to who opened it.
    fn end(&mut self, calls: &mut Calls) -> Step {
        self.parameters.call_done(calls);
        Step::Unread("</tool_call>".into())
    }
}

impl Body for GlmCall {
    fn feed(&mut self, c: char, calls: &mut Calls) -> Step {
        let mut buffer = [0; 4];
        let mut input: &str = c.encode_utf8(&mut buffer);
        loop {
            let (GlmPlace::Name(scanner, _)
            | GlmPlace::Between(scanner)
            | GlmPlace::Key(scanner, _)
            | GlmPlace::Gap(scanner)
            | GlmPlace::Value(scanner)) = &mut self.place;
            let Some(piece) = scanner.next(&mut input) else { return Step::More };
            match self.piece(piece, calls) {
                Step::More => {}
                step => return step,
            }
        }
    }

    fn finish(&mut self, calls: &mut Calls) {
        if let GlmPlace::Value(scanner) = &mut self.place {
            let held = scanner.take();
            self.parameters.part(&held, calls);
        }
    }
}

/// What stands in `<tool_call>`: JSON, tags, or GLM's form, told by the first character.
#[derive(Debug)]
pub(super) struct TaggedCall {
    schemas: Arc<Schemas>,
    inner: Option<Box<dyn Body>>,
}

impl TaggedCall {
    pub(super) fn new(schemas: &Arc<Schemas>) -> Self {
        Self { schemas: schemas.clone(), inner: None }
    }
}

impl Body for TaggedCall {
    fn feed(&mut self, c: char, calls: &mut Calls) -> Step {
        if self.inner.is_none() && c.is_whitespace() {
            return Step::More;
        }
        let inner = self.inner.get_or_insert_with(|| match c {
            '{' | '[' => Box::new(JsonCalls::new()),
            '<' => Box::new(XmlCalls::new(&FUNCTION, &self.schemas, false)),
            _ => Box::new(GlmCall::new(&self.schemas)),
        });
        inner.feed(c, calls)
    }

    fn finish(&mut self, calls: &mut Calls) {
        if let Some(inner) = &mut self.inner {
            inner.finish(calls);
        }
    }

    fn at_rest(&self) -> bool {
        self.inner.as_ref().is_some_and(|inner| inner.at_rest())
    }
}
