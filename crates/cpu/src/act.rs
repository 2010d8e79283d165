//! Activations in the form in which the kernels read them.
//!
//! Tokens are grouped in tiles of up to [`Simd::TOKENS`]; inside a tile every value lies token beside token, so
//! that a kernel reads one tile from front to back. Per block of a tile of `t` tokens:
//! * [`ActForm::Float`]: `x[cols][t]` f32;
//! * [`ActForm::Bf16`]: as `Float`, rounded; with [`Simd::BF16_BYTES`] 2 `x[cols / 2][t]` pairs of bf16, the first in the
//!   high half, and where there is a last one without a partner `[t]` of 16 bits;
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
use crate::{CpuError, Isa, bf16};
use std::ops::Range;
use wootz_quant::WeightType;

/// The form of activations that a weight type multiplies with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActForm {
    /// f32 as they are.
    Float,
    /// Rounded to bf16, tiny ones to zero.
    Bf16,
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
            BF16 => ActForm::Bf16,
            _ => ActForm::Float,
        }
    }

    /// Elements that share a scale.
    pub const fn block(self) -> usize {
        match self {
            ActForm::Float | ActForm::Bf16 => 1,
            ActForm::Int8 => BLOCK,
        }
    }

    /// Bytes of one block of one token.
    pub(crate) const fn block_bytes<S: Simd>(self) -> usize {
        match self {
            ActForm::Float => 4,
            ActForm::Bf16 => S::BF16_BYTES,
            ActForm::Int8 => field::ABS + if S::MAGNITUDES { 64 } else { 0 },
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
    /// Bytes of one block of one token.
    block_bytes: usize,
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
        let (tile_tokens, block_bytes) = shape(isa, form);
        let token_bytes = blocks.checked_mul(block_bytes);
        let bytes = token_bytes.and_then(|bytes| bytes.checked_mul(tokens));
        let (Some(token_bytes), Some(bytes)) = (token_bytes, bytes) else {
            return Err(CpuError::OutOfMemory { bytes: usize::MAX });
        };
        let buffer = Buffer::zeroed(bytes)?;
        Ok(Activations { isa, form, cols, tokens, tile_tokens, block_bytes, token_bytes, buffer })
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
        // SAFETY: nobody else can write at the same time.
        unsafe { self.rows_mut().write(0, x) };
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
        let bytes = column / self.acts.form.block() * self.acts.block_bytes * tile.tokens;
        &self.tile_bytes(tile)[bytes..]
    }
}

/// Most tokens in a tile of this instruction set, and the bytes of a block of one token.
fn shape(isa: Isa, form: ActForm) -> (usize, usize) {
    struct Ask(ActForm);
    impl Op for Ask {
        type Output = (usize, usize);
        #[inline(always)]
        unsafe fn call<S: Simd>(self) -> (usize, usize) {
            (S::TOKENS, self.0.block_bytes::<S>())
        }
    }
    isa.dispatch(Ask(form))
}

/// The tile that holds `token`: full tiles of `most` tokens, a power of two, first, then halves.
fn tile_of(most: usize, tokens: usize, token: usize) -> Tile {
    let mut tile = Tile { first: token & !(most - 1), tokens: most };
    while tile.first + tile.tokens > tokens || token >= tile.first + tile.tokens {
        if tile.first + tile.tokens <= tokens {
            tile.first += tile.tokens;
        }
        tile.tokens /= 2;
    }
    tile
}

