//! The upper half of single-precision floats, little endian; writing rounds to nearest even.

use crate::block::Info;
use crate::plain::{read, write};
use half::bf16;

pub(crate) const INFO: Info = Info::plain::<2>(
    30,
    |src, dst| read(src, dst, |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)),
    |src, dst| write(src, dst, |x| Some(bf16::from_f32(x)).filter(|h| h.is_finite()).map(bf16::to_le_bytes)),
);
