//! Whether no value can satisfy two schemas at once.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::{REFERENCES, finite, resolve, same};

/// Pairs of schemas that are looked at for one answer at most.
const STEPS: usize = 10_000;

/// The kinds of values; whole numbers and others are apart.
pub(super) const KINDS: [&str; 7] = ["null", "boolean", "integer", "fraction", "string", "array", "object"];

/// Whether no value satisfies both, as far as that can be told; `false` says nothing.
pub(super) fn disjoint(root: &Value, a: &Value, b: &Value) -> bool {
    Pair { root, left: STEPS }.disjoint(a, b, 0)
}

/// The kinds that a type's name covers.
pub(super) fn kinds_of(name: &str) -> HashSet<&'static str> {
    let covers =
        |kind: &&&str| **kind == name || (name == "number" && matches!(**kind, "integer" | "fraction"));
    KINDS.iter().filter(covers).copied().collect()
}

pub(super) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.as_f64().is_some_and(|x| x.fract() != 0.0) => "fraction",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The kinds of values that a schema's own words allow.
fn kinds(map: &Map<String, Value>) -> HashSet<&'static str> {
    let mut kinds: HashSet<&'static str> = match map.get("type") {
        Some(Value::String(name)) => kinds_of(name),
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).flat_map(kinds_of).collect(),
        _ => KINDS.into_iter().collect(),
    };
    if let Some(value) = map.get("const") {
        kinds.retain(|kind| *kind == kind_of(value));
    }
    if let Some(Value::Array(values)) = map.get("enum") {
        kinds.retain(|kind| values.iter().any(|value| *kind == kind_of(value)));
    }
    kinds
}

struct Pair<'a> {
    root: &'a Value,
    left: usize,
}

impl<'a> Pair<'a> {
    fn disjoint(&mut self, a: &'a Value, b: &'a Value, depth: usize) -> bool {
        if self.left == 0 || depth > REFERENCES {
            return false;
        }
        self.left -= 1;
        let (a, b) = (resolve(self.root, a), resolve(self.root, b));
        if a == &Value::Bool(false) || b == &Value::Bool(false) {
            return true;
        }
        let (Some(x), Some(y)) = (a.as_object(), b.as_object()) else { return false };
        if self.by_parts(x, b, depth) || self.by_parts(y, a, depth) {
            return true;
        }
        let listed = |values: Option<Vec<Value>>, other: &Map<String, Value>| {
            values.is_some_and(|values| values.iter().all(|value| refuses(other, value)))
        };
        if listed(finite(a), y) || listed(finite(b), x) {
            return true;
        }
        let kinds_y = kinds(y);
        let common: Vec<&str> = kinds(x).into_iter().filter(|kind| kinds_y.contains(kind)).collect();
        common.into_iter().all(|kind| match kind {
            "integer" | "fraction" => beyond(x, y) || beyond(y, x),
            "string" => longer(x, y, "minLength", "maxLength"),
            "array" => longer(x, y, "minItems", "maxItems"),
            "object" => longer(x, y, "minProperties", "maxProperties") || self.objects(x, y, depth),
            _ => false,
        })
    }

    /// By what a schema is made of: each of its alternatives, or one of the parts that must all hold.
    fn by_parts(&mut self, map: &'a Map<String, Value>, other: &'a Value, depth: usize) -> bool {
        let list = |key: &str| map.get(key).and_then(Value::as_array);
        let mut alternatives = ["anyOf", "oneOf"].into_iter().filter_map(list);
        let parts = list("allOf").into_iter().flatten();
        let root = self.root;
        let target = map.get("$ref").and_then(|r| root.pointer(r.as_str()?.strip_prefix('#')?));
        alternatives
            .any(|list| !list.is_empty() && list.iter().all(|part| self.disjoint(part, other, depth + 1)))
            || parts.chain(target).any(|part| self.disjoint(part, other, depth + 1))
    }

    /// Objects are apart where a property that one needs can have no value that suits both.
    fn objects(&mut self, x: &'a Map<String, Value>, y: &'a Map<String, Value>, depth: usize) -> bool {
        let names = |map: &'a Map<String, Value>| {
            map.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
        };
        let needed: HashSet<&str> = names(x).chain(names(y)).collect();
        needed.into_iter().any(|name| match (property(x, name), property(y, name)) {
            (Some(a), Some(b)) => self.disjoint(a, b, depth + 1),
            (Some(one), None) | (None, Some(one)) => one == &Value::Bool(false),
            (None, None) => false,
        })
    }
}

/// What an object's schema says of a property by name; `None` where it says nothing that is known here.
fn property<'a>(map: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    if let Some(schema) = map.get("properties").and_then(|p| p.get(name)) {
        return Some(schema);
    }
    if map.contains_key("patternProperties") {
        return None;
    }
    map.get("additionalProperties")
}

/// Whether a schema's own words rule a value out for certain.
fn refuses(map: &Map<String, Value>, value: &Value) -> bool {
    let number = |key: &str| map.get(key).and_then(Value::as_f64);
    if !kinds(map).contains(kind_of(value)) {
        return true;
    }
    let unlisted = |list: &[Value]| !list.iter().any(|other| same(other, value));
    match (map.get("const"), map.get("enum")) {
        (Some(one), _) if unlisted(std::slice::from_ref(one)) => return true,
        (_, Some(Value::Array(list))) if unlisted(list) => return true,
        _ => {}
    }
    let outside = |n: f64, least: &str, most: &str| {
        number(least).is_some_and(|least| n < least) || number(most).is_some_and(|most| n > most)
    };
    match value {
        Value::Number(n) => n.as_f64().is_some_and(|n| {
            outside(n, "minimum", "maximum")
                || number("exclusiveMinimum").is_some_and(|least| n <= least)
                || number("exclusiveMaximum").is_some_and(|most| n >= most)
        }),
        Value::String(text) => outside(text.chars().count() as f64, "minLength", "maxLength"),
        Value::Array(list) => outside(list.len() as f64, "minItems", "maxItems"),
        Value::Object(object) => {
            let missing = |name: &Value| name.as_str().is_some_and(|name| !object.contains_key(name));
            map.get("required").and_then(Value::as_array).is_some_and(|list| list.iter().any(missing))
        }
        _ => false,
    }
}

/// Whether all numbers of `x` are below all of `y`.
fn beyond(x: &Map<String, Value>, y: &Map<String, Value>) -> bool {
    let number = |map: &Map<String, Value>, key: &str| map.get(key).and_then(Value::as_f64);
    let most = [(number(x, "maximum"), false), (number(x, "exclusiveMaximum"), true)];
    let least = [(number(y, "minimum"), false), (number(y, "exclusiveMinimum"), true)];
    most.iter().any(|(most, open)| {
        least.iter().any(|(least, also_open)| match (most, least) {
            (Some(most), Some(least)) => most < least || (most == least && (*open || *also_open)),
            _ => false,
        })
    })
}

/// Whether one is longer at least than the other at most.
fn longer(x: &Map<String, Value>, y: &Map<String, Value>, least: &str, most: &str) -> bool {
    let number = |map: &Map<String, Value>, key: &str| map.get(key).and_then(Value::as_u64);
    let over = |x, y| matches!((number(x, least), number(y, most)), (Some(a), Some(b)) if a > b);
    over(x, y) || over(y, x)
}
