//! Tiles: the order of weights that the fast products read. Each has 16 rows and 256 columns.

use wootz_graph::WeightInfo;
use wootz_graph::op::Op;
use wootz_quant::WeightType;

use crate::machine::Kernel;
use crate::select::Kernels;

/// Rows of a tile.
pub(crate) const ROWS: u32 = 16;
/// Columns of a tile.
pub(crate) const COLS: u32 = 256;

/// Columns whose activations fit the shared memory of every device: 384 bytes for 256 of int8 ones, 1024 of others.
const MOST_COLS: u64 = 51_200;
const MOST_FLOAT_COLS: u64 = 19_456;

/// The types with fast products: the bytes of a tile, and the kernel that makes tiles.
const TYPES: [(WeightType, usize, Kernel); 9] = [
    (WeightType::Q4_K, 2304, Kernel::new("repack", "repack_q4_k")),
    (WeightType::Q5_K, 2816, Kernel::new("repack", "repack_q5_k")),
    (WeightType::Q6_K, 3360, Kernel::new("repack", "repack_q6_k")),
    (WeightType::Q8_0, 4352, Kernel::new("repack", "repack_q8_0")),
    (WeightType::Q4_0, 2304, Kernel::new("repack", "repack_q4_0")),
    (WeightType::Q4_1, 2560, Kernel::new("repack", "repack_q4_1")),
    (WeightType::MXFP4, 2176, Kernel::new("repack", "repack_mxfp4")),
    (WeightType::F16, 8192, Kernel::new("repack", "repack_16bit")),
    (WeightType::BF16, 8192, Kernel::new("repack", "repack_16bit")),
];

/// The kernel that makes tiles of a type.
pub(crate) fn repack(ty: WeightType) -> Option<Kernel> {
    TYPES.iter().find(|(t, ..)| *t == ty).map(|(.., kernel)| *kernel)
}

/// Whether an operation multiplies with tiles of a weight.
pub(crate) fn serve(kernels: Kernels, op: &Op, info: &WeightInfo) -> bool {
    let Op::Linear(linear) = op else { return false };
    let whole_tiles = linear.first.is_multiple_of(ROWS);
    let most = if is_float(info.ty) { MOST_FLOAT_COLS } else { MOST_COLS };
    let fits = info.cols.is_multiple_of(8) && info.cols <= most;
    kernels == Kernels::Fast && whole_tiles && fits && TileShape::new(info).is_some()
}

/// The tiles of a weight: those of a row of tiles stand together, those of an expert too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TileShape {
    tile_bytes: usize,
    pub(crate) row_tiles: usize,
    pub(crate) k_tiles: usize,
    experts: usize,
}

impl TileShape {
    /// The tiles of a weight, if its type has them.
    pub(crate) fn new(info: &WeightInfo) -> Option<TileShape> {
        let (_, tile_bytes, _) = TYPES.iter().find(|(ty, ..)| *ty == info.ty)?;
        let experts = info.experts.max(1);
        let rows = info.rows / u64::from(experts);
        Some(TileShape {
            tile_bytes: *tile_bytes,
            row_tiles: rows.div_ceil(u64::from(ROWS)) as usize,
            k_tiles: info.cols.div_ceil(u64::from(COLS)) as usize,
            experts: experts as usize,
        })
    }

    /// Bytes from one expert to the next.
    pub(crate) fn expert_bytes(&self) -> usize {
        self.row_tiles * self.k_tiles * self.tile_bytes
    }

    /// Bytes of all tiles.
    pub(crate) fn bytes(&self) -> usize {
        self.experts * self.expert_bytes()
    }

    /// Offset of the tiles that hold a row, the first of its tiles.
    pub(crate) fn row_offset(&self, row: u64) -> u64 {
        row / u64::from(ROWS) * (self.k_tiles * self.tile_bytes) as u64
    }
}

/// Whether products of a type take activations of more than 8 bits.
pub(crate) fn is_float(ty: WeightType) -> bool {
    matches!(ty, WeightType::F16 | WeightType::BF16)
}

/// What undoes the factor that keeps small weights of a type out of the denormals of f16 in products of many rows.
pub(crate) fn factor(ty: WeightType) -> f32 {
    if is_float(ty) { 1.0 } else { 1.0 / 64.0 }
}

/// Bytes of a tile of a type; 0 for types without tiles.
pub(crate) fn bytes(ty: WeightType) -> usize {
    TYPES.iter().find(|(t, ..)| *t == ty).map_or(0, |(_, bytes, _)| *bytes)
}

/// Bytes of the int8 activations of a row.
pub(crate) fn acts_bytes(cols: u32) -> usize {
    cols.div_ceil(COLS) as usize * 384
}

/// The kernel for a type with tiles, whose name stands between parts of the kernel's. All types have `one` file, or
/// `each` its own, which ends in the type's name too.
macro_rules! typed {
    ($files:ident $file:literal, $($before:literal,)+ $ty:ident, $($after:literal),+) => {
        $crate::tiles::typed!(@types $files $file, ($($before),+), $ty, ($($after),+),
            Q4_K "q4_k", Q5_K "q5_k", Q6_K "q6_k", Q8_0 "q8_0", Q4_0 "q4_0", Q4_1 "q4_1", MXFP4 "mxfp4",
            F16 "f16", BF16 "bf16")
    };
    (@types $files:ident $file:literal, $before:tt, $ty:expr, $after:tt,
        $($variant:ident $name:literal),*) => {
        match $ty {
            $(wootz_quant::WeightType::$variant => Ok($crate::machine::Kernel::new(
                $crate::tiles::typed!(@file $files $file $name),
                $crate::tiles::typed!(@name $before $name $after),
            )),)*
            ty => Err(wootz_graph::RunError::Plan(format!("no fast products of {ty}"))),
        }
    };
    (@name ($($before:literal),+) $name:literal ($($after:literal),+)) => {
        concat!($($before,)+ $name, $($after),+)
    };
    (@file one $file:literal $name:literal) => {
        $file
    };
    (@file each $file:literal $name:literal) => {
        concat!($file, $name)
    };
}
pub(crate) use typed;
