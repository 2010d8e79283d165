//! IEEE half-precision floats, little endian.

use crate::block::Info;
use crate::plain::write;
use half::f16;
use half::slice::HalfFloatSliceExt;

pub(crate) const INFO: Info = Info::plain::<2>(1, decode, |src, dst| {
    write(src, dst, |x| Some(f16::from_f32(x)).filter(|h| h.is_finite()).map(f16::to_le_bytes))
});

fn decode(src: &[u8], dst: &mut [f32]) {
    // The bytes may not be aligned, and the fast conversion works on slices.
    let mut halves = [f16::ZERO; 64];
    for (src, dst) in src.chunks(128).zip(dst.chunks_mut(64)) {
        for (h, b) in halves.iter_mut().zip(src.as_chunks().0) {
            *h = f16::from_le_bytes(*b);
        }
        halves[..dst.len()].convert_to_f32_slice(dst);
    }
}
