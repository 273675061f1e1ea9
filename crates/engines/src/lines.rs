//! Splits output into lines with their end offsets, independently of chunk boundaries.
//!
//! A line that is complete in one chunk is not copied. The meaning of a line is not known here.

use memchr::memchr_iter;
use serde::{Deserialize, Serialize};

/// Size limit of a line in bytes. Agents print several megabytes in one line. The daemon holds one line of each process
/// in memory, and its parsed form.
pub(crate) const MAX_LINE_BYTES: usize = 16 << 20;
/// Number of bytes that are kept of a longer line, for error messages and ids.
const LINE_HEAD_BYTES: usize = 4 << 10;

/// Splits output into lines. Call [`Self::feed`] for each chunk, then [`Self::finish`].
#[derive(Debug, Default)]
pub(crate) struct OutputLines {
    unfinished: Vec<u8>,
    /// Number of bytes received.
    received_bytes: u64,
    /// Number of discarded bytes of the current line, which exceeds the size limit.
    discarded_bytes: u64,
}

/// A position from which splitting can continue.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OutputLinesCheckpoint {
    /// Number of bytes that need not be fed again.
    pub(crate) offset: u64,
    /// The beginning of the current line, if it exceeds the size limit.
    head: Vec<u8>,
    /// Number of discarded bytes of that line.
    lost: u64,
}

/// A line without its end-of-line bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OutputLine<'a> {
    pub(crate) bytes: &'a [u8],
    /// Offset of the line's end in the output, including its newline.
    pub(crate) end: u64,
    /// Number of missing bytes, if the line exceeds the size limit.
    pub(crate) discarded_bytes: u64,
}

