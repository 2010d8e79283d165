use wootz_graph::op::Scan;
use wootz_graph::{CacheId, StateRun, WeightId};

use super::*;
use crate::Isa;
use crate::testing::{Random, bits, isas, nmse};

/// Runs of two sequences, whole or cut: (tokens in all, steps).
fn steps(cut: bool) -> Vec<Vec<StateRun>> {
    let run = |tokens: Range<usize>, from, writes: &[(usize, u32)]| StateRun {
        tokens,
        from,
        writes: writes.to_vec(),
    };
    if !cut {
        return vec![vec![run(0..40, None, &[(32, 5), (40, 1)]), run(40..43, None, &[(43, 2)])]];
    }
    vec![
        vec![run(0..7, None, &[(7, 5)]), run(40..41, None, &[(41, 2)])],
        vec![run(7..8, Some(5), &[(8, 5)])],
        vec![run(8..34, Some(5), &[(32, 5), (34, 1)]), run(41..43, Some(2), &[(43, 2)])],
        vec![run(34..40, Some(1), &[(40, 1)])],
    ]
}

/// Results and states on every instruction set, with one thread and three, whole and cut: the same bits.
fn same_everywhere(
    elements: usize,
    results: usize,
    run: impl Fn(Isa, &Pool, &mut StateCache, &[StateRun], &mut [f32]),
) -> Vec<f32> {
    let mut first: Option<(Vec<u32>, Vec<u8>)> = None;
    let mut result = Vec::new();
    for isa in isas() {
        for threads in [1, 3] {
            let pool = Pool::new(threads).unwrap();
            for cut in [false, true] {
                let mut states = StateCache::new(elements, 6).unwrap();
                let mut y = vec![f32::NAN; results];
                for runs in steps(cut) {
                    run(isa, &pool, &mut states, &runs, &mut y);
                }
                let found = (bits(&y), states.blocks().all().to_vec());
                assert!(*first.get_or_insert(found.clone()) == found, "{isa}, {threads} threads, cut {cut}");
                result = y;
            }
        }
    }
    result
}

#[test]
fn convolutions_give_the_same_bits_however_they_run() {
    for (channels, width) in [(150, 4), (16, 2), (5, 9)] {
        let mut random = Random::new(channels as u64);
        let (weight, bias) = (random.vector(channels * width), random.vector(channels));
        let x = random.vector(43 * channels);
        let weights = ConvWeights::new(&weight, width, Some(&bias)).unwrap();
        let y = same_everywhere(weights.state(), x.len(), |isa, pool, states, runs, y| {
            weights.run(isa, pool, states, runs, &x, y).unwrap();
        });
        let expected = |t: usize, c: usize| {
            let first = if t < 40 { 0 } else { 40 };
            let seen = (0..width).filter(|j| t + j >= first + width - 1);
            let product = |j: usize| {
                f64::from(weight[c * width + j]) * f64::from(x[(t + j + 1 - width) * channels + c])
            };
            f64::from(bias[c]) + seen.map(product).sum::<f64>()
        };
        let expected: Vec<f64> =
            (0..43).flat_map(|t| (0..channels).map(move |c| (t, c))).map(|(t, c)| expected(t, c)).collect();
        assert!(nmse(&y, &expected) < 1e-13);
    }
}

fn weights(heads: u32, head_dim: u32, state: u32, groups: u32, rates: u32) -> ScanWeights {
    let (cache, a, d) = (CacheId(0), WeightId(0), WeightId(0));
    let mut random = Random::new(u64::from(heads));
    let rates: Vec<f32> = (0..heads * rates).map(|_| -random.normal().abs()).collect();
    let scan = Scan { cache, heads, head_dim, state, groups, a, d };
    ScanWeights::new(&scan, &rates, &random.vector(heads as usize)).unwrap()
}

#[test]
fn scans_give_the_same_bits_however_they_run() {
    for (heads, head_dim, state, groups, rates) in [(70, 1, 16, 1, 16), (6, 24, 7, 3, 1), (2, 64, 32, 1, 1)] {
        let weights = weights(heads, head_dim, state, groups, rates);
        let mut random = Random::new(7);
        let (x, dt) = (random.vector(43 * weights.channels()), random.vector(43 * heads as usize));
        let bc = random.vector(43 * 2 * (groups * state) as usize);
        let inputs = ScanInputs { x: &x, dt: &dt, bc: &bc };
        let elements = weights.channels() * state as usize;
        let y = same_everywhere(elements, x.len(), |isa, pool, states, runs, y| {
            weights.run(isa, pool, states, runs, inputs, y).unwrap();
        });
        // That they are right is shown by the operation cases; here that nothing is left out.
        assert!(y.iter().all(|y| y.is_finite()));
    }
}

