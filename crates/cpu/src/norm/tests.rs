use super::*;
use crate::testing::{Random, bits, isas, nmse};

fn params(kind: NormKind, cols: usize, groups: u32) -> NormParams<'static> {
    let norm = Norm { kind, eps: 1e-5, groups, weight: None, bias: None };
    NormParams { norm, cols, weight: None, bias: None }
}

/// Straight from the formulas, in f64.
fn exact(p: &NormParams<'_>, x: &[f32]) -> Vec<f64> {
    let part = p.cols / p.norm.groups as usize;
    let mut y = Vec::new();
    for group in x.chunks(part) {
        let n = part as f64;
        let mean: f64 = match p.norm.kind {
            NormKind::Rms | NormKind::L2 => 0.0,
            NormKind::Layer => group.iter().map(|v| f64::from(*v)).sum::<f64>() / n,
        };
        let squares = group.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>();
        let root = match p.norm.kind {
            NormKind::Rms | NormKind::Layer => (squares / n + f64::from(p.norm.eps)).sqrt(),
            NormKind::L2 => squares.sqrt().max(f64::from(p.norm.eps)),
        };
        y.extend(group.iter().enumerate().map(|(i, v)| {
            let at = |v: Option<&[f32]>, or: f64| v.map_or(or, |v| f64::from(v[i]));
            (f64::from(*v) - mean) / root * at(p.weight, 1.0) + at(p.bias, 0.0)
        }));
    }
    y
}

#[test]
fn norms_follow_their_formulas_everywhere_alike() {
    let mut random = Random::new(3);
    for (cols, groups) in [(64, 1), (576, 9), (24, 2), (7, 1), (1, 1), (2048, 1), (100, 4), (48, 1)] {
        let part = cols / groups;
        let (weight, bias) = (random.vector(part), random.vector(part));
        let x: Vec<f32> = (0..3 * cols).map(|_| random.normal() + 0.5).collect();
        let summand = random.vector(3 * cols);
        for kind in [NormKind::Rms, NormKind::Layer, NormKind::L2] {
            for with in 0..4 {
                let p = NormParams {
                    weight: (with & 1 == 1).then_some(&weight[..]),
                    bias: (with & 2 == 2).then_some(&bias[..]),
                    ..params(kind, cols, groups as u32)
                };
                let mut first = None;
                for isa in isas() {
                    let mut y = vec![0.0; x.len()];
                    norm(isa, &p, &x, &mut y).unwrap();
                    assert!(nmse(&y, &exact(&p, &x)) < 1e-12, "{cols} {groups} {kind:?} {with}");
                    assert_eq!(*first.get_or_insert(bits(&y)), bits(&y), "{isa}");
                    let mut place = x.clone();
                    norm_in_place(isa, &p, &mut place).unwrap();
                    assert_eq!(bits(&place), bits(&y));
                    // Row by row is the same.
                    let mut row = vec![0.0; cols];
                    norm(isa, &p, &x[cols..2 * cols], &mut row).unwrap();
                    assert_eq!(bits(&row), bits(&y[cols..2 * cols]));

                    let mut sums = x.clone();
                    add_norm(isa, &p, &mut sums, &summand, &mut y).unwrap();
                    assert!(sums.iter().zip(x.iter().zip(&summand)).all(|(s, (x, r))| *s == x + r));
                    let mut again = vec![0.0; x.len()];
                    norm(isa, &p, &sums, &mut again).unwrap();
                    assert_eq!(bits(&again), bits(&y));
                }
            }
        }
    }
}

#[test]
fn a_row_of_zeros_stays_finite() {
    for isa in isas() {
        for kind in [NormKind::Rms, NormKind::Layer, NormKind::L2] {
            let mut y = [1.0; 40];
            norm(isa, &params(kind, 40, 1), &[0.0; 40], &mut y).unwrap();
            assert_eq!(y, [0.0; 40]);
        }
    }
}

#[test]
fn wrong_sizes_are_errors() {
    let p = params(NormKind::Rms, 8, 3);
    let error = CpuError::Length { what: "columns in equal groups", expected: 9, found: 8 };
    assert_eq!(norm(Isa::Scalar, &p, &[0.0; 8], &mut [0.0; 8]), Err(error));
    let p = params(NormKind::Rms, 8, 2);
    assert!(norm(Isa::Scalar, &p, &[0.0; 12], &mut [0.0; 12]).is_err());
    assert!(norm(Isa::Scalar, &p, &[0.0; 8], &mut [0.0; 16]).is_err());
    assert!(norm_in_place(Isa::Scalar, &NormParams { weight: Some(&[0.0; 8]), ..p }, &mut [0.0; 8]).is_err());
    assert!(add_norm(Isa::Scalar, &p, &mut [0.0; 8], &[0.0; 16], &mut [0.0; 8]).is_err());
    for bad in [params(NormKind::Rms, 0, 1), params(NormKind::Rms, 8, 0)] {
        assert!(norm(Isa::Scalar, &bad, &[], &mut []).is_err());
    }
}
