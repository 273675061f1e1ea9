//! The configuration of a runtime. The command line supplies the values.

use std::path::PathBuf;

use abide_keeper::{launch::KeeperLauncher, protocol::MAX_RESULT_BYTES};

/// The configuration of a runtime.
#[derive(Debug, Clone)]
pub struct TerminalConfig {
    /// The directory of keepers.
    pub keepers_dir: PathBuf,
    pub launcher: KeeperLauncher,
    /// The initial environment of sessions.
    pub env: Vec<(String, String)>,
    /// The default working directory of sessions.
    pub cwd: String,
    pub shell: String,
    /// True if sessions belong to the home and not to this process.
    pub detached: bool,
    pub limits: TerminalLimits,
}

/// The limits of a pool.
#[derive(Debug, Clone, Copy)]
pub struct TerminalLimits {
    /// Maximum number of living sessions.
    pub max_sessions: usize,
    /// Output kept on disk for each session, in bytes.
    pub spool_bytes: u64,
    /// Maximum bytes of each stream in a result.
    pub max_result_bytes: u64,
    /// An idle session is ended after this many milliseconds; 0 disables it.
    pub idle_timeout_ms: u64,
    /// An ended session stays known for this many milliseconds.
    pub ended_retention_ms: u64,
    /// Interval of the housekeeping in milliseconds, which handles idle, ended and orphaned sessions.
    pub housekeeping_interval_ms: u64,
}

impl Default for TerminalLimits {
    fn default() -> Self {
        Self {
            max_sessions: 1_000,
            spool_bytes: 32 << 20,
            max_result_bytes: MAX_RESULT_BYTES,
            idle_timeout_ms: 86_400_000,
            ended_retention_ms: 600_000,
            housekeeping_interval_ms: 30_000,
        }
    }
}
