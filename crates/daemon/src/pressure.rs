//! The limit of disk space below which no run starts and no new input is accepted.
//!
//! The limit leaves room for running turns: their output, questions and answers, which are accepted as long as the
//! store accepts them. The check is cheap, so its result is not cached.

use std::{fmt, sync::Arc};

use abide_ports::space::DiskSpace;

/// The minimum of free disk space.
#[derive(Clone, Debug)]
pub struct SpaceLimit {
    /// Measures free space; None disables the limit.
    pub space: Option<Arc<dyn DiskSpace>>,
    /// 0 disables the limit.
    pub min_free_bytes: u64,
    /// The home, which contains the store and the output of all processes.
    pub home: String,
}

/// A path with too little disk space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskShortage {
    pub path: String,
    pub free_bytes: u64,
    /// The configured limit.
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

    /// The path with too little disk space, of the home and this workspace.
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
