//! Weights on the device: wrapped where they lie, or copied into its memory.

use std::any::Any;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use wootz_graph::op::Op;
use wootz_graph::{Graph, RunError, WeightId, WeightSource, WeightTable};

use super::transfer::Transfer;
use crate::device::{Buffer, MetalDevice, Residency, Slice, StorageMode};

/// Alignment of weights in buffers of our own.
const ALIGN: u64 = 256;

/// Bytes of one buffer of copied weights, at most.
const PIECE: u64 = 1 << 30;

/// All weights of a model.
pub(super) struct Weights {
    device: Arc<dyn MetalDevice>,
    name: String,
    table: Arc<WeightTable>,
    source: Arc<dyn WeightSource>,
    matrices: HashMap<WeightId, Slice>,
    vectors: HashMap<WeightId, Slice>,
    bytes: u64,
    /// Dropped with the weights.
    _resident: Box<dyn Residency>,
}

/// Keeps the file mapped while a buffer wraps it.
struct Owner(#[expect(dead_code, reason = "it is held, not read")] Arc<dyn WeightSource>);

impl Weights {
    /// Brings the weights that a graph uses to the device, to its private memory where it is told so; `progress` hears
    /// of the bytes done.
    pub(super) fn load(
        device: Arc<dyn MetalDevice>,
        name: &str,
        (table, source): (Arc<WeightTable>, Arc<dyn WeightSource>),
        graph: &Graph,
        (transfer, private): (&mut Transfer, bool),
        progress: &mut dyn FnMut(u64),
    ) -> Result<Weights, RunError> {
        let mut matrices = BTreeSet::new();
        let mut vectors = BTreeSet::new();
        for node in &graph.nodes {
            let matrix = match &node.op {
                Op::Embed { table, .. } | Op::AddRow { table, .. } => Some(*table),
                Op::Linear(l) => Some(l.weight),
                Op::ExpertLinear { weight, .. } => Some(*weight),
                _ => None,
            };
            matrices.extend(matrix);
            vectors.extend(node.op.weights().filter(|w| Some(*w) != matrix));
        }
        let mut loader = Loader {
            device: &*device,
            name,
            table: &table,
            source: &source,
            transfer,
            private,
            progress,
            done: 0,
            buffers: Vec::new(),
        };
        // Kernels read up to 16 bytes at once; files whose tensors are aligned to less are copied.
        let fits = |m: &WeightId| source.mapped(*m).is_some_and(|b| (b.as_ptr() as usize).is_multiple_of(16));
        let wrapped = device.caps().unified && !private && matrices.iter().all(fits);
        let matrices = if wrapped { loader.wrap(&matrices)? } else { loader.copy(&matrices)? };
        let vectors = loader.vectors(&vectors)?;
        let buffers = loader.buffers;
        let bytes = matrices.values().chain(vectors.values()).map(|s| s.bytes).sum();
        let resident = device.keep_resident(&buffers).map_err(|e| e.on(name))?;
        let name = name.to_owned();
        Ok(Weights { device, name, table, source, matrices, vectors, bytes, _resident: resident })
    }

    /// Bytes of memory held.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Names, types and shapes.
    pub(super) fn table(&self) -> &WeightTable {
        &self.table
    }

    /// A matrix as it lies in the file.
    pub(super) fn matrix(&self, id: WeightId) -> Result<Slice, RunError> {
        self.matrices.get(&id).cloned().ok_or_else(|| self.missing(id))
    }

    /// A vector as f32.
    pub(super) fn vector(&self, id: WeightId) -> Result<Slice, RunError> {
        self.vectors.get(&id).cloned().ok_or_else(|| self.missing(id))
    }

    /// The elements of a vector on the host.
    pub(super) fn elements(&self, id: WeightId) -> Result<Vec<f32>, RunError> {
        self.table.elements(&*self.source, id)
    }

    /// A new buffer for kernels to read.
    pub(super) fn constant(
        &self,
        bytes: &[u8],
        what: &str,
        transfer: &mut Transfer,
    ) -> Result<Slice, RunError> {
        let mode = if self.device.caps().unified { StorageMode::Shared } else { transfer.gpu_mode() };
        let buffer = self.device.buffer(bytes.len() as u64, mode, what).map_err(|e| e.on(&self.name))?;
        let slice = Slice::whole(&buffer);
        transfer.write(&slice, bytes).map_err(|e| e.on(&self.name))?;
        Ok(slice)
    }

    fn missing(&self, id: WeightId) -> RunError {
        RunError::Plan(format!("tensor {} was not loaded", self.table.info(id).name))
    }
}

struct Loader<'a> {
    device: &'a dyn MetalDevice,
    name: &'a str,
    table: &'a WeightTable,
    source: &'a Arc<dyn WeightSource>,
    transfer: &'a mut Transfer,
    private: bool,
    progress: &'a mut dyn FnMut(u64),
    done: u64,
    buffers: Vec<Buffer>,
}

