//! Weights in memory: matrices repacked for products, vectors as f32.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use wootz_graph::op::{Op, Scan, ShortConv};
use wootz_graph::{Graph, RunError, WeightId, WeightInfo, WeightSource, WeightTable};
use wootz_quant::WeightType;

use crate::linear::{self, StoredMatrix};
use crate::memory::Slabs;
use crate::pool::{Chunks, Pool};
use crate::recurrent::{ConvWeights, ScanWeights};
use crate::{ActForm, CpuError, PackedMatrix, bf16};

/// A matrix to multiply with.
pub(super) enum Matrix {
    /// In memory, in the kernels' order.
    Packed(PackedMatrix),
    /// In its file.
    Stored(StoredPart),
}

impl Matrix {
    /// As a product takes it.
    pub(super) fn weights(&self) -> linear::Weights<'_> {
        match self {
            Matrix::Packed(matrix) => linear::Weights::Packed(matrix),
            Matrix::Stored(part) => linear::Weights::Stored(part),
        }
    }

    /// The form of activations that it multiplies with.
    pub(super) fn form(&self) -> ActForm {
        ActForm::of(self.weights().ty())
    }

    /// Rows.
    pub(super) fn rows(&self) -> usize {
        self.weights().rows()
    }

    /// Columns.
    pub(super) fn cols(&self) -> usize {
        self.weights().cols()
    }
}

/// Bytes read from the file and packed at a time by one thread, at most.
const PIECE: usize = 1 << 20;

/// Parts of a smaller matrix for each thread, of which one may be held up by the disk.
const PIECES_PER_WORKER: usize = 2;

/// Rows of a weight that are multiplied as one matrix.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Part {
    weight: WeightId,
    first: u64,
    rows: u64,
}

/// A part that stays in its file.
pub(super) struct StoredPart {
    part: Part,
    info: WeightInfo,
    table: Arc<WeightTable>,
    source: Arc<dyn WeightSource>,
}

impl StoredMatrix for StoredPart {
    fn ty(&self) -> WeightType {
        self.info.ty
    }

    fn rows(&self) -> usize {
        self.part.rows as usize
    }

    fn cols(&self) -> usize {
        self.info.cols as usize
    }

    fn read(&self, first: usize, bytes: &mut [u8]) -> Result<(), RunError> {
        let offset = (self.part.first + first as u64) * self.info.row_bytes() as u64;
        self.table.read(&*self.source, self.part.weight, offset, bytes)
    }
}

/// All weights of a model.
pub(super) struct Weights {
    table: Arc<WeightTable>,
    source: Arc<dyn WeightSource>,
    /// Bytes that matrices may still take; what does not fit stays in the file.
    room: u64,
    /// Small matrices lie side by side in huge pages, which are read faster than ordinary ones.
    slabs: Slabs,
    products: HashMap<Part, Arc<Matrix>>,
    vectors: HashMap<WeightId, Arc<[f32]>>,
    convs: HashMap<Part, Arc<ConvWeights>>,
    scans: HashMap<WeightId, Arc<ScanWeights>>,
}

