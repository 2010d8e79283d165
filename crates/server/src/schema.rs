//! JSON Schemas as the engine of grammars reads them.
//!
//! It knows most keywords and refuses the others. What follows writes many of those in terms of keywords that it
//! knows. A rewritten schema allows the same values or fewer, never more; where that cannot be had the keyword stays,
//! and with it the refusal.

mod disjoint;
mod negate;

use serde_json::{Map, Value, json};

use disjoint::disjoint;
use negate::negate;

/// Values that a list of unlike items may be made of in any order; of more, in the order of the schema alone.
const ANY_ORDER: usize = 5;
/// Values that a list of unlike items may be made of at most.
const UNLIKE: usize = 10;
/// Nodes that a rewritten schema may have; one that would grow beyond stays as it is.
const LARGEST: usize = 50_000;
/// References that are followed one after the other at most.
const REFERENCES: usize = 16;

/// Keywords whose value is a schema.
const ONE: [&str; 12] = [
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contentSchema",
];
/// Keywords whose value is a list of schemas.
const LISTS: [&str; 5] = ["allOf", "anyOf", "items", "oneOf", "prefixItems"];
/// Keywords whose value is an object of schemas.
const MAPS: [&str; 6] =
    ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"];
/// Keywords that look beyond their own schema's properties and items.
const IN_PLACE: [&str; 8] = ["$ref", "allOf", "anyOf", "dependentSchemas", "else", "if", "oneOf", "then"];
/// Formats that say nothing of a string's letters.
const FREE_FORMATS: [&str; 2] = ["binary", "password"];

/// The schema in keywords that the engine of grammars knows, as far as there are such.
pub(crate) fn rewrite(schema: &Value) -> Value {
    let mut rewriter = Rewriter { root: schema, made: 0 };
    let rewritten = rewriter.schema(schema);
    if rewriter.made > LARGEST { schema.clone() } else { rewritten }
}

/// Whether a schema says nothing.
fn is_anything(schema: &Value) -> bool {
    schema == &Value::Bool(true) || schema.as_object().is_some_and(Map::is_empty)
}

/// The schema that a reference stands for, where it is one inside the document.
fn resolve<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let mut at = schema;
    for _ in 0..REFERENCES {
        // What stands beside a reference holds too, so only one that is alone is the same as its target.
        let alone = at.as_object().filter(|map| map.len() == 1).and_then(|map| map.get("$ref"));
        let Some(path) = alone.and_then(Value::as_str).and_then(|r| r.strip_prefix('#')) else { break };
        match root.pointer(path) {
            Some(target) => at = target,
            None => break,
        }
    }
    at
}

struct Rewriter<'a> {
    root: &'a Value,
    /// Nodes made so far.
    made: usize,
}

