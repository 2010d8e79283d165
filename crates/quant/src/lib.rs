//! Weight types of GGUF: layouts, decoders, encoders and scalar dot products.
#![forbid(unsafe_code)]

mod registry;

pub use registry::WeightType;
