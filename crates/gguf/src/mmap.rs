//! The two ways to the bytes of a file: a mapping, and positioned reads.

use std::fs::File;
use std::io;

use memmap2::Mmap;

/// Maps the whole file for reading.
pub(crate) fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the map is read-only and private to this process's view, and all access stays inside its
    // length. What cannot be ruled out is another process that writes to or truncates the file meanwhile;
    // as with every mapped file that is the user's contract, stated at `Model::data`. No decision about
    // memory safety rests on mapped bytes: header and metadata are parsed from an owned copy.
    #[allow(unsafe_code)]
    unsafe {
        Mmap::map(file)
    }
}

/// Fills `buffer` from `offset` on, without a shared cursor, so that threads may read at once.
#[cfg(unix)]
pub(crate) fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, offset)
}

/// Fills `buffer` from `offset` on, without relying on the shared cursor.
#[cfg(windows)]
pub(crate) fn read_exact_at(file: &File, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !buffer.is_empty() {
        match file.seek_read(buffer, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                buffer = &mut buffer[n..];
                offset += n as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
