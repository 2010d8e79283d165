//! Signed integers of 16 bits, little endian.

crate::plain::integers!(25, i16);
