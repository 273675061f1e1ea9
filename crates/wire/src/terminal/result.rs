//! The results of the terminal methods, and the notification of streams.

use serde::{Deserialize, Serialize};
use utoipa::{
    ToSchema,
    openapi::{
        Ref, Schema,
        schema::{AnyOfBuilder, ObjectBuilder, Type},
    },
};

use super::{OutputEncoding, StreamName};

/// A session: the result of `session.create` and `session.info`, and an item of `session.list`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct SessionView {
    pub session_id: String,
    pub name: Option<String>,
    /// `CREATING`, `IDLE`, `RUNNING` or `TERMINATED`.
    pub state: String,
    /// Path of the shell.
    pub shell: String,
    /// Working directory at the start.
    pub cwd: String,
    /// Pid of the shell.
    pub pid: u32,
    pub created_at: String,
    /// Names of the variables that were set for the session. Their values are never returned.
    pub env_keys: Vec<String>,
    pub last_activity_at: String,
    /// Number of commands so far.
    pub command_count: u64,
    /// Whether the session has a terminal.
    pub pty: bool,
    /// The running command; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<RunningExec>,
    /// Exit code of the shell; absent while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

/// A running command.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct RunningExec {
    pub exec_id: String,
    pub started_at: String,
}

/// The result of `session.list`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct SessionListResult {
    pub sessions: Vec<SessionView>,
}

/// The result of `session.destroy`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct DestroySessionResult {
    pub session_id: String,
    /// Always `TERMINATED`.
    pub state: String,
}

/// The result of `exec.run`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ExecRunResult {
    pub exec_id: String,
    pub stdout: String,
    pub stderr: String,
    /// 128 + n after death by signal n.
    pub exit_code: i32,
    pub duration_ms: f64,
    pub timed_out: bool,
    /// Whether `exec.cancel` stopped it.
    pub cancelled: bool,
    /// Whether the shell could not be recovered from the stopped command and was replaced by a new one in the same
    /// directory. Variables, functions and options are then lost.
    #[serde(default)]
    pub shell_restarted: bool,
    pub truncated: TruncatedBytes,
    /// Encoding of `stdout` and `stderr`.
    pub encoding: OutputEncoding,
}

/// The number of omitted bytes of each stream.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct TruncatedBytes {
    pub stdout: u64,
    pub stderr: u64,
}

/// The result of `exec.stream`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ExecStreamResult {
    /// Id of the stream in `exec.chunk`.
    pub stream_id: String,
    pub exec_id: String,
}

/// Parameters of the notification `exec.chunk`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ExecChunkNotification {
    pub stream_id: String,
    /// Number of the chunk, from 0 and without gaps.
    pub seq: u64,
    /// `stdout`, `stderr` or `exit`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Offset of the data in the stream, in bytes.
    pub offset: u64,
    pub data: String,
    /// Encoding of `data`.
    pub encoding: OutputEncoding,
    /// Only in the last chunk: the end of the command.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = exit_if_ended)]
    pub exit: Option<ExecExit>,
    /// Only in the last chunk: the reason why the end of the command is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The end of a command.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ExecExit {
    /// 128 + n after death by signal n.
    pub exit_code: i32,
    pub duration_ms: f64,
    pub timed_out: bool,
    /// Whether `exec.cancel` stopped it.
    pub cancelled: bool,
    /// Whether the shell could not be recovered from the stopped command and was replaced by a new one in the same
    /// directory. Variables, functions and options are then lost.
    #[serde(default)]
    pub shell_restarted: bool,
}

/// The result of `exec.output`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ExecOutputResult {
    pub stream: StreamName,
    /// Offset of the data; later than requested if the requested bytes are no longer kept.
    pub offset: u64,
    /// Offset for the next call.
    pub next_offset: u64,
    pub data: String,
    /// Encoding of `data`.
    pub encoding: OutputEncoding,
    /// Number of bytes of the stream so far.
    pub printed: u64,
    /// Number of bytes at the start of the stream that are no longer kept.
    pub dropped: u64,
    /// Whether the command has ended and all of its output has been read.
    pub end: bool,
    /// Only if the command has ended.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = exit_if_ended)]
    pub exit: Option<ExecExit>,
}

/// The result of `exec.cancel`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ExecCancelResult {
    /// Always true.
    pub cancelled: bool,
}

/// The result of `session.screen`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ScreenResult {
    /// The lines of the screen, separated by line feeds.
    pub text: String,
    pub cursor: ScreenCursor,
    /// Height in lines.
    pub rows: u16,
    /// Width in columns.
    pub cols: u16,
}

/// The position of the cursor.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ScreenCursor {
    /// Line, from 0.
    pub row: u16,
    /// Column, from 0.
    pub col: u16,
}

/// The result of `exec.input` and `session.resize`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct EmptyResult {}

/// The result of `system.ping`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct SystemPingResult {
    /// Always true.
    pub pong: bool,
}

/// The result of `system.stats`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct SystemStatsResult {
    /// Number of living sessions.
    pub sessions: u64,
    /// Number of sessions with a running command.
    pub running: u64,
    /// Number of ended sessions that are still known.
    pub terminated: u64,
    /// Maximum number of living sessions.
    pub max_sessions: u64,
    /// Number of commands since the start of the runtime.
    pub commands: u64,
    /// Number of sessions adopted from dead runtimes.
    pub adopted: u64,
}

/// The fields of [`ExecExit`], or none of them. The derive macro would describe an absent flattened field as `null`.
fn exit_if_ended() -> Schema {
    AnyOfBuilder::new()
        .item(Ref::from_schema_name(ExecExit::name()))
        .item(ObjectBuilder::new().schema_type(Type::Object))
        .build()
        .into()
}
