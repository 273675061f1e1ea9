//! The parameters and results of the terminal methods, the same for JSON-RPC, HTTP and MCP.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `session.create`
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CreateParams")]
pub struct CreateSessionParams {
    /// Path or name of the shell; `/bin/sh` if none is given.
    pub shell: Option<String>,
    /// Working directory.
    pub cwd: Option<String>,
    /// Environment variables on top of the runtime's.
    pub env: Option<BTreeMap<String, String>>,
    /// A name for people.
    pub name: Option<String>,
    /// A terminal instead of pipes.
    pub pty: Option<PtySize>,
}

/// The size of a terminal.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PtySize {
    /// Height in lines.
    pub rows: u16,
    /// Width in columns.
    pub cols: u16,
}

/// `session.info`, `exec.cancel`, `session.screen`
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionParams {
    /// `s-…`, from `session.create`.
    pub session_id: String,
}

/// `session.destroy`
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "DestroyParams")]
pub struct DestroySessionParams {
    /// `s-…`, from `session.create`.
    pub session_id: String,
    /// At once, without SIGTERM and grace.
    #[serde(default)]
    pub force: bool,
}

/// `exec.run` and `exec.stream`
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecParams {
    /// `s-…`, from `session.create`.
    pub session_id: String,
    /// The command, as one would type it.
    pub command: String,
    /// After how many milliseconds it is stopped.
    pub timeout_ms: Option<u64>,
    /// Standard input; without it, `exec.run` reads end-of-file.
    pub stdin: Option<String>,
    /// Environment variables for this command only.
    pub env: Option<BTreeMap<String, String>>,
    /// How many bytes of each stream are returned (1 MiB). At most 1 MiB by the daemon, 32 MiB by `abide rpc` and
    /// `abide mcp`.
    pub max_output_bytes: Option<u64>,
    /// How output is written: `utf8` or `base64`.
    #[serde(default)]
    pub encoding: OutputEncoding,
}

/// How bytes are written in JSON.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "Encoding")]
pub enum OutputEncoding {
    /// As text; invalid UTF-8 becomes U+FFFD.
    #[default]
    Utf8,
    /// As base64.
    Base64,
}

/// `exec.input`
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "InputParams")]
pub struct ExecInputParams {
    /// `s-…`, from `session.create`.
    pub session_id: String,
    /// Text for the running command.
    #[serde(default)]
    pub data: String,
    /// How `data` is written.
    #[serde(default)]
    pub encoding: OutputEncoding,
    /// Nothing more will come.
    #[serde(default)]
    pub eof: bool,
}

/// `exec.output`
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "OutputParams")]
pub struct ExecOutputParams {
    /// `s-…`, from `session.create`.
    pub session_id: String,
    /// From `exec.run` or `exec.stream`.
    pub exec_id: String,
    /// `stdout` unless given.
    #[serde(default)]
    pub stream: StreamName,
    /// The first byte to read; 0 is the first byte of the command.
    #[serde(default)]
    pub offset: u64,
    /// How many bytes at most; 1 MiB unless given, and never more than that.
    pub limit: Option<u64>,
    /// How output is written.
    #[serde(default)]
    pub encoding: OutputEncoding,
}

/// An output stream.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StreamName {
    /// Standard output.
    #[default]
    Stdout,
    /// Standard error.
    Stderr,
}

/// `session.resize`
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ResizeParams")]
pub struct ResizeSessionParams {
    /// `s-…`, from `session.create`.
    pub session_id: String,
    /// Height in lines.
    pub rows: u16,
    /// Width in columns.
    pub cols: u16,
}

