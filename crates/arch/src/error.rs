use wootz_graph::GraphError;

/// Why a model's file does not make a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchError {
    /// A family that wootz does not know.
    #[error("unknown architecture {name:?}; known are {known}")]
    Unknown {
        /// The value of `general.architecture`.
        name: String,
        /// Names of the families known.
        known: String,
    },
    /// Metadata are missing or have the wrong type.
    #[error(transparent)]
    Metadata(#[from] wootz_gguf::Error),
    /// A hyperparameter has a value that the family cannot have.
    #[error("{key} is {found}, expected {expected}")]
    Value {
        /// Metadata key.
        key: String,
        /// The value found.
        found: String,
        /// The values allowed.
        expected: String,
    },
    /// Weights and hyperparameters do not fit.
    #[error(transparent)]
    Graph(#[from] GraphError),
}
