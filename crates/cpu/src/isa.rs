//! Instruction sets, and the virtual vectors of 16 lanes that every kernel is written in.

use crate::CpuError;

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod element;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
pub(crate) mod scalar;

/// Lanes of a virtual vector: rows of a row group.
pub(crate) const LANES: usize = 16;

/// An instruction set that kernels exist for; results are the same bits in each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Plain code for any processor.
    Scalar,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX2, FMA, F16C and AVX-VNNI.
    AvxVnni,
    /// AVX-512 F, BW, VL, DQ and VNNI.
    Avx512,
    /// The same with AVX-512 BF16.
    Avx512Bf16,
    /// NEON with the dot-product instructions.
    Neon,
    /// NEON with the dot-product and the 8-bit matrix instructions.
    I8mm,
}

impl Isa {
    /// All instruction sets, the plainest first.
    pub const ALL: [Isa; 7] =
        [Isa::Scalar, Isa::Avx2, Isa::AvxVnni, Isa::Avx512, Isa::Avx512Bf16, Isa::Neon, Isa::I8mm];

    /// The name, as [`from_name`](Isa::from_name) reads it.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::AvxVnni => "avxvnni",
            Isa::Avx512 => "avx512",
            Isa::Avx512Bf16 => "avx512bf16",
            Isa::Neon => "neon",
            Isa::I8mm => "i8mm",
        }
    }

    /// The instruction set with this name.
    ///
    /// # Errors
    /// [`CpuError::UnknownIsa`] with all names.
    pub fn from_name(name: &str) -> Result<Isa, CpuError> {
        Isa::ALL
            .into_iter()
            .find(|isa| isa.name() == name)
            .ok_or_else(|| CpuError::UnknownIsa { name: name.to_owned(), known: names(|_| true) })
    }

    /// Whether this processor and system have it.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => Isa::Avx2.is_available() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => Isa::Avx512.is_available() && is_x86_feature_detected!("avx512bf16"),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => std::arch::is_aarch64_feature_detected!("dotprod"),
            #[cfg(target_arch = "aarch64")]
            Isa::I8mm => Isa::Neon.is_available() && std::arch::is_aarch64_feature_detected!("i8mm"),
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }

    /// The fastest one of this processor.
    pub fn best() -> Isa {
        Isa::ALL.into_iter().rev().find(|isa| isa.is_available()).unwrap_or(Isa::Scalar)
    }

    /// `wanted`, or the fastest one where nothing is wanted.
    ///
    /// # Errors
    /// [`CpuError::MissingIsa`] where the processor lacks it.
    pub fn select(wanted: Option<Isa>) -> Result<Isa, CpuError> {
        match wanted {
            None => Ok(Isa::best()),
            Some(isa) if isa.is_available() => Ok(isa),
            Some(isa) => Err(CpuError::MissingIsa { isa, available: names(Isa::is_available) }),
        }
    }

    /// Runs `op` compiled for this instruction set.
    ///
    /// # Panics
    /// Where the processor lacks it; every `Isa` that reaches a kernel went through [`select`](Isa::select).
    #[inline]
    pub(crate) fn dispatch<O: Op>(self, op: O) -> O::Output {
        assert!(self.is_available(), "{self} on a processor without it");
        // SAFETY: the caller took `self` from `select`, which checks the processor.
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => avx2::Avx2::enter(op),
                #[cfg(target_arch = "x86_64")]
                Isa::AvxVnni => avx2::AvxVnni::enter(op),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => avx512::Avx512::enter(op),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512Bf16 => avx512::Avx512Bf16::enter(op),
                #[cfg(target_arch = "aarch64")]
                Isa::Neon => neon::Neon::enter(op),
                #[cfg(target_arch = "aarch64")]
                Isa::I8mm => neon::I8mm::enter(op),
                _ => scalar::Scalar::enter(op),
            }
        }
    }
}

impl std::fmt::Display for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

fn names(keep: impl Fn(Isa) -> bool) -> String {
    Isa::ALL.into_iter().filter(|isa| keep(*isa)).map(Isa::name).collect::<Vec<_>>().join(", ")
}

/// Code that can be compiled for every instruction set.
pub(crate) trait Op {
    /// What the code returns.
    type Output;

    /// The code; implementations are `#[inline(always)]`, so that it is compiled with the features of `S`.
    ///
    /// # Safety
    /// The processor has `S`.
    unsafe fn call<S: Simd>(self) -> Self::Output;
}

