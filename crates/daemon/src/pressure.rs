//! Too little disk space: below a limit no run starts and no new input is taken.
//!
//! The limit leaves room for what is already at work: its output, its questions, and their answers, which are taken as
//! long as the store takes them. Looking is cheap, so nothing is remembered.

use std::{fmt, sync::Arc};

use abide_ports::space::DiskSpace;

/// How much space must be free, and where.
#[derive(Clone, Debug)]
pub struct SpaceLimit {
    /// Tells how much is free.
    pub space: Option<Arc<dyn DiskSpace>>,
    /// How many bytes must be free.
    pub min_free_bytes: u64,
    /// The home, which has the store and the output of all processes.
    pub home: String,
}

/// A place with too little space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskShortage {
    /// The place.
    pub path: String,
    /// The bytes that are free there.
    pub free_bytes: u64,
    /// The bytes that must be free.
    pub min_free_bytes: u64,
}

impl SpaceLimit {
    /// No limit.
    pub fn none() -> Self {
        Self { space: None, min_free_bytes: 0, home: String::new() }
    }

    /// Whether there is a limit.
    pub(crate) fn is_set(&self) -> bool {
        self.space.is_some() && self.min_free_bytes > 0
    }

    /// The place that has too little space, of the home and this workspace.
    pub fn shortage(&self, workspace: Option<&str>) -> Option<DiskShortage> {
        let space = self.space.as_ref().filter(|_| self.min_free_bytes > 0)?;
        [Some(self.home.as_str()), workspace].into_iter().flatten().find_map(|path| {
            let free_bytes = space.free_bytes(path)?;
            (free_bytes < self.min_free_bytes).then(|| DiskShortage {
                path: path.to_owned(),
                free_bytes,
                min_free_bytes: self.min_free_bytes,
            })
        })
    }
}

impl fmt::Display for DiskShortage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, free_bytes, min_free_bytes } = self;
        write!(
            out,
            "only {free_bytes} bytes are free on the file system of {path}, and limits.min_free_bytes asks for \
             {min_free_bytes}"
        )
    }
}
