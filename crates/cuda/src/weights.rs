//! Weights on a device: read from the file in pieces, through memory that the device copies from.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use wootz_graph::op::Op;
use wootz_graph::{ByteSize, Graph, NodeId, RunError, WeightId, WeightSource, WeightTable};

use crate::args::{Mut, Ptr, RawMatrix, RepackArgs};
use crate::experts::Experts;
use crate::machine::{DeviceBuffer, HostBuffer, Launch, Machine, OwnedMark};
use crate::select::Kernels;
use crate::tiles::{self, TileShape};

/// Bytes read and copied at a time by one thread.
const PIECE: usize = 8 << 20;
/// Threads that read the file: a few fill the bus.
const READERS: usize = 8;

/// How a weight is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Form {
    /// Rows as in the file.
    Raw,
    /// Tiles, for the fast products.
    Tiles,
    /// Elements as f32.
    Vector,
}

/// All weights of a model.
pub(crate) struct Weights {
    machine: Arc<dyn Machine>,
    kernels: Kernels,
    table: Arc<WeightTable>,
    source: Arc<dyn WeightSource>,
    buffers: HashMap<(WeightId, Form), DeviceBuffer>,
}

impl Weights {
    pub(crate) fn new(
        machine: Arc<dyn Machine>,
        kernels: Kernels,
        table: Arc<WeightTable>,
        source: Arc<dyn WeightSource>,
    ) -> Weights {
        Weights { machine, kernels, table, source, buffers: HashMap::new() }
    }

