//! Starts a program and does not supervise it, for example the daemon in the background or a browser.
//!
//! The program has no keeper, no spool and no exit record. A program whose output must survive its starter is started
//! by [`crate::launch`].

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Stdio};

use crate::child::command;

/// A program to start without supervision. It inherits the environment of this process, extended by `env`.
#[derive(Debug)]
pub struct DetachedCommand<'a> {
    pub program: &'a OsStr,
    pub arguments: &'a [OsString],
    /// Added to the environment of this process.
    pub env: &'a [(&'a str, &'a OsStr)],
    /// The working directory of the program.
    pub directory: &'a Path,
    /// Standard input; `/dev/null` by default.
    pub input: Option<OwnedFd>,
    /// Standard output; `/dev/null` by default.
    pub output: Option<OwnedFd>,
    /// Standard error; `/dev/null` by default.
    pub errors: Option<OwnedFd>,
}

impl DetachedCommand<'_> {
    /// Starts the program. It shares the terminal session of this process until it creates its own.
    pub fn start(self) -> io::Result<Child> {
        let to = |fd: Option<OwnedFd>| fd.map_or_else(Stdio::null, Stdio::from);
        command(self.program)
            .args(self.arguments)
            .envs(self.env.iter().copied())
            .current_dir(self.directory)
            .stdin(to(self.input))
            .stdout(to(self.output))
            .stderr(to(self.errors))
            .spawn()
    }
}
