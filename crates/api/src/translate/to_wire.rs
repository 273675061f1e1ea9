//! Converts values of the terminal runtime to wire types.

use abide_terminal::{
    CommandExit, CommandResult, DestroyedSession, ExecId, ExecOutcome, ExecResult, OutputPage, RuntimeStats,
    ScreenSource, SessionInfo, SessionState, StartedStream, TerminalError, complete_utf8_prefix,
};
use abide_wire::terminal as wire;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

pub fn session(info: SessionInfo) -> wire::SessionView {
    wire::SessionView {
        session_id: info.session.as_str().to_owned(),
        name: info.meta.name,
        state: info.state.as_str().to_owned(),
        shell: info.meta.shell,
        cwd: info.meta.cwd,
        pid: info.pid,
        created_at: time(info.created_at),
        env_keys: info.meta.env_keys,
        last_activity_at: time(info.last_activity_at),
        command_count: info.command_count,
        pty: info.meta.pty.is_some(),
        running: info
            .running
            .map(|(job, at)| wire::RunningExec { exec_id: ExecId(job).to_string(), started_at: time(at) }),
        exit_code: info.exit_code,
    }
}

pub fn sessions(all: Vec<SessionInfo>) -> wire::SessionListResult {
    wire::SessionListResult { sessions: all.into_iter().map(session).collect() }
}

pub fn destroyed(DestroyedSession(session): DestroyedSession) -> wire::DestroySessionResult {
    wire::DestroySessionResult {
        session_id: session.as_str().to_owned(),
        state: SessionState::Terminated.as_str().to_owned(),
    }
}

pub fn stats(stats: RuntimeStats) -> wire::SystemStatsResult {
    wire::SystemStatsResult {
        sessions: stats.sessions as u64,
        running: stats.running as u64,
        terminated: stats.terminated as u64,
        max_sessions: stats.max_sessions as u64,
        commands: stats.commands,
        adopted: stats.adopted,
    }
}

pub fn run_result(run: &ExecResult, encoding: wire::OutputEncoding) -> wire::ExecRunResult {
    let CommandResult { outcome, stdout, stderr, printed: [printed_out, printed_err] } = &run.result;
    let (stdout, left_out) = truncate_output(stdout, *printed_out, encoding);
    let (stderr, left_err) = truncate_output(stderr, *printed_err, encoding);
    wire::ExecRunResult {
        exec_id: ExecId(outcome.job).to_string(),
        stdout,
        stderr,
        exit_code: outcome.code,
        duration_ms: milliseconds(outcome.duration_us),
        timed_out: outcome.timed_out,
        cancelled: outcome.cancelled,
        shell_restarted: run.shell_restarted,
        truncated: wire::TruncatedBytes { stdout: left_out, stderr: left_err },
        encoding,
    }
}

/// The start of a stream; its id names the session and the command.
pub fn stream_started(started: &StartedStream) -> wire::ExecStreamResult {
    wire::ExecStreamResult {
        stream_id: format!("{}.{}", started.session, started.exec),
        exec_id: started.exec.to_string(),
    }
}

/// Converts a range of output. An incomplete character at its end is left for the next read.
pub fn output_page(
    page: &OutputPage,
    stream: wire::StreamName,
    encoding: wire::OutputEncoding,
) -> wire::ExecOutputResult {
    let after = page.offset + page.bytes.len() as u64;
    let last = after >= page.printed && page.outcome.is_some();
    let bytes = match encoding {
        wire::OutputEncoding::Utf8 if !last => {
            Some(complete_utf8_prefix(&page.bytes)).filter(|whole| !whole.is_empty())
        }
        wire::OutputEncoding::Utf8 | wire::OutputEncoding::Base64 => None,
    };
    let bytes = bytes.unwrap_or(&page.bytes);
    wire::ExecOutputResult {
        stream,
        offset: page.offset,
        next_offset: page.offset + bytes.len() as u64,
        data: encode(bytes, encoding),
        encoding,
        printed: page.printed,
        dropped: page.dropped,
        end: last,
        exit: page.outcome.as_ref().map(|outcome| exec_exit(outcome, false)),
    }
}

pub fn screen(source: &ScreenSource) -> wire::ScreenResult {
    let screen = source.draw();
    wire::ScreenResult {
        text: screen.lines.join("\n"),
        cursor: wire::ScreenCursor { row: screen.row, col: screen.col },
        rows: screen.size.rows,
        cols: screen.size.cols,
    }
}

fn exec_exit(outcome: &ExecOutcome, shell_restarted: bool) -> wire::ExecExit {
    wire::ExecExit {
        exit_code: outcome.code,
        duration_ms: milliseconds(outcome.duration_us),
        timed_out: outcome.timed_out,
        cancelled: outcome.cancelled,
        shell_restarted,
    }
}

/// Returns the exit and the error of the last chunk.
pub fn exit_and_error(exit: Result<CommandExit, TerminalError>) -> (Option<wire::ExecExit>, Option<String>) {
    match exit {
        Ok(exit) => (Some(exec_exit(&exit.outcome, exit.shell_restarted)), None),
        Err(error) => (None, Some(error.to_string())),
    }
}

/// Encodes bytes as the client requested.
pub fn encode(bytes: &[u8], encoding: wire::OutputEncoding) -> String {
    match encoding {
        wire::OutputEncoding::Utf8 => String::from_utf8_lossy(bytes).into_owned(),
        wire::OutputEncoding::Base64 => STANDARD.encode(bytes),
    }
}

/// RFC 3339, UTC.
pub fn time(micros: u64) -> String {
    let micros = i64::try_from(micros).unwrap_or(i64::MAX);
    jiff::Timestamp::from_microsecond(micros).map(|time| time.to_string()).unwrap_or_default()
}

/// Truncates output between characters. Returns the number of omitted bytes.
fn truncate_output(bytes: &[u8], printed: u64, encoding: wire::OutputEncoding) -> (String, u64) {
    let cut = printed > bytes.len() as u64;
    let truncated =
        if cut && encoding == wire::OutputEncoding::Utf8 { complete_utf8_prefix(bytes) } else { bytes };
    (encode(truncated, encoding), printed - truncated.len() as u64)
}

fn milliseconds(micros: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a command of 285 years may be a microsecond off")]
    let micros = micros as f64;
    micros / 1_000.0
}
