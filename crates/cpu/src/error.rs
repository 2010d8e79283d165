use crate::{ActForm, Isa};
use wootz_graph::{ByteSize, RunError};
use wootz_quant::WeightType;

/// What can go wrong in this crate.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CpuError {
    /// The system refused memory.
    #[error("out of memory: {} refused", ByteSize(*bytes as u64))]
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
    /// Activations have another form than weights multiply with.
    #[error("{ty} weights need activations of the form {:?}, found {found:?}", ActForm::of(*ty))]
    Form {
        /// Weight type.
        ty: WeightType,
        /// Form of the activations.
        found: ActForm,
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
    /// A number that counts from 0 is too large, or negative.
    #[error("{what} {found} does not exist: there are {limit}")]
    Index {
        /// What is numbered.
        what: &'static str,
        /// The number found.
        found: i64,
        /// How many there are.
        limit: usize,
    },
    /// A cache's heads cannot be stored in its type.
    #[error("{ty} caches need heads of a multiple of 32 elements, found {dim}")]
    HeadSize {
        /// Cache type.
        ty: &'static str,
        /// Elements of a head.
        dim: usize,
    },
    /// Two runs of tokens of one step write to one block of a cache.
    #[error("two sequences of one step write to cache block {block}")]
    SharedBlock {
        /// The physical block.
        block: u32,
    },
}

impl CpuError {
    /// [`CpuError::Length`] where the lengths differ.
    pub(crate) fn check(what: &'static str, expected: usize, found: usize) -> Result<(), CpuError> {
        if expected == found { Ok(()) } else { Err(CpuError::Length { what, expected, found }) }
    }
}

/// An error of a kernel, as one of the device: shapes are checked when plans are made, so it is a mistake of ours.
impl From<CpuError> for RunError {
    fn from(error: CpuError) -> RunError {
        match error {
            CpuError::OutOfMemory { bytes } => RunError::OutOfMemory {
                device: "cpu".into(),
                what: "a buffer".into(),
                needed: bytes as u64,
                available: crate::host::memory().map(|m| m.available),
            },
            e => RunError::Device { device: "cpu".into(), reason: e.to_string() },
        }
    }
}
