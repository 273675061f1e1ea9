//! What people find about a session in the state folder: `sessions/<id>/` with `pid.txt` and copies of what the program
//! printed (B4).
//!
//! Nothing is read back from here. Each part of the path is opened without following links, because tools can write in the
//! state folder. An error is ignored: the session runs, whatever becomes of its copies.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use abide_keeper::protocol::Stream;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::Errno;

use super::record::is_id;
use crate::tool::recorder::file_name;

/// How much of each stream is copied. The folders of the calls have the rest.
const MAX_COPY_BYTES: u64 = 32 << 20;

const SESSIONS: &str = "sessions";
const PID: &str = "pid.txt";

/// The folder of one session.
#[derive(Debug)]
pub(crate) struct Copies {
    folder: OwnedFd,
    streams: [Option<File>; 2],
}

impl Copies {
    /// Opens the folder of a session, which is made if there is none.
    pub(crate) fn open(state: &Path, id: &str) -> io::Result<Self> {
        if !is_id(id) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let sessions = directory(&open_directory(CWD, state)?, SESSIONS)?;
        Ok(Self { folder: directory(&sessions, id)?, streams: [None, None] })
    }

    pub(crate) fn write_pid(&self, pid: u32) -> io::Result<()> {
        self.file(PID, OFlags::TRUNC)?.write_all(format!("{pid}\n").as_bytes())
    }

    /// Appends what a program printed.
    pub(crate) fn append(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        if self.streams[stream.index()].is_none() {
            self.streams[stream.index()] = Some(self.file(file_name(stream), OFlags::APPEND)?);
        }
        let Some(file) = &mut self.streams[stream.index()] else { return Ok(()) };
        if file.metadata()?.len() >= MAX_COPY_BYTES {
            return Ok(());
        }
        file.write_all(bytes)
    }

    /// Removes what this module makes for a session, and nothing else.
    pub(crate) fn remove(state: &Path, id: &str) -> io::Result<()> {
        if !is_id(id) {
            return Ok(());
        }
        let sessions = open_directory(&open_directory(CWD, state)?, Path::new(SESSIONS))?;
        let folder = open_directory(&sessions, Path::new(id))?;
        for name in [PID, "stdout", "stderr"] {
            match unlinkat(&folder, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(unlinkat(&sessions, id, AtFlags::REMOVEDIR)?)
    }

    fn file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let flags =
            flags | OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(&self.folder, name, flags, Mode::from_raw_mode(0o600))?);
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }
}

/// A folder in another one, which is made if there is none.
fn directory(parent: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    match mkdirat(parent, name, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    open_directory(parent, Path::new(name))
}

fn open_directory(parent: impl std::os::fd::AsFd, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(openat(parent, path, flags, Mode::empty())?)
}
