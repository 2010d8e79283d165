//! The key-value store: kept in the encoding of the file, indexed, decoded on access.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::error::{in_memory, shown};
use crate::input::{Input, MAX_HEADER, Subject};
use crate::value::{ARRAY_HEAD, array_head};
use crate::{Encode, Error, ErrorKind, Result, Value, ValueType};

/// The longest key that the format allows, in bytes.
const MAX_KEY: u64 = 65_535;

/// Arrays of arrays deeper than this are refused; no model has any.
const MAX_DEPTH: usize = 8;

/// The fewest bytes of an entry: key length, type and one byte of value.
pub(crate) const LEAST_ENTRY: u64 = 8 + 4 + 1;

/// The metadata of a model: typed values under unique keys, in the order of the file.
///
/// It holds the bytes of the file's own encoding and an index into them: four bytes for every key and for
/// every string of an array, so that a large vocabulary costs no allocation per token.
///
/// The getters (`u32`, `str`, `f32s` …) are in two forms. `name(key)` fails where the key is missing,
/// `opt_name(key)` gives `None` there; both fail where the value has another type. Integers of every width
/// are accepted where the number fits, `f64` where `f32` is asked for.
#[derive(Clone)]
pub struct Metadata {
    path: Arc<Path>,
    /// Entries: key length, key, value type, value. Read from a file, its first bytes come before them.
    bytes: Vec<u8>,
    /// Where the entries start in `bytes`.
    start: usize,
    index: Index,
    /// Numbers of the entries, sorted by key.
    sorted: Vec<u32>,
}

/// Places in the bytes that hold the entries.
#[derive(Clone, Default)]
pub(crate) struct Index {
    /// Where each entry starts.
    entries: Vec<u32>,
    /// For the entries that are arrays of strings, where each string starts from the end of the array's head.
    strings: Vec<(u32, Box<[u32]>)>,
}

impl Metadata {
    /// Metadata without entries, to be filled with [`set`](Self::set).
    pub fn new() -> Self {
        Self { path: in_memory(), bytes: Vec::new(), start: 0, index: Index::default(), sorted: Vec::new() }
    }

    /// Metadata from the first bytes of a file, whose entries from `start` on [`Index::read`] has walked over.
    pub(crate) fn from_index(path: &Arc<Path>, bytes: Vec<u8>, start: usize, index: Index) -> Result<Self> {
        let mut meta = Self { path: path.clone(), bytes, start, sorted: Vec::new(), index };
        let mut sorted: Vec<u32> = (0..meta.len() as u32).collect();
        sorted.sort_unstable_by(|&a, &b| meta.key_at(a).cmp(meta.key_at(b)));
        if let Some(pair) = sorted.windows(2).find(|pair| meta.key_at(pair[0]) == meta.key_at(pair[1])) {
            let key = shown(meta.key_at(pair[0]).as_bytes());
            return Err(meta.fail(ErrorKind::DuplicateKey { key }));
        }
        meta.sorted = sorted;
        Ok(meta)
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.index.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.index.entries.is_empty()
    }

