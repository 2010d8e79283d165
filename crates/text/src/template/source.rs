//! What is done to a template's source before the engine sees it.
//!
//! The engine's parser recurses along chains such as `a.b.c` or `elif … elif`, and folds
//! constants in quadratic time. So the length of a tag and the number of branches are bounded
//! here, far above what real templates hold.

use super::TemplateError;

/// Most words and signs in one tag.
const TAG_TOKENS: usize = 2_000;
/// Most `elif` branches in one template.
const BRANCHES: usize = 500;

/// Checks a source and turns `{% generation %}` blocks, which only mark what is trained on, into
/// plain scopes.
pub(super) fn prepare(source: &str) -> Result<String, TemplateError> {
    let mut out = String::with_capacity(source.len());
    let mut branches = 0;
    let mut rest = source;
    while let Some(at) = rest.find("{").filter(|at| rest.len() > at + 1) {
        let tag = &rest[at..];
        let line = || source[..source.len() - tag.len()].matches('\n').count() + 1;
        let len = match tag.as_bytes()[1] {
            b'#' => tag.find("#}").unwrap_or(tag.len()),
            b'{' | b'%' => {
                let (len, tokens) = measure(tag);
                if tokens > TAG_TOKENS {
                    return Err(TemplateError::TooComplex {
                        line: line(),
                        what: "words in one tag",
                        limit: TAG_TOKENS,
                    });
                }
                len
            }
            _ => 1,
        };
        let (text, next) = tag.split_at(len);
        out.push_str(&rest[..at]);
        rest = next;
        let Some((open, name)) = statement(text) else {
            out.push_str(text);
            continue;
        };
        let after = &text[open + name.len()..];
        let plain = after.trim_start().trim_start_matches(['-', '+']).starts_with("%}");
        match name {
            "elif" => branches += 1,
            "raw" if plain => {
                let end = rest.find("endraw").unwrap_or(rest.len());
                out.push_str(text);
                out.push_str(&rest[..end]);
                rest = &rest[end..];
                continue;
            }
            _ => {}
        }
        if branches > BRANCHES {
            return Err(TemplateError::TooComplex { line: line(), what: "`elif` branches", limit: BRANCHES });
        }
        out.push_str(&text[..open]);
        out.push_str(match name {
            "generation" if plain => "with",
            "endgeneration" if plain => "endwith",
            other => other,
        });
        out.push_str(after);
    }
    out.push_str(rest);
    Ok(out)
}

/// Byte length of the tag that starts here, and how many words and signs it holds.
fn measure(tag: &str) -> (usize, usize) {
    let close = if tag.starts_with("{{") { b"}}" } else { b"%}" };
    let bytes = tag.as_bytes();
    let (mut at, mut tokens, mut depth, mut word) = (2, 0, 0i32, false);
    while at < bytes.len() {
        let byte = bytes[at];
        if depth <= 0 && bytes[at..].starts_with(close) {
            return (at + 2, tokens);
        }
        let was_word =
            std::mem::replace(&mut word, byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80);
        let goes_on = byte.is_ascii_whitespace() || (word && was_word);
        tokens += usize::from(!goes_on);
        at += 1;
        match byte {
            b'{' | b'(' | b'[' => depth += 1,
            b'}' | b')' | b']' => depth -= 1,
            b'"' | b'\'' => {
                while at < bytes.len() && bytes[at] != byte {
                    at += 1 + usize::from(bytes[at] == b'\\');
                }
                at += 1;
            }
            _ => {}
        }
    }
    (bytes.len(), tokens)
}

/// The name of a `{% … %}` tag and the byte where it starts.
fn statement(tag: &str) -> Option<(usize, &str)> {
    let inner = tag.strip_prefix("{%")?.trim_start_matches(['-', '+']).trim_start();
    let len = inner.bytes().take_while(u8::is_ascii_alphanumeric).count();
    Some((tag.len() - inner.len(), &inner[..len]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_generation_tags_change() {
        let same = [
            "a { b {{ '%}' ~ \"}}\" }} {# {% generation %} #} {% if x == '{% generation %}' %}{% endif %}",
            "{% raw %}{% generation %}{{{% endraw %} tail {",
            "{{ {'a': {'b': 1}}['a'] }}{% set generation = 1 %}{{ generation }}",
            "{{ 'unclosed",
        ];
        for source in same {
            assert_eq!(prepare(source).unwrap(), source);
        }
        let source = "{%- generation -%}x{%+endgeneration%}{% generation  %}y{% endgeneration %}";
        let want = "{%- with -%}x{%+endwith%}{% with  %}y{% endwith %}";
        assert_eq!(prepare(source).unwrap(), want);
    }

    #[test]
    fn long_tags_are_refused_and_long_strings_are_not() {
        let text = format!("{{{{ '{}' }}}}", "a + b ".repeat(5_000));
        assert_eq!(prepare(&text).unwrap(), text);
        let error = prepare(&format!("x\n{{{{ 1{} }}}}", " + 1".repeat(1_001))).unwrap_err();
        assert!(matches!(error, TemplateError::TooComplex { line: 2, limit: TAG_TOKENS, .. }), "{error}");
        let error = prepare(&"{% elif x %}\n".repeat(501)).unwrap_err();
        assert!(matches!(error, TemplateError::TooComplex { line: 501, limit: BRANCHES, .. }), "{error}");
    }
}
