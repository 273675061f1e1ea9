//! Copies of a session's output for people: `sessions/<id>/` in the state folder, with `pid.txt` (B4).
//!
//! They are never read back, because tools can write in the state folder. Errors are ignored, because the session works
//! without its copies.

use std::fs::File;
use std::io::{self, Write};
use std::time::Duration;

use abide_keeper::protocol::OutputStream;
use abide_os::remove::remove;

use super::record::is_safe_id;
use crate::state_directory::{StateDirectory, StateSubfolder};

/// Size limit of each copied stream. The folders of the calls have the rest.
const MAX_COPY_BYTES: u64 = 32 << 20;

const MAX_REMOVAL_TIME: Duration = Duration::from_secs(1);
const SESSIONS_FOLDER: &str = "sessions";
const PID_FILE: &str = "pid.txt";

/// The folder of one session.
#[derive(Debug)]
pub(crate) struct SessionCopies {
    folder: StateSubfolder,
    streams: [Option<File>; 2],
}

impl SessionCopies {
    /// Opens the folder of a session, and creates it if it is missing.
    pub(crate) fn open(state: &StateDirectory, id: &str) -> io::Result<Self> {
        if !is_safe_id(id) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let folder = state.subfolder(format!("{SESSIONS_FOLDER}/{id}"));
        folder.create()?;
        Ok(Self { folder, streams: [None, None] })
    }

    pub(crate) fn write_pid(&self, pid: u32) -> io::Result<()> {
        self.folder.replace(PID_FILE, format!("{pid}\n").as_bytes())
    }

    /// Appends output of the program.
    pub(crate) fn append(&mut self, stream: OutputStream, bytes: &[u8]) -> io::Result<()> {
        if self.streams[stream.index()].is_none() {
            self.streams[stream.index()] = Some(self.folder.append(stream.name())?);
        }
        let Some(file) = &mut self.streams[stream.index()] else { return Ok(()) };
        if file.metadata()?.len() >= MAX_COPY_BYTES {
            return Ok(());
        }
        file.write_all(bytes)
    }

    /// Removes the files that this module creates for a session, and the folder if it is then empty.
    pub(crate) fn remove(state: &StateDirectory, id: &str) -> io::Result<()> {
        if !is_safe_id(id) {
            return Ok(());
        }
        let sessions = state.directory().open_directory(SESSIONS_FOLDER)?;
        let folder = sessions.open_directory(id)?;
        for name in [PID_FILE, "stdout", "stderr"] {
            match folder.unlink(name) {
                Err(error) if !error.is_not_found() => return Err(error.into()),
                Ok(()) | Err(_) => {}
            }
        }
        if folder.entries()?.next().is_some() {
            return Ok(());
        }
        Ok(remove(&sessions, id.as_ref(), MAX_REMOVAL_TIME).into_result()?)
    }
}
