use std::path::PathBuf;

use wootz_graph::RunError;

/// Why something could not be done on a Metal device.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetalError {
    /// The device has not enough memory.
    #[error("out of memory: {what} needs {needed} bytes")]
    OutOfMemory {
        /// What the memory was for.
        what: String,
        /// Bytes asked for.
        needed: u64,
    },
    /// A buffer would be larger than the device allows.
    #[error("{what} needs a buffer of {needed} bytes, the device allows {limit}")]
    BufferTooLarge {
        /// What the buffer was for.
        what: String,
        /// Bytes asked for.
        needed: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The host cannot reach the bytes of a buffer.
    #[error("buffer {buffer}: {what}")]
    Access {
        /// The buffer's label.
        buffer: String,
        /// What was tried.
        what: String,
    },
    /// A kernel does not compile or does not exist.
    #[error("kernel {kernel}: {reason}")]
    Kernel {
        /// The kernel.
        kernel: String,
        /// The compiler's words, or ours.
        reason: String,
    },
    /// A dispatch contradicts the kernel's signature or the device's limits.
    #[error("dispatch of {kernel}: {reason}")]
    Dispatch {
        /// The kernel.
        kernel: String,
        /// What is wrong.
        reason: String,
    },
    /// The GPU did not finish a command buffer.
    #[error("command buffer {label} failed: {reason}")]
    Failed {
        /// The command buffer's label.
        label: String,
        /// The driver's words.
        reason: String,
    },
    /// The GPU did not finish a command buffer in time: it may still be at work on it.
    #[error("command buffer {label} was not done after {seconds} seconds")]
    TimedOut {
        /// The command buffer's label.
        label: String,
        /// The bound.
        seconds: u64,
    },
    /// Compiled kernels could not be kept in a file.
    #[error("{}: compiled kernels cannot be kept: {reason}", path.display())]
    Archive {
        /// The file.
        path: PathBuf,
        /// The system's words.
        reason: String,
    },
    /// Commands could not be recorded for Xcode.
    #[error("{}: commands cannot be recorded: {reason}", path.display())]
    Capture {
        /// The file.
        path: PathBuf,
        /// The system's words, or ours.
        reason: String,
    },
    /// The driver, or the emulator's tools, cannot be used.
    #[error("{0}")]
    Unavailable(String),
}

impl MetalError {
    /// The error as one of running a plan on `device`.
    pub(crate) fn on(self, device: &str) -> RunError {
        match self {
            MetalError::OutOfMemory { what, needed } => {
                RunError::OutOfMemory { device: device.to_owned(), what, needed, available: None }
            }
            e => RunError::Device { device: device.to_owned(), reason: e.to_string() },
        }
    }
}
