//! Files of the reference implementation: read value by value, and made again byte for byte.

mod common;

use common::{golden, visit};
use wootz_gguf::{Array, ErrorKind, Metadata, Model, Text, Value, ValueType, Writer};
use wootz_quant::WeightType;

fn pattern(count: usize, seed: usize) -> Vec<u8> {
    (0..count).map(|i| (seed + 7 * i) as u8).collect()
}

const QUANTISED: [WeightType; 8] = [
    WeightType::Q4_0,
    WeightType::Q8_0,
    WeightType::Q4_K,
    WeightType::Q6_K,
    WeightType::IQ4_XS,
    WeightType::IQ2_XXS,
    WeightType::TQ2_0,
    WeightType::MXFP4,
];

#[test]
fn values_of_every_type_are_read() {
    let model = Model::open(golden("everything.gguf")).unwrap();
    let meta = model.meta();
    assert_eq!((model.version(), model.alignment(), model.shards()), (3, 64, 1));
    assert_eq!(meta.architecture().unwrap(), "golden");
    let scalars = [
        ("u8", Value::U8(200)),
        ("i8", Value::I8(-100)),
        ("u16", Value::U16(60000)),
        ("i16", Value::I16(-30000)),
        ("u32", Value::U32(4_000_000_000)),
        ("i32", Value::I32(-2_000_000_000)),
        ("f32", Value::F32(1.5e-5)),
        ("true", Value::Bool(true)),
        ("false", Value::Bool(false)),
        ("string", Value::Str(Text("rust – 錆 🦀".as_bytes()))),
        ("u64", Value::U64(u64::MAX)),
        ("i64", Value::I64(i64::MIN)),
        ("f64", Value::F64(0.1)),
    ];
    for (name, expected) in scalars {
        assert_eq!(meta.get(&format!("scalar.{name}")), Some(expected), "{name}");
    }
    let array = |name: &str| meta.get(&format!("array.{name}")).unwrap().as_array().unwrap();
    let elements = |name: &str| array(name).iter().collect::<Vec<_>>();
    assert_eq!(elements("u8"), [0, 128, 255].map(Value::U8));
    assert_eq!(elements("i8"), [-128, 0, 127].map(Value::I8));
    assert_eq!(elements("u16"), [0, 65535].map(Value::U16));
    assert_eq!(elements("i16"), [-32768, 32767].map(Value::I16));
    assert_eq!(elements("u32"), [1, 2, u32::MAX].map(Value::U32));
    assert_eq!(elements("i32"), [-1, 0, 1].map(Value::I32));
    assert_eq!(elements("f32"), [0.5, -2.25].map(Value::F32));
    assert_eq!(elements("bool"), [true, false, true].map(Value::Bool));
    assert_eq!(elements("u64"), [Value::U64(1 << 63)]);
    assert_eq!(elements("i64"), [-1, 1 << 62].map(Value::I64));
    assert_eq!(elements("f64"), [1e300, -0.0].map(Value::F64));
    let strings = meta.strings("array.string").unwrap();
    let expected: [&[u8]; 5] = [b"", b"a", b"bc", "日本".as_bytes(), b"\xff\xfe"];
    assert_eq!(strings.iter().map(Text::as_bytes).collect::<Vec<_>>(), expected);
    assert_eq!(
        (0..6).map(|i| strings.get(i).map(Text::as_bytes)).collect::<Vec<_>>()[..5],
        expected.map(Some)
    );
    assert_eq!(strings.get(5), None);
    let inner: Vec<Array<'_>> = array("nested").iter().map(|value| value.as_array().unwrap()).collect();
    assert_eq!(inner[0].iter().collect::<Vec<_>>(), [1, 2].map(Value::I32));
    assert_eq!(inner[1].iter().collect::<Vec<_>>(), [Value::I32(3)]);
    assert_eq!(array("nested").element_type(), ValueType::Array);
}

#[test]
fn tensors_are_read() {
    let model = Model::open(golden("everything.gguf")).unwrap();
    let vector = model.tensor("vector.f32").unwrap();
    let numbers: Vec<f32> = model
        .data(vector)
        .unwrap()
        .chunks_exact(4)
        .map(|x| f32::from_le_bytes(x.try_into().unwrap()))
        .collect();
    assert_eq!(numbers, [0.0, 0.25, 0.5, 0.75, 1.0]);
    let dims = |name: &str| model.tensor(name).unwrap().dims().to_vec();
    assert_eq!(dims("vector.f32"), [5]);
    assert_eq!(dims("matrix.f16"), [4, 3]);
    assert_eq!(dims("cube.i16"), [4, 3, 2]);
    assert_eq!(dims("four.i8"), [4, 3, 1, 2]);
    let cube = model.tensor("cube.i16").unwrap();
    assert_eq!((cube.cols(), cube.rows(), cube.elements(), cube.row_bytes()), (4, 6, 24, 8));
    for (seed, ty) in QUANTISED.into_iter().enumerate() {
        let tensor = model.tensor_with_dims(&format!("quantised.{ty}"), &[256, 3]).unwrap();
        assert_eq!(tensor.ty, ty);
        assert!(tensor.offset.is_multiple_of(64));
        let expected = pattern(3 * ty.row_bytes(256).unwrap(), seed);
        assert_eq!(model.data(tensor).unwrap(), expected, "{ty}");
        assert_eq!(model.read_tensor(tensor).unwrap(), expected, "{ty}");
    }
    assert_eq!(model.tensors().len(), 4 + QUANTISED.len());
    visit(&model);
}

