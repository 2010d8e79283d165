//! Codebooks: packed tables in the source, tables of bytes in the program.

use crate::bits::masks;

/// Expands packed entries (each the indices of `W` values, lowest bits first) at compile time.
pub(crate) const fn unpack<const N: usize, const W: usize>(values: &[i8], packed: &[u16; N]) -> [[i8; W]; N] {
    let bits = 16 / W;
    let mut out = [[0; W]; N];
    let mut i = 0;
    while i < N {
        let mut j = 0;
        while j < W {
            out[i][j] = values[(packed[i] >> (bits * j)) as usize & ((1 << bits) - 1)];
            j += 1;
        }
        i += 1;
    }
    out
}

/// The eight signs of a seven-bit sign index: bit 7 makes the number of negative signs even.
pub(crate) const fn even_signs(index: u32) -> u8 {
    let low = (index & 127) as u8;
    low | ((low.count_ones() as u8 & 1) << 7)
}

/// Writes codes `128 ± magnitude`; bit `i` of `signs` makes element `i` negative.
pub(crate) fn signed<const W: usize>(magnitudes: &[i8; W], signs: u8, codes: &mut [u8; W]) {
    for ((code, &v), negative) in codes.iter_mut().zip(magnitudes).zip(masks(signs)) {
        // Two's complement: `!v + 1` is `-v`.
        *code = (v as u8 ^ negative).wrapping_sub(negative) ^ 128;
    }
}
