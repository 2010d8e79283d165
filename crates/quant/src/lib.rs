//! Weight types of GGUF: layouts, decoders, encoders and scalar dot products.
//!
//! [`WeightType`] names the types and does everything on whole rows. For kernels, every block type has one
//! common form, [`Unpacked`]: unsigned codes in the order of the elements, an integer scale and an integer
//! minimum for each group of elements, and the two factors of the block. [`WeightType::layout`] describes it.
//!
//! ```
//! use wootz_quant::WeightType;
//!
//! let x: Vec<f32> = (0..256).map(|i| (i as f32 * 0.1).sin()).collect();
//! let mut blocks = vec![0; WeightType::Q4_K.row_bytes(x.len()).unwrap()];
//! WeightType::Q4_K.encode(&x, &mut blocks)?;
//! let mut y = vec![0.0; x.len()];
//! WeightType::Q4_K.decode(&blocks, &mut y)?;
//! assert!(x.iter().zip(&y).all(|(x, y)| (x - y).abs() < 0.1));
//! # Ok::<(), wootz_quant::QuantError>(())
//! ```
#![forbid(unsafe_code)]

mod bits;
mod block;
mod error;
mod fit;
mod grid;
mod grids;
mod plain;
mod registry;
pub mod types;

pub use block::{Layout, Levels, MAX_ELEMENTS, MAX_GROUPS, Unpacked};
pub use error::QuantError;
pub use grid::Codebook;
pub use types::WeightType;

/// Names and texts of the C++ headers that decode blocks in kernels, the same for all backends; `blocks.h` includes the
/// others and says what its includer provides.
pub const KERNEL_HEADERS: [(&str, &str); 3] = [
    ("blocks.h", include_str!("../kernels/blocks.h")),
    ("codebooks.h", include_str!("../kernels/codebooks.h")),
    ("grids.h", include_str!("../kernels/grids.h")),
];