/// The writer makes the very bytes of the reference implementation, so that whoever reads its files reads ours.
#[test]
fn the_writer_makes_the_same_bytes() {
    let mut writer = Writer::new();
    fill(&mut writer.meta).unwrap();
    let bytes = |numbers: &[u8]| numbers.to_vec();
    let floats: Vec<u8> = (0..5).flat_map(|i| (i as f32 * 0.25).to_le_bytes()).collect();
    // Halves of the whole numbers 0 to 11.
    let halves =
        [0u16, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600, 0x4700, 0x4800, 0x4880, 0x4900, 0x4980];
    let halves: Vec<u8> = halves.iter().flat_map(|x| x.to_le_bytes()).collect();
    let shorts: Vec<u8> = (0..24i16).flat_map(i16::to_le_bytes).collect();
    let small: Vec<u8> = (0..24).collect();
    writer.tensor("vector.f32", &[5], WeightType::F32, floats).unwrap();
    writer.tensor("matrix.f16", &[4, 3], WeightType::F16, halves).unwrap();
    writer.tensor("cube.i16", &[4, 3, 2], WeightType::I16, shorts).unwrap();
    writer.tensor("four.i8", &[4, 3, 1, 2], WeightType::I8, bytes(&small)).unwrap();
    for (seed, ty) in QUANTISED.into_iter().enumerate() {
        let data = pattern(3 * ty.row_bytes(256).unwrap(), seed);
        writer
            .tensor_stream(&format!("quantised.{ty}"), &[256, 3], ty, move |out| {
                data.chunks(100).try_for_each(|piece| out.write_all(piece))
            })
            .unwrap();
    }
    let expected = std::fs::read(golden("everything.gguf")).unwrap();
    assert!(writer.to_bytes().unwrap() == expected, "the bytes differ");
}

fn fill(meta: &mut Metadata) -> wootz_gguf::Result<()> {
    meta.set("general.architecture", "golden")?
        .set("general.alignment", 64u32)?
        .set("scalar.u8", 200u8)?
        .set("scalar.i8", -100i8)?
        .set("scalar.u16", 60_000u16)?
        .set("scalar.i16", -30_000i16)?
        .set("scalar.u32", 4_000_000_000u32)?
        .set("scalar.i32", -2_000_000_000i32)?
        .set("scalar.f32", 1.5e-5f32)?
        .set("scalar.true", true)?
        .set("scalar.false", false)?
        .set("scalar.string", "rust – 錆 🦀".to_owned())?
        .set("scalar.u64", u64::MAX)?
        .set("scalar.i64", i64::MIN)?
        .set("scalar.f64", 0.1f64)?
        .set("array.u8", [0u8, 128, 255])?
        .set("array.i8", [-128i8, 0, 127])?
        .set("array.u16", [0u16, 65_535])?
        .set("array.i16", [-32_768i16, 32_767])?
        .set("array.u32", [1u32, 2, u32::MAX])?
        .set("array.i32", vec![-1i32, 0, 1])?
        .set("array.f32", [0.5f32, -2.25].as_slice())?
        .set("array.bool", [true, false, true])?
        .set("array.string", [b"", b"a" as &[u8], b"bc", "日本".as_bytes(), b"\xff\xfe"].map(Text))?
        .set("array.u64", [1u64 << 63])?
        .set("array.i64", [-1i64, 1 << 62])?
        .set("array.f64", [1e300f64, -0.0])?
        .set("array.nested", vec![vec![1i32, 2], vec![3]])?;
    Ok(())
}

/// A model copied entry by entry and tensor by tensor is the same file.
#[test]
fn a_copy_is_the_same_file() {
    let model = Model::open(golden("everything.gguf")).unwrap();
    let mut writer = Writer::new();
    for (key, value) in model.meta().iter() {
        writer.meta.set_value(key, value).unwrap();
    }
    for tensor in model.tensors() {
        writer.tensor_from(&model, tensor).unwrap();
    }
    assert!(writer.to_bytes().unwrap() == std::fs::read(golden("everything.gguf")).unwrap());
}

#[test]
fn version_2_is_the_same_format() {
    let mut bytes = std::fs::read(golden("everything.gguf")).unwrap();
    bytes[4] = 2;
    let model = Model::from_bytes(bytes).unwrap();
    assert_eq!(model.version(), 2);
    assert_eq!(visit(&model), visit(&Model::open(golden("everything.gguf")).unwrap()));
}

#[test]
fn big_endian_is_refused_by_name() {
    let error = Model::open(golden("big-endian.gguf")).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::BigEndian { version: 3 }), "{error}");
    assert!(error.to_string().contains("big-endian"), "{error}");
}

#[test]
fn any_shard_opens_the_set() {
    for number in 1..=3 {
        let model = Model::open(golden(&format!("set-0000{number}-of-00003.gguf"))).unwrap();
        assert_eq!(model.shards(), 3);
        assert_eq!(model.meta().u32("golden.block_count").unwrap(), 1);
        let files: Vec<_> = model.tensors().iter().map(|tensor| (&*tensor.name, tensor.shard)).collect();
        assert_eq!(files, [("t0", 0), ("t1", 0), ("t2", 1), ("t3", 1), ("t4", 2)]);
        for (value, tensor) in model.tensors().iter().enumerate() {
            let expected = (value as f32).to_le_bytes().repeat(8);
            assert_eq!(model.data(tensor).unwrap(), expected);
            assert_eq!(model.read_tensor(tensor).unwrap(), expected);
        }
        assert_eq!(model.path(2).unwrap(), golden("set-00003-of-00003.gguf"));
        assert_eq!((model.data_bytes(), model.elements()), (160, 40));
    }
}
