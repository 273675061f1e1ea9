//! Starts a session: its keeper, its directory and its record.

use std::path::{Path, PathBuf};

use abide_keeper::client::remove_dead_keeper;
use abide_keeper::identity::ProcessIdentity;
use abide_keeper::keeper_dir::KeeperDir;
use abide_keeper::launch::{ChildStart, KeeperLauncher};
use abide_keeper::orphans::kill_by_env_entry;
use abide_keeper::protocol::{ChildMode, KeeperOwner, KeeperSpec, LinkPolicy, SpoolOverflow};
use abide_terminal::TerminalSize;

use super::lookup::{LiveSession, SessionOrigin};
use super::program::SessionProgram;
use super::record::SessionRecord;
use crate::tool::execution::mark_entry;
use crate::tool::one_shot::{group_name, start_failure_text};
use crate::tool::workbench::ToolError;

/// The parameters of a new session.
#[derive(Debug)]
pub(crate) struct SessionStart {
    pub(crate) id: String,
    pub(crate) program: SessionProgram,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cwd: PathBuf,
    pub(crate) cwd_links: LinkPolicy,
    /// See [`KeeperSpec::confinement`].
    pub(crate) confinement: Vec<Vec<u8>>,
    pub(crate) record: SessionRecord,
}

/// The session, or the reason of the failure for the model.
pub(crate) type SessionStartResult = Result<LiveSession, String>;

/// Maximum size of unread output on disk, in bytes.
const SPOOL_BYTES: u64 = 32 << 20;

impl SessionStart {
    pub(crate) fn start(
        mut self,
        sessions: &Path,
        launcher: &KeeperLauncher,
    ) -> Result<SessionStartResult, ToolError> {
        let size = self.record.pty.map(|(rows, cols)| TerminalSize { rows, cols });
        let (argv, mode) = match &self.program {
            SessionProgram::Shell(shell) => {
                self.record.shell = Some(shell.program().to_owned());
                shell.launch_spec(None)
            }
            SessionProgram::Other(argv) => {
                let mode = size.map_or(ChildMode::Pipes, |TerminalSize { rows, cols }| ChildMode::Pty {
                    rows,
                    cols,
                    script: None,
                });
                (argv.clone(), mode)
            }
        };
        let spec = KeeperSpec {
            argv,
            env: self.env,
            cwd: self.cwd,
            shape: mode,
            retention: SPOOL_BYTES,
            meta: serde_json::to_vec(&self.record).unwrap_or_default(),
            owner: KeeperOwner::Process(ProcessIdentity::own()),
            overflow: SpoolOverflow::DropOldest,
            confinement: self.confinement,
            group: launcher.groups.as_ref().map(|groups| groups.child_spec(&group_name())),
            cwd_links: self.cwd_links,
        };
        let (keeper, status) = match launcher.start_child(KeeperDir::new(sessions, &self.id), spec, None)? {
            ChildStart::Started(keeper, status) => (*keeper, *status),
            ChildStart::Refused(refusal) => return Ok(Err(start_failure_text(&refusal))),
            // The keeper was killed. Processes that it started must not remain.
            ChildStart::Unknown(mut keeper) => {
                keeper.await_exit();
                remove_dead_keeper(&keeper);
                kill_by_env_entry(&mark_entry(&self.record.mark));
                return Ok(Err("the process that supervises the session was killed".to_owned()));
            }
        };
        // The keeper holds the record too; the file is for people. The session works without it.
        self.record.write(keeper.keeper_dir.path()).ok();
        let notes = keeper.keeper_dir.path().to_owned();
        let (id, record, origin) = (self.id, self.record, SessionOrigin::Current);
        Ok(Ok(LiveSession { id, keeper, status, record, progress_dir: notes, origin }))
    }
}
