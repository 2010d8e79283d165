//! The physical blocks of a cache.

use crate::CpuError;
use crate::memory::Buffer;

/// Blocks of one size, one after the other.
#[derive(Debug)]
pub struct Blocks {
    count: usize,
    block_bytes: usize,
    buffer: Buffer,
}

impl Blocks {
    /// `count` blocks of `block_bytes` bytes, all zero.
    ///
    /// # Errors
    /// [`CpuError::OutOfMemory`] where the system refuses.
    pub fn new(count: usize, block_bytes: usize) -> Result<Blocks, CpuError> {
        let bytes = block_bytes.checked_mul(count).ok_or(CpuError::OutOfMemory { bytes: usize::MAX })?;
        Ok(Blocks { count, block_bytes, buffer: Buffer::zeroed(bytes)? })
    }

    /// Blocks.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes of one block.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Bytes of all blocks.
    pub fn bytes(&self) -> usize {
        self.buffer.len()
    }

    /// The contents of a block, in a form that only its cache understands.
    ///
    /// # Errors
    /// [`CpuError::Index`] where there is no such block.
    pub fn block(&self, block: u32) -> Result<&[u8], CpuError> {
        let start = self.start(block)?;
        Ok(&self.buffer[start..start + self.block_bytes])
    }

    /// Restores what [`block`](Blocks::block) returned.
    ///
    /// # Errors
    /// [`CpuError::Index`] where there is no such block; [`CpuError::Length`] where `bytes` has another size.
    pub fn write_block(&mut self, block: u32, bytes: &[u8]) -> Result<(), CpuError> {
        let start = self.start(block)?;
        CpuError::check("bytes of a cache block", self.block_bytes, bytes.len())?;
        self.buffer[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    /// Copies block `from` to block `to`.
    ///
    /// # Errors
    /// [`CpuError::Index`] where there is no such block.
    pub fn copy_block(&mut self, from: u32, to: u32) -> Result<(), CpuError> {
        let (from, to) = (self.start(from)?, self.start(to)?);
        self.buffer.copy_within(from..from + self.block_bytes, to);
        Ok(())
    }

    /// Fails where there is no such block.
    pub(crate) fn check(&self, block: u32) -> Result<(), CpuError> {
        self.start(block).map(drop)
    }

    /// All bytes.
    pub(crate) fn all(&self) -> &[u8] {
        &self.buffer
    }

    /// All bytes, to be written.
    pub(crate) fn all_mut(&mut self) -> &mut [u8] {
        &mut self.buffer
    }

    fn start(&self, block: u32) -> Result<usize, CpuError> {
        if block as usize >= self.count {
            return Err(CpuError::Index { what: "cache block", found: block.into(), limit: self.count });
        }
        Ok(block as usize * self.block_bytes)
    }
}
