//! Lengths, errors, the common form of blocks, and the bounds of encoders.

mod common;

use common::{random_values, words};
use wootz_quant::{Levels, QuantError, Unpacked, WeightType};

fn random_blocks(ty: WeightType, count: usize) -> Vec<u8> {
    words(ty.id() + 500).flat_map(u64::to_le_bytes).take(count * ty.block_bytes()).collect()
}

fn decode(ty: WeightType, blocks: &[u8]) -> Vec<f32> {
    let mut values = vec![f32::NAN; blocks.len() / ty.block_bytes() * ty.block_elements()];
    ty.decode(blocks, &mut values).unwrap();
    values
}

fn encode(ty: WeightType, values: &[f32]) -> Result<Vec<u8>, QuantError> {
    let mut blocks = vec![0xAA; ty.row_bytes(values.len()).unwrap()];
    ty.encode(values, &mut blocks).map(|()| blocks)
}

fn encoders() -> impl Iterator<Item = WeightType> {
    WeightType::ALL.iter().copied().filter(|ty| ty.can_encode())
}

#[test]
fn ids_and_names_lead_back_to_the_type() {
    let mut last = None;
    for &ty in WeightType::ALL {
        assert!(last < Some(ty.id()), "{ty} is out of order");
        last = Some(ty.id());
        assert_eq!(WeightType::from_id(ty.id()), Some(ty));
        assert_eq!(WeightType::from_name(&ty.name().to_lowercase()), Some(ty));
        assert_eq!(ty.to_string(), ty.name());
    }
    // Ids of formats that files no longer hold, and the next free one.
    for id in [4, 5, 31, 32, 33, 36, 37, 38, 43, u32::MAX] {
        assert_eq!(WeightType::from_id(id), None, "{id}");
    }
    assert_eq!(WeightType::from_name("Q4_L"), None);
}

#[test]
fn rows_are_whole_blocks() {
    assert_eq!(WeightType::Q4_K.row_bytes(512), Some(288));
    assert_eq!(WeightType::Q4_K.row_bytes(500), None);
    assert_eq!(WeightType::F32.row_bytes(0), Some(0));
    assert_eq!(WeightType::F32.row_bytes(usize::MAX), None);
    assert_eq!(WeightType::Q8_0.row_bytes(usize::MAX - 31), None);
}

#[test]
fn every_wrong_length_is_refused() {
    for &ty in WeightType::ALL {
        let (block, elements) = (ty.block_bytes(), ty.block_elements());
        let bytes = vec![0; 3 * block];
        let values = vec![0.0; 3 * elements];
        for len in 0..=2 * block {
            let mut out = vec![0.0; 2 * elements];
            let found = ty.decode(&bytes[..len], &mut out);
            let dot = ty.dot(&bytes[..len], &out);
            let expected = match len {
                _ if len % block != 0 => Err(QuantError::PartialBlock { ty, bytes: len, block }),
                _ if len != 2 * block => {
                    let expected = len / block * elements;
                    Err(QuantError::Length { ty, unit: "elements", expected, found: 2 * elements })
                }
                _ => Ok(()),
            };
            assert_eq!(found, expected, "{ty}, {len} bytes");
            assert_eq!(dot.map(|_| ()), expected, "{ty}, {len} bytes");
            let unpacked = ty.unpack(&bytes[..len], &mut Unpacked::new());
            let expected = match ty.layout() {
                None => Err(QuantError::Plain { ty }),
                Some(_) if len == block => Ok(()),
                Some(_) => Err(QuantError::Length { ty, unit: "bytes", expected: block, found: len }),
            };
            assert_eq!(unpacked, expected, "{ty}, {len} bytes");
        }
        for len in 0..=2 * elements {
            let mut out = vec![0; 2 * block];
            let expected = match len {
                _ if !ty.can_encode() => Err(QuantError::NoEncoder { ty }),
                _ if len % elements != 0 => {
                    Err(QuantError::PartialElements { ty, elements: len, block: elements })
                }
                _ if len != 2 * elements => {
                    let expected = len / elements * block;
                    Err(QuantError::Length { ty, unit: "bytes", expected, found: 2 * block })
                }
                _ => Ok(()),
            };
            assert_eq!(ty.encode(&values[..len], &mut out), expected, "{ty}, {len} elements");
        }
    }
}

