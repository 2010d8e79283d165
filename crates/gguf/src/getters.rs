//! Typed access to metadata, with errors that name the key.

use crate::error::shown;
use crate::{ErrorKind, Metadata, Result, Strings, Text, Value};

/// Why a value is not what was asked for.
enum Mismatch {
    Type,
    Range(String),
    NotUtf8(usize),
}

type Convert<'a, T> = fn(Value<'a>) -> Result<T, Mismatch>;

macro_rules! scalars {
    ($($what:literal, $get:ident, $opt:ident: $ty:ty, $convert:expr;)*) => {
        impl Metadata {$(
            #[doc = concat!("The value under `key` as ", $what, ".")]
            ///
            /// # Errors
            /// Where the key is missing or its value is something else.
            pub fn $get(&self, key: &str) -> Result<$ty> {
                self.required(key, $what, $convert)
            }

            #[doc = concat!("The value under `key` as ", $what, ", where there is one.")]
            ///
            /// # Errors
            /// Where the value is something else.
            pub fn $opt(&self, key: &str) -> Result<Option<$ty>> {
                self.optional(key, $what, $convert)
            }
        )*}
    };
}

macro_rules! arrays {
    ($($what:literal, $get:ident, $opt:ident: $ty:ty, $convert:expr;)*) => {
        impl Metadata {$(
            #[doc = concat!("The value under `key` as ", $what, ".")]
            ///
            /// # Errors
            /// Where the key is missing or its value is something else.
            pub fn $get(&self, key: &str) -> Result<Vec<$ty>> {
                self.required(key, $what, |value| list(value, $convert))
            }

            #[doc = concat!("The value under `key` as ", $what, ", where there is one.")]
            ///
            /// # Errors
            /// Where the value is something else.
            pub fn $opt(&self, key: &str) -> Result<Option<Vec<$ty>>> {
                self.optional(key, $what, |value| list(value, $convert))
            }
        )*}
    };
}

/// Values that some models give once and others once per layer.
macro_rules! per_layer {
    ($($what:literal, $one:literal, $list:literal, $get:ident, $opt:ident: $ty:ty, $convert:expr;)*) => {
        impl Metadata {$(
            #[doc = concat!("The value under `key` for each of `count` layers, from ", $list, " or from one ", $one,
                " that holds for all.")]
            ///
            /// # Errors
            /// Where the key is missing, its value is something else or the array has another length.
            pub fn $get(&self, key: &str, count: usize) -> Result<Vec<$ty>> {
                match self.$opt(key, count)? {
                    Some(values) => Ok(values),
                    None => Err(self.missing(key, $what)),
                }
            }

            #[doc = concat!("The value under `key` for each of `count` layers, where there is one: ", $list,
                " or one ", $one, " that holds for all.")]
            ///
            /// # Errors
            /// Where the value is something else or the array has another length.
            pub fn $opt(&self, key: &str, count: usize) -> Result<Option<Vec<$ty>>> {
                let values = self.optional(key, $what, |value| match value.as_array() {
                    Some(_) => list(value, $convert).map(Each::Own),
                    None => $convert(value).map(Each::Same),
                })?;
                match values {
                    None => Ok(None),
                    Some(Each::Same(value)) => Ok(Some(vec![value; count])),
                    Some(Each::Own(values)) if values.len() == count => Ok(Some(values)),
                    Some(Each::Own(values)) => {
                        let (key, found) = (shown(key.as_bytes()), values.len());
                        Err(self.fail(ErrorKind::ArrayLength { key, expected: count, found }))
                    }
                }
            }
        )*}
    };
}

/// A value for all layers, or one for each.
enum Each<T> {
    Same(T),
    Own(Vec<T>),
}

scalars! {
    "u32", u32, opt_u32: u32, integer;
    "u64", u64, opt_u64: u64, integer;
    "i32", i32, opt_i32: i32, integer;
    "i64", i64, opt_i64: i64, integer;
    "usize", usize, opt_usize: usize, integer;
    "f32", f32, opt_f32: f32, float;
    "bool", bool, opt_bool: bool, boolean;
    "UTF-8 string", str, opt_str: &str, utf8;
    "string", text, opt_text: Text<'_>, |value| value.as_text().ok_or(Mismatch::Type);
    "array of strings", strings, opt_strings: Strings<'_>,
        |value| value.as_array().and_then(|array| array.strings()).ok_or(Mismatch::Type);
}

arrays! {
    "array of u32", u32s, opt_u32s: u32, integer;
    "array of i32", i32s, opt_i32s: i32, integer;
    "array of f32", f32s, opt_f32s: f32, float;
    "array of bool", bools, opt_bools: bool, boolean;
}

per_layer! {
    "u32 or array of u32", "u32", "array of u32", u32_each, opt_u32_each: u32, integer;
    "f32 or array of f32", "f32", "array of f32", f32_each, opt_f32_each: f32, float;
    "bool or array of bool", "bool", "array of bool", bool_each, opt_bool_each: bool, boolean;
}

impl Metadata {
    /// The name of the model's architecture, `general.architecture`, the prefix of its other keys.
    ///
    /// # Errors
    /// Where the key is missing or no text.
    pub fn architecture(&self) -> Result<&str> {
        self.str("general.architecture")
    }

    fn missing(&self, key: &str, expected: &'static str) -> crate::Error {
        self.fail(ErrorKind::MissingKey { key: shown(key.as_bytes()), expected })
    }

    fn required<'a, T>(&'a self, key: &str, expected: &'static str, convert: Convert<'a, T>) -> Result<T> {
        match self.optional(key, expected, convert)? {
            Some(value) => Ok(value),
            None => Err(self.missing(key, expected)),
        }
    }

    fn optional<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        convert: Convert<'a, T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        convert(value).map(Some).map_err(|mismatch| {
            let key = shown(key.as_bytes());
            self.fail(match mismatch {
                Mismatch::Type => ErrorKind::WrongType { key, expected, found: value.describe() },
                Mismatch::Range(found) => ErrorKind::OutOfRange { key, expected, found },
                Mismatch::NotUtf8(valid_up_to) => ErrorKind::TextNotUtf8 { key, valid_up_to },
            })
        })
    }
}

fn integer<T: TryFrom<i128>>(value: Value<'_>) -> Result<T, Mismatch> {
    let number = value.as_integer().ok_or(Mismatch::Type)?;
    T::try_from(number).map_err(|_| Mismatch::Range(number.to_string()))
}

fn float(value: Value<'_>) -> Result<f32, Mismatch> {
    match value {
        Value::F32(x) => Ok(x),
        Value::F64(x) if x.is_finite() && !(x as f32).is_finite() => Err(Mismatch::Range(x.to_string())),
        Value::F64(x) => Ok(x as f32),
        _ => Err(Mismatch::Type),
    }
}

fn boolean(value: Value<'_>) -> Result<bool, Mismatch> {
    match value {
        Value::Bool(x) => Ok(x),
        _ => Err(Mismatch::Type),
    }
}

fn utf8(value: Value<'_>) -> Result<&str, Mismatch> {
    let text = value.as_text().ok_or(Mismatch::Type)?;
    text.as_str().map_err(|error| Mismatch::NotUtf8(error.valid_up_to()))
}

fn list<'a, T>(value: Value<'a>, convert: Convert<'a, T>) -> Result<Vec<T>, Mismatch> {
    let array = value.as_array().ok_or(Mismatch::Type)?;
    let mut out = Vec::with_capacity(array.len());
    for element in array.iter() {
        out.push(convert(element)?);
    }
    Ok(out)
}
