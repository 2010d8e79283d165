//! BF16 weights, and activations for them: bf16 alike, and none that is tiny.
//!
//! Products of two bf16 are exact in f32, so a sum of them is a chain of multiply-adds, and an instruction that adds two
//! products, one after the other, gives the same bits. Such instructions take subnormal numbers for zero. So that no sum
//! is subnormal, magnitudes below 2^-56 are zero on every processor: what is left are multiples of 2^-63, their products
//! multiples of 2^-126, the smallest normal number, and so are all sums of them, rounded or not.

use crate::isa::Simd;

/// The smallest magnitude that is not taken for zero, 2^-56.
const LEAST: f32 = f32::from_bits((127 - 56) << 23);

/// A weight as it is multiplied, given its bits.
#[inline]
pub(crate) fn weight(bits: [u8; 2]) -> [u8; 2] {
    // Signed, as vectors compare.
    let magnitude = (u16::from_le_bytes(bits) & 0x7fff).cast_signed();
    if magnitude < (LEAST.to_bits() >> 16) as i16 { [0; 2] } else { bits }
}

/// `x` rounded to the nearest bf16, ties to even, in the upper halves of the lanes, and zero if tiny; NaN where `x` is not
/// finite.
///
/// # Safety
/// The processor has `S`.
#[inline(always)]
pub(crate) unsafe fn rounded<S: Simd>(x: S::F) -> S::F {
    // SAFETY: as the caller promises.
    unsafe {
        let magnitude = |x: S::I| S::f_from_bits(S::i_and(x, S::i_splat(i32::MAX)));
        let bits = S::f_bits(x);
        let odd = S::i_and(S::i_shr::<16>(bits), S::i_splat(1));
        let sum = S::i_add(S::i_add(bits, S::i_splat(0x7fff)), odd);
        let high = S::i_and(sum, S::i_splat(0xffff_0000_u32.cast_signed()));
        let large = S::f_where_lt(magnitude(high), S::f_splat(LEAST), S::f_zero(), S::f_from_bits(high));
        S::f_where_lt(magnitude(bits), S::f_splat(f32::INFINITY), large, S::f_splat(f32::NAN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::isa::{LANES, Op};

    struct Round([f32; LANES]);

    impl Op for Round {
        type Output = [f32; LANES];

        #[inline(always)]
        unsafe fn call<S: Simd>(self) -> [f32; LANES] {
            let mut out = [0.0; LANES];
            // SAFETY: the processor has `S`; both arrays are a vector.
            unsafe { S::f_store(out.as_mut_ptr(), rounded::<S>(S::f_load(self.0.as_ptr()))) };
            out
        }
    }

    #[test]
    fn activations_are_the_nearest_bf16_or_zero() {
        let least = LEAST.to_bits();
        let mut bits = vec![0, 1, 0x7f_ffff, least - 1, least - 0x8000, least - 0x8001, least, least + 1];
        // Ties, their neighbours, and what rounds to infinity.
        for high in [0x3f80_0000, 0x3f81_0000, 0x7f7f_0000] {
            bits.extend([0, 1, 0x7fff, 0x8000, 0x8001, 0xffff].map(|low| high | low));
        }
        bits.extend([0x7f80_0000, 0x7f80_0001, 0x7fc0_0000, 0x7fff_ffff]);
        bits.extend((0..4000u32).map(|i| i.wrapping_mul(0x9e37_79b9) >> 1));
        bits.extend(bits.clone().into_iter().map(|bits| bits | 1 << 31));
        bits.resize(bits.len().next_multiple_of(LANES), 0);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for bits in bits.as_chunks::<LANES>().0 {
                let x = bits.map(f32::from_bits);
                for (x, found) in x.into_iter().zip(isa.dispatch(Round(x))) {
                    let nearest = half::bf16::from_f32(x).to_f32();
                    match nearest {
                        _ if !x.is_finite() => assert!(found.is_nan(), "{isa}: {x:e} is {found:e}"),
                        near if near.abs() < LEAST => assert_eq!(found.to_bits(), 0, "{isa}: {x:e}"),
                        near => assert_eq!(found.to_bits(), near.to_bits(), "{isa}: {x:e}"),
                    }
                }
            }
        }
    }

    #[test]
    fn tiny_weights_are_zero() {
        for bits in 0..=u16::MAX {
            let (x, found) =
                (half::bf16::from_bits(bits).to_f32(), u16::from_le_bytes(weight(bits.to_le_bytes())));
            assert_eq!(found, if x.abs() < LEAST { 0 } else { bits }, "{x:e}");
        }
    }
}