    /// The keys and values in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, Value<'_>)> {
        (0..self.len() as u32).map(|entry| (self.key_at(entry), self.value_at(entry)))
    }

    /// The value under `key`.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        let place = self.position(key).ok()?;
        Some(self.value_at(self.sorted[place]))
    }

    /// Whether there is a value under `key`.
    pub fn contains(&self, key: &str) -> bool {
        self.position(key).is_ok()
    }

    /// Stores a value under `key`; one that is there already is replaced and moves to the end.
    ///
    /// # Errors
    /// Where the key is longer than 65,535 bytes or everything together than 256 MiB.
    pub fn set(&mut self, key: &str, value: impl Encode) -> Result<&mut Self> {
        self.put(key, value_type_of(&value), |out| value.encode(out))
    }

    /// Stores a value of other metadata under `key`, as [`set`](Self::set) does.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn set_value(&mut self, key: &str, value: Value<'_>) -> Result<&mut Self> {
        self.put(key, value.ty(), |out| value.encode(out))
    }

    /// Removes `key`, and says whether it was there.
    pub fn remove(&mut self, key: &str) -> bool {
        let Ok(place) = self.position(key) else { return false };
        let entry = self.sorted.remove(place);
        let range = self.range(entry);
        let gone = range.len() as u32;
        self.bytes.drain(range);
        self.index.entries.remove(entry as usize);
        self.index.entries.iter_mut().skip(entry as usize).for_each(|start| *start -= gone);
        self.index.strings.retain(|(owner, _)| *owner != entry);
        let owners = self.index.strings.iter_mut().map(|(owner, _)| owner);
        owners.chain(&mut self.sorted).filter(|number| **number > entry).for_each(|number| *number -= 1);
        true
    }

    /// The encoding of all entries.
    pub(crate) fn encoded(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// The file that the metadata is from, for messages.
    pub(crate) fn path(&self) -> &Arc<Path> {
        &self.path
    }

    pub(crate) fn fail(&self, kind: ErrorKind) -> Error {
        Error::new(&self.path, kind)
    }

    fn put(&mut self, key: &str, ty: ValueType, encode: impl FnOnce(&mut Vec<u8>)) -> Result<&mut Self> {
        let subject = || format!("metadata key `{}`", shown(key.as_bytes()));
        if key.len() as u64 > MAX_KEY {
            let found = key.len() as u64;
            return Err(self.fail(ErrorKind::KeyTooLong { subject: subject(), found, limit: MAX_KEY }));
        }
        let mut bytes = Vec::new();
        key.encode(&mut bytes);
        ty.id().encode(&mut bytes);
        encode(&mut bytes);
        // The same walk as over a file: it checks the nesting and finds the strings.
        let mut added = Index::default();
        added.read_entry(&mut Input::of_bytes(&self.path, &bytes), 0)?;
        if (self.bytes.len() + bytes.len()) as u64 > MAX_HEADER {
            return Err(self.fail(ErrorKind::HeaderTooLarge { subject: subject(), limit: MAX_HEADER }));
        }
        self.remove(key);
        let entry = self.len() as u32;
        self.index.entries.push(self.bytes.len() as u32);
        self.index.strings.extend(added.strings.into_iter().map(|(_, starts)| (entry, starts)));
        self.bytes.append(&mut bytes);
        let place = match self.sorted.binary_search_by(|&other| self.key_at(other).cmp(key)) {
            Ok(place) | Err(place) => place,
        };
        self.sorted.insert(place, entry);
        Ok(self)
    }

    fn position(&self, key: &str) -> Result<usize, usize> {
        self.sorted.binary_search_by(|&entry| self.key_at(entry).cmp(key))
    }

    /// The bytes of an entry.
    fn range(&self, entry: u32) -> Range<usize> {
        let start = self.index.entries[entry as usize] as usize;
        let next = self.index.entries.get(entry as usize + 1);
        start..next.map_or(self.bytes.len(), |&next| next as usize)
    }

    /// The key of an entry, and the rest of its bytes.
    fn split(&self, entry: u32) -> (&str, &[u8]) {
        let (length, rest) = self.bytes[self.range(entry)].split_at(8);
        let length = length.iter().rev().fold(0, |value, &byte| value << 8 | usize::from(byte));
        let (key, rest) = rest.split_at(length);
        // Keys have been checked when they were read.
        (std::str::from_utf8(key).unwrap_or_default(), rest)
    }

    fn key_at(&self, entry: u32) -> &str {
        self.split(entry).0
    }

    fn value_at(&self, entry: u32) -> Value<'_> {
        let (id, value) = self.split(entry).1.split_at(4);
        let ty = ValueType::from_id(u32::from(id[0])).unwrap_or(ValueType::U8);
        let strings = &self.index.strings;
        let starts = strings.binary_search_by_key(&entry, |(owner, _)| *owner).ok();
        Value::decode(ty, value, starts.map(|place| &*strings[place].1))
    }
}

