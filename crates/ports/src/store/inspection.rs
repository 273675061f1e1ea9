//! Flaws of a store as a whole, beyond the rows of single runs.

/// A finding of [`super::StoreMaintenance::inspect`], grouped by the possible remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreFlaw {
    /// Acknowledged input is missing.
    #[error("acknowledged input is missing: {detail}")]
    InputLost { detail: String },
    /// The journal, or the file that holds it, is damaged.
    #[error("{detail}")]
    Journal { detail: String },
    /// Data derived from the journal is wrong and can be rebuilt.
    #[error("{detail}")]
    Derived { detail: String },
    /// Information for the operator; the store is intact.
    #[error("{detail}")]
    Note { detail: String },
}
