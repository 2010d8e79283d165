//! Kernels compiled by Metal.

use std::any::Any;
use std::ffi::c_void;
use std::fmt::Write as _;
use std::ptr::NonNull;
use std::sync::Arc;

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{
    MTLCompileOptions, MTLComputePipelineState, MTLDataType, MTLDevice, MTLFunctionConstantValues,
    MTLLanguageVersion, MTLLibrary,
};

use super::archive::Archive;
use crate::device::{MetalPipeline, Pipeline};
use crate::error::MetalError;
use crate::library::{Function, Library, Sources};
use crate::signature::Signature;

/// A kernel that does nothing, to ask for the width of simdgroups.
const PROBE: &str = "kernel void probe(device uint* y [[buffer(0)]]) { y[0] = 0; }";

pub(super) struct ApplePipeline {
    pub(super) state: Retained<ProtocolObject<dyn MTLComputePipelineState>>,
    pub(super) signature: Signature,
    label: String,
}

impl MetalPipeline for ApplePipeline {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn label(&self) -> &str {
        &self.label
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Threads of a simdgroup of a device.
pub(super) fn execution_width(device: &ProtocolObject<dyn MTLDevice>) -> Result<u32, MetalError> {
    let library = compile(device, PROBE, "probe")?;
    let probe = library.newFunctionWithName(&NSString::from_str("probe"));
    let probe = probe.ok_or_else(|| failure("probe", "it was not compiled"))?;
    let state = device.newComputePipelineStateWithFunction_error(&probe);
    let state = state.map_err(|e| failure("probe", &e.localizedDescription().to_string()))?;
    Ok(state.threadExecutionWidth() as u32)
}

/// Compiles a kernel file with its macros.
pub(super) fn library(
    device: &ProtocolObject<dyn MTLDevice>,
    sources: &Sources,
    library: &Library,
) -> Result<Retained<ProtocolObject<dyn MTLLibrary>>, MetalError> {
    let mut text = String::new();
    for (name, value) in &library.defines {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "#define {name} {value}");
    }
    text.push_str(&sources.text(library.file)?);
    compile(device, &text, library.file)
}

fn compile(
    device: &ProtocolObject<dyn MTLDevice>,
    text: &str,
    what: &str,
) -> Result<Retained<ProtocolObject<dyn MTLLibrary>>, MetalError> {
    let options = MTLCompileOptions::new();
    options.setLanguageVersion(MTLLanguageVersion::Version3_0);
    #[expect(deprecated, reason = "its successor needs macOS 15")]
    options.setFastMathEnabled(false);
    device
        .newLibraryWithSource_options_error(&NSString::from_str(text), Some(&options))
        .map_err(|e| failure(what, &e.localizedDescription().to_string()))
}

/// A kernel of a library with its function constants, from the archive where it is there.
pub(super) fn pipeline(
    device: &ProtocolObject<dyn MTLDevice>,
    (library, archive): (&ProtocolObject<dyn MTLLibrary>, Option<&mut Archive>),
    sources: &Sources,
    function: &Function,
    width: u32,
) -> Result<Pipeline, MetalError> {
    let label = function.label();
    let (signature, constants) = sources.signature(function)?;
    let values = MTLFunctionConstantValues::new();
    for constant in &constants {
        let value = function.constants.get(constant.name.as_str()).copied().unwrap_or(0);
        let (ty, value) = match constant.ty.as_str() {
            "bool" => (MTLDataType::Bool, u32::from(value != 0)),
            _ => (MTLDataType::UInt, value),
        };
        let pointer = NonNull::from(&value).cast::<c_void>();
        // SAFETY: the pointer is to a u32, whose first byte, on these little-endian machines, is that of a bool.
        unsafe { values.setConstantValue_type_atIndex(pointer, ty, constant.index as usize) };
    }
    let name = NSString::from_str(function.name);
    let made = library.newFunctionWithName_constantValues_error(&name, &values).and_then(|f| match archive {
        Some(archive) => archive.pipeline(device, &f, &label),
        None => device.newComputePipelineStateWithFunction_error(&f),
    });
    let state = made.map_err(|e| failure(&label, &e.localizedDescription().to_string()))?;
    if state.threadExecutionWidth() as u32 != width {
        let found = state.threadExecutionWidth();
        return Err(failure(&label, &format!("its simdgroups have {found} threads, not {width}")));
    }
    Ok(Arc::new(ApplePipeline { state, signature, label }))
}

fn failure(kernel: &str, reason: &str) -> MetalError {
    MetalError::Kernel { kernel: kernel.to_owned(), reason: reason.to_owned() }
}
