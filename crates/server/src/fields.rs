//! The fields of requests: one table of each endpoint checks a body, names what is wrong, and documents it.

use serde_json::{Map, Value, json};

use crate::error::ApiError;

/// A field of a request.
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) takes: Takes,
    pub(crate) about: &'static str,
}

/// What a field takes. `null` stands for the default everywhere.
#[derive(Clone, Copy)]
pub(crate) enum Takes {
    Bool,
    Int(i64, i64),
    Number(f64, f64),
    Text,
    Choice(&'static [&'static str]),
    /// A string or a list of strings.
    Texts,
    Object,
    List,
    /// Several forms, which the endpoint reads itself.
    Any,
    /// Read by other servers, refused here, but for values that ask for nothing.
    Refused(fn(&Value) -> bool),
}

pub(crate) const fn field(name: &'static str, takes: Takes, about: &'static str) -> Field {
    Field { name, takes, about }
}

impl Takes {
    fn accepts(self, value: &Value) -> bool {
        match self {
            Takes::Bool => value.is_boolean(),
            Takes::Int(min, max) => whole(value).is_some_and(|n| (min..=max).contains(&n)),
            Takes::Number(min, max) => value.as_f64().is_some_and(|n| (min..=max).contains(&n)),
            Takes::Text => value.is_string(),
            Takes::Choice(names) => value.as_str().is_some_and(|text| names.contains(&text)),
            Takes::Texts => {
                value.is_string() || value.as_array().is_some_and(|list| list.iter().all(Value::is_string))
            }
            Takes::Object => value.is_object(),
            Takes::List => value.is_array(),
            Takes::Any => true,
            Takes::Refused(harmless) => harmless(value),
        }
    }

    /// What is expected, in words.
    fn expected(self) -> String {
        let range =
            |min: &dyn std::fmt::Display, max: &dyn std::fmt::Display, bounds: (bool, bool)| match bounds {
                (true, true) => format!(" from {min} to {max}"),
                (true, false) => format!(" of at least {min}"),
                (false, true) => format!(" of at most {max}"),
                (false, false) => String::new(),
            };
        match self {
            Takes::Bool => "true or false".into(),
            Takes::Int(min, max) => {
                format!("a whole number{}", range(&min, &max, (min != i64::MIN, max != i64::MAX)))
            }
            Takes::Number(min, max) => {
                format!("a number{}", range(&min, &max, (min != f64::MIN, max != f64::MAX)))
            }
            Takes::Text => "a string".into(),
            Takes::Choice(names) => format!("one of {}", names.join(", ")),
            Takes::Texts => "a string or a list of strings".into(),
            Takes::Object => "an object".into(),
            Takes::List => "a list".into(),
            Takes::Any => "a value".into(),
            Takes::Refused(_) => "nothing: this server does not support it".into(),
        }
    }

    /// As a JSON Schema.
    pub(crate) fn schema(self) -> Value {
        let mut schema = match self {
            Takes::Bool => json!({ "type": "boolean" }),
            Takes::Int(min, max) => {
                let mut schema = json!({ "type": "integer" });
                if min != i64::MIN {
                    schema["minimum"] = min.into();
                }
                if max != i64::MAX {
                    schema["maximum"] = max.into();
                }
                schema
            }
            Takes::Number(min, max) => {
                let mut schema = json!({ "type": "number" });
                if min != f64::MIN {
                    schema["minimum"] = min.into();
                }
                if max != f64::MAX {
                    schema["maximum"] = max.into();
                }
                schema
            }
            Takes::Text => json!({ "type": "string" }),
            Takes::Choice(names) => json!({ "type": "string", "enum": names }),
            Takes::Texts => {
                return json!({ "anyOf": [
                    { "type": "string" },
                    { "type": "array", "items": { "type": "string" } },
                    { "type": "null" },
                ] });
            }
            Takes::Object => json!({ "type": "object" }),
            Takes::List => json!({ "type": "array", "items": {} }),
            Takes::Any => return json!({}),
            Takes::Refused(_) => return json!({ "deprecated": true }),
        };
        let name = schema["type"].take();
        schema["type"] = json!([name, "null"]);
        if let Some(list) = schema.get_mut("enum").and_then(Value::as_array_mut) {
            list.push(Value::Null);
        }
        schema
    }
}

/// The kind of a value, for messages; its content may be private.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn whole(value: &Value) -> Option<i64> {
    let float = || value.as_f64().filter(|x| x.fract() == 0.0 && x.abs() < 9e15).map(|x| x as i64);
    // Seeds of 64 bits come without a sign.
    value.as_i64().or_else(|| value.as_u64().map(|n| n as i64)).or_else(float)
}

/// A checked object of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields {
    map: Map<String, Value>,
    /// Where the object stands in the request, with a point behind it.
    path: String,
}

impl Fields {
    /// Checks an object against tables of fields; the names that no table has are returned with it.
    pub(crate) fn check(
        map: Map<String, Value>,
        path: &str,
        tables: &[&[Field]],
    ) -> Result<(Fields, Vec<String>), ApiError> {
        let mut known = Map::new();
        let mut unknown = Vec::new();
        for (name, value) in map {
            let Some(field) = tables.iter().flat_map(|t| t.iter()).find(|f| f.name == name) else {
                unknown.push(format!("{path}{name}"));
                continue;
            };
            if value.is_null() {
                continue;
            }
            if !field.takes.accepts(&value) {
                return Err(wrong(&format!("{path}{name}"), field, &value));
            }
            known.insert(name, value);
        }
        Ok((Fields { map: known, path: path.to_owned() }, unknown))
    }

