//! Single-precision floats, little endian.

use crate::block::Info;
use crate::plain::{read, write};

pub(crate) const INFO: Info = Info::plain::<4>(
    0,
    |src, dst| read(src, dst, f32::from_le_bytes),
    |src, dst| write(src, dst, |x| Some(x.to_le_bytes())),
);
