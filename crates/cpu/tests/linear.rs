//! Products of packed matrices: exact packing, error bounds, and one law: the same bits in every way to compute.

mod common;

use common::{Rng, isas, random_activations, random_weights, with_scales};
use wootz_cpu::pool::Pool;
use wootz_cpu::{
    ActForm, Activations, CpuError, Isa, Linear, LinearSet, PackedMatrix, StoredMatrix, Weights, linear,
};
use wootz_graph::RunError;
use wootz_quant::WeightType;

/// Computes all products of `x`, `[tokens, cols]`, in batches of `batch` tokens.
fn multiply(isa: Isa, pool: &Pool, weights: &PackedMatrix, x: &[f32], batch: usize) -> Vec<f32> {
    let (rows, cols) = (weights.rows(), weights.cols());
    let mut out = vec![f32::NAN; x.len() / cols * rows];
    for (x, out) in x.chunks(batch * cols).zip(out.chunks_mut(batch * rows)) {
        let mut acts = Activations::new(isa, weights.form(), x.len() / cols, cols).unwrap();
        acts.fill(x).unwrap();
        linear(pool, &acts, [Linear { weights: weights.into(), out, stride: rows }]).unwrap();
    }
    out
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// A width that every type can have, with a partial run of 64 for plain types.
fn width(ty: WeightType) -> usize {
    if ty.block_elements() == 1 { 301 } else { 768 }
}

#[test]
fn unpacking_gives_the_packed_bytes() {
    let mut rng = Rng(1);
    for ty in WeightType::ALL.iter().copied() {
        for rows in [0, 1, 16, 37] {
            let cols = width(ty);
            let row_bytes = ty.row_bytes(cols).unwrap();
            let source = random_weights(ty, rows, cols, &mut rng);
            // In parts and out of order, as a parallel loader would.
            let mut matrix = PackedMatrix::zeroed(ty, rows, cols).unwrap();
            let mut parts: Vec<_> = matrix.groups_mut(1).collect();
            parts.reverse();
            for part in &mut parts {
                let rows = part.rows();
                part.pack(&source[rows.start * row_bytes..rows.end * row_bytes]).unwrap();
            }
            let mut row = vec![0xee; row_bytes];
            for (i, expected) in source.chunks_exact(row_bytes).enumerate() {
                matrix.unpack_row(i, &mut row).unwrap();
                assert_eq!(row, expected, "{ty}, row {i} of {rows}");
            }
            assert_eq!(matrix.bytes(), rows.div_ceil(16) * 16 * row_bytes, "packing must not cost memory");
        }
    }
}

#[test]
fn all_ways_to_compute_give_the_same_bits() {
    let pools = [Pool::new(1).unwrap(), Pool::new(3).unwrap()];
    let mut rng = Rng(2);
    for ty in WeightType::ALL.iter().copied() {
        let (rows, cols, tokens) = (37, width(ty), 23);
        let source = random_weights(ty, rows, cols, &mut rng);
        let weights = PackedMatrix::pack(ty, rows, cols, &source).unwrap();
        let x = random_activations(tokens * cols, &mut rng);
        let expected = bits(&multiply(Isa::Scalar, &pools[0], &weights, &x, 1));
        assert!(expected.iter().any(|v| *v != expected[0]), "{ty}: all results are equal");
        for isa in isas() {
            for pool in &pools {
                for batch in [1, 3, 6, 23] {
                    let found = bits(&multiply(isa, pool, &weights, &x, batch));
                    let first = found.iter().zip(&expected).position(|(a, b)| a != b);
                    assert_eq!(first, None, "{ty}, {isa}, {} workers, batch {batch}", pool.workers());
                }
            }
        }
    }
}

#[test]
fn wide_rows_and_many_tokens_give_the_same_bits() {
    let pool = Pool::new(2).unwrap();
    let mut rng = Rng(7);
    use WeightType::*;
    for ty in [F32, F16, BF16, Q8_0, Q4_1, Q5_1, IQ4_NL, MXFP4, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS, IQ3_S] {
        // More columns than the kernels take at once, more tokens than share a block, an odd number of groups.
        let cols = match ty {
            F32 => 2500,
            BF16 => 2501,
            _ => 2304,
        };
        let (rows, tokens) = (83, 75);
        let source = random_weights(ty, rows, cols, &mut rng);
        let weights = PackedMatrix::pack(ty, rows, cols, &source).unwrap();
        let x = random_activations(tokens * cols, &mut rng);
        for isa in isas().into_iter().filter(|isa| *isa != Isa::Scalar) {
            let expected = bits(&multiply(isa, &pool, &weights, &x, 1));
            for batch in [16, 75] {
                let found = bits(&multiply(isa, &pool, &weights, &x, batch));
                let first = found.iter().zip(&expected).position(|(a, b)| a != b);
                assert_eq!(first, None, "{ty}, {isa}, batch {batch}");
            }
        }
    }
}

#[test]
fn the_largest_codes_give_the_same_bits() {
    let pool = Pool::new(1).unwrap();
    let mut rng = Rng(10);
    // Enough tokens for expanded codes, and one more.
    let (rows, cols, tokens) = (21, 512, 17);
    for ty in WeightType::ALL.iter().copied().filter(|ty| ActForm::of(*ty) == ActForm::Int8) {
        // All products of a sum are as large as they can be, of both signs.
        let x: Vec<f32> = (0..tokens * cols).map(|i| if i / cols % 2 == 0 { 1.0 } else { -1.0 }).collect();
        for byte in [0x00, 0x7f, 0x80, 0xff] {
            let source = with_scales(ty, vec![byte; rows * ty.row_bytes(cols).unwrap()], &mut rng);
            let weights = PackedMatrix::pack(ty, rows, cols, &source).unwrap();
            let expected = bits(&multiply(Isa::Scalar, &pool, &weights, &x, 1));
            for isa in isas() {
                for batch in [1, tokens] {
                    let found = bits(&multiply(isa, &pool, &weights, &x, batch));
                    assert!(found == expected, "{ty}, {isa}, byte {byte}, batch {batch}");
                }
            }
        }
    }
}

/// What the kernels multiply with, as values: `x` itself, the nearest bf16, or int8 times the scale of its block.
fn activations_as_quantised(weights: &PackedMatrix, x: &[f32]) -> Vec<f64> {
    let form = weights.form();
    match form {
        ActForm::Float => return x.iter().map(|v| f64::from(*v)).collect(),
        ActForm::Bf16 => return x.iter().map(|v| half::bf16::from_f32(*v).to_f64()).collect(),
        ActForm::Int8 => (),
    }
    let mut values = Vec::new();
    for block in x.chunks(form.block()) {
        let d = block.iter().fold(0f32, |m, v| m.max(v.abs())) / 127.0;
        let inverse = 1.0 / d;
        // With blocks of 32, the scale of a stored Q8_0 block.
        let d = if weights.ty().block_elements() == 32 { half::f16::from_f32(d).to_f32() } else { d };
        values.extend(block.iter().map(|v| f64::from((v * inverse).round_ties_even()) * f64::from(d)));
    }
    values
}

#[test]
fn results_agree_with_decoded_weights() {
    let pool = Pool::new(1).unwrap();
    let mut rng = Rng(3);
    for ty in WeightType::ALL.iter().copied() {
        let (rows, cols, tokens) = (19, width(ty), 5);
        let source = random_weights(ty, rows, cols, &mut rng);
        let weights = PackedMatrix::pack(ty, rows, cols, &source).unwrap();
        let x = random_activations(tokens * cols, &mut rng);
        let mut decoded = vec![0f32; rows * cols];
        ty.decode(&source, &mut decoded).unwrap();
        let out = multiply(Isa::best(), &pool, &weights, &x, tokens);
        let mut worst = 0f64;
        for (t, x) in x.chunks(cols).enumerate() {
            let x = activations_as_quantised(&weights, x);
            for (r, w) in decoded.chunks(cols).enumerate() {
                let products = || w.iter().zip(&x).map(|(w, x)| f64::from(*w) * x);
                let (expected, scale): (f64, f64) = (products().sum(), products().map(f64::abs).sum());
                assert!(scale > 0.0, "{ty}: nothing to compare");
                worst = worst.max((f64::from(out[t * rows + r]) - expected).abs() / scale);
            }
        }
        println!("{ty}: {worst:.1e} of the sum of absolute products");
        assert!(worst <= 1e-6, "{ty}: {worst:.1e}");
    }
}

#[test]
fn several_matrices_share_one_call() {
    let pool = Pool::new(2).unwrap();
    let mut rng = Rng(4);
    let (cols, tokens) = (512, 9);
    let x = random_activations(tokens * cols, &mut rng);
    let types = [(WeightType::Q4_K, 160), (WeightType::Q6_K, 48), (WeightType::Q5_K, 1000)];
    let weights = types.map(|(ty, rows)| {
        PackedMatrix::pack(ty, rows, cols, &random_weights(ty, rows, cols, &mut rng)).unwrap()
    });
    let isa = Isa::best();
    let mut acts = Activations::new(isa, ActForm::Int8, tokens, cols).unwrap();
    acts.fill(&x).unwrap();
    // Results side by side in one buffer of wider rows, as a fused projection would have them.
    let stride = 1210;
    let mut out = vec![-1.0; (tokens - 1) * stride + 1000];
    let mut outs: Vec<Vec<f32>> = types.iter().map(|(_, rows)| vec![0.0; tokens * rows]).collect();
    {
        let jobs =
            weights.iter().zip(&mut outs).map(|(w, out)| Linear { weights: w.into(), out, stride: w.rows() });
        linear(&pool, &acts, jobs).unwrap();
    }
    linear(&pool, &acts, [Linear { weights: (&weights[2]).into(), out: &mut out, stride }]).unwrap();
    for (w, found) in weights.iter().zip(&outs) {
        assert_eq!(bits(found), bits(&multiply(isa, &pool, w, &x, 1)));
    }
    for (t, row) in out.chunks(stride).enumerate() {
        assert_eq!(row[..1000], outs[2][t * 1000..(t + 1) * 1000]);
        assert!(row[1000..].iter().all(|v| *v == -1.0), "wrote beyond the rows");
    }
}

/// GGUF bytes of a matrix, as a file has them; reading fails from row `end` on.
struct Bytes<'a> {
    ty: WeightType,
    rows: usize,
    cols: usize,
    bytes: &'a [u8],
    end: usize,
}

