//! Damaged and malicious files: each is refused with a message that names the place.

mod common;

use common::{Folder, Raw, sample, visit};
use wootz_gguf::{ErrorKind, Model};

/// Asserts that the message has all of these parts.
#[track_caller]
fn names(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}

#[test]
fn the_sample_is_sound() {
    let model = Model::from_bytes(sample()).unwrap();
    assert_eq!(model.data(model.tensor("b").unwrap()).unwrap(), [2; 34]);
    visit(&model);
}

#[test]
fn every_truncation_is_refused() {
    let folder = Folder::new("truncation");
    let bytes = sample();
    for length in 0..bytes.len() {
        let cut = &bytes[..length];
        let error = Model::from_bytes(cut.to_vec()).expect_err("a part is not the whole");
        match error.kind() {
            ErrorKind::Truncated { offset, needed, left, .. } => {
                assert_eq!(offset + left, length as u64, "{error}");
                assert!(needed > left, "{error}");
            }
            ErrorKind::Count { offset, .. } => assert!(*offset < length as u64, "{error}"),
            ErrorKind::OutOfFile { size, .. } => assert_eq!(*size, length as u64, "{error}"),
            ErrorKind::NotGguf { .. } => assert_eq!(length, 0, "{error}"),
            _ => panic!("at {length}: {error}"),
        }
        // Reading a file piece by piece must see the same as reading bytes.
        let path = folder.join("cut.gguf");
        std::fs::write(&path, cut).unwrap();
        let of_file = Model::open(&path).unwrap_err();
        assert_eq!(of_file.kind().to_string(), error.kind().to_string());
        assert!(of_file.to_string().contains("cut.gguf"), "{of_file}");
    }
}

#[test]
fn other_formats_are_named() {
    let refused = |bytes: &[u8]| Model::from_bytes(bytes.to_vec()).unwrap_err().to_string();
    names(&refused(b"PK\x03\x04rest of it"), &["not a GGUF file", "50 4b 03 04", "ZIP"]);
    names(&refused(b"\x10\0\0\0\0\0\0\0{\"x\": 1}"), &["safetensors"]);
    names(&refused(b"<html>404"), &["web page"]);
    names(&refused(b""), &["it is empty"]);
    names(&refused(b"abcdefghijk"), &["starts with 61 62 63 64 65 66 67 68"]);
    names(&refused(b"GGU"), &["truncated", "the magic"]);
}

#[test]
fn other_versions_are_refused() {
    for (version, hint) in [(0, "convert"), (1, "convert"), (4, "newer"), (u32::MAX, "newer")] {
        names(&Raw::new(version, 0, 0).refused(), &[&format!("version {version} "), hint]);
    }
    names(&Raw::new(3u32.swap_bytes(), 0, 0).refused(), &["big-endian", "version 3"]);
}

#[test]
fn counts_are_bounded_by_the_bytes_left() {
    names(
        &Raw::new(3, u64::MAX, 0).refused(),
        &["18446744073709551615 tensors", "offset 8", "8 bytes are left"],
    );
    names(&Raw::new(3, 0, u64::MAX).refused(), &["18446744073709551615 metadata entries", "offset 16"]);
    names(&Raw::new(3, 0, 1).refused(), &["1 metadata entries", "0 bytes are left"]);
    // One tensor would fit behind the counts, but not behind the metadata.
    let raw = Raw::new(3, 1, 1).entry("a long enough key to hold a tensor", 4).u32(1);
    names(&raw.refused(), &["1 tensors", "0 bytes are left"]);
    for (element, fit) in [(0, 16), (4, 4), (8, 2), (9, 1), (10, 2)] {
        let with = |count: u64| Raw::new(3, 0, 1).entry("k", 9).u32(element).u64(count).bytes(&[0; 16]);
        for count in [u64::MAX, 1 << 63, (1 << 61) + 1, 17, fit + 1] {
            names(
                &with(count).refused(),
                &["key `k`", &format!("{count} array elements"), "16 bytes are left"],
            );
        }
        assert!(with(fit).open().is_ok());
    }
}

