//! Records the output of a call: on disk up to a limit, and its head and tail in memory for the model.
//!
//! Memory use does not depend on the amount of output. The rendering is in [`super::observation`].

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};

use abide_keeper::protocol::OutputStream;

use crate::session::output_copies::SessionCopies;
use crate::state_directory::StateSubfolder;

/// Size limit of each stream on disk, in bytes. Of the rest, only the last `window` bytes ([`OutputRecorder::new`]) are
/// kept.
pub const MAX_FILE_BYTES: u64 = 256 << 20;

/// Records both streams of a call. Call [`Self::finish`] after the last bytes.
#[derive(Debug)]
pub struct OutputRecorder {
    streams: [RecordedStream; 2],
    copies: Option<SessionCopies>,
}

/// The recorded output of one stream.
#[derive(Debug)]
pub struct RecordedStream {
    /// `None` if no file is written.
    folder: Option<StateSubfolder>,
    name: &'static str,
    file: Option<File>,
    window_bytes: usize,
    /// The first bytes, at most `window`.
    pub head: Vec<u8>,
    tail: VecDeque<u8>,
    /// Number of bytes printed.
    pub total_bytes: u64,
    /// Number of bytes in the file.
    pub file_bytes: u64,
    /// Number of bytes that were lost before they were received.
    pub lost_bytes: u64,
}

impl OutputRecorder {
    /// Records into the files `stdout` and `stderr` of this folder, which are created with the first bytes. `window` is
    /// the size of head and tail in memory.
    pub fn new(folder: &StateSubfolder, window: usize) -> Self {
        Self::with(Some(folder), window)
    }

    /// A recorder without files.
    pub(crate) fn in_memory(window: usize) -> Self {
        Self::with(None, window)
    }

    fn with(folder: Option<&StateSubfolder>, window: usize) -> Self {
        let recorded = |stream: OutputStream| RecordedStream {
            folder: folder.cloned(),
            name: stream.name(),
            file: None,
            window_bytes: window,
            head: Vec::new(),
            tail: VecDeque::new(),
            total_bytes: 0,
            file_bytes: 0,
            lost_bytes: 0,
        };
        Self { streams: OutputStream::ALL.map(recorded), copies: None }
    }

    /// Copies all later output to the folder of a session as well.
    pub(crate) fn set_copies(&mut self, copies: Option<SessionCopies>) {
        self.copies = copies;
    }

    /// Records bytes. Disk errors are ignored, because the model still receives head and tail.
    pub fn push(&mut self, stream: OutputStream, bytes: &[u8]) {
        self.streams[stream.index()].push(bytes);
        if let Some(copies) = &mut self.copies {
            // The call's own folder has the same bytes.
            copies.append(stream, bytes).ok();
        }
    }

    /// Counts bytes that were lost before they were received.
    pub fn record_loss(&mut self, stream: OutputStream, count: u64) {
        self.streams[stream.index()].lost_bytes += count;
    }

    /// Removes the newest bytes of a stream from the shown output. The file keeps them.
    pub fn hide_tail(&mut self, stream: OutputStream, count: usize) {
        self.streams[stream.index()].hide_tail(count);
    }

    /// Writes the last bytes of output beyond the size limit to a separate file.
    pub fn finish(&mut self) {
        for recorded in &mut self.streams {
            if recorded.file_bytes < recorded.total_bytes {
                let name = format!("{}.tail", recorded.name);
                let tail: Vec<u8> = recorded.tail.iter().copied().collect();
                // The tail is shown to the model even without the file.
                recorded.create(&name).and_then(|mut file| file.write_all(&tail)).ok();
            }
            recorded.file = None;
        }
    }

    /// Marks all recorded bytes as present in the files, because they were read from there.
    pub fn mark_as_stored(&mut self) {
        for recorded in &mut self.streams {
            recorded.file_bytes = recorded.total_bytes;
        }
    }

    pub fn stream(&self, stream: OutputStream) -> &RecordedStream {
        &self.streams[stream.index()]
    }
}

