use std::path::PathBuf;
use std::sync::Arc;

use super::{EmulatedDevice, Profile, Toolchain};
use crate::backend::Source;
use crate::device::{Caps, MetalDevice};
use crate::error::MetalError;
use crate::library::Sources;

/// Emulated devices as those of a backend named `metal-emulator`: the first profile under that name, the others with
/// their own after a colon.
pub struct Emulators {
    profiles: Vec<Profile>,
    sources: Sources,
    toolchain: Option<Toolchain>,
    folder: PathBuf,
}

impl Emulators {
    /// All profiles; a compiler is looked for when a device is opened, see [`Toolchain::find`].
    pub fn new(folder: PathBuf) -> Emulators {
        let mut profiles: Vec<Profile> = Profile::all().into_iter().map(Profile::untraced).collect();
        // With every access checked, under names of their own.
        profiles.push(Profile { name: "unified-traced", ..Profile::unified() });
        profiles.push(Profile { name: "discrete-traced", ..Profile::discrete() });
        Emulators { profiles, sources: Sources::default(), toolchain: None, folder }
    }

    /// Chosen profiles, kernels and compiler.
    pub fn with(profiles: Vec<Profile>, sources: Sources, toolchain: Toolchain) -> Emulators {
        Emulators { profiles, sources, toolchain: Some(toolchain), folder: PathBuf::new() }
    }
}

impl Source for Emulators {
    fn list(&self) -> Result<Vec<(String, Caps)>, MetalError> {
        let id = |(i, p): (usize, &Profile)| match i {
            0 => "metal-emulator".to_owned(),
            _ => format!("metal-emulator:{}", p.name),
        };
        Ok(self.profiles.iter().enumerate().map(|(i, p)| (id((i, p)), p.caps.clone())).collect())
    }

    fn open(&self, index: usize) -> Result<Arc<dyn MetalDevice>, MetalError> {
        let profile = self.profiles.get(index);
        let profile =
            profile.ok_or_else(|| MetalError::Unavailable(format!("there is no device number {index}")))?;
        let toolchain = match &self.toolchain {
            Some(toolchain) => toolchain.clone(),
            None => Toolchain::find(&self.folder)?,
        };
        Ok(Arc::new(EmulatedDevice::with_sources(profile.clone(), toolchain, self.sources.clone())?))
    }
}
