//! The parameters and results of the terminal methods, the same for JSON-RPC, HTTP and MCP.

mod params;
mod result;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use params::{
    CreateSessionParams, DestroySessionParams, ExecInputParams, ExecOutputParams, ExecParams,
    ResizeSessionParams, SessionParams,
};
pub use result::{
    DestroySessionResult, EmptyResult, ExecCancelResult, ExecChunkNotification, ExecExit, ExecOutputResult,
    ExecRunResult, ExecStreamResult, RunningExec, ScreenCursor, ScreenResult, SessionListResult, SessionView,
    SystemPingResult, SystemStatsResult, TruncatedBytes,
};

/// The size of a terminal.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PtySize {
    /// Height in lines, 1 to 1000.
    #[schema(minimum = 1, maximum = 1000)]
    pub rows: u16,
    /// Width in columns, 1 to 1000.
    #[schema(minimum = 1, maximum = 1000)]
    pub cols: u16,
}

/// The encoding of bytes in JSON.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OutputEncoding {
    /// Text. Bytes that are not UTF-8 become U+FFFD.
    #[default]
    Utf8,
    Base64,
}

/// An output stream.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum StreamName {
    #[default]
    Stdout,
    Stderr,
}
