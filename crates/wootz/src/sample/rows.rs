//! Passes over whole rows of logits, compiled for the processor's vectors.
//!
//! Each works on [`LANES`] values side by side, so that the order of every sum is the same on all processors.

use wootz_cpu::{Loops, vectorize};

use super::math::{LANES, exp_neg};

/// Logits in a block that has its own maximum, so that a search skips most of a vocabulary.
pub(super) const BLOCK: usize = 128;

/// Values for which a pass keeps something before it goes on: blocks that fit the nearest cache.
const TILE: usize = 16 * BLOCK;

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

    /// The highest value; negative infinity where there is none.
    fn max(values: &'a [f32]) -> f32 {
        max_and_nan(values).0
    }

    /// Sum of `e^(x - max)` of each block; none is above `max`.
    fn block_sums(values: &'a [f32], max: f32, out: &'a mut Vec<f64>) {
        out.clear();
        let (blocks, rest) = values.as_chunks::<BLOCK>();
        // A sum of lanes waits for each of its additions, so those of several blocks are left for later.
        let mut waiting = [[0.0; LANES]; TILE / BLOCK];
        for blocks in blocks.chunks(TILE / BLOCK) {
            for (waiting, block) in waiting.iter_mut().zip(blocks) {
                let mut lanes = [0.0f32; LANES];
                for chunk in block.as_chunks::<LANES>().0 {
                    for (lane, &x) in lanes.iter_mut().zip(chunk) {
                        *lane += exp_neg(x - max);
                    }
                }
                *waiting = lanes.map(f64::from);
            }
            for lanes in &waiting[..blocks.len()] {
                out.push(lanes.iter().sum());
            }
        }
        if !rest.is_empty() {
            let mut weights = [0.0; BLOCK];
            weights.iter_mut().zip(rest).for_each(|(weight, &x)| *weight = exp_neg(x - max));
            out.push(block_total(&weights[..rest.len()]));
        }
    }

    /// `e^(x - max)` of each value, and the sums of blocks, as [`block_sums`] finds them.
    fn weigh(values: &'a [f32], max: f32, weights: &'a mut Vec<f32>, sums: &'a mut Vec<f64>) {
        weights.resize(values.len(), 0.0);
        sums.clear();
        for (block, weights) in values.chunks(BLOCK).zip(weights.chunks_mut(BLOCK)) {
            for (weight, &x) in weights.iter_mut().zip(block) {
                *weight = exp_neg(x - max);
            }
            sums.push(block_total(weights));
        }
    }

    /// Sum of each weight times the distance of its value from `max`.
    fn weighted_depth(values: &'a [f32], weights: &'a [f32], max: f32) -> f64 {
        // No weight is left at this distance; without the bound, infinity times 0 would be NaN.
        const FAR: f32 = 128.0;
        let (mut sum, mut products) = (0.0, [0.0; TILE]);
        for (values, weights) in values.chunks(TILE).zip(weights.chunks(TILE)) {
            for ((product, &x), &weight) in products.iter_mut().zip(values).zip(weights) {
                let depth = max - x;
                *product = weight * if depth < FAR { depth } else { FAR };
            }
            for block in products[..values.len()].chunks(BLOCK) {
                sum += block_total(block);
            }
        }
        sum
    }

    /// Sum of the weights, and number, of values whose score is at most `from`; the places of those above it and up to
    /// `to`.
    fn split(
        values: &'a [f32],
        weights: &'a [f32],
        score: Score,
        from: f32,
        to: f32,
        between: &'a mut Vec<u32>
    ) -> (f64, usize) {
        between.clear();
        let (mut mass, mut count) = (0.0, 0);
        let (mut below, mut flags) = ([0.0; TILE], [0u8; TILE]);
        for (tile, (values, weights)) in values.chunks(TILE).zip(weights.chunks(TILE)).enumerate() {
            flags.fill(0);
            let mut found = 0;
            for (((below, flag), &x), &weight) in below.iter_mut().zip(&mut flags).zip(values).zip(weights) {
                let score = score.of(x);
                let is_below = score <= from;
                *below = only_if(is_below, weight);
                found += u32::from(is_below);
                *flag = u8::from(!is_below & (score <= to));
            }
            for block in below[..values.len()].chunks(BLOCK) {
                mass += block_total(block);
            }
            count += found as usize;
            for (at, flags) in flags.as_chunks::<8>().0.iter().enumerate() {
                let mut left = u64::from_le_bytes(*flags);
                while left != 0 {
                    between.push((tile * TILE + at * 8) as u32 + left.trailing_zeros() / 8);
                    left &= left - 1;
                }
            }
        }
        (mass, count)
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

    /// Copies values to `out` without those whose score is above `limit`; renews the maxima of blocks and the sums of
    /// weights.
    fn keep_within(
        values: &'a [f32],
        weights: &'a [f32],
        score: Score,
        limit: f32,
        out: &'a mut Vec<f32>,
        maxima: &'a mut Vec<f32>,
        sums: &'a mut Vec<f64>
    ) {
        out.resize(values.len(), 0.0);
        sums.clear();
        let mut kept = [0.0; TILE];
        for ((tile, out), weights) in values.chunks(TILE).zip(out.chunks_mut(TILE)).zip(weights.chunks(TILE)) {
            for (((kept, out), &weight), &x) in kept.iter_mut().zip(out).zip(weights).zip(tile) {
                let stays = score.of(x) <= limit;
                *out = if stays { x } else { f32::NEG_INFINITY };
                *kept = only_if(stays, weight);
            }
            for block in kept[..tile.len()].chunks(BLOCK) {
                sums.push(block_total(block));
            }
        }
        for (max, block) in maxima.iter_mut().zip(out.chunks(BLOCK)) {
            if score.of(*max) > limit {
                *max = max_and_nan(block).0;
            }
        }
    }

    /// Each value divided by a temperature above 0: the least finite number at least, where it was finite.
    fn divide(values: &'a [f32], temperature: f32, out: &'a mut Vec<f32>) {
        out.resize(values.len(), 0.0);
        for (out, &x) in out.iter_mut().zip(values) {
            let y = x / temperature;
            let bounded = if y > f32::MIN { y } else { f32::MIN };
            *out = if x > f32::NEG_INFINITY { bounded } else { x };
        }
    }
}

/// A weight or 0, without a branch.
#[inline(always)]
fn only_if(condition: bool, weight: f32) -> f32 {
    f32::from_bits(weight.to_bits() & 0u32.wrapping_sub(u32::from(condition)))
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
