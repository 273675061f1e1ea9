//! What a store finds wrong with itself, beyond what the rows of single runs say.

/// A finding of [`super::StoreMaintenance::inspect`], by what can be done about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreFlaw {
    /// Acknowledged input is missing.
    #[error("acknowledged input is missing: {what}")]
    Lost {
        /// What was found.
        what: String,
    },
    /// The journal, or the file that holds it, is damaged.
    #[error("{what}")]
    Journal {
        /// What was found.
        what: String,
    },
    /// Something that is derived from the journal is wrong and can be derived anew.
    #[error("{what}")]
    Derived {
        /// What was found.
        what: String,
    },
    /// Nothing is wrong, but an operator should know.
    #[error("{what}")]
    Note {
        /// What.
        what: String,
    },
}
