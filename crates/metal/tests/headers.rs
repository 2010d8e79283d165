//! The headers that are printed from code: `kernels/args.h` and `kernels/grids.h`.
//!
//! `WOOTZ_WRITE_HEADERS=1 cargo test -p wootz-metal --test headers` writes them.

use std::fmt::Write as _;
use std::path::PathBuf;

use half::f16;
use wootz_quant::WeightType;

/// Compares a header with its file, or writes it.
fn check(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("kernels").join(name);
    if std::env::var_os("WOOTZ_WRITE_HEADERS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap();
    assert!(found == text, "{name} is not what the code prints");
}

#[test]
fn args() {
    check("args.h", &wootz_metal::args::header());
}

/// The entries of a type's codebook, taken from what its decoder makes of blocks with one index each.
fn codebook(
    ty: WeightType,
    entries: usize,
    width: usize,
    values: &[f32],
    block: impl Fn(usize, &mut [u8]),
    level: impl Fn(f32) -> f32,
) -> Vec<u16> {
    let bits = 16 / width;
    let mut decoded = vec![0.0; ty.block_elements()];
    (0..entries)
        .map(|index| {
            let mut bytes = vec![0; ty.block_bytes()];
            block(index, &mut bytes);
            ty.decode(&bytes, &mut decoded).unwrap();
            (0..width).fold(0, |packed, i| {
                let place = values.iter().position(|v| *v == level(decoded[i]));
                packed | (place.unwrap_or_else(|| panic!("{ty}, entry {index}")) as u16) << (bits * i)
            })
        })
        .collect()
}

fn put_f16(bytes: &mut [u8], at: usize, value: f32) {
    bytes[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

#[test]
fn grids() {
    let twos = [8.0, 25.0, 43.0];
    let xxs3 = [4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0];
    let s3 = [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0];
    let same = |v: f32| v;
    let books = [
        codebook(
            WeightType::IQ2_XXS,
            256,
            8,
            &twos,
            |i, b| {
                put_f16(b, 0, 8.0);
                b[2] = i as u8;
            },
            same,
        ),
        codebook(
            WeightType::IQ2_XS,
            512,
            8,
            &twos,
            |i, b| {
                put_f16(b, 0, 8.0);
                b[2..4].copy_from_slice(&(i as u16).to_le_bytes());
            },
            same,
        ),
        codebook(
            WeightType::IQ2_S,
            1024,
            8,
            &twos,
            |i, b| {
                put_f16(b, 0, 8.0);
                b[2] = i as u8;
                b[66] = (i >> 8) as u8;
            },
            same,
        ),
        codebook(
            WeightType::IQ3_XXS,
            256,
            4,
            &xxs3,
            |i, b| {
                put_f16(b, 0, 4.0);
                b[2] = i as u8;
            },
            same,
        ),
        codebook(
            WeightType::IQ3_S,
            512,
            4,
            &s3,
            |i, b| {
                put_f16(b, 0, 1.0);
                b[2] = i as u8;
                b[66] = (i >> 8) as u8;
            },
            same,
        ),
        // Values are shifted by an eighth and scaled by one: -1, 0, 1.
        codebook(
            WeightType::IQ1_S,
            2048,
            8,
            &[-1.0, 0.0, 1.0],
            |i, b| {
                put_f16(b, 0, 1.0);
                b[2] = i as u8;
                b[34] = (i >> 8) as u8;
            },
            |v| v - 0.125,
        ),
    ];
    let names = ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"];
    let mut text = String::from(
        "// Codebooks of the IQ types, printed by tests/headers.rs from the decoders of wootz-quant: the indices of an\n\
         // entry's values, the first lowest.\n#pragma once\n",
    );
    for (name, book) in names.iter().zip(&books) {
        write!(text, "\nconstant ushort GRID_{name}[{}] = {{", book.len()).unwrap();
        for (i, entry) in book.iter().enumerate() {
            text.push_str(if i % 16 == 0 { "\n    " } else { " " });
            write!(text, "{entry},").unwrap();
        }
        text.push_str("\n};\n");
    }
    check("grids.h", &text);
}
