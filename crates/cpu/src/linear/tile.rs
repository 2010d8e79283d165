//! A tile: one row group times a few tokens. Every lane is one row and walks its blocks upwards, in every tile
//! shape, so all shapes give the same bits.

use super::float::{Column, Float, Pair};
use super::kquants::{FourK, Iq4Xs, Q2K, Q3K, Q6K};
use super::legacy::{Iq4Nl, Legacy, Mxfp4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use crate::Isa;
use crate::isa::element::{F16, F32};
use crate::isa::{LANES, Op, Simd};
use std::marker::PhantomData;
use wootz_quant::WeightType;

/// How a kernel reads one weight type.
pub(super) trait Format {
    /// Whether the weights are codes that can be expanded to bytes.
    const CODES: bool;
    /// Whether it takes so many steps to make a code that all instruction sets gain from expanding.
    const MANY_STEPS: bool = false;

    /// Adds the products of `cols` columns of one row group at `w` with the tile at `a` to `acc`; with `EXPANDED`,
    /// `codes` are what [`expand`](Format::expand) made of them.
    ///
    /// # Safety
    /// The processor has `S`; `w` holds the packed columns, `a` the tile of `T` tokens.
    unsafe fn row_group<S: Simd, const T: usize, const EXPANDED: bool>(
        w: *const u8,
        codes: *const u8,
        a: *const u8,
        cols: usize,
        acc: &mut [S::F; T],
    );

    /// Writes the codes of `cols` columns of one row group at `w`, a byte each: vectors of four columns of 16 rows,
    /// columns upwards.
    ///
    /// # Safety
    /// The processor has `S`; `w` holds the packed columns, `codes` has room for `16 * cols` bytes.
    unsafe fn expand<S: Simd>(w: *const u8, cols: usize, codes: *mut u8);
}

/// What a tile works on.
#[derive(Clone, Copy)]
pub(super) struct TileArgs {
    /// Packed bytes of the row group.
    pub(super) w: *const u8,
    /// Its expanded codes, for tiles that want them.
    pub(super) codes: *const u8,
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

/// The arguments go by reference: a copy, written field by field, would be read back in wide pieces at once, and wait for
/// the writes to reach the cache.
struct Tile<'a, K, const T: usize, const EXPANDED: bool>(&'a TileArgs, PhantomData<K>);

impl<K: Format, const T: usize, const EXPANDED: bool> Op for Tile<'_, K, T, EXPANDED> {
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
            K::row_group::<S, T, EXPANDED>(args.w, args.codes, args.a, args.cols, &mut acc);
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

struct Expand<K> {
    w: *const u8,
    cols: usize,
    codes: *mut u8,
    kernel: PhantomData<K>,
}

impl<K: Format> Op for Expand<K> {
    type Output = ();

    #[inline(always)]
    unsafe fn call<S: Simd>(self) {
        // SAFETY: `ExpandFn` demands valid pointers for this type and shape.
        unsafe { K::expand::<S>(self.w, self.cols, self.codes) }
    }
}

/// A compiled tile.
///
/// # Safety
/// The processor has the instruction set; `args` describes memory of the right type and shape.
pub(super) type TileFn = unsafe fn(&TileArgs);

/// A compiled expansion of packed columns at the first pointer to `16 * columns` bytes at the second.
///
/// # Safety
/// The processor has the instruction set; the memory is of the right type and shape.
pub(super) type ExpandFn = unsafe fn(*const u8, usize, *mut u8);

/// The kernels of one weight type.
#[derive(Clone, Copy)]
pub(super) struct Kernels {
    /// Tiles of 1, 2, 4 and 8 tokens.
    tiles: [TileFn; 4],
    /// The expansion, and the largest tile on its codes; `None` where that gains nothing.
    pub(super) expanded: Option<(ExpandFn, TileFn)>,
}

impl Kernels {
    /// The tile of `tokens` tokens, a power of two.
    pub(super) fn tile(&self, tokens: usize) -> TileFn {
        self.tiles[tokens.ilog2() as usize]
    }
}

unsafe fn tile<S: Simd, K: Format, const T: usize, const EXPANDED: bool>(args: &TileArgs) {
    // SAFETY: as `TileFn` demands.
    unsafe { S::enter(Tile::<K, T, EXPANDED>(args, PhantomData)) }
}

unsafe fn expand<S: Simd, K: Format>(w: *const u8, cols: usize, codes: *mut u8) {
    // SAFETY: as `ExpandFn` demands.
    unsafe { S::enter(Expand::<K> { w, cols, codes, kernel: PhantomData }) }
}

/// Stands where an instruction set has no tile of that size.
unsafe fn never(_: &TileArgs) {
    unreachable!("activations have no tiles larger than the instruction set's")
}

fn kernels_of<S: Simd, K: Format>() -> Kernels {
    let (eight, largest): (TileFn, TileFn) = if S::TOKENS == 8 {
        (tile::<S, K, 8, false>, tile::<S, K, 8, true>)
    } else {
        (never, tile::<S, K, 4, true>)
    };
    Kernels {
        tiles: [tile::<S, K, 1, false>, tile::<S, K, 2, false>, tile::<S, K, 4, false>, eight],
        expanded: (K::CODES && (S::EXPAND || K::MANY_STEPS)).then_some((expand::<S, K>, largest)),
    }
}

/// The kernels for weights of type `ty`; those of F32 for types without a fast kernel, which are decoded first.
pub(super) fn kernels(isa: Isa, ty: WeightType) -> Kernels {
    struct Pick(WeightType);
    impl Op for Pick {
        type Output = Kernels;
        #[inline(always)]
        unsafe fn call<S: Simd>(self) -> Kernels {
            match self.0 {
                WeightType::Q8_0 => kernels_of::<S, Legacy<Q8_0>>(),
                WeightType::Q4_0 => kernels_of::<S, Legacy<Q4_0>>(),
                WeightType::Q4_1 => kernels_of::<S, Legacy<Q4_1>>(),
                WeightType::Q5_0 => kernels_of::<S, Legacy<Q5_0>>(),
                WeightType::Q5_1 => kernels_of::<S, Legacy<Q5_1>>(),
                WeightType::IQ4_NL => kernels_of::<S, Legacy<Iq4Nl>>(),
                WeightType::MXFP4 => kernels_of::<S, Legacy<Mxfp4>>(),
                WeightType::Q2_K => kernels_of::<S, Q2K>(),
                WeightType::Q3_K => kernels_of::<S, Q3K>(),
                WeightType::Q4_K => kernels_of::<S, FourK<false>>(),
                WeightType::Q5_K => kernels_of::<S, FourK<true>>(),
                WeightType::Q6_K => kernels_of::<S, Q6K>(),
                WeightType::IQ4_XS => kernels_of::<S, Iq4Xs>(),
                WeightType::F16 => kernels_of::<S, Float<Column<F16>>>(),
                WeightType::BF16 => kernels_of::<S, Float<Pair>>(),
                _ => kernels_of::<S, Float<Column<F32>>>(),
            }
        }
    }
    isa.dispatch(Pick(ty))
}
