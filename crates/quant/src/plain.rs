//! What the plain types share: one element of `B` bytes after the other.

use crate::block::Info;

impl Info {
    /// A plain type of `B` bytes with these rows.
    pub(crate) const fn plain<const B: usize>(
        id: u32,
        decode: fn(&[u8], &mut [f32]),
        encode: fn(&[f32], &mut [u8]) -> Result<(), usize>,
    ) -> Info {
        Info { id, elements: 1, bytes: B, layout: None, decode, encode: Some(encode), unpack: None }
    }
}

/// Applies `read` to each element.
pub(crate) fn read<const B: usize>(src: &[u8], dst: &mut [f32], read: impl Fn([u8; B]) -> f32) {
    for (y, b) in dst.iter_mut().zip(src.as_chunks().0) {
        *y = read(*b);
    }
}

/// Applies `write` to each element; `None` says that the value does not fit.
pub(crate) fn write<const B: usize>(
    src: &[f32],
    dst: &mut [u8],
    write: impl Fn(f32) -> Option<[u8; B]>,
) -> Result<(), usize> {
    for (i, (&x, b)) in src.iter().zip(dst.as_chunks_mut().0).enumerate() {
        *b = write(x).ok_or(i)?;
    }
    Ok(())
}

/// Declares the `INFO` of a plain type of integers; writing rounds to the nearest one, ties to even.
macro_rules! integers {
    ($id:literal, $int:ident) => {
        pub(crate) const INFO: crate::block::Info = crate::block::Info::plain::<{ size_of::<$int>() }>(
            $id,
            |src, dst| crate::plain::read(src, dst, |b| $int::from_le_bytes(b) as f32),
            |src, dst| {
                const LOW: f32 = $int::MIN as f32;
                crate::plain::write(src, dst, |x| {
                    let x = x.round_ties_even();
                    (LOW..-LOW).contains(&x).then(|| (x as $int).to_le_bytes())
                })
            },
        );
    };
}
pub(crate) use integers;
