//! Runs a program for one call under a keeper, and leaves no process behind.
//!
//! The keeper outlives this process. After a crash, recovery can still end the program and read its output. Programs
//! that run across calls are in [`crate::session`].

use std::convert::Infallible;
use std::path::{Path, PathBuf};

use abide_keeper::client::{
    ChildEnd, ChildInput, EndMode, KeeperConnection, KeeperLookup, KeeperRequests, OutputConsumer, RunStop,
    UnclaimedPolicy, end_in_directory, find, remove_dead_keeper, run_to_end, timeouts::RESPONSE_TIMEOUT_MS,
};
use abide_keeper::identity::ProcessIdentity;
use abide_keeper::keeper_dir::KeeperDir;
use abide_keeper::launch::{ChildStart, KeeperLauncher, clean_up_dead_keeper};
use abide_keeper::protocol::{
    ChildMode, JobId, JobOutputRange, KeeperOwner, KeeperRefusal, KeeperSpec, KeeperStatus, LinkPolicy,
    MAX_PAGE_BYTES, OutputChunk, OutputStream, SpoolOverflow,
};

use super::recorder::OutputRecorder;
use super::workbench::{StopFlag, ToolError};
use crate::state_directory::StateSubfolder;

/// A program to run, and its limits.
#[derive(Debug)]
pub struct OneShotCommand<'a> {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The complete environment.
    pub env: Vec<(String, String)>,
    pub cwd: PathBuf,
    pub cwd_links: LinkPolicy,
    /// Pipes or a terminal.
    pub mode: ChildMode,
    pub stdin: Vec<u8>,
    pub timeout_ms: u64,
    /// See [`KeeperSpec::confinement`].
    pub confinement: Vec<Vec<u8>>,
    pub keeper_path: &'a Path,
}

/// The end of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OneShotEnd {
    /// The program exited by itself or was stopped.
    Exit {
        /// 128 + n for death by signal n.
        code: i32,
        timed_out: bool,
        /// Whether a person stopped the run.
        interrupted: bool,
    },
    /// The program could not be started; the text is the reason.
    NotStarted(String),
    /// The keeper was killed, so the exit status is unknown.
    Lost,
}

/// Size of the keeper's spool in bytes. It serves recovery after a crash, and programs that print faster than a loaded
/// machine lets this process start to read.
const SPOOL_BYTES: u64 = 64 << 20;

/// The name of the control group with the limits of this agent's tools and sessions. Under a daemon, they are in the
/// group of the run.
pub(crate) fn group_name() -> String {
    format!("agent-{}", std::process::id())
}

/// Records the output of a program, and stops it when a person stops the run.
pub(crate) struct RecordingConsumer<'a> {
    pub(crate) recorder: &'a mut OutputRecorder,
    pub(crate) stop: &'a StopFlag,
}

impl OutputConsumer for RecordingConsumer<'_> {
    type Error = Infallible;

    fn output(&mut self, chunk: &OutputChunk, lost_bytes: u64) -> Result<(), Infallible> {
        self.recorder.record_loss(chunk.stream, lost_bytes);
        self.recorder.push(chunk.stream, &chunk.bytes);
        Ok(())
    }

    fn is_stopped(&self) -> bool {
        self.stop.is_set()
    }
}

impl OneShotCommand<'_> {
    /// Runs the program to its end, records its output, and ends all processes that it left.
    pub fn run(
        self,
        launcher: &KeeperLauncher,
        recorder: &mut OutputRecorder,
        stop: &StopFlag,
    ) -> Result<OneShotEnd, ToolError> {
        let on_terminal = matches!(self.mode, ChildMode::Pty { .. });
        let spec = KeeperSpec {
            argv: self.argv,
            env: self.env,
            cwd: self.cwd,
            shape: self.mode,
            retention: SPOOL_BYTES,
            meta: Vec::new(),
            owner: KeeperOwner::Process(ProcessIdentity::own()),
            overflow: SpoolOverflow::DropOldest,
            confinement: self.confinement,
            group: launcher.groups.as_ref().map(|groups| groups.child_spec(&group_name())),
            cwd_links: self.cwd_links,
        };
        let keeper_dir = KeeperDir::at(self.keeper_path.to_owned());
        let (mut keeper, end) = match launcher.start_child(keeper_dir, spec, None)? {
            ChildStart::Started(mut keeper, _) => {
                let input = match on_terminal {
                    true => ChildInput::Typed(self.stdin),
                    false => ChildInput::Stdin(self.stdin),
                };
                let mut consumer = RecordingConsumer { recorder, stop };
                let Ok(end) = run_to_end(&mut keeper, input, self.timeout_ms, &mut consumer);
                (keeper, end)
            }
            ChildStart::Refused(refusal) => return Ok(OneShotEnd::NotStarted(start_failure_text(&refusal))),
            ChildStart::Unknown(keeper) => (keeper, ChildEnd::Lost),
        };
        keeper.await_exit();
        remove_dead_keeper(&keeper);
        Ok(match end {
            ChildEnd::Exited { code, stop } => OneShotEnd::Exit {
                code,
                timed_out: stop == Some(RunStop::TimedOut),
                interrupted: stop == Some(RunStop::Interrupted),
            },
            ChildEnd::Lost => OneShotEnd::Lost,
        })
    }
}

