//! Products of weight matrices with activations: `out[token][row] = sum over columns of w[row][col] * x[token][col]`.
//!
//! The bits of a result depend on its row and its token alone: not on the other tokens, the split over threads,
//! the tile shape or the instruction set. Integer sums inside a block are exact; each block then adds to its row's
//! lane with one or two f32 multiply-adds, blocks upwards. No sum crosses lanes or threads.

// Kernels index several arrays of registers by token at once.
#![allow(clippy::needless_range_loop)]

mod decoded;
mod float;
mod kquants;
mod legacy;
mod panel;
mod tile;

use crate::CpuError;
use crate::act::{ActForm, ActTokens, Activations, Tile};
use crate::isa::LANES;
use crate::pack::PackedMatrix;
use crate::pool::{Chunks, Pool};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use tile::{Kernels, TileArgs, kernels};
use wootz_graph::RunError;
use wootz_quant::WeightType;

/// Tiles up to which a product is computed group by group.
const FEW_TILES: usize = 2;
/// Weight bytes, times the tokens, that are worth another thread: some microseconds of work.
const WORTH_A_THREAD: usize = 64 << 10;
/// Parts for each worker, of all the work or of what is left.
const PARTS_PER_WORKER: usize = 4;

/// Bytes of weights that stay in the second-level cache beside activations.
const NEAR: usize = 384 << 10;

/// Bytes of weights that are read and packed at a time where a matrix is not in memory: a part of the second-level cache.
const STORED_PIECE: usize = 256 << 10;

/// A matrix that is read and packed when it is multiplied.
pub trait StoredMatrix: Sync {
    /// Weight type.
    fn ty(&self) -> WeightType;
    /// Rows.
    fn rows(&self) -> usize;
    /// Columns.
    fn cols(&self) -> usize;
    /// Fills `bytes` with the GGUF bytes of rows from `first` on.
    ///
    /// # Errors
    /// They cannot be read.
    fn read(&self, first: usize, bytes: &mut [u8]) -> Result<(), RunError>;
}

/// Where a product finds its weights `[rows, cols]`.
#[derive(Clone, Copy)]
pub enum Weights<'a> {
    /// In memory, in the kernels' order.
    Packed(&'a PackedMatrix),
    /// In a file.
    Stored(&'a dyn StoredMatrix),
}

impl<'a> From<&'a PackedMatrix> for Weights<'a> {
    fn from(matrix: &'a PackedMatrix) -> Weights<'a> {
        Weights::Packed(matrix)
    }
}

impl Weights<'_> {
    /// Weight type.
    pub fn ty(self) -> WeightType {
        match self {
            Weights::Packed(matrix) => matrix.ty(),
            Weights::Stored(matrix) => matrix.ty(),
        }
    }

    /// Rows.
    pub fn rows(self) -> usize {
        match self {
            Weights::Packed(matrix) => matrix.rows(),
            Weights::Stored(matrix) => matrix.rows(),
        }
    }

    /// Columns.
    pub fn cols(self) -> usize {
        match self {
            Weights::Packed(matrix) => matrix.cols(),
            Weights::Stored(matrix) => matrix.cols(),
        }
    }

    fn group_bytes(self) -> usize {
        self.ty().row_bytes(self.cols()).unwrap_or(0) * LANES
    }
}

/// One product: a matrix and where its results go.
pub struct Linear<'a> {
    /// Weights `[rows, cols]`.
    pub weights: Weights<'a>,
    /// Results: token `t`, row `r` at `t * stride + r`.
    pub out: &'a mut [f32],
    /// Distance of tokens in `out`, in elements; at least the rows.
    pub stride: usize,
}

struct Job<'a> {
    acts: ActTokens<'a>,
    weights: Weights<'a>,
    kernels: Kernels,
    out: *mut f32,
    stride: usize,
}

/// Rows of a job whose weights are in memory.
struct Rows<'a> {
    weights: &'a PackedMatrix,
    kernels: Kernels,
    out: *mut f32,
    stride: usize,
}

/// Products of several matrices, cut into parts that any number of threads can take.
pub struct LinearSet<'a> {
    jobs: Vec<Job<'a>>,
    /// Jobs and their row groups, in the order in which they are taken.
    parts: Vec<(usize, Range<usize>)>,
    /// Which of them are taken.
    chunks: Chunks,
    /// Bytes of weights, each times the tokens that it is multiplied with.
    work: usize,
    failure: Mutex<Option<RunError>>,
    _out: PhantomData<&'a mut [f32]>,
}

