//! Decoding one head of one block to f32: keys to `[k_dim][P]`, values to `[P][v_pad]`, P = [`BLOCK_TOKENS`].
//!
//! Every product of a scale (11 bits) and a code (8 bits at most) is exact in f32.

use super::{BLOCK_TOKENS, GROUP, KvType};
use crate::isa::element::{Bf16, Element, F16};
use crate::isa::{LANES, Simd};

/// Positions in vectors.
const VECTORS: usize = BLOCK_TOKENS / LANES;

/// Decodes keys of type `ty`.
///
/// # Safety
/// The processor has `S`; `bytes` are a head's keys of `dim` elements; `out` has room for `dim * P` elements.
#[inline(always)]
pub(crate) unsafe fn keys<S: Simd>(ty: KvType, bytes: &[u8], dim: usize, out: *mut f32) {
    let groups = dim / GROUP;
    // SAFETY: as the caller promises; the offsets are those of the layout.
    unsafe {
        let scales = bytes.as_ptr();
        let codes = scales.add(groups * 2 * BLOCK_TOKENS);
        match ty {
            KvType::F32 => out.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()),
            KvType::F16 => plain::<S, F16>(bytes, out),
            KvType::BF16 => plain::<S, Bf16>(bytes, out),
            KvType::Q8_0 => {
                for (g, c) in (0..groups).flat_map(|g| (0..VECTORS).map(move |c| (g, c))) {
                    let scale = S::f_load_f16(scales.add((g * BLOCK_TOKENS + c * LANES) * 2));
                    for d in g * GROUP..(g + 1) * GROUP {
                        let at = d * BLOCK_TOKENS + c * LANES;
                        let code = S::f_from_i32(S::i_load_i8(codes.add(at)));
                        S::f_store(out.add(at), S::f_mul(scale, code));
                    }
                }
            }
            KvType::Q4_0 => {
                for (g, c) in (0..groups).flat_map(|g| (0..VECTORS).map(move |c| (g, c))) {
                    let scale = S::f_load_f16(scales.add((g * BLOCK_TOKENS + c * LANES) * 2));
                    for j in 0..GROUP / 2 {
                        let byte = codes.add((g * GROUP / 2 + j) * BLOCK_TOKENS + c * LANES);
                        let (low, high) = nibbles::<S>(byte);
                        let at = (g * GROUP + j) * BLOCK_TOKENS + c * LANES;
                        S::f_store(out.add(at), S::f_mul(scale, low));
                        S::f_store(out.add(at + GROUP / 2 * BLOCK_TOKENS), S::f_mul(scale, high));
                    }
                }
            }
        }
    }
}

/// Decodes values of type `ty`.
///
/// # Safety
/// The processor has `S`; `bytes` are a head's values of `pad` elements, which are whole groups in the quantised
/// types; `out` has room for `P * pad` elements.
#[inline(always)]
pub(crate) unsafe fn values<S: Simd>(ty: KvType, bytes: &[u8], pad: usize, out: *mut f32) {
    let groups = pad / GROUP;
    // SAFETY: as the caller promises; the offsets are those of the layout.
    unsafe {
        let scales = bytes.as_ptr();
        let codes = scales.add(groups * 2 * BLOCK_TOKENS);
        match ty {
            KvType::F32 => out.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()),
            KvType::F16 => plain::<S, F16>(bytes, out),
            KvType::BF16 => plain::<S, Bf16>(bytes, out),
            KvType::Q8_0 | KvType::Q4_0 => {
                for (g, c) in (0..groups).flat_map(|g| (0..VECTORS).map(move |c| (g, c))) {
                    let mut lanes = [0f32; LANES];
                    let scale = S::f_load_f16(scales.add((g * BLOCK_TOKENS + c * LANES) * 2));
                    S::f_store(lanes.as_mut_ptr(), scale);
                    for (position, scale) in (c * LANES..).zip(lanes) {
                        let scale = S::f_splat(scale);
                        let group = position * groups + g;
                        let (low, high) = if ty == KvType::Q8_0 {
                            let at = codes.add(group * GROUP);
                            let load = |at| S::f_from_i32(S::i_load_i8(at));
                            (load(at), load(at.add(LANES)))
                        } else {
                            nibbles::<S>(codes.add(group * GROUP / 2))
                        };
                        let out = out.add(group * GROUP);
                        S::f_store(out, S::f_mul(scale, low));
                        S::f_store(out.add(LANES), S::f_mul(scale, high));
                    }
                }
            }
        }
    }
}

/// # Safety
/// The processor has `S`; `bytes` are whole vectors of elements, for which `out` has room.
#[inline(always)]
unsafe fn plain<S: Simd, E: Element>(bytes: &[u8], out: *mut f32) {
    for i in (0..bytes.len() / E::BYTES).step_by(LANES) {
        // SAFETY: as the caller promises.
        unsafe { S::f_store(out.add(i), E::load::<S>(bytes.as_ptr().add(i * E::BYTES))) };
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
