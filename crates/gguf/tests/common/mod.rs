//! Builds files byte by byte, without the crate's writer, so that every field can be false.
// Each test binary uses its own part of this.
#![allow(dead_code, unreachable_pub)]

use std::path::{Path, PathBuf};

use wootz_gguf::{Error, Model};

pub struct Raw(pub Vec<u8>);

impl Raw {
    pub fn new(version: u32, tensors: u64, entries: u64) -> Self {
        Raw(b"GGUF".to_vec()).u32(version).u64(tensors).u64(entries)
    }

    pub fn u8(mut self, x: u8) -> Self {
        self.0.push(x);
        self
    }

    pub fn u32(mut self, x: u32) -> Self {
        self.0.extend(x.to_le_bytes());
        self
    }

    pub fn u64(mut self, x: u64) -> Self {
        self.0.extend(x.to_le_bytes());
        self
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    pub fn string(self, bytes: &[u8]) -> Self {
        self.u64(bytes.len() as u64).bytes(bytes)
    }

    pub fn entry(self, key: &str, ty: u32) -> Self {
        self.string(key.as_bytes()).u32(ty)
    }

    pub fn entry_u32(self, key: &str, value: u32) -> Self {
        self.entry(key, 4).u32(value)
    }

    pub fn tensor(self, name: &str, dims: &[u64], ty: u32, offset: u64) -> Self {
        let head = self.string(name.as_bytes()).u32(dims.len() as u32);
        dims.iter().fold(head, |raw, &dim| raw.u64(dim)).u32(ty).u64(offset)
    }

    pub fn pad(mut self, alignment: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(alignment), 0);
        self
    }

    pub fn open(self) -> Result<Model, Error> {
        Model::from_bytes(self.0)
    }

    /// The message of the error that opening must end in.
    pub fn refused(self) -> String {
        self.open().expect_err("must be refused").to_string()
    }
}

/// A small file with every kind of value and two tensors, whose last byte is data.
pub fn sample() -> Vec<u8> {
    Raw::new(3, 2, 8)
        .entry("general.architecture", 8)
        .string(b"llama")
        .entry_u32("llama.block_count", 2)
        .entry("f", 6)
        .bytes(&0.5f32.to_le_bytes())
        .entry("flags", 9)
        .u32(7)
        .u64(2)
        .bytes(&[0, 1])
        .entry("tokens", 9)
        .u32(8)
        .u64(3)
        .string(b"<s>")
        .string(b"")
        .string(b"\xff")
        .entry("nested", 9)
        .u32(9)
        .u64(2)
        .u32(8)
        .u64(1)
        .string(b"x")
        .u32(1)
        .u64(3)
        .bytes(&[1, 2, 3])
        .entry("big", 12)
        .bytes(&1e300f64.to_le_bytes())
        .entry("b", 7)
        .u8(1)
        .tensor("a", &[4, 2], 0, 0)
        .tensor("b", &[32], 8, 32)
        .pad(32)
        .bytes(&[1; 32])
        .bytes(&[2; 34])
        .0
}

/// A folder of one test, removed when it is dropped.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("wootz-gguf-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn names(&self) -> Vec<String> {
        let names = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> =
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A file that `golden/make.py` made.
pub fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// Reads everything that a model offers and gives a sum of it, so that nothing is left out.
pub fn visit(model: &Model) -> u64 {
    let mut sum = 0u64;
    for (key, value) in model.meta().iter() {
        sum += key.len() as u64 + value.describe().len() as u64 + value.to_string().len() as u64;
        assert_eq!(model.meta().get(key).unwrap().ty(), value.ty());
        sum += visit_value(value);
        // The getters of other types must refuse, not panic.
        sum += u64::from(model.meta().u32(key).is_ok()) + u64::from(model.meta().f32s(key).is_ok());
        sum += u64::from(model.meta().strings(key).is_ok()) + u64::from(model.meta().str(key).is_ok());
        sum += u64::from(model.meta().i32s(key).is_ok()) + u64::from(model.meta().u32_each(key, 3).is_ok());
    }
    for tensor in model.tensors() {
        assert_eq!(model.find(&tensor.name), Some(tensor));
        let data = model.data(tensor).unwrap();
        assert_eq!(data.len(), tensor.bytes);
        assert_eq!(tensor.row_bytes() * tensor.rows(), tensor.bytes);
        sum += data.iter().map(|&byte| u64::from(byte)).sum::<u64>() + tensor.elements() as u64;
        let mut last = [0];
        model.read_tensor_at(tensor, tensor.bytes - 1, &mut last).unwrap();
        assert_eq!(last[0], data[tensor.bytes - 1]);
    }
    sum
}

fn visit_value(value: wootz_gguf::Value<'_>) -> u64 {
    if let Some(text) = value.as_text() {
        return text.as_bytes().iter().map(|&byte| u64::from(byte)).sum();
    }
    let Some(array) = value.as_array() else { return 1 };
    assert_eq!(array.iter().len(), array.len());
    if let Some(last) = array.len().checked_sub(1) {
        // Bytes, since a NaN does not equal itself.
        let [by_index, by_iter] = [array.get(last), array.iter().last()].map(|v| format!("{v:?}"));
        assert_eq!(by_index, by_iter);
    }
    array.iter().map(visit_value).sum()
}
