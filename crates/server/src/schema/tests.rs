//! Rewritten schemas against a small validator of the originals, through the engine of grammars.

use serde_json::{Value, json};

use super::{rewrite, same};
use crate::constrain::{Grammars, Shape};

/// Whether a value satisfies a schema, for the keywords of the cases below; written from the specification.
fn valid(root: &Value, schema: &Value, value: &Value) -> bool {
    let map = match schema {
        Value::Bool(holds) => return *holds,
        other => other.as_object().unwrap(),
    };
    let check = |schema: &Value, value: &Value| valid(root, schema, value);
    let holds = |list: &Value| list.as_array().unwrap().iter().filter(|s| check(s, value)).count();
    let number = value.as_f64();
    let (items, object) = (value.as_array(), value.as_object());
    map.iter().all(|(key, say)| {
        let bound = say.as_f64().unwrap_or_default();
        match key.as_str() {
            "$ref" => check(root.pointer(say.as_str().unwrap().strip_prefix('#').unwrap()).unwrap(), value),
            "$defs" | "then" | "else" | "minContains" | "title" => true,
            "type" => {
                let named = |name: &Value| match name.as_str().unwrap() {
                    "null" => value.is_null(),
                    "boolean" => value.is_boolean(),
                    "integer" => number.is_some_and(|n| n.fract() == 0.0),
                    "number" => number.is_some(),
                    "string" => value.is_string(),
                    "array" => items.is_some(),
                    "object" => object.is_some(),
                    other => panic!("{other}"),
                };
                say.as_array().map_or_else(|| named(say), |names| names.iter().any(named))
            }
            "const" => same(say, value),
            "enum" => say.as_array().unwrap().iter().any(|other| same(other, value)),
            "allOf" => holds(say) == say.as_array().unwrap().len(),
            "anyOf" => holds(say) > 0,
            "oneOf" => holds(say) == 1,
            "not" => !check(say, value),
            "if" => {
                let branch = if check(say, value) { "then" } else { "else" };
                map.get(branch).is_none_or(|branch| check(branch, value))
            }
            "minimum" => number.is_none_or(|n| n >= bound),
            "maximum" => number.is_none_or(|n| n <= bound),
            "exclusiveMinimum" => number.is_none_or(|n| n > bound),
            "minLength" => value.as_str().is_none_or(|s| s.chars().count() as f64 >= bound),
            "maxLength" => value.as_str().is_none_or(|s| s.chars().count() as f64 <= bound),
            "minItems" => items.is_none_or(|list| list.len() as f64 >= bound),
            "maxItems" => items.is_none_or(|list| list.len() as f64 <= bound),
            "items" => items.is_none_or(|list| list.iter().all(|item| check(say, item))),
            "uniqueItems" => items.is_none_or(|list| {
                list.iter().enumerate().all(|(i, a)| !list[..i].iter().any(|b| same(a, b)))
            }),
            "contains" => items.is_none_or(|list| {
                let least = map.get("minContains").map_or(1, |n| n.as_u64().unwrap() as usize);
                list.iter().filter(|item| check(say, item)).count() >= least
            }),
            "required" => {
                let there = |o: &serde_json::Map<_, _>| {
                    say.as_array().unwrap().iter().all(|name| o.contains_key(name.as_str().unwrap()))
                };
                object.is_none_or(there)
            }
            "properties" => object.is_none_or(|o| {
                let fits = |(name, s): (&String, &Value)| o.get(name).is_none_or(|v| check(s, v));
                say.as_object().unwrap().iter().all(fits)
            }),
            "additionalProperties" | "unevaluatedProperties" => object.is_none_or(|o| {
                let named = |name: &String| map.get("properties").is_some_and(|p| p.get(name).is_some());
                o.iter().filter(|(name, _)| !named(name)).all(|(_, v)| check(say, v))
            }),
            "propertyNames" => object.is_none_or(|o| o.keys().all(|name| check(say, &json!(name)))),
            "dependentRequired" => object.is_none_or(|o| {
                let kept = |(name, needed): (&String, &Value)| {
                    !o.contains_key(name)
                        || needed.as_array().unwrap().iter().all(|n| o.contains_key(n.as_str().unwrap()))
                };
                say.as_object().unwrap().iter().all(kept)
            }),
            other => panic!("{other}"),
        }
    })
}

