//! JSON read a character at a time, and tool calls written in it.

use super::{Body, Calls, Step};

/// Deepest nesting of a value.
const MAX_DEPTH: usize = 128;

/// Checks one JSON value a character at a time (RFC 8259), except that strings may hold raw
/// control characters, which models write.
#[derive(Clone, Debug, Default)]
pub(super) struct Checker {
    stack: Vec<bool>,
    state: Place,
}

/// What a character did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// It belongs to the value, which goes on.
    More,
    /// It ends the value.
    Done,
    /// The value ended before it.
    Before,
    /// No value goes on like this.
    Bad,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Before a value.
    #[default]
    Value,
    /// After `[`: a value or `]`.
    FirstItem,
    /// After `{`: a key or `}`.
    FirstKey,
    /// After a comma in an object.
    Key,
    Colon,
    /// After a value inside an array or object.
    Comma,
    /// In a string; whether it is a key.
    Str(bool),
    Escape(bool),
    /// In `\u`: digits still to come.
    Hex(bool, u8),
    Number(Digits),
    Word(&'static str),
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Digits {
    Minus,
    Zero,
    Whole,
    Dot,
    Fraction,
    Exponent,
    Sign,
    Power,
}

impl Checker {
    /// Whether the character read last lies in a string.
    pub(super) fn in_string(&self) -> bool {
        matches!(self.state, Place::Str(_) | Place::Escape(_) | Place::Hex(..))
    }

    pub(super) fn feed(&mut self, c: char) -> Check {
        use Place::*;
        let space = matches!(c, ' ' | '\t' | '\n' | '\r');
        let next = match self.state {
            Value | FirstItem | FirstKey | Key | Colon | Comma if space => return Check::More,
            FirstItem if c == ']' => return self.close(false),
            Value | FirstItem => match c {
                '{' => return self.open(true),
                '[' => return self.open(false),
                '"' => Str(false),
                't' => Word("rue"),
                'f' => Word("alse"),
                'n' => Word("ull"),
                '-' => Number(Digits::Minus),
                '0' => Number(Digits::Zero),
                '1'..='9' => Number(Digits::Whole),
                _ => return Check::Bad,
            },
            FirstKey if c == '}' => return self.close(true),
            FirstKey | Key if c == '"' => Str(true),
            Colon if c == ':' => Value,
            Comma if c == ',' => match self.stack.last() {
                Some(true) => Key,
                _ => Value,
            },
            Comma if c == '}' => return self.close(true),
            Comma if c == ']' => return self.close(false),
            Str(key) => match (c, key) {
                ('"', true) => Colon,
                ('"', false) => return self.value_done(Check::Done),
                ('\\', _) => Escape(key),
                _ => Str(key),
            },
            Escape(key) => match c {
                'u' => Hex(key, 4),
                '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => Str(key),
                _ => return Check::Bad,
            },
            Hex(key, left) if c.is_ascii_hexdigit() => match left {
                1 => Str(key),
                _ => Hex(key, left - 1),
            },
            Word(rest) if rest.starts_with(c) => match &rest[1..] {
                "" => return self.value_done(Check::Done),
                rest => Word(rest),
            },
            Number(at) => match (at, c) {
                (Digits::Minus, '0') => Number(Digits::Zero),
                (Digits::Minus, '1'..='9') | (Digits::Whole, '0'..='9') => Number(Digits::Whole),
                (Digits::Zero | Digits::Whole, '.') => Number(Digits::Dot),
                (Digits::Dot | Digits::Fraction, '0'..='9') => Number(Digits::Fraction),
                (Digits::Zero | Digits::Whole | Digits::Fraction, 'e' | 'E') => Number(Digits::Exponent),
                (Digits::Exponent, '+' | '-') => Number(Digits::Sign),
                (Digits::Exponent | Digits::Sign | Digits::Power, '0'..='9') => Number(Digits::Power),
                (Digits::Zero | Digits::Whole | Digits::Fraction | Digits::Power, _) => {
                    return match self.value_done(Check::Before) {
                        Check::Before => Check::Before,
                        _ => self.feed(c),
                    };
                }
                _ => return Check::Bad,
            },
            _ => return Check::Bad,
        };
        self.state = next;
        Check::More
    }

    fn open(&mut self, object: bool) -> Check {
        if self.stack.len() == MAX_DEPTH {
            return Check::Bad;
        }
        self.stack.push(object);
        self.state = if object { Place::FirstKey } else { Place::FirstItem };
        Check::More
    }

    fn close(&mut self, object: bool) -> Check {
        match self.stack.pop() {
            Some(kind) if kind == object => self.value_done(Check::Done),
            _ => Check::Bad,
        }
    }

    /// Ends a value: the whole one, told as `whole`, or one inside.
    fn value_done(&mut self, whole: Check) -> Check {
        self.state = if self.stack.is_empty() { Place::End } else { Place::Comma };
        if self.stack.is_empty() { whole } else { Check::More }
    }
}

/// Streams one JSON object as a call's arguments.
#[derive(Clone, Debug, Default)]
pub(super) struct ArgumentReader {
    checker: Checker,
    begun: bool,
}

impl ArgumentReader {
    /// Reads a character of the object and appends what it adds to the arguments.
    pub(super) fn feed(&mut self, c: char, out: &mut String) -> Check {
        if !self.begun && c.is_whitespace() {
            return Check::More;
        }
        if !self.begun && c != '{' {
            return Check::Bad;
        }
        self.begun = true;
        let check = self.checker.feed(c);
        if matches!(check, Check::More | Check::Done) {
            push_fixed(out, c, self.checker.in_string());
        }
        check
    }
}

/// Appends a character of JSON; control characters in strings are escaped.
fn push_fixed(out: &mut String, c: char, in_string: bool) {
    match c {
        c if c >= ' ' || !in_string => out.push(c),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c => out.push_str(&format!("\\u{:04x}", c as u32)),
    }
}

/// Appends a text as the inside of a JSON string.
pub(super) fn push_escaped(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c => push_fixed(out, c, true),
        }
    }
}