    /// The object at a field, checked against a table of its own.
    pub(crate) fn object(&self, name: &str, table: &[Field]) -> Result<Option<Fields>, ApiError> {
        match self.map.get(name) {
            None => Ok(None),
            Some(Value::Object(map)) => {
                let path = format!("{}.", self.path(name));
                Ok(Some(Fields::check(map.clone(), &path, &[table])?.0))
            }
            Some(other) => Err(self.wrong(name, format!("an object, found {}", kind(other)))),
        }
    }

    /// An object of a list, checked against a table.
    pub(crate) fn item(value: &Value, path: &str, table: &[Field]) -> Result<Fields, ApiError> {
        match value {
            Value::Object(map) => Ok(Fields::check(map.clone(), &format!("{path}."), &[table])?.0),
            other => Err(ApiError::field(path, format!("an object, found {}", kind(other)))),
        }
    }

    pub(crate) fn all(&self) -> &Map<String, Value> {
        &self.map
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.map.get(name)
    }

    pub(crate) fn bool(&self, name: &str) -> Option<bool> {
        self.get(name)?.as_bool()
    }

    pub(crate) fn int(&self, name: &str) -> Option<i64> {
        whole(self.get(name)?)
    }

    pub(crate) fn count(&self, name: &str) -> Option<usize> {
        usize::try_from(self.int(name)?).ok()
    }

    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        self.get(name)?.as_f64()
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_str()
    }

    pub(crate) fn texts(&self, name: &str) -> Vec<String> {
        match self.get(name) {
            Some(Value::String(text)) => vec![text.clone()],
            Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ => Vec::new(),
        }
    }

    pub(crate) fn list(&self, name: &str) -> &[Value] {
        self.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn map(&self, name: &str) -> Option<&Map<String, Value>> {
        self.get(name)?.as_object()
    }

    /// The full name of a field.
    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    /// A field that must be there.
    pub(crate) fn required(&self, name: &str, expected: &str) -> Result<&Value, ApiError> {
        self.get(name).ok_or_else(|| self.wrong(name, format!("{expected}; it is missing")))
    }

    pub(crate) fn required_text(&self, name: &str) -> Result<&str, ApiError> {
        let value = self.required(name, "a string")?;
        value.as_str().ok_or_else(|| self.wrong(name, format!("a string, found {}", kind(value))))
    }

    pub(crate) fn wrong(&self, name: &str, expected: impl std::fmt::Display) -> ApiError {
        ApiError::field(self.path(name), expected)
    }
}

fn wrong(path: &str, field: &Field, value: &Value) -> ApiError {
    if let Takes::Refused(_) = field.takes {
        return ApiError::unsupported(path, field.about);
    }
    // Numbers and names out of a list hold nothing private, and the sender wants to see them.
    let found = match (field.takes, value) {
        (Takes::Int(..) | Takes::Number(..), Value::Number(n)) => n.to_string(),
        (Takes::Choice(_), Value::String(text)) if text.len() <= 40 => format!("{text:?}"),
        _ => kind(value).to_owned(),
    };
    ApiError::field(path, format!("{}, found {found}", field.takes.expected()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[Field] = &[
        field("n", Takes::Int(1, 8), ""),
        field("p", Takes::Number(0.0, 1.0), ""),
        field("stop", Takes::Texts, ""),
        field("mode", Takes::Choice(&["a", "b"]), ""),
        field("inner", Takes::Object, ""),
        field("audio", Takes::Refused(|_| false), "text only"),
    ];

    fn check(value: Value) -> Result<(Fields, Vec<String>), String> {
        let map = value.as_object().unwrap().clone();
        Fields::check(map, "", &[TABLE]).map_err(|e| e.message)
    }

    #[test]
    fn good_values_are_read() {
        let (fields, unknown) =
            check(json!({"n": 3.0, "p": 1, "stop": "x", "mode": null, "new": 1, "inner": {"n": 2}})).unwrap();
        assert_eq!((fields.int("n"), fields.number("p")), (Some(3), Some(1.0)));
        assert_eq!(fields.texts("stop"), ["x"]);
        assert!(!fields.has("mode"));
        assert_eq!(unknown, ["new"]);
        assert_eq!(fields.object("inner", TABLE).unwrap().unwrap().path("n"), "inner.n");
    }

    #[test]
    fn wrong_values_name_the_field_and_what_it_takes() {
        let message = |value| check(value).unwrap_err();
        assert_eq!(message(json!({"n": 9})), "`n`: expected a whole number from 1 to 8, found 9");
        assert_eq!(message(json!({"n": 1.5})), "`n`: expected a whole number from 1 to 8, found 1.5");
        assert_eq!(message(json!({"p": "hot"})), "`p`: expected a number from 0 to 1, found a string");
        assert_eq!(
            message(json!({"stop": [1]})),
            "`stop`: expected a string or a list of strings, found a list"
        );
        assert_eq!(message(json!({"mode": "c"})), "`mode`: expected one of a, b, found \"c\"");
        assert_eq!(message(json!({"audio": {}})), "`audio` is not supported: text only");
        let (fields, _) = check(json!({"inner": {"n": 0}})).unwrap();
        let e = fields.object("inner", TABLE).unwrap_err();
        assert_eq!(e.param.as_deref(), Some("inner.n"));
    }
}
