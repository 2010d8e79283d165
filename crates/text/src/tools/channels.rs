//! Outputs that are made of addressed messages: gpt-oss's channels, Functionary's recipients.

use super::json::{ArgumentReader, Check};
use super::{Calls, Event};
use crate::stop::{Piece, Scanner};

/// Longest header that is believed to be one, in bytes.
const MAX_HEADER: usize = 256;

const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
/// What gpt-oss's messages are built of.
pub(super) const HARMONY: [&str; 7] =
    ["<|start|>", CHANNEL, MESSAGE, "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"];

/// Where the text of a message goes.
#[derive(Debug)]
enum Target {
    Content,
    Reasoning,
    /// A call whose arguments have not begun, or have.
    Call {
        name: String,
        reader: ArgumentReader,
        text: String,
    },
}

impl Target {
    fn call(name: &str) -> Self {
        Self::Call { name: name.to_owned(), reader: ArgumentReader::default(), text: String::new() }
    }

    fn text(&mut self, text: &str, calls: &mut Calls) {
        let (name, reader, held) = match self {
            Target::Content => return calls.content(text),
            Target::Reasoning => return calls.push(Event::Reasoning(text.to_owned())),
            Target::Call { name, reader, text } => (name, reader, text),
        };
        let mut chars = text.char_indices();
        let mut shown = String::new();
        while let Some((at, c)) = chars.next() {
            held.push(c);
            let before = shown.len();
            let check = reader.feed(c, &mut shown);
            if shown.len() > before {
                held.clear();
                if !calls.is_open() {
                    calls.start(None, name);
                }
            }
            if matches!(check, Check::Bad | Check::Before) {
                calls.arguments(&shown);
                if calls.is_open() {
                    calls.end(false);
                }
                let rest = format!("{}{}", std::mem::take(held), &text[at + c.len_utf8()..]);
                *self = Target::Content;
                return calls.content(&rest);
            }
            if check == Check::Done {
                calls.arguments(&shown);
                calls.end(true);
                *self = Target::Content;
                let rest = chars.as_str();
                if !rest.trim().is_empty() {
                    calls.content(rest);
                }
                return;
            }
        }
        calls.arguments(&shown);
    }

    fn end(&mut self, calls: &mut Calls) {
        if let Target::Call { text, .. } = std::mem::replace(self, Target::Content) {
            match calls.is_open() {
                true => calls.end(false),
                false => calls.content(&text),
            }
        }
    }
}

/// Reads gpt-oss's harmony format; the prompt ended with `<|start|>assistant`.
#[derive(Debug)]
pub(super) struct Harmony {
    scanner: Scanner,
    header: Option<String>,
    target: Target,
}

impl Harmony {
    pub(super) fn new() -> Self {
        Self { scanner: Scanner::new(HARMONY), header: Some(String::new()), target: Target::Content }
    }

    pub(super) fn push(&mut self, text: &str, calls: &mut Calls) {
        let mut rest = text;
        while let Some(piece) = self.scanner.next(&mut rest) {
            match piece {
                Piece::Text(text) => self.text(&text, calls),
                Piece::Marker(marker) => self.marker(HARMONY[marker], calls),
            }
        }
    }

    fn text(&mut self, text: &str, calls: &mut Calls) {
        let Some(header) = &mut self.header else { return self.target.text(text, calls) };
        header.push_str(text);
        // A model that writes no header at all writes its answer.
        if header.len() > MAX_HEADER {
            calls.content(&std::mem::take(header));
            self.header = None;
        }
    }

    fn marker(&mut self, marker: &'static str, calls: &mut Calls) {
        match (marker, &mut self.header) {
            (MESSAGE, Some(header)) => {
                self.target = address(header);
                self.header = None;
            }
            (CHANNEL | "<|constrain|>", Some(header)) => header.push_str(marker),
            ("<|start|>", _) => {
                self.end(calls);
                self.header = Some(String::new());
            }
            // A header right behind a message that was not closed.
            (CHANNEL, None) => {
                self.end(calls);
                self.header = Some(marker.to_owned());
            }
            ("<|end|>" | "<|call|>" | "<|return|>", _) => self.end(calls),
            _ => self.text(marker, calls),
        }
    }

    fn end(&mut self, calls: &mut Calls) {
        if let Some(header) = self.header.take() {
            calls.content(&header);
        }
        self.target.end(calls);
    }

    pub(super) fn finish(&mut self, calls: &mut Calls) {
        let held = self.scanner.take();
        // A marker that was cut off is no text; anything else held back is.
        if !held.starts_with("<|") {
            self.text(&held, calls);
        }
        self.end(calls);
    }
}

/// Where the message with this header goes: a recipient, else the channel.
fn address(header: &str) -> Target {
    let words = header.replace(CHANNEL, " \u{0}").replace("<|constrain|>", " ");
    if let Some(to) = words.split_whitespace().find_map(|word| word.strip_prefix("to=")) {
        return Target::call(to.strip_prefix("functions.").unwrap_or(to));
    }
    match words.split_whitespace().find_map(|word| word.strip_prefix('\u{0}')) {
        Some("analysis") => Target::Reasoning,
        _ => Target::Content,
    }
}

/// Reads Functionary's `>>>recipient` messages; the prompt ended with `>>>`.
#[derive(Debug)]
pub(super) struct Recipients {
    scanner: Scanner,
    header: Option<String>,
    /// What stood before the header, to be given back if it is none.
    mark: &'static str,
    target: Target,
}

impl Recipients {
    pub(super) fn new() -> Self {
        Self {
            scanner: Scanner::new([">>>", "\n"]),
            header: Some(String::new()),
            mark: "",
            target: Target::Content,
        }
    }

    pub(super) fn push(&mut self, text: &str, calls: &mut Calls) {
        let mut rest = text;
        while let Some(piece) = self.scanner.next(&mut rest) {
            match (piece, &mut self.header) {
                (Piece::Text(text), None) => self.target.text(&text, calls),
                (Piece::Text(text), Some(header)) => {
                    header.push_str(&text);
                    if header.len() > MAX_HEADER {
                        self.no_header(calls);
                    }
                }
                (Piece::Marker(0), None) => {
                    self.header = Some(String::new());
                    self.mark = ">>>";
                }
                (Piece::Marker(0), Some(header)) => header.push_str(">>>"),
                (Piece::Marker(_), None) => self.target.text("\n", calls),
                (Piece::Marker(_), Some(header)) => {
                    let name = header.trim().to_owned();
                    match name.as_str() {
                        "all" => self.turn(Target::Content, calls),
                        name if calls.knows(name) => self.turn(Target::call(name), calls),
                        _ => {
                            self.no_header(calls);
                            self.target.text("\n", calls);
                        }
                    }
                }
            }
        }
    }

    fn turn(&mut self, target: Target, calls: &mut Calls) {
        self.target.end(calls);
        self.target = target;
        self.header = None;
    }

    /// Gives back what was no header.
    fn no_header(&mut self, calls: &mut Calls) {
        if let Some(header) = self.header.take() {
            self.target.text(&format!("{}{header}", self.mark), calls);
        }
    }

    pub(super) fn finish(&mut self, calls: &mut Calls) {
        let held = self.scanner.take();
        match &mut self.header {
            Some(header) => header.push_str(&held),
            None => self.target.text(&held, calls),
        }
        self.no_header(calls);
        self.target.end(calls);
    }
}
