//! Passes over rows of logits or pieces of them, compiled for the processor's vectors.
//!
//! Each works on [`LANES`] values side by side, so that the order of every sum is the same on all processors.

use wootz_cpu::{Loops, vectorize};

use super::math::{LANES, exp_neg};
use super::work::Candidate;

/// Logits in a block that has its own maximum, so that a search skips most of a vocabulary.
pub(super) const BLOCK: usize = 128;

/// Values for which a pass keeps something before it goes on: blocks that fit the nearest cache.
pub(super) const TILE: usize = 16 * BLOCK;

/// Places that are written at once; those that are none are written over, as a loop that may end at any of them is slow.
const SLACK: usize = 4;

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

    /// The logits whose score is no higher than that of `inside`: rounding keeps the order on both sides of the centre.
    pub(super) fn range(self, inside: f32) -> Range {
        let limit = self.of(inside);
        // Halves the numbers between one inside and one outside until they are neighbours.
        let edge = |outside: f32| {
            let (mut inside, mut outside) = (ordered(inside), ordered(outside));
            while inside.abs_diff(outside) > 1 {
                let middle = inside.midpoint(outside);
                if self.of(from_ordered(middle)) <= limit { inside = middle } else { outside = middle }
            }
            from_ordered(inside)
        };
        Range {
            low: edge(f32::NEG_INFINITY),
            high: if self.of(self.max) <= limit { f32::INFINITY } else { edge(self.max) },
        }
    }
}

/// Logits from `low` to `high`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Range {
    pub(super) low: f32,
    pub(super) high: f32,
}

impl Range {
    #[inline(always)]
    pub(super) fn holds(self, x: f32) -> bool {
        (x >= self.low) & (x <= self.high)
    }
}

/// A whole number in the order of the numbers, of which none is NaN.
pub(super) fn ordered(x: f32) -> u32 {
    // Negative numbers have all bits turned over, others the sign.
    let bits = x.to_bits();
    bits ^ (((bits as i32 >> 31) as u32) | 1 << 31)
}

fn from_ordered(number: u32) -> f32 {
    let turned = if number >> 31 == 1 { 1 << 31 } else { u32::MAX };
    f32::from_bits(number ^ turned)
}

