//! The common form of block types, and the loops that every one of them shares.

use half::f16;
use std::ops::RangeInclusive;

/// The most elements in a block.
pub const MAX_ELEMENTS: usize = 256;

/// The most groups (elements with one scale) in a block.
pub const MAX_GROUPS: usize = 16;

/// How the values of a block type follow from codes, scales and minimums.
///
/// Element `i` of a block, in group `g = i / group`, is
/// `d * scales[g] * level(codes[i]) + m * mins[g]`, computed in f32 from the left.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// Elements in one group; a block has `block_elements / group` groups.
    pub group: usize,
    /// Codes are below `1 << bits`.
    pub bits: u32,
    /// The level of each code.
    pub levels: Levels,
    /// Bounds of the integer scales; `1..=1` where a block has the factor `d` only.
    pub scales: RangeInclusive<i32>,
    /// Bounds of the integer minimums; `0..=0` where the type has none.
    pub mins: RangeInclusive<i32>,
}

/// The integer level that a code stands for; every level fits an i8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Levels {
    /// The code less this zero point.
    Linear {
        /// The code of level 0.
        zero: u8,
    },
    /// An entry of this table.
    Table(&'static [i8; 16]),
}

impl Layout {
    /// A layout of one scale per block and no minimum.
    pub(crate) const fn scaled(group: usize, bits: u32, levels: Levels) -> Layout {
        Layout { group, bits, levels, scales: 1..=1, mins: 0..=0 }
    }

    /// The level of `code`; codes beyond `bits` give an arbitrary one.
    pub const fn level(&self, code: u8) -> i8 {
        match self.levels {
            Levels::Linear { zero } => code.wrapping_sub(zero) as i8,
            Levels::Table(table) => table[(code & 15) as usize],
        }
    }

    /// Whether blocks have minimums.
    pub const fn has_mins(&self) -> bool {
        *self.mins.start() != 0 || *self.mins.end() != 0
    }
}

/// One block in its common form; [`Layout`] gives the formula.
///
/// Only the first `block_elements` codes and the first `block_elements / group` scales and minimums belong to
/// the block; the rest keep what they held.
#[derive(Clone, Debug, PartialEq)]
pub struct Unpacked {
    /// The factor of all scales.
    pub d: f32,
    /// The factor of all minimums; 0 where the type has none.
    pub m: f32,
    /// Integer scales, one for each group.
    pub scales: [i32; MAX_GROUPS],
    /// Integer minimums, one for each group.
    pub mins: [i32; MAX_GROUPS],
    /// Codes in the order of the elements.
    pub codes: [u8; MAX_ELEMENTS],
}

impl Unpacked {
    /// A form with all fields 0, to be filled by [`WeightType::unpack`](crate::WeightType::unpack).
    pub const fn new() -> Unpacked {
        Unpacked { d: 0.0, m: 0.0, scales: [0; MAX_GROUPS], mins: [0; MAX_GROUPS], codes: [0; MAX_ELEMENTS] }
    }

    /// Writes the levels of the first `out.len()` codes (at most [`MAX_ELEMENTS`]).
    pub fn levels(&self, layout: &Layout, out: &mut [i8]) {
        match layout.levels {
            Levels::Linear { zero } => {
                out.iter_mut().zip(&self.codes).for_each(|(o, &c)| *o = c.wrapping_sub(zero) as i8)
            }
            Levels::Table(table) => {
                out.iter_mut().zip(&self.codes).for_each(|(o, &c)| *o = table[usize::from(c & 15)])
            }
        }
    }

    /// Sets the only scale of a type without integer scales.
    pub(crate) fn set_scale(&mut self, d: f32) {
        self.d = d;
        self.scales[0] = 1;
    }

    /// Sets the only scale and the only minimum of a type without integer ones.
    pub(crate) fn set_scale_and_min(&mut self, d: f32, m: f32) {
        self.set_scale(d);
        self.m = m;
        self.mins[0] = 1;
    }

    /// The codes of a block of `E` elements.
    pub(crate) fn block_codes<const E: usize>(&mut self) -> &mut [u8; E] {
        const { assert!(E <= MAX_ELEMENTS) };
        self.codes.first_chunk_mut().expect("a block has at most MAX_ELEMENTS elements")
    }
}

impl Default for Unpacked {
    fn default() -> Self {
        Self::new()
    }
}

/// What the registry knows of a type.
pub(crate) struct Info {
    pub(crate) id: u32,
    pub(crate) elements: usize,
    pub(crate) bytes: usize,
    pub(crate) layout: Option<Layout>,
    /// Both slices hold the same whole number of blocks.
    pub(crate) decode: fn(&[u8], &mut [f32]),
    pub(crate) encode: Option<Encoder>,
    /// The bytes are one block.
    pub(crate) unpack: Option<fn(&[u8], &mut Unpacked)>,
}

