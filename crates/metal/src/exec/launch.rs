//! A kernel with its buffers, as a program keeps it.

use wootz_graph::{Region, Rows, RunError};

use super::step::{Counts, StepPart};
use crate::device::{Caps, MetalDevice, Pipeline, Slice};
use crate::library::Function;
use crate::signature::Access;

/// Memory that a kernel is bound to.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// Memory that does not depend on the step: weights, caches, constants.
    Fixed(Slice),
    /// A value in the arena.
    Value { offset: u64, rows: Rows, row_bytes: u64 },
    /// Scratch memory in the arena, from a byte of it on.
    Scratch { region: Region, first: usize },
    /// What the host gives the step.
    Step(StepPart),
    /// What the host reads after the step.
    Output { rows: Rows, row_bytes: u64 },
    /// Candidates of output rows: so many of each row, after those of earlier launches.
    Candidates { before: u64, count: u64 },
    /// The tokens that the step picks.
    Picked,
    /// The tokens that the step before picked.
    PickedBefore,
    /// A buffer that the kernel, with its constants, does not touch.
    Nothing,
}

/// Bytes of an argument struct.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArgBytes {
    bytes: [u8; 64],
    len: usize,
}

impl ArgBytes {
    pub(super) fn of<T: bytemuck::Pod>(args: T) -> ArgBytes {
        let from = bytemuck::bytes_of(&args);
        let mut bytes = [0; 64];
        bytes[..from.len()].copy_from_slice(from);
        ArgBytes { bytes, len: from.len() }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// What a launch takes from the row counts of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) args: ArgBytes,
    pub(super) grid: [u32; 3],
}

pub(super) type ShapeOf = Box<dyn Fn(Counts) -> Shape + Send + Sync>;

/// A kernel with everything it is started with.
pub(super) struct Launch {
    /// Index of the plan's step.
    pub(super) step: usize,
    /// Whether it waits for all before it.
    pub(super) barrier: bool,
    pub(super) pipeline: Pipeline,
    pub(super) buffers: Vec<(u32, Place)>,
    pub(super) threads: u32,
    pub(super) shape: ShapeOf,
}

/// A launch that is being put together: buffers are bound by the names of the kernel's source.
pub(super) struct Call {
    function: Function,
    bound: Vec<(&'static str, Place)>,
}

impl Call {
    pub(super) fn new(function: Function, caps: &Caps) -> Call {
        Call { function: function.set("simd_width", caps.simd_width), bound: Vec::new() }
    }

    /// Binds a buffer.
    pub(super) fn bind(mut self, name: &'static str, place: Place) -> Call {
        self.bound.push((name, place));
        self
    }

    /// Binds a buffer that is there only sometimes.
    pub(super) fn bind_some(self, name: &'static str, place: Option<Place>) -> Call {
        self.bind(name, place.unwrap_or(Place::Nothing))
    }

    /// Compiles the kernel and checks what was bound against its signature.
    pub(super) fn launch(
        self,
        device: &dyn MetalDevice,
        name: &str,
        threads: u32,
        shape: impl Fn(Counts) -> Shape + Send + Sync + 'static,
    ) -> Result<Launch, RunError> {
        let pipeline = device.pipeline(&self.function).map_err(|e| e.on(name))?;
        let bad = |what: &str, buffer: &str| {
            RunError::Plan(format!("kernel {}: {what} {buffer}", self.function.label()))
        };
        let signature = pipeline.signature();
        let mut buffers = Vec::new();
        for (buffer, place) in self.bound {
            let parameter = signature.buffer(buffer).ok_or_else(|| bad("it has no buffer", buffer))?;
            let read_only = matches!(place, Place::Step(_));
            if parameter.access == Access::Constant || (parameter.access == Access::Write && read_only) {
                return Err(bad("it cannot be bound so:", buffer));
            }
            if buffers.iter().any(|(index, _)| *index == parameter.index) {
                return Err(bad("bound twice:", buffer));
            }
            buffers.push((parameter.index, place));
        }
        let unbound = signature
            .buffers()
            .find(|p| p.access != Access::Constant && buffers.iter().all(|(index, _)| *index != p.index));
        if let Some(parameter) = unbound {
            return Err(bad("nothing is bound to", &parameter.name));
        }
        let shape = Box::new(shape);
        Ok(Launch { step: 0, barrier: false, pipeline, buffers, threads, shape })
    }
}
