//! Grammars in llama.cpp's syntax (GBNF), written anew in Lark's.
//!
//! The syntax: `name ::= alternatives`, where an alternative is a sequence of `"literals"`, `[classes]`, `.`, names and
//! groups in parentheses, each with `*`, `+`, `?` or `{m,n}` behind it; `#` begins a comment. The rule `root` is where
//! a text begins.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Deepest nesting of groups that is read.
const MAX_DEPTH: usize = 64;

/// Writes a grammar in Lark's syntax.
///
/// # Errors
/// Tells line and fault.
pub(crate) fn to_lark(text: &str) -> Result<String, String> {
    let mut reader = Reader { rest: text, text, depth: 0 };
    let mut rules: BTreeMap<String, Expr> = BTreeMap::new();
    reader.skip(true);
    while !reader.rest.is_empty() {
        let name = reader.name().ok_or_else(|| reader.fault("expected the name of a rule"))?;
        reader.skip(false);
        reader.take("::=").ok_or_else(|| reader.fault("expected `::=`"))?;
        reader.skip(true);
        let body = reader.alternatives()?;
        reader.skip(true);
        if rules.insert(name.clone(), body).is_some() {
            return Err(format!("the rule {name} is defined twice"));
        }
    }
    if !rules.contains_key("root") {
        return Err("there is no rule named root".into());
    }
    for (name, body) in &rules {
        let mut used = BTreeSet::new();
        body.names(&mut used);
        if let Some(missing) = used.iter().find(|used| !rules.contains_key(**used)) {
            return Err(format!("the rule {name} uses {missing}, which is not defined"));
        }
    }
    // A grammar without recursion is one regular expression, which is exact and fast.
    let regular = !rules.keys().any(|name| recurs(name, &rules));
    let names: BTreeMap<&str, String> = rules
        .keys()
        .enumerate()
        .map(|(i, name)| (name.as_str(), if regular { format!("T{i}") } else { format!("r{i}") }))
        .collect();
    let mut out = format!("start: {}\n", names["root"]);
    for (name, body) in &rules {
        let _ = writeln!(out, "{}: {}", names[name.as_str()], body.lark(&names));
    }
    Ok(out)
}

/// Whether a rule uses itself, straight or through others.
fn recurs(name: &str, rules: &BTreeMap<String, Expr>) -> bool {
    let mut seen = BTreeSet::new();
    let mut open = vec![name];
    while let Some(at) = open.pop() {
        let mut used = BTreeSet::new();
        if let Some(body) = rules.get(at) {
            body.names(&mut used);
        }
        for used in used {
            if used == name {
                return true;
            }
            if seen.insert(used) {
                open.push(used);
            }
        }
    }
    false
}

enum Expr {
    /// Of which one is taken.
    Choice(Vec<Expr>),
    Sequence(Vec<Expr>),
    Text(String),
    /// A pattern between slashes, or a class.
    Pattern(String),
    Name(String),
    Repeat(Box<Expr>, String),
}

impl Expr {
    fn names<'a>(&'a self, out: &mut BTreeSet<&'a str>) {
        match self {
            Expr::Choice(list) | Expr::Sequence(list) => list.iter().for_each(|e| e.names(out)),
            Expr::Repeat(inner, _) => inner.names(out),
            Expr::Name(name) => {
                out.insert(name);
            }
            Expr::Text(_) | Expr::Pattern(_) => {}
        }
    }

    fn lark(&self, names: &BTreeMap<&str, String>) -> String {
        let join = |list: &[Expr], between: &str| {
            list.iter().map(|e| e.lark(names)).collect::<Vec<_>>().join(between)
        };
        match self {
            Expr::Choice(list) if list.len() == 1 => list[0].lark(names),
            Expr::Choice(list) => format!("({})", join(list, " | ")),
            Expr::Sequence(list) if list.is_empty() => "\"\"".into(),
            Expr::Sequence(list) => join(list, " "),
            Expr::Text(text) => serde_json::Value::from(text.as_str()).to_string(),
            Expr::Pattern(pattern) => format!("/{pattern}/"),
            Expr::Name(name) => names.get(name.as_str()).cloned().unwrap_or_default(),
            Expr::Repeat(inner, times) => format!("({}){times}", inner.lark(names)),
        }
    }
}