/// A virtual vector machine: 16 lanes of 32 bits, each lane a row of a row group.
///
/// Integer dot products work on *codes* (unsigned bytes, four of one row in a lane) and on a broadcast group of
/// four signed activations in -127..=127. A *narrow* product is for codes of at most six bits and may sum in
/// 16 bits on the way; the formats prove that their sums fit. A *wide* product is for eight-bit codes with
/// offset 128. Both are exact, so the way does not matter for the result.
///
/// All float operations are IEEE single precision, each rounded once, subnormals kept.
///
/// # Safety
/// Of every function: the processor has the instruction set; pointers are valid for what the name says, at any
/// alignment.
#[allow(clippy::missing_safety_doc)]
pub(crate) trait Simd: Copy + 'static {
    /// 16 f32.
    type F: Copy;
    /// 16 i32, or 64 bytes.
    type I: Copy;
    /// Four activations, for all lanes.
    type X: Copy;
    /// Running narrow product.
    type Sum: Copy;
    /// Integer factors of sums.
    type Scale: Copy;
    /// Sum of scaled sums, an exact integer below 2^24 in each lane: as integers, or as floats where that is faster.
    type Block: Copy;
    /// Codes ready for the narrow product.
    type Codes: Copy;
    /// Codes ready for the wide product.
    type Wide: Copy;
    /// Four activations for the wide product, for all lanes.
    type WideX: Copy;

    /// Most tokens in a tile: as many as the registers hold sums for.
    const TOKENS: usize;
    /// Whether narrow products sum in 16 bits, two sums in a lane.
    const PAIRS: bool;
    /// Most rows of a float product that the registers hold sums for: with one vector of columns, and with two.
    const ROWS: [usize; 2];
    /// Whether matrix products of all types gain from codes expanded to bytes once for many tiles.
    const EXPAND: bool;
    /// Whether activations lie in groups of eight of one token, for [`expanded_sums`](Simd::expanded_sums), not of four.
    const EIGHTS: bool;
    /// Whether wide products need activations as absolute values and sign masks, and the sums of the negative ones.
    const MAGNITUDES: bool;
    /// Bytes of an activation for BF16 weights: 2 where an instruction multiplies pairs of bf16, else 4, those of an f32.
    const BF16_BYTES: usize;

    /// Runs `op` compiled for this instruction set.
    unsafe fn enter<O: Op>(op: O) -> O::Output;

    unsafe fn f_zero() -> Self::F;
    unsafe fn f_load(p: *const f32) -> Self::F;
    unsafe fn f_store(p: *mut f32, a: Self::F);
    /// The f32 at `p`, in all lanes.
    unsafe fn f_broadcast(p: *const u8) -> Self::F;
    /// 16 f16 at `p`.
    unsafe fn f_load_f16(p: *const u8) -> Self::F;
    /// 16 bf16 at `p`.
    unsafe fn f_load_bf16(p: *const u8) -> Self::F;
    unsafe fn f_from_i32(a: Self::I) -> Self::F;
    unsafe fn f_from_bits(a: Self::I) -> Self::F;
    unsafe fn f_add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn f_mul(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    unsafe fn f_fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `c - a * b`, rounded once.
    unsafe fn f_fnma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The nearest integers, ties to even; the values fit in an i32.
    unsafe fn f_round(a: Self::F) -> Self::I;
    unsafe fn f_bits(a: Self::F) -> Self::I;
    unsafe fn f_splat(a: f32) -> Self::F;
    unsafe fn f_sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn f_div(a: Self::F, b: Self::F) -> Self::F;
    /// `a` where `a > b`, else `b`.
    unsafe fn f_max(a: Self::F, b: Self::F) -> Self::F;
    /// `a` where `a < b`, else `b`.
    unsafe fn f_min(a: Self::F, b: Self::F) -> Self::F;
    /// `x` where `a < b`, else `y`.
    unsafe fn f_where_lt(a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F;
    /// The sum of the lanes: lane i and lane i + 8 first, then i + 4, i + 2, i + 1.
    unsafe fn f_sum(a: Self::F) -> f32;
    /// The largest lane, by [`f_max`](Simd::f_max) in the order of [`f_sum`](Simd::f_sum).
    unsafe fn f_largest(a: Self::F) -> f32;
    /// Writes 16 f16, rounded to the nearest, ties to even.
    unsafe fn f_store_f16(p: *mut u8, a: Self::F);
    /// Adds the products of two columns of bf16, pairs in the lanes of `w`, with `T` tokens at `a`: the column in the high
    /// half first, then that in the low half, each sum rounded. Activations are pairs alike, or two f32 `T` elements apart.
    /// Nothing is subnormal: see [`bf16`](crate::bf16).
    #[inline(always)]
    unsafe fn add_bf16_pairs<const T: usize>(sums: &mut [Self::F; T], w: Self::I, a: *const u8) {
        // SAFETY: as the caller promises.
        unsafe { add_pairs_by_columns::<Self, T>(sums, w, a) }
    }

    /// `p`, in disguise number `N`: what was loaded from it before is loaded again, where keeping it would cost
    /// registers.
    #[inline(always)]
    unsafe fn again<const N: usize>(p: *const u8) -> *const u8 {
        p
    }

    /// Asks for the memory around `p`, which will soon be written, where the processor lets programs do so.
    #[inline(always)]
    fn about_to_write(_p: *const u8) {}

    unsafe fn i_zero() -> Self::I;
    unsafe fn i_splat(a: i32) -> Self::I;
    /// 64 bytes at `p`.
    unsafe fn i_load(p: *const u8) -> Self::I;
    unsafe fn i_store(p: *mut u8, a: Self::I);
    /// 16 u8 at `p`, widened.
    unsafe fn i_load_u8(p: *const u8) -> Self::I;
    /// 16 u16 at `p`, widened.
    unsafe fn i_load_u16(p: *const u8) -> Self::I;
    /// 16 i8 at `p`, widened.
    unsafe fn i_load_i8(p: *const u8) -> Self::I;
    /// The i32 at `p`, in all lanes.
    unsafe fn i_broadcast(p: *const u8) -> Self::I;
    unsafe fn i_add(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn i_sub(a: Self::I, b: Self::I) -> Self::I;
    /// `sum` plus the two products of the i16 in each lane; they fit.
    unsafe fn i_dot_pairs(sum: Self::I, a: Self::I, b: Self::I) -> Self::I;
    /// Sums of the first two and of the last two signed bytes of each lane, as i16.
    unsafe fn i_pair_sums(a: Self::I) -> Self::I;
    unsafe fn i_max(a: Self::I, b: Self::I) -> Self::I;
    /// The largest of the 16 lanes.
    unsafe fn i_largest(a: Self::I) -> i32;
    /// The lanes, which fit in an i8, as bytes.
    unsafe fn i_to_i8(a: Self::I) -> [i8; LANES];
    /// Writes rows of 32 values, which fit in an i8, as words of four bytes, `[8][R]`.
    #[inline(always)]
    unsafe fn i_store_words<const R: usize>(p: *mut u8, rows: &[[Self::I; 2]; R]) {
        // SAFETY: as the caller promises.
        unsafe { store_words_one_by_one::<Self, R>(p, rows) }
    }
    /// Sums of bytes, without carry between them.
    unsafe fn i_add_bytes(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn i_and(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn i_or(a: Self::I, b: Self::I) -> Self::I;
    /// Lanes shifted left.
    unsafe fn i_shl<const N: i32>(a: Self::I) -> Self::I;
    /// Lanes shifted right, zeros coming in.
    unsafe fn i_shr<const N: i32>(a: Self::I) -> Self::I;
    /// `table[byte]` for every byte, all below 16.
    unsafe fn i_lookup(table: &[u8; 16], a: Self::I) -> Self::I;

    /// The lowest byte of each lane, unsigned, as a factor for [`add_scaled`](Simd::add_scaled).
    unsafe fn scale_u8(a: Self::I) -> Self::Scale;
    /// The lowest byte of each lane, signed, as a factor for [`add_scaled`](Simd::add_scaled).
    unsafe fn scale_i8(a: Self::I) -> Self::Scale;
    /// No sums.
    unsafe fn block_zero() -> Self::Block;
    /// The block's sum.
    unsafe fn block_total(a: Self::Block) -> Self::F;

    /// Four activations at `p`.
    unsafe fn x_broadcast(p: *const u8) -> Self::X;
    /// Readies codes whose offset is `offset`.
    unsafe fn codes(a: Self::I, offset: u8) -> Self::Codes;
    /// An empty sum, for codes without an offset.
    unsafe fn sum_zero() -> Self::Sum;
    /// An empty sum, given the start value at `p`: minus the offset times the sum of the activations.
    unsafe fn sum_start(p: *const u8) -> Self::Sum;
    /// The start value at `p` as a sum, for every instruction set.
    unsafe fn sum_at(p: *const u8) -> Self::Sum;
    /// An empty sum for offset 4, given the start value for offset 32 at `p`.
    unsafe fn sum_start_eighth(p: *const u8) -> Self::Sum;
    /// The first products of a sum without a start value.
    #[inline(always)]
    unsafe fn dot_first(codes: Self::Codes, x: Self::X) -> Self::Sum {
        // SAFETY: as the caller promises.
        unsafe { Self::dot(Self::sum_zero(), codes, x) }
    }
    unsafe fn dot(sum: Self::Sum, codes: Self::Codes, x: Self::X) -> Self::Sum;
    unsafe fn sum_total(sum: Self::Sum) -> Self::I;
    /// `a` plus the total of `sum` times `scale`.
    unsafe fn add_scaled(a: Self::Block, sum: Self::Sum, scale: Self::Scale) -> Self::Block;

    /// Readies codes whose offset is 128.
    unsafe fn wide(a: Self::I) -> Self::Wide;
    /// Four activations: at `x` as they are, at `abs` and `flip` as absolute values and as sign masks xor 128.
    unsafe fn wide_x(x: *const u8, abs: *const u8, flip: *const u8) -> Self::WideX;
    /// An empty sum, given the start value at `p`.
    unsafe fn wide_start(p: *const u8) -> Self::I;
    unsafe fn dot_wide(sum: Self::I, codes: Self::Wide, x: Self::WideX) -> Self::I;
    /// `a` plus `sum` times `scale`, which is in -32..=31.
    unsafe fn add_scaled_wide(a: Self::Block, sum: Self::I, scale: Self::Scale) -> Self::Block;

    /// Writes the codes of eight columns, two vectors with this offset, as [`expanded_sums`](Simd::expanded_sums) reads
    /// them; as they are where it reads none.
    #[inline(always)]
    unsafe fn expand(p: *mut u8, codes: [Self::I; 2], _offset: u8) {
        // SAFETY: the caller has room for both.
        unsafe {
            Self::i_store(p, codes[0]);
            Self::i_store(p.add(64), codes[1]);
        }
    }
    /// Products of `8 * N` columns of expanded codes, less their offset, with an even number of tokens; `None` where there
    /// is no better way than to load the codes and to multiply them one vector and one token at a time.
    #[inline(always)]
    unsafe fn expanded_sums<const T: usize, const N: usize>(
        _codes: *const u8,
        _x: *const u8,
    ) -> Option<[Self::Sum; T]> {
        None
    }
}

/// [`Simd::add_bf16_pairs`] with f32 activations.
///
/// # Safety
/// The processor has `S`; two columns of activations can be read.
#[inline(always)]
unsafe fn add_pairs_by_columns<S: Simd, const T: usize>(sums: &mut [S::F; T], w: S::I, a: *const u8) {
    // SAFETY: as the caller promises.
    unsafe {
        let high = S::f_from_bits(S::i_and(w, S::i_splat(0xffff_0000_u32.cast_signed())));
        let low = S::f_from_bits(S::i_shl::<16>(w));
        for (t, sum) in sums.iter_mut().enumerate() {
            *sum = S::f_fma(high, S::f_broadcast(a.add(4 * t)), *sum);
            *sum = S::f_fma(low, S::f_broadcast(a.add(4 * (T + t))), *sum);
        }
    }
}

/// [`Simd::i_store_words`] for any number of rows.
///
/// # Safety
/// The processor has `S`; there is room for all words.
#[inline(always)]
unsafe fn store_words_one_by_one<S: Simd, const R: usize>(p: *mut u8, rows: &[[S::I; 2]; R]) {
    for (r, row) in rows.iter().enumerate() {
        for (half, values) in row.iter().enumerate() {
            // SAFETY: as the caller promises.
            unsafe {
                let bytes = S::i_to_i8(*values);
                for (word, four) in bytes.as_chunks::<4>().0.iter().enumerate() {
                    p.add(4 * (R * (4 * half + word) + r)).cast::<[i8; 4]>().write_unaligned(*four);
                }
            }
        }
    }
}

/// Writes the functions of a [`Simd`] implementation, each inlined always, its body one unsafe block.
macro_rules! simd_functions {
    ($($(#[$meta:meta])* fn $name:ident $(<const $c:ident: $ct:ty>)? ($($arg:ident: $ty:ty),*) $(-> $out:ty)? $body:block)*) => {
        $(
            $(#[$meta])*
            #[inline(always)]
            #[allow(clippy::missing_safety_doc)]
            unsafe fn $name $(<const $c: $ct>)? ($($arg: $ty),*) $(-> $out)? {
                // SAFETY: as `Simd` demands: the processor has the instructions, pointers are valid.
                #[allow(unused_unsafe)]
                unsafe { $body }
            }
        )*
    };
}
pub(crate) use simd_functions;
