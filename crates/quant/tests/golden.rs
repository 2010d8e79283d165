//! Decoders and encoders against `golden/golden.bin`, which independent implementations made.

mod common;

use common::{mix, random_values, words};
use wootz_quant::WeightType;

struct Record {
    kind: u8,
    ty: WeightType,
    given: &'static [u8],
    expected: &'static [u8],
}

fn records(kind: u8) -> Vec<Record> {
    let mut rest: &[u8] = include_bytes!("golden/golden.bin");
    let mut records = Vec::new();
    while !rest.is_empty() {
        let (head, tail) = rest.split_at(13);
        let (given, tail) = tail.split_at(u32_at(head, 5) as usize);
        let (expected, tail) = tail.split_at(u32_at(head, 9) as usize);
        let ty = WeightType::from_id(u32_at(head, 1)).expect("every id of the golden file is known");
        records.push(Record { kind: head[0], ty, given, expected });
        rest = tail;
    }
    records.retain(|r| r.kind == kind);
    records
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().unwrap())
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn decode(ty: WeightType, blocks: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; blocks.len() / ty.block_bytes() * ty.block_elements()];
    ty.decode(blocks, &mut values).unwrap();
    values
}

fn encode(ty: WeightType, values: &[f32]) -> Vec<u8> {
    let mut blocks = vec![0xAA; ty.row_bytes(values.len()).unwrap()];
    ty.encode(values, &mut blocks).unwrap();
    blocks
}

/// Every NaN counts as the same one.
fn bits(v: f32) -> u32 {
    if v.is_nan() { 0x7FC0_0000 } else { v.to_bits() }
}

#[test]
fn edge_blocks_decode_bit_for_bit() {
    let records = records(1);
    assert_eq!(records.len(), WeightType::ALL.len());
    for Record { ty, given, expected, .. } in records {
        let (found, expected) = (decode(ty, given), floats(expected));
        assert_eq!(found.len(), expected.len(), "{ty}");
        for (i, (f, e)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(bits(*f), bits(*e), "{ty}, element {i}: {f} instead of {e}");
        }
    }
}

#[test]
fn random_blocks_decode_bit_for_bit() {
    let records = records(2);
    assert_eq!(records.len(), WeightType::ALL.iter().filter(|ty| ty.layout().is_some()).count());
    for Record { ty, given, expected, .. } in records {
        let size = u32_at(given, 0) as usize * ty.block_bytes();
        let blocks: Vec<u8> = words(ty.id()).flat_map(u64::to_le_bytes).take(size).collect();
        let digest = decode(ty, &blocks)
            .iter()
            .zip(0u64..)
            .fold(0u64, |sum, (&v, i)| sum.wrapping_add(mix(u64::from(bits(v)) | i << 32)));
        assert_eq!(digest.to_le_bytes(), expected, "{ty}");
    }
}

#[test]
fn encoders_without_search_give_the_same_bytes() {
    let records = records(3);
    assert_eq!(records.len(), 15);
    for Record { ty, given, expected, .. } in records {
        let mut values = random_values(u32_at(given, 0), u32_at(given, 4) as usize);
        values.extend(floats(&given[8..]));
        let blocks = encode(ty, &values);
        for (i, (f, e)) in blocks.chunks(ty.block_bytes()).zip(expected.chunks(ty.block_bytes())).enumerate()
        {
            assert_eq!(
                f,
                e,
                "{ty}, block {i} of {:?}",
                &values[i * ty.block_elements()..][..ty.block_elements()]
            );
        }
        assert_eq!(blocks.len(), expected.len());
    }
}

#[test]
fn encoders_with_search_are_no_worse_than_the_reference() {
    let records = records(4);
    assert_eq!(records.len(), 7);
    for Record { ty, given, expected, .. } in records {
        let values = random_values(u32_at(given, 0), u32_at(given, 4) as usize);
        let decoded = decode(ty, &encode(ty, &values));
        let mut errors = [0.0; 2];
        for (&v, &y) in values.iter().zip(&decoded) {
            let (v, e) = (f64::from(v), f64::from(y) - f64::from(v));
            errors[0] += e * e;
            errors[1] += v.abs() * e * e;
        }
        for (k, what) in ["plain", "weighted"].iter().enumerate() {
            let reference = f64::from_le_bytes(*expected[8 * k..].first_chunk().unwrap());
            println!("{ty}: {what} error {:.4} of the reference", errors[k] / reference);
            assert!(errors[k] <= reference, "{ty}: {what} error {} exceeds {reference}", errors[k]);
        }
    }
}