impl StoredMatrix for Bytes<'_> {
    fn ty(&self) -> WeightType {
        self.ty
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn cols(&self) -> usize {
        self.cols
    }

    fn read(&self, first: usize, bytes: &mut [u8]) -> Result<(), RunError> {
        let row_bytes = self.bytes.len() / self.rows;
        if first * row_bytes + bytes.len() > self.end * row_bytes {
            return Err(RunError::Input(format!("row {first}")));
        }
        bytes.copy_from_slice(&self.bytes[first * row_bytes..][..bytes.len()]);
        Ok(())
    }
}

#[test]
fn matrices_that_stay_in_their_file_give_the_same_bits() {
    let pool = Pool::new(2).unwrap();
    let mut rng = Rng(8);
    // Rows for several pieces, the last of them short.
    let (rows, cols) = (1500, 512);
    for ty in [WeightType::Q4_K, WeightType::Q8_0, WeightType::BF16, WeightType::IQ2_XS] {
        let bytes = random_weights(ty, rows, cols, &mut rng);
        let packed = PackedMatrix::pack(ty, rows, cols, &bytes).unwrap();
        let stored = Bytes { ty, rows, cols, bytes: &bytes, end: rows };
        for tokens in [1, 3, 70] {
            let x = random_activations(tokens * cols, &mut rng);
            let mut acts = Activations::new(Isa::best(), packed.form(), tokens, cols).unwrap();
            acts.fill(&x).unwrap();
            let mut out = vec![f32::NAN; tokens * rows];
            linear(&pool, &acts, [Linear { weights: Weights::Stored(&stored), out: &mut out, stride: rows }])
                .unwrap();
            assert_eq!(bits(&out), bits(&multiply(Isa::best(), &pool, &packed, &x, tokens)), "{ty} {tokens}");
        }
    }
}

