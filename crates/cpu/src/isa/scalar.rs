//! Plain code: a virtual vector is an array.

use super::{LANES, Op, Simd, simd_functions};
use std::array::from_fn;

/// The plain machine.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

fn map_bytes(a: [i32; LANES], f: impl Fn(u8) -> u8) -> [i32; LANES] {
    a.map(|lane| i32::from_le_bytes(lane.to_le_bytes().map(&f)))
}

/// Products of the unsigned bytes of each lane with the signed bytes of `x`, summed in the lane.
fn dot_bytes(sum: [i32; LANES], codes: [i32; LANES], x: i32) -> [i32; LANES] {
    let x = x.to_le_bytes().map(|b| i32::from(b as i8));
    from_fn(|lane| {
        let codes = codes[lane].to_le_bytes().map(i32::from);
        sum[lane] + codes[0] * x[0] + codes[1] * x[1] + codes[2] * x[2] + codes[3] * x[3]
    })
}

fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Lane i with lane i + 8, then i + 4, i + 2, i + 1.
fn tree(mut a: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            a[i] = f(a[i], a[i + half]);
        }
    }
    a[0]
}

impl Simd for Scalar {
    type F = [f32; LANES];
    type I = [i32; LANES];
    type X = i32;
    type Sum = [i32; LANES];
    type Scale = Self::I;
    type Block = Self::I;
    type Codes = [i32; LANES];
    type Wide = [i32; LANES];
    type WideX = Self::X;

    const TOKENS: usize = 4;
    const PAIRS: bool = false;
    const ROWS: [usize; 2] = [6, 2];
    const EXPAND: bool = true;
    const EIGHTS: bool = false;
    const MAGNITUDES: bool = false;
    const BF16_BYTES: usize = 4;

    #[inline]
    unsafe fn enter<O: Op>(op: O) -> O::Output {
        // SAFETY: every processor has what `Scalar` needs.
        unsafe { op.call::<Scalar>() }
    }

