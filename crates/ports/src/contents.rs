//! The contract of contents: texts that belong to a question and are too long to stand in it.
//!
//! A content is kept before the question is committed, so a question never refers to something that is not there. It is
//! found by its SHA-256, so keeping it again after a crash does no harm, and a content that was changed is noticed.

use std::{
    fmt::{Debug, Display},
    io::{self, Read},
};

use abide_domain::id::RunId;

/// Where contents are kept. Calls block for as long as the system takes.
pub trait ContentStore: Debug + Send + Sync {
    /// Keeps a text for a run. It is durable when this returns. The text is not held in memory.
    fn keep(&self, run: RunId, text: &dyn Display) -> io::Result<StoredContent>;

    /// Opens a text that was kept, after it was checked against its SHA-256.
    fn open(&self, run: RunId, sha256: &str) -> Result<Box<dyn Read + Send>, ContentError>;
}

/// A text that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredContent {
    /// Its length.
    pub bytes: u64,
    /// Its SHA-256, 64 hexadecimal digits in lower case.
    pub sha256: String,
}

/// Why a content cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ContentError {
    /// It was removed, as what finished runs leave behind is after a while.
    #[error("the content is no longer kept")]
    Gone,
    /// It is not what was kept.
    #[error("the content was changed after it was kept")]
    Damaged,
    /// The system does not let it be read.
    #[error("the content cannot be read: {0}")]
    Unreadable(#[from] io::Error),
}
