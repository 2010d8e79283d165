//! Finds, downloads and caches model files.
#![forbid(unsafe_code)]