impl Default for Metadata {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

fn value_type_of<T: Encode>(_: &T) -> ValueType {
    T::TYPE
}

impl Index {
    /// Walks over `count` entries from the cursor on and checks everything that decoding relies on.
    pub(crate) fn read(input: &mut Input<'_>, count: usize) -> Result<Self> {
        let mut index = Self::default();
        for number in 0..count {
            index.read_entry(input, number)?;
        }
        Ok(index)
    }

    fn read_entry(&mut self, input: &mut Input<'_>, number: usize) -> Result<()> {
        input.subject = Subject::Entry(number as u64);
        // Positions stay below MAX_HEADER, so that they fit 32 bits.
        self.entries.push(input.at() as u32);
        let length = input.u64("the key's length")?;
        if length > MAX_KEY {
            let subject = input.subject();
            return Err(input.fail(ErrorKind::KeyTooLong { subject, found: length, limit: MAX_KEY }));
        }
        let key = input.skip(length, "the key")?;
        if std::str::from_utf8(input.seen(key.clone())).is_err() {
            let (offset, subject) = (key.start as u64, input.subject());
            return Err(input.fail(ErrorKind::NameNotUtf8 { offset, subject }));
        }
        input.subject = Subject::Key(key);
        let ty = read_type(input, "the value's type")?;
        let start = input.at();
        walk(input, ty, 0)?;
        if ty == ValueType::Array && input.seen(start..start + 4) == ValueType::Str.id().to_le_bytes() {
            self.strings.push((number as u32, string_starts(input, start..input.at())));
        }
        Ok(())
    }
}

fn read_type(input: &mut Input<'_>, what: &'static str) -> Result<ValueType> {
    let offset = input.at() as u64;
    let id = input.u32(what)?;
    ValueType::from_id(id).ok_or_else(|| {
        input.fail(ErrorKind::UnknownValueType { offset, subject: input.subject(), found: id })
    })
}

/// Moves over a value and checks it.
fn walk(input: &mut Input<'_>, ty: ValueType, depth: usize) -> Result<()> {
    match ty {
        ValueType::Str => {
            let length = input.u64("the length of a string")?;
            input.skip(length, "a string")?;
        }
        ValueType::Array => {
            if depth == MAX_DEPTH {
                let (offset, subject) = (input.at() as u64, input.subject());
                return Err(input.fail(ErrorKind::TooDeep { offset, subject, limit: MAX_DEPTH }));
            }
            let element = read_type(input, "the type of the array's elements")?;
            let count = input.count("array elements", element.least_size(), MAX_HEADER)?;
            match element.size() {
                Some(size) => walk_fixed(input, element, count as u64 * size as u64)?,
                None => (0..count).try_for_each(|_| walk(input, element, depth + 1))?,
            }
        }
        fixed => walk_fixed(input, fixed, fixed.least_size())?,
    }
    Ok(())
}

/// Moves over `bytes` bytes of plain values; a boolean must be 0 or 1.
fn walk_fixed(input: &mut Input<'_>, ty: ValueType, bytes: u64) -> Result<()> {
    let range = input.skip(bytes, "the value")?;
    if ty == ValueType::Bool
        && let Some(place) = input.seen(range.clone()).iter().position(|&byte| byte > 1)
    {
        let offset = (range.start + place) as u64;
        let found = input.seen(range)[place];
        return Err(input.fail(ErrorKind::InvalidBool { offset, subject: input.subject(), found }));
    }
    Ok(())
}

/// Where each string of the array in `range`, which has been walked over, starts behind the array's head.
fn string_starts(input: &Input<'_>, range: Range<usize>) -> Box<[u32]> {
    let (head, strings) = input.seen(range).split_at(ARRAY_HEAD);
    let mut table = Vec::with_capacity(array_head(head).1);
    let mut at = 0;
    while let Some(length) = strings.get(at..).and_then(<[u8]>::first_chunk) {
        table.push(at as u32);
        at += 8 + u64::from_le_bytes(*length) as usize;
    }
    table.into_boxed_slice()
}
