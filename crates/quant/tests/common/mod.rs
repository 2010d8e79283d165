//! The random numbers of `golden/make.py`.

/// splitmix64 from the state `stream << 32`.
pub(crate) fn words(stream: u32) -> impl Iterator<Item = u64> {
    let mut state = u64::from(stream) << 32;
    std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(state)
    })
}

/// The finaliser of splitmix64.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// About normal with deviation 0.58, every 61st value times 4.
pub(crate) fn random_values(stream: u32, count: usize) -> Vec<f32> {
    let value = |word: u64| {
        let sum: i64 = (0..4).map(|k| i64::from((word >> (16 * k)) as u16)).sum();
        (sum - 131_070) as f32 / 65_536.0
    };
    let scale = |(i, v): (usize, f32)| if i % 61 == 0 { v * 4.0 } else { v };
    words(stream).take(count).map(value).enumerate().map(scale).collect()
}
