//! Activations in the form in which the kernels read them.
//!
//! Tokens are grouped in tiles of up to [`Simd::TOKENS`]; inside a tile every value lies token beside token, so
//! that a kernel reads one tile from front to back. Per block of a tile of `t` tokens:
//! * [`ActForm::Float`]: `x[cols][t]` f32;
//! * [`ActForm::Int8`]: `q[8][t]` groups of four i8, or `q[4][t]` of eight ([`Simd::EIGHTS`]), `d[t]` f32, `m[t]` one of
//!   eight words of 256 elements, the scale rounded to f16, `d16[t]` f32, with `s16[t]` f32 (`d16` times the sum of `q`), and
//!   the start values of the integer sums for code offsets 8, 16 and 128, `[t]` each, and for offset 32 `[2][t]`, one for
//!   each 16 elements.
//!
//! What K types multiply their minimums with, `d` times the sum of `q`, is kept for 256 elements together: the eight values
//! as i16 with one scale, the largest magnitude / 32767. The first four blocks have a pair each as `m`, of the blocks 0 and
//! 2, 1 and 3, 4 and 6, 5 and 7; the fifth has the scale.
//!
//! Weights with blocks of 32 are multiplied with `d16`, K types with `d`: see docs/decisions/0003 and 0007.
//!
//! Instruction sets with [`Simd::MAGNITUDES`] get `abs[8][t]` and `flip[8][t]` more, the absolute values of `q` and
//! 127 or 128 for its signs, and as start value for offset 128 the sum of the negative activations' absolute values.
//!
//! A start value is otherwise minus the offset times the sum of the activations: one i32, or for instruction sets that sum
//! in 16 bits two i16, for the even and for the odd pairs of elements.

use crate::isa::{LANES, Op, Simd};
use crate::memory::Buffer;
use crate::{CpuError, Isa};
use std::ops::Range;
use wootz_quant::WeightType;

/// The form of activations that a weight type multiplies with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActForm {
    /// f32 as they are.
    Float,
    /// int8 with one scale for 32 elements.
    Int8,
}

impl ActForm {
    /// The form for weights of type `ty`.
    pub fn of(ty: WeightType) -> ActForm {
        use WeightType::*;
        match ty {
            Q8_0 | Q4_0 | Q4_1 | Q5_0 | Q5_1 | IQ4_NL | MXFP4 | Q2_K | Q3_K | Q4_K | Q5_K | Q6_K | IQ4_XS => {
                ActForm::Int8
            }
            _ => ActForm::Float,
        }
    }

    /// Elements that share a scale.
    pub const fn block(self) -> usize {
        match self {
            ActForm::Float => 1,
            ActForm::Int8 => BLOCK,
        }
    }

    /// Bytes of one block of one token, with or without what [`Simd::MAGNITUDES`] adds.
    pub(crate) const fn block_bytes(self, magnitudes: bool) -> usize {
        match self {
            ActForm::Float => 4,
            ActForm::Int8 => field::ABS + if magnitudes { 64 } else { 0 },
        }
    }
}

/// Elements of a block of int8.
pub(crate) const BLOCK: usize = 32;

/// Offsets of the fields of a block of int8, in bytes times the tokens of the tile.
pub(crate) mod field {
    /// `d`.
    pub(crate) const D: usize = 32;
    /// `m`.
    pub(crate) const M: usize = 36;
    /// `d16`.
    pub(crate) const D16: usize = 40;
    /// `s16`.
    pub(crate) const S16: usize = 44;
    /// Start values for offset 8.
    pub(crate) const START8: usize = 48;
    /// Start values for offset 16.
    pub(crate) const START16: usize = 52;
    /// Start values for offset 128.
    pub(crate) const START128: usize = 56;
    /// Start values for offset 32, one for each 16 elements.
    pub(crate) const STARTS32: usize = 60;
    /// `abs`.
    pub(crate) const ABS: usize = 68;
    /// `flip`.
    pub(crate) const FLIP: usize = 100;
}

