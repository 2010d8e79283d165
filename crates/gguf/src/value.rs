//! Metadata values, decoded from the file's own bytes when they are looked at.

use std::borrow::Cow;
use std::fmt;
use std::str::Utf8Error;

use crate::error::shown;

macro_rules! value_types {
    ($($variant:ident = $id:literal, $name:literal, $size:expr;)*) => {
        /// The type of a metadata value or array element.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs)]
        pub enum ValueType { $($variant = $id,)* }

        impl ValueType {
            /// Every type, in the order of their ids.
            pub const ALL: &'static [ValueType] = &[$(ValueType::$variant,)*];

            /// The type with this id in a file.
            pub const fn from_id(id: u32) -> Option<ValueType> {
                match id { $($id => Some(ValueType::$variant),)* _ => None }
            }

            /// The name that messages use, such as `u32` or `string`.
            pub const fn name(self) -> &'static str {
                match self { $(ValueType::$variant => $name,)* }
            }

            /// Bytes of one value; `None` where they vary.
            pub const fn size(self) -> Option<usize> {
                match self { $(ValueType::$variant => $size,)* }
            }
        }
    };
}

value_types! {
    U8 = 0, "u8", Some(1);
    I8 = 1, "i8", Some(1);
    U16 = 2, "u16", Some(2);
    I16 = 3, "i16", Some(2);
    U32 = 4, "u32", Some(4);
    I32 = 5, "i32", Some(4);
    F32 = 6, "f32", Some(4);
    Bool = 7, "bool", Some(1);
    Str = 8, "string", None;
    Array = 9, "array", None;
    U64 = 10, "u64", Some(8);
    I64 = 11, "i64", Some(8);
    F64 = 12, "f64", Some(8);
}

impl ValueType {
    /// The id in a file.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// The fewest bytes that one value takes in a file.
    pub(crate) const fn least_size(self) -> u64 {
        match self {
            ValueType::Str => 8,
            ValueType::Array => ARRAY_HEAD as u64,
            other => match other.size() {
                Some(size) => size as u64,
                None => 1,
            },
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Element type (4 bytes) and count (8 bytes) before the elements of an array.
pub(crate) const ARRAY_HEAD: usize = 12;

/// One metadata value, borrowed from its [`Metadata`](crate::Metadata).
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Str(Text<'a>),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> Value<'a> {
    /// Decodes a value of type `ty` that takes all of `bytes`, which have been validated.
    pub(crate) fn decode(ty: ValueType, bytes: &'a [u8], starts: Option<&'a [u32]>) -> Self {
        match ty {
            ValueType::U8 => Value::U8(bytes[0]),
            ValueType::I8 => Value::I8(bytes[0] as i8),
            ValueType::U16 => Value::U16(u16::from_le_bytes(head(bytes))),
            ValueType::I16 => Value::I16(i16::from_le_bytes(head(bytes))),
            ValueType::U32 => Value::U32(u32::from_le_bytes(head(bytes))),
            ValueType::I32 => Value::I32(i32::from_le_bytes(head(bytes))),
            ValueType::F32 => Value::F32(f32::from_le_bytes(head(bytes))),
            ValueType::Bool => Value::Bool(bytes[0] != 0),
            ValueType::Str => Value::Str(Text(&bytes[8..])),
            ValueType::Array => Value::Array(Array::decode(bytes, starts)),
            ValueType::U64 => Value::U64(u64::from_le_bytes(head(bytes))),
            ValueType::I64 => Value::I64(i64::from_le_bytes(head(bytes))),
            ValueType::F64 => Value::F64(f64::from_le_bytes(head(bytes))),
        }
    }

    /// The type of this value.
    pub fn ty(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::Str(_) => ValueType::Str,
            Value::Array(_) => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }

    /// The type in words, with the element type and length of an array: `array of 4 u32`.
    pub fn describe(&self) -> String {
        match self {
            Value::Array(array) => format!("array of {} {}", array.len(), array.element_type()),
            other => other.ty().name().to_owned(),
        }
    }

    /// The number of any integer type; every one fits.
    pub fn as_integer(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(x) => x.into(),
            Value::I8(x) => x.into(),
            Value::U16(x) => x.into(),
            Value::I16(x) => x.into(),
            Value::U32(x) => x.into(),
            Value::I32(x) => x.into(),
            Value::U64(x) => x.into(),
            Value::I64(x) => x.into(),
            _ => return None,
        })
    }

    /// The text of a string.
    pub fn as_text(&self) -> Option<Text<'a>> {
        match *self {
            Value::Str(text) => Some(text),
            _ => None,
        }
    }

    /// The array, where it is one.
    pub fn as_array(&self) -> Option<Array<'a>> {
        match *self {
            Value::Array(array) => Some(array),
            _ => None,
        }
    }
}

