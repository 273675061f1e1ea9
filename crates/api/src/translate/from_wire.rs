//! Converts wire types to the parameters of calls to the terminal runtime.

use abide_terminal::{
    CreateSessionRequest, ExecId, ExecRequest, JobOutputRange, MAX_PAGE_BYTES, OutputStream, SessionId,
    TerminalError, TerminalErrorCode, TerminalSize,
};
use abide_wire::terminal as wire;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

pub fn session_id(params: &wire::SessionParams) -> SessionId {
    SessionId::from_text(&params.session_id)
}

pub fn create(params: wire::CreateSessionParams) -> CreateSessionRequest {
    CreateSessionRequest {
        shell: params.shell,
        cwd: params.cwd,
        env: params.env.unwrap_or_default().into_iter().collect(),
        name: params.name,
        pty: params.pty.map(|size| TerminalSize { rows: size.rows, cols: size.cols }),
    }
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

/// Returns the bytes of an input.
pub fn input(params: wire::ExecInputParams) -> Result<Vec<u8>, TerminalError> {
    match params.encoding {
        wire::OutputEncoding::Utf8 => Ok(params.data.into_bytes()),
        wire::OutputEncoding::Base64 => STANDARD.decode(params.data).map_err(|error| {
            TerminalError::new(TerminalErrorCode::InvalidParams, format!("data is not base64: {error}"))
        }),
    }
}

pub fn output_range(params: &wire::ExecOutputParams) -> Result<JobOutputRange, TerminalError> {
    let ExecId(job) = params.exec_id.parse()?;
    Ok(JobOutputRange {
        job,
        stream: match params.stream {
            wire::StreamName::Stdout => OutputStream::Stdout,
            wire::StreamName::Stderr => OutputStream::Stderr,
        },
        offset: params.offset,
        limit: params.limit.unwrap_or(MAX_PAGE_BYTES),
    })
}
