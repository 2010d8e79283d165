//! AVX-512 with VNNI, with or without BF16: a virtual vector is one register.

use super::avx2::{largest_of_8, sum_of_8};
use super::{LANES, Op, Simd, add_pairs_by_columns, simd_functions, store_words_one_by_one};
use std::arch::x86_64::*;

/// A machine with AVX-512, with or without AVX-512 BF16.
#[derive(Clone, Copy)]
pub(crate) struct Zmm<const BF16: bool>;

/// The AVX-512 machine.
pub(crate) type Avx512 = Zmm<false>;
/// The AVX-512 machine with AVX-512 BF16.
pub(crate) type Avx512Bf16 = Zmm<true>;

impl<const BF16: bool> Simd for Zmm<BF16> {
    type F = __m512;
    type I = __m512i;
    type X = __m512i;
    type Sum = __m512i;
    // A product of 32-bit integers is two instructions on Intel's processors; of floats one.
    type Scale = __m512;
    type Block = __m512;
    type Codes = __m512i;
    type Wide = __m512i;
    type WideX = Self::X;

    const TOKENS: usize = 8;
    const PAIRS: bool = false;
    const ROWS: [usize; 2] = [12, 12];
    const EXPAND: bool = false;
    const EIGHTS: bool = false;
    const MAGNITUDES: bool = false;
    const BF16_BYTES: usize = if BF16 { 2 } else { 4 };

