//! Signed integers of 64 bits, little endian; reading rounds to f32.

crate::plain::integers!(27, i64);
