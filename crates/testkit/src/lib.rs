//! Test support: operation cases, tiny random models, error measures.
#![forbid(unsafe_code)]
