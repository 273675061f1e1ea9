//! Conversions between wire types and runtime values, independent of the transport.

use abide_terminal::{
    CommandExit, CreateSessionRequest, ExecChunk, ExecRequest, ExecResult, MAX_PAGE_BYTES, OutputPiece,
    OutputRange, RuntimeStats, ScreenSource, SessionId, SessionInfo, SessionState, TerminalCall,
    TerminalError, TerminalErrorCode, TerminalSize, complete_utf8_prefix,
};
use abide_wire::terminal as wire;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

pub fn create(params: wire::CreateSessionParams) -> TerminalCall {
    TerminalCall::Create(CreateSessionRequest {
        shell: params.shell,
        cwd: params.cwd,
        env: params.env.unwrap_or_default().into_iter().collect(),
        name: params.name,
        pty: params.pty.map(|size| TerminalSize { rows: size.rows, cols: size.cols }),
    })
}

pub fn execute(params: wire::ExecParams) -> ExecRequest {
    ExecRequest {
        session: SessionId::from_text(&params.session_id),
        command: params.command,
        timeout_ms: params.timeout_ms,
        stdin: params.stdin.map(String::into_bytes),
        env: params.env.unwrap_or_default().into_iter().collect(),
        max_output_bytes: params.max_output_bytes,
    }
}

pub fn input(params: wire::ExecInputParams) -> Result<TerminalCall, TerminalError> {
    let bytes = match params.encoding {
        wire::OutputEncoding::Utf8 => params.data.into_bytes(),
        wire::OutputEncoding::Base64 => STANDARD.decode(params.data).map_err(|error| {
            TerminalError::new(TerminalErrorCode::InvalidParams, format!("data is not base64: {error}"))
        })?,
    };
    Ok(TerminalCall::Input { session: SessionId::from_text(&params.session_id), bytes, eof: params.eof })
}

pub fn output(params: &wire::ExecOutputParams) -> Result<TerminalCall, TerminalError> {
    Ok(TerminalCall::Output(OutputRange {
        session: SessionId::from_text(&params.session_id),
        exec: params.exec_id.parse()?,
        stream: match params.stream {
            wire::StreamName::Stdout => abide_terminal::OutputStream::Stdout,
            wire::StreamName::Stderr => abide_terminal::OutputStream::Stderr,
        },
        offset: params.offset,
        limit: params.limit.unwrap_or(MAX_PAGE_BYTES),
    }))
}

pub fn session(info: SessionInfo) -> wire::SessionView {
    wire::SessionView {
        session_id: info.session.as_str().to_owned(),
        name: info.name,
        state: info.state.as_str().to_owned(),
        shell: info.shell,
        cwd: info.cwd,
        pid: info.pid,
        created_at: time(info.created_at),
        env_keys: info.env_keys,
        last_activity_at: time(info.last_activity_at),
        command_count: info.command_count,
        pty: info.pty,
        running: info
            .running
            .map(|(exec, at)| wire::RunningExec { exec_id: exec.to_string(), started_at: time(at) }),
        exit_code: info.exit_code,
    }
}

pub fn destroyed(session: &SessionId) -> wire::DestroySessionResult {
    wire::DestroySessionResult {
        session_id: session.as_str().to_owned(),
        state: SessionState::Terminated.as_str().to_owned(),
    }
}

pub fn stats(stats: &RuntimeStats) -> wire::SystemStatsResult {
    wire::SystemStatsResult {
        sessions: stats.sessions as u64,
        running: stats.running as u64,
        terminated: stats.terminated as u64,
        max_sessions: stats.max_sessions as u64,
        commands: stats.commands,
        adopted: stats.adopted,
    }
}

pub fn run_result(result: ExecResult, encoding: wire::OutputEncoding) -> wire::ExecRunResult {
    let [out, err] = result.outputs;
    let [printed_out, printed_err] = result.stream_bytes;
    let (stdout, left_out) = truncate_output(&out, printed_out, encoding);
    let (stderr, left_err) = truncate_output(&err, printed_err, encoding);
    wire::ExecRunResult {
        exec_id: result.exec.to_string(),
        stdout,
        stderr,
        exit_code: result.exit.exit_code,
        duration_ms: milliseconds(result.exit.duration_us),
        timed_out: result.exit.timed_out,
        cancelled: result.exit.cancelled,
        shell_restarted: result.exit.shell_restarted,
        truncated: wire::TruncatedBytes { stdout: left_out, stderr: left_err },
        encoding,
    }
}

/// Converts a range of output. An incomplete character at its end is left for the next read.
pub fn output_piece(
    piece: &OutputPiece,
    stream: wire::StreamName,
    encoding: wire::OutputEncoding,
) -> wire::ExecOutputResult {
    let after = piece.offset + piece.bytes.len() as u64;
    let last = after >= piece.stream_bytes && piece.exit.is_some();
    let bytes = match encoding {
        wire::OutputEncoding::Utf8 if !last => {
            Some(complete_utf8_prefix(&piece.bytes)).filter(|whole| !whole.is_empty())
        }
        wire::OutputEncoding::Utf8 | wire::OutputEncoding::Base64 => None,
    };
    let bytes = bytes.unwrap_or(&piece.bytes);
    wire::ExecOutputResult {
        stream,
        offset: piece.offset,
        next_offset: piece.offset + bytes.len() as u64,
        data: encode(bytes, encoding),
        encoding,
        printed: piece.stream_bytes,
        dropped: piece.dropped_bytes,
        end: last,
        exit: piece.exit.as_ref().map(exec_exit),
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

pub fn exec_exit(finished: &CommandExit) -> wire::ExecExit {
    wire::ExecExit {
        exit_code: finished.exit_code,
        duration_ms: milliseconds(finished.duration_us),
        timed_out: finished.timed_out,
        cancelled: finished.cancelled,
        shell_restarted: finished.shell_restarted,
    }
}

/// Returns the exit and the error of the last chunk.
pub fn exit_and_error(chunk: &ExecChunk) -> (Option<wire::ExecExit>, Option<String>) {
    match chunk {
        ExecChunk::Exit(Ok(finished)) => (Some(exec_exit(finished)), None),
        ExecChunk::Exit(Err(error)) => (None, Some(error.to_string())),
        ExecChunk::Output { .. } => (None, None),
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
