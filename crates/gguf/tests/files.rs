//! Models on the disk: writing them, reaching their data, sets of shards.

mod common;

use std::io::Write;
use std::path::Path;

use common::Folder;
use wootz_gguf::{AtomicFile, Error, ErrorKind, Model, Result, Writer};
use wootz_quant::WeightType;

#[track_caller]
fn names(error: &Error, parts: &[&str]) {
    let message = error.to_string();
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}

fn two_tensors<'a>() -> Writer<'a> {
    let mut writer = Writer::new();
    writer.meta.set("general.architecture", "llama").unwrap();
    writer.tensor("ones", &[8, 3], WeightType::F32, 1f32.to_le_bytes().repeat(24)).unwrap();
    writer.tensor("counting", &[200], WeightType::I8, (0..200).collect::<Vec<u8>>()).unwrap();
    writer
}

#[test]
fn data_is_reached_in_two_ways() {
    let folder = Folder::new("data");
    let path = folder.join("model.gguf");
    two_tensors().write_file(&path).unwrap();
    let of_file = Model::open(&path).unwrap();
    let of_bytes = Model::from_bytes(std::fs::read(&path).unwrap()).unwrap();
    let expected: Vec<u8> = (0..200).collect();
    for model in [&of_file, &of_bytes] {
        let tensor = model.tensor("counting").unwrap();
        assert_eq!(model.data(tensor).unwrap(), expected);
        for (offset, len) in [(0, 200), (0, 0), (200, 0), (1, 7), (199, 1), (64, 100)] {
            let mut buffer = vec![0xee; len];
            model.read_tensor_at(tensor, offset, &mut buffer).unwrap();
            assert_eq!(buffer, expected[offset..offset + len]);
        }
        for (offset, len) in [(0, 201), (200, 1), (201, 0), (usize::MAX, 2)] {
            let error = model.read_tensor_at(tensor, offset, &mut vec![0; len]).unwrap_err();
            names(&error, &["tensor `counting`", &format!("{len} bytes at offset {offset}"), "has 200"]);
        }
        let mut copy = Vec::new();
        model.copy_tensor(tensor, &mut copy).unwrap();
        assert_eq!(copy, expected);
        model.prefetch(tensor).unwrap();
        let start = tensor.offset as usize;
        assert_eq!(model.file_data(0).unwrap().unwrap()[start..start + 200], expected);
        assert!(model.file_data(1).unwrap().is_none() && model.path(1).is_none());
        assert_eq!((model.data_bytes(), model.elements()), (296, 224));
        assert_eq!(model.file_bytes(), std::fs::metadata(&path).unwrap().len());
    }
    assert_eq!(of_file.path(0), Some(path.as_path()));
}

/// Pieces larger than the buffer of a copy.
#[test]
fn large_tensors_are_copied() {
    let data: Vec<u8> =
        (0..(5 << 19) + 3).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut writer = Writer::new();
    writer.tensor("large", &[data.len()], WeightType::I8, data.as_slice()).unwrap();
    let model = Model::from_bytes(writer.to_bytes().unwrap()).unwrap();
    let mut copy = Writer::new();
    copy.tensor_from(&model, model.tensor("large").unwrap()).unwrap();
    let copy = Model::from_bytes(copy.to_bytes().unwrap()).unwrap();
    assert!(copy.data(copy.tensor("large").unwrap()).unwrap() == data);
}

#[test]
fn shapes_are_compared() {
    let model = Model::from_bytes(two_tensors().to_bytes().unwrap()).unwrap();
    for dims in [&[8, 3][..], &[8, 3, 1], &[8, 3, 1, 1, 1]] {
        assert_eq!(model.tensor_with_dims("ones", dims).unwrap().cols(), 8);
    }
    for dims in [&[3, 8][..], &[24], &[8, 3, 2], &[]] {
        let error = model.tensor_with_dims("ones", dims).unwrap_err();
        names(&error, &["tensor `ones`", &format!("{dims:?}"), "[8, 3]"]);
    }
    names(&model.tensor_with_dims("two", &[1]).unwrap_err(), &["tensor `two` is missing"]);
}

