//! Who holds which block of the KV cache.
//!
//! No tensor lives here. A backend holds memory for a number of blocks; this module says which block of which
//! group holds which tokens of which sequence, shares blocks between sequences, and keeps blocks of past
//! sequences for reuse until they are needed.
//!
//! A step of an engine goes like this:
//! 1. [`KvCache::create`] starts a sequence and says how many of its first tokens are already there.
//! 2. [`KvCache::append`] makes room for the tokens of the step.
//! 3. [`KvCache::take_copies`] gives the copies to make, in their order, before the step writes.
//! 4. The step runs; [`KvCache::table`] says where its tokens are.
//! 5. [`KvCache::commit`] says that they were computed: from now on others may reuse them.
//!
//! ```
//! use wootz::kv::{KvCache, KvConfig};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut cache = KvCache::new(KvConfig::full(100))?;
//! let prompt: Vec<u32> = (0..70).collect();
//! for round in 0..2 {
//!     // The last token is left out: its logits are wanted.
//!     let (sequence, found) = cache.create("model", &prompt[..69]);
//!     assert_eq!(found.tokens, [0, 69][round]);
//!     cache.append(sequence, &prompt[found.tokens..])?;
//!     let _copies = cache.take_copies();
//!     assert_eq!(cache.table(sequence, 0)?.blocks.len(), 3);
//!     cache.commit(sequence)?;
//!     cache.free(sequence)?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A block that more than one sequence holds, or that others may find, is never written: the sequence gets a
//! copy of it first. Every operation either succeeds or changes nothing.

mod cache;
mod config;
mod inner;
mod matching;
mod pool;
#[cfg(test)]
mod tests;
mod tree;

pub use cache::{BlockCopy, GroupStats, KvCache, KvStats, SeqId, Table};
pub use config::{ConfigError, DEFAULT_BLOCK_TOKENS, Group, GroupKind, KvConfig, KvError};
pub use matching::PrefixMatch;
