//! Bytes between host and GPU: straight where the GPU shares the host's memory, through staging buffers otherwise.

use std::sync::Arc;
use std::time::Duration;

use crate::device::{Buffer, MetalDevice, Pass, Slice, StorageMode};
use crate::error::MetalError;

/// How long a command buffer may take.
pub(super) const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Bytes of a staging buffer, at most.
const STAGE: u64 = 16 << 20;

/// Copies between the host and buffers that it may not reach.
pub(super) struct Transfer {
    device: Arc<dyn MetalDevice>,
    up: Option<Buffer>,
    down: Option<Buffer>,
}

impl Transfer {
    pub(super) fn new(device: Arc<dyn MetalDevice>) -> Transfer {
        Transfer { device, up: None, down: None }
    }

    /// Where buffers that only the GPU uses lie.
    pub(super) fn gpu_mode(&self) -> StorageMode {
        StorageMode::Private
    }

    /// Where buffers that the host fills and the GPU then reads lie.
    pub(super) fn upload_mode(&self) -> StorageMode {
        StorageMode::Shared
    }

    /// Where buffers that the GPU fills and the host then reads lie. The host's reads of shared memory of a discrete
    /// GPU may go over the bus one by one.
    pub(super) fn readback_mode(&self) -> StorageMode {
        if self.device.caps().unified { StorageMode::Shared } else { StorageMode::Managed }
    }

    /// Where tokens that the GPU picks lie, for its next step and for the host.
    pub(super) fn picked_mode(&self) -> StorageMode {
        if self.device.caps().unified { StorageMode::Shared } else { self.gpu_mode() }
    }

    fn stage(&self, bytes: u64, mode: StorageMode, what: &str) -> Result<Buffer, MetalError> {
        self.device.buffer(bytes.min(STAGE).min(self.device.caps().max_buffer), mode, what)
    }

    /// Writes bytes to a buffer of any mode, and waits until they are there.
    pub(super) fn write(&mut self, to: &Slice, bytes: &[u8]) -> Result<(), MetalError> {
        if to.buffer.mode() == StorageMode::Shared {
            return to.buffer.write(to.offset, bytes);
        }
        let stage = match self.up.take().filter(|b| b.len() >= (bytes.len() as u64).min(STAGE)) {
            Some(stage) => stage,
            None => self.stage(bytes.len() as u64, self.upload_mode(), "upload staging")?,
        };
        let mut at = 0;
        for piece in bytes.chunks(stage.len().max(1) as usize) {
            stage.write(0, piece)?;
            let from = Slice { buffer: stage.clone(), offset: 0, bytes: piece.len() as u64 };
            self.copy_now(&[(from, to.part(at, piece.len() as u64))], None)?;
            at += piece.len() as u64;
        }
        self.up = Some(stage);
        Ok(())
    }

    /// Reads bytes of a buffer of any mode, after everything submitted so far.
    pub(super) fn read(&mut self, from: &Slice, bytes: &mut [u8]) -> Result<(), MetalError> {
        let stage = match self.down.take().filter(|b| b.len() >= (bytes.len() as u64).min(STAGE)) {
            Some(stage) => stage,
            None => self.stage(bytes.len() as u64, self.readback_mode(), "read-back staging")?,
        };
        let mut at = 0;
        for piece in bytes.chunks_mut(stage.len().max(1) as usize) {
            let to = Slice { buffer: stage.clone(), offset: 0, bytes: piece.len() as u64 };
            self.copy_now(&[(from.part(at, piece.len() as u64), to)], Some(&stage))?;
            stage.read(0, piece)?;
            at += piece.len() as u64;
        }
        self.down = Some(stage);
        Ok(())
    }

    /// Copies pieces on the GPU and waits; `back` is what the host reads afterwards.
    pub(super) fn copy_now(&self, pairs: &[(Slice, Slice)], back: Option<&Buffer>) -> Result<(), MetalError> {
        let mut commands = self.device.command_buffer("copies")?;
        commands.begin(Pass::Copy);
        for (from, to) in pairs {
            commands.copy(from, to)?;
        }
        if let Some(buffer) = back.filter(|b| b.mode() == StorageMode::Managed) {
            commands.synchronize(buffer)?;
        }
        commands.commit()?.wait(TIME_LIMIT)
    }
}