    pub(crate) fn table(&self) -> &WeightTable {
        &self.table
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> u64 {
        self.buffers.values().map(|b| b.bytes() as u64).sum()
    }

    /// Loads what a graph uses and is not there yet; `progress` is told the bytes of files done, `caches` are bytes that
    /// must fit beside them.
    ///
    /// # Errors
    /// Weights and caches do not fit the free memory, or a weight cannot be read.
    pub(crate) fn load(
        &mut self,
        graph: &Graph,
        caches: u64,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), RunError> {
        let mut wanted = Vec::new();
        let fast_experts: HashSet<NodeId> = match self.kernels {
            Kernels::Fast => {
                let found = graph.iter().filter_map(|(id, _)| Experts::at(graph, &self.table, id));
                found.flat_map(|experts| experts.covers()).collect()
            }
            Kernels::Simple => HashSet::new(),
        };
        for (id, node) in graph.iter() {
            for (place, weight) in node.op.weights().enumerate() {
                let matrix = matches!(
                    node.op,
                    Op::Linear(_) | Op::Embed { .. } | Op::AddRow { .. } | Op::ExpertLinear { .. }
                );
                let form = match matrix && place == 0 {
                    true if fast_experts.contains(&id)
                        || tiles::serve(self.kernels, &node.op, self.table.info(weight)) =>
                    {
                        Form::Tiles
                    }
                    true => Form::Raw,
                    false => Form::Vector,
                };
                let use_ = (weight, form);
                if !self.buffers.contains_key(&use_) && !wanted.contains(&use_) {
                    wanted.push(use_);
                }
            }
        }
        let sizes = wanted.iter().map(|(weight, form)| self.size(*weight, *form) as u64);
        let needed = sizes.sum::<u64>() + caches;
        let available = self.machine.free_memory()?;
        if needed > available {
            return Err(RunError::OutOfMemory {
                device: self.machine.id().to_owned(),
                what: format!("weights of {} with caches of {}", ByteSize(needed - caches), ByteSize(caches)),
                needed,
                available: Some(available),
            });
        }
        let mut pieces = Vec::new();
        for (weight, form) in wanted {
            let name = &self.table.info(weight).name;
            let bytes = self.size(weight, form);
            let buffer = DeviceBuffer::new(&self.machine, bytes, &format!("tensor {name}"))?;
            self.cut(weight, form, buffer.address(), &mut pieces);
            self.buffers.insert((weight, form), buffer);
        }
        let uploaded = self.upload(&pieces, progress);
        if uploaded.is_err() {
            // What was not filled must not be found later.
            self.buffers.clear();
        }
        uploaded
    }

    /// Bytes of a weight in a form.
    fn size(&self, weight: WeightId, form: Form) -> usize {
        let info = self.table.info(weight);
        match form {
            Form::Raw => info.bytes() as usize,
            Form::Tiles => TileShape::new(info).map_or(0, |t| t.bytes()),
            Form::Vector => 4 * (info.rows * info.cols) as usize,
        }
    }

    /// Cuts a weight into pieces.
    fn cut(&self, weight: WeightId, form: Form, to: u64, pieces: &mut Vec<Piece>) {
        let info = self.table.info(weight);
        let bytes = info.bytes();
        match (form, TileShape::new(info)) {
            (Form::Tiles, Some(shape)) => {
                // Each expert's matrix begins with a tile of its own.
                let experts = u64::from(info.experts.max(1));
                let rows = info.rows / experts;
                let step = (PIECE as u64 / (16 * info.row_bytes() as u64)).max(1) * 16;
                for expert in 0..experts {
                    for first in (0..rows).step_by(step as usize) {
                        let n = step.min(rows - first);
                        pieces.push(Piece {
                            weight,
                            from: (expert * rows + first) * info.row_bytes() as u64,
                            bytes: n as usize * info.row_bytes(),
                            to: to + expert * shape.expert_bytes() as u64 + shape.row_offset(first),
                            kind: Kind::Tiles { rows: n as u32 },
                        });
                    }
                }
            }
            (Form::Vector, _) => {
                pieces.push(Piece { weight, from: 0, bytes: bytes as usize, to, kind: Kind::Vector });
            }
            _ => {
                for from in (0..bytes).step_by(PIECE) {
                    let n = (bytes - from).min(PIECE as u64) as usize;
                    pieces.push(Piece { weight, from, bytes: n, to: to + from, kind: Kind::Raw });
                }
            }
        }
    }

    fn upload(&self, pieces: &[Piece], progress: &mut dyn FnMut(u64)) -> Result<(), RunError> {
        let (next, done) = (AtomicUsize::new(0), AtomicU64::new(0));
        let failure = Mutex::new(None);
        let work = |progress: &mut dyn FnMut(u64)| {
            let result = Uploader::new(self).and_then(|mut uploader| {
                while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if lock(&failure).is_some() {
                        break;
                    }
                    uploader.run(piece)?;
                    progress(done.fetch_add(piece.bytes as u64, Ordering::Relaxed) + piece.bytes as u64);
                }
                uploader.finish()
            });
            if let Err(e) = result {
                lock(&failure).get_or_insert(e);
            }
        };
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let others = cores.min(READERS).min(pieces.len().div_ceil(2)).saturating_sub(1);
        std::thread::scope(|scope| {
            for _ in 0..others {
                scope.spawn(|| work(&mut |_| ()));
            }
            work(progress);
        });
        progress(done.load(Ordering::Relaxed));
        failure.into_inner().unwrap_or_else(|e| e.into_inner()).map_or(Ok(()), Err)
    }

    fn address(&self, weight: WeightId, form: Form) -> Result<u64, RunError> {
        let buffer = self.buffers.get(&(weight, form));
        let name = &self.table.info(weight).name;
        buffer.map(DeviceBuffer::address).ok_or_else(|| RunError::Plan(format!("{name} is not loaded")))
    }

    /// Rows of a weight as in the file, from row `first` on.
    pub(crate) fn raw(&self, weight: WeightId, first: u64) -> Result<RawMatrix, RunError> {
        let info = self.table.info(weight);
        let row_bytes = info.row_bytes() as u64;
        Ok(RawMatrix {
            data: Ptr::new(self.address(weight, Form::Raw)? + first * row_bytes),
            row_bytes,
            r#type: info.ty.id(),
            cols: info.cols as u32,
            elements: info.ty.block_elements() as u32,
            bytes: info.ty.block_bytes() as u32,
        })
    }

