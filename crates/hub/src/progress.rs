//! What a transfer tells its caller.

/// Hears how far a transfer is, and may stop it.
///
/// `()` implements it and hears nothing.
pub trait Progress {
    /// A transfer of `total` bytes starts, or starts again from nothing.
    ///
    /// `total` is `None` when the size is not known beforehand.
    fn begin(&mut self, name: &str, total: Option<u64>);

    /// `bytes` more bytes of the current transfer are there.
    ///
    /// What an earlier, interrupted transfer left counts too, right after
    /// [`begin`](Self::begin).
    fn advance(&mut self, bytes: u64);

    /// The current transfer is complete.
    fn finish(&mut self);

    /// Nothing moves for now, for the given reason (one line, no full stop).
    fn waiting(&mut self, _reason: &str) {}

    /// Whether to stop; asked several times a second while something is going on.
    fn cancelled(&mut self) -> bool {
        false
    }
}

impl Progress for () {
    fn begin(&mut self, _name: &str, _total: Option<u64>) {}
    fn advance(&mut self, _bytes: u64) {}
    fn finish(&mut self) {}
}
