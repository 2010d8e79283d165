//! Tokenizers, chat templates and streaming detokenization.
#![forbid(unsafe_code)]

pub mod reasoning;
pub mod stop;
pub mod stream;
pub mod template;
#[cfg(test)]
mod testing;
pub mod tools;