struct Reader<'a> {
    text: &'a str,
    rest: &'a str,
    depth: usize,
}

impl Reader<'_> {
    fn fault(&self, what: &str) -> String {
        let read = &self.text[..self.text.len() - self.rest.len()];
        format!("line {}: {what}", 1 + read.matches('\n').count())
    }

    fn take(&mut self, what: &str) -> Option<()> {
        self.rest = self.rest.strip_prefix(what)?;
        Some(())
    }

    /// Skips blanks and comments, and line ends where `lines` says so.
    fn skip(&mut self, lines: bool) {
        loop {
            let blank = |c: char| c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'));
            self.rest = self.rest.trim_start_matches(blank);
            if !self.rest.starts_with('#') {
                return;
            }
            self.rest = &self.rest[self.rest.find(['\n', '\r']).unwrap_or(self.rest.len())..];
        }
    }

    fn name(&mut self) -> Option<String> {
        let end = self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_'));
        let (name, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        (!name.is_empty()).then(|| name.to_owned())
    }

    fn alternatives(&mut self) -> Result<Expr, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.fault("groups are nested too deeply"));
        }
        let mut list = vec![self.sequence()?];
        loop {
            // Alternatives may go on in the next line.
            let before = self.rest;
            self.skip(true);
            if self.take("|").is_none() {
                self.rest = before;
                break;
            }
            self.skip(true);
            list.push(self.sequence()?);
        }
        self.depth -= 1;
        Ok(Expr::Choice(list))
    }

    fn sequence(&mut self) -> Result<Expr, String> {
        let mut list = Vec::new();
        loop {
            // Inside a group a line end is a blank.
            self.skip(self.depth > 1);
            let Some(item) = self.item()? else { break };
            let item = match self.times()? {
                Some(times) => Expr::Repeat(Box::new(item), times),
                None => item,
            };
            list.push(item);
        }
        Ok(Expr::Sequence(list))
    }

    fn item(&mut self) -> Result<Option<Expr>, String> {
        let Some(first) = self.rest.chars().next() else { return Ok(None) };
        Ok(Some(match first {
            '"' => Expr::Text(self.quoted()?),
            '[' => Expr::Pattern(self.class()?),
            '.' => {
                self.rest = &self.rest[1..];
                Expr::Pattern("(.|\\n)".into())
            }
            '(' => {
                self.rest = &self.rest[1..];
                let inner = self.alternatives()?;
                self.skip(true);
                self.take(")").ok_or_else(|| self.fault("expected `)`"))?;
                inner
            }
            c if c.is_ascii_alphanumeric() || c == '-' || c == '_' => {
                let before = self.rest;
                let name = self.name().unwrap_or_default();
                // The next rule begins.
                let mut ahead = Reader { text: self.text, rest: self.rest, depth: 0 };
                ahead.skip(false);
                if ahead.rest.starts_with("::=") {
                    self.rest = before;
                    return Ok(None);
                }
                Expr::Name(name)
            }
            ')' | '|' | '\n' | '\r' => return Ok(None),
            other => return Err(self.fault(&format!("{other:?} begins nothing known"))),
        }))
    }

    fn times(&mut self) -> Result<Option<String>, String> {
        for sign in ["*", "+", "?"] {
            if self.take(sign).is_some() {
                return Ok(Some(sign.to_owned()));
            }
        }
        if !self.rest.starts_with('{') {
            return Ok(None);
        }
        let end = self.rest.find('}').ok_or_else(|| self.fault("expected `}`"))?;
        let inner: String = self.rest[1..end].split_whitespace().collect();
        let number = |text: &str| text.is_empty() || text.parse::<u16>().is_ok();
        let sound = match inner.split_once(',') {
            Some((min, max)) => number(min) && number(max) && !(min.is_empty() && max.is_empty()),
            None => !inner.is_empty() && number(&inner),
        };
        if !sound {
            return Err(self.fault("expected {m}, {m,}, {,n} or {m,n} of numbers up to 65535"));
        }
        self.rest = &self.rest[end + 1..];
        Ok(Some(format!("{{{inner}}}")))
    }

    /// One character of a literal or a class, after the escapes of either.
    fn character(&mut self) -> Result<char, String> {
        let mut chars = self.rest.chars();
        let first = chars.next().ok_or_else(|| self.fault("the grammar ends too soon"))?;
        self.rest = chars.as_str();
        if first != '\\' {
            return Ok(first);
        }
        let escape = chars.next().ok_or_else(|| self.fault("the grammar ends too soon"))?;
        self.rest = chars.as_str();
        let digits = match escape {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            '\\' | '"' | '[' | ']' | '^' | '-' => return Ok(escape),
            other => return Err(self.fault(&format!("unknown escape \\{other}"))),
        };
        let code = self.rest.get(..digits).and_then(|hex| u32::from_str_radix(hex, 16).ok());
        let found = code.and_then(char::from_u32);
        let found = found.ok_or_else(|| self.fault(&format!("expected {digits} hexadecimal digits")))?;
        self.rest = &self.rest[digits..];
        Ok(found)
    }

    fn quoted(&mut self) -> Result<String, String> {
        self.rest = &self.rest[1..];
        let mut text = String::new();
        while self.take("\"").is_none() {
            if self.rest.starts_with(['\n', '\r']) {
                return Err(self.fault("a literal ends with its line"));
            }
            text.push(self.character()?);
        }
        Ok(text)
    }

    /// A class as a regular expression of code points.
    fn class(&mut self) -> Result<String, String> {
        self.rest = &self.rest[1..];
        let mut out = String::from(if self.take("^").is_some() { "[^" } else { "[" });
        let point = |c: char| format!("\\u{{{:x}}}", u32::from(c));
        while self.take("]").is_none() {
            let from = self.character()?;
            out.push_str(&point(from));
            if self.rest.starts_with('-') && !self.rest.starts_with("-]") {
                self.rest = &self.rest[1..];
                let to = self.character()?;
                if to < from {
                    return Err(self.fault(&format!("the range {from:?} to {to:?} is empty")));
                }
                out.push('-');
                out.push_str(&point(to));
            }
        }
        out.push(']');
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grammar_without_recursion_is_one_terminal() {
        let lark = to_lark("root ::= (\"yes\" | \"no\") [0-9]{1,3} # how sure\n").unwrap();
        assert_eq!(lark, "start: T0\nT0: (\"yes\" | \"no\") (/[\\u{30}-\\u{39}]/){1,3}\n");
    }

    #[test]
    fn recursion_and_lines_are_kept() {
        let text = "root ::= list\n  | \"none\"\nlist ::= \"(\" list? \")\"\n";
        let lark = to_lark(text).unwrap();
        assert_eq!(lark, "start: r1\nr0: \"(\" (r0)? \")\"\nr1: (r0 | \"none\")\n");
    }

    #[test]
    fn faults_are_told_with_their_line() {
        for (text, fault) in [
            ("", "there is no rule named root"),
            ("root ::= other", "the rule root uses other, which is not defined"),
            ("root ::= \"a\nb\"", "line 1: a literal ends with its line"),
            ("root ::= \"a\"\nroot ::= \"b\"", "the rule root is defined twice"),
            ("root ::= \"a\"{x}", "line 1: expected {m}, {m,}, {,n} or {m,n} of numbers up to 65535"),
            ("root ::= [z-a]", "line 1: the range 'z' to 'a' is empty"),
            ("root ::= (\"a\"", "line 1: expected `)`"),
            ("\nroot = \"a\"", "line 2: expected `::=`"),
            ("root ::= \"\\q\"", "line 1: unknown escape \\q"),
        ] {
            assert_eq!(to_lark(text).unwrap_err(), fault, "{text:?}");
        }
        let deep = format!("root ::= {}", "(".repeat(100));
        assert_eq!(to_lark(&deep).unwrap_err(), "line 1: groups are nested too deeply");
    }
}