/// Writes activations of some tokens; see [`Activations::rows_mut`].
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

    /// Writes the tokens from `first` on from `x`, `[_, cols]`. Whole tiles at once are several times as fast as tokens
    /// one by one.
    ///
    /// A block with a value that is not finite gets the scale NaN, so every product with it is NaN.
    ///
    /// # Safety
    /// No other thread writes the same tokens at the same time.
    ///
    /// # Panics
    /// Where there are fewer tokens, or `x` is not of whole tokens.
    pub unsafe fn write(&self, first: usize, x: &[f32]) {
        let count = x.len() / self.cols.max(1);
        assert_eq!(x.len(), count * self.cols, "columns of activations");
        assert!(
            count <= self.tokens && first <= self.tokens - count,
            "tokens from {first} of {}",
            self.tokens
        );
        let mut done = 0;
        while done < count {
            let token = first + done;
            let tile = tile_of(self.tile_tokens, self.tokens, token);
            let whole = token == tile.first && tile.tokens <= count - done;
            let rows = if whole { tile.tokens } else { 1 };
            // SAFETY: the tile ends within the buffer, which holds `tokens * token_bytes` bytes.
            let out = unsafe { self.base.add(tile.first * self.token_bytes) };
            let (tokens, slot) = (tile.tokens, token - tile.first);
            let x = &x[done * self.cols..(done + rows) * self.cols];
            self.isa.dispatch(WriteRows { form: self.form, cols: self.cols, x, out, tokens, slot });
            done += rows;
        }
    }

    /// Tokens that are written faster together.
    pub fn tile_tokens(&self) -> usize {
        self.tile_tokens
    }
}

/// Writes one token, or all of them, into the tile at `out`.
struct WriteRows<'a> {
    form: ActForm,
    cols: usize,
    /// `[_, cols]`
    x: &'a [f32],
    out: *mut u8,
    /// Tokens of the tile.
    tokens: usize,
    /// The first one to write.
    slot: usize,
}

impl Op for WriteRows<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn call<S: Simd>(self) {
        // SAFETY: `ActRows::write` has checked the slots and the lengths.
        unsafe {
            match (self.form, self.x.len() / self.cols.max(1)) {
                (ActForm::Float, 8) => self.columns::<8>(),
                (ActForm::Float, 4) => self.columns::<4>(),
                (ActForm::Float, _) => {
                    for (slot, row) in (self.slot..).zip(self.x.chunks_exact(self.cols.max(1))) {
                        for (i, x) in row.iter().enumerate() {
                            self.out.add((i * self.tokens + slot) * 4).cast::<f32>().write_unaligned(*x);
                        }
                    }
                }
                (ActForm::Bf16, 8) => self.rounded::<S, 8>(0),
                (ActForm::Bf16, 4) => self.rounded::<S, 4>(0),
                // Loops and not closures, which may stay functions of their own, without the instructions of `S`.
                (ActForm::Bf16, rows) => {
                    for row in 0..rows {
                        self.rounded::<S, 1>(row);
                    }
                }
                (ActForm::Int8, 8) => self.blocks::<S, 8>(0),
                (ActForm::Int8, 4) => self.blocks::<S, 4>(0),
                (ActForm::Int8, rows) => {
                    for row in 0..rows {
                        self.blocks::<S, 1>(row);
                    }
                }
            }
        }
    }
}

/// Columns that are rounded to bf16 together.
const ROUNDED: usize = 64;

/// Rounds `x`, at most [`ROUNDED`] elements, to bf16: in the upper halves of words, or in pairs.
///
/// # Safety
/// The processor has `S`.
#[inline(always)]
unsafe fn round<S: Simd>(x: &[f32], out: &mut [u32; ROUNDED]) {
    let mut words = [0; ROUNDED];
    let (x, rest) = x.as_chunks::<LANES>();
    let mut last = [0.0; LANES];
    last[..rest.len()].copy_from_slice(rest);
    let last = Some(&last).filter(|_| !rest.is_empty());
    for (x, words) in x.iter().chain(last).zip(words.as_chunks_mut::<LANES>().0) {
        // SAFETY: both are a vector; the processor has `S`.
        unsafe { S::f_store(words.as_mut_ptr().cast(), bf16::rounded::<S>(S::f_load(x.as_ptr()))) }
    }
    if S::BF16_BYTES == 2 {
        for (out, [high, low]) in out.iter_mut().zip(words.as_chunks().0) {
            *out = high | low >> 16;
        }
    } else {
        *out = words;
    }
}

