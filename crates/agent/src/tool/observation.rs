//! Renders the result of a call for the model: bounded, cut between characters, with the path of the complete output.
//!
//! Pure: bytes and numbers in, text out.

use abide_keeper::protocol::OutputStream;
use abide_terminal::complete_utf8_prefix;

use super::recorder::{OutputRecorder, RecordedStream};

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCallResult {
    /// The text for the model, within the size limit.
    pub text: String,
    pub status: ToolStatus,
    /// Exit code of the program or command, 128 + n for death by signal n; `None` if there is none.
    pub exit_code: Option<i32>,
    /// Whether the timeout elapsed. A session continues to run.
    pub timed_out: bool,
    /// Whether a person stopped the run during the call.
    pub interrupted: bool,
    /// Folder with all files of the call, relative to the state folder; `None` if it was not executed.
    pub execution_ref: Option<String>,
    /// The session that the call used.
    pub session_id: Option<String>,
    /// The effect of the call on that session.
    pub session_event: Option<ToolSessionChange>,
}

/// The status of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolStatus {
    /// Executed, with exit code 0 or none.
    Success,
    /// Not executed, or with another exit code.
    Error,
    /// Stopped or no longer awaited, because the timeout elapsed.
    TimedOut,
}

/// The effect of a call on a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolSessionChange {
    Started,
    Ended,
}

impl ToolCallResult {
    /// The result of a call that was not executed.
    pub fn refused(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            status: ToolStatus::Error,
            exit_code: None,
            timed_out: false,
            interrupted: false,
            execution_ref: None,
            session_id: None,
            session_event: None,
        }
    }

    /// Adds a note that the call was executed although its record could not be written.
    pub(crate) fn note_missing_record(&mut self, error: &std::io::Error) {
        self.text.push_str(&format!("\n[the record of this call could not be written to disk: {error}]"));
    }
}

/// The parameters of [`render_output`].
#[derive(Debug, Clone, Copy)]
pub struct OutputView<'a> {
    /// Approximate size limit in bytes.
    pub budget: usize,
    /// Path at which the model can read the complete output.
    pub path: &'a str,
}

/// Renders the recorded output as text.
pub fn render_output(recorder: &OutputRecorder, view: OutputView<'_>) -> String {
    let OutputView { budget, path: shown_path } = view;
    let streams = OutputStream::ALL.map(|stream| recorder.stream(stream));
    let shares = split_budget(budget, streams.map(|recorded| recorded.total_bytes));
    let mut text = String::new();
    for (stream, share) in OutputStream::ALL.into_iter().zip(shares) {
        let recorded = recorder.stream(stream);
        if recorded.lost_bytes == 0 && recorded.total_bytes == 0 {
            continue;
        }
        if stream == OutputStream::Stderr {
            text.push_str("[stderr]\n");
        }
        let path = format!("{shown_path}/{}", stream.name());
        push_stream(&mut text, recorded, OutputView { budget: share, path: &path });
        if !text.ends_with('\n') {
            text.push('\n');
        }
    }
    if text.is_empty() {
        text.push_str("(no output)\n");
    }
    text
}

/// Splits the budget between the streams: each gets its size, or half plus the unused part of the other.
fn split_budget(budget: usize, printed: [u64; 2]) -> [usize; 2] {
    let wants = printed.map(|count| usize::try_from(count).unwrap_or(usize::MAX));
    let half = budget / 2;
    let share_beside = |other: usize| budget.saturating_sub(other.min(half)).max(half);
    [wants[0].min(share_beside(wants[1])), wants[1].min(share_beside(wants[0]))]
}

fn push_stream(text: &mut String, recorded: &RecordedStream, view: OutputView<'_>) {
    let OutputView { budget: share, path } = view;
    if recorded.lost_bytes > 0 {
        text.push_str(&format!(
            "[{} bytes that were printed before this are not kept]\n",
            recorded.lost_bytes
        ));
    }
    let tail = recorded.tail();
    if is_binary(&recorded.head) {
        text.push_str(&format!(
            "[binary output, {} bytes{}]\n",
            recorded.total_bytes,
            storage_note(recorded, path)
        ));
        return;
    }
    if (recorded.head.len() + tail.len()) as u64 == recorded.total_bytes
        && recorded.total_bytes <= share as u64
    {
        text.push_str(&String::from_utf8_lossy(&recorded.head_and_tail()));
        return;
    }
    let part = share / 2;
    let first = complete_utf8_prefix(recorded.head.get(..part.min(recorded.head.len())).unwrap_or_default());
    let after_head = [recorded.head.get(first.len()..).unwrap_or_default(), &tail].concat();
    let last =
        skip_partial_character(after_head.get(after_head.len().saturating_sub(part)..).unwrap_or_default());
    let omitted = recorded.total_bytes.saturating_sub((first.len() + last.len()) as u64);
    text.push_str(&String::from_utf8_lossy(first));
    text.push_str(&format!(
        "\n[… {omitted} of {} bytes left out here{} …]\n",
        recorded.total_bytes,
        storage_note(recorded, path)
    ));
    text.push_str(&String::from_utf8_lossy(last));
}

