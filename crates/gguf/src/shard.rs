//! One file of a model: its header, and the ways to its data.

use std::fs::{self, File};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use memmap2::Mmap;

use crate::input::{Input, Subject};
use crate::metadata::{Index, LEAST_ENTRY};
use crate::tensor::LEAST_TENSOR;
use crate::{Error, ErrorKind, Metadata, Result, TensorInfo, mmap, sniff, tensor};

pub(crate) const MAGIC: [u8; 4] = *b"GGUF";
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";
const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_ALIGNMENT: u64 = 1 << 30;

/// A hundred times what models have; what is larger is damage, and not worth the memory of an index.
pub(crate) const MAX_ENTRIES: u64 = 1 << 16;
pub(crate) const MAX_TENSORS: u64 = 1 << 20;

pub(crate) struct Shard {
    pub(crate) path: Arc<Path>,
    pub(crate) version: u32,
    /// Bytes of the file.
    pub(crate) size: u64,
    source: Source,
}

enum Source {
    Bytes(Vec<u8>),
    File { file: File, map: OnceLock<Mmap> },
}

/// A file just opened, and what its header says.
pub(crate) struct Opened {
    pub(crate) shard: Shard,
    pub(crate) meta: Metadata,
    pub(crate) tensors: Vec<TensorInfo>,
}

struct Head {
    version: u32,
    meta: Metadata,
    tensors: Vec<TensorInfo>,
}

impl Shard {
    pub(crate) fn open(path: &Path) -> Result<Opened> {
        let path: Arc<Path> = Arc::from(path);
        // Asked before opening: to open a pipe would wait for its other end.
        let about = fs::metadata(&path).map_err(|cause| Error::io(&path, "open the file", cause))?;
        if !about.is_file() {
            let what = if about.is_dir() { "a folder" } else { "a pipe or device" };
            return Err(Error::new(&path, ErrorKind::NotAFile { what }));
        }
        let file = File::open(&path).map_err(|cause| Error::io(&path, "open the file", cause))?;
        let about = file.metadata().map_err(|cause| Error::io(&path, "ask for the file's size", cause))?;
        let size = about.len();
        let Head { version, meta, tensors } = read_head(&path, Input::of_file(&path, &file, size))?;
        let source = Source::File { file, map: OnceLock::new() };
        Ok(Opened { shard: Self { path, version, size, source }, meta, tensors })
    }

    pub(crate) fn from_bytes(path: Arc<Path>, bytes: Vec<u8>) -> Result<Opened> {
        let size = bytes.len() as u64;
        let Head { version, meta, tensors } = read_head(&path, Input::of_bytes(&path, &bytes))?;
        let source = Source::Bytes(bytes);
        Ok(Opened { shard: Self { path, version, size, source }, meta, tensors })
    }

    /// Whether `bytes` bytes from `offset` on are inside the file.
    pub(crate) fn holds(&self, offset: u64, bytes: u64) -> bool {
        self.size.checked_sub(offset).is_some_and(|left| bytes <= left)
    }

    /// All bytes of the file; maps it on first use.
    pub(crate) fn bytes(&self) -> Result<&[u8]> {
        match &self.source {
            Source::Bytes(bytes) => Ok(bytes),
            Source::File { file, map } => {
                if let Some(map) = map.get() {
                    return Ok(map);
                }
                let new = mmap::map(file).map_err(|cause| Error::io(&self.path, "map the file", cause))?;
                let now = new.len() as u64;
                if now < self.size {
                    return Err(Error::new(&self.path, ErrorKind::Changed { before: self.size, now }));
                }
                Ok(map.get_or_init(|| new))
            }
        }
    }

    /// Fills `buffer` from `offset` on without touching the mapping.
    pub(crate) fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        match &self.source {
            Source::Bytes(bytes) => {
                // Callers stay inside a tensor, and tensors inside the file.
                let start = offset as usize;
                buffer.copy_from_slice(&bytes[start..start + buffer.len()]);
                Ok(())
            }
            Source::File { file, .. } => mmap::read_exact_at(file, buffer, offset)
                .map_err(|cause| Error::io(&self.path, "read tensor data", cause)),
        }
    }

    /// Asks the system to load a range of the mapping soon.
    pub(crate) fn prefetch(&self, range: Range<usize>) -> Result<()> {
        self.bytes()?;
        #[cfg(unix)]
        if let Source::File { map, .. } = &self.source
            && let Some(map) = map.get()
        {
            // Only a hint: a system that refuses it loads the pages when they are touched.
            let _ = map.advise_range(memmap2::Advice::WillNeed, range.start, range.len());
        }
        #[cfg(not(unix))]
        let _ = range;
        Ok(())
    }
}

fn read_head(path: &Arc<Path>, mut input: Input<'_>) -> Result<Head> {
    let version = read_version(&mut input)?;
    // The tensor count comes first in the file, but its bound holds behind the metadata count too.
    let tensor_count = input.count("tensors", LEAST_TENSOR, MAX_TENSORS)?;
    let entry_count = input.count("metadata entries", LEAST_ENTRY, MAX_ENTRIES)?;
    let start = input.at();
    let index = Index::read(&mut input, entry_count)?;
    let end = input.at();
    input.subject = Subject::Header;
    input.check_count(8, "tensors", tensor_count as u64, LEAST_TENSOR)?;
    let mut tensors = tensor::read_directory(&mut input, tensor_count)?;
    let (data_start, size) = (input.at() as u64, input.size());
    let meta = Metadata::from_index(path, input.into_start(end), start, index)?;
    let alignment = alignment(&meta)?;
    tensor::place(path, &mut tensors, data_start.next_multiple_of(alignment), alignment, size)?;
    Ok(Head { version, meta, tensors })
}

fn read_version(input: &mut Input<'_>) -> Result<u32> {
    let start = input.peek(512)?;
    if start.get(..4) != Some(&MAGIC) && start != &MAGIC[..start.len().min(4)] || start.is_empty() {
        let (guess, start) = (sniff::guess(start), start[..start.len().min(8)].to_vec());
        return Err(input.fail(ErrorKind::NotGguf { start, guess }));
    }
    input.skip(4, "the magic")?;
    match input.u32("the version")? {
        version @ (2 | 3) => Ok(version),
        // Versions are small: only in the other byte order is the lower half empty.
        found if found != 0 && found & 0xffff == 0 => {
            Err(input.fail(ErrorKind::BigEndian { version: found.swap_bytes() }))
        }
        found => Err(input.fail(ErrorKind::Version { found })),
    }
}

/// The alignment of tensor data that the metadata asks for, in bytes.
pub(crate) fn alignment(meta: &Metadata) -> Result<u64> {
    let found = meta.opt_u64(ALIGNMENT_KEY)?.unwrap_or(DEFAULT_ALIGNMENT);
    if !found.is_power_of_two() || !(8..=MAX_ALIGNMENT).contains(&found) {
        return Err(meta.fail(ErrorKind::Alignment { found, limit: MAX_ALIGNMENT }));
    }
    Ok(found)
}