impl Loader<'_> {
    /// Wraps the pages on which matrices lie, in as few buffers as the device's limit allows.
    fn wrap(&mut self, ids: &BTreeSet<WeightId>) -> Result<HashMap<WeightId, Slice>, RunError> {
        let (page, limit) = (self.device.caps().page, self.device.caps().max_buffer);
        let mut places: Vec<(u64, u64, WeightId)> = ids
            .iter()
            .filter_map(|id| self.source.mapped(*id).map(|b| (b.as_ptr() as u64, b.len() as u64, *id)))
            .collect();
        places.sort_unstable();
        let mut slices = HashMap::new();
        let mut first = 0;
        while first < places.len() {
            // A view goes on while pages touch and the limit holds. The next one begins with the page of its first
            // matrix, so that neighbouring views overlap by up to a page.
            let start = places[first].0 / page * page;
            let mut end = (places[first].0 + places[first].1).next_multiple_of(page);
            let mut last = first + 1;
            while last < places.len() {
                let (at, bytes, _) = places[last];
                let next_end = end.max((at + bytes).next_multiple_of(page));
                if at / page * page > end || next_end - start > limit {
                    break;
                }
                end = next_end;
                last += 1;
            }
            let owner: Arc<dyn Any + Send + Sync> = Arc::new(Owner(self.source.clone()));
            let info = self.table.info(places[first].2);
            // SAFETY: the pages hold bytes of mapped weights, which the owner keeps and nobody writes.
            let buffer = unsafe { self.device.wrap(start as *const u8, end - start, owner, &info.name) };
            let buffer = buffer.map_err(|e| e.on(self.name))?;
            for (at, bytes, id) in &places[first..last] {
                touch(self.source.mapped(*id).unwrap_or(&[]), page as usize);
                slices.insert(*id, Slice { buffer: buffer.clone(), offset: at - start, bytes: *bytes });
                self.advance(*bytes);
            }
            self.buffers.push(buffer);
            first = last;
        }
        Ok(slices)
    }

    /// Copies matrices to buffers of our own.
    fn copy(&mut self, ids: &BTreeSet<WeightId>) -> Result<HashMap<WeightId, Slice>, RunError> {
        let limit = PIECE.min(self.device.caps().max_buffer);
        let mode = match self.device.caps().unified && !self.private {
            true => StorageMode::Shared,
            false => self.transfer.gpu_mode(),
        };
        let list: Vec<(WeightId, u64)> = ids.iter().map(|id| (*id, self.table.info(*id).bytes())).collect();
        let mut slices = HashMap::new();
        let mut first = 0;
        while first < list.len() {
            let mut bytes = list[first].1.next_multiple_of(ALIGN);
            let mut last = first + 1;
            while last < list.len() && bytes + list[last].1.next_multiple_of(ALIGN) <= limit {
                bytes += list[last].1.next_multiple_of(ALIGN);
                last += 1;
            }
            let name = &self.table.info(list[first].0).name;
            let buffer = self.device.buffer(bytes, mode, name).map_err(|e| e.on(self.name))?;
            let mut offset = 0;
            for (id, bytes) in &list[first..last] {
                let slice = Slice { buffer: buffer.clone(), offset, bytes: *bytes };
                self.fill(*id, &slice)?;
                offset += bytes.next_multiple_of(ALIGN);
                slices.insert(*id, slice);
            }
            self.buffers.push(buffer);
            first = last;
        }
        Ok(slices)
    }

    /// Copies one weight, a piece at a time.
    fn fill(&mut self, id: WeightId, to: &Slice) -> Result<(), RunError> {
        const CHUNK: u64 = 8 << 20;
        let mut at = 0;
        let mut bytes = Vec::new();
        while at < to.bytes {
            let n = CHUNK.min(to.bytes - at);
            bytes.resize(n as usize, 0);
            self.table.read(&**self.source, id, at, &mut bytes)?;
            self.transfer.write(&to.part(at, n), &bytes).map_err(|e| e.on(self.name))?;
            at += n;
            self.advance(n);
        }
        Ok(())
    }

    /// Copies vectors, as f32, to one buffer.
    fn vectors(&mut self, ids: &BTreeSet<WeightId>) -> Result<HashMap<WeightId, Slice>, RunError> {
        let mut offset = 0;
        let mut places = Vec::new();
        for id in ids {
            let info = self.table.info(*id);
            let bytes = 4 * info.rows * info.cols;
            places.push((*id, offset, bytes));
            offset += bytes.next_multiple_of(ALIGN);
        }
        if places.is_empty() {
            return Ok(HashMap::new());
        }
        let mode = if self.device.caps().unified { StorageMode::Shared } else { self.transfer.gpu_mode() };
        let buffer = self.device.buffer(offset, mode, "vectors").map_err(|e| e.on(self.name))?;
        let mut slices = HashMap::new();
        for (id, offset, bytes) in places {
            let slice = Slice { buffer: buffer.clone(), offset, bytes };
            let elements = self.table.elements(&**self.source, id)?;
            self.transfer.write(&slice, bytemuck::cast_slice(&elements)).map_err(|e| e.on(self.name))?;
            self.advance(self.table.info(id).bytes());
            slices.insert(id, slice);
        }
        self.buffers.push(buffer);
        Ok(slices)
    }

    fn advance(&mut self, bytes: u64) {
        self.done += bytes;
        (self.progress)(self.done);
    }
}

/// Reads a byte of every page, so that the first step does not wait for the disk.
fn touch(bytes: &[u8], page: usize) {
    let sum = bytes.iter().step_by(page).fold(0u8, |sum, b| sum.wrapping_add(*b));
    std::hint::black_box(sum);
}
