//! Command buffers of Metal.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use block2::RcBlock;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{
    MTLBarrierScope, MTLBlitCommandEncoder, MTLBuffer, MTLCommandBuffer, MTLCommandBufferStatus,
    MTLCommandEncoder, MTLCommandQueue, MTLComputeCommandEncoder, MTLComputePipelineState, MTLDispatchType,
    MTLResource, MTLSize,
};

use super::pipeline::ApplePipeline;
use super::{AppleBuffer, Object};
use crate::device::{
    Buffer, Caps, CommandBuffer, Completion, Dispatch, Pass, Slice, StorageMode, check_dispatch,
};
use crate::error::MetalError;

enum Encoder {
    None,
    Compute(Object<dyn MTLComputeCommandEncoder>),
    Copy(Object<dyn MTLBlitCommandEncoder>),
}

/// A command buffer that is being written.
pub(super) struct Recorder {
    buffer: Object<dyn MTLCommandBuffer>,
    encoder: Encoder,
    caps: Caps,
    label: String,
    /// An encoder that Metal did not give.
    failure: Option<MetalError>,
    committed: bool,
}

impl Recorder {
    pub(super) fn new(
        queue: &ProtocolObject<dyn MTLCommandQueue>,
        caps: &Caps,
        label: &str,
    ) -> Result<Recorder, MetalError> {
        let buffer = queue.commandBuffer().ok_or_else(|| MetalError::Failed {
            label: label.to_owned(),
            reason: "Metal gave no command buffer".into(),
        })?;
        buffer.setLabel(Some(&NSString::from_str(label)));
        // Its place among the others is that of its making.
        buffer.enqueue();
        Ok(Recorder {
            buffer: Object(buffer),
            encoder: Encoder::None,
            caps: caps.clone(),
            label: label.to_owned(),
            failure: None,
            committed: false,
        })
    }

    fn end(&mut self) {
        match std::mem::replace(&mut self.encoder, Encoder::None) {
            Encoder::None => {}
            Encoder::Compute(encoder) => encoder.0.endEncoding(),
            Encoder::Copy(encoder) => encoder.0.endEncoding(),
        }
    }

    fn refused(&self, reason: &str) -> MetalError {
        MetalError::Failed { label: self.label.clone(), reason: reason.to_owned() }
    }
}

fn own(buffer: &Buffer) -> Result<&ProtocolObject<dyn MTLBuffer>, MetalError> {
    let own = buffer.as_any().downcast_ref::<AppleBuffer>();
    own.map(|b| &*b.buffer.0).ok_or_else(|| MetalError::Access {
        buffer: buffer.label().to_owned(),
        what: "it is of another device".into(),
    })
}

impl CommandBuffer for Recorder {
    fn begin(&mut self, pass: Pass) {
        self.end();
        self.encoder = autoreleasepool(|_| match pass {
            Pass::Compute { concurrent } => {
                let kind = if concurrent { MTLDispatchType::Concurrent } else { MTLDispatchType::Serial };
                let made = self.buffer.0.computeCommandEncoderWithDispatchType(kind);
                made.map_or(Encoder::None, |e| Encoder::Compute(Object(e)))
            }
            Pass::Copy => {
                self.buffer.0.blitCommandEncoder().map_or(Encoder::None, |e| Encoder::Copy(Object(e)))
            }
        });
        if matches!(self.encoder, Encoder::None) {
            self.failure = Some(self.refused("Metal gave no encoder"));
        }
    }

    fn dispatch(&mut self, d: &Dispatch<'_>) -> Result<(), MetalError> {
        check_dispatch(&self.caps, d)?;
        let bad = |reason: String| MetalError::Dispatch { kernel: d.pipeline.label().to_owned(), reason };
        let Encoder::Compute(Object(encoder)) = &self.encoder else {
            return Err(bad("outside a compute pass".into()));
        };
        let pipeline = d.pipeline.as_any().downcast_ref::<ApplePipeline>();
        let pipeline = pipeline.ok_or_else(|| bad("its pipeline is of another device".into()))?;
        let most = pipeline.state.maxTotalThreadsPerThreadgroup();
        if d.threads as usize > most {
            return Err(bad(format!("{} threads, the kernel runs with at most {most}", d.threads)));
        }
        encoder.setComputePipelineState(&pipeline.state);
        if let Some(args) =
            NonNull::new(d.args.as_ptr().cast_mut().cast::<c_void>()).filter(|_| !d.args.is_empty())
        {
            // SAFETY: Metal copies the bytes at once.
            unsafe { encoder.setBytes_length_atIndex(args, d.args.len(), 0) };
        }
        for (index, slice) in d.buffers {
            // SAFETY: the piece lies inside the buffer, as was checked; kernels keep to their pieces.
            unsafe {
                encoder.setBuffer_offset_atIndex(
                    Some(own(&slice.buffer)?),
                    slice.offset as usize,
                    *index as usize,
                );
            }
        }
        let size =
            |v: [u32; 3]| MTLSize { width: v[0] as usize, height: v[1] as usize, depth: v[2] as usize };
        encoder.dispatchThreadgroups_threadsPerThreadgroup(size(d.grid), size([d.threads, 1, 1]));
        Ok(())
    }

