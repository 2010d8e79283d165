//! The tensor directory.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use wootz_quant::WeightType;

use crate::error::shown;
use crate::input::{Input, Subject};
use crate::{Error, ErrorKind, Result};

/// Dimensions that a tensor can have.
pub(crate) const MAX_DIMS: usize = 4;

/// Name length, number of dimensions, type and offset.
pub(crate) const LEAST_TENSOR: u64 = 8 + 4 + 4 + 8;

/// One tensor of a model: what the directory says about it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorInfo {
    /// Its name, such as `blk.0.attn_q.weight`.
    pub name: Box<str>,
    /// The type of its elements.
    pub ty: WeightType,
    /// Which file of the model holds it; 0 where there is one file.
    pub shard: u16,
    /// Where its data starts, in bytes from the start of that file.
    pub offset: u64,
    /// Bytes of its data.
    pub bytes: usize,
    shape: Shape,
}

impl TensorInfo {
    /// The dimensions in the order of the file: columns (elements of a row, adjacent in memory) first.
    pub fn dims(&self) -> &[usize] {
        self.shape.dims()
    }

    /// The dimension at `index`; 1 beyond the last.
    pub fn dim(&self, index: usize) -> usize {
        self.dims().get(index).copied().unwrap_or(1)
    }

    /// Elements of a row.
    pub fn cols(&self) -> usize {
        self.dim(0)
    }

    /// Rows: the product of all dimensions but the first.
    pub fn rows(&self) -> usize {
        self.dims().iter().skip(1).product()
    }

    /// Elements in all.
    pub fn elements(&self) -> usize {
        self.cols() * self.rows()
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.bytes / self.rows()
    }

    /// Whether the dimensions are these, columns first; dimensions of 1 at the end make no difference.
    pub fn has_dims(&self, dims: &[usize]) -> bool {
        trim(self.dims()) == trim(dims)
    }
}

fn trim(dims: &[usize]) -> &[usize] {
    let end = dims.iter().rposition(|&dim| dim != 1).map_or(0, |last| last + 1);
    &dims[..end]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    dims: [usize; MAX_DIMS],
    len: u8,
}

impl Shape {
    pub(crate) fn dims(&self) -> &[usize] {
        &self.dims[..usize::from(self.len)]
    }

    /// Checks the dimensions of tensor `name` and counts the bytes of its data.
    pub(crate) fn new(name: &[u8], dims: &[u64], ty: WeightType) -> Result<(Self, usize), ErrorKind> {
        let tensor = || shown(name);
        if dims.len() > MAX_DIMS {
            let subject = format!("tensor `{}`", tensor());
            let found = dims.len() as u32;
            return Err(ErrorKind::TooManyDims { offset: 0, subject, found, limit: MAX_DIMS });
        }
        if dims.contains(&0) {
            return Err(ErrorKind::ZeroDim { tensor: tensor(), dims: dims.to_vec() });
        }
        let too_large = || ErrorKind::TooLarge { tensor: tensor(), dims: dims.to_vec(), ty };
        let mut shape = Self { dims: [1; MAX_DIMS], len: dims.len() as u8 };
        for (out, &dim) in shape.dims.iter_mut().zip(dims) {
            *out = usize::try_from(dim).map_err(|_| too_large())?;
        }
        let cols = shape.dims[0];
        if !cols.is_multiple_of(ty.block_elements()) {
            let block = ty.block_elements();
            return Err(ErrorKind::PartialBlock { tensor: tensor(), ty, cols: cols as u64, block });
        }
        let rows = shape.dims[1..].iter().try_fold(1usize, |rows, &dim| rows.checked_mul(dim));
        let sizes = rows.zip(ty.row_bytes(cols)).and_then(|(rows, row_bytes)| {
            // The number of elements must be countable too, for types below a byte.
            rows.checked_mul(cols)?;
            rows.checked_mul(row_bytes)
        });
        match sizes {
            Some(bytes) if isize::try_from(bytes).is_ok() => Ok((shape, bytes)),
            _ => Err(too_large()),
        }
    }
}

