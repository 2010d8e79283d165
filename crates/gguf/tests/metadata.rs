//! Typed access to metadata, and changing it.

mod common;

use common::Raw;
use wootz_gguf::{Metadata, Model, Result, Text, Value, Writer};

#[track_caller]
fn message<T: std::fmt::Debug>(result: Result<T>) -> String {
    result.expect_err("must fail").to_string()
}

fn meta() -> Metadata {
    let mut meta = Metadata::new();
    meta.set("u8", 200u8)
        .and_then(|meta| meta.set("i32", -5i32))
        .and_then(|meta| meta.set("u64", u64::MAX))
        .and_then(|meta| meta.set("f32", 0.5f32))
        .and_then(|meta| meta.set("f64", 0.25f64))
        .and_then(|meta| meta.set("huge", 1e300f64))
        .and_then(|meta| meta.set("infinite", f64::INFINITY))
        .and_then(|meta| meta.set("bool", true))
        .and_then(|meta| meta.set("str", "text"))
        .and_then(|meta| meta.set("bytes", Text(b"ab\xff")))
        .and_then(|meta| meta.set("strings", ["a", "b"]))
        .and_then(|meta| meta.set("u16s", [1u16, 2, 3]))
        .and_then(|meta| meta.set("i64s", [-1i64, 1 << 40]))
        .and_then(|meta| meta.set("f32s", [1f32, 2.0]))
        .and_then(|meta| meta.set("bools", [true, false, true]))
        .and_then(|meta| meta.set("empty", Vec::<u32>::new()))
        .unwrap();
    meta
}

#[test]
fn integers_of_any_width_are_accepted_where_they_fit() {
    let meta = meta();
    assert_eq!(meta.u32("u8").unwrap(), 200);
    assert_eq!(meta.i32("u8").unwrap(), 200);
    assert_eq!(meta.usize("u8").unwrap(), 200);
    assert_eq!(meta.i64("i32").unwrap(), -5);
    assert_eq!(meta.u64("u64").unwrap(), u64::MAX);
    assert_eq!(message(meta.u32("i32")), "(in memory): metadata key `i32` should be u32, but holds -5");
    assert_eq!(
        message(meta.i64("u64")),
        "(in memory): metadata key `u64` should be i64, but holds 18446744073709551615"
    );
    assert_eq!(meta.u32s("u16s").unwrap(), [1, 2, 3]);
    assert_eq!(meta.i32s("u16s").unwrap(), [1, 2, 3]);
    assert_eq!(
        message(meta.i32s("i64s")),
        "(in memory): metadata key `i64s` should be array of i32, but holds 1099511627776"
    );
    assert_eq!(meta.u32s("empty").unwrap(), []);
    assert_eq!(meta.i32s("empty").unwrap(), []);
}

#[test]
fn other_types_are_refused_by_name() {
    let meta = meta();
    let cases = [
        (message(meta.u32("f32")), "`f32` should be u32, but is f32"),
        (message(meta.u32("bool")), "`bool` should be u32, but is bool"),
        (message(meta.f32("u8")), "`u8` should be f32, but is u8"),
        (message(meta.f32("huge")), "`huge` should be f32, but holds 1"),
        (message(meta.bool("u8")), "`u8` should be bool, but is u8"),
        (message(meta.str("u8")), "`u8` should be UTF-8 string, but is u8"),
        (message(meta.str("bytes")), "`bytes` is not UTF-8: byte 2 starts no character"),
        (message(meta.str("strings")), "`strings` should be UTF-8 string, but is array of 2 string"),
        (message(meta.strings("str")), "`str` should be array of strings, but is string"),
        (message(meta.strings("u16s")), "`u16s` should be array of strings, but is array of 3 u16"),
        (message(meta.f32s("u16s")), "`u16s` should be array of f32, but is array of 3 u16"),
        (message(meta.u32s("u8")), "`u8` should be array of u32, but is u8"),
        (message(meta.u32("none")), "`none` is missing (expected u32)"),
        (message(meta.bools("none")), "`none` is missing (expected array of bool)"),
        (message(meta.architecture()), "`general.architecture` is missing"),
    ];
    for (message, expected) in cases {
        assert!(message.contains(expected), "`{expected}` is not in: {message}");
    }
}

#[test]
fn values_are_converted() {
    let meta = meta();
    assert_eq!(meta.f32("f32").unwrap(), 0.5);
    assert_eq!(meta.f32("f64").unwrap(), 0.25);
    assert_eq!(meta.f32("infinite").unwrap(), f32::INFINITY);
    assert!(meta.bool("bool").unwrap());
    assert_eq!(meta.str("str").unwrap(), "text");
    assert_eq!(meta.text("bytes").unwrap().as_bytes(), b"ab\xff");
    assert_eq!(meta.text("bytes").unwrap().to_string_lossy(), "ab\u{fffd}");
    assert_eq!(meta.f32s("f32s").unwrap(), [1.0, 2.0]);
    assert_eq!(meta.bools("bools").unwrap(), [true, false, true]);
    let strings: Vec<_> =
        meta.strings("strings").unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    assert_eq!(strings, ["a", "b"]);
}

#[test]
fn optional_values_may_be_absent_but_not_wrong() {
    let meta = meta();
    assert_eq!(meta.opt_u32("none").unwrap(), None);
    assert_eq!(meta.opt_u32("u8").unwrap(), Some(200));
    assert_eq!(meta.opt_str("none").unwrap(), None);
    assert_eq!(meta.opt_f32s("f32s").unwrap().unwrap().len(), 2);
    assert!(meta.opt_strings("none").unwrap().is_none());
    assert!(message(meta.opt_u32("str")).contains("`str` should be u32, but is string"));
}