    fn barrier(&mut self) {
        if let Encoder::Compute(Object(encoder)) = &self.encoder {
            encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);
        }
    }

    fn copy(&mut self, from: &Slice, to: &Slice) -> Result<(), MetalError> {
        let Encoder::Copy(Object(encoder)) = &self.encoder else {
            return Err(self.refused("a copy outside a copy pass"));
        };
        for slice in [from, to] {
            let inside = slice.offset.checked_add(slice.bytes).is_some_and(|end| end <= slice.buffer.len());
            if !inside || from.bytes != to.bytes {
                return Err(self.refused(&format!("copy from {from:?} to {to:?}")));
            }
        }
        // SAFETY: both pieces lie inside their buffers, as just checked.
        unsafe {
            encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(
                own(&from.buffer)?,
                from.offset as usize,
                own(&to.buffer)?,
                to.offset as usize,
                from.bytes as usize,
            );
        }
        Ok(())
    }

    fn synchronize(&mut self, buffer: &Buffer) -> Result<(), MetalError> {
        let Encoder::Copy(Object(encoder)) = &self.encoder else {
            return Err(self.refused("a copy outside a copy pass"));
        };
        if buffer.mode() != StorageMode::Managed {
            return Err(self.refused("only managed buffers are synchronized"));
        }
        let resource: &ProtocolObject<dyn MTLResource> = ProtocolObject::from_ref(own(buffer)?);
        encoder.synchronizeResource(resource);
        Ok(())
    }

    fn commit(mut self: Box<Self>) -> Result<Arc<dyn Completion>, MetalError> {
        self.end();
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let done = Arc::new(Done::default());
        let signal = done.clone();
        let block = RcBlock::new(move |_: NonNull<ProtocolObject<dyn MTLCommandBuffer>>| signal.set());
        // SAFETY: the block takes what Metal gives it, and Metal copies it.
        unsafe { self.buffer.0.addCompletedHandler(RcBlock::as_ptr(&block)) };
        self.buffer.0.commit();
        self.committed = true;
        let buffer: Retained<_> = self.buffer.0.clone();
        Ok(Arc::new(Committed { buffer: Object(buffer), done, label: self.label.clone() }))
    }
}

impl Drop for Recorder {
    /// Metal lets no encoder go that was not ended, and buffers behind one that was not committed never run. What was
    /// encoded before a failure writes nothing that outlives the step.
    fn drop(&mut self) {
        self.end();
        if !self.committed {
            self.buffer.0.commit();
        }
    }
}

/// Whether a command buffer is done.
#[derive(Default)]
struct Done {
    is_done: Mutex<bool>,
    changed: Condvar,
}

impl Done {
    fn set(&self) {
        *self.is_done.lock().unwrap_or_else(|e| e.into_inner()) = true;
        self.changed.notify_all();
    }

    /// Whether it is done before the time is over.
    fn wait(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        let mut is_done = self.is_done.lock().unwrap_or_else(|e| e.into_inner());
        while !*is_done {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            is_done = self.changed.wait_timeout(is_done, left).unwrap_or_else(|e| e.into_inner()).0;
        }
        true
    }
}

/// A command buffer in the queue.
struct Committed {
    buffer: Object<dyn MTLCommandBuffer>,
    done: Arc<Done>,
    label: String,
}

impl Completion for Committed {
    fn wait(&self, limit: Duration) -> Result<(), MetalError> {
        if !self.done.wait(limit) {
            return Err(MetalError::TimedOut { label: self.label.clone(), seconds: limit.as_secs() });
        }
        match self.buffer.0.status() {
            MTLCommandBufferStatus::Completed => Ok(()),
            status => {
                let told = self.buffer.0.error().map(|e| e.localizedDescription().to_string());
                let reason = told.unwrap_or_else(|| format!("status {}", status.0));
                Err(MetalError::Failed { label: self.label.clone(), reason })
            }
        }
    }
}
