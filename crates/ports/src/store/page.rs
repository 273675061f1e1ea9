//! Lists in pages, which are bounded in items and in bytes.

/// Which part of a list is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// Where the page before ended; none for the first.
    pub cursor: Option<String>,
    /// How many items at the most.
    pub limit: usize,
    /// The page ends with the item that reaches this many bytes, as they are stored. It has at least one item if there
    /// is one, so it is larger by one item at the most.
    pub max_bytes: usize,
}

impl PageRequest {
    /// The first so many, however large they are.
    pub fn first(limit: usize) -> Self {
        Self { cursor: None, limit, max_bytes: usize::MAX }
    }

    /// The same page, ended by the item that reaches this many bytes.
    pub fn within(self, max_bytes: usize) -> Self {
        Self { max_bytes, ..self }
    }

    /// The page of the same size that starts here.
    pub fn at(self, cursor: String) -> Self {
        Self { cursor: Some(cursor), ..self }
    }
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListPage<T> {
    /// The items.
    pub items: Vec<T>,
    /// Where the next page starts; none if there is none.
    pub next_cursor: Option<String>,
}