/// Ends the program that an earlier process started for a call, if it still runs, after copying its output to `folder`.
pub(crate) fn recover_command(keeper_path: &Path, folder: &StateSubfolder) -> Option<RecoveredCommand> {
    if !keeper_path.exists() {
        return None;
    }
    let keeper_dir = KeeperDir::at(keeper_path.to_owned());
    match find(&keeper_dir, UnclaimedPolicy::ForbidStart, RESPONSE_TIMEOUT_MS) {
        KeeperLookup::Alive(mut keeper, status) => {
            let recovered = read_output_and_end(&mut keeper, &status, folder);
            remove_dead_keeper(&keeper);
            Some(recovered)
        }
        KeeperLookup::Unresponsive => None,
        KeeperLookup::Exited(..) | KeeperLookup::Lost | KeeperLookup::NotStarted | KeeperLookup::Absent => {
            clean_up_dead_keeper(&keeper_dir);
            Some(RecoveredCommand { exit_code: None, was_running: false })
        }
    }
}

/// Ends the program of a keeper, after reading its output.
pub(crate) fn read_output_and_end(
    keeper: &mut KeeperConnection,
    status: &KeeperStatus,
    folder: &StateSubfolder,
) -> RecoveredCommand {
    read_remaining_output(keeper, 0, [0; 2], folder);
    // A keeper that is gone has no program to end.
    keeper.end(EndMode::Graceful).ok();
    RecoveredCommand {
        exit_code: status.exit.as_ref().map(|exit| exit.code),
        was_running: status.exit.is_none(),
    }
}

/// Ends the program of the keeper in a directory of the home, and removes the directory.
pub(crate) fn end_command(keeper_path: &Path) {
    end_in_directory(&KeeperDir::at(keeper_path.to_owned()), UnclaimedPolicy::ForbidStart);
}

/// Appends the output of a job that its files lack. `base` is the offset of the files in the job's streams. Returns the
/// end of each stream.
pub(crate) fn read_remaining_output(
    keeper: &mut KeeperConnection,
    job: JobId,
    base: [u64; 2],
    folder: &StateSubfolder,
) -> [u64; 2] {
    let mut recorder = OutputRecorder::new(folder, 0);
    let mut reached = base;
    for stream in OutputStream::ALL {
        let offset = &mut reached[stream.index()];
        *offset += folder.file_bytes(stream.name());
        loop {
            let range = JobOutputRange { job, stream, offset: *offset, limit: MAX_PAGE_BYTES };
            let Ok(piece) = keeper.read(range) else { break };
            // The spool has dropped the bytes in between; the file continues with those that are available.
            *offset = piece.offset + piece.bytes.len() as u64;
            if piece.bytes.is_empty() {
                break;
            }
            recorder.push(stream, &piece.bytes);
        }
    }
    reached
}

/// The recovered state of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecoveredCommand {
    /// `None` if the program had not ended.
    pub exit_code: Option<i32>,
    /// Whether the program still ran.
    pub was_running: bool,
}

/// The reason why a program could not be started, for the model and for the author of the tool.
pub(crate) fn start_failure_text(refusal: &KeeperRefusal) -> String {
    match refusal {
        KeeperRefusal::Program(program) if program.contains("os error 2") => {
            let name = program.split(':').next().unwrap_or(program);
            format!("there is no program \"{name}\": it is not installed, or not in PATH")
        }
        KeeperRefusal::Program(program) if !program.contains(": ") => {
            format!("there is no program \"{program}\", or it may not be executed")
        }
        KeeperRefusal::Program(program) => format!("the program cannot be started: {program}"),
        KeeperRefusal::Directory(directory) => {
            format!("there is no directory \"{directory}\" to start it in")
        }
        KeeperRefusal::Stranger
        | KeeperRefusal::Owned
        | KeeperRefusal::Busy
        | KeeperRefusal::NotRunning
        | KeeperRefusal::Ended
        | KeeperRefusal::NoInput
        | KeeperRefusal::Full(_)
        | KeeperRefusal::Unknown
        | KeeperRefusal::Unsupported(_)
        | KeeperRefusal::System(_) => refusal.to_string(),
    }
}
