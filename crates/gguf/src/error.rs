//! What can be wrong with a model file, a key or a tensor.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wootz_quant::WeightType;

/// The result of anything that reads or writes GGUF.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure, and the file it belongs to; its text is one line that a user can act on.
#[derive(Debug)]
pub struct Error {
    path: Arc<Path>,
    kind: Box<ErrorKind>,
}

impl Error {
    pub(crate) fn new(path: &Arc<Path>, kind: ErrorKind) -> Self {
        Self { path: path.clone(), kind: Box::new(kind) }
    }

    pub(crate) fn io(path: &Arc<Path>, action: &'static str, cause: io::Error) -> Self {
        Self::new(path, ErrorKind::Io { action, cause })
    }

    /// The file that is at fault.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is wrong with it.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.kind)
    }
}

impl std::error::Error for Error {}

/// What is wrong; offsets are in bytes from the start of the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The operating system refused.
    #[error("cannot {action}: {cause}")]
    Io {
        /// What was tried, such as `open the file`.
        action: &'static str,
        /// The system's reason.
        cause: io::Error,
    },
    /// The file starts like something else.
    #[error("not a GGUF file: {}", describe_start(start, *guess))]
    NotGguf {
        /// The first bytes, eight at most.
        start: Vec<u8>,
        /// The format that they suggest.
        guess: Option<&'static str>,
    },
    /// A big-endian GGUF file.
    #[error(
        "a big-endian GGUF file (version {version}); convert it to little endian, for example with gguf-convert-endian of the gguf package"
    )]
    BigEndian {
        /// The version, read in the file's byte order.
        version: u32,
    },
    /// A version of the format that this reader does not know.
    #[error("GGUF version {found} is not supported, only 2 and 3 are; {}", if *found < 2 { "the file is from 2023, convert the model again" } else { "the file is newer than this program" })]
    Version {
        /// The version in the file.
        found: u32,
    },
    /// The file ends too early.
    #[error(
        "truncated: {what} of {subject} at offset {offset} needs {needed} bytes, {left} are left (an incomplete download?)"
    )]
    Truncated {
        /// Where the missing part starts.
        offset: u64,
        /// What was being read.
        what: &'static str,
        /// Whose part it is: the header, a key, a tensor.
        subject: String,
        /// Bytes that the part takes.
        needed: u64,
        /// Bytes from `offset` to the end of the file.
        left: u64,
    },
    /// A count that the rest of the file cannot hold.
    #[error(
        "{subject} declares {count} {what} at offset {offset}; that takes at least {least} bytes each, and {left} bytes are left"
    )]
    Count {
        /// Where the count stands.
        offset: u64,
        /// What is counted.
        what: &'static str,
        /// Whose count it is.
        subject: String,
        /// The count in the file.
        count: u64,
        /// The fewest bytes that one of them takes.
        least: u64,
        /// Bytes after the count.
        left: u64,
    },
    /// More of something than any model has.
    #[error(
        "{subject} declares {count} {what} at offset {offset}; no model has more than {limit}, the file is damaged"
    )]
    TooMany {
        /// Where the count stands.
        offset: u64,
        /// What is counted.
        what: &'static str,
        /// Whose count it is.
        subject: String,
        /// The count in the file.
        count: u64,
        /// The most that is accepted.
        limit: u64,
    },
    /// The metadata and the tensor directory take more than this reader accepts.
    #[error("the header reaches beyond {limit} bytes at {subject}; no model needs that, the file is damaged")]
    HeaderTooLarge {
        /// Whose part crosses the limit.
        subject: String,
        /// The limit in bytes.
        limit: u64,
    },
    /// A value type that GGUF does not have.
    #[error("{subject} has the unknown value type {found} at offset {offset}; known are 0 to 12")]
    UnknownValueType {
        /// Where the type stands.
        offset: u64,
        /// Whose type it is.
        subject: String,
        /// The id in the file.
        found: u32,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("{subject} has the boolean {found} at offset {offset}; only 0 and 1 are valid")]
    InvalidBool {
        /// Where the byte stands.
        offset: u64,
        /// Whose value it is.
        subject: String,
        /// The byte.
        found: u8,
    },
    /// Arrays in arrays in arrays, without end.
    #[error("{subject} nests arrays more than {limit} deep at offset {offset}")]
    TooDeep {
        /// Where the array stands that is one too deep.
        offset: u64,
        /// Whose value it is.
        subject: String,
        /// The deepest nesting that is accepted.
        limit: usize,
    },
    /// A key that is longer than the format allows.
    #[error("{subject} has a key of {found} bytes; the format allows {limit}")]
    KeyTooLong {
        /// Whose key it is.
        subject: String,
        /// Its length in bytes.
        found: u64,
        /// The most that is allowed.
        limit: u64,
    },
    /// A key or tensor name that is not UTF-8.
    #[error("the name of {subject} at offset {offset} is not UTF-8")]
    NameNotUtf8 {
        /// Where the name starts.
        offset: u64,
        /// Whose name it is.
        subject: String,
    },
    /// Two entries with one key.
    #[error("metadata key `{key}` occurs twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A key that is needed and not there.
    #[error("metadata key `{key}` is missing (expected {expected})")]
    MissingKey {
        /// The key.
        key: String,
        /// The type that was asked for.
        expected: &'static str,
    },
    /// A key whose value has another type.
    #[error("metadata key `{key}` should be {expected}, but is {found}")]
    WrongType {
        /// The key.
        key: String,
        /// The type that was asked for.
        expected: &'static str,
        /// The type in the file.
        found: String,
    },
    /// A number that does not fit the type that was asked for.
    #[error("metadata key `{key}` should be {expected}, but holds {found}")]
    OutOfRange {
        /// The key.
        key: String,
        /// The type that was asked for.
        expected: &'static str,
        /// The number in the file.
        found: String,
    },
    /// A string that is not UTF-8 where text is needed.
    #[error("metadata key `{key}` is not UTF-8: byte {valid_up_to} starts no character")]
    TextNotUtf8 {
        /// The key.
        key: String,
        /// Bytes before the first invalid one.
        valid_up_to: usize,
    },
    /// An array with another length than the model needs.
    #[error("metadata key `{key}` should have {expected} elements, but has {found}")]
    ArrayLength {
        /// The key.
        key: String,
        /// Elements needed.
        expected: usize,
        /// Elements in the file.
        found: usize,
    },
    /// An alignment that is no power of two of 8 or more.
    #[error("`general.alignment` is {found}; it must be a power of two, at least 8 and at most {limit}")]
    Alignment {
        /// The value in the file.
        found: u64,
        /// The largest that is accepted.
        limit: u64,
    },
    /// A tensor of a type that is not known.
    #[error("tensor `{tensor}` has the unknown type {id} at offset {offset}{}", withdrawn(*id))]
    UnknownTensorType {
        /// The tensor.
        tensor: String,
        /// The id in the file.
        id: u32,
        /// Where it stands.
        offset: u64,
    },
    /// A tensor with more dimensions than there are.
    #[error("{subject} has {found} dimensions at offset {offset}; at most {limit} are possible")]
    TooManyDims {
        /// Where the number stands.
        offset: u64,
        /// Which tensor.
        subject: String,
        /// The number in the file.
        found: u32,
        /// The most that is possible.
        limit: usize,
    },
    /// A tensor with no elements.
    #[error("tensor `{tensor}` has the dimensions {dims:?}; none may be 0")]
    ZeroDim {
        /// The tensor.
        tensor: String,
        /// Its dimensions, columns first.
        dims: Vec<u64>,
    },
    /// A tensor whose size no address space holds.
    #[error("tensor `{tensor}` with the dimensions {dims:?} of {ty} is too large for this machine")]
    TooLarge {
        /// The tensor.
        tensor: String,
        /// Its dimensions, columns first.
        dims: Vec<u64>,
        /// Its type.
        ty: WeightType,
    },
    /// A row that is not made of whole blocks.
    #[error("tensor `{tensor}` has rows of {cols} elements; {ty} needs a multiple of {block}")]
    PartialBlock {
        /// The tensor.
        tensor: String,
        /// Its type.
        ty: WeightType,
        /// Elements in a row.
        cols: u64,
        /// Elements in a block.
        block: usize,
    },
    /// Two tensors with one name.
    #[error("tensor `{tensor}` occurs twice")]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
    },
    /// Tensor data that does not start at the file's alignment.
    #[error(
        "the data of tensor `{tensor}` starts {offset} bytes into the data, which is no multiple of the alignment {alignment}"
    )]
    Misaligned {
        /// The tensor.
        tensor: String,
        /// Offset from the start of the data section.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// Tensor data that reaches beyond the file.
    #[error(
        "truncated: the data of tensor `{tensor}` takes {bytes} bytes from offset {offset}, but the file ends at {size} (an incomplete download?)"
    )]
    OutOfFile {
        /// The tensor.
        tensor: String,
        /// Where its data starts.
        offset: u64,
        /// Bytes that it takes.
        bytes: u64,
        /// Bytes in the file.
        size: u64,
    },
    /// Two tensors that share bytes.
    #[error(
        "the data of tensor `{second}` starts at offset {start}, inside that of tensor `{first}`, which ends at {end}"
    )]
    Overlap {
        /// The tensor that starts first.
        first: String,
        /// Where its data ends.
        end: u64,
        /// The other tensor.
        second: String,
        /// Where its data starts.
        start: u64,
    },
    /// A tensor that is needed and not there.
    #[error("tensor `{tensor}` is missing")]
    MissingTensor {
        /// The tensor.
        tensor: String,
    },
    /// A tensor of another shape than the model needs.
    #[error("tensor `{tensor}` should have the dimensions {expected:?}, but has {found:?} (columns first)")]
    Dims {
        /// The tensor.
        tensor: String,
        /// Dimensions needed.
        expected: Vec<usize>,
        /// Dimensions in the file.
        found: Vec<usize>,
    },
    /// A read beyond the end of a tensor, or a tensor of another model.
    #[error(
        "cannot read {len} bytes at offset {offset} of tensor `{tensor}`, which has {bytes} in this model"
    )]
    Range {
        /// The tensor.
        tensor: String,
        /// First byte, from the start of the tensor.
        offset: u64,
        /// Bytes wanted.
        len: u64,
        /// Bytes in the tensor.
        bytes: u64,
    },
    /// A folder, pipe or device in the place of a file.
    #[error("not a file but {what}")]
    NotAFile {
        /// What it is.
        what: &'static str,
    },
    /// The file has become shorter since it was opened.
    #[error(
        "the file had {before} bytes when it was opened and has {now} now; do not write to a model in use"
    )]
    Changed {
        /// Bytes when it was opened.
        before: u64,
        /// Bytes now.
        now: u64,
    },
    /// A shard of a set that is not there.
    #[error("shard {number} of {count} is missing; all shards must be in one folder")]
    MissingShard {
        /// The shard's number, from 1.
        number: u32,
        /// Shards in the set.
        count: u32,
    },
    /// A shard whose name does not say which it is, so that the others cannot be found.
    #[error("holds shard {number} of {count}, so its name must end in `{expected}`")]
    ShardName {
        /// The shard's number, from 1.
        number: u32,
        /// Shards in the set.
        count: u32,
        /// How the name must end.
        expected: String,
    },
    /// A shard that says something else than the set it is in.
    #[error("does not belong to its set: {what} is {found}, expected {expected}")]
    ShardMismatch {
        /// What differs.
        what: &'static str,
        /// What the set needs.
        expected: String,
        /// What the shard says.
        found: String,
    },
    /// One shard alone, given as bytes.
    #[error("is one of {count} shards; open it by its path, so that the others can be found")]
    LoneShard {
        /// Shards in the set.
        count: u32,
    },
    /// Data given to the writer that has another length than the tensor.
    #[error("tensor `{tensor}` takes {expected} bytes of data, but {found} were written")]
    DataLength {
        /// The tensor.
        tensor: String,
        /// Bytes that the tensor takes.
        expected: u64,
        /// Bytes that came, at least.
        found: u64,
    },
}