/// Where a block of a tile of `tokens` has group `at` of the eight groups `q` of token `t`, four bytes.
#[inline(always)]
pub(crate) const fn group_at<S: Simd>(at: usize, tokens: usize, t: usize) -> usize {
    if S::EIGHTS { (at / 2 * tokens + t) * 8 + at % 2 * 4 } else { (at * tokens + t) * 4 }
}

/// A run of tokens that one kernel call works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    /// First token.
    pub(crate) first: usize,
    /// Tokens: a power of two.
    pub(crate) tokens: usize,
}

/// Quantised (or plain) activations `[tokens, cols]`.
#[derive(Debug)]
pub struct Activations {
    isa: Isa,
    form: ActForm,
    cols: usize,
    tokens: usize,
    tile_tokens: usize,
    token_bytes: usize,
    buffer: Buffer,
}

impl Activations {
    /// Room for `[tokens, cols]`, all zero.
    ///
    /// # Errors
    /// `cols` is no multiple of the form's block, the memory is refused, or the processor lacks `isa`.
    pub fn new(isa: Isa, form: ActForm, tokens: usize, cols: usize) -> Result<Activations, CpuError> {
        let isa = Isa::select(Some(isa))?;
        let blocks = cols / form.block();
        if !cols.is_multiple_of(form.block()) {
            return Err(CpuError::Length {
                what: "columns of activations in whole blocks",
                expected: (blocks + 1) * form.block(),
                found: cols,
            });
        }
        let (tile_tokens, magnitudes) = shape(isa);
        let token_bytes = blocks.checked_mul(form.block_bytes(magnitudes));
        let bytes = token_bytes.and_then(|bytes| bytes.checked_mul(tokens));
        let (Some(token_bytes), Some(bytes)) = (token_bytes, bytes) else {
            return Err(CpuError::OutOfMemory { bytes: usize::MAX });
        };
        Ok(Activations { isa, form, cols, tokens, tile_tokens, token_bytes, buffer: Buffer::zeroed(bytes)? })
    }

    /// Changes the number of tokens, within the memory that is there; the contents are lost.
    ///
    /// # Errors
    /// [`CpuError::Length`] where the memory is too small.
    pub fn set_tokens(&mut self, tokens: usize) -> Result<(), CpuError> {
        let most = self.buffer.len().checked_div(self.token_bytes).unwrap_or(tokens);
        if tokens > most {
            return Err(CpuError::Length { what: "tokens that fit", expected: most, found: tokens });
        }
        self.tokens = tokens;
        Ok(())
    }

    /// The instruction set whose kernels can read this.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The form of the values.
    pub fn form(&self) -> ActForm {
        self.form
    }

    /// Columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Tokens.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Fills all tokens from `x`, `[tokens, cols]`.
    ///
    /// # Errors
    /// [`CpuError::Length`] where `x` has another size.
    pub fn fill(&mut self, x: &[f32]) -> Result<(), CpuError> {
        if x.len() != self.tokens * self.cols {
            let expected = self.tokens * self.cols;
            return Err(CpuError::Length { what: "activations", expected, found: x.len() });
        }
        let cols = self.cols.max(1);
        let rows = self.rows_mut();
        for (token, row) in x.chunks_exact(cols).enumerate() {
            // SAFETY: nobody else holds `rows`, and each token is written once.
            unsafe { rows.write(token, row) };
        }
        Ok(())
    }

    /// A writer that several threads can use at once, each for its own tokens.
    pub fn rows_mut(&mut self) -> ActRows<'_> {
        ActRows {
            isa: self.isa,
            form: self.form,
            cols: self.cols,
            tokens: self.tokens,
            tile_tokens: self.tile_tokens,
            token_bytes: self.token_bytes,
            base: self.buffer.as_mut_ptr(),
            _buffer: std::marker::PhantomData,
        }
    }

    /// All tokens, for a product.
    pub fn all(&self) -> ActTokens<'_> {
        ActTokens { acts: self, first: 0, tokens: self.tokens }
    }

    /// The tokens of `range`, for a product of their own: those that [`ActRows::part`] wrote for the same range.
    ///
    /// # Panics
    /// Where there are fewer tokens.
    pub fn part(&self, range: Range<usize>) -> ActTokens<'_> {
        assert!(range.end <= self.tokens, "tokens {range:?} of {}", self.tokens);
        ActTokens { acts: self, first: range.start, tokens: range.len() }
    }
}

