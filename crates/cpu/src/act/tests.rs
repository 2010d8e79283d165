//! Quantised rows against their definition in plain numbers, and rows written together against rows one by one.

use super::*;

const COLS: usize = 512 + 64;
/// Tiles of every size, and a rest.
const TOKENS: usize = 15;

/// Rows of ordinary values, zeros, tiny and huge ones, and some that are not finite.
fn rows() -> Vec<f32> {
    let mut state = 7u32;
    let mut value = |i: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let x = (state >> 8) as f32 / (1 << 23) as f32 - 1.0;
        match i / BLOCK % 11 {
            3 => 0.0,
            4 => x * 1e-39,
            5 => x * 1e30,
            6 if state.is_multiple_of(61) => f32::INFINITY,
            7 if state.is_multiple_of(61) => f32::NAN,
            8 => (x * 4.0).round() + 0.5,
            _ => x,
        }
    };
    (0..TOKENS * COLS).map(&mut value).collect()
}

#[test]
fn rows_written_together_are_those_written_one_by_one() {
    let x = rows();
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        for form in [ActForm::Int8, ActForm::Bf16, ActForm::Float] {
            let [mut together, mut apart, mut parts] =
                std::array::from_fn(|_| Activations::new(isa, form, TOKENS, COLS).unwrap());
            together.fill(&x).unwrap();
            let writer = apart.rows_mut();
            for (token, row) in x.chunks_exact(COLS).enumerate() {
                // SAFETY: one thread writes.
                unsafe { writer.write(token, row) };
            }
            let writer = parts.rows_mut();
            for (first, end) in [(0, 3), (3, 12), (12, TOKENS)] {
                // SAFETY: one thread writes.
                unsafe { writer.write(first, &x[first * COLS..end * COLS]) };
            }
            assert!(together.buffer[..] == apart.buffer[..], "{isa} {form:?}");
            assert!(together.buffer[..] == parts.buffer[..], "{isa} {form:?}");
        }
    }
}

#[test]
fn fields_of_blocks_are_what_they_say() {
    let x = rows();
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        let mut acts = Activations::new(isa, ActForm::Int8, TOKENS, COLS).unwrap();
        acts.fill(&x).unwrap();
        // Sums of pairs in 16 bits, and absolute values, belong to this one alone.
        let halves = isa == Isa::Avx2;
        for tile in acts.all().tiles(0) {
            let bytes = acts.all().tile_bytes(tile);
            for slot in 0..tile.tokens {
                for b in 0..COLS / BLOCK {
                    let size = (field::ABS + if halves { 64 } else { 0 }) * tile.tokens;
                    let word = |field: usize, index: usize| {
                        let at = b * size + field * tile.tokens + (index * tile.tokens + slot) * 4;
                        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
                    };
                    let x = &x[(tile.first + slot) * COLS + b * BLOCK..][..BLOCK];
                    let largest = x.iter().fold(0f32, |largest, x| largest.max(x.abs()));
                    let place = format!("{isa}, token {}, block {b}", tile.first + slot);
                    let d = f32::from_bits(word(field::D, 0));
                    if x.iter().any(|x| !x.is_finite()) {
                        assert!(d.is_nan(), "{place}");
                        continue;
                    }
                    let scale = largest / 127.0;
                    let tiny = scale < f32::MIN_POSITIVE;
                    assert_eq!(d, if tiny { 0.0 } else { scale }, "{place}");
                    let inverse = if tiny { 0.0 } else { 1.0 / scale };
                    let q: Vec<i32> = x.iter().map(|x| (x * inverse).round_ties_even() as i32).collect();
                    let group = |i: usize| {
                        let eights = matches!(isa, Isa::Neon | Isa::I8mm);
                        let at = if eights {
                            (i / 2 * tile.tokens + slot) * 8 + i % 2 * 4
                        } else {
                            (i * tile.tokens + slot) * 4
                        };
                        <[u8; 4]>::try_from(&bytes[b * size + at..][..4]).unwrap()
                    };
                    let codes: Vec<i32> = (0..8).flat_map(|i| group(i).map(|b| i32::from(b as i8))).collect();
                    assert_eq!(codes, q, "{place}");
                    let d16 = half::f16::from_f32(d).to_f32();
                    assert_eq!(f32::from_bits(word(field::D16, 0)), d16, "{place}");
                    let sum: i32 = q.iter().sum();
                    assert_eq!(f32::from_bits(word(field::S16, 0)), d16 * sum as f32, "{place}");
                    let start = |q: &[i32], offset: i32| {
                        let odd: i32 = q.chunks(4).map(|four| four[2] + four[3]).sum();
                        let even = q.iter().sum::<i32>() - odd;
                        let pair = (-offset * even) as u32 & 0xffff | ((-offset * odd) as u32) << 16;
                        if halves { pair } else { (-offset * (even + odd)) as u32 }
                    };
                    assert_eq!(word(field::START8, 0), start(&q, 8), "{place}");
                    assert_eq!(word(field::START16, 0), start(&q, 16), "{place}");
                    let negative: i32 = q.iter().map(|q| q.min(&0)).sum();
                    let wide = if halves { -negative } else { -128 * sum };
                    assert_eq!(word(field::START128, 0), wide as u32, "{place}");
                    for half in 0..2 {
                        let expected = start(&q[16 * half..16 * half + 16], 32);
                        assert_eq!(word(field::STARTS32, half), expected, "{place}");
                    }
                    for i in (0..8).filter(|_| halves) {
                        let four = &codes[4 * i..4 * i + 4];
                        let abs: Vec<u8> = four.iter().map(|q| q.unsigned_abs() as u8).collect();
                        let flip: Vec<u8> = four.iter().map(|q| if *q < 0 { 127 } else { 128 }).collect();
                        assert_eq!(word(field::ABS, i).to_le_bytes()[..], abs, "{place}");
                        assert_eq!(word(field::FLIP, i).to_le_bytes()[..], flip, "{place}");
                    }
                }
            }
        }
    }
}
