use std::path::PathBuf;

use wootz_graph::{ByteSize, GraphError, RunError};

use crate::constraint::ConstraintError;
use crate::kv::KvError;
use crate::sample::{ParamError, SampleError};

/// Why a model could not be opened or a request not be answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model's file is not sound.
    #[error(transparent)]
    File(#[from] wootz_gguf::Error),
    /// The file does not make a model of its family.
    #[error("{}: {source}", path.display())]
    Model {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: wootz_arch::ArchError,
    },
    /// The file's vocabulary cannot be used.
    #[error("{}: {source}", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: wootz_text::BuildError,
    },
    /// A chat template is wrong, or refuses the messages.
    #[error(transparent)]
    Template(#[from] wootz_text::template::TemplateError),
    /// A plan could not be made.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A step failed on its device.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The KV cache is full.
    #[error(transparent)]
    Kv(#[from] KvError),
    /// A sampling parameter is out of range.
    #[error(transparent)]
    Param(#[from] ParamError),
    /// No token could be sampled.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// The limits on a request's output cannot be kept.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
    /// No device has this name.
    #[error("no device {name:?}; there are {known}")]
    NoDevice {
        /// The name asked for.
        name: String,
        /// The devices of this machine.
        known: String,
    },
    /// A model's layers cannot be split over the devices.
    #[error("the layers cannot be split over the devices: found {found}, expected {expected}")]
    Split {
        /// What was found.
        found: String,
        /// What is needed.
        expected: String,
    },
    /// A request does not fit the context.
    #[error(
        "prompt of {prompt} tokens and {max_tokens} to generate do not fit the context of {context} tokens{hint}"
    )]
    ContextFull {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens to generate at least.
        max_tokens: usize,
        /// Positions of the context.
        context: usize,
        /// What the user can do.
        hint: &'static str,
    },
    /// The caches for the context do not fit the memory.
    #[error(
        "a context of {context} tokens needs {} of cache, {} of memory are free; choose a smaller context",
        ByteSize(*needed),
        ByteSize(*available)
    )]
    ContextMemory {
        /// Positions asked for.
        context: usize,
        /// Bytes needed.
        needed: u64,
        /// Bytes free.
        available: u64,
    },
    /// A request is empty.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// A prompt holds a token that the vocabulary lacks.
    #[error("token {token} is not in the vocabulary of {vocab} tokens")]
    BadToken {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab: u32,
    },
    /// A model is asked for something that it does not give.
    #[error("the model gives {gives}, not {asked}")]
    WrongUse {
        /// What it is made for.
        gives: &'static str,
        /// What was asked for.
        asked: &'static str,
    },
    /// A text is longer than the context.
    #[error("the text of {tokens} tokens is longer than the context of {context} tokens")]
    TextTooLong {
        /// Tokens of the text.
        tokens: usize,
        /// Positions of the context.
        context: usize,
    },
    /// More numbers of an embedding are asked for than it has.
    #[error("{asked} dimensions are asked for, embeddings of the model have {dimensions}")]
    Dimensions {
        /// Dimensions asked for.
        asked: usize,
        /// Dimensions that there are.
        dimensions: usize,
    },
    /// A text is shorter than one chunk of it.
    #[error("the text has {tokens} tokens, at least {chunk} are needed")]
    TextTooShort {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens of a chunk.
        chunk: usize,
    },
    /// Saved state belongs to another model or setting, or is damaged.
    #[error("saved state cannot be used: {0}")]
    State(String),
    /// A saved state cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The engine has stopped: its thread ended.
    #[error("the engine has stopped")]
    Stopped,
    /// A request waits in a queue that is full.
    #[error("{waiting} requests wait already, at most {limit} may")]
    QueueFull {
        /// Requests waiting.
        waiting: usize,
        /// The bound.
        limit: usize,
    },
}
