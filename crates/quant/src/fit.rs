//! Searches for the scales of the K-quants and of IQ4.
//!
//! Each group is fitted on its own by weighted least squares, from several starting scales. The groups' scales are
//! then rounded to integers under common factors, looking at the neighbours too, and the factors are solved for
//! again with codes and integer scales held fixed. Elements weigh more the larger they are, since large weights
//! matter more to the outputs of a model than their share of the squares says.

mod affine;
mod group;
mod symmetric;

pub(crate) use affine::Affine;
pub(crate) use symmetric::{Symmetric, Table, Uniform};

use crate::block::OutOfRange;
use half::f16;

/// The nearest integer, ties to even, for magnitudes below 2^22; others are clamped to that.
pub(crate) fn nearest(x: f32) -> i32 {
    round(limit(x, -4_194_304.0, 4_194_304.0)) as i32
}

/// The nearest whole number, ties to even, for magnitudes up to 2^22.
#[inline(always)]
fn round(x: f32) -> f32 {
    // The sum has no bits left below 1. Unlike the library's function this needs no instruction beyond the
    // baseline of x86-64, and so vectorises.
    const SHIFT: f32 = 12_582_912.0;
    (x + SHIFT) - SHIFT
}

/// `x` inside its bounds, `low` for NaN; unlike `f32::clamp` two vector instructions.
#[inline(always)]
fn limit(x: f32, low: f32, high: f32) -> f32 {
    let x = if x > low { x } else { low };
    if x < high { x } else { high }
}

/// The f16 nearest to a factor.
fn factor(value: f32) -> Result<f32, OutOfRange> {
    let value = f16::from_f32(value);
    if value.is_finite() { Ok(value.to_f32()) } else { Err(OutOfRange) }
}

/// The f16 nearest to a factor, or the one above where that is a poor match, as among subnormal numbers: integer
/// scales make up for a factor that is too large, but not for one too small.
fn first_factor(value: f32) -> Result<f32, OutOfRange> {
    let near = factor(value)?;
    if near.abs() >= value.abs() * 0.999 {
        return Ok(near);
    }
    let above = f16::from_bits(f16::from_f32(near).to_bits() + 1).to_f32();
    Ok(if near == 0.0 { above.copysign(value) } else { above })
}

/// Refuses values that no f16 factor reaches with products of scale and level up to `most`; sums of squares of
/// the others stay finite.
fn check(x: &[f32], most: f32) -> Result<(), OutOfRange> {
    if x.iter().any(|v| v.abs() > f16::MAX.to_f32() * most) { Err(OutOfRange) } else { Ok(()) }
}
