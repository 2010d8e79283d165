//! The opposite of a schema.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::disjoint::{KINDS, kind_of, kinds_of};
use super::{REFERENCES, resolve};

/// Keywords that say nothing of a value.
const SILENT: [&str; 9] =
    ["$comment", "$defs", "$schema", "default", "definitions", "description", "examples", "format", "title"];

/// A schema of values that do not satisfy this one: of all of them, or of some where not all can be described.
pub(super) fn negate(root: &Value, schema: &Value) -> Option<Value> {
    opposite(root, schema, 0)
}

fn opposite(root: &Value, schema: &Value, depth: usize) -> Option<Value> {
    if depth > REFERENCES {
        return None;
    }
    let map = match resolve(root, schema) {
        Value::Bool(holds) => return Some((!holds).into()),
        Value::Object(map) => map,
        _ => return None,
    };
    let says = |key: &&String| !SILENT.contains(&key.as_str());
    if map.keys().filter(says).count() == 0 {
        return Some(false.into());
    }
    // A value that breaks one of the keywords breaks the schema.
    let ways: Vec<Value> = map.iter().flat_map(|(key, value)| broken(root, map, key, value, depth)).collect();
    match ways.len() {
        0 => None,
        1 => ways.into_iter().next(),
        _ => Some(json!({ "anyOf": ways })),
    }
}

/// Schemas of values that break a keyword.
fn broken(root: &Value, map: &Map<String, Value>, key: &str, value: &Value, depth: usize) -> Vec<Value> {
    let all = |list: &[Value]| -> Option<Vec<Value>> {
        list.iter().map(|schema| opposite(root, schema, depth + 1)).collect()
    };
    let number = |key: &str, inverse: &str| match map.get(key) {
        Some(n) if n.is_number() => vec![json!({ "type": "number", inverse: n })],
        _ => Vec::new(),
    };
    let length = |kind: &str, inverse: &str, n: Option<u64>| match n {
        Some(n) => vec![json!({ "type": kind, inverse: n })],
        None => Vec::new(),
    };
    let above = || value.as_u64().and_then(|n| n.checked_add(1));
    let below = || value.as_u64().and_then(|n| n.checked_sub(1));
    match key {
        "type" => other_kinds(value),
        "const" => others(std::slice::from_ref(value)),
        "enum" => value.as_array().map_or_else(Vec::new, |list| others(list)),
        "required" => {
            let names = value.as_array().into_iter().flatten().filter_map(Value::as_str);
            names.map(|name| json!({ "type": "object", "properties": { name: false } })).collect()
        }
        "properties" => {
            let entry = |(name, schema): (&String, &Value)| {
                let wrong = opposite(root, schema, depth + 1).filter(|wrong| wrong != &Value::Bool(false))?;
                let name = name.as_str();
                Some(json!({ "type": "object", "properties": { name: wrong }, "required": [name] }))
            };
            value.as_object().into_iter().flatten().filter_map(entry).collect()
        }
        "minimum" => number("minimum", "exclusiveMaximum"),
        "maximum" => number("maximum", "exclusiveMinimum"),
        "exclusiveMinimum" => number("exclusiveMinimum", "maximum"),
        "exclusiveMaximum" => number("exclusiveMaximum", "minimum"),
        "minLength" => length("string", "maxLength", below()),
        "maxLength" => length("string", "minLength", above()),
        "minItems" => length("array", "maxItems", below()),
        "maxItems" => length("array", "minItems", above()),
        "not" => vec![value.clone()],
        "allOf" => {
            let list = value.as_array().into_iter().flatten();
            list.filter_map(|schema| opposite(root, schema, depth + 1)).collect()
        }
        "anyOf" => match value.as_array().and_then(|list| all(list)) {
            Some(list) => vec![json!({ "allOf": list })],
            None => Vec::new(),
        },
        "$ref" => {
            let target = value.as_str().and_then(|r| r.strip_prefix('#')).and_then(|path| root.pointer(path));
            target.and_then(|target| opposite(root, target, depth + 1)).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

/// Values of none of these types.
fn other_kinds(value: &Value) -> Vec<Value> {
    let names: Vec<&str> = match value {
        Value::String(name) => vec![name],
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        _ => return Vec::new(),
    };
    without(names.into_iter().flat_map(kinds_of).collect::<Vec<_>>())
}

/// Values of none of these kinds. Numbers that are not whole have no type of their own, so they go with the whole ones.
fn without(kinds: Vec<&str>) -> Vec<Value> {
    let numbers = kinds.iter().any(|kind| matches!(*kind, "integer" | "fraction"));
    let mut left: Vec<&str> = KINDS.into_iter().filter(|kind| !kinds.contains(kind)).collect();
    left.retain(|kind| *kind != "fraction" && !(numbers && *kind == "integer"));
    let left: Vec<&str> =
        left.into_iter().map(|kind| if kind == "integer" { "number" } else { kind }).collect();
    if left.is_empty() { Vec::new() } else { vec![json!({ "type": left })] }
}

/// Values that are none of these.
fn others(values: &[Value]) -> Vec<Value> {
    let mut out = without(values.iter().map(kind_of).collect());
    let texts: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
    if !texts.is_empty() {
        out.push(json!({ "type": "string", "pattern": format!("^{}$", other_texts(&texts)) }));
    }
    let mut numbers: Vec<f64> = values.iter().filter_map(Value::as_f64).collect();
    numbers.sort_by(f64::total_cmp);
    if let (Some(first), Some(last)) = (numbers.first(), numbers.last()) {
        out.push(json!({ "type": "number", "exclusiveMaximum": first }));
        out.extend(numbers.windows(2).filter(|pair| pair[0] < pair[1]).map(
            |pair| json!({ "type": "number", "exclusiveMinimum": pair[0], "exclusiveMaximum": pair[1] }),
        ));
        out.push(json!({ "type": "number", "exclusiveMinimum": last }));
    }
    for value in [true, false] {
        let (found, other) = (Value::Bool(value), Value::Bool(!value));
        if values.contains(&found) && !values.contains(&other) {
            out.push(json!({ "const": other }));
        }
    }
    out
}

/// A pattern of all texts but these.
fn other_texts(texts: &[&str]) -> String {
    let ends = texts.iter().any(|text| text.is_empty());
    let mut next: BTreeMap<char, Vec<&str>> = BTreeMap::new();
    for text in texts {
        let mut letters = text.chars();
        if let Some(first) = letters.next() {
            next.entry(first).or_default().push(letters.as_str());
        }
    }
    let mut ways = Vec::new();
    if !ends {
        ways.push(String::new());
    }
    let others: String = next.keys().map(|c| format!("\\u{{{:x}}}", u32::from(*c))).collect();
    ways.push(if others.is_empty() { "(.|\\n)+".to_owned() } else { format!("[^{others}](.|\\n)*") });
    ways.extend(next.iter().map(|(c, rest)| format!("\\u{{{:x}}}{}", u32::from(*c), other_texts(rest))));
    format!("({})", ways.join("|"))
}
