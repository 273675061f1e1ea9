//! Errors of the home and its records. The process, workspace and content ports have error types of their own.

use std::{io, path::PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("{} is a directory that several users share; set ABIDE_HOME to a directory of its own in it", path.display())]
    SharedHome { path: PathBuf },
    #[error("cannot use {} as Abide's home", path.display())]
    HomeUnusable { path: PathBuf, source: io::Error },
    #[error("cannot use {}", folder.display())]
    CrashRecordUnusable { folder: PathBuf, source: io::Error },
}