// SAFETY: the pointers in the jobs are to results borrowed for 'a, and each chunk, taken once, writes its own rows.
unsafe impl Send for LinearSet<'_> {}
// SAFETY: as above.
unsafe impl Sync for LinearSet<'_> {}

impl<'a> LinearSet<'a> {
    /// Products with the same activations: checks the shapes and cuts the work for `workers` threads, by bytes of weights.
    ///
    /// # Errors
    /// [`CpuError::Length`] where columns, the form of the activations or the size of a result do not fit.
    pub fn new(
        acts: &'a Activations,
        jobs: impl IntoIterator<Item = Linear<'a>>,
        workers: usize,
    ) -> Result<LinearSet<'a>, CpuError> {
        Self::of_parts(jobs.into_iter().map(|job| (acts.all(), job)), workers)
    }

    /// Products with tokens of their own each: the work is cut by bytes of weights times tokens.
    ///
    /// # Errors
    /// As [`LinearSet::new`].
    pub fn of_parts(
        jobs: impl IntoIterator<Item = (ActTokens<'a>, Linear<'a>)>,
        workers: usize,
    ) -> Result<LinearSet<'a>, CpuError> {
        let jobs = jobs.into_iter().map(|(acts, job)| Job::new(acts, job));
        let jobs = jobs.collect::<Result<Vec<_>, _>>()?;
        let work: usize = jobs.iter().map(|job| job.groups() * job.group_work()).sum();
        let parts = parts(&jobs, work, workers);
        let chunks = Chunks::new(parts.len(), 1);
        Ok(LinearSet { jobs, parts, chunks, work, failure: Mutex::new(None), _out: PhantomData })
    }

    /// Whether a second thread would cost more than it saves.
    pub fn is_small(&self) -> bool {
        self.work < 2 * WORTH_A_THREAD
    }

    /// Works on chunks until none is left, or until one fails; each thread of a parallel region calls it once.
    pub fn work(&self) {
        if let Err(e) = self.work_or_fail() {
            self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
        }
    }

    /// What went wrong, after all threads are done.
    ///
    /// # Errors
    /// Weights that are not in memory could not be read.
    pub fn finish(self) -> Result<(), RunError> {
        self.failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    fn work_or_fail(&self) -> Result<(), RunError> {
        while let Some(range) = self.chunks.take() {
            for (job, groups) in &self.parts[range] {
                // SAFETY: `Job::new` has checked the shapes, and the rows of this part are nobody else's.
                unsafe { self.jobs[*job].run(groups.clone()) }?;
            }
        }
        Ok(())
    }
}

/// Cuts jobs into parts. With many tokens each is a share of the work that is left, so that the last ones are small and all
/// workers end at about the same time, also where one starts late or loses its core. With few tokens weights come from
/// memory, which is faster in long runs.
fn parts(jobs: &[Job<'_>], work: usize, workers: usize) -> Vec<(usize, Range<usize>)> {
    let few = jobs.iter().all(|job| job.acts.tokens() < 8);
    let (mut parts, mut left) = (Vec::new(), work);
    for (index, job) in jobs.iter().enumerate() {
        let (groups, group_work) = (job.groups(), job.group_work().max(1));
        let mut first = 0;
        while first < groups {
            let share = match workers {
                1 => work,
                _ if few => work / (PARTS_PER_WORKER * workers),
                _ => left / (PARTS_PER_WORKER * workers),
            };
            let wanted = share.max(WORTH_A_THREAD) / group_work;
            let end = groups.min(first + wanted.next_multiple_of(panel::PAIR).max(panel::PAIR));
            parts.push((index, first..end));
            left = left.saturating_sub((end - first) * group_work);
            first = end;
        }
    }
    parts
}

/// Computes several products with the same activations on the pool, in one parallel region.
///
/// # Errors
/// As [`LinearSet::new`] and [`LinearSet::finish`].
pub fn linear<'a>(
    pool: &Pool,
    acts: &'a Activations,
    jobs: impl IntoIterator<Item = Linear<'a>>,
) -> Result<(), RunError> {
    let set = LinearSet::new(acts, jobs, pool.workers())?;
    if set.is_small() {
        set.work();
    } else {
        pool.run(&|_| set.work());
    }
    set.finish()
}