/// Tokens that are multiplied together, in tiles of their own.
#[derive(Clone, Copy, Debug)]
pub struct ActTokens<'a> {
    acts: &'a Activations,
    first: usize,
    tokens: usize,
}

impl<'a> ActTokens<'a> {
    /// What the tokens are a part of.
    pub(crate) fn acts(self) -> &'a Activations {
        self.acts
    }

    /// Number of tokens.
    pub(crate) fn tokens(self) -> usize {
        self.tokens
    }

    /// The tiles of the tokens from `first` on, in order; `first` is where a tile starts.
    pub(crate) fn tiles(self, first: usize) -> impl Iterator<Item = Tile> {
        let (most, tokens) = (self.acts.tile_tokens, self.tokens);
        let tile = move |first: usize| (first < tokens).then(|| tile_of(most, tokens, first));
        std::iter::successors(tile(first), move |last| tile(last.first + last.tokens))
    }

    /// Most tokens in a tile.
    pub(crate) fn tile_tokens(self) -> usize {
        self.acts.tile_tokens
    }

    /// The bytes of a tile.
    pub(crate) fn tile_bytes(self, tile: Tile) -> &'a [u8] {
        let first = self.first + tile.first;
        let token_bytes = self.acts.token_bytes;
        &self.acts.buffer[first * token_bytes..(first + tile.tokens) * token_bytes]
    }

    /// The bytes of a tile from `column` on, a multiple of the form's block.
    pub(crate) fn tile_columns(self, tile: Tile, column: usize) -> &'a [u8] {
        let block = self.acts.form.block();
        let bytes = self.acts.token_bytes / (self.acts.cols / block) * tile.tokens;
        &self.tile_bytes(tile)[column / block * bytes..]
    }
}

/// Most tokens in a tile of this instruction set, and whether it has magnitudes.
fn shape(isa: Isa) -> (usize, bool) {
    struct Ask;
    impl Op for Ask {
        type Output = (usize, bool);
        #[inline(always)]
        unsafe fn call<S: Simd>(self) -> (usize, bool) {
            (S::TOKENS, S::MAGNITUDES)
        }
    }
    isa.dispatch(Ask)
}

/// The tile that holds `token`: full tiles first, then halves.
fn tile_of(most: usize, tokens: usize, token: usize) -> Tile {
    let mut tile = Tile { first: token / most * most, tokens: most };
    while tile.first + tile.tokens > tokens || token >= tile.first + tile.tokens {
        if tile.first + tile.tokens <= tokens {
            tile.first += tile.tokens;
        }
        tile.tokens /= 2;
    }
    tile
}

/// Writes activations of single tokens; see [`Activations::rows_mut`].
#[derive(Clone, Copy)]
pub struct ActRows<'a> {
    isa: Isa,
    form: ActForm,
    cols: usize,
    tokens: usize,
    tile_tokens: usize,
    token_bytes: usize,
    base: *mut u8,
    _buffer: std::marker::PhantomData<&'a mut Buffer>,
}

// SAFETY: the pointer is to memory borrowed for 'a; `write` demands that threads write different tokens.
unsafe impl Send for ActRows<'_> {}
// SAFETY: as above.
unsafe impl Sync for ActRows<'_> {}

