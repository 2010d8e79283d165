//! Double-precision floats, little endian; reading rounds to f32.

use crate::block::Info;
use crate::plain::{read, write};

pub(crate) const INFO: Info = Info::plain::<8>(
    28,
    |src, dst| read(src, dst, |b| f64::from_le_bytes(b) as f32),
    |src, dst| write(src, dst, |x| Some(f64::from(x).to_le_bytes())),
);
