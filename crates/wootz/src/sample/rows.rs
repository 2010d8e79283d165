//! Passes over whole rows of logits, compiled for the processor's vectors.
//!
//! Each works on [`LANES`] values side by side, so that the order of every sum is the same on all processors.

use wootz_cpu::{Loops, vectorize};

use super::math::{LANES, exp_neg};

/// Logits in a block that has its own maximum, so that a search skips most of a vocabulary.
pub(super) const BLOCK: usize = 128;

/// Writes functions whose bodies are compiled for every instruction set.
macro_rules! vectorized {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),*) $(-> $out:ty)? $body:block)*) => {$(
        $(#[$meta])*
        pub(super) fn $name<'a>($($arg: $ty),*) $(-> $out)? {
            struct Pass<'a> {
                $($arg: $ty,)*
                of: std::marker::PhantomData<&'a ()>,
            }
            impl<'a> Loops for Pass<'a> {
                type Output = vectorized!(@out $($out)?);
                #[inline(always)]
                fn run(self) -> Self::Output {
                    let Pass { $($arg,)* .. } = self;
                    $body
                }
            }
            vectorize(Pass { $($arg,)* of: std::marker::PhantomData })
        }
    )*};
    (@out) => { () };
    (@out $out:ty) => { $out };
}

/// How far a logit is from where the best ones for a sampler are: `|(max - x) - center|`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Score {
    /// The highest logit.
    pub(super) max: f32,
    /// Distance below it that has score 0.
    pub(super) center: f32,
}

impl Score {
    #[inline(always)]
    pub(super) fn of(self, x: f32) -> f32 {
        ((self.max - x) - self.center).abs()
    }
}

