use super::*;
use crate::testing::{Random, bits, isas};
use std::f64::consts::PI;
use wootz_graph::op::{SectionOrder, Yarn};

fn plain(heads: u32, head_dim: u32, dims: u32, style: RopeStyle) -> Rope {
    Rope {
        heads,
        head_dim,
        dims,
        style,
        freq_base: 10_000.0,
        freq_scale: 1.0,
        factors: None,
        yarn: None,
        magnitude: 1.0,
        sections: None,
    }
}

/// Angle and magnitude by the definition, for one pair and position.
fn angle(r: &Rope, factors: Option<&[f32]>, position: i32, i: usize) -> (f64, f64) {
    let (p, d) = (f64::from(position), f64::from(r.dims));
    let theta = f64::from(r.freq_base).powf(-2.0 * i as f64 / d);
    let theta = factors.map_or(theta, |f| theta / f64::from(f[i]));
    let scale = f64::from(r.freq_scale);
    let Some(y) = r.yarn else { return (p * theta * scale, f64::from(r.magnitude)) };
    // Turns of a wave within the original context fix the ramp's ends, as dimensions.
    let end = |turns: f32| {
        d * (f64::from(y.original_context) / (f64::from(turns) * 2.0 * PI)).ln()
            / (2.0 * f64::from(r.freq_base).ln())
    };
    let (low, high) = (end(y.beta_fast).floor().max(0.0), end(y.beta_slow).ceil().min(d - 1.0));
    let keep = (1.0 - ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0)) * f64::from(y.ext_factor);
    let gain = if y.ext_factor == 0.0 { 1.0 } else { 1.0 + 0.1 * (1.0 / scale).ln() };
    (p * theta * (scale * (1.0 - keep) + keep), f64::from(r.magnitude) * gain)
}

fn check(r: &Rope, factors: Option<&[f32]>, positions: &[i32]) {
    let (heads, head_dim, pairs) = (r.heads as usize, r.head_dim as usize, r.dims as usize / 2);
    let x = Random::new(7).vector(positions.len() * heads * head_dim);
    let mut table = RopeTable::new(r, factors).unwrap();
    table.set_positions(positions).unwrap();
    let mut first = None;
    for isa in isas() {
        let mut y = x.clone();
        table.rotate(isa, 0, heads, head_dim, &mut y).unwrap();
        assert_eq!(*first.get_or_insert(bits(&y)), bits(&y), "{isa}");
        for (row, position) in positions.iter().enumerate() {
            for h in 0..heads {
                let at = (row * heads + h) * head_dim;
                let (x, y) = (&x[at..at + head_dim], &y[at..at + head_dim]);
                for i in 0..pairs {
                    let (a, b) = match r.style {
                        RopeStyle::Adjacent => (2 * i, 2 * i + 1),
                        RopeStyle::Halves => (i, i + pairs),
                    };
                    let (angle, magnitude) = angle(r, factors, *position, i);
                    let (sin, cos) = (angle.sin() * magnitude, angle.cos() * magnitude);
                    let (p, q) = (f64::from(x[a]), f64::from(x[b]));
                    // A turn of millions of radians is known to 1e-9 only, in f64 as well.
                    let limit = 4e-7 * (p.abs() + q.abs()) * magnitude;
                    assert!((f64::from(y[a]) - (p * cos - q * sin)).abs() <= limit, "{position} {i}");
                    assert!((f64::from(y[b]) - (p * sin + q * cos)).abs() <= limit, "{position} {i}");
                }
                assert_eq!(x[2 * pairs..], y[2 * pairs..], "the rest of a head does not turn");
            }
        }
        // Any split of the rows gives the same bits.
        let cols = heads * head_dim;
        let mut parts = x.clone();
        let (one, two) = parts.split_at_mut(cols);
        table.rotate(isa, 0, heads, head_dim, one).unwrap();
        table.rotate(isa, 1, heads, head_dim, two).unwrap();
        assert_eq!(bits(&parts), bits(&y));
    }
}

