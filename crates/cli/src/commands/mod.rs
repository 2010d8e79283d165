//! One file a command.

pub mod bench;
pub mod cache;
pub mod chat;
pub mod devices;
pub mod inspect;
pub mod perplexity;
pub mod plan;
pub mod run;
pub mod selftest;
pub mod template;
pub mod tokenize;
pub mod trace;
