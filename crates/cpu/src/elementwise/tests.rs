use super::*;
use crate::testing::{Random, bits, isas, nmse};

const ALL: [Activation; 7] = [
    Activation::Silu,
    Activation::Gelu,
    Activation::GeluErf,
    Activation::GeluQuick,
    Activation::Relu,
    Activation::ReluSquared,
    Activation::Sigmoid,
];

fn exact(function: Activation, x: f32) -> f64 {
    let v = f64::from(x);
    // Q(a) by Simpson's rule: fine enough for f32 and independent of the kernel.
    let tail = |a: f64| {
        let (n, width) = (2000, 12.0);
        let h = width / f64::from(n);
        let density = |t: f64| (-t * t / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let weight = |i: i32| if i == 0 || i == n { 1.0 } else { f64::from(2 + 2 * (i % 2)) };
        (0..=n).map(|i| weight(i) * density(a + h * f64::from(i))).sum::<f64>() * h / 3.0
    };
    match function {
        Activation::Silu => v / (1.0 + (-v).exp()),
        Activation::Gelu => {
            0.5 * v * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (v + 0.044715 * v.powi(3))).tanh())
        }
        Activation::GeluErf => v * (1.0 - tail(v)),
        Activation::GeluQuick => v / (1.0 + (-1.702 * v).exp()),
        Activation::Relu => v.max(0.0),
        Activation::ReluSquared => v.max(0.0).powi(2),
        Activation::Sigmoid => 1.0 / (1.0 + (-v).exp()),
    }
}

#[test]
fn activations_follow_their_formulas_everywhere_alike() {
    for n in [0, 1, 15, 16, 17, 100] {
        let mut random = Random::new(n as u64);
        let (x, up): (Vec<f32>, Vec<f32>) = (0..n).map(|_| (3.0 * random.normal(), random.normal())).unzip();
        for function in ALL {
            let expected: Vec<f64> = x.iter().map(|v| exact(function, *v)).collect();
            let gated: Vec<f64> = expected.iter().zip(&up).map(|(e, u)| e * f64::from(*u)).collect();
            let mut first = None;
            for isa in isas() {
                let mut out = vec![7.0; n];
                activate(isa, function, &x, &mut out).unwrap();
                assert!(nmse(&out, &expected) < 1e-12, "{function:?}");
                let mut place = x.clone();
                activate_in_place(isa, function, &mut place);
                assert_eq!(bits(&place), bits(&out));
                let mut both = vec![7.0; n];
                glu(isa, function, &x, &up, &mut both).unwrap();
                assert!(nmse(&both, &gated) < 1e-12, "{function:?}");
                let mut place = x.clone();
                glu_in_place(isa, function, &mut place, &up).unwrap();
                assert_eq!(bits(&place), bits(&both));
                let found = (bits(&out), bits(&both));
                assert_eq!(*first.get_or_insert(found.clone()), found, "{isa} {function:?}");
            }
        }
    }
}

#[test]
fn the_clamped_unit_follows_its_formula_everywhere_alike() {
    let unit = ClampedGlu { alpha: 1.702, limit: 7.0 };
    for n in [1, 16, 100] {
        let mut random = Random::new(n as u64);
        // Some are beyond the limit on either side.
        let (mut gate, up): (Vec<f32>, Vec<f32>) =
            (0..n).map(|_| (6.0 * random.normal(), 6.0 * random.normal())).unzip();
        gate[0] = 50.0;
        let exact = |(g, u): (&f32, &f32)| {
            let (g, u) = (f64::from(*g).min(7.0), f64::from(*u).clamp(-7.0, 7.0));
            g / (1.0 + (-f64::from(1.702f32) * g).exp()) * (u + 1.0)
        };
        let expected: Vec<f64> = gate.iter().zip(&up).map(exact).collect();
        let mut first = None;
        for isa in isas() {
            let mut out = vec![0.0; n];
            glu_clamped(isa, unit, &gate, &up, &mut out).unwrap();
            assert!(nmse(&out, &expected) < 1e-12, "{isa}");
            assert_eq!(*first.get_or_insert(bits(&out)), bits(&out), "{isa}");
        }
    }
    assert!(glu_clamped(Isa::Scalar, unit, &[1.0], &[1.0, 2.0], &mut [0.0]).is_err());
}