    /// The tiles of a weight, and the address of those that hold row `first`.
    pub(crate) fn tiles(&self, weight: WeightId, first: u32) -> Result<(TileShape, Ptr<u8>), RunError> {
        let info = self.table.info(weight);
        let shape =
            TileShape::new(info).ok_or_else(|| RunError::Plan(format!("{} has no tiles", info.name)))?;
        let address = self.address(weight, Form::Tiles)? + shape.row_offset(u64::from(first));
        Ok((shape, Ptr::new(address)))
    }

    /// The address of a weight's elements as f32, from element `first` on; null for no weight.
    pub(crate) fn vector(&self, weight: Option<WeightId>, first: u32) -> Result<Ptr<f32>, RunError> {
        let Some(weight) = weight else { return Ok(Ptr::NULL) };
        Ok(Ptr::new(self.address(weight, Form::Vector)? + 4 * u64::from(first)))
    }

    /// The elements of a vector, on the host.
    pub(crate) fn elements(&self, weight: WeightId) -> Result<Vec<f32>, RunError> {
        self.table.elements(&*self.source, weight)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// A part of a weight's bytes and where it goes.
struct Piece {
    weight: WeightId,
    from: u64,
    bytes: usize,
    to: u64,
    kind: Kind,
}

/// What happens to a piece on its way.
enum Kind {
    Raw,
    /// Whole rows become tiles on the device.
    Tiles {
        rows: u32,
    },
    /// Elements become f32 on the host.
    Vector,
}

/// One thread's buffers: while the device copies from one, the next is filled.
struct Uploader<'a> {
    weights: &'a Weights,
    buffers: [(HostBuffer, OwnedMark); 2],
    /// Rows on the device that become tiles. Copies and kernels run in order, so one is enough.
    staging: Option<DeviceBuffer>,
    turn: usize,
}

impl<'a> Uploader<'a> {
    fn new(weights: &'a Weights) -> Result<Uploader<'a>, RunError> {
        let machine = &weights.machine;
        let buffer = || Ok((HostBuffer::new(machine, 0)?, OwnedMark::here(machine)?));
        Ok(Uploader { weights, buffers: [buffer()?, buffer()?], staging: None, turn: 0 })
    }

    fn run(&mut self, piece: &Piece) -> Result<(), RunError> {
        let Weights { machine, table, source, .. } = self.weights;
        let info = table.info(piece.weight);
        self.turn = 1 - self.turn;
        let (buffer, mark) = &mut self.buffers[self.turn];
        mark.wait()?;
        let bytes = match piece.kind {
            Kind::Vector => 4 * (info.rows * info.cols) as usize,
            _ => piece.bytes,
        };
        if buffer.len() < bytes {
            *buffer = HostBuffer::new(machine, bytes.max(PIECE))?;
        }
        match piece.kind {
            Kind::Vector => {
                let elements = table.elements(&**source, piece.weight)?;
                buffer[..bytes].copy_from_slice(bytemuck::cast_slice(&elements));
            }
            _ => table.read(&**source, piece.weight, piece.from, &mut buffer[..bytes])?,
        }
        let to = match piece.kind {
            Kind::Tiles { .. } => {
                if self.staging.as_ref().is_none_or(|s| s.bytes() < bytes) {
                    self.staging = Some(DeviceBuffer::new(machine, bytes.max(PIECE), "rows on their way")?);
                }
                self.staging.as_ref().map_or(0, DeviceBuffer::address)
            }
            _ => piece.to,
        };
        // SAFETY: the buffer is filled again only after its mark is reached.
        unsafe { machine.copy_in(to, &buffer[..bytes])? };
        mark.set()?;
        if let Kind::Tiles { rows } = piece.kind {
            let args =
                RepackArgs { src: Ptr::new(to), dst: Mut::new(piece.to), rows, cols: info.cols as u32 };
            let kernel =
                tiles::repack(info.ty).ok_or_else(|| RunError::Plan(format!("{} has no tiles", info.ty)))?;
            let grid = [args.cols.div_ceil(tiles::COLS), rows.div_ceil(tiles::ROWS), 1];
            machine.launch(&Launch::new(kernel, grid, 32, &args))?;
        }
        Ok(())
    }

    /// Waits until the device has everything.
    fn finish(self) -> Result<(), RunError> {
        self.weights.machine.finish()
    }
}
