//! The wootz command.
#![forbid(unsafe_code)]

fn main() {}