    simd_functions! {
        fn f_zero() -> Self::F { [0.0; LANES] }
        fn f_load(p: *const f32) -> Self::F { p.cast::<Self::F>().read_unaligned() }
        fn f_store(p: *mut f32, a: Self::F) { p.cast::<Self::F>().write_unaligned(a) }
        fn f_broadcast(p: *const u8) -> Self::F { [p.cast::<f32>().read_unaligned(); LANES] }
        fn f_load_f16(p: *const u8) -> Self::F {
            p.cast::<[u16; LANES]>().read_unaligned().map(|h| half::f16::from_bits(h).to_f32())
        }
        fn f_load_bf16(p: *const u8) -> Self::F {
            p.cast::<[u16; LANES]>().read_unaligned().map(|h| f32::from_bits(u32::from(h) << 16))
        }
        fn f_from_i32(a: Self::I) -> Self::F { a.map(|v| v as f32) }
        fn f_from_bits(a: Self::I) -> Self::F { a.map(|v| f32::from_bits(v as u32)) }
        fn f_add(a: Self::F, b: Self::F) -> Self::F { from_fn(|i| a[i] + b[i]) }
        fn f_mul(a: Self::F, b: Self::F) -> Self::F { from_fn(|i| a[i] * b[i]) }
        fn f_fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F { from_fn(|i| a[i].mul_add(b[i], c[i])) }
        fn f_fnma(a: Self::F, b: Self::F, c: Self::F) -> Self::F { from_fn(|i| (-a[i]).mul_add(b[i], c[i])) }
        fn f_round(a: Self::F) -> Self::I { a.map(|v| v.round_ties_even() as i32) }
        fn f_bits(a: Self::F) -> Self::I { a.map(|v| v.to_bits() as i32) }
        fn f_splat(a: f32) -> Self::F { [a; LANES] }
        fn f_sub(a: Self::F, b: Self::F) -> Self::F { from_fn(|i| a[i] - b[i]) }
        fn f_div(a: Self::F, b: Self::F) -> Self::F { from_fn(|i| a[i] / b[i]) }
        fn f_max(a: Self::F, b: Self::F) -> Self::F { from_fn(|i| larger(a[i], b[i])) }
        fn f_min(a: Self::F, b: Self::F) -> Self::F { from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] }) }
        fn f_where_lt(a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F {
            from_fn(|i| if a[i] < b[i] { x[i] } else { y[i] })
        }
        fn f_sum(a: Self::F) -> f32 { tree(a, |a, b| a + b) }
        fn f_largest(a: Self::F) -> f32 { tree(a, larger) }
        fn f_store_f16(p: *mut u8, a: Self::F) {
            p.cast::<[u16; LANES]>().write_unaligned(a.map(|v| half::f16::from_f32(v).to_bits()))
        }

        fn i_zero() -> Self::I { [0; LANES] }
        fn i_splat(a: i32) -> Self::I { [a; LANES] }
        fn i_load(p: *const u8) -> Self::I { p.cast::<Self::I>().read_unaligned() }
        fn i_store(p: *mut u8, a: Self::I) { p.cast::<Self::I>().write_unaligned(a) }
        fn i_load_u8(p: *const u8) -> Self::I { p.cast::<[u8; LANES]>().read_unaligned().map(i32::from) }
        fn i_load_u16(p: *const u8) -> Self::I { p.cast::<[u16; LANES]>().read_unaligned().map(i32::from) }
        fn i_load_i8(p: *const u8) -> Self::I { p.cast::<[i8; LANES]>().read_unaligned().map(i32::from) }
        fn i_broadcast(p: *const u8) -> Self::I { [p.cast::<i32>().read_unaligned(); LANES] }
        fn i_add(a: Self::I, b: Self::I) -> Self::I { from_fn(|i| a[i].wrapping_add(b[i])) }
        fn i_sub(a: Self::I, b: Self::I) -> Self::I { from_fn(|i| a[i].wrapping_sub(b[i])) }
        fn i_dot_pairs(sum: Self::I, a: Self::I, b: Self::I) -> Self::I {
            let halves = |v: i32| [i32::from(v as i16), v >> 16];
            from_fn(|i| {
                let ([a, c], [b, d]) = (halves(a[i]), halves(b[i]));
                sum[i] + a * b + c * d
            })
        }
        fn i_pair_sums(a: Self::I) -> Self::I {
            a.map(|v| {
                let [p, q, r, s] = v.to_le_bytes().map(|b| i32::from(b as i8));
                ((p + q) & 0xffff) | ((r + s) << 16)
            })
        }
        fn i_max(a: Self::I, b: Self::I) -> Self::I { from_fn(|i| a[i].max(b[i])) }
        fn i_largest(a: Self::I) -> i32 { a.into_iter().fold(i32::MIN, i32::max) }
        fn i_to_i8(a: Self::I) -> [i8; LANES] { a.map(|v| v as i8) }
        fn i_add_bytes(a: Self::I, b: Self::I) -> Self::I {
            from_fn(|i| {
                let (a, b) = (a[i].to_le_bytes(), b[i].to_le_bytes());
                i32::from_le_bytes(from_fn(|c| a[c].wrapping_add(b[c])))
            })
        }
        fn i_and(a: Self::I, b: Self::I) -> Self::I { from_fn(|i| a[i] & b[i]) }
        fn i_or(a: Self::I, b: Self::I) -> Self::I { from_fn(|i| a[i] | b[i]) }
        fn i_shl<const N: i32>(a: Self::I) -> Self::I { a.map(|v| v << N) }
        fn i_shr<const N: i32>(a: Self::I) -> Self::I { a.map(|v| ((v as u32) >> N) as i32) }
        fn i_lookup(table: &[u8; 16], a: Self::I) -> Self::I { map_bytes(a, |b| table[usize::from(b & 15)]) }

        fn scale_u8(a: Self::I) -> Self::Scale { a.map(|v| v & 255) }
        fn scale_i8(a: Self::I) -> Self::Scale { a.map(|v| i32::from(v as i8)) }
        fn block_zero() -> Self::Block { Self::i_zero() }
        fn block_total(a: Self::Block) -> Self::F { Self::f_from_i32(a) }

        fn x_broadcast(p: *const u8) -> Self::X { p.cast::<i32>().read_unaligned() }
        fn codes(a: Self::I, _offset: u8) -> Self::Codes { a }
        fn sum_zero() -> Self::Sum { [0; LANES] }
        fn sum_start(p: *const u8) -> Self::Sum { Self::i_broadcast(p) }
        fn sum_at(p: *const u8) -> Self::Sum { Self::i_broadcast(p) }
        fn sum_start_eighth(p: *const u8) -> Self::Sum { Self::i_broadcast(p).map(|v| v >> 3) }
        fn dot(sum: Self::Sum, codes: Self::Codes, x: Self::X) -> Self::Sum { dot_bytes(sum, codes, x) }
        fn sum_total(sum: Self::Sum) -> Self::I { sum }
        fn add_scaled(a: Self::Block, sum: Self::Sum, scale: Self::Scale) -> Self::Block { from_fn(|i| a[i] + sum[i] * scale[i]) }

        fn wide(a: Self::I) -> Self::Wide { a }
        fn wide_x(x: *const u8, _abs: *const u8, _flip: *const u8) -> Self::WideX { Self::x_broadcast(x) }
        fn wide_start(p: *const u8) -> Self::I { Self::i_broadcast(p) }
        fn dot_wide(sum: Self::I, codes: Self::Wide, x: Self::WideX) -> Self::I { dot_bytes(sum, codes, x) }
        fn add_scaled_wide(a: Self::Block, sum: Self::I, scale: Self::Scale) -> Self::Block {
            from_fn(|i| a[i] + sum[i] * scale[i])
        }
    }
}
