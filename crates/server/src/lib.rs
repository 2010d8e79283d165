//! An HTTP server for wootz.
//!
//! A [`Server`] offers models by the protocols of OpenAI, Anthropic, llama.cpp and Ollama. Each model in memory has an
//! engine with a thread of its own; tasks of tokio's runtime read requests and write answers. Requests wait in a
//! bounded queue, and a request whose client has gone ends before the next step.
//!
//! The table of endpoints and the tables of their fields check requests, name what is wrong with them, and make the
//! OpenAPI document. What is not supported is refused, and nothing is left out in silence.
//!
//! Each request has a span of `tracing`, and each answer one inside it. Neither prompts nor answers are ever in one.
#![forbid(unsafe_code)]

mod api;
mod budget;
mod chat;
mod common;
mod constrain;
mod error;
mod fields;
mod gbnf;
mod http;
mod metrics;
mod models;
mod openapi;
mod page;
mod presets;
mod run;
mod sampling;
mod schema;
mod server;
mod text;
mod toolcall;

pub use models::{LoadError, Loader, ModelSpec, Preset};
pub use presets::{ModelEntry, Presets, PresetsError};
pub use server::{Server, ServerError, ServerOptions};
