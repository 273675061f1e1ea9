//! The contract for content: texts that belong to a question and are too long to be part of it.
//!
//! Content is stored before its question is committed, so a question never refers to missing content. Content is
//! addressed by its SHA-256. Storing it again after a crash is therefore idempotent, and modified content is detected.

use std::{
    fmt::{Debug, Display},
    io::{self, Read},
};

use abide_domain::id::RunId;

/// Stores the content of questions. Calls block.
pub trait ContentStore: Debug + Send + Sync {
    /// Stores a text for a run. It is durable on return. The text is streamed and not held in memory.
    fn put(&self, run: RunId, text: &dyn Display) -> io::Result<StoredContent>;

    /// Opens a stored text after verifying its SHA-256.
    fn open(&self, run: RunId, sha256: &str) -> Result<Box<dyn Read + Send>, ContentError>;
}

/// Size and address of a stored text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredContent {
    pub bytes: u64,
    /// 64 hexadecimal digits in lower case.
    pub sha256: String,
}

/// The reason why content cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ContentError {
    /// It was deleted with the other files of a finished run.
    #[error("the content is no longer kept")]
    Gone,
    /// Its SHA-256 does not match.
    #[error("the content was changed after it was kept")]
    Damaged,
    #[error("the content cannot be read: {0}")]
    Unreadable(#[from] io::Error),
}