/// An entry of the directory before its data is placed in the file.
struct Entry {
    name: Range<usize>,
    ty: WeightType,
    shape: Shape,
    bytes: usize,
    /// From the start of the data section.
    offset: u64,
}

/// Reads `count` directory entries; offsets count from the start of the data section.
pub(crate) fn read_directory(input: &mut Input<'_>, count: usize) -> Result<Vec<TensorInfo>> {
    // Once to see that all are there, once to keep them: a false count allocates nothing.
    let start = input.at();
    for number in 0..count {
        read_entry(input, number)?;
    }
    input.rewind(start);
    let mut tensors = Vec::with_capacity(count);
    for number in 0..count {
        let Entry { name, ty, shape, bytes, offset } = read_entry(input, number)?;
        let name = String::from_utf8_lossy(input.seen(name)).into();
        tensors.push(TensorInfo { name, ty, shard: 0, offset, bytes, shape });
    }
    Ok(tensors)
}

fn read_entry(input: &mut Input<'_>, number: usize) -> Result<Entry> {
    input.subject = Subject::Tensor(number as u64);
    let length = input.u64("the name's length")?;
    let name = input.skip(length, "the name")?;
    if std::str::from_utf8(input.seen(name.clone())).is_err() {
        let (offset, subject) = (name.start as u64, input.subject());
        return Err(input.fail(ErrorKind::NameNotUtf8 { offset, subject }));
    }
    input.subject = Subject::TensorName(name.clone());
    let at = input.at() as u64;
    let found = input.u32("the number of dimensions")?;
    if found as usize > MAX_DIMS {
        let subject = input.subject();
        return Err(input.fail(ErrorKind::TooManyDims { offset: at, subject, found, limit: MAX_DIMS }));
    }
    let mut dims = [0; MAX_DIMS];
    let dims = &mut dims[..found as usize];
    for dim in dims.iter_mut() {
        *dim = input.u64("a dimension")?;
    }
    let at = input.at() as u64;
    let id = input.u32("the type")?;
    let offset = input.u64("the data's offset")?;
    let ty = WeightType::from_id(id).ok_or_else(|| {
        let tensor = shown(input.seen(name.clone()));
        input.fail(ErrorKind::UnknownTensorType { tensor, id, offset: at })
    })?;
    let (shape, bytes) = Shape::new(input.seen(name.clone()), dims, ty).map_err(|kind| input.fail(kind))?;
    Ok(Entry { name, ty, shape, bytes, offset })
}

/// Turns offsets into the data section into offsets into the file, and checks that every tensor's data is
/// aligned, inside the file and its own.
pub(crate) fn place(
    path: &Arc<Path>,
    tensors: &mut [TensorInfo],
    data_start: u64,
    alignment: u64,
    size: u64,
) -> Result<()> {
    for tensor in tensors.iter_mut() {
        let name = || shown(tensor.name.as_bytes());
        let (offset, bytes) = (tensor.offset, tensor.bytes as u64);
        if !offset.is_multiple_of(alignment) {
            return Err(Error::new(path, ErrorKind::Misaligned { tensor: name(), offset, alignment }));
        }
        let room = size.checked_sub(data_start).and_then(|data| data.checked_sub(offset));
        if room.is_none_or(|room| bytes > room) {
            let offset = data_start.saturating_add(offset);
            return Err(Error::new(path, ErrorKind::OutOfFile { tensor: name(), offset, bytes, size }));
        }
        tensor.offset = data_start + offset;
    }
    let mut order: Vec<u32> = (0..tensors.len() as u32).collect();
    order.sort_unstable_by_key(|&number| tensors[number as usize].offset);
    for pair in order.windows(2) {
        let [first, second] = [&tensors[pair[0] as usize], &tensors[pair[1] as usize]];
        let end = first.offset + first.bytes as u64;
        if second.offset < end {
            let [first, second_name] = [first, second].map(|tensor| shown(tensor.name.as_bytes()));
            let kind = ErrorKind::Overlap { first, end, second: second_name, start: second.offset };
            return Err(Error::new(path, kind));
        }
    }
    Ok(())
}
