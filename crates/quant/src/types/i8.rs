//! Signed 8-bit integers, little endian; writing rounds to the nearest one, ties to even.

use crate::block::Info;
use crate::plain::{read, write};

pub(crate) const INFO: Info = Info::plain::<1>(
    24,
    |src, dst| read(src, dst, |b| i8::from_le_bytes(b) as f32),
    |src, dst| {
        write(src, dst, |x| {
            let x = x.round_ties_even();
            (LOW..HIGH).contains(&x).then(|| (x as i8).to_le_bytes())
        })
    },
);

const LOW: f32 = i8::MIN as f32;
const HIGH: f32 = -LOW;
