//! Signed 64-bit integers, little endian; writing rounds to the nearest one, ties to even.

use crate::block::Info;
use crate::plain::{read, write};

pub(crate) const INFO: Info = Info::plain::<8>(
    27,
    |src, dst| read(src, dst, |b| i64::from_le_bytes(b) as f32),
    |src, dst| {
        write(src, dst, |x| {
            let x = x.round_ties_even();
            (LOW..HIGH).contains(&x).then(|| (x as i64).to_le_bytes())
        })
    },
);

const LOW: f32 = i64::MIN as f32;
const HIGH: f32 = -LOW;
