//! A model: one file or a set of shards.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use crate::error::{in_memory, shown};
use crate::shard::{self, Opened, Shard};
use crate::{Error, ErrorKind, Metadata, Result, TensorInfo, split};

/// The piece in which [`Model::copy_tensor`] reads.
const COPY_BYTES: usize = 1 << 20;

/// An open GGUF model, of one file or of several shards.
///
/// Opening reads the header only. Tensor data is reached in two ways: [`data`](Model::data) maps the file on
/// first use, [`read_tensor_at`](Model::read_tensor_at) reads into the caller's memory and maps nothing.
pub struct Model {
    shards: Vec<Shard>,
    meta: Metadata,
    tensors: Vec<TensorInfo>,
    /// Numbers of the tensors, sorted by name.
    sorted: Vec<u32>,
}

impl Model {
    /// Opens a model; any shard of a set opens the set.
    ///
    /// # Errors
    /// Where the file, or another shard, cannot be read or is no sound GGUF file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let opened = Shard::open(path.as_ref())?;
        match Split::of(&opened.meta)? {
            Some(split) => Self::open_set(opened, &split),
            None => Self::assemble(vec![opened]),
        }
    }

    /// A model from the bytes of its one file.
    ///
    /// # Errors
    /// Where the bytes are no sound GGUF file, or one shard of several.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self> {
        let opened = Shard::from_bytes(in_memory(), bytes)?;
        match Split::of(&opened.meta)? {
            Some(split) => Err(opened.meta.fail(ErrorKind::LoneShard { count: split.count })),
            None => Self::assemble(vec![opened]),
        }
    }

    fn open_set(opened: Opened, split: &Split) -> Result<Self> {
        let Split { number, count, .. } = *split;
        let Some(stem) = split::stem(&opened.shard.path, number, count) else {
            let expected = split::suffix(number, count);
            return Err(opened.meta.fail(ErrorKind::ShardName { number, count, expected }));
        };
        let mut shards = Vec::new();
        let mut opened = Some(opened);
        for wanted in 1..=count {
            let shard = match opened.take_if(|_| wanted == number) {
                Some(shard) => shard,
                None => open_shard(&split::path(&stem, wanted, count), wanted, split)?,
            };
            shards.push(shard);
        }
        let architecture =
            |meta: &Metadata| meta.opt_str("general.architecture").map(|a| a.map(str::to_owned));
        let expected = architecture(&shards[0].meta)?;
        for Opened { meta, .. } in &shards[1..] {
            let found = architecture(meta)?;
            if found.is_some() && found != expected {
                let [expected, found] = [expected, found].map(Option::unwrap_or_default);
                let what = "the architecture";
                return Err(meta.fail(ErrorKind::ShardMismatch { what, expected, found }));
            }
        }
        let total: u64 = shards.iter().map(|opened| opened.tensors.len() as u64).sum();
        if let Some(declared) = split.tensors
            && declared != total
        {
            let what = "the number of tensors of all shards";
            let [expected, found] = [declared, total].map(|number| number.to_string());
            return Err(shards[0].meta.fail(ErrorKind::ShardMismatch { what, expected, found }));
        }
        Self::assemble(shards)
    }

    fn assemble(opened: Vec<Opened>) -> Result<Self> {
        let mut model =
            Self { shards: Vec::new(), meta: Metadata::new(), tensors: Vec::new(), sorted: Vec::new() };
        for (number, Opened { shard, meta, mut tensors }) in opened.into_iter().enumerate() {
            if number == 0 {
                (model.meta, model.tensors) = (meta, tensors);
            } else {
                tensors.iter_mut().for_each(|tensor| tensor.shard = number as u16);
                model.tensors.append(&mut tensors);
            }
            model.shards.push(shard);
        }
        let name = |number: u32| &*model.tensors[number as usize].name;
        let mut sorted: Vec<u32> = (0..model.tensors.len() as u32).collect();
        sorted.sort_unstable_by(|&a, &b| name(a).cmp(name(b)).then(a.cmp(&b)));
        if let Some(pair) = sorted.windows(2).find(|pair| name(pair[0]) == name(pair[1])) {
            let second = &model.tensors[pair[1] as usize];
            let kind = ErrorKind::DuplicateTensor { tensor: shown(second.name.as_bytes()) };
            return Err(Error::new(&model.shards[usize::from(second.shard)].path, kind));
        }
        model.sorted = sorted;
        Ok(model)
    }

    /// The metadata; of a set, that of the first shard.
    pub fn meta(&self) -> &Metadata {
        &self.meta
    }

    /// The tensors in the order of the files.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor with this name, where there is one.
    pub fn find(&self, name: &str) -> Option<&TensorInfo> {
        let by_name = |&number: &u32| (*self.tensors[number as usize].name).cmp(name);
        let place = self.sorted.binary_search_by(by_name).ok()?;
        Some(&self.tensors[self.sorted[place] as usize])
    }

    /// The tensor with this name.
    ///
    /// # Errors
    /// Where there is none.
    pub fn tensor(&self, name: &str) -> Result<&TensorInfo> {
        self.find(name)
            .ok_or_else(|| self.meta.fail(ErrorKind::MissingTensor { tensor: shown(name.as_bytes()) }))
    }

    /// The tensor with this name and these dimensions, columns first.
    ///
    /// # Errors
    /// Where there is none, or it has other dimensions; dimensions of 1 at the end make no difference.
    pub fn tensor_with_dims(&self, name: &str, dims: &[usize]) -> Result<&TensorInfo> {
        let tensor = self.tensor(name)?;
        if tensor.has_dims(dims) {
            return Ok(tensor);
        }
        let (expected, found) = (dims.to_vec(), tensor.dims().to_vec());
        let path = &self.shards[usize::from(tensor.shard)].path;
        Err(Error::new(path, ErrorKind::Dims { tensor: shown(name.as_bytes()), expected, found }))
    }

    /// The data of a tensor of this model, in the mapped file.
    ///
    /// The file must not be changed or cut while the model is open: the system then shows the new bytes, or
    /// ends the process when bytes are touched that are gone.
    ///
    /// # Errors
    /// Where the file cannot be mapped, or the tensor is of another model.
    pub fn data(&self, tensor: &TensorInfo) -> Result<&[u8]> {
        let shard = self.shard_of(tensor, 0, tensor.bytes)?;
        let start = tensor.offset as usize;
        Ok(&shard.bytes()?[start..start + tensor.bytes])
    }

    /// Fills `buffer` with the data of a tensor from byte `offset` of the tensor on, mapping nothing.
    ///
    /// Threads may read at the same time. Weights that are packed anew can so be streamed without the file
    /// taking memory beside them.
    ///
    /// # Errors
    /// Where the range is not inside the tensor, or the file cannot be read.
    pub fn read_tensor_at(&self, tensor: &TensorInfo, offset: usize, buffer: &mut [u8]) -> Result<()> {
        let shard = self.shard_of(tensor, offset, buffer.len())?;
        shard.read_exact_at(buffer, tensor.offset + offset as u64)
    }

    /// The data of a tensor in memory of its own, mapping nothing.
    ///
    /// # Errors
    /// Where the file cannot be read, or the tensor is of another model.
    pub fn read_tensor(&self, tensor: &TensorInfo) -> Result<Vec<u8>> {
        self.shard_of(tensor, 0, tensor.bytes)?;
        let mut data = vec![0; tensor.bytes];
        self.read_tensor_at(tensor, 0, &mut data)?;
        Ok(data)
    }

    /// Writes the data of a tensor to `out` piece by piece, mapping nothing.
    ///
    /// # Errors
    /// Where reading or writing fails.
    pub fn copy_tensor(&self, tensor: &TensorInfo, out: &mut dyn Write) -> io::Result<()> {
        self.shard_of(tensor, 0, tensor.bytes).map_err(io::Error::other)?;
        let mut piece = vec![0; tensor.bytes.min(COPY_BYTES)];
        for start in (0..tensor.bytes).step_by(COPY_BYTES) {
            let piece = &mut piece[..(tensor.bytes - start).min(COPY_BYTES)];
            self.read_tensor_at(tensor, start, piece).map_err(io::Error::other)?;
            out.write_all(piece)?;
        }
        Ok(())
    }

    /// Asks the system to load the data of a tensor into the mapping soon; a hint without a wait.
    ///
    /// # Errors
    /// Where the file cannot be mapped, or the tensor is of another model.
    pub fn prefetch(&self, tensor: &TensorInfo) -> Result<()> {
        let shard = self.shard_of(tensor, 0, tensor.bytes)?;
        let start = tensor.offset as usize;
        shard.prefetch(start..start + tensor.bytes)
    }

    /// Number of files.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// The path of file `shard` (from 0, as in [`TensorInfo::shard`]), where there is one.
    pub fn path(&self, shard: usize) -> Option<&Path> {
        Some(&self.shards.get(shard)?.path)
    }

    /// All bytes of file `shard`, mapped as by [`data`](Model::data), for backends that share host memory.
    ///
    /// # Errors
    /// Where the file cannot be mapped.
    pub fn file_data(&self, shard: usize) -> Result<Option<&[u8]>> {
        self.shards.get(shard).map(Shard::bytes).transpose()
    }

    /// The version of the format, of the first file.
    pub fn version(&self) -> u32 {
        self.shards[0].version
    }

    /// The alignment of tensor data in the first file, in bytes.
    pub fn alignment(&self) -> u64 {
        // Checked when the file was opened.
        shard::alignment(&self.meta).unwrap_or(1)
    }

    /// Bytes of all files.
    pub fn file_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.size).sum()
    }

    /// Bytes of the data of all tensors.
    pub fn data_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.bytes as u64).sum()
    }

    /// Elements of all tensors: the number of parameters.
    pub fn elements(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.elements() as u64).sum()
    }

    /// The file of a tensor, once the range is known to be inside the tensor and the tensor inside the file.
    fn shard_of(&self, tensor: &TensorInfo, offset: usize, len: usize) -> Result<&Shard> {
        let shard = self.shards.get(usize::from(tensor.shard));
        let inside = tensor.bytes.checked_sub(offset).is_some_and(|left| len <= left);
        shard.filter(|shard| inside && shard.holds(tensor.offset, tensor.bytes as u64)).ok_or_else(|| {
            let path = shard.map_or(self.meta.path(), |shard| &shard.path);
            let (name, bytes) = (shown(tensor.name.as_bytes()), tensor.bytes as u64);
            let (offset, len) = (offset as u64, len as u64);
            Error::new(path, ErrorKind::Range { tensor: name, offset, len, bytes })
        })
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model")
            .field("path", &self.shards[0].path)
            .field("shards", &self.shards.len())
            .field("keys", &self.meta.len())
            .field("tensors", &self.tensors.len())
            .finish()
    }
}