/// Foreign text in a form that is safe in a terminal and not too long for one line.
pub(crate) fn shown(bytes: &[u8]) -> String {
    const LIMIT: usize = 96;
    let head = &bytes[..bytes.len().min(LIMIT)];
    let mut text: String = String::from_utf8_lossy(head).chars().flat_map(char::escape_debug).collect();
    if bytes.len() > LIMIT {
        text.push('…');
    }
    text
}

fn describe_start(start: &[u8], guess: Option<&str>) -> String {
    if start.is_empty() {
        return "it is empty".to_owned();
    }
    let hex: Vec<String> = start.iter().map(|byte| format!("{byte:02x}")).collect();
    let guess = guess.map_or_else(String::new, |guess| format!(" ({guess}?)"));
    format!("starts with {}{guess}", hex.join(" "))
}

fn withdrawn(id: u32) -> &'static str {
    match id {
        4 | 5 => " (Q4_2 and Q4_3 were withdrawn in 2023; convert the model again)",
        31..=33 | 36..=38 => {
            " (a repacked Q4_0 or IQ4_NL for one kind of CPU, withdrawn in 2024; use the plain type)"
        }
        _ => "",
    }
}

/// The path shown for models and metadata that come from no file.
pub(crate) fn in_memory() -> Arc<Path> {
    Arc::from(PathBuf::from("(in memory)"))
}