#[test]
fn arithmetic_is_exact() {
    let mut random = Random::new(1);
    let (a, b) = (random.vector(77), random.vector(77));
    for isa in isas() {
        let mut out = vec![0.0; 77];
        add(isa, &a, &b, &mut out).unwrap();
        assert!(out.iter().zip(a.iter().zip(&b)).all(|(o, (a, b))| *o == a + b));
        let mut place = a.clone();
        add_in_place(isa, &mut place, &b).unwrap();
        assert_eq!(place, out);
        mul(isa, &a, &b, &mut out).unwrap();
        assert!(out.iter().zip(a.iter().zip(&b)).all(|(o, (a, b))| *o == a * b));
        scale(isa, 0.3, &a, &mut out).unwrap();
        assert!(out.iter().zip(&a).all(|(o, a)| *o == a * 0.3));
        let mut place = a.clone();
        scale_in_place(isa, 0.3, &mut place);
        assert_eq!(place, out);
        softcap(isa, 2.0, &a, &mut out).unwrap();
        let expected: Vec<f64> = a.iter().map(|v| 2.0 * (f64::from(*v) / 2.0).tanh()).collect();
        assert!(nmse(&out, &expected) < 1e-13);
        let mut place = a.clone();
        softcap_in_place(isa, 2.0, &mut place);
        assert_eq!(place, out);
        sigmoid(isa, &a, &mut out).unwrap();
        let expected: Vec<f64> = a.iter().map(|v| 1.0 / (1.0 + (-f64::from(*v)).exp())).collect();
        assert!(nmse(&out, &expected) < 1e-13);
    }
}

#[test]
fn values_between_two_and_scores_of_heads_follow_their_formulas_everywhere_alike() {
    let mut random = Random::new(5);
    let [x, y, m, w] = [(); 4].map(|()| random.vector(75));
    let wide = |v: &[f32], i: usize| f64::from(v[i]);
    for by in [[Some(&m[..]), Some(&w[..])], [Some(&m[..]), None], [None, Some(&w[..])]] {
        let factor = |i: usize| by.iter().flatten().map(|m| wide(m, i)).sum::<f64>();
        let expected: Vec<f64> =
            (0..75).map(|i| wide(&x, i) + (wide(&y, i) - wide(&x, i)) * factor(i)).collect();
        let mut first = None;
        for isa in isas() {
            let mut out = vec![0.0; 75];
            lerp(isa, &x, &y, by, &mut out).unwrap();
            assert!(nmse(&out, &expected) < 1e-12, "{isa}");
            assert_eq!(*first.get_or_insert(bits(&out)), bits(&out), "{isa}");
        }
    }
    let score =
        |h: usize| (25 * h..25 * h + 25).map(|i| wide(&x, i) * wide(&y, i) * wide(&w, i)).sum::<f64>();
    let expected: Vec<f64> = (0..75).map(|i| wide(&m, i) * score(i / 25)).collect();
    let mut first = None;
    for isa in isas() {
        let mut out = vec![0.0; 75];
        bonus(isa, 3, [&x, &y, &m], &w, &mut out).unwrap();
        assert!(nmse(&out, &expected) < 1e-12, "{isa}");
        assert_eq!(*first.get_or_insert(bits(&out)), bits(&out), "{isa}");
    }
    assert!(lerp(Isa::Scalar, &x, &y[1..], [None, None], &mut [0.0; 75]).is_err());
    assert!(bonus(Isa::Scalar, 2, [&x, &y, &m], &w, &mut [0.0; 75]).is_err());
}

#[test]
fn wrong_lengths_are_errors() {
    let isa = Isa::Scalar;
    let (x, mut y) = ([1.0; 4], [0.0; 3]);
    let error = CpuError::Length { what: "elements of the result", expected: 4, found: 3 };
    assert_eq!(activate(isa, Activation::Silu, &x, &mut y), Err(error));
    assert!(glu(isa, Activation::Silu, &x, &[0.0; 3], &mut [0.0; 4]).is_err());
    assert!(glu(isa, Activation::Silu, &x, &x, &mut y).is_err());
    assert!(glu_in_place(isa, Activation::Silu, &mut y, &x).is_err());
    assert!(add(isa, &x, &[0.0; 3], &mut [0.0; 4]).is_err());
    assert!(mul(isa, &x, &[0.0; 3], &mut [0.0; 4]).is_err());
    assert!(add_in_place(isa, &mut y, &x).is_err());
    assert!(scale(isa, 1.0, &x, &mut y).is_err());
    assert!(softcap(isa, 1.0, &x, &mut y).is_err());
    assert!(sigmoid(isa, &x, &mut y).is_err());
}

#[test]
fn gathers_rows() {
    let x = [1, 2, 3, 4, 5, 6];
    let mut out = [0; 6];
    gather(&x, 2, &[2, 0, 2], &mut out).unwrap();
    assert_eq!(out, [5, 6, 1, 2, 5, 6]);
    let missing = |found| CpuError::Index { what: "row", found, limit: 3 };
    assert_eq!(gather(&x, 2, &[3], &mut out[..2]), Err(missing(3)));
    assert_eq!(gather(&x, 2, &[-1], &mut out[..2]), Err(missing(-1)));
    assert!(gather(&x, 2, &[0], &mut out).is_err());
}
