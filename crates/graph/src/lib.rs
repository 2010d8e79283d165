//! Operation graphs, the passes that compile them to plans, and a scalar interpreter.
#![forbid(unsafe_code)]