#[test]
fn tensors_of_another_model_are_refused() {
    let small = Model::from_bytes(two_tensors().to_bytes().unwrap()).unwrap();
    let mut writer = Writer::new();
    writer.tensor("pad", &[1000], WeightType::I8, vec![0; 1000]).unwrap();
    writer.tensor("far", &[10], WeightType::I8, vec![0; 10]).unwrap();
    let large = Model::from_bytes(writer.to_bytes().unwrap()).unwrap();
    let far = large.tensor("far").unwrap();
    names(&small.data(far).unwrap_err(), &["tensor `far`"]);
    names(&small.read_tensor(far).unwrap_err(), &["tensor `far`"]);
    assert!(small.copy_tensor(far, &mut Vec::new()).is_err());
    assert!(small.prefetch(far).is_err());
}

#[test]
fn a_file_that_shrinks_is_an_error() {
    let folder = Folder::new("shrinks");
    let path = folder.join("model.gguf");
    two_tensors().write_file(&path).unwrap();
    let model = Model::open(&path).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(100).unwrap();
    let tensor = model.tensor("counting").unwrap();
    names(&model.read_tensor(tensor).unwrap_err(), &["model.gguf", "cannot read tensor data"]);
    let error = model.data(tensor).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Changed { now: 100, .. }), "{error}");
}

#[test]
fn the_writer_checks_what_it_is_given() {
    let mut writer = two_tensors();
    let error = |result: Result<&mut Writer<'_>>| result.err().unwrap();
    names(&error(writer.tensor("ones", &[1], WeightType::I8, vec![0])), &["tensor `ones` occurs twice"]);
    names(
        &error(writer.tensor("short", &[2], WeightType::F32, vec![0; 7])),
        &["tensor `short` takes 8 bytes", "7 were"],
    );
    names(&error(writer.tensor("q", &[33], WeightType::Q8_0, vec![])), &["33 elements", "multiple of 32"]);
    names(&error(writer.tensor("zero", &[0], WeightType::F32, vec![])), &["tensor `zero`", "[0]"]);
    names(
        &error(writer.tensor("five", &[1; 5], WeightType::I8, vec![0])),
        &["tensor `five`", "5 dimensions"],
    );
    names(&error(writer.tensor("vast", &[usize::MAX, 2], WeightType::I8, vec![])), &["too large"]);
    // What was refused is not there, and its name is free.
    writer.tensor("short", &[2], WeightType::F32, vec![0; 8]).unwrap();
    let model = Model::from_bytes(writer.to_bytes().unwrap()).unwrap();
    let written: Vec<_> = model.tensors().iter().map(|tensor| &*tensor.name).collect();
    assert_eq!(written, ["ones", "counting", "short"]);

    let mut writer = two_tensors();
    writer.meta.set("general.alignment", 48u32).unwrap();
    names(&writer.to_bytes().unwrap_err(), &["general.alignment", "48"]);
}

#[test]
fn streams_must_have_the_length_of_the_tensor() {
    let write = |pieces: &'static [usize]| {
        let mut writer = Writer::new();
        let stream = move |out: &mut dyn Write| pieces.iter().try_for_each(|&n| out.write_all(&vec![1; n]));
        writer.tensor_stream("t", &[10], WeightType::I8, stream).unwrap();
        writer.to_bytes()
    };
    assert!(write(&[10]).is_ok() && write(&[3, 7]).is_ok());
    for (pieces, found) in [(&[9][..], "9"), (&[11], "11"), (&[], "0"), (&[5, 6], "11")] {
        names(&write(pieces).unwrap_err(), &["tensor `t` takes 10 bytes", &format!("{found} were written")]);
    }
    let mut writer = Writer::new();
    let broken = |_: &mut dyn Write| Err(std::io::Error::other("source is gone"));
    writer.tensor_stream("t", &[10], WeightType::I8, broken).unwrap();
    names(&writer.to_bytes().unwrap_err(), &["cannot write the model: source is gone"]);
}

