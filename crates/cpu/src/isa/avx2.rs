//! AVX2, and AVX2 with the VNNI instructions: a virtual vector is two registers.

use super::{LANES, Op, Simd, simd_functions};
use std::arch::asm;
use std::arch::x86_64::*;

/// A machine with AVX2, with or without AVX-VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Ymm<const VNNI: bool>;

/// The AVX2 machine.
pub(crate) type Avx2 = Ymm<false>;
/// The AVX2 machine with AVX-VNNI.
pub(crate) type AvxVnni = Ymm<true>;

type Two<T> = [T; 2];

/// Applies an intrinsic to both halves.
macro_rules! both {
    ($f:expr; $($arg:expr),+) => { [$f($($arg[0]),+), $f($($arg[1]),+)] };
}

/// The sum of the lanes: lane i and lane i + 4 first, then i + 2, i + 1.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
pub(super) unsafe fn sum_of_8(a: __m256) -> f32 {
    // SAFETY: works on registers; the processor has the instructions.
    unsafe {
        let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
        let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
        _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps::<0b01_01_01_01>(a, a)))
    }
}

/// The largest lane, in the order of [`sum_of_8`].
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
pub(super) unsafe fn largest_of_8(a: __m256) -> f32 {
    // SAFETY: works on registers; the processor has the instructions.
    unsafe {
        let a = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
        let a = _mm_max_ps(a, _mm_movehl_ps(a, a));
        _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps::<0b01_01_01_01>(a, a)))
    }
}
/// Writes a sum that the compiler must not reorder: products added up in another order give the same, but need
/// more registers than there are.
macro_rules! sum_in_order {
    ($name:ident, $instruction:literal) => {
        #[inline]
        #[target_feature(enable = "avx2")]
        fn $name(mut sum: __m256i, product: __m256i) -> __m256i {
            // SAFETY: works on its operands alone; the processor has AVX2.
            unsafe {
                asm!(
                    concat!($instruction, " {sum}, {sum}, {product}"),
                    sum = inout(ymm_reg) sum,
                    product = in(ymm_reg) product,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            sum
        }
    };
}
sum_in_order!(add_i16, "vpaddw");
sum_in_order!(add_i32, "vpaddd");

impl<const VNNI: bool> Simd for Ymm<VNNI> {
    type F = Two<__m256>;
    type I = Two<__m256i>;
    type X = __m256i;
    /// Without VNNI 16 pairs of i16 sums; their final values fit, and wrapping on the way does no harm.
    type Sum = Two<__m256i>;
    type Scale = Self::I;
    type Block = Self::I;
    type Codes = Two<__m256i>;
    type Wide = Two<__m256i>;
    /// Without VNNI absolute values, and sign masks xor 128; with it the values, twice.
    type WideX = [__m256i; 2];

    const TOKENS: usize = 4;
    const ROWS: [usize; 2] = [6, 2];
    const PAIRS: bool = !VNNI;
    const EXPAND: bool = true;
    const EIGHTS: bool = false;
    const MAGNITUDES: bool = !VNNI;
    const BF16_BYTES: usize = 4;

    #[inline]
    unsafe fn enter<O: Op>(op: O) -> O::Output {
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn without_vnni<O: Op>(op: O) -> O::Output {
            // SAFETY: the features of this function are those of `Avx2`.
            unsafe { op.call::<Avx2>() }
        }
        #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
        unsafe fn with_vnni<O: Op>(op: O) -> O::Output {
            // SAFETY: the features of this function are those of `AvxVnni`.
            unsafe { op.call::<AvxVnni>() }
        }
        // SAFETY: the caller knows that the processor has them.
        unsafe { if VNNI { with_vnni(op) } else { without_vnni(op) } }
    }

    simd_functions! {
        fn f_zero() -> Self::F { [_mm256_setzero_ps(); 2] }
        fn f_load(p: *const f32) -> Self::F { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
        fn f_store(p: *mut f32, a: Self::F) {
            _mm256_storeu_ps(p, a[0]);
            _mm256_storeu_ps(p.add(8), a[1]);
        }
        fn f_broadcast(p: *const u8) -> Self::F { [_mm256_set1_ps(p.cast::<f32>().read_unaligned()); 2] }
        fn f_load_f16(p: *const u8) -> Self::F {
            [_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(16).cast()))]
        }
        fn f_load_bf16(p: *const u8) -> Self::F { Self::f_from_bits(Self::i_shl::<16>(Self::i_load_u16(p))) }
        fn f_from_i32(a: Self::I) -> Self::F { both!(_mm256_cvtepi32_ps; a) }
        fn f_from_bits(a: Self::I) -> Self::F { both!(_mm256_castsi256_ps; a) }
        fn f_add(a: Self::F, b: Self::F) -> Self::F { both!(_mm256_add_ps; a, b) }
        fn f_mul(a: Self::F, b: Self::F) -> Self::F { both!(_mm256_mul_ps; a, b) }
        fn f_fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F { both!(_mm256_fmadd_ps; a, b, c) }
        fn f_fnma(a: Self::F, b: Self::F, c: Self::F) -> Self::F { both!(_mm256_fnmadd_ps; a, b, c) }
        fn f_round(a: Self::F) -> Self::I { both!(_mm256_cvtps_epi32; a) }
        fn f_bits(a: Self::F) -> Self::I { both!(_mm256_castps_si256; a) }
        fn f_splat(a: f32) -> Self::F { [_mm256_set1_ps(a); 2] }
        fn f_sub(a: Self::F, b: Self::F) -> Self::F { both!(_mm256_sub_ps; a, b) }
        fn f_div(a: Self::F, b: Self::F) -> Self::F { both!(_mm256_div_ps; a, b) }
        fn f_max(a: Self::F, b: Self::F) -> Self::F { both!(_mm256_max_ps; a, b) }
        fn f_min(a: Self::F, b: Self::F) -> Self::F { both!(_mm256_min_ps; a, b) }
        fn f_where_lt(a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F {
            let mask = both!(_mm256_cmp_ps::<_CMP_LT_OQ>; a, b);
            // Not a blend: where `x` is 0, which is the case that matters, one `andnot` remains of this.
            let (x, y) = (both!(_mm256_and_ps; mask, x), both!(_mm256_andnot_ps; mask, y));
            both!(_mm256_or_ps; x, y)
        }
        fn f_sum(a: Self::F) -> f32 { sum_of_8(_mm256_add_ps(a[0], a[1])) }
        fn f_largest(a: Self::F) -> f32 { largest_of_8(_mm256_max_ps(a[0], a[1])) }
        fn f_store_f16(p: *mut u8, a: Self::F) {
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(a[0]));
            _mm_storeu_si128(p.add(16).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(a[1]));
        }

        fn again<const N: usize>(p: *const u8) -> *const u8 {
            let mut address = p.expose_provenance();
            asm!(
                "/* {address} {n} */",
                address = inout(reg) address,
                n = const N,
                options(pure, nomem, nostack, preserves_flags)
            );
            std::ptr::with_exposed_provenance(address)
        }

        fn i_zero() -> Self::I { [_mm256_setzero_si256(); 2] }
        fn i_splat(a: i32) -> Self::I { [_mm256_set1_epi32(a); 2] }
        fn i_load(p: *const u8) -> Self::I {
            [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())]
        }
        fn i_store(p: *mut u8, a: Self::I) {
            _mm256_storeu_si256(p.cast(), a[0]);
            _mm256_storeu_si256(p.add(32).cast(), a[1]);
        }
        fn i_load_u8(p: *const u8) -> Self::I {
            [_mm256_cvtepu8_epi32(_mm_loadu_si64(p)), _mm256_cvtepu8_epi32(_mm_loadu_si64(p.add(8)))]
        }
        fn i_load_u16(p: *const u8) -> Self::I {
            [
                _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast())),
                _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(16).cast())),
            ]
        }
        fn i_load_i8(p: *const u8) -> Self::I {
            [_mm256_cvtepi8_epi32(_mm_loadu_si64(p)), _mm256_cvtepi8_epi32(_mm_loadu_si64(p.add(8)))]
        }
        fn i_broadcast(p: *const u8) -> Self::I { [_mm256_set1_epi32(p.cast::<i32>().read_unaligned()); 2] }
        fn i_add(a: Self::I, b: Self::I) -> Self::I { both!(_mm256_add_epi32; a, b) }
        fn i_sub(a: Self::I, b: Self::I) -> Self::I { both!(_mm256_sub_epi32; a, b) }
        fn i_dot_pairs(sum: Self::I, a: Self::I, b: Self::I) -> Self::I {
            let products = both!(_mm256_madd_epi16; a, b);
            both!(_mm256_add_epi32; sum, products)
        }
        fn i_pair_sums(a: Self::I) -> Self::I {
            let ones = [_mm256_set1_epi8(1); 2];
            both!(_mm256_maddubs_epi16; ones, a)
        }
        fn i_max(a: Self::I, b: Self::I) -> Self::I { both!(_mm256_max_epi32; a, b) }
        fn i_largest(a: Self::I) -> i32 {
            let m = _mm256_max_epi32(a[0], a[1]);
            let m = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256::<1>(m));
            let m = _mm_max_epi32(m, _mm_shuffle_epi32::<0b01_00_11_10>(m));
            _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32::<0b10_11_00_01>(m)))
        }
        fn i_to_i8(a: Self::I) -> [i8; LANES] {
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(a[0], a[1]));
            let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            let mut out = [0; LANES];
            _mm_storeu_si128(out.as_mut_ptr().cast(), bytes);
            out
        }
        fn i_add_bytes(a: Self::I, b: Self::I) -> Self::I { both!(_mm256_add_epi8; a, b) }
        fn i_and(a: Self::I, b: Self::I) -> Self::I { both!(_mm256_and_si256; a, b) }
        fn i_or(a: Self::I, b: Self::I) -> Self::I { both!(_mm256_or_si256; a, b) }
        fn i_shl<const N: i32>(a: Self::I) -> Self::I { both!(_mm256_slli_epi32::<N>; a) }
        fn i_shr<const N: i32>(a: Self::I) -> Self::I { both!(_mm256_srli_epi32::<N>; a) }
        fn i_lookup(table: &[u8; 16], a: Self::I) -> Self::I {
            let table = [_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())); 2];
            both!(_mm256_shuffle_epi8; table, a)
        }

        /// Without VNNI in both i16 of the lane, since a sum is a pair.
        fn block_zero() -> Self::Block { Self::i_zero() }
        fn block_total(a: Self::Block) -> Self::F { Self::f_from_i32(a) }
        fn scale_u8(a: Self::I) -> Self::Scale {
            if VNNI {
                return Self::i_and(a, Self::i_splat(255));
            }
            let low = i64::from_le_bytes([0, 255, 0, 255, 4, 255, 4, 255]);
            let high = i64::from_le_bytes([8, 255, 8, 255, 12, 255, 12, 255]);
            let index = [_mm256_set_epi64x(high, low, high, low); 2];
            both!(_mm256_shuffle_epi8; a, index)
        }
        fn scale_i8(a: Self::I) -> Self::Scale {
            if VNNI {
                let shifted = both!(_mm256_slli_epi32::<24>; a);
                return both!(_mm256_srai_epi32::<24>; shifted);
            }
            let low = i64::from_le_bytes([255, 0, 255, 0, 255, 4, 255, 4]);
            let high = i64::from_le_bytes([255, 8, 255, 8, 255, 12, 255, 12]);
            let index = [_mm256_set_epi64x(high, low, high, low); 2];
            let shifted = both!(_mm256_shuffle_epi8; a, index);
            both!(_mm256_srai_epi16::<8>; shifted)
        }

        fn x_broadcast(p: *const u8) -> Self::X { _mm256_set1_epi32(p.cast::<i32>().read_unaligned()) }
        fn codes(a: Self::I, _offset: u8) -> Self::Codes { a }
        fn sum_zero() -> Self::Sum { [_mm256_setzero_si256(); 2] }
        fn sum_start(p: *const u8) -> Self::Sum { Self::i_broadcast(p) }
        fn sum_at(p: *const u8) -> Self::Sum { Self::i_broadcast(p) }
        fn sum_start_eighth(p: *const u8) -> Self::Sum {
            let start = Self::i_broadcast(p);
            if VNNI { both!(_mm256_srai_epi32::<3>; start) } else { both!(_mm256_srai_epi16::<3>; start) }
        }
        fn dot_first(codes: Self::Codes, x: Self::X) -> Self::Sum {
            if VNNI {
                return Self::dot(Self::sum_zero(), codes, x);
            }
            [_mm256_maddubs_epi16(codes[0], x), _mm256_maddubs_epi16(codes[1], x)]
        }
        fn dot(sum: Self::Sum, codes: Self::Codes, x: Self::X) -> Self::Sum {
            if VNNI {
                return [_mm256_dpbusd_avx_epi32(sum[0], codes[0], x), _mm256_dpbusd_avx_epi32(sum[1], codes[1], x)];
            }
            // Codes have at most six bits: 2 * 63 * 127 does not saturate.
            [
                add_i16(sum[0], _mm256_maddubs_epi16(codes[0], x)),
                add_i16(sum[1], _mm256_maddubs_epi16(codes[1], x)),
            ]
        }
        fn sum_total(sum: Self::Sum) -> Self::I {
            let ones = [_mm256_set1_epi16(1); 2];
            if VNNI { sum } else { both!(_mm256_madd_epi16; sum, ones) }
        }
        fn add_scaled(a: Self::Block, sum: Self::Sum, scale: Self::Scale) -> Self::Block {
            if VNNI {
                return Self::add_scaled_wide(a, sum, scale);
            }
            [
                add_i32(a[0], _mm256_madd_epi16(sum[0], scale[0])),
                add_i32(a[1], _mm256_madd_epi16(sum[1], scale[1])),
            ]
        }

        fn wide(a: Self::I) -> Self::Wide { a }
        fn wide_x(x: *const u8, abs: *const u8, flip: *const u8) -> Self::WideX {
            if VNNI {
                return [Self::x_broadcast(x); 2];
            }
            [Self::x_broadcast(abs), Self::x_broadcast(flip)]
        }
        fn wide_start(p: *const u8) -> Self::I { Self::i_broadcast(p) }
        fn dot_wide(sum: Self::I, codes: Self::Wide, x: Self::WideX) -> Self::I {
            if VNNI {
                return Self::dot(sum, codes, x[0]);
            }
            // With m = -1 where x < 0, else 0: w * x = |x| * (w ^ m) + |x| * -m, since w ^ -1 = -w - 1. The last
            // term does not depend on w; its sum is the start value. One xor with m ^ 128 also makes the code
            // signed. At most 2 * 128 * 127 = 32512, so nothing saturates.
            let ones = _mm256_set1_epi16(1);
            let [abs, flip] = x;
            let p0 = _mm256_maddubs_epi16(abs, _mm256_xor_si256(codes[0], flip));
            let p1 = _mm256_maddubs_epi16(abs, _mm256_xor_si256(codes[1], flip));
            [add_i32(sum[0], _mm256_madd_epi16(p0, ones)), add_i32(sum[1], _mm256_madd_epi16(p1, ones))]
        }
        fn add_scaled_wide(a: Self::Block, sum: Self::I, scale: Self::Scale) -> Self::Block {
            // Without VNNI the scale fills both halves of its lane; the product needs one sign-extended copy.
            let scale = if VNNI { scale } else { both!(_mm256_srai_epi32::<16>; scale) };
            let product = both!(_mm256_mullo_epi32; sum, scale);
            both!(_mm256_add_epi32; a, product)
        }
    }
}
