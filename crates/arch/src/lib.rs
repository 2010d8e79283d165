//! Model families as graph builders.
#![forbid(unsafe_code)]
