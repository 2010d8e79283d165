//! Zeroed, aligned memory, in huge pages where the system has them.

use crate::CpuError;
use memmap2::MmapMut;
use std::ops::{Deref, DerefMut};

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
    Mapped { map: MmapMut, start: usize },
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
            let full = len.checked_next_multiple_of(HUGE).and_then(|n| n.checked_add(HUGE));
            let Some(Ok(map)) = full.filter(|n| isize::try_from(*n).is_ok()).map(MmapMut::map_anon) else {
                return Err(refused);
            };
            // Without huge pages the buffer is only slower.
            #[cfg(target_os = "linux")]
            let _ = map.advise(memmap2::Advice::HugePage);
            let start = map.as_ptr().align_offset(HUGE);
            Memory::Mapped { map, start }
        };
        Ok(Buffer { memory, len })
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Heap(lines) => &bytemuck::cast_slice(lines)[..self.len],
            Memory::Mapped { map, start } => &map[*start..start + self.len],
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Heap(lines) => &mut bytemuck::cast_slice_mut(lines)[..self.len],
            Memory::Mapped { map, start } => &mut map[*start..*start + self.len],
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
    fn an_impossible_size_is_an_error() {
        for len in [usize::MAX, isize::MAX as usize, 1 << 60] {
            assert!(matches!(Buffer::zeroed(len), Err(CpuError::OutOfMemory { bytes }) if bytes == len));
        }
    }
}
