//! Reader and writer of GGUF model files.
#![deny(unsafe_code)]
