//! Float types as vectors are loaded from them.

use super::Simd;

/// How 16 elements are read.
pub(crate) trait Element {
    /// Bytes of an element.
    const BYTES: usize;

    /// # Safety
    /// The processor has `S`; 16 elements lie at `p`.
    unsafe fn load<S: Simd>(p: *const u8) -> S::F;
}

/// IEEE single precision.
pub(crate) struct F32;
impl Element for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: as the caller promises.
        unsafe { S::f_load(p.cast()) }
    }
}

/// IEEE half precision.
pub(crate) struct F16;
impl Element for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: as the caller promises.
        unsafe { S::f_load_f16(p) }
    }
}

/// The upper half of an f32.
pub(crate) struct Bf16;
impl Element for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: as the caller promises.
        unsafe { S::f_load_bf16(p) }
    }
}
