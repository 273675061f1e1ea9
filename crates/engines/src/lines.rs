//! Splits output into lines with their end offsets, independently of chunk boundaries.
//!
//! A line that is complete in one chunk is not copied. The meaning of a line is not known here.

use memchr::memchr_iter;
use serde::{Deserialize, Serialize};

/// Size limit of a line in bytes. Agents print several megabytes in one line. The daemon holds one line of each process
/// in memory, and its parsed form.
pub(crate) const LONGEST: usize = 16 << 20;
/// Number of bytes that are kept of a longer line, for error messages and ids.
const HEAD: usize = 4 << 10;

/// Splits output into lines. Call [`Self::feed`] for each chunk, then [`Self::finish`].
#[derive(Debug, Default)]
pub(crate) struct OutputLines {
    unfinished: Vec<u8>,
    /// Number of bytes received.
    fed: u64,
    /// Number of discarded bytes of the present line, which exceeds the size limit.
    lost: u64,
}

/// A position from which splitting can continue.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OutputLinesCheckpoint {
    /// Number of bytes that need not be fed again.
    pub(crate) offset: u64,
    /// The beginning of the present line, if it exceeds the size limit.
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
    pub(crate) lost: u64,
}

impl OutputLines {
    /// Consumes bytes and passes on each line that they complete.
    pub(crate) fn feed(&mut self, bytes: &[u8], mut each: impl FnMut(OutputLine<'_>)) {
        let mut start = 0;
        for newline in memchr_iter(b'\n', bytes) {
            let piece = bytes.get(start..newline).unwrap_or_default();
            let end = self.fed + newline as u64 + 1;
            if self.unfinished.is_empty() && self.lost == 0 && piece.len() <= LONGEST {
                each(OutputLine { bytes: trimmed(piece), end, lost: 0 });
            } else {
                self.keep(piece);
                each(OutputLine { bytes: trimmed(&self.unfinished), end, lost: self.lost });
                self.forget();
            }
            start = newline + 1;
        }
        self.keep(bytes.get(start..).unwrap_or_default());
        self.fed += bytes.len() as u64;
    }

    /// Passes on the last line if it has no newline.
    pub(crate) fn finish(&mut self, mut each: impl FnMut(OutputLine<'_>)) {
        if !self.unfinished.is_empty() || self.lost > 0 {
            each(OutputLine { bytes: trimmed(&self.unfinished), end: self.fed, lost: self.lost });
            self.forget();
        }
    }

    /// Number of bytes received.
    pub(crate) fn fed(&self) -> u64 {
        self.fed
    }

    /// The beginning of the unfinished line, or a position within a line that exceeds the size limit.
    pub(crate) fn checkpoint(&self) -> OutputLinesCheckpoint {
        if self.lost == 0 {
            return OutputLinesCheckpoint {
                offset: self.fed - self.unfinished.len() as u64,
                ..Default::default()
            };
        }
        OutputLinesCheckpoint { offset: self.fed, head: self.unfinished.clone(), lost: self.lost }
    }

    /// Continues from a checkpoint.
    pub(crate) fn restore(checkpoint: OutputLinesCheckpoint) -> Self {
        let OutputLinesCheckpoint { offset, head, lost } = checkpoint;
        Self { unfinished: head, fed: offset, lost }
    }

    fn keep(&mut self, piece: &[u8]) {
        if self.lost == 0 && self.unfinished.len() + piece.len() <= LONGEST {
            return self.unfinished.extend_from_slice(piece);
        }
        // Only the head of the complete line, including this chunk, is kept.
        let before = self.unfinished.len();
        let room = HEAD.saturating_sub(before);
        self.unfinished.truncate(HEAD);
        self.unfinished.extend_from_slice(piece.get(..room).unwrap_or(piece));
        self.lost += (before + piece.len() - self.unfinished.len()) as u64;
        self.unfinished.shrink_to_fit();
    }

    fn forget(&mut self) {
        self.lost = 0;
        // Releases the buffer of a huge line, instead of keeping it for the rest of the run.
        if self.unfinished.capacity() > 1 << 20 {
            self.unfinished = Vec::new();
        } else {
            self.unfinished.clear();
        }
    }
}

fn trimmed(line: &[u8]) -> &[u8] {
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
        let mut feed = |bytes: &[u8]| lines.feed(bytes, |line| seen.push((line.bytes.len(), line.lost)));
        let mebibyte = vec![b'x'; 1 << 20];
        for _ in 0..33 {
            feed(&mebibyte);
        }
        feed(b"\nnext\n");
        // The same in one chunk.
        let whole = [vec![b'x'; 33 << 20], b"\nnext\n".to_vec()].concat();
        feed(&whole);
        let lost = (33 << 20) - HEAD as u64;
        assert_eq!(seen, [(HEAD, lost), (4, 0), (HEAD, lost), (4, 0)]);
    }

    #[test]
    fn a_cutter_that_goes_on_from_a_checkpoint_anywhere_cuts_the_same_lines() {
        let input = [&b"one\ntwo\n"[..], &vec![b'x'; LONGEST + 10], b"\nthree\nfour"].concat();
        type SeenLines = Vec<(Vec<u8>, u64, u64)>;
        let feed = |lines: &mut OutputLines, bytes: &[u8], seen: &mut SeenLines| {
            for piece in bytes.chunks(1 << 20) {
                lines.feed(piece, |line| seen.push((line.bytes.to_vec(), line.end, line.lost)));
            }
        };
        let finish = |lines: &mut OutputLines, seen: &mut SeenLines| {
            lines.finish(|line| seen.push((line.bytes.to_vec(), line.end, line.lost)));
        };
        let (mut lines, mut whole) = (OutputLines::default(), vec![]);
        feed(&mut lines, &input, &mut whole);
        finish(&mut lines, &mut whole);
        for at in [0, 2, 4, 9, 20, LONGEST + 9, LONGEST + 15, LONGEST + 19, LONGEST + 22, input.len()] {
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