#[test]
fn errors_say_what_was_found() {
    let error = WeightType::Q4_0.decode(&[0; 19], &mut []).unwrap_err();
    assert_eq!(error.to_string(), "Q4_0: 19 bytes are no whole number of blocks of 18 bytes");
    let error = WeightType::Q8_0.encode(&[f32::NAN; 32], &mut [0; 34]).unwrap_err();
    assert_eq!(error.to_string(), "Q8_0: element 0 is NaN, which cannot be encoded");
}

#[test]
fn the_common_form_gives_the_decoded_values() {
    for &ty in WeightType::ALL {
        let Some(layout) = ty.layout() else { continue };
        assert_eq!(ty.block_elements() % layout.group, 0, "{ty}");
        let blocks = random_blocks(ty, 64);
        let values = decode(ty, &blocks);
        let mut u = Unpacked::new();
        let mut levels = vec![0; ty.block_elements()];
        for (block, values) in blocks.chunks(ty.block_bytes()).zip(values.chunks(ty.block_elements())) {
            ty.unpack(block, &mut u).unwrap();
            u.levels(layout, &mut levels);
            for (i, &value) in values.iter().enumerate() {
                let (code, group) = (u.codes[i], i / layout.group);
                assert!(u32::from(code) < 1 << layout.bits, "{ty}: code {code}");
                assert!(layout.scales.contains(&u.scales[group]), "{ty}: scale {}", u.scales[group]);
                assert_eq!(levels[i], layout.level(code), "{ty}");
                let mut expected = u.d * u.scales[group] as f32 * f32::from(levels[i]);
                if layout.has_mins() {
                    assert!(layout.mins.contains(&u.mins[group]), "{ty}: minimum {}", u.mins[group]);
                    expected += u.m * u.mins[group] as f32;
                }
                assert!(value.to_bits() == expected.to_bits() || value.is_nan() && expected.is_nan(), "{ty}");
            }
        }
    }
}

#[test]
fn levels_are_distinct_unless_the_format_repeats_them() {
    for &ty in WeightType::ALL {
        let Some(layout) = ty.layout() else { continue };
        let count = 1usize << layout.bits;
        let levels: std::collections::BTreeSet<i8> = (0..count).map(|c| layout.level(c as u8)).collect();
        // 4-bit floats have two zeros.
        let zeros = if matches!(ty, WeightType::MXFP4 | WeightType::NVFP4) { 2 } else { 1 };
        assert_eq!(levels.len(), count + 1 - zeros, "{ty}");
        if let Levels::Linear { zero } = layout.levels {
            assert_eq!(layout.level(zero), 0, "{ty}");
        }
    }
}

#[test]
fn dot_products_are_sums_in_f64() {
    for &ty in WeightType::ALL {
        // More than one buffer of decoded values, and no multiple of it.
        let count = (5 * 256_usize.div_ceil(ty.block_elements())).max(3);
        let mut blocks = random_blocks(ty, count);
        if ty.layout().is_none() {
            let values: Vec<f32> = random_values(8, count).iter().map(|v| (v * 15.0).round()).collect();
            blocks = encode(ty, &values).unwrap();
        }
        let values = decode(ty, &blocks);
        let x = random_values(9, values.len());
        let expected: f64 = values.iter().zip(&x).map(|(&v, &x)| f64::from(v) * f64::from(x)).sum();
        let found = ty.dot(&blocks, &x).unwrap();
        assert!(found == expected as f32 || found.is_nan() && expected.is_nan(), "{ty}: {found} {expected}");
    }
}