/// A call as an object: `{"name": …, "arguments": {…}}`, with the names that models use.
#[derive(Clone, Debug)]
struct CallReader {
    place: CallPlace,
    /// The object around the current place is the inner one of `{"function": {…}}`.
    inner: bool,
    key: String,
    name: Option<String>,
    id: Option<String>,
    /// Arguments that cannot be passed on before the name is known.
    waiting: String,
    has_arguments: bool,
}

#[derive(Clone, Debug)]
enum CallPlace {
    Open,
    FirstKey,
    NextKey,
    Key { escaped: bool },
    Colon,
    Value,
    Arguments(ArgumentReader),
    Other { checker: Checker, raw: String },
    Comma,
}

impl CallReader {
    fn new() -> Self {
        Self {
            place: CallPlace::Open,
            inner: false,
            key: String::new(),
            name: None,
            id: None,
            waiting: String::new(),
            has_arguments: false,
        }
    }

    fn feed(&mut self, c: char, calls: &mut Calls) -> Step {
        match &mut self.place {
            CallPlace::Key { escaped } => {
                if c == '"' && !*escaped {
                    self.place = CallPlace::Colon;
                } else {
                    *escaped = c == '\\' && !*escaped;
                    self.key.push(c);
                }
                return Step::More;
            }
            CallPlace::Arguments(reader) => {
                let check = reader.feed(c, &mut self.waiting);
                if check == Check::Bad {
                    return Step::Bad;
                }
                if check == Check::Done {
                    self.place = CallPlace::Comma;
                }
                self.pass_on(calls);
                return Step::More;
            }
            CallPlace::Other { checker, raw } => match checker.feed(c) {
                Check::Bad => return Step::Bad,
                Check::More => {
                    push_fixed(raw, c, checker.in_string());
                    return Step::More;
                }
                Check::Done => {
                    raw.push(c);
                    let raw = std::mem::take(raw);
                    self.place = CallPlace::Comma;
                    return self.other(&raw, calls);
                }
                // A number ended before this character, which is read below.
                Check::Before => self.place = CallPlace::Comma,
            },
            _ => {}
        }
        if c.is_whitespace() {
            return Step::More;
        }
        let next = match (&self.place, c) {
            (CallPlace::Open, '{') => CallPlace::FirstKey,
            (CallPlace::FirstKey | CallPlace::NextKey, '"') => {
                self.key.clear();
                CallPlace::Key { escaped: false }
            }
            (CallPlace::Colon, ':') => CallPlace::Value,
            (CallPlace::Value, '{') if self.key == "function" && !self.inner => {
                self.inner = true;
                CallPlace::FirstKey
            }
            (CallPlace::Value, '{') if is_arguments(&self.key) && !self.has_arguments => {
                self.has_arguments = true;
                let mut reader = ArgumentReader::default();
                reader.feed(c, &mut self.waiting);
                self.place = CallPlace::Arguments(reader);
                self.pass_on(calls);
                return Step::More;
            }
            (CallPlace::Value, _) => {
                let mut checker = Checker::default();
                if checker.feed(c) == Check::Bad {
                    return Step::Bad;
                }
                CallPlace::Other { checker, raw: c.into() }
            }
            (CallPlace::Comma, ',') => CallPlace::NextKey,
            (CallPlace::Comma | CallPlace::FirstKey, '}') if self.inner => {
                self.inner = false;
                CallPlace::Comma
            }
            (CallPlace::Comma | CallPlace::FirstKey, '}') => return self.end(calls),
            _ => return Step::Bad,
        };
        self.place = next;
        Step::More
    }

