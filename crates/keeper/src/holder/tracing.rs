//! Removes trace output of the keeper's script lines from the stderr of commands.

use super::ChildSupervisor;
use crate::protocol::OutputStream;

/// Maximum bytes of a line that are held back until its end arrives. The keeper's own lines are shorter (SECURITY 12).
const MAX_LINE_BYTES: usize = 64 << 10;

impl ChildSupervisor {
    /// Removes lines of the keeper's script from stderr while a command has tracing enabled.
    ///
    /// A shell may write such a line word by word, so a line is held back until it is complete.
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
        // The bytes that were held back contain no line end.
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| held_back + end + 1);
        let is_too_long = self.unfinished.len() - whole > MAX_LINE_BYTES;
        // The end of a long line is held back, because the nonce may be split.
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

    /// Outputs a held-back last line without a line end.
    pub(super) fn take_unfinished(&mut self) {
        let rest = std::mem::take(&mut self.unfinished);
        if !self.muted && !rest.is_empty() {
            self.keep(self.jobs, OutputStream::Stderr, &rest);
        }
    }
}

/// Whether the text of a command may enable tracing. A sourced file that enables it is not detected, and some of the
/// keeper's lines appear in the output.
pub(super) fn mentions_tracing(text: &[u8]) -> bool {
    [&b"set -"[..], b"xtrace", b"setopt"]
        .iter()
        .any(|word| text.windows(word.len()).any(|window| window == *word))
}