impl Rewriter<'_> {
    fn schema(&mut self, schema: &Value) -> Value {
        self.made += 1;
        let Value::Object(map) = schema else { return schema.clone() };
        if self.made > LARGEST {
            return schema.clone();
        }
        let mut out = Map::new();
        // What must hold beside the rest.
        let mut also: Vec<Value> = Vec::new();
        for (key, value) in map {
            let inner = self.inside(key, value);
            let (key, value) = match self.keyword(map, key, &inner) {
                Rewritten::Same => (key.as_str(), inner),
                Rewritten::As(key, value) => (key, value),
                Rewritten::Gone => continue,
                Rewritten::Also(schema) => {
                    also.push(schema);
                    continue;
                }
            };
            out.insert(key.to_owned(), value);
        }
        if !also.is_empty() {
            // What is no list is refused in any case.
            if let Value::Array(list) = out.entry("allOf").or_insert_with(|| json!([])) {
                list.extend(also);
            }
        }
        Value::Object(out)
    }

    /// The value of a keyword with the schemas in it rewritten.
    fn inside(&mut self, key: &str, value: &Value) -> Value {
        match value {
            Value::Array(list) if LISTS.contains(&key) => list.iter().map(|s| self.schema(s)).collect(),
            Value::Object(map) if MAPS.contains(&key) => {
                let entry = |(name, schema): (&String, &Value)| (name.clone(), self.schema(schema));
                Value::Object(map.iter().map(entry).collect())
            }
            Value::Object(_) if ONE.contains(&key) => self.schema(value),
            other => {
                self.made += size(other);
                other.clone()
            }
        }
    }

    /// What becomes of a keyword, given with the schemas in it rewritten. What must not hold is read from the original:
    /// a schema that allows fewer values has an opposite that allows more.
    fn keyword(&mut self, map: &Map<String, Value>, key: &str, value: &Value) -> Rewritten {
        let made = match key {
            "oneOf" => self.one_of(map, value),
            "not" => self.not(&map[key]).map(Rewritten::Also),
            "if" => self.if_then_else(map, value),
            // Without `if` they say nothing.
            "then" | "else" => {
                let read = map.get("if").is_none_or(|test| negate(self.root, test).is_some());
                read.then_some(Rewritten::Gone)
            }
            "dependentRequired" | "dependentSchemas" | "dependencies" => dependencies(value),
            "contains" => contains(map, value),
            "minContains" | "maxContains" => {
                let read = map.get("contains").is_none_or(|s| contains(map, s).is_some());
                read.then_some(Rewritten::Gone)
            }
            "uniqueItems" => self.unique(map, value),
            "propertyNames" => property_names(self.root, value),
            "unevaluatedProperties" => unevaluated(map, value, "additionalProperties"),
            "unevaluatedItems" => unevaluated(map, value, "items"),
            "format" => {
                value.as_str().is_some_and(|name| FREE_FORMATS.contains(&name)).then_some(Rewritten::Gone)
            }
            _ => None,
        };
        let made = made.unwrap_or(Rewritten::Same);
        if let Rewritten::As(_, value) | Rewritten::Also(value) = &made {
            self.made += size(value);
        }
        made
    }

    fn not(&mut self, schema: &Value) -> Option<Value> {
        let opposite = negate(self.root, schema)?;
        Some(self.schema(&opposite))
    }

    /// Alternatives of which no two can hold at once are as well written as any of them.
    fn one_of(&self, map: &Map<String, Value>, value: &Value) -> Option<Rewritten> {
        let list = map["oneOf"].as_array()?;
        let apart = |(i, a): (usize, &Value)| list[i + 1..].iter().all(|b| disjoint(self.root, a, b));
        if list.is_empty() || !list.iter().enumerate().all(apart) {
            return None;
        }
        if map.contains_key("anyOf") {
            return Some(Rewritten::Also(json!({ "anyOf": value })));
        }
        Some(Rewritten::As("anyOf", value.clone()))
    }

    fn if_then_else(&mut self, map: &Map<String, Value>, test: &Value) -> Option<Rewritten> {
        let otherwise = self.not(&map["if"])?;
        let mut branch = |holds: Value, key: &str| match map.get(key) {
            None => holds,
            Some(more) => json!({ "allOf": [holds, self.schema(more)] }),
        };
        let branches = [branch(test.clone(), "then"), branch(otherwise, "else")];
        Some(Rewritten::Also(json!({ "anyOf": branches })))
    }

    /// Lists of unlike items out of few are all written out.
    fn unique(&self, map: &Map<String, Value>, value: &Value) -> Option<Rewritten> {
        if value != true {
            return Some(Rewritten::Gone);
        }
        let most = map.get("maxItems").and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
        if most.is_some_and(|n| n <= 1) {
            return Some(Rewritten::Gone);
        }
        // Where other values than lists may be, they would be lost.
        if map.get("type").is_none_or(|t| t != "array") {
            return None;
        }
        let values = finite(resolve(self.root, map.get("items")?))?;
        let least = map.get("minItems").and_then(Value::as_u64).unwrap_or(0) as usize;
        if values.len() > UNLIKE || least > values.len() {
            return None;
        }
        let most = most.unwrap_or(values.len()).min(values.len());
        let mut lists = Vec::new();
        arrange(&values, values.len() <= ANY_ORDER, &mut Vec::new(), &mut |list| {
            if (least..=most).contains(&list.len()) {
                lists.push(Value::Array(list.iter().map(|i| values[*i].clone()).collect()));
            }
        });
        Some(Rewritten::Also(json!({ "enum": lists })))
    }
}

/// What becomes of a keyword.
enum Rewritten {
    Same,
    Gone,
    /// Another keyword in its place.
    As(&'static str, Value),
    /// A schema that must hold too.
    Also(Value),
}

fn size(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(size).sum::<usize>(),
        Value::Object(map) => 1 + map.values().map(size).sum::<usize>(),
        _ => 1,
    }
}

