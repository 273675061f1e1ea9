//! Bytes, cut anywhere, become lines, each with the place where it ends.
//!
//! A line that lies whole in one piece of input is not copied. What a line means is not known here.

use memchr::memchr_iter;

/// The longest line that is kept. Agents print several megabytes on one line; nobody was seen to print this much.
pub(crate) const LONGEST: usize = 64 << 20;

/// The cutter.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    unfinished: Vec<u8>,
    /// How many bytes have been fed.
    fed: u64,
    /// How much of the present line was thrown away because it is too long.
    lost: u64,
}

/// One line, without its end-of-line bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    /// What it holds.
    pub(crate) bytes: &'a [u8],
    /// Where in the output it ends, its newline included.
    pub(crate) end: u64,
    /// How many of its bytes are missing because it is too long.
    pub(crate) lost: u64,
}

impl Lines {
    /// Takes further bytes and hands on every line that is now whole.
    pub(crate) fn feed(&mut self, bytes: &[u8], mut each: impl FnMut(Line<'_>)) {
        let mut start = 0;
        for newline in memchr_iter(b'\n', bytes) {
            let piece = bytes.get(start..newline).unwrap_or_default();
            let end = self.fed + newline as u64 + 1;
            if self.unfinished.is_empty() && self.lost == 0 {
                each(Line { bytes: trimmed(piece), end, lost: 0 });
            } else {
                self.keep(piece);
                each(Line { bytes: trimmed(&self.unfinished), end, lost: self.lost });
                self.forget();
            }
            start = newline + 1;
        }
        self.keep(bytes.get(start..).unwrap_or_default());
        self.fed += bytes.len() as u64;
    }

    /// Hands on the last line if it was never finished.
    pub(crate) fn finish(&mut self, mut each: impl FnMut(Line<'_>)) {
        if !self.unfinished.is_empty() || self.lost > 0 {
            each(Line { bytes: trimmed(&self.unfinished), end: self.fed, lost: self.lost });
            self.forget();
        }
    }

    /// How many bytes have been fed.
    pub(crate) fn fed(&self) -> u64 {
        self.fed
    }

    fn keep(&mut self, piece: &[u8]) {
        let room = LONGEST.saturating_sub(self.unfinished.len());
        let kept = piece.get(..room).unwrap_or(piece);
        self.unfinished.extend_from_slice(kept);
        self.lost += (piece.len() - kept.len()) as u64;
    }

    fn forget(&mut self) {
        self.lost = 0;
        // One huge line must not stay in memory for the rest of the run.
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
        let (mut lines, mut seen) = (Lines::default(), vec![]);
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
        let mut lines = Lines::default();
        let mut seen = vec![];
        let mut feed = |bytes: &[u8]| lines.feed(bytes, |line| seen.push((line.bytes.len(), line.lost)));
        let mebibyte = vec![b'x'; 1 << 20];
        for _ in 0..65 {
            feed(&mebibyte);
        }
        feed(b"\nnext\n");
        assert_eq!(seen, [(LONGEST, 1 << 20), (4, 0)]);
    }
}
