//! Reader and writer of GGUF model files.
//!
//! - [`Model`] opens a file, or a set of shards by any of them, and gives metadata, tensors and their data.
//! - [`Metadata`] holds typed values under keys; [`Value`], [`Array`], [`Strings`] and [`Text`] look into it.
//! - [`TensorInfo`] is an entry of the tensor directory: name, type, dimensions, place.
//! - [`Writer`] writes a model, [`AtomicFile`] a file that is whole or not there.
//! - [`Error`] says which file, and what was found and expected.
//!
//! Versions 2 and 3 of the format are read, little endian; version 3 is written. The source of the format is
//! the specification in the ggml repository, `docs/gguf.md`.
//!
//! Files are not trusted: whatever the bytes, reading ends in a model or an [`Error`], in time proportional
//! to the size of the file (times the logarithm of the number of names), without more memory than a small
//! multiple of what it read.
//!
//! ```
//! use wootz_gguf::{Model, Writer};
//! use wootz_quant::WeightType;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let path = std::env::temp_dir().join(format!("wootz-doc-{}.gguf", std::process::id()));
//! let mut writer = Writer::new();
//! writer
//!     .meta
//!     .set("general.architecture", "llama")?
//!     .set("llama.block_count", 2u32)?
//!     .set("tokenizer.ggml.tokens", ["<s>", "a", "b"])?;
//! writer.tensor("output.weight", &[2, 3], WeightType::F32, vec![0; 24])?;
//! writer.write_file(&path)?;
//!
//! let model = Model::open(&path)?;
//! let meta = model.meta();
//! let layers = meta.u32(&format!("{}.block_count", meta.architecture()?))?;
//! let epsilon = meta.opt_f32("llama.attention.layer_norm_rms_epsilon")?.unwrap_or(1e-5);
//! assert_eq!((layers, epsilon), (2, 1e-5));
//! assert_eq!(meta.strings("tokenizer.ggml.tokens")?.get(1).unwrap().as_str()?, "a");
//!
//! let output = model.tensor_with_dims("output.weight", &[2, 3])?; // columns first
//! assert_eq!((output.rows(), output.cols(), output.ty), (3, 2, WeightType::F32));
//! assert_eq!(model.data(output)?.len(), 24); // mapped
//! let mut row = [0; 8];
//! model.read_tensor_at(output, 8, &mut row)?; // read, nothing mapped
//! # std::fs::remove_file(path)?;
//! # Ok(())
//! # }
//! ```
#![deny(unsafe_code)]

mod atomic;
mod error;
mod getters;
mod input;
mod metadata;
mod mmap;
mod model;
mod shard;
mod sniff;
mod split;
mod tensor;
mod value;
mod writer;

pub use atomic::AtomicFile;
pub use error::{Error, ErrorKind, Result};
pub use metadata::Metadata;
pub use model::Model;
pub use tensor::TensorInfo;
pub use value::{Array, ArrayIter, Encode, Strings, Text, Value, ValueType};
pub use writer::Writer;