impl RecordedStream {
    fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let room = usize::try_from(MAX_FILE_BYTES.saturating_sub(self.file_bytes)).unwrap_or(usize::MAX);
        // After a gap nothing is appended, because the file's offsets would no longer match the stream.
        if self.file_bytes == self.total_bytes && room > 0 {
            let part = bytes.get(..room.min(bytes.len())).unwrap_or_default();
            if self.write(part).is_ok() {
                self.file_bytes += part.len() as u64;
            }
        }
        self.total_bytes += bytes.len() as u64;
        let to_head = self.window_bytes.saturating_sub(self.head.len()).min(bytes.len());
        let (head, rest) = bytes.split_at(to_head);
        self.head.extend_from_slice(head);
        let rest = rest.get(rest.len().saturating_sub(self.window_bytes)..).unwrap_or_default();
        let surplus = (self.tail.len() + rest.len()).saturating_sub(self.window_bytes);
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

    fn hide_tail(&mut self, count: usize) {
        let from_tail = count.min(self.tail.len());
        self.tail.truncate(self.tail.len() - from_tail);
        let from_head = (count - from_tail).min(self.head.len());
        self.head.truncate(self.head.len() - from_head);
        let withheld = (from_tail + from_head) as u64;
        self.total_bytes -= withheld;
        self.file_bytes = self.file_bytes.saturating_sub(withheld);
    }

    /// The last bytes, without those of the head.
    pub fn tail(&self) -> Vec<u8> {
        self.tail.iter().copied().collect()
    }

    pub fn head_and_tail(&self) -> Vec<u8> {
        [self.head.as_slice(), &self.tail()].concat()
    }

    /// Whether head and tail are the complete output.
    pub fn is_complete(&self) -> bool {
        (self.head.len() + self.tail.len()) as u64 == self.total_bytes && self.lost_bytes == 0
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::state_directory::StateDirectory;

    /// A subfolder of this name in a state folder below `root`.
    fn subfolder(root: &Path, name: &str) -> StateSubfolder {
        let folder = StateDirectory::create(root, Path::new("state")).unwrap().subfolder(name);
        folder.create().unwrap();
        folder
    }

    #[test]
    fn head_and_tail_are_in_memory_and_everything_is_on_disk() {
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = OutputRecorder::new(&subfolder(folder.path(), "call"), 4);
        for piece in ["a", "bcd", "efghijk", "", "lm"] {
            recorder.push(OutputStream::Stdout, piece.as_bytes());
        }
        recorder.finish();
        let stdout = recorder.stream(OutputStream::Stdout);
        assert_eq!(
            (stdout.head.as_slice(), stdout.tail().as_slice(), stdout.total_bytes),
            (&b"abcd"[..], &b"jklm"[..], 13)
        );
        assert!(!stdout.is_complete());
        assert_eq!(std::fs::read(folder.path().join("state/call/stdout")).unwrap(), b"abcdefghijklm");
        assert!(!folder.path().join("state/call/stderr").exists(), "a stream that had nothing has no file");
    }

    #[test]
    fn hidden_bytes_are_not_shown_and_stay_on_disk() {
        let folder = tempfile::tempdir().unwrap();
        for (window, expected) in [(100, "one two"), (2, "onwo")] {
            let name = window.to_string();
            let path = folder.path().join("state").join(&name);
            let mut recorder = OutputRecorder::new(&subfolder(folder.path(), &name), window);
            recorder.push(OutputStream::Stdout, b"one> ");
            recorder.hide_tail(OutputStream::Stdout, 2);
            recorder.push(OutputStream::Stdout, b" two");
            let stdout = recorder.stream(OutputStream::Stdout);
            assert_eq!(
                (stdout.head_and_tail().as_slice(), stdout.total_bytes, stdout.file_bytes),
                (expected.as_bytes(), 7, 7)
            );
            assert_eq!(std::fs::read(path.join("stdout")).unwrap(), b"one>  two");
        }
    }
}