#[test]
fn every_alignment_reads_back() {
    for alignment in [8u32, 16, 256, 8192] {
        let mut writer = two_tensors();
        writer.meta.set("general.alignment", alignment).unwrap();
        let bytes = writer.to_bytes().unwrap();
        assert!(bytes.len().is_multiple_of(alignment as usize));
        let model = Model::from_bytes(bytes).unwrap();
        for tensor in model.tensors() {
            assert!(tensor.offset.is_multiple_of(alignment.into()));
        }
        assert_eq!(model.data(model.tensor("counting").unwrap()).unwrap()[199], 199);
    }
}

#[test]
fn a_model_without_tensors_reads_back() {
    let mut writer = Writer::new();
    writer.meta.set("general.type", "vocab").unwrap();
    let model = Model::from_bytes(writer.to_bytes().unwrap()).unwrap();
    assert!(model.tensors().is_empty());
    let model = Model::from_bytes(Writer::new().to_bytes().unwrap()).unwrap();
    assert!(model.meta().is_empty());
}

#[test]
fn files_are_whole_or_not_there() {
    let folder = Folder::new("atomic");
    let path = folder.join("model.gguf");
    std::fs::write(&path, "old").unwrap();

    let mut writer = Writer::new();
    let broken = |out: &mut dyn Write| {
        out.write_all(&[1; 5])?;
        Err(std::io::Error::other("no more"))
    };
    writer.tensor_stream("t", &[10], WeightType::I8, broken).unwrap();
    names(&writer.write_file(&path).unwrap_err(), &["model.gguf", "no more"]);
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    assert_eq!(folder.names(), ["model.gguf"]);

    let mut file = AtomicFile::create(&path).unwrap();
    file.write_all(b"half").unwrap();
    assert_eq!(folder.names().len(), 2);
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    drop(file);
    assert_eq!(folder.names(), ["model.gguf"]);

    let mut file = AtomicFile::create(&path).unwrap();
    file.write_all(b"new").unwrap();
    file.commit().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"new");
    assert_eq!(folder.names(), ["model.gguf"]);

    names(&AtomicFile::create(folder.join("none/model.gguf")).err().unwrap(), &["none", "cannot create"]);
    assert!(AtomicFile::create(Path::new("/")).is_err());
}

/// Writes one shard; `None` leaves the number of tensors out.
fn write_shard(
    path: &Path,
    [number, count]: [u16; 2],
    total: Option<i32>,
    architecture: &str,
    tensors: &[&str],
) {
    let mut writer = Writer::new();
    writer.meta.set("general.architecture", architecture).unwrap();
    writer.meta.set("split.no", number).unwrap().set("split.count", count).unwrap();
    if let Some(total) = total {
        writer.meta.set("split.tensors.count", total).unwrap();
    }
    for name in tensors {
        writer.tensor(name, &[4], WeightType::I8, name.as_bytes().repeat(4)).unwrap();
    }
    writer.write_file(path).unwrap();
}

struct Set(Folder);

impl Set {
    fn new(name: &str) -> Self {
        let set = Set(Folder::new(name));
        set.write(0, [0, 3], Some(4), "llama", &["a", "b"]);
        set.write(1, [1, 3], Some(4), "llama", &["c"]);
        set.write(2, [2, 3], Some(4), "llama", &["d"]);
        set
    }

    fn path(&self, index: usize) -> std::path::PathBuf {
        self.0.join(&format!("m-0000{}-of-00003.gguf", index + 1))
    }

    fn write(&self, index: usize, split: [u16; 2], total: Option<i32>, architecture: &str, tensors: &[&str]) {
        write_shard(&self.path(index), split, total, architecture, tensors);
    }