vectorized! {
    /// Maximum of each block; tells whether no value is NaN or positive infinity.
    fn block_maxima(values: &'a [f32], maxima: &'a mut [f32]) -> bool {
        let mut sound = true;
        for (out, block) in maxima.iter_mut().zip(values.chunks(BLOCK)) {
            let (max, nan) = max_and_nan(block);
            *out = max;
            sound &= !nan & (max < f32::INFINITY);
        }
        sound
    }

    /// The highest value; negative infinity where there is none.
    fn max(values: &'a [f32]) -> f32 {
        max_and_nan(values).0
    }

    /// Sum of `e^(x - max)` of each block; none is above `max`.
    fn block_sums(values: &'a [f32], max: f32, sums: &'a mut [f64]) {
        sum_blocks(values, sums, |_, chunk, sum| {
            for (sum, &x) in sum.iter_mut().zip(chunk) {
                *sum += exp_neg(x - max);
            }
        });
        sum_rest(values, sums, |at| exp_neg(values[at] - max));
    }

    /// `e^(x - max)` of each value, and the sums of blocks, as [`block_sums`] finds them.
    fn weigh(values: &'a [f32], max: f32, weights: &'a mut [f32], sums: &'a mut [f64]) {
        let chunks = weights.as_chunks_mut::<LANES>().0;
        sum_blocks(values, sums, |at, chunk, sum| {
            for ((sum, weight), &x) in sum.iter_mut().zip(&mut chunks[at]).zip(chunk) {
                *weight = exp_neg(x - max);
                *sum += *weight;
            }
        });
        sum_rest(values, sums, |at| {
            weights[at] = exp_neg(values[at] - max);
            weights[at]
        });
    }

    /// Sum of each block's weights times the distance of their values from `max`.
    fn weighted_depths(values: &'a [f32], weights: &'a [f32], max: f32, sums: &'a mut [f64]) {
        // No weight is left at this distance; without the bound, infinity times 0 would be NaN.
        const FAR: f32 = 128.0;
        let depth = |x: f32| if max - x < FAR { max - x } else { FAR };
        let chunks = weights.as_chunks::<LANES>().0;
        sum_blocks(values, sums, |at, chunk, sum| {
            for ((sum, &weight), &x) in sum.iter_mut().zip(&chunks[at]).zip(chunk) {
                *sum += weight * depth(x);
            }
        });
        sum_rest(values, sums, |at| weights[at] * depth(values[at]));
    }

    /// Number of values, but negative infinity, whose score is at most `limit`.
    fn count_below(values: &'a [f32], score: Score, limit: f32) -> usize {
        values.iter().map(|&x| usize::from((score.of(x) <= limit) & (x > f32::NEG_INFINITY))).sum()
    }

    /// The same, and the sum of the weights of those of each block.
    fn sum_below(
        values: &'a [f32],
        weights: &'a [f32],
        score: Score,
        limit: f32,
        sums: &'a mut [f64]
    ) -> usize {
        let is_below = |x: f32| (score.of(x) <= limit) & (x > f32::NEG_INFINITY);
        let (chunks, mut counts) = (weights.as_chunks::<LANES>().0, [0u32; LANES]);
        sum_blocks(values, sums, |at, chunk, sum| {
            for (((sum, count), &x), &weight) in sum.iter_mut().zip(&mut counts).zip(chunk).zip(&chunks[at]) {
                *sum += only_if(is_below(x), weight);
                *count += u32::from(is_below(x));
            }
        });
        let mut count: usize = counts.iter().map(|&count| count as usize).sum();
        sum_rest(values, sums, |at| {
            count += usize::from(is_below(values[at]));
            only_if(is_below(values[at]), weights[at])
        });
        count
    }

    /// Candidates whose score is above `from` and up to `to`, with their weights, or 1 without weights; the first value is
    /// that of token `start`.
    fn between(
        values: &'a [f32],
        weights: Option<&'a [f32]>,
        start: usize,
        score: Score,
        from: f32,
        to: f32,
        out: &'a mut Vec<(Candidate, f32)>
    ) {
        let (mut flags, mut places) = ([0; TILE], [0; TILE + SLACK]);
        for (tile, values) in values.chunks(TILE).enumerate() {
            flags[values.len()..].fill(0);
            for (flag, &x) in flags.iter_mut().zip(values) {
                let score = score.of(x);
                *flag = u8::from((score > from) & (score <= to) & (x > f32::NEG_INFINITY));
            }
            let count = places_of(&flags, &mut places);
            out.extend(places[..count].iter().map(|&i| {
                let at = tile * TILE + i as usize;
                let candidate = Candidate { id: (start + at) as u32, logit: values[i as usize] };
                (candidate, weights.map_or(1.0, |weights| weights[at]))
            }));
        }
    }

    /// Candidates within a range, by token; `maxima` are those of blocks.
    fn collect(values: &'a [f32], maxima: &'a [f32], range: Range, out: &'a mut Vec<Candidate>) {
        out.clear();
        let (mut flags, mut places) = ([0; BLOCK], [0; BLOCK + SLACK]);
        for (at, (block, &max)) in values.chunks(BLOCK).zip(maxima).enumerate() {
            if max < range.low {
                continue;
            }
            flags[block.len()..].fill(0);
            for (flag, &x) in flags.iter_mut().zip(block) {
                *flag = u8::from(range.holds(x) & (x > f32::NEG_INFINITY));
            }
            let count = places_of(&flags, &mut places);
            let candidate = |&i: &u32| Candidate { id: (at * BLOCK) as u32 + i, logit: block[i as usize] };
            out.extend(places[..count].iter().map(candidate));
        }
    }

    /// Number of values of at least `limit`.
    fn count_from(values: &'a [f32], limit: f32) -> usize {
        values.iter().map(|x| usize::from(*x >= limit)).sum()
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

    /// Copies values to `out` without those out of a range; renews the maxima of blocks.
    fn keep(values: &'a [f32], range: Range, out: &'a mut [f32], maxima: &'a mut [f32]) {
        for (out, &x) in out.iter_mut().zip(values) {
            *out = if range.holds(x) { x } else { f32::NEG_INFINITY };
        }
        for (max, block) in maxima.iter_mut().zip(out.chunks(BLOCK)) {
            if !range.holds(*max) {
                *max = max_and_nan(block).0;
            }
        }
    }

    /// The logits of [`favoured`] for weights of values, and the maxima of blocks.
    fn favour(
        values: &'a [f32],
        weights: &'a [f32],
        scale: f64,
        target: f64,
        out: &'a mut [f32],
        maxima: &'a mut [f32]
    ) {
        for ((out, &weight), &x) in out.iter_mut().zip(weights).zip(values) {
            let logit = favoured(weight, scale, target);
            *out = if x > f32::NEG_INFINITY { logit } else { x };
        }
        for (max, block) in maxima.iter_mut().zip(out.chunks(BLOCK)) {
            *max = max_and_nan(block).0;
        }
    }

    /// Each value divided by a temperature above 0: the least finite number at least, where it was finite.
    fn divide(values: &'a [f32], temperature: f32, out: &'a mut [f32]) {
        for (out, &x) in out.iter_mut().zip(values) {
            let y = x / temperature;
            let bounded = if y > f32::MIN { y } else { f32::MIN };
            *out = if x > f32::NEG_INFINITY { bounded } else { x };
        }
    }
}

/// Finds the sum of each whole block, to whose lanes `add` adds what a chunk of values at a place among the chunks
/// holds: in the order of [`block_total`].
#[inline(always)]
fn sum_blocks(
    values: &[f32],
    sums: &mut [f64],
    mut add: impl FnMut(usize, &[f32; LANES], &mut [f32; LANES]),
) {
    // A sum of lanes waits for each of its additions, so those of several blocks are left for later.
    let mut waiting = [[0.0; LANES]; TILE / BLOCK];
    let tiles = values.as_chunks::<BLOCK>().0.chunks(TILE / BLOCK);
    for (tile, (blocks, sums)) in tiles.zip(sums.chunks_mut(TILE / BLOCK)).enumerate() {
        for (at, (lanes, block)) in waiting.iter_mut().zip(blocks).enumerate() {
            let start = (tile * TILE + at * BLOCK) / LANES;
            let mut sum = [0.0; LANES];
            for (at, chunk) in block.as_chunks().0.iter().enumerate() {
                add(start + at, chunk, &mut sum);
            }
            *lanes = sum.map(f64::from);
        }
        sum_lanes(&waiting[..blocks.len()], sums);
    }
}

/// Sum of each block's lanes, in their order.
///
/// Not inlined, so compiled without wide vectors: with them the compiler would gather a lane of several blocks at a time,
/// which takes longer than the additions.
#[inline(never)]
fn sum_lanes(waiting: &[[f64; LANES]], sums: &mut [f64]) {
    for (sum, lanes) in sums.iter_mut().zip(waiting) {
        *sum = lanes.iter().sum();
    }
}

/// Finds the sum of the last block where that is not whole, of what `term` says of the places in it.
#[inline(always)]
fn sum_rest(values: &[f32], sums: &mut [f64], mut term: impl FnMut(usize) -> f32) {
    let whole = values.len() / BLOCK * BLOCK;
    let (mut terms, len) = ([0.0; BLOCK], values.len() - whole);
    if len > 0 {
        terms.iter_mut().take(len).enumerate().for_each(|(at, out)| *out = term(whole + at));
        sums[whole / BLOCK] = block_total(&terms[..len]);
    }
}

/// Writes the places of flags that are 1 to `out`, which is longer by [`SLACK`]; returns how many there are.
#[inline(always)]
fn places_of(flags: &[u8], out: &mut [u32]) -> usize {
    // Brings the lowest bits of eight bytes together, in the highest byte.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    let mut count = 0;
    for (at, words) in flags.as_chunks::<8>().0.as_chunks::<8>().0.iter().enumerate() {
        let bits = |word: [u8; 8]| u64::from_le_bytes(word).wrapping_mul(GATHER) >> 56;
        let mut left = words.iter().rev().fold(0, |all, word| all << 8 | bits(*word));
        let end = count + left.count_ones() as usize;
        while left != 0 {
            for out in &mut out[count..count + SLACK] {
                *out = (at * 64) as u32 + left.trailing_zeros();
                left &= left.wrapping_sub(1);
            }
            count += SLACK;
        }
        count = end;
    }
    count
}

/// The logit that adaptive-p gives a candidate of this weight, where `scale` makes probabilities of weights: the nearer
/// to the target the higher.
#[inline(always)]
pub(super) fn favoured(weight: f32, scale: f64, target: f64) -> f32 {
    const WIDTH: f64 = 0.3;
    let prob = (f64::from(weight) * scale) as f32;
    let distance = ((f64::from(prob) - target) * (1.0 / WIDTH)).abs();
    (5.0 - 10.0 * distance * distance / (1.0 + distance)) as f32
}

/// A weight or 0, without a branch.
#[inline(always)]
pub(super) fn only_if(condition: bool, weight: f32) -> f32 {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_the_flags() {
        let mut places = [0; TILE + SLACK];
        // From none to all of them, by steps that cross words unevenly.
        for step in [1, 2, 3, 7, 13, 64, 100, 1500, TILE + 1] {
            let flags: [u8; TILE] = std::array::from_fn(|at| u8::from((at + 1) % step == 0));
            let wanted: Vec<u32> = (0..TILE as u32).filter(|at| flags[*at as usize] == 1).collect();
            let count = places_of(&flags, &mut places);
            assert_eq!(places[..count], wanted, "every {step}th");
        }
    }

    #[test]
    fn every_place_of_a_block_counts_for_its_maximum() {
        for len in [1, 15, 16, 17, 100, BLOCK] {
            for at in 0..len {
                let mut block = vec![-3.0; len];
                block[at] = -1.0;
                assert_eq!(max_and_nan(&block), (-1.0, false), "{at} of {len}");
                block[at] = if at % 2 == 0 { f32::NAN } else { -f32::NAN };
                assert!(max_and_nan(&block).1, "a NaN at {at} of {len}");
            }
        }
        assert_eq!(max_and_nan(&[]), (f32::NEG_INFINITY, false));
        assert_eq!(max_and_nan(&[f32::NEG_INFINITY; 40]), (f32::NEG_INFINITY, false));
        assert_eq!(max_and_nan(&[f32::INFINITY; 40]), (f32::INFINITY, false));
    }
}
