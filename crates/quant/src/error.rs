use crate::WeightType;

/// Why weights could not be read or written.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum QuantError {
    /// Bytes that are no whole number of blocks.
    #[error("{ty}: {bytes} bytes are no whole number of blocks of {block} bytes")]
    PartialBlock {
        /// The weight type.
        ty: WeightType,
        /// Bytes found.
        bytes: usize,
        /// Bytes of one block.
        block: usize,
    },
    /// Elements that are no whole number of blocks.
    #[error("{ty}: {elements} elements are no whole number of blocks of {block} elements")]
    PartialElements {
        /// The weight type.
        ty: WeightType,
        /// Elements found.
        elements: usize,
        /// Elements of one block.
        block: usize,
    },
    /// A slice of another length than the other argument asks for.
    #[error("{ty}: expected {expected} {unit}, found {found}")]
    Length {
        /// The weight type.
        ty: WeightType,
        /// `"bytes"` or `"elements"`.
        unit: &'static str,
        /// The length the other argument asks for.
        expected: usize,
        /// The length found.
        found: usize,
    },
    /// An input to an encoder that is infinite or not a number.
    #[error("{ty}: element {index} is {value}, which cannot be encoded")]
    NotFinite {
        /// The weight type.
        ty: WeightType,
        /// Index of the element.
        index: usize,
        /// The value found.
        value: f32,
    },
    /// A block with values too large for the type, or for the scales of its blocks.
    #[error("{ty}: the block at element {index} has values beyond the range of the type")]
    Range {
        /// The weight type.
        ty: WeightType,
        /// Index of the block's first element.
        index: usize,
    },
    /// A type that can only be read.
    #[error("{ty} cannot be encoded, only decoded")]
    NoEncoder {
        /// The weight type.
        ty: WeightType,
    },
    /// A plain type, which has no codes and scales.
    #[error("{ty} is a plain type without codes and scales")]
    Plain {
        /// The weight type.
        ty: WeightType,
    },
}
