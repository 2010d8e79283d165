//! Calls written as Python, and as Gemma 4 writes them: read when whole.

use serde_json::{Map, Value as Json};

use super::{Body, Calls, Step};

/// Deepest nesting of a value.
const MAX_DEPTH: usize = 64;

/// A call that was read whole.
pub(super) type WholeCall = (String, Map<String, Json>);

/// Collects text up to a closing tag and reads the calls in it.
#[derive(Debug)]
pub(super) struct Collected {
    close: &'static str,
    read: fn(&str) -> Option<Vec<WholeCall>>,
    text: String,
}

impl Collected {
    pub(super) fn new(close: &'static str, read: fn(&str) -> Option<Vec<WholeCall>>) -> Self {
        Self { close, read, text: String::new() }
    }
}

impl Body for Collected {
    fn feed(&mut self, c: char, calls: &mut Calls) -> Step {
        self.text.push(c);
        let Some(text) = self.text.strip_suffix(self.close) else { return Step::More };
        let Some(found) = (self.read)(text) else { return Step::Bad };
        if !found.iter().all(|(name, _)| calls.may_call(name)) {
            return Step::Bad;
        }
        for (name, arguments) in found {
            calls.start(None, &name);
            calls.arguments(&Json::Object(arguments).to_string());
            calls.end(true);
        }
        Step::Done
    }
}

/// Reads `name(key=value, …)`, several in a list or one a line, also inside `print(…)`.
pub(super) fn python_calls(text: &str) -> Option<Vec<WholeCall>> {
    let mut reader = Reader { rest: text.trim() };
    let mut calls = Vec::new();
    let listed = reader.take("[");
    while !(listed && reader.take("]")) {
        if !listed && reader.at_end() {
            break;
        }
        if !calls.is_empty() {
            let _separated = reader.take(",") || reader.take(";");
        }
        let printed = reader.take("print(");
        calls.push(reader.call()?);
        if printed && !reader.take(")") {
            return None;
        }
    }
    (reader.at_end() && !calls.is_empty()).then_some(calls)
}

/// Reads a value that is written as Python.
pub(super) fn python_value(text: &str) -> Option<Json> {
    let mut reader = Reader { rest: text };
    let value = reader.python(0)?;
    reader.at_end().then_some(value)
}