/// Blocks that are quantised together.
const STRETCH: usize = 8;

/// Bytes of the codes of a block of up to eight tokens, and what vectors read behind them.
#[repr(align(64))]
struct Codes([u8; 8 * BLOCK + 64]);

/// A block of a tile, and where in it some tokens are written.
#[derive(Clone, Copy)]
struct BlockOut {
    start: *mut u8,
    tokens: usize,
    slot: usize,
}

impl BlockOut {
    /// Writes value `index` of a field for `R` tokens, the first lanes of `values`.
    ///
    /// # Safety
    /// The processor has `S`; the field and the tokens lie inside the block.
    #[inline(always)]
    unsafe fn put<S: Simd, const R: usize>(self, field: usize, index: usize, values: S::I) {
        let mut lanes = [0u32; LANES];
        // SAFETY: as the caller promises.
        unsafe {
            S::i_store(lanes.as_mut_ptr().cast(), values);
            self.put_words::<R>(field, index, lanes.as_ptr().cast());
        }
    }

    /// Writes value `index` of a field for `R` tokens, from `words` on.
    ///
    /// # Safety
    /// The field and the tokens lie inside the block; `R` words can be read.
    #[inline(always)]
    unsafe fn put_words<const R: usize>(self, field: usize, index: usize, words: *const u8) {
        let at = field * self.tokens + (index * self.tokens + self.slot) * 4;
        // SAFETY: as the caller promises.
        unsafe { self.start.add(at).copy_from_nonoverlapping(words, 4 * R) }
    }
}

