//! A program that is started and then left alone: the daemon in the background, a browser.
//!
//! Nobody holds it: it has no keeper, no spool and no exit record. What must survive its starter with its output is
//! started by [`crate::launch`] instead.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Stdio};

use crate::child::command;

/// What is started, where its input comes from and where its output goes. Its environment is ours with these additions.
#[derive(Debug)]
pub struct DetachedCommand<'a> {
    /// The program.
    pub program: &'a OsStr,
    /// Its arguments.
    pub arguments: &'a [OsString],
    /// Variables on top of our own.
    pub env: &'a [(&'a str, &'a OsStr)],
    /// Where it starts.
    pub directory: &'a Path,
    /// Its standard input; nothing unless given.
    pub input: Option<OwnedFd>,
    /// Its standard output; nowhere unless given.
    pub output: Option<OwnedFd>,
    /// Its standard error; nowhere unless given.
    pub errors: Option<OwnedFd>,
}

impl DetachedCommand<'_> {
    /// Starts it. It shares our terminal's session until it makes one of its own.
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