/// Reads `call:name{key:value, …}`, where `<|"|>` stands around strings.
pub(super) fn gemma_call(text: &str) -> Option<Vec<WholeCall>> {
    let mut reader = Reader { rest: text.trim() };
    if !reader.take("call:") {
        return None;
    }
    let name = reader.word(|c| c.is_alphanumeric() || "_-.".contains(c))?;
    if !reader.take("{") {
        return None;
    }
    let arguments = reader.gemma_object(0)?;
    reader.at_end().then(|| vec![(name, arguments)])
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn at_end(&mut self) -> bool {
        self.space();
        self.rest.is_empty()
    }

    fn take(&mut self, token: &str) -> bool {
        self.space();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn word(&mut self, fits: impl Fn(char) -> bool) -> Option<String> {
        self.space();
        let len = self.rest.find(|c| !fits(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(len);
        self.rest = rest;
        (!word.is_empty()).then(|| word.to_owned())
    }

    fn call(&mut self) -> Option<WholeCall> {
        let name = self.word(|c| c.is_alphanumeric() || "_.".contains(c))?;
        if !self.take("(") {
            return None;
        }
        let mut arguments = Map::new();
        while !self.take(")") {
            if !arguments.is_empty() && !self.take(",") {
                return None;
            }
            if self.take(")") {
                break;
            }
            let key = self.word(|c| c.is_alphanumeric() || c == '_')?;
            if !self.take("=") {
                return None;
            }
            let value = self.python(0)?;
            arguments.insert(key, value);
        }
        Some((name, arguments))
    }

    fn python(&mut self, depth: usize) -> Option<Json> {
        self.space();
        if depth > MAX_DEPTH {
            return None;
        }
        match self.rest.chars().next()? {
            '"' | '\'' => self.python_string().map(Json::String),
            open @ ('[' | '(') => {
                let close = if open == '[' { "]" } else { ")" };
                self.rest = &self.rest[1..];
                let mut items = Vec::new();
                while !self.take(close) {
                    if !items.is_empty() && !self.take(",") {
                        return None;
                    }
                    if self.take(close) {
                        break;
                    }
                    items.push(self.python(depth + 1)?);
                }
                Some(Json::Array(items))
            }
            '{' => {
                self.rest = &self.rest[1..];
                let mut map = Map::new();
                while !self.take("}") {
                    if !map.is_empty() && !self.take(",") {
                        return None;
                    }
                    if self.take("}") {
                        break;
                    }
                    let Json::String(key) = self.python(depth + 1)? else { return None };
                    if !self.take(":") {
                        return None;
                    }
                    let value = self.python(depth + 1)?;
                    map.insert(key, value);
                }
                Some(Json::Object(map))
            }
            _ => self.plain(),
        }
    }

    /// A number, a truth value or nothing.
    fn plain(&mut self) -> Option<Json> {
        let word = self.word(|c| c.is_alphanumeric() || "+-.".contains(c))?;
        match word.as_str() {
            "None" | "null" => Some(Json::Null),
            "True" | "true" => Some(Json::Bool(true)),
            "False" | "false" => Some(Json::Bool(false)),
            number => serde_json::from_str::<serde_json::Number>(number).ok().map(Json::Number),
        }
    }

    fn python_string(&mut self) -> Option<String> {
        let quote = &self.rest[..1];
        let long = quote.repeat(3);
        let close = if self.rest.starts_with(&long) { long.as_str() } else { quote };
        self.rest = &self.rest[close.len()..];
        let mut out = String::new();
        loop {
            if let Some(rest) = self.rest.strip_prefix(close) {
                self.rest = rest;
                return Some(out);
            }
            let c = self.rest.chars().next()?;
            self.rest = &self.rest[c.len_utf8()..];
            if c != '\\' {
                out.push(c);
                continue;
            }
            let c = self.rest.chars().next()?;
            self.rest = &self.rest[c.len_utf8()..];
            let digits = match c {
                'x' => 2,
                'u' => 4,
                'U' => 8,
                _ => 0,
            };
            match c {
                'n' => out.push('\n'),
                't' => out.push('\t'),
                'r' => out.push('\r'),
                '\n' => {}
                '\\' | '\'' | '"' => out.push(c),
                'x' | 'u' | 'U' => {
                    let code = self.rest.get(..digits)?;
                    out.push(char::from_u32(u32::from_str_radix(code, 16).ok()?)?);
                    self.rest = &self.rest[digits..];
                }
                // Python keeps a backslash before anything else.
                other => out.extend(['\\', other]),
            }
        }
    }

    fn gemma_object(&mut self, depth: usize) -> Option<Map<String, Json>> {
        let mut map = Map::new();
        while !self.take("}") {
            if !map.is_empty() && !self.take(",") {
                return None;
            }
            let key = match self.gemma_string() {
                Some(key) => key,
                None => self.word(|c| !":,{}[]".contains(c))?.trim().to_owned(),
            };
            if !self.take(":") {
                return None;
            }
            let value = self.gemma(depth + 1)?;
            map.insert(key, value);
        }
        Some(map)
    }

    fn gemma(&mut self, depth: usize) -> Option<Json> {
        if depth > MAX_DEPTH {
            return None;
        }
        if let Some(text) = self.gemma_string() {
            return Some(Json::String(text));
        }
        if self.take("{") {
            return self.gemma_object(depth).map(Json::Object);
        }
        if !self.take("[") {
            return self.plain();
        }
        let mut items = Vec::new();
        while !self.take("]") {
            if !items.is_empty() && !self.take(",") {
                return None;
            }
            items.push(self.gemma(depth + 1)?);
        }
        Some(Json::Array(items))
    }

    fn gemma_string(&mut self) -> Option<String> {
        self.space();
        let (text, rest) = self.rest.strip_prefix("<|\"|>")?.split_once("<|\"|>")?;
        self.rest = rest;
        Some(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(found: Option<Vec<WholeCall>>) -> String {
        let found = found.unwrap_or_default().into_iter();
        let texts = found.map(|(name, arguments)| format!("{name}{}", Json::Object(arguments)));
        texts.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn python_is_read() {
        let cases = [
            ("f()", "f{}"),
            ("print(a.b(x=-1, y=2.5e3,))", "a.b{\"x\":-1,\"y\":2500.0}"),
            (
                "[f(a='it\\'s', b=\"\"\"q\"x\"\"\"), g(c=[1, (True, None)], d={'k': {}})]",
                "f{\"a\":\"it's\",\"b\":\"q\\\"x\"} g{\"c\":[1,[true,null]],\"d\":{\"k\":{}}}",
            ),
            ("f(x='\\n\\x41\\u00e9\\d')\ng()", "f{\"x\":\"\\nAé\\\\d\"} g{}"),
            ("f(1)", ""),
            ("f(x=y)", ""),
            ("f(x='open", ""),
            ("x = 3", ""),
            ("", ""),
            ("[]", ""),
            ("f(x=1) trailing", ""),
        ];
        for (text, want) in cases {
            assert_eq!(json(python_calls(text)), want, "{text}");
        }
        assert!(python_calls(&format!("f(x={})", "[".repeat(100_000))).is_none());
    }

    #[test]
    fn gemmas_form_is_read() {
        let text = "call:f{a:<|\"|>x, {y}<|\"|>,n:-2,o:{k k:[1,true,<|\"|><|\"|>]},e:{}}";
        assert_eq!(
            json(gemma_call(text)),
            "f{\"a\":\"x, {y}\",\"n\":-2,\"o\":{\"k k\":[1,true,\"\"]},\"e\":{}}"
        );
        for bad in ["call:f", "call:f{a}", "f{a:1}", "call:f{a:1}x", "call:f{a:b}", "call:{}"] {
            assert!(gemma_call(bad).is_none(), "{bad}");
        }
    }
}
