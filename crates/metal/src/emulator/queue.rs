//! Command buffers of the emulated device: recorded, and run when somebody waits.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::Ordering as Atomic;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use super::memory::{EmulatedBuffer, Mapping, Memory};
use super::profile::{Order, Profile};
use super::runtime::{Binding, MAX_THREADS, RawDispatch, STACK_BYTES, fault_text};
use super::{Compiled, EmulatedPipeline};
use crate::device::{
    Buffer, Caps, CommandBuffer, Completion, Dispatch, Pass, Slice, StorageMode, check_dispatch,
};
use crate::error::MetalError;
use crate::signature::Access;

/// A piece of a buffer, which the command does not keep alive.
struct Piece {
    memory: Weak<Memory>,
    label: String,
    offset: u64,
    bytes: u64,
}

impl Piece {
    fn of(slice: &Slice) -> Result<Piece, MetalError> {
        let memory = memory_of(&slice.buffer)?;
        Ok(Piece {
            memory: Arc::downgrade(memory),
            label: memory.label.clone(),
            offset: slice.offset,
            bytes: slice.bytes,
        })
    }

    fn memory(&self) -> Result<Arc<Memory>, String> {
        self.memory.upgrade().ok_or_else(|| format!("buffer {} was freed while commands used it", self.label))
    }
}

fn memory_of(buffer: &Buffer) -> Result<&Arc<Memory>, MetalError> {
    let own = buffer.as_any().downcast_ref::<EmulatedBuffer>();
    own.map(|b| &b.memory).ok_or_else(|| MetalError::Access {
        buffer: buffer.label().to_owned(),
        what: "it is of another device".into(),
    })
}

/// A dispatch as it was recorded.
struct Recorded {
    label: String,
    compiled: Arc<Compiled>,
    args: Vec<u64>,
    args_bytes: u64,
    pieces: Vec<(u32, Access, Piece)>,
    grid: [u32; 3],
    threads: u32,
}

enum Command {
    Begin(Pass),
    Dispatch(Recorded),
    Barrier,
    Copy(Piece, Piece),
    Synchronize(Piece),
}

/// A command buffer's place in the queue.
struct Entry {
    number: u64,
    label: String,
    /// `None` until it is committed.
    commands: Option<Vec<Command>>,
}

struct State {
    waiting: VecDeque<Entry>,
    made: u64,
    ran: u64,
    /// Failures by number, until somebody waits for them.
    failed: Vec<(u64, String)>,
    /// Intervals between barriers so far.
    interval: u32,
    random: u32,
}

/// The queue of a device.
pub(super) struct Queue {
    profile: Profile,
    state: Mutex<State>,
    stacks: Mapping,
}