impl OutputLines {
    /// Consumes bytes and passes on each line that they complete.
    pub(crate) fn feed(&mut self, bytes: &[u8], mut on_line: impl FnMut(OutputLine<'_>)) {
        let mut start = 0;
        for newline in memchr_iter(b'\n', bytes) {
            let piece = bytes.get(start..newline).unwrap_or_default();
            let end = self.received_bytes + newline as u64 + 1;
            if self.unfinished.is_empty() && self.discarded_bytes == 0 && piece.len() <= MAX_LINE_BYTES {
                on_line(OutputLine { bytes: without_carriage_return(piece), end, discarded_bytes: 0 });
            } else {
                self.buffer_piece(piece);
                on_line(OutputLine {
                    bytes: without_carriage_return(&self.unfinished),
                    end,
                    discarded_bytes: self.discarded_bytes,
                });
                self.reset_line();
            }
            start = newline + 1;
        }
        self.buffer_piece(bytes.get(start..).unwrap_or_default());
        self.received_bytes += bytes.len() as u64;
    }

    /// Passes on the last line if it has no newline.
    pub(crate) fn finish(&mut self, mut on_line: impl FnMut(OutputLine<'_>)) {
        if !self.unfinished.is_empty() || self.discarded_bytes > 0 {
            on_line(OutputLine {
                bytes: without_carriage_return(&self.unfinished),
                end: self.received_bytes,
                discarded_bytes: self.discarded_bytes,
            });
            self.reset_line();
        }
    }

    /// Number of bytes received.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    /// The beginning of the unfinished line, or a position within a line that exceeds the size limit.
    pub(crate) fn checkpoint(&self) -> OutputLinesCheckpoint {
        if self.discarded_bytes == 0 {
            return OutputLinesCheckpoint {
                offset: self.received_bytes - self.unfinished.len() as u64,
                ..Default::default()
            };
        }
        OutputLinesCheckpoint {
            offset: self.received_bytes,
            head: self.unfinished.clone(),
            lost: self.discarded_bytes,
        }
    }

    /// Continues from a checkpoint.
    pub(crate) fn restore(checkpoint: OutputLinesCheckpoint) -> Self {
        let OutputLinesCheckpoint { offset, head, lost } = checkpoint;
        Self { unfinished: head, received_bytes: offset, discarded_bytes: lost }
    }

    fn buffer_piece(&mut self, piece: &[u8]) {
        if self.discarded_bytes == 0 && self.unfinished.len() + piece.len() <= MAX_LINE_BYTES {
            return self.unfinished.extend_from_slice(piece);
        }
        // Only the head of the complete line, including this chunk, is kept.
        let before = self.unfinished.len();
        let room = LINE_HEAD_BYTES.saturating_sub(before);
        self.unfinished.truncate(LINE_HEAD_BYTES);
        self.unfinished.extend_from_slice(piece.get(..room).unwrap_or(piece));
        self.discarded_bytes += (before + piece.len() - self.unfinished.len()) as u64;
        self.unfinished.shrink_to_fit();
    }

    fn reset_line(&mut self) {
        self.discarded_bytes = 0;
        // Releases the buffer of a huge line, instead of keeping it for the rest of the run.
        if self.unfinished.capacity() > 1 << 20 {
            self.unfinished = Vec::new();
        } else {
            self.unfinished.clear();
        }
    }
}

fn without_carriage_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(input: &[u8], size: usize) -> Vec<(Vec<u8>, u64)> {
        let (mut lines, mut seen) = (OutputLines::default(), vec![]);
        for piece in input.chunks(size) {
            lines.feed(piece, |line| seen.push((line.bytes.to_vec(), line.end)));
        }
        lines.finish(|line| seen.push((line.bytes.to_vec(), line.end)));
        seen
    }

    #[test]
    fn cutting_elsewhere_gives_the_same_lines_at_the_same_places() {
        let input = "one\r\n\ntwo \u{fffd}ü\nwithout an end".as_bytes();
        let whole = cut(input, input.len());
        assert_eq!(whole.len(), 4);
        for size in 1..input.len() {
            assert_eq!(cut(input, size), whole, "cut by {size}");
        }
    }

    #[test]
    fn a_line_beyond_the_bound_is_cut_and_the_next_one_is_whole() {
        let mut lines = OutputLines::default();
        let mut seen = vec![];
        let mut feed =
            |bytes: &[u8]| lines.feed(bytes, |line| seen.push((line.bytes.len(), line.discarded_bytes)));
        let mebibyte = vec![b'x'; 1 << 20];
        for _ in 0..33 {
            feed(&mebibyte);
        }
        feed(b"\nnext\n");
        // The same in one chunk.
        let whole = [vec![b'x'; 33 << 20], b"\nnext\n".to_vec()].concat();
        feed(&whole);
        let lost = (33 << 20) - LINE_HEAD_BYTES as u64;
        assert_eq!(seen, [(LINE_HEAD_BYTES, lost), (4, 0), (LINE_HEAD_BYTES, lost), (4, 0)]);
    }

    #[test]
    fn a_cutter_that_continues_from_a_checkpoint_anywhere_cuts_the_same_lines() {
        let input = [&b"one\ntwo\n"[..], &vec![b'x'; MAX_LINE_BYTES + 10], b"\nthree\nfour"].concat();
        type SeenLines = Vec<(Vec<u8>, u64, u64)>;
        let feed = |lines: &mut OutputLines, bytes: &[u8], seen: &mut SeenLines| {
            for piece in bytes.chunks(1 << 20) {
                lines.feed(piece, |line| seen.push((line.bytes.to_vec(), line.end, line.discarded_bytes)));
            }
        };
        let finish = |lines: &mut OutputLines, seen: &mut SeenLines| {
            lines.finish(|line| seen.push((line.bytes.to_vec(), line.end, line.discarded_bytes)));
        };
        let (mut lines, mut whole) = (OutputLines::default(), vec![]);
        feed(&mut lines, &input, &mut whole);
        finish(&mut lines, &mut whole);
        for at in [
            0,
            2,
            4,
            9,
            20,
            MAX_LINE_BYTES + 9,
            MAX_LINE_BYTES + 15,
            MAX_LINE_BYTES + 19,
            MAX_LINE_BYTES + 22,
            input.len(),
        ] {
            let (mut first, mut seen) = (OutputLines::default(), vec![]);
            feed(&mut first, &input[..at], &mut seen);
            let text = serde_json::to_string(&first.checkpoint()).unwrap();
            let checkpoint: OutputLinesCheckpoint = serde_json::from_str(&text).unwrap();
            assert!(checkpoint.offset <= at as u64 && text.len() < 32 << 10);
            let from = usize::try_from(checkpoint.offset).unwrap();
            let mut second = OutputLines::restore(checkpoint);
            feed(&mut second, &input[from..], &mut seen);
            finish(&mut second, &mut seen);
            assert!(seen == whole, "from {at}");
        }
    }
}
