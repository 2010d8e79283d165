//! Local language-model inference: models, contexts and an engine.
//!
//! [`Model`] is an opened file with its tokenizer and chat template. [`Context`] is a model on a device with cached
//! sequences, driven step by step on the caller's thread. [`Engine`] owns a context on a thread of its own and answers
//! requests, several at once.
//!
//! The library never prints, exits or aborts.
//!
//! ```no_run
//! use std::sync::Arc;
//! use wootz::template::{ChatInput, Message};
//! use wootz::{Context, ContextOptions, Engine, EngineOptions, Event, Model, ModelOptions, Request};
//!
//! fn main() -> Result<(), wootz::Error> {
//!     let model = Arc::new(Model::open("model.gguf", &ModelOptions::default())?);
//!     let context = Context::new(model.clone(), &ContextOptions::default(), &mut |_| ())?;
//!     let engine = Engine::start(context, EngineOptions::default())?;
//!     let messages = vec![Message::new("user", "Why does iron rust?")];
//!     let prompt = model.chat_tokens(&ChatInput { messages, add_generation_prompt: true, ..ChatInput::default() })?;
//!     for event in engine.generate(Request::new(prompt).max_tokens(200))? {
//!         match event {
//!             Event::Token(token) => print!("{}", token.text),
//!             Event::Done(finish) => println!("{} ({:.0} tokens/s)", finish.text, finish.timings.generation_speed()),
//!             Event::Failed(error) => return Err(error),
//!             Event::Prompt { .. } => {}
//!         }
//!     }
//!     Ok(())
//! }
//! ```
#![forbid(unsafe_code)]

mod backends;
mod constraint;
mod context;
pub mod embed;
mod engine;
mod error;
mod fit;
pub mod kv;
pub mod measure;
mod model;
mod options;
pub mod perplexity;
mod placement;
mod request;
mod runner;
pub mod sample;
mod selftest;
mod session;

pub use backends::{BackendDevices, devices};
pub use constraint::{Constraint, ConstraintError};
pub use context::{Context, Limits, RowsWanted, SequenceId, StepPart};
pub use embed::{Embedding, Pooling};
pub use engine::{Engine, EngineOptions, EngineStats, Generation, Handle, Sink};
pub use error::Error;
pub use model::{Model, ModelOptions};
pub use options::{ContextOptions, Repack};
pub use request::{Event, Finish, Overflow, Request, StopReason, Timings, TokenEvent};
pub use runner::plan;
pub use selftest::{Tested, selftest};
pub use wootz_gguf as gguf;
pub use wootz_graph::{ByteSize, DeviceInfo, DeviceKind, KvType, MemoryUse};
pub use wootz_text::{Segment, Tokenizer, reasoning, template, tools};