impl WriteRows<'_> {
    /// All `R` rows of a tile of as many tokens, column by column, so that writing goes upwards.
    #[inline(always)]
    unsafe fn columns<const R: usize>(&self) {
        for i in 0..self.cols {
            // SAFETY: the rows have `cols` elements, and the tile as many columns of `R` tokens.
            unsafe {
                let mut column = [0f32; R];
                for (r, value) in column.iter_mut().enumerate() {
                    *value = self.x.as_ptr().add(r * self.cols + i).read();
                }
                self.out.add(i * R * 4).cast::<[f32; R]>().write_unaligned(column);
            }
        }
    }

    /// `R` rows from `first` on as bf16, some columns of all of them at a time.
    #[inline(always)]
    unsafe fn rounded<S: Simd, const R: usize>(&self, first: usize) {
        let pairs = S::BF16_BYTES == 2;
        let slot = self.slot + first;
        let mut rows = [[0u32; ROUNDED]; R];
        for column in (0..self.cols).step_by(ROUNDED) {
            let columns = ROUNDED.min(self.cols - column);
            // SAFETY: the processor has `S`; the rows have these columns, the tile as many of its tokens.
            unsafe {
                for (r, row) in rows.iter_mut().enumerate() {
                    round::<S>(&self.x[(first + r) * self.cols + column..][..columns], row);
                }
                let out = self.out.add(column * S::BF16_BYTES * self.tokens);
                for i in 0..if pairs { columns / 2 } else { columns } {
                    let words = rows.each_ref().map(|row| row[i]);
                    out.add(4 * (i * self.tokens + slot)).cast::<[u32; R]>().write_unaligned(words);
                }
                if pairs && !columns.is_multiple_of(2) {
                    let last = rows.each_ref().map(|row| (row[columns / 2] >> 16) as u16);
                    let at = 2 * ((columns - 1) * self.tokens + slot);
                    out.add(at).cast::<[u16; R]>().write_unaligned(last);
                }
            }
        }
    }

    /// `R` rows from `first` on; a lane is a token.
    #[inline(always)]
    unsafe fn blocks<S: Simd, const R: usize>(&self, first: usize) {
        let block_bytes = self.form.block_bytes::<S>() * self.tokens;
        let block = |b: usize| BlockOut {
            start: self.out.wrapping_add(b * block_bytes),
            tokens: self.tokens,
            slot: self.slot + first,
        };
        let mut codes = [const { Codes([0; 8 * BLOCK + 64]) }; STRETCH];
        let mut largest = [[0f32; LANES]; STRETCH];
        // SAFETY: the processor has `S`; 32 columns are read from a block of each row; every field that the form names
        // lies inside its block.
        unsafe {
            let (mut scaled_sums, mut scales) = ([S::f_zero(); 8], [S::f_zero(); STRETCH]);
            // Step by step for some blocks, since what was written in small pieces can be read in large ones only a while later.
            for stretch in (0..self.cols / BLOCK).step_by(STRETCH) {
                let blocks = stretch..(stretch + STRETCH).min(self.cols / BLOCK);
                let row = |b: usize, r: usize| self.x.as_ptr().add((first + r) * self.cols + b * BLOCK);
                for (b, largest) in blocks.clone().zip(&mut largest) {
                    if R == self.tokens {
                        // Other threads have read what was here before.
                        for line in (0..block_bytes).step_by(64) {
                            S::about_to_write(block(b).start.wrapping_add(line));
                        }
                    }
                    magnitudes_of::<S, R>(|r| row(b, r), largest);
                }
                for (i, b) in blocks.clone().enumerate() {
                    scales[i] = quantize::<S, R>(|r| row(b, r), &largest[i], &mut codes[i]);
                }
                for (i, b) in blocks.enumerate() {
                    let (d, codes, out) = (scales[i], &mut codes[i], block(b));
                    for word in 0..BLOCK / 4 {
                        let words = codes.0.as_ptr().add(4 * R * word);
                        if S::EIGHTS {
                            for r in 0..R {
                                let at = group_at::<S>(word, self.tokens, out.slot + r);
                                out.start.add(at).copy_from_nonoverlapping(words.add(4 * r), 4);
                            }
                        } else {
                            out.put_words::<R>(0, word, words);
                        }
                    }
                    let sums = [Sums::of::<S, R>(codes, 0), Sums::of::<S, R>(codes, 1)];
                    let sum = Sums {
                        all: S::i_add(sums[0].all, sums[1].all),
                        odd: S::i_add(sums[0].odd, sums[1].odd),
                    };
                    let (total, d16) = (S::f_from_i32(sum.all), as_f16::<S>(d));
                    out.put::<S, R>(field::D, 0, S::f_bits(d));
                    out.put::<S, R>(field::D16, 0, S::f_bits(d16));
                    out.put::<S, R>(field::S16, 0, S::f_bits(S::f_mul(d16, total)));
                    scaled_sums[b % 8] = S::f_mul(d, total);
                    if b % 8 == 7 {
                        for (i, word) in for_minimums::<S>(&scaled_sums).into_iter().enumerate() {
                            block(b - 7 + i).put::<S, R>(field::M, 0, word);
                        }
                    }
                    out.put::<S, R>(field::START8, 0, sum.start::<S, 3>());
                    out.put::<S, R>(field::START16, 0, sum.start::<S, 4>());
                    let mut wide = S::i_sub(S::i_zero(), S::i_shl::<7>(sum.all));
                    if S::MAGNITUDES {
                        wide = magnitudes::<S, R>(codes, sum.all, out);
                    }
                    // Only wide products read this one, and they sum in 32 bits everywhere.
                    out.put::<S, R>(field::START128, 0, wide);
                    for (half, sums) in sums.into_iter().enumerate() {
                        out.put::<S, R>(field::STARTS32, half, sums.start::<S, 5>());
                    }
                }
            }
        }
    }
}

/// Sums of the codes of some elements of a block, a token in each lane.
#[derive(Clone, Copy)]
struct Sums<I> {
    all: I,
    /// Of the odd pairs of elements, for instruction sets that need them.
    odd: I,
}

