//! Zeroed, aligned memory, in huge pages where the system has them.

use crate::CpuError;
use memmap2::MmapMut;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Alignment of every buffer in bytes: one cache line, one widest vector.
pub const ALIGN: usize = 64;
/// Size of a huge page; larger buffers are mapped, aligned to it and advised.
const HUGE: usize = 2 << 20;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; ALIGN]);

// SAFETY: 64 bytes, for which zero is a value.
unsafe impl bytemuck::Zeroable for Line {}
// SAFETY: 64 bytes of any value, no padding, since the size is the alignment.
unsafe impl bytemuck::Pod for Line {}

enum Memory {
    Heap(Vec<Line>),
    Mapped(Mapping),
    /// The bytes from `start` on of a mapping that has other buffers too, each with bytes of its own.
    Slab {
        slab: Arc<Slab>,
        start: usize,
    },
}

/// Mapped memory that begins with a huge page.
struct Mapping {
    map: MmapMut,
    start: usize,
}

impl Mapping {
    /// `len` zeroed bytes; `None` where the system refuses.
    fn new(len: usize) -> Option<Mapping> {
        let full = len.checked_next_multiple_of(HUGE)?.checked_add(HUGE)?;
        let map = MmapMut::map_anon(isize::try_from(full).ok()? as usize).ok()?;
        // Without huge pages the buffer is only slower.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        let start = map.as_ptr().align_offset(HUGE);
        Some(Mapping { map, start })
    }
}

/// A mapping that several buffers share.
struct Slab {
    /// Keeps the memory; used through `base` alone.
    _mapping: Mapping,
    base: *mut u8,
}

// SAFETY: the pointer is only an address; buffers use disjoint bytes behind it.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

/// Bytes of a slab.
const SLAB: usize = 16 << 20;

/// Makes buffers side by side in huge pages, also small ones; memory returns to the system when all buffers of a slab
/// are gone.
#[derive(Default)]
pub struct Slabs {
    /// The slab that is not yet full, and its bytes in use.
    last: Option<(Arc<Slab>, usize)>,
}

impl Slabs {
    /// `len` zeroed bytes.
    ///
    /// # Errors
    /// [`CpuError::OutOfMemory`] where the system refuses.
    pub fn zeroed(&mut self, len: usize) -> Result<Buffer, CpuError> {
        // Larger ones have mappings of their own, which waste less.
        if len > SLAB / 4 {
            return Buffer::zeroed(len);
        }
        let (slab, start) = match self.last.take() {
            Some((slab, used)) if used + len <= SLAB => (slab, used),
            _ => {
                let mut mapping = Mapping::new(SLAB).ok_or(CpuError::OutOfMemory { bytes: len })?;
                let start = mapping.start;
                let base = mapping.map[start..].as_mut_ptr();
                (Arc::new(Slab { _mapping: mapping, base }), 0)
            }
        };
        self.last = Some((slab.clone(), start + len.next_multiple_of(ALIGN)));
        Ok(Buffer { memory: Memory::Slab { slab, start }, len })
    }
}

/// An owned run of bytes, zeroed and aligned to [`ALIGN`].
pub struct Buffer {
    memory: Memory,
    len: usize,
}

impl Buffer {
    /// `len` zeroed bytes.
    ///
    /// # Errors
    /// [`CpuError::OutOfMemory`] where the system refuses.
    pub fn zeroed(len: usize) -> Result<Buffer, CpuError> {
        let refused = CpuError::OutOfMemory { bytes: len };
        let memory = if len < HUGE {
            let lines = len.div_ceil(ALIGN);
            let mut heap = Vec::new();
            if heap.try_reserve_exact(lines).is_err() {
                return Err(refused);
            }
            heap.resize(lines, Line([0; ALIGN]));
            Memory::Heap(heap)
        } else {
            Memory::Mapped(Mapping::new(len).ok_or(refused)?)
        };
        Ok(Buffer { memory, len })
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Heap(lines) => &bytemuck::cast_slice(lines)[..self.len],
            Memory::Mapped(Mapping { map, start }) => &map[*start..*start + self.len],
            // SAFETY: these bytes of the slab are this buffer's alone, and the slab lives as long as it.
            Memory::Slab { slab, start } => unsafe {
                std::slice::from_raw_parts(slab.base.add(*start), self.len)
            },
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Heap(lines) => &mut bytemuck::cast_slice_mut(lines)[..self.len],
            Memory::Mapped(Mapping { map, start }) => &mut map[*start..*start + self.len],
            // SAFETY: as above.
            Memory::Slab { slab, start } => unsafe {
                std::slice::from_raw_parts_mut(slab.base.add(*start), self.len)
            },
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zeroed_aligned_and_writable() {
        for len in [0, 1, 63, 64, 4097, HUGE - 1, HUGE, 3 * HUGE + 5] {
            let mut buffer = Buffer::zeroed(len).unwrap();
            assert_eq!(buffer.len(), len);
            assert!(buffer.iter().all(|byte| *byte == 0));
            let align = if len < HUGE { ALIGN } else { HUGE };
            assert!(buffer.as_ptr().addr().is_multiple_of(align));
            buffer.fill(7);
            assert!(buffer.iter().all(|byte| *byte == 7));
        }
    }

    #[test]
    fn buffers_of_slabs_are_zeroed_aligned_and_apart() {
        let mut slabs = Slabs::default();
        let lengths =
            [0, 1, 64, 65, 1 << 20, SLAB / 4, SLAB / 4 + 1, 3 << 20, SLAB / 4, SLAB / 4, SLAB / 4, 5];
        let mut buffers: Vec<Buffer> = lengths.iter().map(|len| slabs.zeroed(*len).unwrap()).collect();
        drop(slabs);
        for (i, buffer) in buffers.iter_mut().enumerate() {
            assert!(buffer.iter().all(|byte| *byte == 0));
            assert!(buffer.as_ptr().addr().is_multiple_of(ALIGN));
            buffer.fill(i as u8 + 1);
        }
        for (i, (buffer, len)) in buffers.iter().zip(lengths).enumerate() {
            assert_eq!(buffer.len(), len);
            assert!(buffer.iter().all(|byte| *byte == i as u8 + 1));
        }
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        for len in [usize::MAX, isize::MAX as usize, 1 << 60] {
            assert!(matches!(Buffer::zeroed(len), Err(CpuError::OutOfMemory { bytes }) if bytes == len));
        }
    }
}