impl ActRows<'_> {
    /// A writer of the tokens of `range` alone, counted from its start, for a product of their own.
    ///
    /// # Panics
    /// Where there are fewer tokens.
    pub fn part(&self, range: Range<usize>) -> Self {
        assert!(range.end <= self.tokens, "tokens {range:?} of {}", self.tokens);
        // SAFETY: the range lies in the buffer.
        let base = unsafe { self.base.add(range.start * self.token_bytes) };
        ActRows { base, tokens: range.len(), ..*self }
    }

    /// Writes token `token` from `x`, `[cols]`.
    ///
    /// A block with a value that is not finite gets the scale NaN, so every product with it is NaN.
    ///
    /// # Safety
    /// No other thread writes the same token at the same time.
    ///
    /// # Panics
    /// Where `token` or the length of `x` is out of range.
    pub unsafe fn write(&self, token: usize, x: &[f32]) {
        assert!(token < self.tokens, "token {token} of {}", self.tokens);
        assert_eq!(x.len(), self.cols, "columns of activations");
        let tile = tile_of(self.tile_tokens, self.tokens, token);
        // SAFETY: the tile ends within the buffer, which holds `tokens * token_bytes` bytes.
        let out = unsafe { self.base.add(tile.first * self.token_bytes) };
        self.isa.dispatch(WriteRow {
            form: self.form,
            x,
            out,
            tokens: tile.tokens,
            slot: token - tile.first,
        });
    }
}

/// Writes one token into slot `slot` of the tile at `out`.
struct WriteRow<'a> {
    form: ActForm,
    x: &'a [f32],
    out: *mut u8,
    tokens: usize,
    slot: usize,
}

impl Op for WriteRow<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn call<S: Simd>(self) {
        // SAFETY: `ActRows::write` has checked the slot and the lengths.
        unsafe {
            match self.form {
                ActForm::Float => {
                    for (i, x) in self.x.iter().enumerate() {
                        self.out.add((i * self.tokens + self.slot) * 4).cast::<f32>().write_unaligned(*x);
                    }
                }
                ActForm::Int8 => self.blocks::<S>(),
            }
        }
    }
}

impl WriteRow<'_> {
    #[inline(always)]
    unsafe fn blocks<S: Simd>(&self) {
        let block_bytes = self.form.block_bytes(S::MAGNITUDES) * self.tokens;
        let mut scaled_sums = [0f32; 8];
        for (b, x) in self.x.as_chunks::<BLOCK>().0.iter().enumerate() {
            // SAFETY: there is one block for each 32 columns.
            let out = unsafe { self.out.add(b * block_bytes) };
            // SAFETY: every field that a form names lies inside its block.
            let put_at = |at: usize, value: u32| unsafe { out.add(at).cast::<u32>().write_unaligned(value) };
            let put = |field: usize, index: usize, value: u32| {
                put_at(field * self.tokens + (index * self.tokens + self.slot) * 4, value);
            };
            // Per 16 elements: sums of the even and of the odd pairs.
            let mut sums = [[0i32; 2]; 2];
            let mut negative = 0i32;
            // SAFETY: the processor has `S`; 16 elements are read from a block.
            let d = unsafe {
                quantize::<S>(x, |i, q| {
                    for (c, group) in q.as_chunks::<4>().0.iter().enumerate() {
                        let at = group_at::<S>(4 * i + c, self.tokens, self.slot);
                        put_at(at, u32::from_le_bytes(group.map(|v| v as u8)));
                        sums[i][0] += i32::from(group[0]) + i32::from(group[1]);
                        sums[i][1] += i32::from(group[2]) + i32::from(group[3]);
                        if S::MAGNITUDES {
                            negative += group.iter().map(|v| i32::from(*v).min(0)).sum::<i32>();
                            let abs = group.map(|v| v.unsigned_abs());
                            put(field::ABS, 4 * i + c, u32::from_le_bytes(abs));
                            let flip = group.map(|v| if v < 0 { 127 } else { 128 });
                            put(field::FLIP, 4 * i + c, u32::from_le_bytes(flip));
                        }
                    }
                })
            };
            let start = |sum: [i32; 2], offset: i32| {
                if S::PAIRS {
                    pair(-offset * sum[0], -offset * sum[1])
                } else {
                    (-offset * (sum[0] + sum[1])) as u32
                }
            };
            let sum = [sums[0][0] + sums[1][0], sums[0][1] + sums[1][1]];
            let (total, d16) = ((sum[0] + sum[1]) as f32, half::f16::from_f32(d).to_f32());
            put(field::D, 0, d.to_bits());
            put(field::D16, 0, d16.to_bits());
            put(field::S16, 0, (d16 * total).to_bits());
            scaled_sums[b % 8] = d * total;
            if b % 8 == 7 {
                for (i, word) in for_minimums(&scaled_sums).into_iter().enumerate() {
                    // SAFETY: the field of one of the eight blocks that end with this one.
                    unsafe {
                        let block = self.out.add((b - 7 + i) * block_bytes);
                        block
                            .add((field::M * self.tokens) + 4 * self.slot)
                            .cast::<u32>()
                            .write_unaligned(word);
                    }
                }
            }
            put(field::START8, 0, start(sum, 8));
            put(field::START16, 0, start(sum, 16));
            // Only wide products read this one, and they sum in 32 bits everywhere.
            let wide = if S::MAGNITUDES { -negative } else { -128 * (sum[0] + sum[1]) };
            put(field::START128, 0, wide as u32);
            for (i, sum) in sums.into_iter().enumerate() {
                put(field::STARTS32, i, start(sum, 32));
            }
        }
    }
}

