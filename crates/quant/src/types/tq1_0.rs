//! 256 ternary elements: one scale, five of them in a byte.

use crate::block::*;

/// Offset of 48 bytes of five codes each. A byte is a fraction of 256 whose digits in base 3 are codes, from the
/// point on; digit `n` of bytes 0..32 is run `n` of 32 elements, that of bytes 32..48 run `n` of 16 elements after
/// those.
pub const QS: usize = 0;
/// Offset of 4 bytes of four codes each, packed alike: digit `n` is run `n` of 4 elements after those.
pub const QH: usize = 48;
/// Offset of the f16 scale.
pub const D: usize = 52;

pub(crate) const INFO: Info = Info::codec::<TQ1_0, 256, 54>();

#[allow(non_camel_case_types)]
struct TQ1_0;

/// Byte range, first element and digits of the three parts.
const PARTS: [(std::ops::Range<usize>, usize, usize); 3] = [(0..32, 0, 5), (32..48, 160, 5), (48..52, 240, 4)];

impl Block<256, 54> for TQ1_0 {
    const ID: u32 = 34;
    const LAYOUT: Layout = Layout::scaled(256, 2, Levels::Linear { zero: 1 });

    fn unpack(block: &[u8; 54], out: &mut Unpacked) {
        out.set_scale(f16_at(block, D));
        for (part, at, digits) in PARTS {
            let runs = out.codes[at..].chunks_exact_mut(part.len()).take(digits);
            let mut power = 1;
            for run in runs {
                for (c, &b) in run.iter_mut().zip(&block[part.clone()]) {
                    *c = ((u16::from(b.wrapping_mul(power)) * 3) >> 8) as u8;
                }
                power *= 3;
            }
        }
    }
}

impl EncodeBlock<256, 54> for TQ1_0 {
    fn encode(x: &[f32; 256], block: &mut [u8; 54]) -> Result<(), OutOfRange> {
        let (d, codes) = ternary(x);
        for (part, at, digits) in PARTS {
            let run = part.len();
            for (i, b) in block[part].iter_mut().enumerate() {
                let number = (0..5).fold(0, |number, n| {
                    let code = if n < digits { codes[at + n * run + i] } else { 0 };
                    number * 3 + u16::from(code)
                });
                *b = (number * 256).div_ceil(243) as u8;
            }
        }
        put_f16(block, D, d)
    }
}

/// The largest magnitude and codes 0, 1, 2 for the multiples -1, 0, 1 of it.
pub(super) fn ternary(x: &[f32; 256]) -> (f32, [u8; 256]) {
    let d = extreme(*x).abs();
    let id = inverse(d);
    (d, x.map(|v| ((v * id).round() + 1.0) as u8))
}