#[test]
fn what_does_not_fit_is_an_error() {
    assert!(ConvWeights::new(&[0.0; 8], 1, None).is_err());
    assert!(ConvWeights::new(&[0.0; 9], 4, None).is_err());
    assert!(ConvWeights::new(&[0.0; 8], 4, Some(&[0.0; 3])).is_err());
    let weights = ConvWeights::new(&[0.0; 8], 4, None).unwrap();
    let pool = Pool::new(1).unwrap();
    let mut states = StateCache::new(6, 2).unwrap();
    let run = |states: &mut StateCache, from, end, block, x: &[f32]| {
        let runs = [StateRun { tokens: 0..2, from, writes: vec![(end, block)] }];
        weights.run(Isa::Scalar, &pool, states, &runs, x, &mut vec![0.0; x.len()])
    };
    assert_eq!(run(&mut states, Some(1), 2, 0, &[0.0; 4]), Ok(()));
    let missing = |found| Err(CpuError::Index { what: "cache block", found, limit: 2 });
    assert_eq!(run(&mut states, Some(2), 2, 0, &[0.0; 4]), missing(2));
    assert_eq!(run(&mut states, None, 2, 3, &[0.0; 4]), missing(3));
    assert!(run(&mut states, None, 1, 0, &[0.0; 4]).is_err());
    assert!(run(&mut states, None, 2, 0, &[0.0; 2]).is_err());
    assert!(run(&mut states, None, 2, 0, &[0.0; 5]).is_err());
    assert!(run(&mut StateCache::new(4, 2).unwrap(), None, 2, 0, &[0.0; 4]).is_err());
    let scan = |heads, groups| Scan {
        cache: CacheId(0),
        heads,
        head_dim: 4,
        state: 3,
        groups,
        a: WeightId(0),
        d: WeightId(1),
    };
    assert!(ScanWeights::new(&scan(4, 3), &[0.0; 4], &[0.0; 4]).is_err());
    assert!(ScanWeights::new(&scan(4, 2), &[0.0; 8], &[0.0; 4]).is_err());
    assert!(ScanWeights::new(&scan(4, 2), &[0.0; 4], &[0.0; 3]).is_err());
    let weights = ScanWeights::new(&scan(4, 2), &[0.0; 12], &[0.0; 4]).unwrap();
    let runs = [StateRun { tokens: 0..1, from: None, writes: vec![(1, 0)] }];
    let mut states = StateCache::new(48, 1).unwrap();
    let mut run = |dt: usize, bc: usize| {
        let inputs = ScanInputs { x: &[0.0; 16], dt: &vec![0.0; dt], bc: &vec![0.0; bc] };
        weights.run(Isa::Scalar, &pool, &mut states, &runs, inputs, &mut [0.0; 16])
    };
    assert_eq!(run(4, 12), Ok(()));
    assert!(run(3, 12).is_err());
    assert!(run(4, 11).is_err());
}

#[test]
fn shifts_give_the_same_bits_however_they_run() {
    let x = Random::new(3).vector(43 * 600);
    let y = same_everywhere(600, x.len(), |_, pool, states, runs, y| {
        shift(pool, states, runs, 600, &x, y).unwrap();
    });
    assert!(
        y[..600].iter().chain(&y[40 * 600..41 * 600]).all(|v| *v == 0.0),
        "nothing comes before the first"
    );
    assert_eq!(y[600..40 * 600], x[..39 * 600]);
    assert_eq!(y[41 * 600..], x[40 * 600..42 * 600]);
}

#[test]
fn recurrences_give_the_same_bits_however_they_run() {
    for (heads, n) in [(3, 64), (5, 20)] {
        let channels = heads * n;
        let mut random = Random::new(n as u64);
        let mut next = || random.vector(43 * channels);
        let [r, k, v, d] = [next(), next(), next(), next()];
        let small = |x: Vec<f32>| -> Vec<f32> { x.into_iter().map(|x| x / n as f32).collect() };
        let (a, b) = (small(next()), small(next()));
        let inputs = WkvInputs { r: &r, k: &k, v: &v, d: &d };
        for with in [WkvWith::Six { first: &r[..channels] }, WkvWith::Seven { a: &a, b: &b }] {
            let y = same_everywhere(channels * n, r.len(), |isa, pool, states, runs, y| {
                wkv(isa, pool, states, runs, (heads, channels), with, inputs, y).unwrap();
            });
            assert!(y.iter().all(|y| y.is_finite()));
            let short = WkvInputs { k: &k[1..], ..inputs };
            let pool = Pool::new(1).unwrap();
            let refused = |inputs, heads| {
                let (runs, mut y) = (&steps(false)[0], vec![0.0; r.len()]);
                let mut states = StateCache::new(channels * n, 6).unwrap();
                wkv(Isa::Scalar, &pool, &mut states, runs, (heads, channels), with, inputs, &mut y).is_err()
            };
            assert!(refused(short, heads) && refused(inputs, heads + 2) && refused(inputs, 0));
            // A state of another size.
            let mut states = StateCache::new(channels, 6).unwrap();
            let (runs, mut y) = (&steps(false)[0], vec![0.0; r.len()]);
            assert!(
                wkv(Isa::Scalar, &pool, &mut states, runs, (heads, channels), with, inputs, &mut y).is_err()
            );
        }
    }
}