#[test]
fn one_value_or_one_for_each_layer() {
    let meta = meta();
    assert_eq!(meta.u32_each("u8", 3).unwrap(), [200; 3]);
    assert_eq!(meta.u32_each("u16s", 3).unwrap(), [1, 2, 3]);
    assert_eq!(meta.f32_each("f32", 2).unwrap(), [0.5; 2]);
    assert_eq!(meta.bool_each("bools", 3).unwrap(), [true, false, true]);
    assert_eq!(meta.opt_u32_each("none", 2).unwrap(), None);
    assert!(message(meta.u32_each("u16s", 4)).contains("`u16s` should have 4 elements, but has 3"));
    assert!(message(meta.u32_each("none", 4)).contains("`none` is missing (expected u32 or array of u32)"));
    assert!(message(meta.u32_each("str", 4)).contains("`str` should be u32 or array of u32, but is string"));
    assert!(message(meta.u32_each("f32s", 2)).contains("`f32s` should be u32 or array of u32"));
}

#[test]
fn keys_keep_their_order() {
    let mut meta = Metadata::new();
    meta.set("z", 1u32).unwrap().set("a", 2u32).unwrap().set("m", "x").unwrap();
    let keys = |meta: &Metadata| meta.iter().map(|(key, _)| key.to_owned()).collect::<Vec<_>>();
    assert_eq!(keys(&meta), ["z", "a", "m"]);
    meta.set("z", ["replaced"]).unwrap();
    assert_eq!(keys(&meta), ["a", "m", "z"]);
    assert!(meta.remove("a") && !meta.remove("a"));
    assert_eq!(keys(&meta), ["m", "z"]);
    assert_eq!(meta.strings("z").unwrap().get(0), Some(Text(b"replaced")));
    assert_eq!(format!("{meta:?}"), r#"{"m": Str("x"), "z": Array([replaced])}"#);
}

/// Random changes against a plain list of keys and values.
#[test]
fn changes_agree_with_a_list() {
    let mut state = 7u64;
    let mut random = |end: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % end
    };
    let mut meta = Metadata::new();
    let mut list: Vec<(String, Vec<String>)> = Vec::new();
    for _ in 0..3000 {
        let key = format!("key {}", random(12));
        list.retain(|(other, _)| *other != key);
        if random(3) == 0 {
            meta.remove(&key);
        } else {
            let strings: Vec<String> = (0..random(4)).map(|_| "x".repeat(random(5) as usize)).collect();
            meta.set(&key, &strings).unwrap();
            list.push((key, strings));
        }
        assert_eq!(meta.len(), list.len());
        for ((key, value), (expected_key, expected)) in meta.iter().zip(&list) {
            assert_eq!(key, expected_key);
            let strings = value.as_array().unwrap().strings().unwrap();
            let by_index: Vec<_> =
                (0..strings.len()).map(|i| strings.get(i).unwrap().as_str().unwrap()).collect();
            assert_eq!(by_index, *expected);
            assert_eq!(meta.get(key), Some(value));
        }
    }
}

#[test]
fn what_cannot_be_read_cannot_be_set() {
    let mut meta = Metadata::new();
    meta.set("before", ["kept"]).unwrap();
    assert!(message(meta.set(&"k".repeat(65_536), 1u32)).contains("key of 65536 bytes"));
    let deep = [[[[[[[[[1u8]]]]]]]]];
    assert!(message(meta.set("deep", deep)).contains("8 deep"));
    assert_eq!(meta.len(), 1);
    meta.set("after", deep[0]).unwrap();
    assert_eq!(meta.strings("before").unwrap().get(0), Some(Text(b"kept")));
    let mut writer = Writer::new();
    writer.meta = meta;
    let model = Model::from_bytes(writer.to_bytes().unwrap()).unwrap();
    assert_eq!(model.meta().len(), 2);
}

/// Arrays of arrays of strings have no table of places; they are walked.
#[test]
fn nested_strings_are_found() {
    let mut meta = Metadata::new();
    meta.set("nested", [vec!["a", "bc"], vec![], vec!["d"]]).unwrap();
    let array = meta.get("nested").unwrap().as_array().unwrap();
    let inner = |index: usize| array.get(index).and_then(|value| value.as_array()?.strings());
    assert_eq!(inner(0).unwrap().get(1), Some(Text(b"bc")));
    assert_eq!(inner(1).unwrap().get(0), None);
    assert_eq!(inner(2).unwrap().iter().collect::<Vec<_>>(), [Text(b"d")]);
    assert!(inner(3).is_none());
}

#[test]
fn values_print_short() {
    let mut meta = Metadata::new();
    meta.set("many", (0..100u32).collect::<Vec<_>>()).unwrap().set("long", "ab\n".repeat(100)).unwrap();
    assert_eq!(meta.get("many").unwrap().to_string(), "[0, 1, 2, 3, 4, 5, … 100 in all]");
    let long = meta.get("long").unwrap().to_string();
    assert!(long.starts_with(r"ab\nab\n") && long.ends_with('…') && long.len() < 200, "{long}");
}

#[test]
fn errors_name_the_file() {
    let folder = common::Folder::new("metadata");
    let path = folder.join("named.gguf");
    std::fs::write(&path, Raw::new(3, 0, 1).entry_u32("k", 1).0).unwrap();
    let model = Model::open(&path).unwrap();
    assert!(message(model.meta().str("k")).contains("named.gguf: metadata key `k`"));
    assert!(message(model.tensor("t")).contains("named.gguf: tensor `t` is missing"));
    assert_eq!(model.meta().get("k"), Some(Value::U32(1)));
}
