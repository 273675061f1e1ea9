//! Lists in pages.

/// Which part of a list is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Where the page before ended; none for the first.
    pub cursor: Option<String>,
    /// How many items at the most.
    pub limit: usize,
}

impl Page {
    /// The first so many.
    pub fn first(limit: usize) -> Self {
        Self { cursor: None, limit }
    }
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing<T> {
    /// The items.
    pub items: Vec<T>,
    /// Where the next page starts; none if there is none.
    pub next_cursor: Option<String>,
}
