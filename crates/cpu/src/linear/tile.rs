//! A tile: one row group times a few tokens. Every lane is one row and walks its blocks upwards, in every tile
//! shape, so all shapes give the same bits.

use super::float::Float;
use super::kquants::{FourK, Iq4Xs, Q2K, Q3K, Q6K};
use super::legacy::{Iq4Nl, Legacy, Mxfp4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use crate::Isa;
use crate::isa::element::{Bf16, F16, F32};
use crate::isa::{LANES, Op, Simd};
use wootz_quant::WeightType;

/// How a kernel reads one weight type.
pub(super) trait Format {
    /// Adds the products of `cols` columns of one row group at `w` with the tile at `a` to `acc`.
    ///
    /// # Safety
    /// The processor has `S`; `w` holds the packed columns, `a` the tile of `T` tokens.
    unsafe fn row_group<S: Simd, const T: usize>(
        w: *const u8,
        a: *const u8,
        cols: usize,
        acc: &mut [S::F; T],
    );
}

/// What a tile works on.
#[derive(Clone, Copy)]
pub(super) struct TileArgs {
    /// Packed bytes of the row group.
    pub(super) w: *const u8,
    /// The tile of activations.
    pub(super) a: *const u8,
    /// Columns.
    pub(super) cols: usize,
    /// Sums so far, `[T][16]`; null where the sums start at zero.
    pub(super) init: *const f32,
    /// Where the sums go.
    pub(super) out: *mut f32,
    /// Distance of tokens in `out`, in elements.
    pub(super) stride: usize,
    /// Rows to write, at most 16.
    pub(super) rows: usize,
}

struct Tile<K, const T: usize>(TileArgs, std::marker::PhantomData<K>);

impl<K: Format, const T: usize> Op for Tile<K, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn call<S: Simd>(self) {
        let args = self.0;
        // SAFETY: `TileFn` demands valid pointers for this type and shape.
        unsafe {
            let mut acc = [S::f_zero(); T];
            if !args.init.is_null() {
                for t in 0..T {
                    acc[t] = S::f_load(args.init.add(t * LANES));
                }
            }
            K::row_group::<S, T>(args.w, args.a, args.cols, &mut acc);
            if args.rows == LANES {
                for t in 0..T {
                    S::f_store(args.out.add(t * args.stride), acc[t]);
                }
            } else {
                let mut lanes = [0f32; LANES];
                for t in 0..T {
                    S::f_store(lanes.as_mut_ptr(), acc[t]);
                    args.out.add(t * args.stride).copy_from_nonoverlapping(lanes.as_ptr(), args.rows);
                }
            }
        }
    }
}

/// A compiled tile.
///
/// # Safety
/// The processor has the instruction set; `args` describes memory of the right type and shape.
pub(super) type TileFn = unsafe fn(&TileArgs);

/// The tiles of one weight type for 1, 2, 4 and 8 tokens.
pub(super) type TileSet = [TileFn; 4];

unsafe fn enter<S: Simd, K: Format, const T: usize>(args: &TileArgs) {
    // SAFETY: as `TileFn` demands.
    unsafe { S::enter(Tile::<K, T>(*args, std::marker::PhantomData)) }
}

fn tiles_of<S: Simd, K: Format>() -> TileSet {
    [
        enter::<S, K, 1>,
        enter::<S, K, 2>,
        enter::<S, K, 4>,
        if S::TOKENS == 8 { enter::<S, K, 8> } else { never },
    ]
}

/// Stands where an instruction set has no tile of that size.
unsafe fn never(_: &TileArgs) {
    unreachable!("activations have no tiles larger than the instruction set's")
}

/// The tiles for weights of type `ty`; those of F32 for types without a fast kernel, which are decoded first.
pub(super) fn tiles(isa: Isa, ty: WeightType) -> TileSet {
    struct Pick(WeightType);
    impl Op for Pick {
        type Output = TileSet;
        #[inline(always)]
        unsafe fn call<S: Simd>(self) -> TileSet {
            match self.0 {
                WeightType::Q8_0 => tiles_of::<S, Legacy<Q8_0>>(),
                WeightType::Q4_0 => tiles_of::<S, Legacy<Q4_0>>(),
                WeightType::Q4_1 => tiles_of::<S, Legacy<Q4_1>>(),
                WeightType::Q5_0 => tiles_of::<S, Legacy<Q5_0>>(),
                WeightType::Q5_1 => tiles_of::<S, Legacy<Q5_1>>(),
                WeightType::IQ4_NL => tiles_of::<S, Legacy<Iq4Nl>>(),
                WeightType::MXFP4 => tiles_of::<S, Legacy<Mxfp4>>(),
                WeightType::Q2_K => tiles_of::<S, Q2K>(),
                WeightType::Q3_K => tiles_of::<S, Q3K>(),
                WeightType::Q4_K => tiles_of::<S, FourK<false>>(),
                WeightType::Q5_K => tiles_of::<S, FourK<true>>(),
                WeightType::Q6_K => tiles_of::<S, Q6K>(),
                WeightType::IQ4_XS => tiles_of::<S, Iq4Xs>(),
                WeightType::F16 => tiles_of::<S, Float<F16>>(),
                WeightType::BF16 => tiles_of::<S, Float<Bf16>>(),
                _ => tiles_of::<S, Float<F32>>(),
            }
        }
    }
    isa.dispatch(Pick(ty))
}