    /// Takes a value that is no object of arguments.
    fn other(&mut self, raw: &str, calls: &mut Calls) -> Step {
        let text = serde_json::from_str::<String>(raw).ok();
        match (self.key.as_str(), text) {
            ("name" | "tool_name" | "function", Some(name)) if self.name.is_none() && !name.is_empty() => {
                if !calls.may_call(&name) {
                    return Step::Bad;
                }
                self.name = Some(name);
                self.pass_on(calls);
            }
            ("id" | "tool_call_id", Some(id)) => self.id = Some(id),
            (key, Some(text)) if is_arguments(key) && text.trim().is_empty() => {}
            // Arguments as a string that holds an object.
            (key, Some(text)) if is_arguments(key) && !self.has_arguments => {
                let mut reader = ArgumentReader::default();
                let mut chars = text.trim_end().chars();
                let whole = chars.by_ref().any(|c| reader.feed(c, &mut self.waiting) == Check::Done);
                if !whole || chars.next().is_some() {
                    return Step::Bad;
                }
                self.has_arguments = true;
                self.pass_on(calls);
            }
            (key, None) if is_arguments(key) && raw != "null" => return Step::Bad,
            _ => {}
        }
        Step::More
    }

    /// Passes arguments on as soon as the name is known.
    fn pass_on(&mut self, calls: &mut Calls) {
        if let (Some(name), false) = (&self.name, self.waiting.is_empty()) {
            if !calls.is_open() {
                calls.start(self.id.take(), name);
            }
            calls.arguments(&std::mem::take(&mut self.waiting));
        }
    }

    fn end(&mut self, calls: &mut Calls) -> Step {
        let Some(name) = &self.name else { return Step::Bad };
        if !calls.is_open() {
            calls.start(self.id.take(), name);
            calls.arguments("{}");
        }
        calls.end(true);
        Step::Done
    }
}

fn is_arguments(key: &str) -> bool {
    matches!(key, "arguments" | "parameters" | "args")
}

/// A call object, or a list of them.
#[derive(Clone, Debug)]
pub(super) struct JsonCalls {
    place: ListPlace,
    call: CallReader,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListPlace {
    Open,
    /// After `[`.
    First,
    /// After a comma in a list.
    Next,
    Call {
        listed: bool,
    },
    Comma,
}

impl JsonCalls {
    pub(super) fn new() -> Self {
        Self { place: ListPlace::Open, call: CallReader::new() }
    }
}

impl Body for JsonCalls {
    fn feed(&mut self, c: char, calls: &mut Calls) -> Step {
        match (self.place, c) {
            (ListPlace::Call { listed }, _) => match self.call.feed(c, calls) {
                Step::Done if listed => self.place = ListPlace::Comma,
                step => return step,
            },
            (_, c) if c.is_whitespace() => {}
            (ListPlace::Open, '[') => self.place = ListPlace::First,
            (ListPlace::Open | ListPlace::First | ListPlace::Next, '{') => {
                let listed = self.place != ListPlace::Open;
                self.call = CallReader::new();
                self.call.feed(c, calls);
                self.place = ListPlace::Call { listed };
            }
            (ListPlace::Comma, ',') => self.place = ListPlace::Next,
            (ListPlace::Comma, ']') => return Step::Done,
            _ => return Step::Bad,
        }
        Step::More
    }

    fn at_rest(&self) -> bool {
        matches!(self.place, ListPlace::Comma | ListPlace::Next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Rng;

    fn accepts(text: &str) -> bool {
        let mut checker = Checker::default();
        for (i, c) in text.chars().chain([' ']).enumerate() {
            match checker.feed(c) {
                Check::More => {}
                Check::Bad => return false,
                Check::Done => return text.chars().skip(i + 1).all(char::is_whitespace),
                Check::Before => return text.chars().skip(i).all(char::is_whitespace),
            }
        }
        false
    }

    #[test]
    fn the_checker_agrees_with_serde() {
        let mut rng = Rng::new(17);
        let bits = [
            "{",
            "}",
            "[",
            "]",
            ":",
            ",",
            "\"a\"",
            "\"\\u00e9\\n\"",
            "\"\\x\"",
            "0",
            "-1",
            "01",
            "1.5e-3",
            "2.",
            "true",
            "nul",
            "null",
            " ",
            "\"",
            "{\"k\":",
            "[1,",
            "e",
            "-",
            "\"é😀\"",
        ];
        let (mut good, mut bad) = (0, 0);
        for _ in 0..200_000 {
            let text: String =
                (0..1 + rng.below(7)).map(|_| bits[rng.below(bits.len() as u64) as usize]).collect();
            let want = serde_json::from_str::<serde_json::Value>(&text).is_ok();
            assert_eq!(accepts(&text), want, "{text:?}");
            if want { good += 1 } else { bad += 1 }
        }
        assert!(good > 5_000 && bad > 5_000, "{good} {bad}");
        assert!(!accepts(&"[".repeat(1_000)));
    }
}
