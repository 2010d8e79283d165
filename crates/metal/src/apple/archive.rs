//! Compiled kernels on disk.

use std::path::{Path, PathBuf};

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSArray, NSError, NSString, NSURL};
use objc2_metal::{
    MTLBinaryArchive, MTLBinaryArchiveDescriptor, MTLComputePipelineDescriptor, MTLComputePipelineState,
    MTLDevice, MTLFunction, MTLPipelineOption,
};

use super::Object;
use crate::archive;
use crate::error::MetalError;

type Made = Result<Retained<ProtocolObject<dyn MTLComputePipelineState>>, Retained<NSError>>;

/// The kernels that a device has compiled, in this run and in others.
pub(super) struct Archive {
    archive: Object<dyn MTLBinaryArchive>,
    path: PathBuf,
    /// Whether it holds kernels that the file does not.
    is_new: bool,
}

fn url(path: &Path) -> Retained<NSURL> {
    NSURL::fileURLWithPath(&NSString::from_str(&path.to_string_lossy()))
}

fn failed(path: &Path, e: &NSError) -> MetalError {
    MetalError::Archive { path: path.to_owned(), reason: e.localizedDescription().to_string() }
}

impl Archive {
    /// What the file holds, or nothing where there is none or it is of no use.
    pub(super) fn open(device: &ProtocolObject<dyn MTLDevice>, path: PathBuf) -> Result<Archive, MetalError> {
        let descriptor = MTLBinaryArchiveDescriptor::new();
        if path.exists() {
            descriptor.setUrl(Some(&url(&path)));
        }
        let made = device.newBinaryArchiveWithDescriptor_error(&descriptor).or_else(|_| {
            // Of another system, or damaged: it is written anew.
            descriptor.setUrl(None);
            device.newBinaryArchiveWithDescriptor_error(&descriptor)
        });
        let archive = made.map_err(|e| failed(&path, &e))?;
        Ok(Archive { archive: Object(archive), path, is_new: false })
    }

    /// A pipeline, from the archive if it is there.
    pub(super) fn pipeline(
        &mut self,
        device: &ProtocolObject<dyn MTLDevice>,
        function: &ProtocolObject<dyn MTLFunction>,
        label: &str,
    ) -> Made {
        let descriptor = MTLComputePipelineDescriptor::new();
        descriptor.setLabel(Some(&NSString::from_str(label)));
        descriptor.setComputeFunction(Some(function));
        descriptor.setBinaryArchives(Some(&NSArray::from_slice(&[&*self.archive.0])));
        let make = |option| {
            device.newComputePipelineStateWithDescriptor_options_reflection_error(&descriptor, option, None)
        };
        make(MTLPipelineOption::FailOnBinaryArchiveMiss).or_else(|_| {
            let made = make(MTLPipelineOption::None)?;
            // A kernel that cannot be kept is compiled again by the next run.
            self.is_new |=
                self.archive.0.addComputePipelineFunctionsWithDescriptor_error(&descriptor).is_ok();
            Ok(made)
        })
    }

    /// Writes what is new to the file.
    pub(super) fn keep(&mut self) -> Result<(), MetalError> {
        if !self.is_new {
            return Ok(());
        }
        archive::replace(&self.path, |partial| {
            self.archive.0.serializeToURL_error(&url(partial)).map_err(|e| failed(partial, &e))
        })?;
        self.is_new = false;
        Ok(())
    }
}
