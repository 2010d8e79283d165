//! Signed integers of 32 bits, little endian; reading rounds to f32.

crate::plain::integers!(26, i32);