impl<I: Copy> Sums<I> {
    /// Of half `half` of a block of `R` tokens.
    ///
    /// # Safety
    /// The processor has `S`.
    #[inline(always)]
    unsafe fn of<S: Simd<I = I>, const R: usize>(codes: &Codes, half: usize) -> Sums<I> {
        // SAFETY: a vector at each of eight words of `R` tokens lies inside the codes.
        unsafe {
            let mut sums = Sums { all: S::i_zero(), odd: S::i_zero() };
            for word in 4 * half..4 * half + 4 {
                let pairs = S::i_pair_sums(S::i_load(codes.0.as_ptr().add(4 * R * word)));
                sums.all = S::i_dot_pairs(sums.all, pairs, S::i_splat(0x0001_0001));
                if S::PAIRS {
                    sums.odd = S::i_dot_pairs(sums.odd, pairs, S::i_splat(0x0001_0000));
                }
            }
            sums
        }
    }

    /// The start values for offset `2^SHIFT`.
    ///
    /// # Safety
    /// The processor has `S`.
    #[inline(always)]
    unsafe fn start<S: Simd<I = I>, const SHIFT: i32>(self) -> I {
        // SAFETY: as the caller promises.
        unsafe {
            let zero = S::i_zero();
            if S::PAIRS {
                let even = S::i_sub(self.all, self.odd);
                return pair::<S>(
                    S::i_sub(zero, S::i_shl::<SHIFT>(even)),
                    S::i_sub(zero, S::i_shl::<SHIFT>(self.odd)),
                );
            }
            S::i_sub(zero, S::i_shl::<SHIFT>(self.all))
        }
    }
}

/// Writes the magnitudes of a block's codes, which become their absolute values, and what their signs ask for; returns
/// the sums of the negative ones' absolute values, given the sums of all.
///
/// # Safety
/// The processor has `S`; the block has these fields.
#[inline(always)]
unsafe fn magnitudes<S: Simd, const R: usize>(codes: &mut Codes, sum: S::I, out: BlockOut) -> S::I {
    let mut flips = [0u8; 8 * BLOCK];
    for (flip, code) in flips.iter_mut().zip(&mut codes.0).take(R * BLOCK) {
        let value = *code as i8;
        (*flip, *code) = (if value < 0 { 127 } else { 128 }, value.unsigned_abs());
    }
    // SAFETY: as the caller promises.
    unsafe {
        for word in 0..BLOCK / 4 {
            let at = 4 * R * word;
            out.put_words::<R>(field::ABS, word, codes.0.as_ptr().add(at));
            out.put_words::<R>(field::FLIP, word, flips.as_ptr().add(at));
        }
        let (a, b) = (Sums::of::<S, R>(codes, 0).all, Sums::of::<S, R>(codes, 1).all);
        // Positive ones less negative ones is the sum, both together that of the absolute values; the difference is even.
        S::i_shr::<1>(S::i_sub(S::i_add(a, b), sum))
    }
}

/// `x` rounded to f16.
///
/// # Safety
/// The processor has `S`.
#[inline(always)]
unsafe fn as_f16<S: Simd>(x: S::F) -> S::F {
    let mut halves = [0u8; 2 * LANES];
    // SAFETY: there is room for a vector.
    unsafe {
        S::f_store_f16(halves.as_mut_ptr(), x);
        S::f_load_f16(halves.as_ptr())
    }
}

/// The words `m` of 256 elements, given the scaled sums of their blocks; the rest are zero.
///
/// # Safety
/// The processor has `S`.
#[inline(always)]
unsafe fn for_minimums<S: Simd>(sums: &[S::F; 8]) -> [S::I; 5] {
    // SAFETY: as the caller promises.
    unsafe {
        let mut largest = S::f_zero();
        for sum in sums {
            // In this order NaN is passed over.
            largest = S::f_max(absolute::<S>(*sum), largest);
        }
        let scale = S::f_div(largest, S::f_splat(32767.0));
        let inverse = inverse_of::<S>(scale);
        let mut words = [S::f_bits(scale); 5];
        for (word, i) in [0, 1, 4, 5].into_iter().enumerate() {
            let low = S::f_round(S::f_mul(sums[i], inverse));
            let high = S::f_round(S::f_mul(sums[i + 2], inverse));
            words[word] = pair::<S>(low, high);
        }
        words
    }
}

