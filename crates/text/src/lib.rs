//! Tokenizers, chat templates and streaming detokenization.
#![forbid(unsafe_code)]

mod pretokenize;
pub mod reasoning;
pub mod stop;
pub mod stream;
pub mod template;
#[cfg(test)]
mod testing;
mod tokenizer;

pub use tokenizer::{BuildError, Segment, SpecialIds, TokenType, Tokenizer, VocabSource};
pub mod tools;
pub mod tokenizer;
