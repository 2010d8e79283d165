//! A cursor over the head of a model file that loads only what the parser asks for.

use std::borrow::Cow;
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::error::shown;
use crate::{Error, ErrorKind, Result, mmap};

/// Metadata and tensor directory together may take this much; positions in them fit 32 bits.
///
/// The largest vocabularies of today take a tenth of it.
pub(crate) const MAX_HEADER: u64 = 256 << 20;

/// The first read; the metadata of a model without a vocabulary fits.
const FIRST_LOAD: usize = 64 << 10;

/// What the parser is at, for messages.
#[derive(Clone, Debug)]
pub(crate) enum Subject {
    Header,
    Entry(u64),
    /// The key's bytes are at this place.
    Key(Range<usize>),
    Tensor(u64),
    /// The tensor name's bytes are at this place.
    TensorName(Range<usize>),
}

pub(crate) struct Input<'a> {
    path: &'a Arc<Path>,
    file: Option<&'a File>,
    loaded: Cow<'a, [u8]>,
    size: u64,
    at: usize,
    pub(crate) subject: Subject,
}

impl<'a> Input<'a> {
    pub(crate) fn of_bytes(path: &'a Arc<Path>, bytes: &'a [u8]) -> Self {
        let size = bytes.len() as u64;
        Self { path, file: None, loaded: Cow::Borrowed(bytes), size, at: 0, subject: Subject::Header }
    }

    pub(crate) fn of_file(path: &'a Arc<Path>, file: &'a File, size: u64) -> Self {
        Self { path, file: Some(file), loaded: Cow::Owned(Vec::new()), size, at: 0, subject: Subject::Header }
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Back to a place that has been read before.
    pub(crate) fn rewind(&mut self, at: usize) {
        self.at = self.at.min(at);
    }

    /// Bytes from the cursor to the end of the file.
    pub(crate) fn left(&self) -> u64 {
        self.size - self.at as u64
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Bytes that have been read before.
    pub(crate) fn seen(&self, range: Range<usize>) -> &[u8] {
        &self.loaded[range]
    }

    /// The next bytes, fewer than `n` only at the end of the file; the cursor stays.
    pub(crate) fn peek(&mut self, n: usize) -> Result<&[u8]> {
        let n = (n as u64).min(self.left()) as usize;
        self.load(self.at + n)?;
        Ok(&self.loaded[self.at..self.at + n])
    }

    /// Moves over `n` bytes and gives their place.
    #[inline]
    pub(crate) fn skip(&mut self, n: u64, what: &'static str) -> Result<Range<usize>> {
        let loaded_ahead = self.loaded.len() - self.at;
        if n > loaded_ahead as u64 || self.at as u64 + n > MAX_HEADER {
            self.reach(n, what)?;
        }
        let range = self.at..self.at + n as usize;
        self.at = range.end;
        Ok(range)
    }

    #[inline]
    pub(crate) fn take<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N]> {
        let range = self.skip(N as u64, what)?;
        let mut out = [0; N];
        out.copy_from_slice(&self.loaded[range]);
        Ok(out)
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.take(what)?))
    }

    #[inline]
    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.take(what)?))
    }

    /// A count of things that take at least `least` bytes each in the rest of the file, up to `limit`.
    pub(crate) fn count(&mut self, what: &'static str, least: u64, limit: u64) -> Result<usize> {
        let offset = self.at as u64;
        let count = self.u64(what)?;
        self.check_count(offset, what, count, least)?;
        if count > limit {
            let subject = self.subject();
            return Err(self.fail(ErrorKind::TooMany { offset, what, subject, count, limit }));
        }
        Ok(count as usize)
    }

    /// Refuses a count, read at `offset`, of more things than the rest of the file holds.
    pub(crate) fn check_count(&self, offset: u64, what: &'static str, count: u64, least: u64) -> Result<()> {
        let left = self.left();
        if count > left / least {
            return Err(self.fail(ErrorKind::Count {
                offset,
                what,
                subject: self.subject(),
                count,
                least,
                left,
            }));
        }
        Ok(())
    }

    /// The first `end` bytes of the file; the read-ahead behind them is given up.
    pub(crate) fn into_start(self, end: usize) -> Vec<u8> {
        match self.loaded {
            Cow::Borrowed(bytes) => bytes[..end].to_vec(),
            Cow::Owned(mut bytes) => {
                bytes.truncate(end);
                // To shrink may copy, so not for a little.
                if bytes.capacity() - bytes.len() > bytes.len() / 8 {
                    bytes.shrink_to_fit();
                }
                bytes
            }
        }
    }

    pub(crate) fn subject(&self) -> String {
        match &self.subject {
            Subject::Header => "the header".to_owned(),
            Subject::Entry(index) => format!("metadata entry {index}"),
            Subject::Key(key) => format!("metadata key `{}`", shown(&self.loaded[key.clone()])),
            Subject::Tensor(index) => format!("tensor {index}"),
            Subject::TensorName(name) => format!("tensor `{}`", shown(&self.loaded[name.clone()])),
        }
    }

    pub(crate) fn fail(&self, kind: ErrorKind) -> Error {
        Error::new(self.path, kind)
    }

    #[cold]
    fn reach(&mut self, n: u64, what: &'static str) -> Result<()> {
        let left = self.left();
        if n > left {
            return Err(self.fail(ErrorKind::Truncated {
                offset: self.at as u64,
                what,
                subject: self.subject(),
                needed: n,
                left,
            }));
        }
        if n > MAX_HEADER - self.at as u64 {
            return Err(self.fail(ErrorKind::HeaderTooLarge { subject: self.subject(), limit: MAX_HEADER }));
        }
        self.load(self.at + n as usize)
    }

    /// Loads at least the first `end` bytes, and always half as many again, so that the work stays linear.
    fn load(&mut self, end: usize) -> Result<()> {
        let have = self.loaded.len();
        let (Some(file), true) = (self.file, end > have) else { return Ok(()) };
        let want = end.max(have + have / 2).max(FIRST_LOAD) as u64;
        let want = want.min(self.size).min(MAX_HEADER.max(end as u64)) as usize;
        let buffer = self.loaded.to_mut();
        buffer.reserve_exact(want - have);
        buffer.resize(want, 0);
        mmap::read_exact_at(file, &mut buffer[have..], have as u64)
            .map_err(|cause| Error::io(self.path, "read the header", cause))
    }
}
