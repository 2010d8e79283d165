//! The writer: metadata and tensors into a GGUF file of version 3.

use std::borrow::Cow;
use std::collections::HashSet;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use wootz_quant::WeightType;

use crate::error::{in_memory, shown};
use crate::input::MAX_HEADER;
use crate::shard::{MAGIC, MAX_ENTRIES, MAX_TENSORS, alignment};
use crate::tensor::Shape;
use crate::{AtomicFile, Encode, Error, ErrorKind, Metadata, Result, TensorInfo};

const VERSION: u32 = 3;

/// Collects metadata and tensors, then writes them as one GGUF file.
///
/// The alignment of the data is 32 bytes, or what `general.alignment` in the metadata says.
///
/// ```
/// use wootz_gguf::{Model, Writer};
/// use wootz_quant::WeightType;
///
/// # fn main() -> wootz_gguf::Result<()> {
/// let mut writer = Writer::new();
/// writer.meta.set("general.architecture", "llama")?.set("llama.block_count", 2u32)?;
/// writer.tensor("ones", &[4, 2], WeightType::F32, 1f32.to_le_bytes().repeat(8))?;
/// let model = Model::from_bytes(writer.to_bytes()?)?;
/// assert_eq!(model.tensor("ones")?.rows(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
pub struct Writer<'a> {
    /// The metadata to write.
    pub meta: Metadata,
    tensors: Vec<Pending<'a>>,
    names: HashSet<Box<str>>,
}

struct Pending<'a> {
    name: Box<str>,
    ty: WeightType,
    shape: Shape,
    bytes: usize,
    data: Data<'a>,
}

type Stream<'a> = dyn FnOnce(&mut dyn Write) -> io::Result<()> + 'a;

