//! What a call prints, as it comes: whole on disk up to a bound, and its beginning and end in memory for the model.
//!
//! Memory stays the same however much is printed. Not here: how it is shown; that is [`super::observation`].

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};

use abide_keeper::protocol::OutputStream;

use crate::session::copies::SessionCopies;
use crate::state::StateSubfolder;

/// How many bytes of each stream are kept on disk. Of what is beyond, only the last [`OutputRecorder::new`] `window` bytes.
pub const MOST_ON_DISK: u64 = 256 << 20;

/// The two streams of one call.
#[derive(Debug)]
pub struct OutputRecorder {
    streams: [RecordedStream; 2],
    copies: Option<SessionCopies>,
}

/// One stream.
#[derive(Debug)]
pub struct RecordedStream {
    /// None if nothing is written.
    folder: Option<StateSubfolder>,
    name: &'static str,
    file: Option<File>,
    window: usize,
    /// The first bytes.
    pub head: Vec<u8>,
    tail: VecDeque<u8>,
    /// How many bytes came.
    pub printed: u64,
    /// How many of them are in the file.
    pub kept: u64,
    /// How many were lost before they reached us.
    pub dropped: u64,
}

impl OutputRecorder {
    /// Records into `stdout` and `stderr` of this folder, which are made when something comes. `window` is how much of the
    /// beginning and of the end is held in memory.
    pub fn new(folder: &StateSubfolder, window: usize) -> Self {
        Self::with(Some(folder), window)
    }

    /// Writes nothing.
    pub(crate) fn in_memory(window: usize) -> Self {
        Self::with(None, window)
    }

    fn with(folder: Option<&StateSubfolder>, window: usize) -> Self {
        let recorded = |stream: OutputStream| RecordedStream {
            folder: folder.cloned(),
            name: file_name(stream),
            file: None,
            window,
            head: Vec::new(),
            tail: VecDeque::new(),
            printed: 0,
            kept: 0,
            dropped: 0,
        };
        Self { streams: OutputStream::ALL.map(recorded), copies: None }
    }

    /// Everything that comes from now on is also copied to the folder of a session.
    pub(crate) fn copy_to(&mut self, copies: Option<SessionCopies>) {
        self.copies = copies;
    }

    /// Takes bytes. A disk that refuses is no reason to stop: the model still sees what fits into its window.
    pub fn push(&mut self, stream: OutputStream, bytes: &[u8]) {
        self.streams[stream.index()].push(bytes);
        if let Some(copies) = &mut self.copies {
            // The call's own folder has it too.
            copies.append(stream, bytes).ok();
        }
    }

    /// Bytes that came from the program and are gone.
    pub fn lost(&mut self, stream: OutputStream, count: u64) {
        self.streams[stream.index()].dropped += count;
    }

    /// Leaves the newest bytes of a stream out of what is shown. The file keeps them.
    pub fn withhold(&mut self, stream: OutputStream, count: usize) {
        self.streams[stream.index()].withhold(count);
    }

    /// Writes the last bytes of what was too much, beside the rest.
    pub fn finish(&mut self) {
        for recorded in &mut self.streams {
            if recorded.kept < recorded.printed {
                let name = format!("{}.tail", recorded.name);
                let tail: Vec<u8> = recorded.tail.iter().copied().collect();
                // It is shown without the file too.
                recorded.create(&name).and_then(|mut file| file.write_all(&tail)).ok();
            }
            recorded.file = None;
        }
    }

    /// What was pushed came from the files themselves.
    pub fn is_on_disk(&mut self) {
        for recorded in &mut self.streams {
            recorded.kept = recorded.printed;
        }
    }

    /// A stream.
    pub fn stream(&self, stream: OutputStream) -> &RecordedStream {
        &self.streams[stream.index()]
    }
}

/// The file of a stream in an execution's directory.
pub fn file_name(stream: OutputStream) -> &'static str {
    match stream {
        OutputStream::Stdout => "stdout",
        OutputStream::Stderr => "stderr",
    }
}

