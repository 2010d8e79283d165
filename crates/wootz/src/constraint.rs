//! Limits on the text that a request may generate.

use std::fmt::Debug;

use crate::sample::BitMask;

/// Decides which tokens may come next in the answer of one request: a grammar, a schema, a budget.
///
/// For each token the engine calls [`prepare`](Self::prepare) beside the device's work, then
/// [`mask`](Self::mask), then [`accept`](Self::accept) with the token picked.
pub trait Constraint: Send + Debug {
    /// Finds out which tokens may come next.
    ///
    /// # Errors
    /// The constraint cannot go on, such as a grammar that has become too complex.
    fn prepare(&mut self) -> Result<(), ConstraintError>;

    /// The tokens found by the last [`prepare`](Self::prepare); `None` allows all of them.
    fn mask(&self) -> Option<BitMask<'_>>;

    /// Takes note of the token that was picked, which may be one that ends the text.
    ///
    /// # Errors
    /// The token was not allowed.
    fn accept(&mut self, token: u32) -> Result<(), ConstraintError>;

    /// Whether the text is complete, so that nothing may follow.
    fn is_complete(&self) -> bool;
}

/// Why a constraint cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the limits set on the output cannot be kept: {0}")]
pub struct ConstraintError(pub String);