impl Queue {
    pub(super) fn new(profile: Profile) -> Result<Queue, MetalError> {
        let random = match profile.order {
            Order::Random(seed) => seed,
            _ => 1,
        };
        let state =
            State { waiting: VecDeque::new(), made: 0, ran: 0, failed: Vec::new(), interval: 0, random };
        let stacks = Mapping::new(STACK_BYTES * MAX_THREADS, "stacks of emulated threads")?;
        Ok(Queue { profile, state: Mutex::new(state), stacks })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(super) fn command_buffer(self: &Arc<Queue>, label: &str) -> Box<dyn CommandBuffer> {
        let mut state = self.lock();
        state.made += 1;
        let number = state.made;
        state.waiting.push_back(Entry { number, label: label.to_owned(), commands: None });
        let commands = Vec::new();
        Box::new(Recorder { queue: self.clone(), number, label: label.to_owned(), pass: None, commands })
    }

    /// Runs everything up to a command buffer.
    fn run_to(&self, number: u64) -> Result<(), String> {
        let mut state = self.lock();
        while state.waiting.front().is_some_and(|e| e.number <= number) {
            let Some(entry) = state.waiting.pop_front() else { break };
            let Some(commands) = entry.commands else {
                let text = format!("command buffer {} before it was never committed", entry.label);
                state.waiting.push_front(Entry { commands: None, ..entry });
                return Err(text);
            };
            state.ran += 1;
            let result = match self.profile.fails_after {
                Some(n) if state.ran > n => Err("the emulated GPU was told to fail".to_owned()),
                _ => self.run(&mut state, &commands),
            };
            for command in &commands {
                each_memory(command, |m| {
                    m.pending.fetch_sub(1, Atomic::AcqRel);
                });
            }
            if let Err(reason) = result {
                state.failed.push((entry.number, reason));
            }
        }
        match state.failed.iter().position(|(n, _)| *n == number) {
            Some(at) => Err(state.failed.remove(at).1),
            None => Ok(()),
        }
    }

    fn run(&self, state: &mut State, commands: &[Command]) -> Result<(), String> {
        let mut together: Vec<&Recorded> = Vec::new();
        let mut concurrent = false;
        for command in commands {
            match command {
                Command::Dispatch(d) => {
                    together.push(d);
                    if !concurrent {
                        self.interval(state, &mut together)?;
                    }
                }
                Command::Barrier => self.interval(state, &mut together)?,
                Command::Begin(pass) => {
                    self.interval(state, &mut together)?;
                    concurrent = *pass == Pass::Compute { concurrent: true };
                }
                Command::Copy(from, to) => copy(from, to)?,
                Command::Synchronize(piece) => piece.memory()?.synchronize(),
            }
        }
        self.interval(state, &mut together)
    }

    /// Runs the dispatches between two barriers.
    fn interval(&self, state: &mut State, dispatches: &mut Vec<&Recorded>) -> Result<(), String> {
        let mut list = std::mem::take(dispatches);
        if list.is_empty() {
            return Ok(());
        }
        state.interval += 1;
        let mut written = HashSet::new();
        for d in &list {
            let writes = d.pieces.iter().filter(|(_, access, _)| *access == Access::Write);
            written.extend(writes.map(|(_, _, piece)| piece.memory.as_ptr()));
        }
        match self.profile.order {
            Order::Forward => {}
            Order::Backward => list.reverse(),
            Order::Random(_) => {
                for i in (1..list.len()).rev() {
                    state.random = state.random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    list.swap(i, (state.random >> 8) as usize % (i + 1));
                }
            }
        }
        let mut serial = 1;
        for d in list {
            self.dispatch(state, d, &written, serial)?;
            serial += d.grid.iter().product::<u32>();
        }
        Ok(())
    }

    fn dispatch(
        &self,
        state: &mut State,
        d: &Recorded,
        written: &HashSet<*const Memory>,
        serial: u32,
    ) -> Result<(), String> {
        let failed = |what: String| format!("{}: {what}", d.label);
        let caps = &self.profile.caps;
        let mut kept = Vec::new();
        let args = d.args.as_ptr().cast_mut().cast::<u8>();
        let mut buffers = vec![args];
        let mut bindings = vec![Binding {
            first: args,
            bytes: d.args_bytes,
            cells: std::ptr::null_mut(),
            writable: 0,
            index: 0,
        }];
        for (index, access, piece) in &d.pieces {
            let memory = piece.memory().map_err(failed)?;
            let writable = *access == Access::Write;
            if writable && memory.is_wrapped() {
                return Err(failed(format!("buffer {} wraps memory that is only read", piece.label)));
            }
            let absent = caps.residency_sets && memory.bytes >= self.profile.resident_from;
            if absent && memory.resident.load(Atomic::Acquire) == 0 {
                return Err(failed(format!("buffer {} is not resident", piece.label)));
            }
            // SAFETY: recording checked that the piece lies inside the buffer, and so do its cells.
            let (first, cells) = unsafe {
                (memory.gpu().add(piece.offset as usize), memory.cells().add(piece.offset as usize / 2))
            };
            let watched = written.contains(&piece.memory.as_ptr());
            bindings.push(Binding {
                first,
                bytes: piece.bytes,
                cells: if watched { cells } else { std::ptr::null_mut() },
                writable: u32::from(writable),
                index: *index,
            });
            if buffers.len() <= *index as usize {
                buffers.resize(*index as usize + 1, std::ptr::null_mut());
            }
            buffers[*index as usize] = first;
            kept.push(memory);
        }
        let (order, seed) = match self.profile.order {
            Order::Forward => (0, 0),
            Order::Backward => (1, 0),
            Order::Random(_) => (2, state.random),
        };
        let raw = RawDispatch {
            entry: d.compiled.entry,
            buffers: buffers.as_ptr(),
            bindings: bindings.as_ptr(),
            binding_count: bindings.len() as u32,
            grid: d.grid,
            threads: d.threads,
            width: caps.simd_width,
            order,
            seed,
            shared_limit: caps.max_threadgroup_memory,
            interval: state.interval,
            first_serial: serial,
            stacks: self.stacks.base(),
        };
        // SAFETY: the buffers live in `kept`, the stacks in the queue, whose state is locked.
        let report = unsafe { d.compiled.library.run(&raw) }.map_err(|e| failed(e.to_string()))?;
        if report.fault == 0 {
            return Ok(());
        }
        let mut text = fault_text(report.fault).to_owned();
        if report.index != u32::MAX {
            let bound = d.pieces.iter().find(|(index, ..)| *index == report.index);
            let name = bound.map_or("the arguments", |(_, _, piece)| piece.label.as_str());
            let access = if report.is_write == 0 { "read" } else { "write" };
            text += &format!(" ({access}, buffer {} at byte {}: {name})", report.index, report.offset);
        }
        Err(failed(format!("{text}, thread {} of threadgroup {:?}", report.thread, report.threadgroup)))
    }
}

fn copy(from: &Piece, to: &Piece) -> Result<(), String> {
    let (source, target) = (from.memory()?, to.memory()?);
    if target.is_wrapped() {
        return Err(format!("copy to {}, which wraps memory that is only read", to.label));
    }
    // SAFETY: recording checked that both pieces lie inside their buffers; they may overlap.
    unsafe {
        let source = source.gpu().add(from.offset as usize);
        std::ptr::copy(source, target.gpu().add(to.offset as usize), from.bytes as usize);
    }
    Ok(())
}

/// The buffers of a command that live.
fn each_memory(command: &Command, mut f: impl FnMut(&Memory)) {
    let mut visit = |piece: &Piece| {
        if let Some(memory) = piece.memory.upgrade() {
            f(&memory);
        }
    };
    match command {
        Command::Dispatch(d) => d.pieces.iter().for_each(|(_, _, piece)| visit(piece)),
        Command::Copy(from, to) => {
            visit(from);
            visit(to);
        }
        Command::Synchronize(piece) => visit(piece),
        Command::Begin(_) | Command::Barrier => {}
    }
}

/// A command buffer that is being written.
struct Recorder {
    queue: Arc<Queue>,
    number: u64,
    label: String,
    pass: Option<Pass>,
    commands: Vec<Command>,
}

impl Recorder {
    fn caps(&self) -> &Caps {
        &self.queue.profile.caps
    }