/// JSON as answers write it.
fn text(value: &Value) -> String {
    match value {
        Value::Array(list) => format!("[{}]", list.iter().map(text).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            let entry = |(k, v): (&String, &Value)| format!("{}: {}", json!(k), text(v));
            format!("{{{}}}", map.iter().map(entry).collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

fn values() -> Vec<Value> {
    let plain = [
        json!(null),
        json!(true),
        json!(false),
        json!(0),
        json!(1),
        json!(2),
        json!(7),
        json!(-3),
        json!(2.5),
        json!(""),
        json!("a"),
        json!("ab"),
        json!("b"),
        json!("abc"),
        json!("x"),
        json!("é"),
        json!("cat"),
        json!("dog"),
    ];
    let mut all = plain.to_vec();
    all.extend([json!([]), json!([1]), json!([1, 1]), json!([1, "a"]), json!(["a", 1]), json!([2, 1, 2])]);
    for list in
        [&["a"][..], &["b", "a"], &["a", "b"], &["a", "a"], &["a", "b", "c"], &["c", "b", "a"], &["a", "c"]]
    {
        all.push(json!(list));
    }
    all.push(json!({}));
    for kind in ["cat", "dog", "x"] {
        for more in [json!({}), json!({ "legs": 4 }), json!({ "legs": 0 }), json!({ "bark": true })] {
            let mut object = json!({ "kind": kind });
            object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            all.push(object);
        }
    }
    for a in [json!(1), json!("a"), json!(null)] {
        all.extend([json!({ "a": a }), json!({ "b": a }), json!({ "a": a, "b": 1 }), json!({ "ab": a })]);
    }
    all
}

/// A schema, a value that an answer to it may be, and one that it may not.
fn cases() -> Vec<(Value, Value, Value)> {
    let animal = |kind: &str, more: &str| json!({ "type": "object", "properties": { "kind": { "const": kind }, more: {} }, "required": ["kind", more] });
    let object = |map: Value| {
        let mut all = json!({ "type": "object" });
        all.as_object_mut().unwrap().extend(map.as_object().unwrap().clone());
        all
    };
    let number = json!({ "type": "number" });
    vec![
        // Alternatives apart by type, range, length, listed values, and by a property, behind references.
        (json!({ "oneOf": [{ "type": "string" }, { "type": "integer" }] }), json!("a"), json!(null)),
        (
            json!({ "oneOf": [{ "type": "integer", "maximum": 1 }, { "type": "number", "exclusiveMinimum": 1 }] }),
            json!(2.5),
            json!("a"),
        ),
        (
            json!({ "oneOf": [{ "type": "string", "maxLength": 1 }, { "enum": ["ab", "abc", 7] }] }),
            json!("ab"),
            json!("cat"),
        ),
        (
            json!({ "oneOf": [{ "$ref": "#/$defs/cat" }, { "$ref": "#/$defs/dog" }],
                 "$defs": { "cat": animal("cat", "legs"), "dog": animal("dog", "bark") } }),
            json!({ "kind": "dog", "bark": true }),
            json!({ "kind": "dog", "legs": 4 }),
        ),
        (
            json!({ "oneOf": [{ "type": "string" }, { "type": "null" }], "anyOf": [{ "const": "a" }, { "const": 1 }] }),
            json!("a"),
            json!(null),
        ),
        // What must not be.
        (json!({ "type": "string", "not": { "enum": ["a", "abc", ""] } }), json!("ab"), json!("abc")),
        (json!({ "not": { "type": ["string", "number", "object"] } }), json!(null), json!(1)),
        (json!({ "type": "integer", "not": { "const": 1 } }), json!(2), json!(1)),
        (json!({ "type": "number", "not": { "minimum": 2 } }), json!(1), json!(2.5)),
        (object(json!({ "not": { "required": ["b"] } })), json!({ "a": 1 }), json!({ "b": 1 })),
        (json!({ "type": ["boolean", "null"], "not": { "const": true } }), json!(false), json!(true)),
        (
            object(json!({ "not": { "properties": { "kind": { "const": "x" } }, "required": ["kind"] } })),
            json!({ "kind": "cat" }),
            json!({ "kind": "x" }),
        ),
        (
            json!({ "type": "string", "not": { "anyOf": [{ "const": "a" }, { "minLength": 3 }] } }),
            json!("ab"),
            json!("abc"),
        ),
        (json!({ "not": { "not": number } }), json!(2.5), json!("a")),
        // Conditions.
        (
            object(json!({
                "properties": { "kind": { "enum": ["cat", "dog"] }, "legs": { "type": "integer" } }, "required": ["kind"],
                "if": { "properties": { "kind": { "const": "cat" } }, "required": ["kind"] },
                "then": { "required": ["legs"] }, "else": { "properties": { "legs": false } },
            })),
            json!({ "kind": "cat", "legs": 4 }),
            json!({ "kind": "dog", "legs": 4 }),
        ),
        (json!({ "type": "integer", "if": { "minimum": 2 }, "then": { "maximum": 2 } }), json!(-3), json!(7)),
        (
            object(json!({ "properties": { "a": {}, "b": {} }, "dependentRequired": { "a": ["b"] } })),
            json!({ "a": 1, "b": 1 }),
            json!({ "a": 1 }),
        ),
        // Lists.
        (
            json!({ "type": "array", "items": { "enum": ["a", "b", "c"] }, "uniqueItems": true, "minItems": 2 }),
            json!(["c", "b", "a"]),
            json!(["a", "a"]),
        ),
        (
            json!({ "type": "array", "items": { "enum": ["a", "b", "c", 1, 2, 3, 4] }, "uniqueItems": true, "maxItems": 2 }),
            json!(["a", "c"]),
            json!(["a", "a"]),
        ),
        (json!({ "type": "array", "contains": { "type": "integer" } }), json!([1, "a"]), json!(["a", "b"])),
        (
            json!({ "type": "array", "contains": { "const": 1 }, "minContains": 2 }),
            json!([1, 1]),
            json!([1, "a"]),
        ),
        // Names.
        (object(json!({ "propertyNames": { "enum": ["a", "ab"] } })), json!({ "ab": 1 }), json!({ "b": 1 })),
        (
            object(json!({ "propertyNames": { "maxLength": 1 }, "additionalProperties": number })),
            json!({ "b": 1 }),
            json!({ "ab": 1 }),
        ),
        (
            object(json!({ "properties": { "a": number }, "unevaluatedProperties": false })),
            json!({ "a": 1 }),
            json!({ "b": 1 }),
        ),
    ]
}

#[test]
fn a_rewritten_schema_allows_no_value_that_the_original_does_not() {
    let grammars = Grammars::bytes();
    for (schema, good, bad) in cases() {
        assert!(valid(&schema, &schema, &good) && !valid(&schema, &schema, &bad), "{schema}");
        let shape = Shape::Schema(schema.clone());
        let allowed = |value: &Value| {
            grammars.accepts(&shape, &text(value)).unwrap_or_else(|| panic!("refused: {}", rewrite(&schema)))
        };
        assert!(allowed(&good), "{schema} lacks {good}: {}", rewrite(&schema));
        for value in values() {
            assert!(
                !allowed(&value) || valid(&schema, &schema, &value),
                "{schema} has {value}: {}",
                rewrite(&schema)
            );
        }
    }
}

#[test]
fn what_cannot_be_kept_is_refused_still() {
    let grammars = Grammars::bytes();
    for schema in [
        json!({ "oneOf": [{ "type": "integer" }, { "type": "number" }] }),
        json!({ "oneOf": [{ "type": "string", "minLength": 1 }, { "type": "string", "maxLength": 3 }] }),
        json!({ "oneOf": [
            { "type": "object", "properties": { "a": {} }, "required": ["a"] },
            { "type": "object", "properties": { "b": {} }, "required": ["b"] },
        ] }),
        json!({ "not": { "pattern": "^a" } }),
        json!({ "not": {} }),
        json!({ "type": "array", "items": { "type": "integer" }, "uniqueItems": true }),
        json!({ "items": { "enum": [1, 2] }, "uniqueItems": true }),
        json!({ "type": "array", "contains": { "const": 1 }, "maxContains": 1 }),
        json!({ "if": { "pattern": "a" }, "then": { "type": "string" } }),
        json!({ "propertyNames": { "format": "date" } }),
        json!({ "allOf": [{ "properties": { "a": {} } }], "unevaluatedProperties": false }),
        json!({ "$dynamicRef": "#x", "type": "string" }),
        json!({ "type": "string", "format": "colour" }),
    ] {
        assert_eq!(grammars.accepts(&Shape::Schema(schema.clone()), "1"), None, "{schema}");
    }
}

#[test]
fn properties_may_be_called_like_keywords() {
    let schema =
        json!({ "type": "object", "properties": { "not": { "type": "string" }, "oneOf": {}, "if": {} } });
    assert_eq!(rewrite(&schema), schema);
}

#[test]
fn schemas_that_would_grow_too_large_stay_as_they_are() {
    let list =
        json!({ "type": "array", "items": { "enum": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10] }, "uniqueItems": true });
    let properties: serde_json::Map<String, Value> = (0..40).map(|i| (i.to_string(), list.clone())).collect();
    let schema = json!({ "type": "object", "properties": properties });
    assert_eq!(rewrite(&schema), schema);
    assert_ne!(rewrite(&list), list);
}
