//! Flaws of a store as a whole, beyond the rows of single runs.

/// A finding of [`super::StoreMaintenance::inspect`], grouped by the possible remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreFlaw {
    /// Acknowledged input is missing.
    #[error("acknowledged input is missing: {what}")]
    Lost { what: String },
    /// The journal, or the file that holds it, is damaged.
    #[error("{what}")]
    Journal { what: String },
    /// Data derived from the journal is wrong and can be rebuilt.
    #[error("{what}")]
    Derived { what: String },
    /// Information for the operator; the store is intact.
    #[error("{what}")]
    Note { what: String },
}