    fn refused(&self, reason: &str) -> MetalError {
        MetalError::Failed { label: self.label.clone(), reason: reason.to_owned() }
    }

    fn expect_copy_pass(&self) -> Result<(), MetalError> {
        match self.pass {
            Some(Pass::Copy) => Ok(()),
            _ => Err(self.refused("a copy outside a copy pass")),
        }
    }
}

impl CommandBuffer for Recorder {
    fn begin(&mut self, pass: Pass) {
        self.pass = Some(pass);
        self.commands.push(Command::Begin(pass));
    }

    fn dispatch(&mut self, d: &Dispatch<'_>) -> Result<(), MetalError> {
        check_dispatch(self.caps(), d)?;
        let bad = |reason: &str| MetalError::Dispatch {
            kernel: d.pipeline.label().to_owned(),
            reason: reason.to_owned(),
        };
        if !matches!(self.pass, Some(Pass::Compute { .. })) {
            return Err(bad("outside a compute pass"));
        }
        let own = d.pipeline.as_any().downcast_ref::<EmulatedPipeline>();
        let own = own.ok_or_else(|| bad("its pipeline is of another device"))?;
        let mut pieces = Vec::new();
        for parameter in own.signature.buffers().filter(|p| p.index != 0) {
            let bound = d.buffers.iter().find(|(index, _)| *index == parameter.index);
            let (_, slice) = bound.ok_or_else(|| bad("a buffer is not bound"))?;
            pieces.push((parameter.index, parameter.access, Piece::of(slice)?));
        }
        let mut args = vec![0u64; d.args.len().div_ceil(8)];
        bytemuck::cast_slice_mut(&mut args)[..d.args.len()].copy_from_slice(d.args);
        self.commands.push(Command::Dispatch(Recorded {
            label: own.label.clone(),
            compiled: own.compiled.clone(),
            args,
            args_bytes: d.args.len() as u64,
            pieces,
            grid: d.grid,
            threads: d.threads,
        }));
        Ok(())
    }