impl Weights {
    /// Loads the weights that a graph uses; `progress` is told the bytes done.
    ///
    /// A table that is only looked up stays in the file, read row by row: the system caches what is used of it. So do
    /// matrices beyond `room` bytes, which are read at each product.
    pub(super) fn load(
        table: Arc<WeightTable>,
        source: Arc<dyn WeightSource>,
        graph: &Graph,
        room: u64,
        pool: &Pool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Weights, RunError> {
        let mut weights = Weights {
            table,
            source,
            room,
            slabs: Slabs::default(),
            products: HashMap::new(),
            vectors: HashMap::new(),
            convs: HashMap::new(),
            scans: HashMap::new(),
        };
        let mut done = 0;
        for node in &graph.nodes {
            let parts = match &node.op {
                Op::Linear(l) => {
                    vec![Part { weight: l.weight, first: u64::from(l.first), rows: u64::from(l.rows) }]
                }
                Op::ExpertLinear { weight, .. } => weights.expert_parts(*weight),
                _ => Vec::new(),
            };
            for part in parts {
                done += weights.pack(part, Some(pool))?;
                progress(done);
            }
        }
        Ok(weights)
    }

    /// Bytes of memory held.
    pub(super) fn bytes(&self) -> u64 {
        let packed = self.products.values().map(|matrix| match &**matrix {
            Matrix::Packed(matrix) => matrix.bytes(),
            Matrix::Stored(_) => 0,
        });
        let products: usize = packed.sum();
        let vectors: usize = self.vectors.values().map(|v| 4 * v.len()).sum();
        (products + vectors) as u64
    }

    /// Rows of a weight as a matrix.
    pub(super) fn product(
        &mut self,
        weight: WeightId,
        first: u32,
        rows: u32,
    ) -> Result<Arc<Matrix>, RunError> {
        let part = Part { weight, first: u64::from(first), rows: u64::from(rows) };
        self.pack(part, None)?;
        Ok(self.products[&part].clone())
    }

    /// The matrices of all experts of a weight.
    pub(super) fn experts(&mut self, weight: WeightId) -> Result<Vec<Arc<Matrix>>, RunError> {
        let parts = self.expert_parts(weight);
        parts
            .into_iter()
            .map(|part| {
                self.pack(part, None)?;
                Ok(self.products[&part].clone())
            })
            .collect()
    }

    fn expert_parts(&self, weight: WeightId) -> Vec<Part> {
        let info = self.table.info(weight);
        let experts = u64::from(info.experts.max(1));
        let rows = info.rows / experts;
        (0..experts).map(|e| Part { weight, first: e * rows, rows }).collect()
    }

    /// A vector, if there is one.
    pub(super) fn opt_vector(&mut self, weight: Option<WeightId>) -> Result<Option<Arc<[f32]>>, RunError> {
        weight.map(|weight| self.vector(weight)).transpose()
    }

    /// All elements of a weight.
    pub(super) fn vector(&mut self, weight: WeightId) -> Result<Arc<[f32]>, RunError> {
        if let Some(vector) = self.vectors.get(&weight) {
            return Ok(vector.clone());
        }
        let vector: Arc<[f32]> = self.table.elements(&*self.source, weight)?.into();
        self.vectors.insert(weight, vector.clone());
        Ok(vector)
    }

    /// The weights of a convolution of so many channels.
    pub(super) fn conv(&mut self, conv: &ShortConv, channels: u32) -> Result<Arc<ConvWeights>, RunError> {
        let part = Part { weight: conv.weight, first: u64::from(conv.first), rows: u64::from(channels) };
        if let Some(weights) = self.convs.get(&part) {
            return Ok(weights.clone());
        }
        let all = self.table.elements(&*self.source, conv.weight)?;
        let width = conv.width as usize;
        let factors = &all[conv.first as usize * width..][..channels as usize * width];
        let bias = self.part_of_vector(conv.bias, conv.first, channels)?;
        let weights = Arc::new(ConvWeights::new(factors, width, bias.as_deref())?);
        self.convs.insert(part, weights.clone());
        Ok(weights)
    }

    /// The weights of a scan.
    pub(super) fn scan(&mut self, scan: &Scan) -> Result<Arc<ScanWeights>, RunError> {
        if let Some(weights) = self.scans.get(&scan.a) {
            return Ok(weights.clone());
        }
        let elements = |id| self.table.elements(&*self.source, id);
        let weights = Arc::new(ScanWeights::new(scan, &elements(scan.a)?, &elements(scan.d)?)?);
        self.scans.insert(scan.a, weights.clone());
        Ok(weights)
    }

    /// Some elements of a vector, if there is one.
    pub(super) fn part_of_vector(
        &mut self,
        weight: Option<WeightId>,
        first: u32,
        rows: u32,
    ) -> Result<Option<Arc<[f32]>>, RunError> {
        let vector = self.opt_vector(weight)?;
        Ok(vector.map(|v| match (first as usize, rows as usize) {
            (0, n) if n == v.len() => v,
            (first, n) => v[first..first + n].into(),
        }))
    }

    /// One row of a weight.
    pub(super) fn row_vector(&self, weight: WeightId, row: u32) -> Result<Arc<[f32]>, RunError> {
        let mut vector = vec![0.0; self.table.info(weight).cols as usize];
        self.row(weight, u64::from(row), &mut Vec::new(), &mut vector)?;
        Ok(vector.into())
    }

    /// Decodes one row of a weight, from its repacked form where it has one.
    pub(super) fn row(
        &self,
        weight: WeightId,
        row: u64,
        scratch: &mut Vec<u8>,
        out: &mut [f32],
    ) -> Result<(), RunError> {
        let info = self.table.info(weight);
        if row >= info.rows {
            return Err(RunError::Input(format!("row {row} of {}, which has {}", info.name, info.rows)));
        }
        scratch.resize(info.row_bytes(), 0);
        let whole = Part { weight, first: 0, rows: info.rows };
        match self.products.get(&whole).map(|matrix| &**matrix) {
            Some(Matrix::Packed(matrix)) => {
                matrix.unpack_row(row as usize, scratch).map_err(|e| out_of_memory(info, &e))?
            }
            _ => {
                self.table.read(&*self.source, weight, row * scratch.len() as u64, scratch)?;
                if info.ty == WeightType::BF16 {
                    // As the repacked form has them.
                    scratch.as_chunks_mut().0.iter_mut().for_each(|bits| *bits = bf16::weight(*bits));
                }
            }
        }
        info.decode(scratch, out)
    }

    /// Reads and packs a part, unless it is there or there is no room; returns its bytes.
    fn pack(&mut self, part: Part, pool: Option<&Pool>) -> Result<u64, RunError> {
        if self.products.contains_key(&part) {
            return Ok(0);
        }
        let info = self.table.info(part.weight);
        let bytes = part.rows * info.row_bytes() as u64;
        let Some(room) = self.room.checked_sub(bytes) else {
            let (info, table, source) = (info.clone(), self.table.clone(), self.source.clone());
            self.products.insert(part, Arc::new(Matrix::Stored(StoredPart { part, info, table, source })));
            return Ok(bytes);
        };
        let slabs = &mut self.slabs;
        let allocate = |bytes| slabs.zeroed(bytes);
        let matrix = PackedMatrix::zeroed_in(allocate, info.ty, part.rows as usize, info.cols as usize);
        let mut matrix = matrix.map_err(|e| out_of_memory(info, &e))?;
        let row_bytes = matrix.row_bytes();
        let shares = PIECES_PER_WORKER * pool.map_or(1, Pool::workers);
        let piece = PIECE.min((bytes as usize).div_ceil(shares));
        let groups = piece.div_ceil((16 * row_bytes).max(1)).max(1);
        let pieces: Vec<_> = matrix.groups_mut(groups).map(Mutex::new).collect();
        let chunks = Chunks::new(pieces.len(), 1);
        let failure = Mutex::new(None);
        let work = || {
            let mut bytes = Vec::new();
            while let Some(range) = chunks.take() {
                for piece in &pieces[range] {
                    let mut piece = piece.lock().unwrap_or_else(|e| e.into_inner());
                    bytes.resize(piece.source_bytes(), 0);
                    let offset = (part.first + piece.rows().start as u64) * row_bytes as u64;
                    let packed = self
                        .table
                        .read(&*self.source, part.weight, offset, &mut bytes)
                        .and_then(|()| piece.pack(&bytes).map_err(|e| out_of_memory(info, &e)));
                    if let Err(e) = packed {
                        failure.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(e);
                        return;
                    }
                }
            }
        };
        match pool {
            Some(pool) => pool.run(&|_| work()),
            None => work(),
        }
        drop(pieces);
        if let Some(e) = failure.into_inner().unwrap_or_else(|e| e.into_inner()) {
            return Err(e);
        }
        self.room = room;
        self.products.insert(part, Arc::new(Matrix::Packed(matrix)));
        Ok(bytes)
    }
}

/// An error of this crate, as that of loading a weight.
fn out_of_memory(info: &WeightInfo, error: &CpuError) -> RunError {
    match error {
        CpuError::OutOfMemory { bytes } => RunError::OutOfMemory {
            device: "cpu".into(),
            what: format!("tensor {}", info.name),
            needed: *bytes as u64,
            available: None,
        },
        e => RunError::Plan(format!("tensor {}: {e}", info.name)),
    }
}