enum Data<'a> {
    Bytes(Cow<'a, [u8]>),
    Stream(Box<Stream<'a>>),
}

impl<'a> Writer<'a> {
    /// A writer without metadata and tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor whose data is at hand; `dims` are columns first.
    ///
    /// # Errors
    /// Where the name is taken, the dimensions do not suit the type or the data has another length.
    pub fn tensor(
        &mut self,
        name: &str,
        dims: &[usize],
        ty: WeightType,
        data: impl Into<Cow<'a, [u8]>>,
    ) -> Result<&mut Self> {
        let data = data.into();
        let found = data.len();
        let bytes = self.add(name, dims, ty, Data::Bytes(data))?;
        if bytes != found {
            self.tensors.pop();
            self.names.remove(name);
            return Err(data_length(&in_memory(), name, bytes, found as u64));
        }
        Ok(self)
    }

    /// Adds a tensor whose data `stream` writes when the file is written; `dims` are columns first.
    ///
    /// # Errors
    /// Where the name is taken or the dimensions do not suit the type.
    pub fn tensor_stream(
        &mut self,
        name: &str,
        dims: &[usize],
        ty: WeightType,
        stream: impl FnOnce(&mut dyn Write) -> io::Result<()> + 'a,
    ) -> Result<&mut Self> {
        self.add(name, dims, ty, Data::Stream(Box::new(stream)))?;
        Ok(self)
    }

    /// Adds a tensor of a model, streamed when the file is written.
    ///
    /// # Errors
    /// Where the name is taken.
    pub fn tensor_from(&mut self, model: &'a crate::Model, tensor: &'a TensorInfo) -> Result<&mut Self> {
        let copy = move |out: &mut dyn Write| model.copy_tensor(tensor, out);
        self.tensor_stream(&tensor.name, tensor.dims(), tensor.ty, copy)
    }

    fn add(&mut self, name: &str, dims: &[usize], ty: WeightType, data: Data<'a>) -> Result<usize> {
        let fail = |kind| Error::new(&in_memory(), kind);
        let dims: Vec<u64> = dims.iter().map(|&dim| dim as u64).collect();
        let (shape, bytes) = Shape::new(name.as_bytes(), &dims, ty).map_err(fail)?;
        if !self.names.insert(name.into()) {
            return Err(fail(ErrorKind::DuplicateTensor { tensor: shown(name.as_bytes()) }));
        }
        self.tensors.push(Pending { name: name.into(), ty, shape, bytes, data });
        Ok(bytes)
    }

    /// Writes the file to `out`.
    ///
    /// # Errors
    /// Where `general.alignment` is invalid, a stream gives too few or too many bytes, or `out` fails.
    pub fn write_to(self, out: &mut dyn Write) -> Result<()> {
        self.write(out, &in_memory())
    }

    /// The file as bytes.
    ///
    /// # Errors
    /// As [`write_to`](Self::write_to).
    pub fn to_bytes(self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.write_to(&mut bytes)?;
        Ok(bytes)
    }

    /// Writes the file at `path`, which holds the old content or the whole new one at any moment.
    ///
    /// # Errors
    /// As [`write_to`](Self::write_to), or where the file cannot be made.
    pub fn write_file(self, path: impl AsRef<Path>) -> Result<()> {
        let mut file = AtomicFile::create(path.as_ref())?;
        self.write(&mut file, &Arc::from(path.as_ref()))?;
        file.commit()
    }

    fn write(self, out: &mut dyn Write, path: &Arc<Path>) -> Result<()> {
        let failed = |cause| Error::io(path, "write the model", cause);
        let alignment = alignment(&self.meta)?;
        let head = self.head(alignment);
        check_limits(head.len(), self.meta.len(), self.tensors.len())
            .map_err(|kind| Error::new(path, kind))?;
        out.write_all(&head).map_err(failed)?;
        if !self.tensors.is_empty() {
            pad(out, head.len() as u64, alignment).map_err(failed)?;
        }
        for tensor in self.tensors {
            let bytes = tensor.bytes as u64;
            let found = match tensor.data {
                Data::Bytes(data) => out.write_all(&data).map(|()| bytes),
                Data::Stream(stream) => {
                    let mut counted = Counted { out: &mut *out, limit: bytes, written: 0 };
                    match stream(&mut counted) {
                        // Bytes too many stop the stream with an error of its own making.
                        Err(_) if counted.written > bytes => Ok(counted.written),
                        result => result.map(|()| counted.written),
                    }
                }
            };
            let found = found.map_err(failed)?;
            if found != bytes {
                return Err(data_length(path, &tensor.name, tensor.bytes, found));
            }
            pad(out, bytes, alignment).map_err(failed)?;
        }
        out.flush().map_err(failed)
    }

    /// Everything before the data, without padding.
    fn head(&self, alignment: u64) -> Vec<u8> {
        let mut head = Vec::with_capacity(self.meta.encoded().len() + 64 * (self.tensors.len() + 1));
        head.extend_from_slice(&MAGIC);
        VERSION.encode(&mut head);
        (self.tensors.len() as u64).encode(&mut head);
        (self.meta.len() as u64).encode(&mut head);
        head.extend_from_slice(self.meta.encoded());
        let mut offset = 0u64;
        for tensor in &self.tensors {
            let dims = tensor.shape.dims();
            tensor.name.encode(&mut head);
            (dims.len() as u32).encode(&mut head);
            dims.iter().for_each(|&dim| (dim as u64).encode(&mut head));
            tensor.ty.id().encode(&mut head);
            offset.encode(&mut head);
            offset += (tensor.bytes as u64).next_multiple_of(alignment);
        }
        head
    }
}

/// Nothing is written that the reader would refuse.
fn check_limits(head: usize, entries: usize, tensors: usize) -> Result<(), ErrorKind> {
    let subject = || "the header".to_owned();
    for (offset, what, count, limit) in
        [(8, "tensors", tensors as u64, MAX_TENSORS), (16, "metadata entries", entries as u64, MAX_ENTRIES)]
    {
        if count > limit {
            return Err(ErrorKind::TooMany { offset, what, subject: subject(), count, limit });
        }
    }
    if head as u64 > MAX_HEADER {
        return Err(ErrorKind::HeaderTooLarge { subject: subject(), limit: MAX_HEADER });
    }
    Ok(())
}

fn data_length(path: &Arc<Path>, name: &str, expected: usize, found: u64) -> Error {
    let tensor = shown(name.as_bytes());
    Error::new(path, ErrorKind::DataLength { tensor, expected: expected as u64, found })
}

/// Zeros from `written` bytes to the next multiple of the alignment.
fn pad(out: &mut dyn Write, written: u64, alignment: u64) -> io::Result<()> {
    let mut left = (written.next_multiple_of(alignment) - written) as usize;
    while left > 0 {
        let zeros = [0; 4096];
        let piece = &zeros[..left.min(zeros.len())];
        out.write_all(piece)?;
        left -= piece.len();
    }
    Ok(())
}

/// Passes on at most `limit` bytes; the first one more is an error.
struct Counted<'a> {
    out: &'a mut dyn Write,
    limit: u64,
    written: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.limit.saturating_sub(self.written) {
            self.written += bytes.len() as u64;
            return Err(io::Error::other("more data than the tensor takes"));
        }
        let written = self.out.write(bytes)?;
        self.written += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
