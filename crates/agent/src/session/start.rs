//! Starts a session: its keeper, its directory and its record.

use std::path::{Path, PathBuf};

use abide_keeper::KeeperError;
use abide_keeper::identity::ProcessIdentity;
use abide_keeper::launch::{KeeperConnection, KeeperLauncher};
use abide_keeper::leftovers::end_marked;
use abide_keeper::place::KeeperDir;
use abide_keeper::protocol::{ChildMode, KeeperOwner, KeeperSpec, SpoolOverflow};
use abide_terminal::TerminalSize;

use super::found::{LiveSession, SessionOrigin};
use super::program::SessionProgram;
use super::record::SessionRecord;
use crate::tool::execution::mark_entry;
use crate::tool::once::{clear, group_name, reap, why_not};
use crate::tool::workbench::ToolError;

/// The parameters of a new session.
#[derive(Debug)]
pub(crate) struct SessionStart {
    pub(crate) id: String,
    pub(crate) program: SessionProgram,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cwd: PathBuf,
    /// See [`KeeperSpec::confinement`].
    pub(crate) confinement: Vec<Vec<u8>>,
    pub(crate) record: SessionRecord,
}

/// The session, or the reason of the failure for the model.
pub(crate) type SessionStartResult = Result<LiveSession, String>;

/// Timeout for the start of a program or shell.
const START_MS: u64 = 30_000;
/// Maximum size of unread output on disk, in bytes.
const SPOOL: u64 = 32 << 20;

impl SessionStart {
    pub(crate) fn start(
        mut self,
        sessions: &Path,
        launcher: &KeeperLauncher,
    ) -> Result<SessionStartResult, ToolError> {
        let size = self.record.pty.map(|(rows, cols)| TerminalSize { rows, cols });
        let (argv, shape) = match &self.program {
            SessionProgram::Shell(shell) => {
                self.record.shell = Some(shell.program().to_owned());
                shell.start(None)
            }
            SessionProgram::Other(argv) => {
                let shape = size.map_or(ChildMode::Pipes, |TerminalSize { rows, cols }| ChildMode::Pty {
                    rows,
                    cols,
                    script: None,
                });
                (argv.clone(), shape)
            }
        };
        let spec = KeeperSpec {
            argv,
            env: self.env,
            cwd: self.cwd,
            shape,
            retention: SPOOL,
            meta: serde_json::to_vec(&self.record).unwrap_or_default(),
            owner: KeeperOwner::Process(ProcessIdentity::own()),
            overflow: SpoolOverflow::DropOldest,
            confinement: self.confinement,
            group: launcher.groups.as_ref().map(|groups| groups.of_child(&group_name())),
        };
        let mut keeper: KeeperConnection = launcher.start(KeeperDir::new(sessions, &self.id), spec, None)?;
        let status = match keeper.status(START_MS) {
            Ok(status) => status,
            Err(KeeperError::Refused(refusal)) => {
                reap(&mut keeper);
                return Ok(Err(why_not(&refusal)));
            }
            // The keeper was started and does not respond, so it was killed. Processes that it started must not remain.
            Err(
                KeeperError::Gone { .. }
                | KeeperError::Silent { .. }
                | KeeperError::Protocol(_)
                | KeeperError::System { .. },
            ) => {
                reap(&mut keeper);
                clear(&keeper);
                end_marked(&mark_entry(&self.record.mark));
                return Ok(Err("the process that supervises the session was killed".to_owned()));
            }
        };
        // The keeper holds the record too; the file is for people. The session works without it.
        self.record.write(keeper.place.path()).ok();
        let notes = keeper.place.path().to_owned();
        let (id, record, origin) = (self.id, self.record, SessionOrigin::Own);
        Ok(Ok(LiveSession { id, keeper, status, record, notes, origin }))
    }
}
