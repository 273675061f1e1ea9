//! What a runtime is told when it begins. Where the values come from is the command line's.

use std::path::PathBuf;

use abide_keeper::{launch::KeeperLauncher, protocol::MAX_KEPT_BYTES};

/// What a runtime needs to know; the command line fills it.
#[derive(Debug, Clone)]
pub struct TerminalConfig {
    /// The directory of keepers.
    pub keepers: PathBuf,
    /// How a keeper is started.
    pub launcher: KeeperLauncher,
    /// The environment that sessions begin with.
    pub env: Vec<(String, String)>,
    /// The directory that sessions begin in.
    pub cwd: String,
    /// The shell if none is asked for.
    pub shell: String,
    /// Whether sessions belong to this process or to the home.
    pub detached: bool,
    /// The bounds.
    pub limits: TerminalLimits,
}

/// The bounds of a pool.
#[derive(Debug, Clone, Copy)]
pub struct TerminalLimits {
    /// The most sessions that live at a time.
    pub max_sessions: usize,
    /// Output kept on disk per session.
    pub spool_bytes: u64,
    /// The most that the result of a command carries of each stream.
    pub result_bytes: u64,
    /// An idle session is ended after this long; 0 is never.
    pub idle_ms: u64,
    /// An ended session is remembered this long.
    pub remember_ms: u64,
    /// How often the house is kept: idle, ended and orphaned sessions are looked for.
    pub housekeeping_ms: u64,
}

impl Default for TerminalLimits {
    fn default() -> Self {
        Self {
            max_sessions: 1_000,
            spool_bytes: 32 << 20,
            result_bytes: MAX_KEPT_BYTES,
            idle_ms: 86_400_000,
            remember_ms: 600_000,
            housekeeping_ms: 30_000,
        }
    }
}
