//! NEON with dot products, and with matrix products: a virtual vector is four registers; codes are made signed, so sums
//! start at zero.

use super::{LANES, Op, Simd, simd_functions};
use std::arch::aarch64::*;
use std::arch::asm;
use std::array::from_fn;

/// A machine with NEON and dot products, with or without 8-bit matrix products.
#[derive(Clone, Copy)]
pub(crate) struct Quads<const I8MM: bool>;

/// The machine with dot products alone.
pub(crate) type Neon = Quads<false>;
/// The machine with matrix products.
pub(crate) type I8mm = Quads<true>;

type Four<T> = [T; 4];

/// Applies an intrinsic to all four quarters.
macro_rules! all {
    ($f:expr; $($arg:expr),+) => { [$f($($arg[0]),+), $f($($arg[1]),+), $f($($arg[2]),+), $f($($arg[3]),+)] };
}

/// `sdot`, whose intrinsic is not stable yet.
///
/// # Safety
/// The processor has the dot-product instructions.
#[inline(always)]
unsafe fn sdot(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: works on its operands alone; the processor has the instruction.
    unsafe {
        asm!(
            ".arch_extension dotprod",
            "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b",
            sum = inout(vreg) sum, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// `sdot` with the four bytes in lane `LANE` of `x` for all lanes.
///
/// # Safety
/// The processor has the dot-product instructions.
#[inline(always)]
unsafe fn sdot_lane<const LANE: usize>(mut sum: int32x4_t, codes: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: works on its operands alone; the processor has the instruction.
    unsafe {
        asm!(
            ".arch_extension dotprod",
            "sdot {sum:v}.4s, {codes:v}.16b, {x:v}.4b[{lane}]",
            sum = inout(vreg) sum, codes = in(vreg) codes, x = in(vreg) x, lane = const LANE,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// `smmla`, whose intrinsic is not stable yet: each half of `a` times each half of `b`, eight products in a sum; lane
/// `2 * i + j` has half `i` of `a` and half `j` of `b`.
///
/// # Safety
/// The processor has the 8-bit matrix instructions.
#[inline(always)]
unsafe fn smmla(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: works on its operands alone; the processor has the instruction.
    unsafe {
        asm!(
            ".arch_extension i8mm",
            "smmla {sum:v}.4s, {a:v}.16b, {b:v}.16b",
            sum = inout(vreg) sum, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// The lower halves of `a` and `b`, and their upper halves.
///
/// # Safety
/// The processor has NEON.
#[inline(always)]
unsafe fn halves(a: int32x4_t, b: int32x4_t) -> [int32x4_t; 2] {
    // SAFETY: works on registers; the processor has the instructions.
    unsafe {
        let (a, b) = (vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b));
        [vreinterpretq_s32_s64(vzip1q_s64(a, b)), vreinterpretq_s32_s64(vzip2q_s64(a, b))]
    }
}

/// Four f16 at `p` as f32; the intrinsic is not stable yet.
///
/// # Safety
/// Eight bytes at `p` can be read.
#[inline(always)]
unsafe fn load_f16(p: *const u8) -> float32x4_t {
    let out: float32x4_t;
    // SAFETY: the caller vouches for `p`; the conversion is part of NEON.
    unsafe {
        let halves = vld1_u16(p.cast());
        asm!(
            "fcvtl {out:v}.4s, {halves:v}.4h",
            out = out(vreg) out, halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    out
}

/// Writes four f32 as f16 at `p`; the intrinsic is not stable yet.
///
/// # Safety
/// Eight bytes at `p` can be written.
#[inline(always)]
unsafe fn store_f16(p: *mut u8, a: float32x4_t) {
    let halves: uint16x4_t;
    // SAFETY: the caller vouches for `p`; the conversion is part of NEON.
    unsafe {
        asm!(
            "fcvtn {halves:v}.4h, {a:v}.4s",
            halves = out(vreg) halves, a = in(vreg) a,
            options(pure, nomem, nostack, preserves_flags)
        );
        vst1_u16(p.cast(), halves);
    }
}

/// `a` where `a > b`, else `b`: unlike `fmax`, as on x86 where a value is not a number.
///
/// # Safety
/// The processor has NEON.
#[inline(always)]
unsafe fn larger(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: works on registers; the processor has the instructions.
    unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
}

impl<const I8MM: bool> Simd for Quads<I8MM> {
    type F = Four<float32x4_t>;
    type I = Four<int32x4_t>;
    type X = int8x16_t;
    type Sum = Four<int32x4_t>;
    type Scale = Self::I;
    type Block = Self::I;
    type Codes = Four<int8x16_t>;
    type Wide = Four<int8x16_t>;
    type WideX = Self::X;

    const TOKENS: usize = 4;
    const PAIRS: bool = false;
    const ROWS: [usize; 2] = [6, 2];
    const EXPAND: bool = true;
    const EIGHTS: bool = true;
    const MAGNITUDES: bool = false;
    const BF16_BYTES: usize = 4;

    #[inline]
    unsafe fn enter<O: Op>(op: O) -> O::Output {
        #[target_feature(enable = "neon,dotprod")]
        unsafe fn without_i8mm<O: Op>(op: O) -> O::Output {
            // SAFETY: the features of this function are those of `Neon`.
            unsafe { op.call::<Neon>() }
        }
        #[target_feature(enable = "neon,dotprod,i8mm")]
        unsafe fn with_i8mm<O: Op>(op: O) -> O::Output {
            // SAFETY: the features of this function are those of `I8mm`.
            unsafe { op.call::<I8mm>() }
        }
        // SAFETY: the caller knows that the processor has them.
        unsafe { if I8MM { with_i8mm(op) } else { without_i8mm(op) } }
    }

    /// A matrix product takes two tokens and two rows, so that a lane of a sum is first one of two tokens and one of two
    /// rows; that they are sorted once, at the end, costs less than scales in the order of the products would.
    #[inline(always)]
    unsafe fn expanded_sums<const T: usize, const N: usize>(
        codes: *const u8,
        x: *const u8,
    ) -> Option<[Self::Sum; T]> {
        // SAFETY: as the caller promises: `N` times 128 bytes of codes, and eight activations for each token.
        unsafe {
            let mut sums = [Self::i_zero(); T];
            for n in 0..N {
                for t in (0..T).step_by(2) {
                    let x = vld1q_s8(x.add((n * T + t) * 8).cast());
                    for i in 0..4 {
                        let at = codes.add(128 * n + 32 * i).cast();
                        let (a, b) = (vld1q_s8(at), vld1q_s8(at.add(16)));
                        if I8MM {
                            sums[t][i] = smmla(sums[t][i], x, a);
                            sums[t + 1][i] = smmla(sums[t + 1][i], x, b);
                        } else {
                            sums[t][i] = sdot_lane::<1>(sdot_lane::<0>(sums[t][i], a, x), b, x);
                            sums[t + 1][i] = sdot_lane::<3>(sdot_lane::<2>(sums[t + 1][i], a, x), b, x);
                        }
                    }
                }
            }
            if I8MM {
                for t in (0..T).step_by(2) {
                    for i in 0..4 {
                        [sums[t][i], sums[t + 1][i]] = halves(sums[t][i], sums[t + 1][i]);
                    }
                }
            }
            Some(sums)
        }
    }

    simd_functions! {
        fn f_zero() -> Self::F { [vdupq_n_f32(0.0); 4] }
        fn f_load(p: *const f32) -> Self::F { from_fn(|i| vld1q_f32(p.add(4 * i))) }
        fn f_store(p: *mut f32, a: Self::F) { for i in 0..4 { vst1q_f32(p.add(4 * i), a[i]) } }
        fn f_broadcast(p: *const u8) -> Self::F { [vdupq_n_f32(p.cast::<f32>().read_unaligned()); 4] }
        fn f_load_f16(p: *const u8) -> Self::F { from_fn(|i| load_f16(p.add(8 * i))) }
        fn f_load_bf16(p: *const u8) -> Self::F {
            from_fn(|i| vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p.add(8 * i).cast()))))
        }
        fn f_from_i32(a: Self::I) -> Self::F { all!(vcvtq_f32_s32; a) }
        fn f_from_bits(a: Self::I) -> Self::F { all!(vreinterpretq_f32_s32; a) }
        fn f_add(a: Self::F, b: Self::F) -> Self::F { all!(vaddq_f32; a, b) }
        fn f_mul(a: Self::F, b: Self::F) -> Self::F { all!(vmulq_f32; a, b) }
        fn f_fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F { all!(vfmaq_f32; c, a, b) }
        fn f_fnma(a: Self::F, b: Self::F, c: Self::F) -> Self::F { all!(vfmsq_f32; c, a, b) }
        fn f_round(a: Self::F) -> Self::I { all!(vcvtnq_s32_f32; a) }
        fn f_bits(a: Self::F) -> Self::I { all!(vreinterpretq_s32_f32; a) }
        fn f_splat(a: f32) -> Self::F { [vdupq_n_f32(a); 4] }
        fn f_sub(a: Self::F, b: Self::F) -> Self::F { all!(vsubq_f32; a, b) }
        fn f_div(a: Self::F, b: Self::F) -> Self::F { all!(vdivq_f32; a, b) }
        fn f_max(a: Self::F, b: Self::F) -> Self::F { all!(larger; a, b) }
        fn f_min(a: Self::F, b: Self::F) -> Self::F { Self::f_where_lt(a, b, a, b) }
        fn f_where_lt(a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F {
            from_fn(|i| vbslq_f32(vcltq_f32(a[i], b[i]), x[i], y[i]))
        }
        fn f_sum(a: Self::F) -> f32 {
            let a = vaddq_f32(vaddq_f32(a[0], a[2]), vaddq_f32(a[1], a[3]));
            vpadds_f32(vadd_f32(vget_low_f32(a), vget_high_f32(a)))
        }
        fn f_largest(a: Self::F) -> f32 {
            let a = larger(larger(a[0], a[2]), larger(a[1], a[3]));
            let a = larger(a, vextq_f32::<2>(a, a));
            vgetq_lane_f32::<0>(larger(a, vextq_f32::<1>(a, a)))
        }
        fn f_store_f16(p: *mut u8, a: Self::F) { for i in 0..4 { store_f16(p.add(8 * i), a[i]) } }

        fn i_zero() -> Self::I { [vdupq_n_s32(0); 4] }
        fn i_splat(a: i32) -> Self::I { [vdupq_n_s32(a); 4] }
        fn i_load(p: *const u8) -> Self::I { from_fn(|i| vreinterpretq_s32_u8(vld1q_u8(p.add(16 * i)))) }
        fn i_store(p: *mut u8, a: Self::I) { for i in 0..4 { vst1q_u8(p.add(16 * i), vreinterpretq_u8_s32(a[i])) } }
        fn i_load_u8(p: *const u8) -> Self::I {
            let bytes = vld1q_u8(p);
            let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
            let words = [
                vmovl_u16(vget_low_u16(low)), vmovl_high_u16(low), vmovl_u16(vget_low_u16(high)), vmovl_high_u16(high),
            ];
            all!(vreinterpretq_s32_u32; words)
        }
        fn i_load_u16(p: *const u8) -> Self::I {
            from_fn(|i| vreinterpretq_s32_u32(vmovl_u16(vld1_u16(p.add(8 * i).cast()))))
        }
        fn i_load_i8(p: *const u8) -> Self::I {
            let bytes = vld1q_s8(p.cast());
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
            [vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)]
        }
        fn i_broadcast(p: *const u8) -> Self::I { [vdupq_n_s32(p.cast::<i32>().read_unaligned()); 4] }
        fn i_add(a: Self::I, b: Self::I) -> Self::I { all!(vaddq_s32; a, b) }
        fn i_sub(a: Self::I, b: Self::I) -> Self::I { all!(vsubq_s32; a, b) }
        fn i_dot_pairs(sum: Self::I, a: Self::I, b: Self::I) -> Self::I {
            from_fn(|i| {
                let sum = vmlal_s16(sum[i], vmovn_s32(a[i]), vmovn_s32(b[i]));
                vmlal_s16(sum, vshrn_n_s32::<16>(a[i]), vshrn_n_s32::<16>(b[i]))
            })
        }
        fn i_pair_sums(a: Self::I) -> Self::I {
            from_fn(|i| vreinterpretq_s32_s16(vpaddlq_s8(vreinterpretq_s8_s32(a[i]))))
        }
        fn i_max(a: Self::I, b: Self::I) -> Self::I { all!(vmaxq_s32; a, b) }
        fn i_largest(a: Self::I) -> i32 { vmaxvq_s32(vmaxq_s32(vmaxq_s32(a[0], a[1]), vmaxq_s32(a[2], a[3]))) }
        fn i_to_i8(a: Self::I) -> [i8; LANES] {
            let low = vmovn_high_s32(vmovn_s32(a[0]), a[1]);
            let high = vmovn_high_s32(vmovn_s32(a[2]), a[3]);
            let mut out = [0; LANES];
            vst1q_s8(out.as_mut_ptr(), vmovn_high_s16(vmovn_s16(low), high));
            out
        }
        fn i_add_bytes(a: Self::I, b: Self::I) -> Self::I {
            from_fn(|i| {
                vreinterpretq_s32_u8(vaddq_u8(vreinterpretq_u8_s32(a[i]), vreinterpretq_u8_s32(b[i])))
            })
        }
        fn i_and(a: Self::I, b: Self::I) -> Self::I { all!(vandq_s32; a, b) }
        fn i_or(a: Self::I, b: Self::I) -> Self::I { all!(vorrq_s32; a, b) }
        fn i_shl<const N: i32>(a: Self::I) -> Self::I {
            let n = [vdupq_n_s32(N); 4];
            all!(vshlq_s32; a, n)
        }
        fn i_shr<const N: i32>(a: Self::I) -> Self::I {
            from_fn(|i| vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a[i]), vdupq_n_s32(-N))))
        }
        fn i_lookup(table: &[u8; 16], a: Self::I) -> Self::I {
            let table = vld1q_u8(table.as_ptr());
            from_fn(|i| vreinterpretq_s32_u8(vqtbl1q_u8(table, vreinterpretq_u8_s32(a[i]))))
        }

        fn scale_u8(a: Self::I) -> Self::Scale { Self::i_and(a, Self::i_splat(255)) }
        fn scale_i8(a: Self::I) -> Self::Scale { from_fn(|i| vshrq_n_s32::<24>(vshlq_n_s32::<24>(a[i]))) }
        fn block_zero() -> Self::Block { Self::i_zero() }
        fn block_total(a: Self::Block) -> Self::F { Self::f_from_i32(a) }

        fn x_broadcast(p: *const u8) -> Self::X { vreinterpretq_s8_s32(vdupq_n_s32(p.cast::<i32>().read_unaligned())) }
        fn codes(a: Self::I, offset: u8) -> Self::Codes {
            from_fn(|i| vsubq_s8(vreinterpretq_s8_s32(a[i]), vdupq_n_s8(offset as i8)))
        }
        fn sum_zero() -> Self::Sum { Self::i_zero() }
        fn sum_start(_p: *const u8) -> Self::Sum { Self::i_zero() }
        fn sum_at(p: *const u8) -> Self::Sum { Self::i_broadcast(p) }
        fn sum_start_eighth(_p: *const u8) -> Self::Sum { Self::i_zero() }
        fn dot(sum: Self::Sum, codes: Self::Codes, x: Self::X) -> Self::Sum { from_fn(|i| sdot(sum[i], codes[i], x)) }
        fn sum_total(sum: Self::Sum) -> Self::I { sum }
        fn add_scaled(a: Self::Block, sum: Self::Sum, scale: Self::Scale) -> Self::Block { all!(vmlaq_s32; a, sum, scale) }

        fn wide(a: Self::I) -> Self::Wide {
            from_fn(|i| vreinterpretq_s8_u8(veorq_u8(vreinterpretq_u8_s32(a[i]), vdupq_n_u8(0x80))))
        }
        fn wide_x(x: *const u8, _abs: *const u8, _flip: *const u8) -> Self::WideX { Self::x_broadcast(x) }
        fn wide_start(_p: *const u8) -> Self::I { Self::i_zero() }
        fn dot_wide(sum: Self::I, codes: Self::Wide, x: Self::WideX) -> Self::I { from_fn(|i| sdot(sum[i], codes[i], x)) }
        fn add_scaled_wide(a: Self::Block, sum: Self::I, scale: Self::Scale) -> Self::Block { all!(vmlaq_s32; a, sum, scale) }

        /// For each four rows the first and the last four columns; for matrix products two rows with eight columns each.
        fn expand(p: *mut u8, codes: [Self::I; 2], offset: u8) {
            let (first, last) = (Self::codes(codes[0], offset), Self::codes(codes[1], offset));
            let (first, last) = (all!(vreinterpretq_s32_s8; first), all!(vreinterpretq_s32_s8; last));
            for i in 0..4 {
                let (a, b) = (first[i], last[i]);
                let pair = if I8MM { [vzip1q_s32(a, b), vzip2q_s32(a, b)] } else { [a, b] };
                vst1q_s32(p.add(32 * i).cast(), pair[0]);
                vst1q_s32(p.add(32 * i + 16).cast(), pair[1]);
            }
        }
    }
}