/// Takes finite values and the bytes for them; the error is the index of the first element of a block that the
/// type cannot hold.
pub(crate) type Encoder = fn(&[f32], &mut [u8]) -> Result<(), usize>;

/// A block type of `E` elements in `B` bytes.
pub(crate) trait Block<const E: usize, const B: usize> {
    const ID: u32;
    const LAYOUT: Layout;
    fn unpack(block: &[u8; B], out: &mut Unpacked);
}

/// A block type that can be written.
pub(crate) trait EncodeBlock<const E: usize, const B: usize>: Block<E, B> {
    fn encode(x: &[f32; E], block: &mut [u8; B]) -> Result<(), OutOfRange>;
}

/// The values of a block are too large for its scales.
pub(crate) struct OutOfRange;

impl Info {
    pub(crate) const fn decoder<T: Block<E, B>, const E: usize, const B: usize>() -> Info {
        Info {
            id: T::ID,
            elements: E,
            bytes: B,
            layout: Some(T::LAYOUT),
            decode: decode::<T, E, B>,
            encode: None,
            unpack: Some(unpack::<T, E, B>),
        }
    }

    pub(crate) const fn codec<T: EncodeBlock<E, B>, const E: usize, const B: usize>() -> Info {
        Info { encode: Some(encode::<T, E, B>), ..Self::decoder::<T, E, B>() }
    }
}

fn unpack<T: Block<E, B>, const E: usize, const B: usize>(block: &[u8], out: &mut Unpacked) {
    for block in block.as_chunks().0 {
        T::unpack(block, out);
    }
}

fn decode<T: Block<E, B>, const E: usize, const B: usize>(src: &[u8], dst: &mut [f32]) {
    let mut u = Unpacked::new();
    for (block, dst) in src.as_chunks().0.iter().zip(dst.as_chunks_mut().0) {
        T::unpack(block, &mut u);
        values::<T, E, B>(&u, dst);
    }
}

fn values<T: Block<E, B>, const E: usize, const B: usize>(u: &Unpacked, dst: &mut [f32; E]) {
    let layout = const { &T::LAYOUT };
    let groups = dst.chunks_exact_mut(layout.group).zip(u.codes.chunks_exact(layout.group));
    for (g, (dst, codes)) in groups.enumerate() {
        let scale = u.d * u.scales[g] as f32;
        match layout.levels {
            Levels::Linear { zero } => {
                for (y, &c) in dst.iter_mut().zip(codes) {
                    *y = scale * (i32::from(c) - i32::from(zero)) as f32;
                }
            }
            Levels::Table(table) => {
                for (y, &c) in dst.iter_mut().zip(codes) {
                    *y = scale * f32::from(table[usize::from(c & 15)]);
                }
            }
        }
        // Adding 0 would turn -0 into +0 in types without minimums.
        if layout.has_mins() {
            let min = u.m * u.mins[g] as f32;
            dst.iter_mut().for_each(|y| *y += min);
        }
    }
}

fn encode<T: EncodeBlock<E, B>, const E: usize, const B: usize>(
    src: &[f32],
    dst: &mut [u8],
) -> Result<(), usize> {
    for (i, (x, block)) in src.as_chunks().0.iter().zip(dst.as_chunks_mut().0).enumerate() {
        T::encode(x, block).map_err(|OutOfRange| i * E)?;
    }
    Ok(())
}

/// The `N` bytes at `at`.
pub(crate) fn bytes<const N: usize>(block: &[u8], at: usize) -> &[u8; N] {
    block[at..].first_chunk().expect("field offsets lie inside the block")
}

/// The little-endian u16 at `at`.
pub(crate) fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(*bytes(block, at))
}

/// The little-endian u32 at `at`.
pub(crate) fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes(block, at))
}

/// The f16 at `at`.
pub(crate) fn f16_at(block: &[u8], at: usize) -> f32 {
    f16::from_bits(u16_at(block, at)).to_f32()
}

/// Writes the f16 nearest to `value` at `at`.
pub(crate) fn put_f16(block: &mut [u8], at: usize, value: f32) -> Result<(), OutOfRange> {
    let value = f16::from_f32(value);
    block[at..at + 2].copy_from_slice(&value.to_le_bytes());
    if value.is_finite() { Ok(()) } else { Err(OutOfRange) }
}

/// The value of largest magnitude, with its sign; the first of equals, 0 for none but zeros.
pub(crate) fn extreme(x: impl IntoIterator<Item = f32>) -> f32 {
    x.into_iter().fold(0.0, |best: f32, v| if v.abs() > best.abs() { v } else { best })
}

/// The inverse of a scale; 0 where that is infinite.
pub(crate) fn inverse(d: f32) -> f32 {
    let inverse = 1.0 / d;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// The scale that spreads codes `0..=top` over the block, and the least value.
pub(crate) fn span(x: &[f32], top: f32) -> (f32, f32) {
    let min = x.iter().copied().fold(f32::INFINITY, f32::min);
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    ((max - min) / top, min)
}
