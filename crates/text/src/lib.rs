//! Tokenizers, chat templates, streaming text, and parsers of what models write.
#![forbid(unsafe_code)]

mod pretokenize;
pub mod reasoning;
pub mod stop;
pub mod stream;
pub mod template;
#[cfg(test)]
mod testing;
pub mod tokenizer;
pub mod tools;

pub use tokenizer::{BuildError, Segment, TokenType, Tokenizer, VocabSource};