/// A short form for people: long strings and arrays are cut.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::U8(x) => x.fmt(f),
            Value::I8(x) => x.fmt(f),
            Value::U16(x) => x.fmt(f),
            Value::I16(x) => x.fmt(f),
            Value::U32(x) => x.fmt(f),
            Value::I32(x) => x.fmt(f),
            Value::F32(x) => x.fmt(f),
            Value::Bool(x) => x.fmt(f),
            Value::Str(text) => f.write_str(&shown(text.as_bytes())),
            Value::Array(array) => array.fmt(f),
            Value::U64(x) => x.fmt(f),
            Value::I64(x) => x.fmt(f),
            Value::F64(x) => x.fmt(f),
        }
    }
}

/// A string of the file: bytes that should be UTF-8, but need not be.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Text<'a>(pub &'a [u8]);

impl<'a> Text<'a> {
    /// The bytes as they are in the file.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// The text.
    ///
    /// # Errors
    /// Where the bytes are not UTF-8.
    pub fn as_str(self) -> Result<&'a str, Utf8Error> {
        std::str::from_utf8(self.0)
    }

    /// The text, with a replacement character for what is not UTF-8.
    pub fn to_string_lossy(self) -> Cow<'a, str> {
        String::from_utf8_lossy(self.0)
    }
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// An array of metadata; elements are decoded when they are looked at.
#[derive(Clone, Copy)]
pub struct Array<'a> {
    element: ValueType,
    len: usize,
    bytes: &'a [u8],
    /// Where the strings start in `bytes`; only top-level arrays of strings have it.
    starts: Option<&'a [u32]>,
}

impl<'a> Array<'a> {
    fn decode(bytes: &'a [u8], starts: Option<&'a [u32]>) -> Self {
        let (element, len) = array_head(bytes);
        Self { element, len, bytes: &bytes[ARRAY_HEAD..], starts }
    }

    /// The type of every element.
    pub fn element_type(&self) -> ValueType {
        self.element
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The element at `index`, in constant time, except in arrays of arrays, where it takes linear time.
    pub fn get(&self, index: usize) -> Option<Value<'a>> {
        if index >= self.len {
            return None;
        }
        if let Some(size) = self.element.size() {
            let at = index * size;
            return Some(Value::decode(self.element, &self.bytes[at..at + size], None));
        }
        match self.starts {
            Some(starts) => ArrayIter { rest: &self.bytes[starts[index] as usize..], ..self.iter() }.next(),
            None => self.iter().nth(index),
        }
    }

    /// The elements in order.
    pub fn iter(&self) -> ArrayIter<'a> {
        ArrayIter { element: self.element, left: self.len, rest: self.bytes }
    }

    /// The strings of an array of strings.
    pub fn strings(&self) -> Option<Strings<'a>> {
        (self.element == ValueType::Str).then_some(Strings(*self))
    }

    /// The elements as they are in the file, one after the other, little endian.
    pub(crate) fn raw(&self) -> &'a [u8] {
        self.bytes
    }
}

impl<'a> IntoIterator for Array<'a> {
    type Item = Value<'a>;
    type IntoIter = ArrayIter<'a>;

    fn into_iter(self) -> ArrayIter<'a> {
        self.iter()
    }
}

/// Arrays are equal when their type and bytes are; so a NaN equals the same NaN.
impl PartialEq for Array<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.element == other.element && self.len == other.len && self.bytes == other.bytes
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The first elements, and how many there are.
impl fmt::Display for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const FIRST: usize = 6;
        f.write_str("[")?;
        for (index, value) in self.iter().take(FIRST).enumerate() {
            write!(f, "{}{value}", if index > 0 { ", " } else { "" })?;
        }
        if self.len > FIRST {
            write!(f, ", … {} in all", self.len)?;
        }
        f.write_str("]")
    }
}

/// Iterator over the elements of an [`Array`].
#[derive(Clone, Debug)]
pub struct ArrayIter<'a> {
    element: ValueType,
    left: usize,
    rest: &'a [u8],
}

impl<'a> Iterator for ArrayIter<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        let (value, rest) = self.rest.split_at(encoded_len(self.element, self.rest));
        self.rest = rest;
        Some(Value::decode(self.element, value, None))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for ArrayIter<'_> {}

