//! Codebooks: packed tables in the source, tables of bytes in the program.

use crate::bits::masks;
use crate::grids;

/// The codebook of an IQ type, for kernels that carry it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Codebook {
    /// The type's name; IQ1_M has that of IQ1_S.
    pub name: &'static str,
    /// Elements of an entry.
    pub width: usize,
    /// The values that elements have, ascending; of IQ1_S times 8.
    pub values: Vec<i8>,
    /// Entries: the indices of their values, `16 / width` bits each, the first lowest.
    pub entries: Vec<u16>,
}

impl Codebook {
    fn new<const W: usize>(name: &'static str, table: &[[i8; W]]) -> Codebook {
        let mut values = table.as_flattened().to_vec();
        values.sort_unstable();
        values.dedup();
        let index = |v: &i8| values.partition_point(|known| known < v) as u16;
        let pack = |entry: &[i8; W]| entry.iter().rev().fold(0, |bits, v| bits << (16 / W) | index(v));
        let entries = table.iter().map(pack).collect();
        Codebook { name, width: W, values, entries }
    }

    /// Those of all IQ types that have one.
    pub fn all() -> [Codebook; 6] {
        [
            Codebook::new("IQ2_XXS", &grids::IQ2_XXS),
            Codebook::new("IQ2_XS", &grids::IQ2_XS),
            Codebook::new("IQ2_S", &grids::IQ2_S),
            Codebook::new("IQ3_XXS", &grids::IQ3_XXS),
            Codebook::new("IQ3_S", &grids::IQ3_S),
            Codebook::new("IQ1_S", &grids::IQ1_S),
        ]
    }
}

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