#[test]
fn long_strings_are_refused() {
    for length in [1 << 63, u64::MAX, u64::MAX - 7, 101] {
        let raw = Raw::new(3, 0, 1).entry("k", 8).u64(length).bytes(&[0; 100]);
        names(
            &raw.refused(),
            &["a string of metadata key `k`", &format!("needs {length} bytes, 100 are left")],
        );
        let raw = Raw::new(3, 1, 0).u64(length).bytes(&[b'x'; 100]);
        names(&raw.refused(), &["the name of tensor 0", &format!("needs {length} bytes")]);
    }
    let raw = Raw::new(3, 0, 1).u64(u64::MAX).bytes(&[b'x'; 100]);
    names(&raw.refused(), &["metadata entry 0", "key of 18446744073709551615 bytes", "65535"]);
    let key = "k".repeat(65_535);
    assert!(Raw::new(3, 0, 1).entry_u32(&key, 1).open().unwrap().meta().contains(&key));
    let key = "k".repeat(65_536);
    names(&Raw::new(3, 0, 1).entry_u32(&key, 1).refused(), &["key of 65536 bytes"]);
}

#[test]
fn arrays_nest_only_so_deep() {
    let nested = |depth: usize| {
        let raw = (1..depth).fold(Raw::new(3, 0, 1).entry("k", 9), |raw, _| raw.u32(9).u64(1));
        raw.u32(0).u64(1).u8(7)
    };
    let model = nested(8).open().unwrap();
    let mut value = model.meta().get("k").unwrap();
    for _ in 0..8 {
        value = value.as_array().unwrap().get(0).unwrap();
    }
    assert_eq!(value, wootz_gguf::Value::U8(7));
    names(&nested(9).refused(), &["key `k`", "8 deep"]);
    names(&nested(1000).refused(), &["key `k`", "8 deep"]);
    names(&nested(1_000_000).refused(), &["key `k`", "8 deep"]);
}

#[test]
fn values_are_checked() {
    let raw = Raw::new(3, 0, 1).entry("k", 13).u64(0);
    names(&raw.refused(), &["key `k`", "unknown value type 13", "offset 33"]);
    let raw = Raw::new(3, 0, 1).entry("k", 9).u32(0x0800_0000).u64(0);
    names(&raw.refused(), &["key `k`", "unknown value type 134217728", "offset 37"]);
    names(&Raw::new(3, 0, 1).entry("k", 7).u8(2).refused(), &["key `k`", "boolean 2", "offset 37"]);
    let raw = Raw::new(3, 0, 1).entry("k", 9).u32(7).u64(3).bytes(&[0, 1, 9]);
    names(&raw.refused(), &["key `k`", "boolean 9", "offset 51"]);
    let raw = Raw::new(3, 0, 1).string(b"\xff\xfe").u32(0).u8(1);
    names(&raw.refused(), &["metadata entry 0", "not UTF-8", "offset 32"]);
}

#[test]
fn duplicates_are_refused() {
    let raw = Raw::new(3, 0, 3).entry_u32("b", 1).entry_u32("a", 1).entry_u32("b", 2);
    names(&raw.refused(), &["key `b` occurs twice"]);
    let raw = Raw::new(3, 2, 0).tensor("t", &[1], 0, 0).tensor("t", &[1], 0, 32).pad(32).bytes(&[0; 64]);
    names(&raw.refused(), &["tensor `t` occurs twice"]);
}

#[test]
fn dimensions_are_checked() {
    let one = |dims: &[u64], ty: u32| Raw::new(3, 1, 0).tensor("t", dims, ty, 0).pad(32).bytes(&[0; 64]);
    names(&one(&[1; 5], 0).refused(), &["tensor `t`", "5 dimensions", "at most 4"]);
    let raw = Raw::new(3, 1, 0).string(b"t").u32(u32::MAX).bytes(&[0; 64]);
    names(&raw.refused(), &["tensor `t`", "4294967295 dimensions", "offset 33"]);
    names(&one(&[0], 0).refused(), &["tensor `t`", "[0]"]);
    names(&one(&[4, 0, 2], 0).refused(), &["tensor `t`", "[4, 0, 2]"]);
    for dims in [[u64::MAX, 1], [1 << 62, 4], [1 << 32, 1 << 32], [1 << 61, 1]] {
        names(&one(&dims, 0).refused(), &["tensor `t`", "too large"]);
    }
    // The product wraps to a small number in 64 bits.
    names(&one(&[1 << 32, 1 << 31, 1 << 31, 1 << 34], 0).refused(), &["tensor `t`", "too large"]);
    // The bytes could be counted, the elements not.
    names(&one(&[1 << 62, 4], 35).refused(), &["tensor `t`", "too large"]);
    names(&one(&[33], 2).refused(), &["tensor `t`", "33 elements", "Q4_0", "multiple of 32"]);
    names(&one(&[32], 9999).refused(), &["tensor `t`", "unknown type 9999", "offset 45"]);
    names(&one(&[32], 31).refused(), &["tensor `t`", "unknown type 31", "use the plain type"]);
    // A scalar has no dimensions and one element.
    let model = one(&[], 0).open().unwrap();
    assert_eq!(model.tensor("t").unwrap().bytes, 4);
    let raw = Raw::new(3, 1, 0).string(b"\xc0").u32(0).u32(0).u64(0).bytes(&[0; 64]);
    names(&raw.refused(), &["tensor 0", "not UTF-8", "offset 32"]);
}

