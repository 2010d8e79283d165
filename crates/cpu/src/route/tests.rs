use super::*;
use crate::testing::{Random, bits, isas};

fn attributes(used: u32, gating: Gating) -> Route {
    Route { used, gating, normalize: false, scale: 1.0, bias: None }
}

/// By sorting, with probabilities from the definitions.
fn exact(r: &Route, row: &[f32], bias: Option<&[f32]>) -> Vec<(i32, f64)> {
    let e = |s: f32| f64::from(s).exp();
    let all: f64 = row.iter().map(|s| e(*s)).sum();
    let gate = |i: usize| match r.gating {
        Gating::Softmax => e(row[i]) / all,
        Gating::Sigmoid => e(row[i]) / (1.0 + e(row[i])),
        Gating::SoftmaxChosen => f64::from(row[i]),
    };
    let key = |i: usize| gate(i) + bias.map_or(0.0, |b| f64::from(b[i]));
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|a, b| key(*b).partial_cmp(&key(*a)).unwrap().then(a.cmp(b)));
    order.truncate(r.used as usize);
    let weight = |i: usize| if r.gating == Gating::SoftmaxChosen { e(row[i]) } else { gate(i) };
    let chosen: f64 = order.iter().map(|i| weight(*i)).sum();
    let divide = r.normalize || r.gating == Gating::SoftmaxChosen;
    let factor = f64::from(r.scale) / if divide { chosen } else { 1.0 };
    order.iter().map(|i| (*i as i32, weight(*i) * factor)).collect()
}

#[test]
fn the_best_experts_are_chosen() {
    let mut random = Random::new(11);
    for (experts, used) in [(4, 1), (8, 2), (64, 8), (5, 5)] {
        let scores = random.vector(3 * experts);
        let bias = random.vector(experts);
        for gating in [Gating::Softmax, Gating::Sigmoid, Gating::SoftmaxChosen] {
            for (normalize, scale, bias) in
                [(false, 1.0, None), (true, 2.5, None), (true, 1.0, Some(&bias[..]))]
            {
                let r = Route { normalize, scale, ..attributes(used as u32, gating) };
                let (mut ids, mut weights) = (vec![0; 3 * used], vec![0.0; 3 * used]);
                route(&r, experts, &scores, bias, &mut ids, &mut weights).unwrap();
                for (row, (ids, weights)) in
                    scores.chunks(experts).zip(ids.chunks(used).zip(weights.chunks(used)))
                {
                    for ((id, weight), (i, w)) in ids.iter().zip(weights).zip(exact(&r, row, bias)) {
                        assert_eq!(*id, i);
                        assert!((f64::from(*weight) - w).abs() <= 1e-6 * w.abs());
                    }
                }
            }
        }
    }
}

#[test]
fn equals_go_to_the_lower_number() {
    let (mut ids, mut weights) = ([0; 3], [0.0; 3]);
    let scores = [0.5, 1.0, f32::NEG_INFINITY, 1.0, 0.5];
    route(&attributes(3, Gating::Softmax), 5, &scores, None, &mut ids, &mut weights).unwrap();
    assert_eq!(ids, [1, 3, 0]);
}

#[test]
fn sums_are_weighted() {
    let mut random = Random::new(2);
    let (rows, used, cols) = (3, 4, 37);
    let (y, weights) = (random.vector(rows * used * cols), random.vector(rows * used));
    let mut first = None;
    for isa in isas() {
        let mut out = vec![9.0; rows * cols];
        combine(isa, cols, used, &y, &weights, &mut out).unwrap();
        for (at, out) in out.iter().enumerate() {
            let (r, c) = (at / cols, at % cols);
            let term = |s: usize| f64::from(y[(r * used + s) * cols + c]) * f64::from(weights[r * used + s]);
            assert!((f64::from(*out) - (0..used).map(term).sum::<f64>()).abs() < 1e-6);
        }
        assert_eq!(*first.get_or_insert(bits(&out)), bits(&out));
    }
}

#[test]
fn wrong_sizes_are_errors() {
    let r = attributes(2, Gating::Softmax);
    let scores = [0.0; 8];
    let run =
        |experts, n: usize, m: usize| route(&r, experts, &scores, None, &mut vec![0; n], &mut vec![0.0; m]);
    assert_eq!(run(4, 4, 4), Ok(()));
    assert!(run(1, 16, 16).is_err());
    assert!(run(3, 4, 4).is_err());
    assert!(run(4, 3, 4).is_err());
    assert!(run(4, 4, 5).is_err());
    assert!(route(&r, 4, &scores, Some(&[0.0; 3]), &mut [0; 4], &mut [0.0; 4]).is_err());
    assert!(combine(Isa::Scalar, 2, 2, &[0.0; 8], &[0.0; 4], &mut [0.0; 4]).is_ok());
    assert!(combine(Isa::Scalar, 2, 2, &[0.0; 7], &[0.0; 4], &mut [0.0; 4]).is_err());
    assert!(combine(Isa::Scalar, 2, 2, &[0.0; 8], &[0.0; 5], &mut [0.0; 4]).is_err());
    assert!(combine(Isa::Scalar, 2, 2, &[0.0; 8], &[0.0; 4], &mut [0.0; 5]).is_err());
}