    fn barrier(&mut self) {
        self.commands.push(Command::Barrier);
    }

    fn copy(&mut self, from: &Slice, to: &Slice) -> Result<(), MetalError> {
        self.expect_copy_pass()?;
        for slice in [from, to] {
            let inside = slice.offset.checked_add(slice.bytes).is_some_and(|end| end <= slice.buffer.len());
            if !inside || from.bytes != to.bytes {
                return Err(self.refused(&format!("copy from {from:?} to {to:?}")));
            }
        }
        self.commands.push(Command::Copy(Piece::of(from)?, Piece::of(to)?));
        Ok(())
    }

    fn synchronize(&mut self, buffer: &Buffer) -> Result<(), MetalError> {
        self.expect_copy_pass()?;
        if buffer.mode() != StorageMode::Managed {
            return Err(self.refused("only managed buffers are synchronized"));
        }
        self.commands.push(Command::Synchronize(Piece::of(&Slice::whole(buffer))?));
        Ok(())
    }

    fn commit(mut self: Box<Self>) -> Result<Arc<dyn Completion>, MetalError> {
        let commands = std::mem::take(&mut self.commands);
        for command in &commands {
            each_memory(command, |m| {
                m.pending.fetch_add(1, Atomic::AcqRel);
            });
        }
        let mut state = self.queue.lock();
        if let Some(entry) = state.waiting.iter_mut().find(|e| e.number == self.number) {
            entry.commands = Some(commands);
        }
        Ok(Arc::new(Committed {
            queue: self.queue.clone(),
            number: self.number,
            label: self.label.clone(),
            failure: Mutex::new(None),
        }))
    }
}

impl Drop for Recorder {
    /// A command buffer that was given up leaves the queue.
    fn drop(&mut self) {
        let number = self.number;
        self.queue.lock().waiting.retain(|e| e.number != number || e.commands.is_some());
    }
}

/// A command buffer in the queue.
struct Committed {
    queue: Arc<Queue>,
    number: u64,
    label: String,
    failure: Mutex<Option<MetalError>>,
}

impl Completion for Committed {
    fn wait(&self, limit: Duration) -> Result<(), MetalError> {
        if self.queue.profile.hangs_after.is_some_and(|n| self.number > n) {
            return Err(MetalError::TimedOut { label: self.label.clone(), seconds: limit.as_secs() });
        }
        let mut failure = self.failure.lock().unwrap_or_else(|e| e.into_inner());
        if let Err(reason) = self.queue.run_to(self.number) {
            *failure = Some(MetalError::Failed { label: self.label.clone(), reason });
        }
        failure.clone().map_or(Ok(()), Err)
    }
}
