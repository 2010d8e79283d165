//! Signed integers of 8 bits.

crate::plain::integers!(24, i8);
