//! Values as Python writes them: `json.dumps` and `repr`.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// Bytes that one unit of fuel pays for, as the engine itself counts.
const BYTES_PER_FUEL: usize = 64;
/// Nesting beyond this is refused, so that no value overflows the stack.
const MAX_DEPTH: usize = 128;

/// How `json.dumps` is asked to write.
struct Style {
    ascii: bool,
    sort: bool,
    indent: Option<String>,
    item: String,
    key: String,
}

/// The `tojson` filter of Hugging Face's chat templates: `json.dumps` without HTML escapes.
pub(super) fn tojson(
    state: &State,
    value: &Value,
    ensure_ascii: Option<bool>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let indent = match kwargs.get::<Option<Value>>("indent")? {
        None => None,
        Some(text) if text.as_str().is_some() => text.as_str().map(str::to_owned),
        Some(n) if n.is_none() => None,
        Some(n) => Some(" ".repeat(i64::try_from(n)?.clamp(0, 64) as usize)),
    };
    let (item, key) = match kwargs.get::<Option<Vec<String>>>("separators")? {
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        Some(pair) => match <[String; 2]>::try_from(pair) {
            Ok([item, key]) => (item, key),
            Err(_) => return Err(invalid("tojson: separators must be a pair of strings")),
        },
    };
    let ascii = match ensure_ascii {
        Some(yes) => yes,
        None => kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    let sort = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    let mut out = Writer { state, out: String::new(), paid: 0 };
    out.json(value, &Style { ascii, sort, indent, item, key }, 0)?;
    Ok(out.out)
}

/// Text of a value as Python's `str` gives it.
pub(super) fn python_str(state: &State, value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let mut out = Writer { state, out: String::new(), paid: 0 };
    out.repr(value, 0)?;
    Ok(out.out)
}

fn invalid(detail: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail)
}

struct Writer<'a, 'b, 'c> {
    state: &'a State<'b, 'c>,
    out: String,
    paid: usize,
}

impl Writer<'_, '_, '_> {
    /// Pays for one value and for what was written since the last call: shared values can make
    /// the text far longer than the memory that holds them.
    fn charge(&mut self, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(invalid("value is nested too deeply to be written"));
        }
        let fresh = self.out.len() - self.paid;
        self.paid = self.out.len();
        self.state.consume_fuel(1 + (fresh / BYTES_PER_FUEL) as u64)
    }

    fn line(&mut self, style: &Style, depth: usize) {
        if let Some(indent) = &style.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn json(&mut self, value: &Value, style: &Style, depth: usize) -> Result<(), Error> {
        self.charge(depth)?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value),
            ValueKind::String => self.json_str(value.as_str().unwrap_or_default(), style.ascii),
            ValueKind::Seq | ValueKind::Iterable => {
                let mut empty = true;
                self.out.push('[');
                for item in value.try_iter()? {
                    if !std::mem::replace(&mut empty, false) {
                        self.out.push_str(&style.item);
                    }
                    self.line(style, depth + 1);
                    self.json(&item, style, depth + 1)?;
                }
                if !empty {
                    self.line(style, depth);
                }
                self.out.push(']');
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if style.sort {
                    keys.sort();
                }
                self.out.push('{');
                for (i, key) in keys.iter().enumerate() {
                    if i > 0 {
                        self.out.push_str(&style.item);
                    }
                    self.line(style, depth + 1);
                    match key.as_str() {
                        Some(text) => self.json_str(text, style.ascii),
                        None => {
                            self.out.push('"');
                            self.json(key, style, depth + 1)?;
                            self.out.push('"');
                        }
                    }
                    self.out.push_str(&style.key);
                    self.json(&value.get_item(key)?, style, depth + 1)?;
                }
                if !keys.is_empty() {
                    self.line(style, depth);
                }
                self.out.push('}');
            }
            ValueKind::Undefined => return Err(invalid("undefined value is not JSON serializable")),
            kind => return Err(invalid(format!("{kind} is not JSON serializable"))),
        }
        Ok(())
    }

    fn json_str(&mut self, text: &str, ascii: bool) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (ascii && !(' '..='~').contains(&c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn number(&mut self, value: &Value) {
        match f64::try_from(value.clone()) {
            Ok(float) if !value.is_integer() => self.out.push_str(&python_float(float)),
            _ => self.out.push_str(&value.to_string()),
        }
    }

    fn repr(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.charge(depth)?;
        match value.kind() {
            ValueKind::Number => self.number(value),
            ValueKind::String => self.repr_str(value.as_str().unwrap_or_default()),
            ValueKind::Seq => {
                let tuple = value.downcast_object_ref::<minijinja::value::Tuple>().is_some();
                self.out.push(if tuple { '(' } else { '[' });
                let mut count = 0;
                for item in value.try_iter()? {
                    if count > 0 {
                        self.out.push_str(", ");
                    }
                    count += 1;
                    self.repr(&item, depth + 1)?;
                }
                self.out.push_str(match (tuple, count) {
                    (true, 1) => ",)",
                    (true, _) => ")",
                    (false, _) => "]",
                });
            }
            ValueKind::Map => {
                self.out.push('{');
                for (i, key) in value.try_iter()?.enumerate() {
                    if i > 0 {
                        self.out.push_str(", ");
                    }
                    self.repr(&key, depth + 1)?;
                    self.out.push_str(": ");
                    self.repr(&value.get_item(&key)?, depth + 1)?;
                }
                self.out.push('}');
            }
            _ => self.out.push_str(&value.to_string()),
        }
        Ok(())
    }

    fn repr_str(&mut self, text: &str) {
        let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
        self.out.push(quote);
        for c in text.chars() {
            match c {
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                c if c == quote => {
                    self.out.push('\\');
                    self.out.push(c);
                }
                c if (c as u32) < 0x100 && c.is_control() => {
                    self.out.push_str(&format!("\\x{:02x}", c as u32));
                }
                c => self.out.push(c),
            }
        }
        self.out.push(quote);
    }
}

/// A float as Python's `repr` writes it: shortest digits, exponents of two digits or more.
fn python_float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    // Rust's Debug form has Python's digits and thresholds; only exponents differ.
    let text = format!("{value:?}");
    match text.split_once('e') {
        None => text,
        Some((digits, exponent)) => {
            let digits = digits.strip_suffix(".0").unwrap_or(digits);
            match exponent.strip_prefix('-') {
                Some(e) => format!("{digits}e-{e:0>2}"),
                None => format!("{digits}e+{exponent:0>2}"),
            }
        }
    }
}