impl RecordedStream {
    fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let room = usize::try_from(MOST_ON_DISK.saturating_sub(self.kept)).unwrap_or(usize::MAX);
        // After a gap the file must not go on, or its bytes would stand where others did.
        if self.kept == self.printed && room > 0 {
            let part = bytes.get(..room.min(bytes.len())).unwrap_or_default();
            if self.write(part).is_ok() {
                self.kept += part.len() as u64;
            }
        }
        self.printed += bytes.len() as u64;
        let to_head = self.window.saturating_sub(self.head.len()).min(bytes.len());
        let (head, rest) = bytes.split_at(to_head);
        self.head.extend_from_slice(head);
        let rest = rest.get(rest.len().saturating_sub(self.window)..).unwrap_or_default();
        let surplus = (self.tail.len() + rest.len()).saturating_sub(self.window);
        self.tail.drain(..surplus.min(self.tail.len()));
        self.tail.extend(rest);
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.file.is_none() {
            self.file = Some(self.create(self.name)?);
        }
        self.file.as_mut().map_or(Ok(()), |file| file.write_all(bytes))
    }

    fn create(&self, name: &str) -> io::Result<File> {
        let folder = self.folder.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        Ok(folder.append(name)?)
    }

    fn withhold(&mut self, count: usize) {
        let from_tail = count.min(self.tail.len());
        self.tail.truncate(self.tail.len() - from_tail);
        let from_head = (count - from_tail).min(self.head.len());
        self.head.truncate(self.head.len() - from_head);
        let withheld = (from_tail + from_head) as u64;
        self.printed -= withheld;
        self.kept = self.kept.saturating_sub(withheld);
    }

    /// The last bytes, after those of the head.
    pub fn tail(&self) -> Vec<u8> {
        self.tail.iter().copied().collect()
    }

    /// Head and tail.
    pub fn all(&self) -> Vec<u8> {
        [self.head.as_slice(), &self.tail()].concat()
    }

    /// Whether head and tail are everything.
    pub fn is_whole(&self) -> bool {
        (self.head.len() + self.tail.len()) as u64 == self.printed && self.dropped == 0
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::state::StateDirectory;

    /// A folder of this name in a state folder below `root`.
    fn subfolder(root: &Path, name: &str) -> StateSubfolder {
        let folder = StateDirectory::create(root, Path::new("state")).unwrap().subfolder(name);
        folder.create().unwrap();
        folder
    }

    #[test]
    fn the_beginning_and_the_end_are_held_and_everything_is_on_disk() {
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = OutputRecorder::new(&subfolder(folder.path(), "call"), 4);
        for piece in ["a", "bcd", "efghijk", "", "lm"] {
            recorder.push(OutputStream::Stdout, piece.as_bytes());
        }
        recorder.finish();
        let stdout = recorder.stream(OutputStream::Stdout);
        assert_eq!(
            (stdout.head.as_slice(), stdout.tail().as_slice(), stdout.printed),
            (&b"abcd"[..], &b"jklm"[..], 13)
        );
        assert!(!stdout.is_whole());
        assert_eq!(std::fs::read(folder.path().join("state/call/stdout")).unwrap(), b"abcdefghijklm");
        assert!(!folder.path().join("state/call/stderr").exists(), "a stream that had nothing has no file");
    }

    #[test]
    fn withheld_bytes_are_left_out_of_what_is_shown_and_stay_on_disk() {
        let folder = tempfile::tempdir().unwrap();
        for (window, expected) in [(100, "one two"), (2, "onwo")] {
            let name = window.to_string();
            let path = folder.path().join("state").join(&name);
            let mut recorder = OutputRecorder::new(&subfolder(folder.path(), &name), window);
            recorder.push(OutputStream::Stdout, b"one> ");
            recorder.withhold(OutputStream::Stdout, 2);
            recorder.push(OutputStream::Stdout, b" two");
            let stdout = recorder.stream(OutputStream::Stdout);
            assert_eq!((stdout.all().as_slice(), stdout.printed, stdout.kept), (expected.as_bytes(), 7, 7));
            assert_eq!(std::fs::read(path.join("stdout")).unwrap(), b"one>  two");
        }
    }
}