#[test]
fn a_matrix_that_cannot_be_read_is_an_error() {
    let pool = Pool::new(2).unwrap();
    let (ty, rows, cols) = (WeightType::Q8_0, 1500, 512);
    let bytes = random_weights(ty, rows, cols, &mut Rng(9));
    let stored = Bytes { ty, rows, cols, bytes: &bytes, end: 900 };
    let acts = Activations::new(Isa::best(), ActForm::Int8, 2, cols).unwrap();
    let mut out = vec![0.0; 2 * rows];
    let run =
        linear(&pool, &acts, [Linear { weights: Weights::Stored(&stored), out: &mut out, stride: rows }]);
    assert!(matches!(run, Err(RunError::Input(_))), "{run:?}");
}

#[test]
fn values_that_are_not_finite_reach_the_result_and_no_other_token() {
    let pool = Pool::new(1).unwrap();
    let mut rng = Rng(5);
    let cols = 512;
    for ty in [WeightType::Q8_0, WeightType::Q4_1, WeightType::Q6_K, WeightType::F16, WeightType::BF16] {
        let weights = PackedMatrix::pack(ty, 16, cols, &random_weights(ty, 16, cols, &mut rng)).unwrap();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for isa in isas() {
                let mut x = random_activations(3 * cols, &mut rng);
                x[cols + 77] = bad;
                let out = multiply(isa, &pool, &weights, &x, 3);
                for (i, v) in out.iter().enumerate() {
                    assert_eq!(v.is_finite(), i / 16 != 1, "{ty} {isa} {bad} {i}: {v}");
                }
            }
        }
    }
}

#[test]
fn tiny_and_zero_activations_are_zero() {
    let pool = Pool::new(1).unwrap();
    let mut rng = Rng(6);
    let weights =
        PackedMatrix::pack(WeightType::Q5_0, 16, 64, &random_weights(WeightType::Q5_0, 16, 64, &mut rng));
    for isa in isas() {
        for value in [0.0, -0.0, 1e-45, 1e-37, f32::MIN_POSITIVE] {
            let out = multiply(isa, &pool, weights.as_ref().unwrap(), &[value; 64], 1);
            assert!(out.iter().all(|v| *v == 0.0), "{isa} {value}: {out:?}");
        }
    }
}