/// The words `m` of 256 elements, given the scaled sums of their blocks; the rest are zero.
#[inline(always)]
fn for_minimums(sums: &[f32; 8]) -> [u32; 5] {
    let largest = sums.iter().fold(0f32, |largest, sum| largest.max(sum.abs()));
    let scale = largest / 32767.0;
    let inverse = if scale < f32::MIN_POSITIVE { 0.0 } else { 1.0 / scale };
    let at = |i: usize| (sums[i] * inverse).round_ties_even() as i32;
    [pair(at(0), at(2)), pair(at(1), at(3)), pair(at(4), at(6)), pair(at(5), at(7)), scale.to_bits()]
}

/// Two values as i16 in one word. They fit: half of 32 * 16 * 127 and of 16 * 32 * 127 are below 2^15.
#[inline(always)]
fn pair(low: i32, high: i32) -> u32 {
    (low as u32 & 0xffff) | ((high as u32) << 16)
}

/// Quantises a block: hands 16 values at a time to `put` and returns the scale, `max |x| / 127`.
///
/// # Safety
/// The processor has `S`.
#[inline(always)]
unsafe fn quantize<S: Simd>(x: &[f32; BLOCK], mut put: impl FnMut(usize, [i8; LANES])) -> f32 {
    // SAFETY: reads stay inside `x`.
    unsafe {
        // The order of the absolute values' bits is that of the values, then infinity, then NaN.
        let sign_off = S::i_splat(i32::MAX);
        let mut largest = S::i_zero();
        for i in 0..BLOCK / LANES {
            let bits = S::f_bits(S::f_load(x.as_ptr().add(i * LANES)));
            largest = S::i_max(largest, S::i_and(bits, sign_off));
        }
        let largest = f32::from_bits(S::i_largest(largest) as u32);
        let d = largest / 127.0;
        // Below the smallest normal number its inverse would be infinite.
        if !d.is_finite() || d < f32::MIN_POSITIVE {
            for i in 0..BLOCK / LANES {
                put(i, [0; LANES]);
            }
            return if d.is_finite() { 0.0 } else { f32::NAN };
        }
        let inverse = 1.0 / d;
        let inverse = S::f_broadcast((&raw const inverse).cast());
        for i in 0..BLOCK / LANES {
            let scaled = S::f_mul(S::f_load(x.as_ptr().add(i * LANES)), inverse);
            put(i, S::i_to_i8(S::f_round(scaled)));
        }
        d
    }
}
