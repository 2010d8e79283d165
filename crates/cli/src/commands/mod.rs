//! One file a command.

pub(crate) mod bench;
pub(crate) mod cache;
pub(crate) mod chat;
pub(crate) mod devices;
pub(crate) mod embed;
pub(crate) mod inspect;
pub(crate) mod perplexity;
pub(crate) mod plan;
pub(crate) mod run;
pub(crate) mod selftest;
pub(crate) mod serve;
pub(crate) mod template;
pub(crate) mod tokenize;
pub(crate) mod trace;