/// Instructions that multiply pairs of bf16 take subnormal numbers for zero, and round large sums.
#[test]
fn bf16_of_any_size_give_the_same_bits() {
    let pool = Pool::new(1).unwrap();
    let mut rng = Rng(11);
    let (rows, cols, tokens) = (16, 301, 9);
    // Exponents of 8 bits from the lowest on: subnormal ones, those of products about 2^-126, ordinary and huge ones.
    for lowest in [0u64, 1, 55, 64, 71, 110, 180, 240] {
        let mut values = |count: usize| -> Vec<u32> {
            let value = |_| {
                let (sign, exponent) = (rng.next() >> 63, lowest + (rng.next() >> 40) % 15);
                (sign << 31 | exponent << 23 | ((rng.next() >> 41) % (1 << 23))) as u32
            };
            (0..count).map(value).collect()
        };
        let source: Vec<u8> =
            values(rows * cols).iter().flat_map(|w| ((w >> 16) as u16).to_le_bytes()).collect();
        // Every second pair cancels the one before it, but for a rest.
        let mut x: Vec<f32> = values(tokens * cols).into_iter().map(f32::from_bits).collect();
        for four in x.as_chunks_mut::<4>().0 {
            four[2] = -four[0];
        }
        let weights = PackedMatrix::pack(WeightType::BF16, rows, cols, &source).unwrap();
        let expected = multiply(Isa::Scalar, &pool, &weights, &x, 1);
        let kept = lowest + 14 >= 71;
        assert_eq!(expected.iter().any(|v| *v != 0.0), kept, "{lowest}");
        assert!(expected.iter().all(|v| !v.is_subnormal()), "{lowest}");
        for isa in isas() {
            for batch in [1, tokens] {
                let found = multiply(isa, &pool, &weights, &x, batch);
                for (a, b) in found.iter().zip(&expected) {
                    let same = a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
                    assert!(same, "{isa}, exponents from {lowest}: {a:e} and {b:e}");
                }
            }
        }
    }
}

#[test]
fn wrong_shapes_are_errors() {
    let isa = Isa::best();
    assert!(matches!(
        PackedMatrix::zeroed(WeightType::Q4_K, 4, 100),
        Err(CpuError::MatrixShape { ty: WeightType::Q4_K, rows: 4, cols: 100 })
    ));
    assert!(matches!(
        PackedMatrix::zeroed(WeightType::F32, usize::MAX / 2, 1 << 20),
        Err(CpuError::MatrixShape { .. })
    ));
    assert!(matches!(
        PackedMatrix::pack(WeightType::Q8_0, 2, 32, &[0; 67]),
        Err(CpuError::Length { expected: 68, found: 67, .. })
    ));
    assert!(matches!(Activations::new(isa, ActForm::Int8, 1, 33), Err(CpuError::Length { .. })));
    let mut acts = Activations::new(isa, ActForm::Int8, 2, 64).unwrap();
    assert!(matches!(acts.fill(&[0.0; 127]), Err(CpuError::Length { expected: 128, found: 127, .. })));
    assert!(matches!(acts.set_tokens(3), Err(CpuError::Length { expected: 2, found: 3, .. })));
    let weights = |ty, cols| PackedMatrix::zeroed(ty, 16, cols).unwrap();
    let run = |weights: &PackedMatrix, len: usize, stride: usize| {
        let mut out = vec![0.0; len];
        LinearSet::new(&acts, [Linear { weights: weights.into(), out: &mut out, stride }], 1).map(|_| ())
    };
    assert!(matches!(run(&weights(WeightType::Q8_0, 96), 32, 16), Err(CpuError::Length { .. })));
    assert!(matches!(run(&weights(WeightType::F32, 64), 32, 16), Err(CpuError::Form { .. })));
    assert!(matches!(run(&weights(WeightType::BF16, 64), 32, 16), Err(CpuError::Form { .. })));
    assert!(matches!(run(&weights(WeightType::Q8_0, 64), 31, 16), Err(CpuError::Length { .. })));
    assert!(matches!(run(&weights(WeightType::Q8_0, 64), 32, 15), Err(CpuError::Length { .. })));
    assert!(run(&weights(WeightType::Q8_0, 64), 32, 16).is_ok());
    let missing = Isa::ALL.into_iter().find(|isa| !isa.is_available()).unwrap();
    assert!(matches!(Activations::new(missing, ActForm::Float, 1, 1), Err(CpuError::MissingIsa { .. })));
    assert!(matches!(Isa::from_name("mmx"), Err(CpuError::UnknownIsa { .. })));
    assert_eq!(Isa::from_name("avx2"), Ok(Isa::Avx2));
}
