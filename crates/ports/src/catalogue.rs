//! Which engines there are on this machine, by the names that people use.

use std::sync::Arc;

use crate::engine::{Engine, Installation};

/// Finds engines. Nobody else knows any of them by name.
pub trait Catalogue: Send + Sync {
    /// The engine of that name and how it is called here; none if there is no such engine or it is switched off.
    fn engine(&self, name: &str) -> Option<Entry>;

    /// All names, in the order in which they are shown.
    fn names(&self) -> Vec<String>;
}

/// An engine and how it is called on this machine.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The adapter.
    pub engine: Arc<dyn Engine>,
    /// How its program is called.
    pub installation: Installation,
}
