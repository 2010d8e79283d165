//! The random numbers of one request.

/// Xoshiro256++, seeded by SplitMix64 (Blackman and Vigna, "Scrambled linear pseudorandom number
/// generators", 2021).
///
/// Whole-number arithmetic only: a seed gives the same numbers on every platform.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// Starts stream number `stream` of `seed`; streams of one seed are independent of each other.
    pub fn new(seed: u64, stream: u64) -> Self {
        // The odd factor keeps streams of neighbouring seeds apart.
        let mut split = SplitMix64(seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95));
        Self { state: std::array::from_fn(|_| split.next()) }
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// The next number of `[0, 1)`, a multiple of `2^-53`.
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// A seed from the operating system's randomness.
pub(crate) fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // The standard library keys its hash maps from the system's random source.
    std::hash::RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix_gives_the_published_numbers() {
        let mut split = SplitMix64(0);
        let found = [split.next(), split.next(), split.next()];
        assert_eq!(found, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
    }

    #[test]
    fn xoshiro_gives_the_published_numbers() {
        let mut rng = Rng { state: [1, 2, 3, 4] };
        let found: Vec<u64> = (0..6).map(|_| rng.next_u64()).collect();
        let published = [
            41_943_041,
            58_720_359,
            3_588_806_011_781_223,
            3_591_011_842_654_386,
            9_228_616_714_210_784_205,
            9_973_669_472_204_895_162,
        ];
        assert_eq!(found, published);
    }

    #[test]
    fn streams_and_seeds_differ_and_repeat() {
        let draw = |seed, stream| {
            let mut rng = Rng::new(seed, stream);
            [rng.next_u64(), rng.next_u64()]
        };
        assert_eq!(draw(7, 0), draw(7, 0));
        assert_ne!(draw(7, 0), draw(7, 1));
        assert_ne!(draw(7, 0), draw(8, 0));
    }

    #[test]
    fn numbers_are_uniform() {
        let mut rng = Rng::new(1, 0);
        let mut counts = [0u32; 16];
        for _ in 0..160_000 {
            let u = rng.next_f64();
            assert!((0.0..1.0).contains(&u));
            counts[(u * 16.0) as usize] += 1;
        }
        let chi2: f64 = counts.iter().map(|&c| (f64::from(c) - 10_000.0).powi(2) / 10_000.0).sum();
        assert!(chi2 < 37.7, "chi-square {chi2} of 15 degrees, 0.1 % limit 37.7");
    }
}