    #[track_caller]
    fn refused(&self, parts: &[&str]) {
        for index in 0..3 {
            if self.path(index).exists() {
                names(&Model::open(self.path(index)).unwrap_err(), parts);
            }
        }
    }
}

#[test]
fn shards_form_one_model() {
    let set = Set::new("shards");
    for index in 0..3 {
        let model = Model::open(set.path(index)).unwrap();
        for (name, shard) in [("a", 0), ("b", 0), ("c", 1), ("d", 2)] {
            let tensor = model.tensor(name).unwrap();
            assert_eq!(usize::from(tensor.shard), shard);
            assert_eq!(model.data(tensor).unwrap(), name.repeat(4).as_bytes());
        }
    }
    // The number of tensors is a check, not a need.
    set.write(1, [1, 3], None, "llama", &["c"]);
    assert_eq!(Model::open(set.path(1)).unwrap().shards(), 3);
}

#[test]
fn a_missing_shard_is_named() {
    let set = Set::new("missing-shard");
    std::fs::remove_file(set.path(1)).unwrap();
    set.refused(&["m-00002-of-00003.gguf", "shard 2 of 3 is missing"]);
}

#[test]
fn shards_need_their_names() {
    let set = Set::new("shard-names");
    let renamed = set.0.join("renamed.gguf");
    std::fs::rename(set.path(1), &renamed).unwrap();
    names(&Model::open(&renamed).unwrap_err(), &["renamed.gguf", "shard 2 of 3", "`-00002-of-00003.gguf`"]);
    names(&Model::from_bytes(std::fs::read(&renamed).unwrap()).unwrap_err(), &["one of 3 shards"]);
}

#[test]
fn shards_that_disagree_are_refused() {
    let set = Set::new("shard-mismatch");
    set.write(1, [1, 3], Some(4), "qwen2", &["c"]);
    set.refused(&["m-00002", "the architecture is qwen2, expected llama"]);
    set.write(1, [1, 3], Some(4), "llama", &["a"]);
    set.refused(&["m-00002", "tensor `a` occurs twice"]);
    set.write(1, [1, 3], Some(4), "llama", &["c", "e"]);
    set.refused(&["number of tensors of all shards is 5, expected 4"]);
    set.write(1, [1, 3], Some(5), "llama", &["c", "e"]);
    set.refused(&["`split.tensors.count` is"]);
    set.write(1, [2, 3], Some(4), "llama", &["c"]);
    names(&Model::open(set.path(0)).unwrap_err(), &["m-00002", "its number is 3, expected 2"]);
    set.write(1, [1, 4], Some(4), "llama", &["c"]);
    names(&Model::open(set.path(0)).unwrap_err(), &["m-00002", "the number of shards is 4, expected 3"]);
    set.write(1, [3, 3], Some(4), "llama", &["c"]);
    set.refused(&["m-00002", "`split.no` is 3, expected less than"]);
    std::fs::write(set.path(1), b"PK\x03\x04").unwrap();
    names(&Model::open(set.path(0)).unwrap_err(), &["m-00002", "ZIP"]);
}

/// A shard count of one is a whole model, whatever its name.
#[test]
fn one_shard_is_a_model() {
    let folder = Folder::new("one-shard");
    let path = folder.join("any-name.gguf");
    write_shard(&path, [0, 1], Some(1), "llama", &["a"]);
    assert_eq!(Model::open(&path).unwrap().shards(), 1);
}

#[test]
fn threads_share_a_model() {
    fn shared<T: Send + Sync>() {}
    shared::<Model>();
    let folder = Folder::new("threads");
    let path = folder.join("model.gguf");
    two_tensors().write_file(&path).unwrap();
    let model = Model::open(&path).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let tensor = model.tensor("counting").unwrap();
                assert_eq!(model.read_tensor(tensor).unwrap(), model.data(tensor).unwrap());
            });
        }
    });
}