/// Two values as i16 in one word. They fit: half of 32 * 16 * 127 and of 16 * 32 * 127 are below 2^15.
///
/// # Safety
/// The processor has `S`.
#[inline(always)]
unsafe fn pair<S: Simd>(low: S::I, high: S::I) -> S::I {
    // SAFETY: as the caller promises.
    unsafe { S::i_or(S::i_and(low, S::i_splat(0xffff)), S::i_shl::<16>(high)) }
}

/// # Safety
/// The processor has `S`.
#[inline(always)]
unsafe fn absolute<S: Simd>(x: S::F) -> S::F {
    // SAFETY: as the caller promises.
    unsafe { S::f_from_bits(S::i_and(S::f_bits(x), S::i_splat(i32::MAX))) }
}

/// `1 / x`; 0 below the smallest normal number, where that would be infinite.
///
/// # Safety
/// The processor has `S`.
#[inline(always)]
unsafe fn inverse_of<S: Simd>(x: S::F) -> S::F {
    // SAFETY: as the caller promises.
    unsafe { S::f_where_lt(x, S::f_splat(f32::MIN_POSITIVE), S::f_zero(), S::f_div(S::f_splat(1.0), x)) }
}

/// Writes the largest absolute value of a block of each of `R` rows.
///
/// # Safety
/// The processor has `S`; the rows have 32 elements.
#[inline(always)]
unsafe fn magnitudes_of<S: Simd, const R: usize>(
    row: impl Fn(usize) -> *const f32,
    largest: &mut [f32; LANES],
) {
    for (r, largest) in largest.iter_mut().enumerate().take(R) {
        // SAFETY: as the caller promises.
        unsafe {
            // The order of the absolute values' bits is that of the values, then infinity, then NaN.
            let low = S::f_bits(absolute::<S>(S::f_load(row(r))));
            let high = S::f_bits(absolute::<S>(S::f_load(row(r).add(LANES))));
            *largest = f32::from_bits(S::i_largest(S::i_max(low, high)) as u32);
        }
    }
}

/// Quantises a block of each of `R` rows, given its largest absolute values, to words of four codes, `[8][R]`; returns the
/// scales, `max |x| / 127`, in the first lanes.
///
/// # Safety
/// The processor has `S`; the rows have 32 elements.
#[inline(always)]
unsafe fn quantize<S: Simd, const R: usize>(
    row: impl Fn(usize) -> *const f32,
    largest: &[f32; LANES],
    codes: &mut Codes,
) -> S::F {
    // SAFETY: reads stay inside the rows, and writes inside the codes.
    unsafe {
        let scale = S::f_div(S::f_load(largest.as_ptr()), S::f_splat(127.0));
        let (zero, infinity) = (S::f_zero(), S::f_splat(f32::INFINITY));
        let mut inverses = [0f32; LANES];
        let inverse = S::f_where_lt(scale, infinity, inverse_of::<S>(scale), zero);
        S::f_store(inverses.as_mut_ptr(), inverse);
        let mut values = [[S::i_zero(); 2]; R];
        for (r, values) in values.iter_mut().enumerate() {
            // What is not finite has no codes.
            if inverses[r] != 0.0 {
                let factor = S::f_splat(inverses[r]);
                values[0] = S::f_round(S::f_mul(S::f_load(row(r)), factor));
                values[1] = S::f_round(S::f_mul(S::f_load(row(r).add(LANES)), factor));
            }
        }
        S::i_store_words(codes.0.as_mut_ptr(), &values);
        let scale = S::f_where_lt(scale, S::f_splat(f32::MIN_POSITIVE), zero, scale);
        S::f_where_lt(scale, infinity, scale, S::f_splat(f32::NAN))
    }
}

#[cfg(test)]
mod tests;