/// All values that a schema allows, where its own words list them.
fn finite(schema: &Value) -> Option<Vec<Value>> {
    let map = schema.as_object()?;
    let mut values = match (map.get("const"), map.get("enum"), map.get("type").and_then(Value::as_str)) {
        (Some(value), ..) => vec![value.clone()],
        (None, Some(Value::Array(list)), _) => list.clone(),
        (None, None, Some("boolean")) => vec![false.into(), true.into()],
        (None, None, Some("null")) => vec![Value::Null],
        _ => return None,
    };
    let mut unlike: Vec<Value> = Vec::new();
    values.retain(|value| {
        let new = !unlike.iter().any(|other| same(other, value));
        if new {
            unlike.push(value.clone());
        }
        new
    });
    Some(values)
}

/// Whether two values are equal as JSON Schema sees it: 1 and 1.0 are.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        _ => a == b,
    }
}

/// Hands on every list of different indices of `values`, in any order or in rising order alone.
fn arrange(values: &[Value], any_order: bool, begun: &mut Vec<usize>, each: &mut impl FnMut(&[usize])) {
    each(begun);
    let first = if any_order { 0 } else { begun.last().map_or(0, |last| last + 1) };
    for i in first..values.len() {
        if !begun.contains(&i) {
            begun.push(i);
            arrange(values, any_order, begun, each);
            begun.pop();
        }
    }
}

/// What must be there, or hold, where a property is.
fn dependencies(value: &Value) -> Option<Rewritten> {
    let mut all = Vec::new();
    for (name, needed) in value.as_object()? {
        let needed = match needed {
            Value::Array(names) => json!({ "required": names }),
            schema => schema.clone(),
        };
        let absent = json!({ "properties": { name.as_str(): false } });
        all.push(json!({ "anyOf": [absent, needed] }));
    }
    Some(Rewritten::Also(json!({ "allOf": all })))
}

/// The first items are those that must be among them.
fn contains(map: &Map<String, Value>, wanted: &Value) -> Option<Rewritten> {
    let count = |key: &str| match map.get(key) {
        None => Some(None),
        Some(n) => n.as_u64().map(Some),
    };
    let least = count("minContains")?.unwrap_or(1);
    if count("maxContains")?.is_some() || least > 64 {
        return None;
    }
    if least == 0 {
        return Some(Rewritten::Gone);
    }
    let first: Vec<Value> = (0..least).map(|_| wanted.clone()).collect();
    // A list in `items` is read alike in all versions of JSON Schema.
    Some(Rewritten::Also(json!({ "items": first, "minItems": least })))
}

/// Names of properties that a pattern, a list or a length describes.
fn property_names(root: &Value, value: &Value) -> Option<Rewritten> {
    let schema = resolve(root, value);
    if is_anything(schema) {
        return Some(Rewritten::Gone);
    }
    let map = schema.as_object()?;
    let known = |key: &String| {
        ["const", "enum", "maxLength", "minLength", "pattern", "title", "description"].contains(&key.as_str())
            || (key == "type" && map["type"] == "string")
    };
    if !map.keys().all(known) {
        return None;
    }
    let lengths = map.contains_key("minLength") || map.contains_key("maxLength");
    if let Some(names) = finite(schema).filter(|_| !lengths && !map.contains_key("pattern")) {
        let all = names.iter().filter_map(Value::as_str).map(|name| (name.to_owned(), Value::Bool(true)));
        let all = Value::Object(all.collect());
        return Some(Rewritten::Also(json!({ "properties": all, "additionalProperties": false })));
    }
    let pattern = match map.get("pattern").and_then(Value::as_str) {
        Some(pattern) if !lengths => pattern.to_owned(),
        None if lengths => {
            let length = |key: &str| map.get(key).map(|n| n.as_u64().map(|n| n.to_string()));
            let (least, most) = (length("minLength"), length("maxLength"));
            let least = least.unwrap_or(Some("0".into()))?;
            let most = most.unwrap_or(Some(String::new()))?;
            format!("^(.|\\n){{{least},{most}}}$")
        }
        None if map.contains_key("type") => return Some(Rewritten::Gone),
        _ => return None,
    };
    let patterns = json!({ pattern: true });
    Some(Rewritten::Also(json!({ "patternProperties": patterns, "additionalProperties": false })))
}

/// Where nothing else looks at properties or items, those that are not evaluated are those that are not named.
fn unevaluated(map: &Map<String, Value>, value: &Value, named: &'static str) -> Option<Rewritten> {
    // In older versions a list of items says nothing of those behind it.
    if map.get(named).is_some_and(Value::is_array) {
        return None;
    }
    if is_anything(value) || map.contains_key(named) {
        return Some(Rewritten::Gone);
    }
    if IN_PLACE.iter().any(|key| map.contains_key(*key)) {
        return None;
    }
    Some(Rewritten::As(named, value.clone()))
}

#[cfg(test)]
mod tests;