#[test]
fn rotations_follow_the_definition() {
    let positions = [0, 1, 2, 255, 256, 257, 4097, 131_071, 77];
    for style in [RopeStyle::Adjacent, RopeStyle::Halves] {
        for (heads, head_dim, dims) in [(3, 64, 64), (1, 80, 32), (2, 12, 10), (1, 256, 256), (2, 6, 2)] {
            let r = plain(heads, head_dim, dims, style);
            check(&r, None, &positions);
            let factors: Vec<f32> = (0..dims / 2).map(|i| 1.0 + i as f32 / 3.0).collect();
            check(
                &Rope { freq_base: 500_000.0, freq_scale: 0.25, magnitude: 1.2, ..r },
                Some(&factors),
                &positions,
            );
            let yarn = Yarn { ext_factor: 1.0, beta_fast: 32.0, beta_slow: 1.0, original_context: 4096 };
            check(&Rope { freq_scale: 0.125, yarn: Some(yarn), ..r }, None, &positions);
            let none = Yarn { ext_factor: 0.0, ..yarn };
            check(&Rope { freq_scale: 0.125, yarn: Some(none), ..r }, None, &positions);
        }
    }
}

#[test]
fn each_pair_turns_by_the_position_of_its_stream() {
    for order in [SectionOrder::Runs, SectionOrder::Interleaved, SectionOrder::Vision] {
        let sections = Sections { counts: [4, 3, 2, 3], order };
        let r = Rope { sections: Some(sections), ..plain(2, 24, 24, RopeStyle::Halves) };
        let mut all = RopeTable::new(&r, None).unwrap();
        let tokens = [[5, 700, 3, 9], [0, 1, 2, 300]];
        all.set_positions(tokens.as_flattened()).unwrap();
        for (row, positions) in tokens.iter().enumerate() {
            for (stream, position) in (0..).zip(positions) {
                // A table in which every stream stands where this one does.
                let mut one = RopeTable::new(&r, None).unwrap();
                one.set_positions(&[*position; 4]).unwrap();
                for pair in (0..12).filter(|pair| sections.stream(*pair) == stream) {
                    for at in [pair as usize, 12 + pair as usize] {
                        assert_eq!(all.rows[24 * row + at], one.rows[at], "{order:?}, pair {pair}");
                    }
                }
            }
        }
        assert!(all.set_positions(&[1, 2, 3]).is_err());
    }
}

#[test]
fn a_position_has_the_same_bits_in_every_step() {
    let r = plain(1, 64, 64, RopeStyle::Halves);
    let mut all = RopeTable::new(&r, None).unwrap();
    all.set_positions(&(0..600).collect::<Vec<_>>()).unwrap();
    let mut one = RopeTable::new(&r, None).unwrap();
    for position in [599, 0, 300] {
        one.set_positions(&[position]).unwrap();
        assert_eq!(bits(&one.rows), bits(&all.rows[position as usize * 64..][..64]));
    }
}

#[test]
fn nothing_to_rotate_is_no_error() {
    let mut table = RopeTable::new(&plain(1, 8, 0, RopeStyle::Halves), None).unwrap();
    table.set_positions(&[5]).unwrap();
    let mut x = [1.0; 8];
    table.rotate(Isa::Scalar, 0, 1, 8, &mut x).unwrap();
    assert_eq!(x, [1.0; 8]);
}

#[test]
fn wrong_sizes_are_errors() {
    let r = plain(2, 8, 8, RopeStyle::Halves);
    assert!(RopeTable::new(&Rope { dims: 7, ..r }, None).is_err());
    assert!(RopeTable::new(&Rope { dims: 10, ..r }, None).is_err());
    assert!(RopeTable::new(&r, Some(&[1.0; 3])).is_err());
    let mut table = RopeTable::new(&r, None).unwrap();
    assert!(table.set_positions(&[3, -1]).is_err());
    table.set_positions(&[3, 4]).unwrap();
    assert!(table.rotate(Isa::Scalar, 0, 2, 8, &mut [0.0; 33]).is_err());
    assert!(table.rotate(Isa::Scalar, 1, 2, 8, &mut [0.0; 32]).is_err());
    assert!(table.rotate(Isa::Scalar, 0, 2, 6, &mut [0.0; 12]).is_err());
    assert!(table.rotate(Isa::Scalar, usize::MAX, 2, 8, &mut [0.0; 16]).is_err());
}
