//! The memory in which the values of a plan live.

use wootz_graph::Rows;

use super::program::Place;
use crate::CpuError;
use crate::memory::Buffer;

/// Row counts of the step that runs.
#[derive(Clone, Copy)]
pub(super) struct Counts {
    pub(super) tokens: usize,
    pub(super) outputs: usize,
}

impl Counts {
    pub(super) fn rows(&self, place: &Place) -> usize {
        match place.rows {
            Rows::Tokens => self.tokens,
            Rows::Outputs => self.outputs,
        }
    }
}

/// The arena of the largest plan. Plans run one at a time and share it.
pub(super) struct Arena {
    buffer: Buffer,
}

impl Arena {
    pub(super) fn new() -> Result<Arena, CpuError> {
        Ok(Arena { buffer: Buffer::zeroed(0)? })
    }

    /// Makes room for a plan's arena; what was in it is lost.
    pub(super) fn reserve(&mut self, bytes: usize) -> Result<(), CpuError> {
        if bytes > self.buffer.len() {
            self.buffer = Buffer::zeroed(bytes)?;
        }
        Ok(())
    }

    pub(super) fn bytes(&self) -> usize {
        self.buffer.len()
    }

    /// A view that threads can share.
    pub(super) fn view(&mut self) -> View<'_> {
        View { base: self.buffer.as_mut_ptr(), len: self.buffer.len(), _arena: std::marker::PhantomData }
    }

    /// The first rows of a value.
    pub(super) fn read(&self, place: &Place, rows: usize) -> &[f32] {
        let n = rows * place.cols;
        assert!(n <= place.capacity, "a value holds {} elements, not {n}", place.capacity);
        bytemuck::cast_slice(&self.buffer[4 * place.start..4 * (place.start + n)])
    }
}

/// Access to values from several threads.
///
/// The plan's passes have given every value its own bytes, but for values that one step reads and another, after a
/// barrier, overwrites; each kernel hands disjoint rows of its outputs to its threads.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    base: *mut u8,
    len: usize,
    _arena: std::marker::PhantomData<&'a mut Arena>,
}

// SAFETY: the methods demand that no two threads write, or one writes and one reads, the same elements.
unsafe impl Send for View<'_> {}
// SAFETY: as above.
unsafe impl Sync for View<'_> {}

impl<'a> View<'a> {
    fn pointer(&self, place: &Place, first: usize, n: usize) -> *mut u8 {
        let last = first.checked_add(n).filter(|last| *last <= place.capacity);
        assert!(last.is_some(), "a value holds {} elements, not {first} + {n}", place.capacity);
        assert!(4 * (place.start + place.capacity) <= self.len, "a value ends beyond the arena");
        // SAFETY: `place.start + first` lies within the arena, as just checked.
        unsafe { self.base.add(4 * (place.start + first)) }
    }

    /// Rows `first..first + rows` of an f32 value.
    ///
    /// # Safety
    /// Nobody writes them while the slice lives.
    pub(super) unsafe fn f32(&self, place: &Place, first: usize, rows: usize) -> &'a [f32] {
        let n = rows * place.cols;
        let pointer = self.pointer(place, first * place.cols, n);
        // SAFETY: in bounds; the arena is aligned for f32, whose every bit pattern is a value.
        unsafe { std::slice::from_raw_parts(pointer.cast(), n) }
    }

    /// Rows `first..first + rows` of an f32 value, to be written.
    ///
    /// # Safety
    /// Nobody else reads or writes them while the slice lives.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn f32_mut(&self, place: &Place, first: usize, rows: usize) -> &'a mut [f32] {
        let n = rows * place.cols;
        let pointer = self.pointer(place, first * place.cols, n);
        // SAFETY: as in `f32`.
        unsafe { std::slice::from_raw_parts_mut(pointer.cast(), n) }
    }

    /// Rows of an i32 value.
    ///
    /// # Safety
    /// Nobody writes them while the slice lives.
    pub(super) unsafe fn i32(&self, place: &Place, first: usize, rows: usize) -> &'a [i32] {
        // SAFETY: as the caller promises; i32 has the size and alignment of f32.
        let slice = unsafe { self.f32(place, first, rows) };
        bytemuck::cast_slice(slice)
    }

    /// Rows of an i32 value, to be written.
    ///
    /// # Safety
    /// Nobody else reads or writes them while the slice lives.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn i32_mut(&self, place: &Place, first: usize, rows: usize) -> &'a mut [i32] {
        // SAFETY: as the caller promises; i32 has the size and alignment of f32.
        let slice = unsafe { self.f32_mut(place, first, rows) };
        bytemuck::cast_slice_mut(slice)
    }
}
