use crate::Isa;
use wootz_quant::WeightType;

/// What can go wrong in this crate.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CpuError {
    /// The system refused memory.
    #[error("out of memory: {bytes} bytes refused")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// This processor lacks an instruction set that was asked for.
    #[error("this processor has no {isa}; it has {available}")]
    MissingIsa {
        /// The instruction set asked for.
        isa: Isa,
        /// What the processor has, separated by commas.
        available: String,
    },
    /// No instruction set has this name.
    #[error("unknown instruction set {name:?}; known are {known}")]
    UnknownIsa {
        /// The name found.
        name: String,
        /// All names, separated by commas.
        known: String,
    },
    /// A row does not consist of whole blocks, or the matrix is too large to address.
    #[error("a {ty} matrix cannot be [{rows}, {cols}]: rows are made of blocks of {}", ty.block_elements())]
    MatrixShape {
        /// Weight type.
        ty: WeightType,
        /// Rows.
        rows: usize,
        /// Columns.
        cols: usize,
    },
    /// A length differs from what the shapes demand.
    #[error("{what}: expected {expected}, found {found}")]
    Length {
        /// What was measured, with its unit.
        what: &'static str,
        /// Expected length.
        expected: usize,
        /// Found length.
        found: usize,
    },
}