impl<'a> Job<'a> {
    fn new(part: ActTokens<'a>, job: Linear<'a>) -> Result<Job<'a>, CpuError> {
        let acts = part.acts();
        let Linear { weights, out, stride } = job;
        let expect = |what, expected: usize, found: usize| {
            if expected == found { Ok(()) } else { Err(CpuError::Length { what, expected, found }) }
        };
        expect("columns of activations", weights.cols(), acts.cols())?;
        if acts.form() != ActForm::of(weights.ty()) {
            return Err(CpuError::Form { ty: weights.ty(), found: acts.form() });
        }
        if part.tokens() > 0 {
            if stride < weights.rows() {
                return Err(CpuError::Length {
                    what: "stride of results",
                    expected: weights.rows(),
                    found: stride,
                });
            }
            let needed = (part.tokens() - 1).checked_mul(stride).and_then(|n| n.checked_add(weights.rows()));
            if needed.is_none_or(|n| n > out.len()) {
                let expected = needed.unwrap_or(usize::MAX);
                return Err(CpuError::Length { what: "elements of results", expected, found: out.len() });
            }
        }
        let kernels = kernels(acts.isa(), weights.ty());
        Ok(Job { acts: part, weights, kernels, out: out.as_mut_ptr(), stride })
    }

    /// Row groups.
    fn groups(&self) -> usize {
        self.weights.rows().div_ceil(LANES)
    }

    /// Bytes of a row group, times the tokens.
    fn group_work(&self) -> usize {
        self.weights.group_bytes() * self.acts.tokens().max(1)
    }

    /// Computes the rows of `groups` for all tokens.
    ///
    /// # Safety
    /// Shapes are as `new` checks them; no other thread writes these rows of the results.
    unsafe fn run(&self, groups: Range<usize>) -> Result<(), RunError> {
        let Job { acts, kernels, out, stride, .. } = *self;
        let stored = match self.weights {
            Weights::Packed(weights) => {
                // SAFETY: as the caller promises.
                unsafe { Rows { weights, kernels, out, stride }.run(acts, groups) };
                return Ok(());
            }
            Weights::Stored(stored) => stored,
        };
        let piece = (STORED_PIECE / self.weights.group_bytes().max(1)).next_multiple_of(panel::PAIR);
        let mut bytes = Vec::new();
        for first in groups.clone().step_by(piece) {
            let row = first * LANES;
            let rows = stored.rows().min(groups.end.min(first + piece) * LANES) - row;
            bytes.resize(self.weights.group_bytes() / LANES * rows, 0);
            stored.read(row, &mut bytes)?;
            let weights = PackedMatrix::pack(stored.ty(), rows, stored.cols(), &bytes)?;
            // SAFETY: as the caller promises; the piece's results begin with its first row.
            unsafe {
                let part = Rows { weights: &weights, kernels, out: out.add(row), stride };
                part.run(acts, 0..weights.groups());
            }
        }
        Ok(())
    }
}

impl Rows<'_> {
    /// Computes the rows of `groups` for all tokens.
    ///
    /// # Safety
    /// As [`Job::run`].
    unsafe fn run(&self, acts: ActTokens<'_>, groups: Range<usize>) {
        if !self.weights.is_packed() {
            // SAFETY: as the caller promises.
            return unsafe { decoded::run(self, acts, groups) };
        }
        // Few tokens: all columns of a row group at once, so that weights are read once, in order.
        if acts.tokens() <= FEW_TILES * acts.tile_tokens() {
            for group in groups {
                for tile in acts.tiles(0) {
                    // SAFETY: the arguments describe a group of this type and a tile of this size, and the
                    // instruction set of the activations was checked when they were made.
                    unsafe { self.kernels.tile(tile.tokens)(&self.tile(acts, group, tile)) };
                }
            }
            return;
        }
        let mut scratch = panel::Scratch::new();
        let near = groups.len() * self.weights.group(0).len() <= NEAR;
        for first in (0..acts.tokens()).step_by(panel::TOKENS) {
            for group in groups.clone().step_by(panel::GROUPS) {
                let panel = group..groups.end.min(group + panel::GROUPS);
                // SAFETY: as the caller promises.
                unsafe { panel::run(self, acts, panel, first, !near || first == 0, &mut scratch) };
            }
        }
    }

    /// All columns of `group` times all tokens of `tile`.
    fn tile(&self, acts: ActTokens<'_>, group: usize, tile: Tile) -> TileArgs {
        TileArgs {
            w: self.weights.group(group).as_ptr(),
            codes: std::ptr::null(),
            a: acts.tile_bytes(tile).as_ptr(),
            cols: self.weights.cols(),
            init: std::ptr::null(),
            out: self.out.wrapping_add(tile.first * self.stride + group * LANES),
            stride: self.stride,
            rows: (self.weights.rows() - group * LANES).min(LANES),
        }
    }
}