vectorized! {
    /// Maximum of each block; tells whether no value is NaN or positive infinity.
    fn block_maxima(values: &'a [f32], out: &'a mut Vec<f32>) -> bool {
        out.clear();
        let mut sound = true;
        for block in values.chunks(BLOCK) {
            let (max, nan) = max_and_nan(block);
            out.push(max);
            sound &= !nan & (max < f32::INFINITY);
        }
        sound
    }

    /// Sum of `e^(x - max)` of each block; none is above `max`.
    fn block_sums(values: &'a [f32], max: f32, out: &'a mut Vec<f64>) {
        out.clear();
        for block in values.chunks(BLOCK) {
            let mut lanes = [0.0f32; LANES];
            let (chunks, rest) = block.as_chunks::<LANES>();
            for chunk in chunks {
                for (lane, &x) in lanes.iter_mut().zip(chunk) {
                    *lane += exp_neg(x - max);
                }
            }
            let wide: f64 = lanes.iter().map(|&lane| f64::from(lane)).sum();
            out.push(wide + rest.iter().map(|&x| f64::from(exp_neg(x - max))).sum::<f64>());
        }
    }

    /// `e^(x - max)` of each value, and their sum in the order of [`block_sums`].
    fn weights(values: &'a [f32], max: f32, out: &'a mut Vec<f32>) -> f64 {
        out.clear();
        out.resize(values.len(), 0.0);
        let mut total = 0.0;
        for (block, out) in values.chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
            for (weight, &x) in out.iter_mut().zip(block) {
                *weight = exp_neg(x - max);
            }
            total += block_total(out);
        }
        total
    }

    /// Sum of each weight times the distance of its value from `max`.
    fn weighted_depth(values: &'a [f32], weights: &'a [f32], max: f32) -> f64 {
        // No weight is left at this distance; without the bound, infinity times 0 would be NaN.
        const FAR: f32 = 128.0;
        let mut lanes = [0.0f64; LANES];
        let depth = |x: f32| if max - x < FAR { max - x } else { FAR };
        let ((xs, x_rest), (ws, w_rest)) = (values.as_chunks::<LANES>(), weights.as_chunks::<LANES>());
        for (xs, ws) in xs.iter().zip(ws) {
            for lane in 0..LANES {
                lanes[lane] += f64::from(ws[lane] * depth(xs[lane]));
            }
        }
        let rest = x_rest.iter().zip(w_rest).map(|(&x, &w)| f64::from(w * depth(x)));
        lanes.iter().copied().chain(rest).sum()
    }

    /// Sum of the weights, and number, of values whose score is at most each of the limits.
    fn masses(values: &'a [f32], weights: &'a [f32], score: Score, limits: [f32; 4]) -> [(f64, usize); 4] {
        let mut mass = [[0.0f64; LANES]; 4];
        let mut count = [[0u32; LANES]; 4];
        let ((xs, x_rest), (ws, w_rest)) = (values.as_chunks::<LANES>(), weights.as_chunks::<LANES>());
        for (xs, ws) in xs.iter().zip(ws) {
            for at in 0..4 {
                for lane in 0..LANES {
                    let within = score.of(xs[lane]) <= limits[at];
                    mass[at][lane] += f64::from(if within { ws[lane] } else { 0.0 });
                    count[at][lane] += u32::from(within);
                }
            }
        }
        std::array::from_fn(|at| {
            let rest = x_rest.iter().zip(w_rest).filter(|(x, _)| score.of(**x) <= limits[at]);
            let (more, number) = rest.fold((0.0, 0), |(m, n), (_, &w)| (m + f64::from(w), n + 1));
            let mass: f64 = mass[at].iter().sum();
            (mass + more, count[at].iter().map(|&n| n as usize).sum::<usize>() + number)
        })
    }

    /// Number of values above negative infinity.
    fn count(values: &'a [f32]) -> usize {
        values.iter().map(|x| usize::from(*x > f32::NEG_INFINITY)).sum()
    }

    /// Sum of the distances of finite values from `center`, or of their squares where `square`.
    fn moment(values: &'a [f32], center: f64, square: bool) -> f64 {
        let term = |x: f32| {
            let d = f64::from(x) - center;
            let term = if square { d * d } else { d };
            if x > f32::NEG_INFINITY { term } else { 0.0 }
        };
        let mut lanes = [0.0f64; LANES];
        let (chunks, rest) = values.as_chunks::<LANES>();
        for chunk in chunks {
            for (lane, &x) in lanes.iter_mut().zip(chunk) {
                *lane += term(x);
            }
        }
        lanes.into_iter().chain(rest.iter().map(|&x| term(x))).sum()
    }

    /// Positions of the values whose score is above `from` and at most `to`.
    fn between(values: &'a [f32], score: Score, from: f32, to: f32, out: &'a mut Vec<u32>) {
        out.clear();
        for (at, chunk) in values.chunks(LANES).enumerate() {
            let within = |x: f32| {
                let score = score.of(x);
                (score > from) & (score <= to)
            };
            if chunk.iter().fold(false, |any, &x| any | within(x)) {
                let places = chunk.iter().enumerate().filter(|(_, x)| within(**x));
                out.extend(places.map(|(i, _)| (at * LANES + i) as u32));
            }
        }
    }

    /// Removes values whose score is above `limit`, and renews the maxima of blocks.
    fn keep_within(values: &'a mut [f32], score: Score, limit: f32, block_max: &'a mut Vec<f32>) {
        block_max.clear();
        for block in values.chunks_mut(BLOCK) {
            for x in block.iter_mut() {
                *x = if score.of(*x) <= limit { *x } else { f32::NEG_INFINITY };
            }
            block_max.push(max_and_nan(block).0);
        }
    }

    /// Each value divided by a temperature above 0: the least finite number at least, where it was finite.
    fn divide(values: &'a mut [f32], temperature: f32) {
        for x in values {
            let y = *x / temperature;
            let bounded = if y > f32::MIN { y } else { f32::MIN };
            *x = if *x > f32::NEG_INFINITY { bounded } else { *x };
        }
    }
}

/// Maximum of a block, and whether it holds a NaN (which the maximum ignores).
#[inline(always)]
pub(super) fn max_and_nan(block: &[f32]) -> (f32, bool) {
    let mut max = [f32::NEG_INFINITY; LANES];
    let mut nan = [0u32; LANES];
    let (chunks, rest) = block.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            let x = chunk[lane];
            max[lane] = if x > max[lane] { x } else { max[lane] };
            nan[lane] |= u32::from(x.is_nan());
        }
    }
    let all = max.iter().chain(rest);
    let highest = all.fold(f32::NEG_INFINITY, |max, &x| if x > max { x } else { max });
    (highest, nan.iter().any(|&n| n != 0) || rest.iter().any(|x| x.is_nan()))
}

/// Sum of a block, in a fixed order.
#[inline(always)]
pub(super) fn block_total(block: &[f32]) -> f64 {
    let mut lanes = [0.0f32; LANES];
    let (chunks, rest) = block.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += x;
        }
    }
    lanes.iter().chain(rest).map(|&x| f64::from(x)).sum()
}
