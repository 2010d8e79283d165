//! Local language-model inference.
#![forbid(unsafe_code)]

pub mod kv;
pub mod sample;