/// A session, as `session.create`, `session.info` and `session.list` tell it.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Session")]
pub struct SessionView {
    /// `s-…`.
    pub session_id: String,
    /// The name given at creation.
    pub name: Option<String>,
    /// `CREATING`, `IDLE`, `RUNNING` or `TERMINATED`.
    pub state: String,
    /// Path or name of the shell.
    pub shell: String,
    /// The directory in which it was started.
    pub cwd: String,
    /// The shell's pid.
    pub pid: u32,
    /// RFC 3339 in UTC.
    pub created_at: String,
    /// The names of the variables that were set for it, never their values.
    pub env_keys: Vec<String>,
    /// When it last did something.
    pub last_activity_at: String,
    /// How many commands it was given.
    pub command_count: u64,
    /// Whether it has a terminal.
    pub pty: bool,
    /// The running command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<RunningExec>,
    /// How the shell ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

/// A running command.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Running")]
pub struct RunningExec {
    /// Unique in its session.
    pub exec_id: String,
    /// RFC 3339 in UTC.
    pub started_at: String,
}

/// The answer to `session.list`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Sessions")]
pub struct SessionListResult {
    /// All of this runtime's.
    pub sessions: Vec<SessionView>,
}

/// The answer to `exec.run`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "RunResult")]
pub struct ExecRunResult {
    /// The command's id.
    pub exec_id: String,
    pub stdout: String,
    pub stderr: String,
    /// Exit code, 128 + n for death by signal n.
    pub exit_code: i32,
    /// How long it took.
    pub duration_ms: f64,
    /// Its time was over.
    pub timed_out: bool,
    /// Stopped by a request.
    pub cancelled: bool,
    /// The shell could not be called back and was replaced by a new one in the same directory: variables, functions and
    /// options are lost.
    #[serde(default)]
    pub shell_restarted: bool,
    /// How many bytes were left out.
    pub truncated: TruncatedBytes,
    /// How the two outputs are written.
    pub encoding: OutputEncoding,
}

/// How many bytes of each stream were left out.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Truncated")]
pub struct TruncatedBytes {
    /// Of standard output.
    pub stdout: u64,
    /// Of standard error.
    pub stderr: u64,
}

/// The answer to `exec.stream`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Streaming")]
pub struct ExecStreamResult {
    /// The name of the stream in `exec.chunk`.
    pub stream_id: String,
    /// The command's id.
    pub exec_id: String,
}

/// The notification `exec.chunk`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Chunk")]
pub struct ExecChunkNotification {
    /// From `exec.stream`.
    pub stream_id: String,
    /// From 0, without gaps.
    pub seq: u64,
    /// `stdout`, `stderr` or `exit`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Where in the stream the data begins, in bytes.
    pub offset: u64,
    /// In the requested encoding.
    pub data: String,
    /// How it is written.
    pub encoding: OutputEncoding,
    /// In the last chunk: how the command ended.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub exit: Option<ExecExit>,
    /// In the last chunk: why that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// How a command ended.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Exit")]
pub struct ExecExit {
    /// Exit code.
    pub exit_code: i32,
    /// How long it took.
    pub duration_ms: f64,
    /// Its time was over.
    pub timed_out: bool,
    /// Stopped by a request.
    pub cancelled: bool,
    /// The shell could not be called back and was replaced by a new one in the same directory: variables, functions and
    /// options are lost.
    #[serde(default)]
    pub shell_restarted: bool,
}

/// The answer to `exec.output`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Output")]
pub struct ExecOutputResult {
    pub stream: StreamName,
    /// Where the data begins; later than asked if what was asked for has been dropped.
    pub offset: u64,
    /// The offset of the next read.
    pub next_offset: u64,
    /// In the requested encoding.
    pub data: String,
    /// How it is written.
    pub encoding: OutputEncoding,
    /// How many bytes the stream has had so far.
    pub printed: u64,
    /// How many of its first bytes are no longer kept.
    pub dropped: u64,
    /// Whether the command has ended and everything has been read.
    pub end: bool,
    /// How the command ended, if it has.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub exit: Option<ExecExit>,
}

/// The answer to `session.screen`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Screen")]
pub struct ScreenResult {
    /// The screen, line by line.
    pub text: String,
    /// Where the cursor is, from 0.
    pub cursor: ScreenCursor,
    /// Height in lines.
    pub rows: u16,
    /// Width in columns.
    pub cols: u16,
}

/// Where the cursor is, from 0.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Cursor")]
pub struct ScreenCursor {
    /// Counted from 0.
    pub row: u16,
    /// Counted from 0.
    pub col: u16,
}
