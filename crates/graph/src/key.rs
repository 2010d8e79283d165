/// What a step returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wants {
    /// Logits `[outputs, vocab]`.
    Logits,
    /// Hidden states after the final norm `[outputs, dim]`.
    Hidden,
    /// Scores of the classifier's labels `[outputs, labels]`, before any softmax.
    Scores,
}

/// Which rows of a step are returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outputs {
    /// No row: the step only fills the cache.
    None,
    /// Every row, in order.
    All,
    /// At most so many rows, chosen by the step's inputs.
    Some(u32),
}

/// What a graph's topology and the sizes of its values depend on, next to the model.
///
/// Counts are upper bounds: a step may use fewer tokens than its plan was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GraphKey {
    /// Tokens in the step, at most.
    pub tokens: u32,
    /// Sequences in the step, at most.
    pub seqs: u32,
    /// Rows returned.
    pub outputs: Outputs,
    /// Cached positions of one sequence that attention reads, at most.
    pub kv_span: u32,
    /// What is returned.
    pub wants: Wants,
}

impl GraphKey {
    /// Output rows, at most.
    pub fn output_rows(&self) -> u32 {
        match self.outputs {
            Outputs::None => 0,
            Outputs::All => self.tokens,
            Outputs::Some(n) => n,
        }
    }
}
