//! Commands recorded for Xcode.

use std::path::PathBuf;
use std::sync::Mutex;

use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSString, NSURL};
use objc2_metal::{MTLCaptureDescriptor, MTLCaptureDestination, MTLCaptureManager, MTLCommandQueue};

use crate::error::MetalError;

/// Steps that are recorded: a prompt and the tokens after it.
const STEPS: u64 = 4;

/// The recording of a queue's first steps in a file.
pub(super) struct Capture {
    path: PathBuf,
    is_running: Mutex<bool>,
}

impl Capture {
    pub(super) fn new(path: PathBuf) -> Capture {
        Capture { path, is_running: Mutex::new(false) }
    }

    /// Begins or ends the recording, as step number `step` comes.
    pub(super) fn before_step(
        &self,
        queue: &ProtocolObject<dyn MTLCommandQueue>,
        step: u64,
    ) -> Result<(), MetalError> {
        let mut is_running = self.is_running.lock().unwrap_or_else(|e| e.into_inner());
        if step >= STEPS && *is_running {
            *is_running = false;
            // SAFETY: the manager is there for the life of the process, and may be used from any thread.
            unsafe { MTLCaptureManager::sharedCaptureManager() }.stopCapture();
        }
        if step > 0 {
            return Ok(());
        }
        let failed = |reason: String| MetalError::Capture { path: self.path.clone(), reason };
        // SAFETY: as above.
        let manager = unsafe { MTLCaptureManager::sharedCaptureManager() };
        if !manager.supportsDestination(MTLCaptureDestination::GPUTraceDocument) {
            return Err(failed("not allowed unless METAL_CAPTURE_ENABLED=1 is set".into()));
        }
        let descriptor = MTLCaptureDescriptor::new();
        // SAFETY: a command queue is one of the objects that can be recorded.
        unsafe { descriptor.setCaptureObject(Some(queue.as_ref())) };
        descriptor.setDestination(MTLCaptureDestination::GPUTraceDocument);
        let path = NSString::from_str(&self.path.to_string_lossy());
        descriptor.setOutputURL(Some(&NSURL::fileURLWithPath(&path)));
        manager
            .startCaptureWithDescriptor_error(&descriptor)
            .map_err(|e| failed(e.localizedDescription().to_string()))?;
        *is_running = true;
        Ok(())
    }
}
