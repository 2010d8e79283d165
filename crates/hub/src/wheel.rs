//! Reading model files out of Python wheels, which are zip archives.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use zip::ZipArchive;
use zip::result::ZipError;

use crate::error::{Error, Result, io_error};
use crate::progress::Progress;
use crate::sets;
use crate::store::Partial;

/// An open wheel.
pub(crate) struct Wheel {
    archive: ZipArchive<BufReader<File>>,
    name: String,
}

/// A file inside a wheel.
pub(crate) struct Member {
    index: usize,
    /// The path inside the wheel.
    pub(crate) path: String,
    /// The unpacked size in bytes.
    pub(crate) bytes: u64,
}

impl Wheel {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let file = File::open(path).map_err(io_error("read", path))?;
        match ZipArchive::new(BufReader::new(file)) {
            Ok(archive) => Ok(Self { archive, name }),
            Err(error) => Err(Error::Wheel { wheel: name, reason: error.to_string() }),
        }
    }

    fn members(&mut self) -> Result<Vec<Member>> {
        let Self { archive, name } = self;
        let broken = |error: ZipError| Error::Wheel { wheel: name.clone(), reason: error.to_string() };
        let mut members = Vec::new();
        for index in 0..archive.len() {
            let entry = archive.by_index_raw(index).map_err(broken)?;
            if entry.is_file() {
                let path = entry.name().map_err(broken)?.into_owned();
                members.push(Member { index, path, bytes: entry.size() });
            }
        }
        Ok(members)
    }

    /// The one GGUF file in the wheel.
    pub(crate) fn model(&mut self) -> Result<Member> {
        let mut models = self.members()?;
        models.retain(|member| sets::is_gguf(&member.path));
        match (models.pop(), models.len()) {
            (Some(model), 0) => Ok(model),
            (None, _) => Err(Error::NoModel { place: format!("the wheel {}", self.name) }),
            (Some(model), _) => Err(Error::SeveralModels {
                place: format!("the wheel {}", self.name),
                found: models.into_iter().chain([model]).map(|member| member.path).collect(),
            }),
        }
    }

    /// The piece of a model in a wheel of several: its largest file.
    pub(crate) fn piece(&mut self) -> Result<Member> {
        let largest = self.members()?.into_iter().max_by_key(|member| member.bytes);
        largest.ok_or_else(|| Error::NoModel { place: format!("the wheel {}", self.name) })
    }

    /// Unpacks a file to the end of `out`.
    pub(crate) fn unpack(
        &mut self,
        member: &Member,
        out: &mut Partial<'_>,
        progress: &mut dyn Progress,
    ) -> Result<()> {
        let Self { archive, name } = self;
        let broken = |reason: String| Error::Wheel { wheel: name.clone(), reason };
        let mut entry = archive.by_index(member.index).map_err(|error| broken(error.to_string()))?;
        let mut block = vec![0; 256 << 10];
        let mut unpacked = 0;
        loop {
            if progress.cancelled() {
                return Err(Error::Cancelled);
            }
            // The reader checks the archive's CRC at the end of the file.
            let n = fill(&mut entry, &mut block).map_err(|error| broken(error.to_string()))?;
            if n == 0 {
                break;
            }
            unpacked += n as u64;
            if unpacked > member.bytes {
                return Err(broken(format!(
                    "{} is larger than announced, {} bytes",
                    member.path, member.bytes
                )));
            }
            out.write(&block[..n], Some(member.bytes))?;
            progress.advance(n as u64);
        }
        if unpacked < member.bytes {
            return Err(broken(format!("{} has {unpacked} of {} bytes", member.path, member.bytes)));
        }
        Ok(())
    }
}

/// Reads until the block is full or the end is reached.
fn fill(from: &mut impl Read, block: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < block.len() {
        match from.read(&mut block[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
