//! Local language-model inference.
#![forbid(unsafe_code)]

pub mod sample;