    #[inline]
    unsafe fn enter<O: Op>(op: O) -> O::Output {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
        unsafe fn without_bf16<O: Op>(op: O) -> O::Output {
            // SAFETY: the features of this function are those of `Avx512`.
            unsafe { op.call::<Avx512>() }
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx2,fma,f16c")]
        unsafe fn with_bf16<O: Op>(op: O) -> O::Output {
            // SAFETY: the features of this function are those of `Avx512Bf16`.
            unsafe { op.call::<Avx512Bf16>() }
        }
        // SAFETY: the caller knows that the processor has them.
        unsafe { if BF16 { with_bf16(op) } else { without_bf16(op) } }
    }

    /// The instruction adds the product of the high halves first, then that of the low halves, each sum rounded to nearest
    /// even. It takes subnormal numbers for zero, of which [`bf16`](crate::bf16) leaves none.
    #[inline(always)]
    unsafe fn add_bf16_pairs<const T: usize>(sums: &mut [Self::F; T], w: Self::I, a: *const u8) {
        // SAFETY: as the caller promises; all types are 64 bytes without padding, and take any bits.
        unsafe {
            if !BF16 {
                return add_pairs_by_columns::<Self, T>(sums, w, a);
            }
            let pairs = |a: __m512i| std::mem::transmute::<__m512i, __m512bh>(a);
            for (t, sum) in sums.iter_mut().enumerate() {
                *sum = _mm512_dpbf16_ps(*sum, pairs(w), pairs(Self::i_broadcast(a.add(4 * t))));
            }
        }
    }

    #[inline(always)]
    fn about_to_write(p: *const u8) {
        // SAFETY: asking changes no memory and accepts any address.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(p.cast()) }
    }

    #[inline(always)]
    unsafe fn i_store_words<const R: usize>(p: *mut u8, rows: &[[Self::I; 2]; R]) {
        // SAFETY: the caller has room for all words.
        unsafe {
            if R != 8 {
                return store_words_one_by_one::<Self, R>(p, rows);
            }
            // Words `2 * pair` and `2 * pair + 1` of eight rows, where four rows of four words lie in each of two vectors.
            let first = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
            for half in [0, 1] {
                let mut fours = [_mm512_setzero_si512(); 2];
                for (four, rows) in fours.iter_mut().zip(rows.as_chunks::<4>().0) {
                    let low = _mm512_zextsi128_si512(_mm512_cvtepi32_epi8(rows[0][half]));
                    let low = _mm512_inserti32x4::<1>(low, _mm512_cvtepi32_epi8(rows[1][half]));
                    let high = _mm512_inserti32x4::<2>(low, _mm512_cvtepi32_epi8(rows[2][half]));
                    *four = _mm512_inserti32x4::<3>(high, _mm512_cvtepi32_epi8(rows[3][half]));
                }
                for pair in [0, 1] {
                    let order = _mm512_add_epi32(first, _mm512_set1_epi32(2 * pair as i32));
                    let words = _mm512_permutex2var_epi32(fours[0], order, fours[1]);
                    Self::i_store(p.add(128 * half + 64 * pair), words);
                }
            }
        }
    }

    simd_functions! {
        fn f_zero() -> Self::F { _mm512_setzero_ps() }
        fn f_load(p: *const f32) -> Self::F { _mm512_loadu_ps(p) }
        fn f_store(p: *mut f32, a: Self::F) { _mm512_storeu_ps(p, a) }
        fn f_broadcast(p: *const u8) -> Self::F { _mm512_set1_ps(p.cast::<f32>().read_unaligned()) }
        fn f_load_f16(p: *const u8) -> Self::F { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
        fn f_load_bf16(p: *const u8) -> Self::F { Self::f_from_bits(Self::i_shl::<16>(Self::i_load_u16(p))) }
        fn f_from_i32(a: Self::I) -> Self::F { _mm512_cvtepi32_ps(a) }
        fn f_from_bits(a: Self::I) -> Self::F { _mm512_castsi512_ps(a) }
        fn f_add(a: Self::F, b: Self::F) -> Self::F { _mm512_add_ps(a, b) }
        fn f_mul(a: Self::F, b: Self::F) -> Self::F { _mm512_mul_ps(a, b) }
        fn f_fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F { _mm512_fmadd_ps(a, b, c) }
        fn f_fnma(a: Self::F, b: Self::F, c: Self::F) -> Self::F { _mm512_fnmadd_ps(a, b, c) }
        fn f_round(a: Self::F) -> Self::I { _mm512_cvtps_epi32(a) }
        fn f_bits(a: Self::F) -> Self::I { _mm512_castps_si512(a) }
        fn f_splat(a: f32) -> Self::F { _mm512_set1_ps(a) }
        fn f_sub(a: Self::F, b: Self::F) -> Self::F { _mm512_sub_ps(a, b) }
        fn f_div(a: Self::F, b: Self::F) -> Self::F { _mm512_div_ps(a, b) }
        fn f_max(a: Self::F, b: Self::F) -> Self::F { _mm512_max_ps(a, b) }
        fn f_min(a: Self::F, b: Self::F) -> Self::F { _mm512_min_ps(a, b) }
        fn f_where_lt(a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F {
            _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), y, x)
        }
        fn f_sum(a: Self::F) -> f32 {
            sum_of_8(_mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a)))
        }
        fn f_largest(a: Self::F) -> f32 {
            largest_of_8(_mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a)))
        }
        fn f_store_f16(p: *mut u8, a: Self::F) {
            _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(a))
        }

        fn i_zero() -> Self::I { _mm512_setzero_si512() }
        fn i_splat(a: i32) -> Self::I { _mm512_set1_epi32(a) }
        fn i_load(p: *const u8) -> Self::I { _mm512_loadu_si512(p.cast()) }
        fn i_store(p: *mut u8, a: Self::I) { _mm512_storeu_si512(p.cast(), a) }
        fn i_load_u8(p: *const u8) -> Self::I { _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())) }
        fn i_load_u16(p: *const u8) -> Self::I { _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast())) }
        fn i_load_i8(p: *const u8) -> Self::I { _mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())) }
        fn i_broadcast(p: *const u8) -> Self::I { _mm512_set1_epi32(p.cast::<i32>().read_unaligned()) }
        fn i_add(a: Self::I, b: Self::I) -> Self::I { _mm512_add_epi32(a, b) }
        fn i_sub(a: Self::I, b: Self::I) -> Self::I { _mm512_sub_epi32(a, b) }
        fn i_dot_pairs(sum: Self::I, a: Self::I, b: Self::I) -> Self::I { _mm512_dpwssd_epi32(sum, a, b) }
        fn i_pair_sums(a: Self::I) -> Self::I { _mm512_maddubs_epi16(_mm512_set1_epi8(1), a) }
        fn i_max(a: Self::I, b: Self::I) -> Self::I { _mm512_max_epi32(a, b) }
        fn i_largest(a: Self::I) -> i32 { _mm512_reduce_max_epi32(a) }
        fn i_to_i8(a: Self::I) -> [i8; LANES] {
            let mut out = [0; LANES];
            _mm_storeu_si128(out.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(a));
            out
        }
        fn i_add_bytes(a: Self::I, b: Self::I) -> Self::I { _mm512_add_epi8(a, b) }
        fn i_and(a: Self::I, b: Self::I) -> Self::I { _mm512_and_si512(a, b) }
        fn i_or(a: Self::I, b: Self::I) -> Self::I { _mm512_or_si512(a, b) }
        fn i_shl<const N: i32>(a: Self::I) -> Self::I { _mm512_sll_epi32(a, _mm_cvtsi32_si128(N)) }
        fn i_shr<const N: i32>(a: Self::I) -> Self::I { _mm512_srl_epi32(a, _mm_cvtsi32_si128(N)) }
        fn i_lookup(table: &[u8; 16], a: Self::I) -> Self::I {
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), a)
        }

        fn scale_u8(a: Self::I) -> Self::Scale {
            _mm512_cvtepi32_ps(_mm512_and_si512(a, _mm512_set1_epi32(255)))
        }
        fn scale_i8(a: Self::I) -> Self::Scale {
            _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(a)))
        }
        fn block_zero() -> Self::Block { _mm512_setzero_ps() }
        fn block_total(a: Self::Block) -> Self::F { a }

        fn x_broadcast(p: *const u8) -> Self::X { Self::i_broadcast(p) }
        fn codes(a: Self::I, _offset: u8) -> Self::Codes { a }
        fn sum_zero() -> Self::Sum { _mm512_setzero_si512() }
        fn sum_start(p: *const u8) -> Self::Sum { Self::i_broadcast(p) }
        fn sum_at(p: *const u8) -> Self::Sum { Self::i_broadcast(p) }
        fn sum_start_eighth(p: *const u8) -> Self::Sum { _mm512_srai_epi32::<3>(Self::i_broadcast(p)) }
        fn dot(sum: Self::Sum, codes: Self::Codes, x: Self::X) -> Self::Sum { _mm512_dpbusd_epi32(sum, codes, x) }
        fn sum_total(sum: Self::Sum) -> Self::I { sum }
        fn add_scaled(a: Self::Block, sum: Self::Sum, scale: Self::Scale) -> Self::Block {
            _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, a)
        }

        fn wide(a: Self::I) -> Self::Wide { a }
        fn wide_x(x: *const u8, _abs: *const u8, _flip: *const u8) -> Self::WideX { Self::x_broadcast(x) }
        fn wide_start(p: *const u8) -> Self::I { Self::i_broadcast(p) }
        fn dot_wide(sum: Self::I, codes: Self::Wide, x: Self::WideX) -> Self::I { _mm512_dpbusd_epi32(sum, codes, x) }
        fn add_scaled_wide(a: Self::Block, sum: Self::I, scale: Self::Scale) -> Self::Block {
            Self::add_scaled(a, sum, scale)
        }
    }
}
