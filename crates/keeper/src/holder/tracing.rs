//! What a tracing shell prints of our own lines, kept out of the command's errors.

use super::ChildSupervisor;
use crate::protocol::OutputStream;

/// The most of a line that is held back until its end is seen. Our own lines are shorter (SECURITY 12).
const MAX_LINE_BYTES: usize = 64 << 10;

impl ChildSupervisor {
    /// Our own lines, when a command has switched tracing on, are not the command's output.
    ///
    /// A shell may write such a line word by word, so while tracing is possible a line is judged when it is whole.
    pub(super) fn without_trace(&mut self, stream: OutputStream, bytes: &[u8]) -> Vec<u8> {
        let tracing = self.job.as_ref().is_some_and(|job| job.may_trace);
        if stream == OutputStream::Stderr && self.muted {
            return Vec::new();
        }
        if stream != OutputStream::Stderr || !tracing {
            return bytes.to_vec();
        }
        let nonce =
            self.prompter.as_ref().map(|prompter| prompter.nonce().as_bytes().to_vec()).unwrap_or_default();
        let held_back = self.unfinished.len();
        self.unfinished.extend_from_slice(bytes);
        // What was held back has no end of a line.
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| held_back + end + 1);
        let is_too_long = self.unfinished.len() - whole > MAX_LINE_BYTES;
        // The end of a long line is kept, since the nonce may be cut in two.
        let judged = if is_too_long { self.unfinished.len() - nonce.len() } else { whole };
        let rest = self.unfinished.split_off(judged);
        let lines = std::mem::replace(&mut self.unfinished, rest);
        let mut kept = Vec::new();
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            self.muted |= line.windows(nonce.len().max(1)).any(|window| window == nonce);
            if !self.muted {
                kept.extend_from_slice(line);
            }
        }
        kept
    }

    /// A last line without an end, which was held back, is output like any other.
    pub(super) fn take_unfinished(&mut self) {
        let rest = std::mem::take(&mut self.unfinished);
        if !self.muted && !rest.is_empty() {
            self.keep(self.jobs, OutputStream::Stderr, &rest);
        }
    }
}

/// Whether a command may switch tracing on, going by its words; a sourced file that does so shows some of our lines.
pub(super) fn mentions_tracing(text: &[u8]) -> bool {
    [&b"set -"[..], b"xtrace", b"setopt"]
        .iter()
        .any(|word| text.windows(word.len()).any(|window| window == *word))
}
