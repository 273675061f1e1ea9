//! The parameters of the terminal methods.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{OutputEncoding, PtySize, StreamName};

/// Parameters of `session.create`.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSessionParams {
    /// Path or name of the shell; default `/bin/sh`.
    pub shell: Option<String>,
    /// Working directory; default is that of the runtime.
    pub cwd: Option<String>,
    /// Environment variables, in addition to those of the runtime.
    pub env: Option<BTreeMap<String, String>>,
    /// A name for people.
    pub name: Option<String>,
    /// Gives the session a terminal of this size instead of pipes.
    pub pty: Option<PtySize>,
}

/// Parameters of `session.info`, `exec.cancel` and `session.screen`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionParams {
    pub session_id: String,
}

/// Parameters of `session.destroy`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DestroySessionParams {
    pub session_id: String,
    /// Kills the processes at once, without SIGTERM and without a grace period.
    #[serde(default)]
    pub force: bool,
}

/// Parameters of `exec.run` and `exec.stream`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecParams {
    pub session_id: String,
    /// The command, as typed in a shell.
    pub command: String,
    /// The command is stopped after this time in milliseconds; default: no limit.
    pub timeout_ms: Option<u64>,
    /// Standard input. Without it, a command of `exec.run` reads end-of-file, and a command of `exec.stream` reads the
    /// input of `exec.input`.
    pub stdin: Option<String>,
    /// Environment variables for this command only.
    pub env: Option<BTreeMap<String, String>>,
    /// Maximum number of bytes returned for each stream; default 1 MiB. The maximum is 1 MiB for the daemon and 32 MiB
    /// for `abide rpc` and `abide mcp`.
    pub max_output_bytes: Option<u64>,
    /// Encoding of the output.
    #[serde(default)]
    pub encoding: OutputEncoding,
}

/// Parameters of `exec.input`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecInputParams {
    pub session_id: String,
    /// Input for the running command.
    #[serde(default)]
    pub data: String,
    /// Encoding of `data`.
    #[serde(default)]
    pub encoding: OutputEncoding,
    /// Closes standard input after `data`.
    #[serde(default)]
    pub eof: bool,
}

/// Parameters of `exec.output`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecOutputParams {
    pub session_id: String,
    pub exec_id: String,
    #[serde(default)]
    pub stream: StreamName,
    /// Offset of the first byte; default 0.
    #[serde(default)]
    pub offset: u64,
    /// Maximum number of bytes; default and maximum 1 MiB.
    pub limit: Option<u64>,
    /// Encoding of the output.
    #[serde(default)]
    pub encoding: OutputEncoding,
}

/// Parameters of `session.resize`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResizeSessionParams {
    pub session_id: String,
    /// Height in lines, 1 to 1000.
    #[schema(minimum = 1, maximum = 1000)]
    pub rows: u16,
    /// Width in columns, 1 to 1000.
    #[schema(minimum = 1, maximum = 1000)]
    pub cols: u16,
}
