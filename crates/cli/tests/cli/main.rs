//! The `wootz` command, as a user runs it.

mod bad_input;
mod chat;
mod commands;
mod place;
mod serve;