fn storage_note(recorded: &RecordedStream, path: &str) -> String {
    if recorded.file_bytes == recorded.total_bytes {
        format!("; everything is in {path}")
    } else if recorded.file_bytes == 0 {
        "; they could not be stored".to_owned()
    } else {
        format!("; the first {} bytes are in {path}, the last in {path}.tail", recorded.file_bytes)
    }
}

/// The bytes without leading continuation bytes of a character that was cut.
fn skip_partial_character(bytes: &[u8]) -> &[u8] {
    let continued = bytes.iter().take(3).take_while(|byte| matches!(byte, 0x80..=0xbf)).count();
    bytes.get(continued..).unwrap_or_default()
}

/// Number of bytes that decide whether output is text.
const BINARY_SAMPLE_BYTES: usize = 8 << 10;

/// Whether the output contains NUL bytes, or more than 10 % of its bytes are invalid UTF-8.
fn is_binary(head: &[u8]) -> bool {
    let sample = complete_utf8_prefix(head.get(..BINARY_SAMPLE_BYTES.min(head.len())).unwrap_or_default());
    if sample.contains(&0) {
        return true;
    }
    let broken: usize = sample.utf8_chunks().map(|chunk| chunk.invalid().len()).sum();
    broken * 10 > sample.len()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::state_directory::StateDirectory;

    fn shown(stdout: &[u8], stderr: &[u8], budget: usize) -> String {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDirectory::create(folder.path(), Path::new("state")).unwrap();
        let mut recorder = OutputRecorder::new(&state.subfolder("call"), budget);
        state.subfolder("call").create().unwrap();
        for (stream, bytes) in [(OutputStream::Stdout, stdout), (OutputStream::Stderr, stderr)] {
            for piece in bytes.chunks(7) {
                recorder.push(stream, piece);
            }
        }
        recorder.finish();
        render_output(&recorder, OutputView { budget, path: "E" })
    }

    #[test]
    fn output_within_the_budget_is_shown_completely_by_stream() {
        assert_eq!(shown(b"out", b"err\n", 100), "out\n[stderr]\nerr\n");
        assert_eq!(shown(b"", b"", 100), "(no output)\n");
        assert_eq!(shown(b"> 2\n> ", b"", 100), "> 2\n> \n");
        assert_eq!(shown(&[b'a'; 20], b"", 20), format!("{}\n", "a".repeat(20)));
    }

    #[test]
    fn long_output_shows_its_beginning_end_and_path() {
        let numbers: String = (0..1000).map(|n| format!("{n}\n")).collect();
        let text = shown(numbers.as_bytes(), b"", 40);
        let omission = "[… 3850 of 3890 bytes left out here; everything is in E/stdout …]";
        assert_eq!(text, format!("0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n\n{omission}\n995\n996\n997\n998\n999\n"));
        let both = shown(numbers.as_bytes(), numbers.as_bytes(), 40);
        assert!(both.len() < 250 && both.contains("E/stdout") && both.contains("E/stderr"), "{both}");
    }

    #[test]
    fn no_cut_is_inside_a_character_whatever_the_budget() {
        let text = "aé€😀".repeat(50);
        for budget in 0..80 {
            let shown = shown(text.as_bytes(), b"", budget);
            assert!(!shown.contains('\u{fffd}'), "budget {budget}: {shown}");
        }
    }

    #[test]
    fn binary_output_is_reported_and_not_shown() {
        let picture: Vec<u8> = (0..=255).cycle().take(5_000).collect();
        assert_eq!(shown(&picture, b"", 100), "[binary output, 5000 bytes; everything is in E/stdout]\n");
        assert_eq!(shown(b"caf\xe9 is latin", b"", 100), "caf\u{fffd} is latin\n");
    }
}