#[test]
fn plain_types_keep_what_they_can_hold() {
    let values = [0.0, -0.0, 1.0, -1.0, 2.5, -3.5, 100.0, -128.0, 0.15625];
    for ty in [WeightType::F32, WeightType::F64, WeightType::F16, WeightType::BF16] {
        let found = decode(ty, &encode(ty, &values).unwrap());
        assert_eq!(found.map_bits(), values.map_bits(), "{ty}");
    }
    for ty in [WeightType::I8, WeightType::I16, WeightType::I32, WeightType::I64] {
        let found = decode(ty, &encode(ty, &values).unwrap());
        assert_eq!(found, [0.0, 0.0, 1.0, -1.0, 2.0, -4.0, 100.0, -128.0, 0.0], "{ty}");
    }
}

trait Bits {
    fn map_bits(&self) -> Vec<u32>;
}

impl Bits for [f32] {
    fn map_bits(&self) -> Vec<u32> {
        self.iter().map(|v| v.to_bits()).collect()
    }
}

#[test]
fn what_cannot_be_held_is_refused() {
    for ty in encoders() {
        let elements = ty.block_elements();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = vec![1.0; 3 * elements];
            values[2 * elements] = bad;
            match encode(ty, &values) {
                Err(QuantError::NotFinite { index, value, .. }) => {
                    assert_eq!((index, value.to_bits()), (2 * elements, bad.to_bits()), "{ty}")
                }
                other => panic!("{ty}: {other:?}"),
            }
        }
        let largest = match ty {
            WeightType::F32 | WeightType::F64 | WeightType::Q8_K => continue,
            // Its exponents reach all but the last steps to f32::MAX.
            WeightType::MXFP4 => continue,
            _ => f32::MAX,
        };
        for sign in [1.0, -1.0] {
            let mut values = vec![1.0; 3 * elements];
            values[2 * elements] = sign * largest;
            assert_eq!(encode(ty, &values), Err(QuantError::Range { ty, index: 2 * elements }), "{ty}");
        }
    }
}

#[test]
fn integers_stop_at_their_bounds() {
    for (ty, most, beyond) in [
        (WeightType::I8, 127.0, 127.5),
        (WeightType::I16, 32767.0, 32767.5),
        (WeightType::I32, 2_147_483_520.0, 2_147_483_648.0),
        (WeightType::I64, 9.223_371_5e18, 9.223_372e18),
    ] {
        assert_eq!(decode(ty, &encode(ty, &[most]).unwrap()), [most], "{ty}");
        assert_eq!(encode(ty, &[beyond]), Err(QuantError::Range { ty, index: 0 }), "{ty}");
        let least = -(2.0f32.powi(8 * ty.block_bytes() as i32 - 1));
        assert_eq!(decode(ty, &encode(ty, &[least]).unwrap()), [least], "{ty}");
        assert_eq!(encode(ty, &[least * 1.01]), Err(QuantError::Range { ty, index: 0 }), "{ty}");
    }
}

/// Half a step of the codes, times what coarser integer scales cost, of a block's largest magnitude.
fn bound(ty: WeightType) -> f32 {
    match ty {
        WeightType::F32 | WeightType::F64 => 0.0,
        WeightType::F16 => 0.0005,
        WeightType::BF16 => 0.004,
        WeightType::Q8_0 | WeightType::Q8_1 | WeightType::Q8_K => 0.0045,
        WeightType::Q6_K => 0.02,
        WeightType::Q5_0 | WeightType::Q5_1 | WeightType::Q5_K => 0.063,
        WeightType::Q4_0 | WeightType::Q4_1 | WeightType::Q4_K => 0.126,
        WeightType::IQ4_NL | WeightType::IQ4_XS => 0.13,
        WeightType::MXFP4 | WeightType::NVFP4 => 0.26,
        WeightType::Q3_K => 0.26,
        WeightType::Q2_K => 0.4,
        WeightType::TQ1_0 | WeightType::TQ2_0 | WeightType::Q2_0 => 0.501,
        WeightType::Q1_0 => 1.0,
        other => panic!("no bound for {other}"),
    }
}

