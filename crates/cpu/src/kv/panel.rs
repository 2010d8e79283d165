//! Decoding one head of one block to f32.
//!
//! Every product of a scale (11 bits) and a code (8 bits at most) is exact in f32.

use super::{BLOCK_TOKENS, GROUP, KvType};
use crate::isa::element::{Bf16, Element, F16, F32};
use crate::isa::{LANES, Simd};

/// Decodes the keys of half `half` of the positions to `[dim][16]`.
///
/// # Safety
/// The processor has `S`; `bytes` are a head's keys of `dim` elements of type `ty`; there is room at `out`.
#[inline(always)]
pub(crate) unsafe fn keys<S: Simd>(ty: KvType, bytes: &[u8], dim: usize, half: usize, out: *mut f32) {
    let groups = dim / GROUP;
    // SAFETY: as the caller promises; the offsets are those of the layout.
    unsafe {
        let start = bytes.as_ptr();
        let scale = |g: usize| S::f_load_f16(start.add((g * BLOCK_TOKENS + half * LANES) * 2));
        let codes = start.add(groups * 2 * BLOCK_TOKENS);
        match ty {
            KvType::F32 => plain::<S, F32>(start.add(half * dim * LANES * 4), dim, out),
            KvType::F16 => plain::<S, F16>(start.add(half * dim * LANES * 2), dim, out),
            KvType::BF16 => plain::<S, Bf16>(start.add(half * dim * LANES * 2), dim, out),
            KvType::Q8_0 => {
                let codes = codes.add(half * dim * LANES);
                for g in 0..groups {
                    let scale = scale(g);
                    for d in g * GROUP..(g + 1) * GROUP {
                        let code = S::f_from_i32(S::i_load_i8(codes.add(d * LANES)));
                        S::f_store(out.add(d * LANES), S::f_mul(scale, code));
                    }
                }
            }
            KvType::Q4_0 => {
                let codes = codes.add(half * dim / 2 * LANES);
                for g in 0..groups {
                    let scale = scale(g);
                    for j in 0..GROUP / 2 {
                        let (low, high) = nibbles::<S>(codes.add((g * GROUP / 2 + j) * LANES));
                        let out = out.add((g * GROUP + j) * LANES);
                        S::f_store(out, S::f_mul(scale, low));
                        S::f_store(out.add(GROUP / 2 * LANES), S::f_mul(scale, high));
                    }
                }
            }
        }
    }
}

/// Decodes values of `pad` elements to `[pad/16][P][16]`, where `stride` elements lie between two runs of `P`.
///
/// # Safety
/// The processor has `S`; `bytes` are a head's values of type `ty`; there is room at `out`.
#[inline(always)]
pub(crate) unsafe fn values<S: Simd>(ty: KvType, bytes: &[u8], pad: usize, out: *mut f32, stride: usize) {
    let groups = pad / GROUP;
    // SAFETY: as the caller promises; the offsets are those of the layout.
    unsafe {
        let start = bytes.as_ptr();
        let codes = start.add(groups * 2 * BLOCK_TOKENS);
        match ty {
            KvType::F32 => runs::<S, F32>(start, pad, out, stride),
            KvType::F16 => runs::<S, F16>(start, pad, out, stride),
            KvType::BF16 => runs::<S, Bf16>(start, pad, out, stride),
            KvType::Q8_0 | KvType::Q4_0 => {
                for g in 0..groups {
                    let mut scales = [0f32; BLOCK_TOKENS];
                    for (i, part) in scales.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
                        let scale = S::f_load_f16(start.add((g * BLOCK_TOKENS + i * LANES) * 2));
                        S::f_store(part.as_mut_ptr(), scale);
                    }
                    for (position, scale) in scales.iter().enumerate() {
                        let scale = S::f_splat(*scale);
                        let (low, high) = if ty == KvType::Q8_0 {
                            let at = codes.add((2 * g * BLOCK_TOKENS + position) * LANES);
                            let load = |at| S::f_from_i32(S::i_load_i8(at));
                            (load(at), load(at.add(BLOCK_TOKENS * LANES)))
                        } else {
                            nibbles::<S>(codes.add((g * BLOCK_TOKENS + position) * LANES))
                        };
                        let out = out.add(2 * g * stride + position * LANES);
                        S::f_store(out, S::f_mul(scale, low));
                        S::f_store(out.add(stride), S::f_mul(scale, high));
                    }
                }
            }
        }
    }
}

/// # Safety
/// The processor has `S`; `count` vectors lie at `from`, and there is room for them at `out`.
#[inline(always)]
unsafe fn plain<S: Simd, E: Element>(from: *const u8, count: usize, out: *mut f32) {
    for i in (0..count * LANES).step_by(LANES) {
        // SAFETY: as the caller promises.
        unsafe { S::f_store(out.add(i), E::load::<S>(from.add(i * E::BYTES))) };
    }
}

/// # Safety
/// As for [`values`].
#[inline(always)]
unsafe fn runs<S: Simd, E: Element>(from: *const u8, pad: usize, out: *mut f32, stride: usize) {
    for c in 0..pad / LANES {
        // SAFETY: as the caller promises.
        unsafe {
            let from = from.add(c * BLOCK_TOKENS * LANES * E::BYTES);
            plain::<S, E>(from, BLOCK_TOKENS, out.add(c * stride));
        }
    }
}

/// Low and high nibbles of 16 bytes, less 8.
///
/// # Safety
/// The processor has `S`; 16 bytes lie at `p`.
#[inline(always)]
unsafe fn nibbles<S: Simd>(p: *const u8) -> (S::F, S::F) {
    // SAFETY: as the caller promises.
    unsafe {
        let (bytes, eight) = (S::i_load_u8(p), S::i_splat(8));
        let low = S::i_sub(S::i_and(bytes, S::i_splat(15)), eight);
        (S::f_from_i32(low), S::f_from_i32(S::i_sub(S::i_shr::<4>(bytes), eight)))
    }
}