/// An array of strings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Strings<'a>(Array<'a>);

impl<'a> Strings<'a> {
    /// Number of strings.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The string at `index`, in constant time.
    pub fn get(&self, index: usize) -> Option<Text<'a>> {
        self.0.get(index)?.as_text()
    }

    /// The strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Text<'a>> + use<'a> {
        self.0.iter().map(|value| value.as_text().unwrap_or(Text(b"")))
    }
}

/// Bytes that the value at the start of `bytes`, which have been validated, takes.
fn encoded_len(ty: ValueType, bytes: &[u8]) -> usize {
    if let Some(size) = ty.size() {
        return size;
    }
    if ty == ValueType::Str {
        return 8 + u64::from_le_bytes(head(bytes)) as usize;
    }
    let (element, len) = array_head(bytes);
    let elements = &bytes[ARRAY_HEAD..];
    let size = match element.size() {
        Some(size) => size * len,
        None => (0..len).fold(0, |at, _| at + encoded_len(element, &elements[at..])),
    };
    ARRAY_HEAD + size
}

/// Element type and count of an array that has been validated.
pub(crate) fn array_head(bytes: &[u8]) -> (ValueType, usize) {
    let element = ValueType::from_id(u32::from_le_bytes(head(bytes))).unwrap_or(ValueType::U8);
    (element, u64::from_le_bytes(head(&bytes[4..])) as usize)
}

fn head<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[..N]);
    out
}

/// A Rust value that can be stored under a key; arrays may be nested.
pub trait Encode {
    /// Its type in the file.
    const TYPE: ValueType;

    /// Appends its bytes, without the type.
    fn encode(&self, out: &mut Vec<u8>);
}

macro_rules! encode_numbers {
    ($($rust:ty => $variant:ident),*) => {$(
        impl Encode for $rust {
            const TYPE: ValueType = ValueType::$variant;

            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

encode_numbers!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, f32 => F32);
encode_numbers!(u64 => U64, i64 => I64, f64 => F64);

impl Encode for bool {
    const TYPE: ValueType = ValueType::Bool;

    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl Encode for Text<'_> {
    const TYPE: ValueType = ValueType::Str;

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.0.len() as u64).to_le_bytes());
        out.extend_from_slice(self.0);
    }
}

impl Encode for str {
    const TYPE: ValueType = ValueType::Str;

    fn encode(&self, out: &mut Vec<u8>) {
        Text(self.as_bytes()).encode(out);
    }
}

impl Encode for String {
    const TYPE: ValueType = ValueType::Str;

    fn encode(&self, out: &mut Vec<u8>) {
        self.as_str().encode(out);
    }
}

impl<T: Encode> Encode for [T] {
    const TYPE: ValueType = ValueType::Array;

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&T::TYPE.id().to_le_bytes());
        out.extend_from_slice(&(self.len() as u64).to_le_bytes());
        for element in self {
            element.encode(out);
        }
    }
}

impl<T: Encode, const N: usize> Encode for [T; N] {
    const TYPE: ValueType = ValueType::Array;

    fn encode(&self, out: &mut Vec<u8>) {
        self.as_slice().encode(out);
    }
}

impl<T: Encode> Encode for Vec<T> {
    const TYPE: ValueType = ValueType::Array;

    fn encode(&self, out: &mut Vec<u8>) {
        self.as_slice().encode(out);
    }
}

impl<T: Encode + ?Sized> Encode for &T {
    const TYPE: ValueType = T::TYPE;

    fn encode(&self, out: &mut Vec<u8>) {
        (**self).encode(out);
    }
}

impl Value<'_> {
    /// Appends its bytes, without the type.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Value::U8(x) => x.encode(out),
            Value::I8(x) => x.encode(out),
            Value::U16(x) => x.encode(out),
            Value::I16(x) => x.encode(out),
            Value::U32(x) => x.encode(out),
            Value::I32(x) => x.encode(out),
            Value::F32(x) => x.encode(out),
            Value::Bool(x) => x.encode(out),
            Value::Str(x) => x.encode(out),
            Value::Array(array) => {
                array.element_type().id().encode(out);
                (array.len() as u64).encode(out);
                out.extend_from_slice(array.raw());
            }
            Value::U64(x) => x.encode(out),
            Value::I64(x) => x.encode(out),
            Value::F64(x) => x.encode(out),
        }
    }
}