#[test]
fn round_trips_stay_within_bounds_at_every_magnitude() {
    let integers = [WeightType::I8, WeightType::I16, WeightType::I32, WeightType::I64];
    for ty in encoders().filter(|ty| !integers.contains(ty)) {
        for exponent in [-9, 0, 9] {
            // Scales of NVFP4 span 2^-9 to 448 only; files carry a factor for the whole tensor.
            if ty == WeightType::NVFP4 && exponent != 0 {
                continue;
            }
            let unit = 2.0f32.powi(exponent);
            let values: Vec<f32> = random_values(11, 4 * 256).iter().map(|v| v * unit).collect();
            let found = decode(ty, &encode(ty, &values).unwrap());
            let step = ty.block_elements().max(32);
            for (k, (values, found)) in values.chunks(step).zip(found.chunks(step)).enumerate() {
                let largest = values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                for (v, f) in values.iter().zip(found) {
                    // Half a step of subnormal f16 scales, times the largest code.
                    let subnormal = 127.0 * 2.0f32.powi(-25);
                    assert!(
                        (v - f).abs() <= bound(ty) * largest + subnormal,
                        "{ty}, unit {unit}, block {k}: {v} became {f} of {largest}"
                    );
                }
            }
        }
    }
}

#[test]
fn odd_blocks_encode_to_finite_values() {
    for ty in encoders() {
        let n = ty.block_elements();
        let blocks = [
            vec![0.0; n],
            vec![-0.0; n],
            vec![1e-40; n],
            vec![-f32::MIN_POSITIVE; n],
            vec![3e-8; n],
            (0..n).map(|i| if i % 2 == 0 { 1e-7 } else { -1e-7 }).collect(),
            (0..n).map(|i| if i == n / 2 { 100.0 } else { 1e-30 }).collect(),
            vec![1.0; n],
            vec![-1.0; n],
        ];
        for values in blocks {
            let found = decode(ty, &encode(ty, &values).unwrap());
            let largest = values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            for (v, f) in values.iter().zip(&found) {
                // A least step of f16 scales, and for blocks of one value the type's own error.
                let allowed = 8e-6 + 1.01 * largest;
                assert!((v - f).abs() <= allowed, "{ty}: {v} became {f} in {values:?}");
            }
        }
        // Equal values survive wherever a code stands for the largest magnitude itself, under a fine scale.
        if ty.layout().is_some() && ty != WeightType::NVFP4 && bound(ty) < 0.3 {
            for value in [1.0, -1.0] {
                let found = decode(ty, &encode(ty, &vec![value; n]).unwrap());
                assert!(found.iter().all(|f| (f - value).abs() < 0.01), "{ty}: {value} became {found:?}");
            }
        }
    }
}

#[test]
fn encoding_is_the_same_for_a_block_wherever_it_stands() {
    for ty in encoders() {
        let n = ty.block_elements();
        let values: Vec<f32> = random_values(12, 3 * n).iter().map(|v| (v * 8.0).round()).collect();
        let whole = encode(ty, &values).unwrap();
        for (values, block) in values.chunks(n).zip(whole.chunks(ty.block_bytes())) {
            assert_eq!(encode(ty, values).unwrap(), block, "{ty}");
        }
    }
}

/// The root of the mean squared error, as a share of the deviation.
fn relative_error(ty: WeightType, unit: f32) -> f32 {
    let values: Vec<f32> = random_values(13, 32 * 256).iter().map(|v| v * unit).collect();
    let found = decode(ty, &encode(ty, &values).unwrap());
    let error: f32 = values.iter().zip(&found).map(|(v, f)| ((v - f) / unit).powi(2)).sum();
    (error / values.iter().map(|v| (v / unit).powi(2)).sum::<f32>()).sqrt()
}

#[test]
fn integer_scales_make_up_for_subnormal_factors() {
    let types = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"];
    for ty in types.map(|name| WeightType::from_name(name).unwrap()) {
        let (small, usual) = (relative_error(ty, 2.0f32.powi(-14)), relative_error(ty, 1.0));
        assert!(small <= 1.03 * usual, "{ty}: {small} for small values, {usual} for usual ones");
    }
}