/// What a shard says about its set.
struct Split {
    /// From 1, as in the names of the files.
    number: u32,
    count: u32,
    /// Tensors in all shards.
    tensors: Option<u64>,
}

impl Split {
    /// The set that a file belongs to; `None` where it is a whole model.
    fn of(meta: &Metadata) -> Result<Option<Self>> {
        let count = meta.opt_u32("split.count")?.unwrap_or(1);
        if count <= 1 {
            return Ok(None);
        }
        let number = meta.u32("split.no")?;
        if number >= count || count > u32::from(u16::MAX) {
            let expected = format!("less than `split.count`, which is {count} and at most {}", u16::MAX);
            let found = number.to_string();
            return Err(meta.fail(ErrorKind::ShardMismatch { what: "`split.no`", expected, found }));
        }
        Ok(Some(Self { number: number + 1, count, tensors: meta.opt_u64("split.tensors.count")? }))
    }
}

fn open_shard(path: &Path, wanted: u32, set: &Split) -> Result<Opened> {
    let opened = Shard::open(path).map_err(|error| match error.kind() {
        ErrorKind::Io { cause, .. } if cause.kind() == io::ErrorKind::NotFound => {
            let kind = ErrorKind::MissingShard { number: wanted, count: set.count };
            Error::new(&path.into(), kind)
        }
        _ => error,
    })?;
    let split = Split::of(&opened.meta)?;
    let found = split.as_ref().map_or([1, 1], |split| [split.number, split.count]);
    let checks = [("its number", wanted, found[0]), ("the number of shards", set.count, found[1])];
    for (what, expected, found) in checks {
        if expected != found {
            let [expected, found] = [expected, found].map(|number| number.to_string());
            return Err(opened.meta.fail(ErrorKind::ShardMismatch { what, expected, found }));
        }
    }
    if let (Some(expected), Some(found)) = (set.tensors, split.and_then(|split| split.tensors))
        && expected != found
    {
        let [expected, found] = [expected, found].map(|number| number.to_string());
        return Err(opened.meta.fail(ErrorKind::ShardMismatch {
            what: "`split.tensors.count`",
            expected,
            found,
        }));
    }
    Ok(opened)
}
