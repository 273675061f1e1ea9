//! Paginated lists and journal pages, bounded in items and in bytes.

use abide_domain::id::RunId;

use super::{JournalEntry, JournalSeq};

/// The requested part of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalPageRequest {
    /// Only entries of this run; none for all runs.
    pub run: Option<RunId>,
    /// The page begins after this position.
    pub after: JournalSeq,
    /// The maximum number of entries.
    pub limit: usize,
    /// The page ends with the entry at which the stored size of the events reaches this many bytes. It has at least one
    /// entry if there is one, so the limit is exceeded by at most one entry.
    pub max_bytes: usize,
}

/// Consecutive journal entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalPage {
    pub entries: Vec<JournalEntry>,
    /// Whether entries follow the page.
    pub has_more: bool,
}

/// The requested part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// The `next_cursor` of the previous page; none for the first page.
    pub cursor: Option<String>,
    /// The maximum number of items.
    pub limit: usize,
    /// The page ends with the item at which the stored size reaches this many bytes. A non-empty list gives at least
    /// one item, so the limit is exceeded by at most one item.
    pub max_bytes: usize,
}

impl PageRequest {
    /// The first `limit` items, without a limit in bytes.
    pub fn first(limit: usize) -> Self {
        Self { cursor: None, limit, max_bytes: usize::MAX }
    }

    /// The same page with a limit in bytes.
    pub fn with_max_bytes(self, max_bytes: usize) -> Self {
        Self { max_bytes, ..self }
    }

    /// The page of the same size after this cursor.
    pub fn after_cursor(self, cursor: String) -> Self {
        Self { cursor: Some(cursor), ..self }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListPage<T> {
    pub items: Vec<T>,
    /// The cursor of the next page; none on the last page.
    pub next_cursor: Option<String>,
}
