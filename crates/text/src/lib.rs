//! Tokenizers, chat templates and streaming detokenization.
#![forbid(unsafe_code)]

mod pretokenize;
pub mod tokenizer;