#[test]
fn data_is_inside_the_file_and_apart() {
    let two = |first: u64, second: u64| {
        Raw::new(3, 2, 0).tensor("a", &[16], 0, first).tensor("b", &[8], 0, second).pad(32).bytes(&[0; 128])
    };
    let model = two(0, 64).open().unwrap();
    let start = model.tensor("a").unwrap().offset;
    assert_eq!(start, 96);
    assert!(two(64, 32).open().is_ok(), "any order and gaps are fine");
    let message = two(0, 32).refused();
    names(&message, &["tensor `b`", "starts at offset 128", "tensor `a`", "ends at 160"]);
    names(&two(32, 32).refused(), &["tensor `a`", "tensor `b`"]);
    names(&two(0, 128).refused(), &["tensor `b`", "32 bytes from offset 224", "ends at 224"]);
    names(&two(0, u64::MAX - 31).refused(), &["tensor `b`", "ends at 224"]);
    names(&two(0, 1 << 63).refused(), &["tensor `b`", "ends at 224"]);
    names(&two(4, 96).refused(), &["tensor `a`", "4 bytes", "alignment 32"]);
}

#[test]
fn alignment_is_checked() {
    let with = |value: u32| Raw::new(3, 0, 1).entry_u32("general.alignment", value);
    for bad in [0, 1, 4, 12, 33, u32::MAX] {
        names(&with(bad).refused(), &["general.alignment", &bad.to_string(), "power of two"]);
    }
    for good in [8, 16, 64, 4096] {
        assert_eq!(with(good).open().unwrap().alignment(), u64::from(good));
    }
    let raw = Raw::new(3, 0, 1).entry("general.alignment", 8).string(b"32");
    names(&raw.refused(), &["general.alignment", "should be u64", "string"]);
}

#[test]
fn messages_are_safe_to_print() {
    let key = format!("\x1b[31m{}", "long".repeat(1000));
    let message = Raw::new(3, 0, 2).entry_u32(&key, 1).entry_u32(&key, 1).refused();
    assert!(message.len() < 300 && !message.contains('\x1b'), "{message}");
}

#[test]
fn folders_and_missing_files_are_named() {
    let folder = Folder::new("nothing");
    let message = Model::open(folder.join("absent.gguf")).unwrap_err().to_string();
    names(&message, &["absent.gguf", "cannot open the file"]);
    names(&Model::open(folder.join("")).unwrap_err().to_string(), &["not a file but a folder"]);
}

/// A file may be long and hold nothing: the counts are then possible, and yet damage.
#[test]
fn sparse_files_are_refused_soon() {
    let folder = Folder::new("sparse");
    let path = folder.join("sparse.gguf");
    let refused = |head: Raw| {
        std::fs::write(&path, head.0).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(1 << 40).unwrap();
        Model::open(&path).unwrap_err().to_string()
    };
    names(
        &refused(Raw::new(3, 0, 1 << 30)),
        &["1073741824 metadata entries", "no model has more than 65536"],
    );
    names(&refused(Raw::new(3, 1 << 30, 0)), &["1073741824 tensors", "no model has more than 1048576"]);
    names(&refused(Raw::new(3, 0, 1 << 16)), &["metadata key `` occurs twice"]);
    names(&refused(Raw::new(3, 1 << 20, 0)), &["tensor ``"]);
    let string = Raw::new(3, 0, 1).entry("k", 8).u64(1 << 39);
    names(&refused(string), &["header reaches beyond 268435456 bytes", "key `k`"]);
    let array = Raw::new(3, 0, 1).entry("k", 9).u32(8).u64(1 << 36);
    names(&refused(array), &["68719476736 array elements"]);
}
