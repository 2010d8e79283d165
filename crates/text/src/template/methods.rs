//! Python methods on strings and lists that neither the engine nor its compatibility crate has
//! as Python has them.

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

/// Looks up a method on a value: ours first, then minijinja-contrib's.
pub(super) fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let ours = match (value.kind(), value.as_str()) {
        (ValueKind::String, Some(text)) => string(text, method, args)?,
        (ValueKind::Seq, _) => list(value, method, args)?,
        (ValueKind::Map, _) if method == "copy" => {
            let () = from_args(args)?;
            Some(value.clone())
        }
        _ => None,
    };
    match ours {
        Some(found) => Ok(found),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args),
    }
}

/// Python's `str.strip`: takes the given characters, or white space, off both ends.
pub(super) fn strip<'a>(text: &'a str, chars: Option<&str>) -> &'a str {
    text.trim_matches(|c| gone(c, chars))
}

fn gone(c: char, chars: Option<&str>) -> bool {
    chars.map_or_else(|| is_space(c), |set| set.contains(c))
}

/// Whether Python's `str.isspace` holds: Unicode white space and the four separators 1C–1F.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn string(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            Value::from(match method {
                "strip" => strip(text, chars),
                "lstrip" => text.trim_start_matches(|c| gone(c, chars)),
                _ => text.trim_end_matches(|c| gone(c, chars)),
            })
        }
        "split" | "rsplit" => {
            let (sep, max, kwargs): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
            let sep = match sep {
                Some(sep) => Some(sep),
                None => kwargs.get("sep")?,
            };
            let max = match max {
                Some(max) => Some(max),
                None => kwargs.get::<Option<i64>>("maxsplit")?,
            };
            kwargs.assert_all_used()?;
            let max = max.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
            let sep = match &sep {
                Some(sep) if !sep.is_none() => Some(sep.as_str().ok_or_else(|| not_a("string"))?),
                _ => None,
            };
            let pieces = match (sep, method) {
                (Some(""), _) => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
                (Some(sep), "split") => text.splitn(max.saturating_add(1), sep).collect(),
                (Some(sep), _) => {
                    let mut pieces: Vec<&str> = text.rsplitn(max.saturating_add(1), sep).collect();
                    pieces.reverse();
                    pieces
                }
                (None, "split") => split_space(text, max),
                (None, _) => rsplit_space(text, max),
            };
            pieces.into_iter().map(Value::from).collect()
        }
        "partition" | "rpartition" => {
            let (sep,): (&str,) = from_args(args)?;
            let found = if method == "partition" { text.split_once(sep) } else { text.rsplit_once(sep) };
            let parts = match (found, method) {
                (Some((head, tail)), _) => [head, sep, tail],
                (None, "partition") => [text, "", ""],
                (None, _) => ["", "", text],
            };
            Value::from(minijinja::value::Tuple::from(parts.map(Value::from)))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "index" | "rindex" => {
            let (what,): (&str,) = from_args(args)?;
            let at = if method == "index" { text.find(what) } else { text.rfind(what) };
            let at = at.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "substring not found"))?;
            Value::from(text[..at].chars().count())
        }
        "splitlines" => {
            let (keep,): (Option<bool>,) = from_args(args)?;
            split_lines(text, keep.unwrap_or(false)).into_iter().map(Value::from).collect()
        }
        "isdecimal" => {
            let () = from_args(args)?;
            Value::from(!text.is_empty() && text.chars().all(|c| c.is_ascii_digit()))
        }
        "title" => {
            let () = from_args(args)?;
            Value::from(title(text))
        }
        "casefold" => {
            let () = from_args(args)?;
            Value::from(text.to_lowercase())
        }
        _ => return Ok(None),
    }))
}

fn list(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "index" => {
            let (what,): (&Value,) = from_args(args)?;
            let mut items = value.try_iter()?;
            let at = items
                .position(|item| item == *what)
                .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "value is not in the list"))?;
            Value::from(at)
        }
        "copy" => {
            let () = from_args(args)?;
            value.clone()
        }
        _ => return Ok(None),
    }))
}

fn not_a(kind: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("argument is not a {kind}"))
}

fn split_space(text: &str, max: usize) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        let end = if pieces.len() < max { rest.find(is_space) } else { None };
        let Some(end) = end else {
            pieces.push(rest);
            break;
        };
        pieces.push(&rest[..end]);
        rest = rest[end..].trim_start_matches(is_space);
    }
    pieces
}

fn rsplit_space(text: &str, max: usize) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text.trim_end_matches(is_space);
    while !rest.is_empty() {
        let at = if pieces.len() < max { rest.rfind(is_space) } else { None };
        let Some(at) = at else {
            pieces.push(rest);
            break;
        };
        let width = rest[at..].chars().next().map_or(1, char::len_utf8);
        pieces.push(&rest[at + width..]);
        rest = rest[..at].trim_end_matches(is_space);
    }
    pieces.reverse();
    pieces
}

/// Letters after anything that has no case become capitals, all others small.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        match inside {
            true => out.extend(c.to_lowercase()),
            false => out.extend(c.to_uppercase()),
        }
        inside = c.is_lowercase() || c.is_uppercase();
    }
    out
}

fn split_lines(text: &str, keep: bool) -> Vec<&str> {
    let ends = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let Some(at) = rest.find(ends) else {
            lines.push(rest);
            break;
        };
        let c = rest[at..].chars().next().unwrap_or('\n');
        let crlf = usize::from(rest[at..].starts_with("\r\n"));
        let end = at + c.len_utf8() + crlf;
        lines.push(&rest[..if keep { end } else { at }]);
        rest = &rest[end..];
    }
    lines
}
