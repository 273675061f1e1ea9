//! Removes trace output of the keeper's script lines from the stderr of commands.

use super::ChildSupervisor;
use crate::protocol::OutputStream;

/// Maximum bytes of a line that are held back until its end arrives. The keeper's own lines are shorter (SECURITY 12).
const MAX_LINE_BYTES: usize = 64 << 10;

impl ChildSupervisor {
    /// Removes lines of the keeper's script from stderr while a command has tracing enabled.
    ///
    /// A shell may write such a line word by word, so a line is held back until it is complete.
    pub(super) fn remove_trace_lines(&mut self, stream: OutputStream, bytes: &[u8]) -> Vec<u8> {
        let tracing = self.job.as_ref().is_some_and(|job| job.may_trace);
        if stream == OutputStream::Stderr && self.discards_trace {
            return Vec::new();
        }
        if stream != OutputStream::Stderr || !tracing {
            return bytes.to_vec();
        }
        let nonce =
            self.shell_driver.as_ref().map(|driver| driver.nonce().as_bytes().to_vec()).unwrap_or_default();
        let held_back = self.partial_line.len();
        self.partial_line.extend_from_slice(bytes);
        // The bytes that were held back contain no line end.
        let line_end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| held_back + end + 1);
        let is_too_long = self.partial_line.len() - line_end > MAX_LINE_BYTES;
        // The end of a long line is held back, because the nonce may be split.
        let complete_bytes = if is_too_long { self.partial_line.len() - nonce.len() } else { line_end };
        let rest = self.partial_line.split_off(complete_bytes);
        let lines = std::mem::replace(&mut self.partial_line, rest);
        let mut kept = Vec::new();
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            self.discards_trace |= line.windows(nonce.len().max(1)).any(|window| window == nonce);
            if !self.discards_trace {
                kept.extend_from_slice(line);
            }
        }
        kept
    }

    /// Outputs a held-back last line without a line end.
    pub(super) fn flush_partial_line(&mut self) {
        let rest = std::mem::take(&mut self.partial_line);
        if !self.discards_trace && !rest.is_empty() {
            self.record_output(self.last_job_id, OutputStream::Stderr, &rest);
        }
    }
}

/// Whether the text of a command may enable tracing. A sourced file that enables it is not detected, and some of the
/// keeper's lines appear in the output.
pub(super) fn may_enable_tracing(text: &[u8]) -> bool {
    [&b"set -"[..], b"xtrace", b"setopt"]
        .iter()
        .any(|word| text.windows(word.len()).any(|window| window == *word))
}
