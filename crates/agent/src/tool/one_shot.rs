//! Runs a program for one call under a keeper, and leaves no process behind.
//!
//! The keeper outlives this process. After a crash, recovery can still end the program and read its output. Programs
//! that run across calls are in [`crate::session`].

use std::path::{Path, PathBuf};

use abide_keeper::KeeperError;
use abide_keeper::identity::ProcessIdentity;
use abide_keeper::keeper_dir::KeeperDir;
use abide_keeper::launch::{
    KeeperConnection, KeeperLauncher, StartupState, clean_up_dead_keeper, forbid_start, kill_keeper,
    resume_keeper, startup_state,
};
use abide_keeper::protocol::{
    ChildMode, JobId, JobOutputRange, KeeperOwner, KeeperRefusal, KeeperRequest, KeeperResponse, KeeperSpec,
    KeeperStatus, LinkPolicy, OutputStream, SpoolOverflow, TaggedRequest, TaggedResponse,
};

use super::clock::monotonic_millis;
use super::recorder::{OutputRecorder, file_name};
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
    /// The keeper's directory.
    pub keeper_path: &'a Path,
}

/// The end of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandEnd {
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

/// Timeout for the first response of a keeper.
const START_TIMEOUT_MS: u64 = 20_000;
/// Timeout for the end of all processes; longer than the keeper's own sequence of signals.
const END_TIMEOUT_MS: u64 = 20_000;
/// Interval of the polls for timeout and interruption.
const POLL_INTERVAL_MS: u64 = 50;
/// Size of the keeper's spool in bytes. It serves recovery after a crash, and programs that print faster than a loaded
/// machine lets this process start to read.
const SPOOL_BYTES: u64 = 64 << 20;

/// The name of the control group with the limits of this agent's tools and sessions. Under a daemon, they are in the
/// group of the run.
pub(crate) fn group_name() -> String {
    format!("agent-{}", std::process::id())
}

const FOLLOW_TAG: u64 = 1;
const INPUT_TAG: u64 = 2;
const END_TAG: u64 = 3;

impl OneShotCommand<'_> {
    /// Runs the program to its end, records its output, and ends all processes that it left.
    pub fn run(
        self,
        launcher: &KeeperLauncher,
        recorder: &mut OutputRecorder,
        stop: &StopFlag,
    ) -> Result<CommandEnd, ToolError> {
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
        let mut keeper = launcher.start(keeper_dir, spec, None)?;
        let ended = match keeper.status(START_TIMEOUT_MS) {
            Ok(_) => {
                let start_ms = monotonic_millis();
                let input = if on_terminal {
                    KeeperRequest::Input { bytes: self.stdin, eof: false }
                } else {
                    KeeperRequest::Write { key: 1, bytes: self.stdin, eof: true }
                };
                let deadline = start_ms.saturating_add(self.timeout_ms);
                run_to_end(&mut keeper, input, recorder, stop, deadline)
            }
            Err(KeeperError::Refused(refusal)) => {
                reap_keeper(&mut keeper);
                return Ok(CommandEnd::NotStarted(start_failure_text(&refusal)));
            }
            // The keeper was started and does not respond, so it is unknown whether the program began.
            Err(
                KeeperError::NoKeeper { .. }
                | KeeperError::Unresponsive { .. }
                | KeeperError::Protocol(_)
                | KeeperError::System { .. },
            ) => CommandEnd::Lost,
        };
        reap_keeper(&mut keeper);
        remove_dead_keeper(&keeper);
        Ok(ended)
    }
}

/// Sends the input, records the output until the program has ended, and ends the processes that it left. A broken
/// connection means that the keeper is gone.
fn run_to_end(
    keeper: &mut KeeperConnection,
    input: KeeperRequest,
    recorder: &mut OutputRecorder,
    stop: &StopFlag,
    deadline: u64,
) -> CommandEnd {
    let follow =
        TaggedRequest { tag: FOLLOW_TAG, act: KeeperRequest::FollowClosely { job: 0, from: [0; 2] } };
    // The program may exit without reading its input.
    if [follow, TaggedRequest { tag: INPUT_TAG, act: input }]
        .iter()
        .any(|order| keeper.socket.send(order).is_err())
    {
        return CommandEnd::Lost;
    }
    let (mut timed_out, mut interrupted, mut code) = (false, false, None);
    let mut end_deadline = None;
    let mut read_offsets = [0; 2];
    loop {
        let now = monotonic_millis();
        if end_deadline.is_none() && code.is_none() {
            interrupted = stop.is_set();
            timed_out = now >= deadline && !interrupted;
        }
        if end_deadline.is_none() && (timed_out || interrupted || code.is_some()) {
            end_deadline = Some(now + END_TIMEOUT_MS);
            // A tool can suspend its keeper with SIGSTOP (SECURITY 10).
            resume_keeper(&keeper.keeper_dir);
            if keeper
                .socket
                .send(&TaggedRequest { tag: END_TAG, act: KeeperRequest::End { force: false } })
                .is_err()
            {
                break;
            }
        }
        let wait = if end_deadline.is_some() {
            POLL_INTERVAL_MS
        } else {
            deadline.saturating_sub(now).min(POLL_INTERVAL_MS)
        };
        let Ok(answer) = keeper.socket.wait::<TaggedResponse>(wait) else { break };
        match answer {
            Some(TaggedResponse { news: KeeperResponse::Output(output), .. }) => {
                let read_offsets = &mut read_offsets[output.stream.index()];
                recorder.record_loss(output.stream, output.offset.saturating_sub(*read_offsets));
                *read_offsets = output.offset + output.bytes.len() as u64;
                recorder.push(output.stream, &output.bytes);
            }
            Some(TaggedResponse { tag: FOLLOW_TAG, news: KeeperResponse::Ended(outcome) }) => {
                code = Some(outcome.code)
            }
            Some(TaggedResponse { news: KeeperResponse::Exited(exit), .. }) if end_deadline.is_some() => {
                code.get_or_insert(exit.code);
            }
            Some(TaggedResponse { tag: END_TAG, .. }) => break,
            Some(_) => {}
            None if keeper.socket.is_closed() => break,
            None if end_deadline.is_some_and(|at| now >= at) => break,
            None => {}
        }
    }
    match code {
        Some(code) => CommandEnd::Exit { code, timed_out, interrupted },
        None => {
            if !keeper.socket.is_closed() {
                kill_keeper(&keeper.keeper_dir, None);
            }
            CommandEnd::Lost
        }
    }
}

/// Waits until the keeper has exited and reaps it, so that no zombie remains.
pub(crate) fn reap_keeper(keeper: &mut KeeperConnection) {
    let give_up_at = monotonic_millis() + END_TIMEOUT_MS;
    while !keeper.socket.is_closed() && monotonic_millis() < give_up_at {
        if keeper.socket.wait::<TaggedResponse>(POLL_INTERVAL_MS).is_err() {
            break;
        }
    }
    if keeper.socket.is_closed()
        && let Some(mut process) = keeper.take_process()
    {
        // The keeper's connections close only when it exits, so this does not block.
        process.wait().ok();
    }
}

/// Removes the files and processes of a keeper that is gone.
pub(crate) fn remove_dead_keeper(keeper: &KeeperConnection) {
    let keeper_dir = &keeper.keeper_dir;
    // A keeper that was killed before it recorded its child looks like one that is starting, unless its connection is
    // closed.
    if keeper_dir.path().exists() && !clean_up_dead_keeper(keeper_dir) && keeper.socket.is_closed() {
        keeper_dir.remove().ok();
    }
}

/// Connects to the keeper in a directory, also while it starts. `None` if there is none and none can start.
pub(crate) fn attach_or_forbid_start(keeper_dir: &KeeperDir) -> Option<KeeperConnection> {
    let give_up_at = monotonic_millis() + START_TIMEOUT_MS;
    loop {
        if let Ok(keeper) = KeeperConnection::attach(keeper_dir.clone()) {
            return Some(keeper);
        }
        match startup_state(keeper_dir) {
            StartupState::Alive if monotonic_millis() < give_up_at && keeper_dir.path().exists() => {}
            // No keeper has claimed the directory, and the process that wanted one is gone. A late keeper must not
            // start.
            StartupState::Unclaimed if keeper_dir.path().exists() => forbid_start(keeper_dir),
            StartupState::Alive | StartupState::Unclaimed | StartupState::Dead | StartupState::Forbidden => {
                return None;
            }
        }
        let pause = rustix::event::Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
        // An interrupted wait only makes the next attempt earlier.
        rustix::event::poll(&mut [], Some(&pause)).ok();
    }
}

/// Ends the program that an earlier process started for a call, if it still runs, after copying its output to `folder`.
pub(crate) fn recover_command(keeper_path: &Path, folder: &StateSubfolder) -> Option<RecoveredCommand> {
    if !keeper_path.exists() {
        return None;
    }
    let keeper_path = KeeperDir::at(keeper_path.to_owned());
    let Some(mut keeper) = attach_or_forbid_start(&keeper_path) else {
        clean_up_dead_keeper(&keeper_path);
        return Some(RecoveredCommand { exit_code: None, was_running: false });
    };
    let status = keeper.status(START_TIMEOUT_MS).ok()?;
    let recovered = read_output_and_end(&mut keeper, &status, folder);
    remove_dead_keeper(&keeper);
    Some(recovered)
}

/// Ends the program of a keeper, after reading its output.
pub(crate) fn read_output_and_end(
    keeper: &mut KeeperConnection,
    status: &KeeperStatus,
    folder: &StateSubfolder,
) -> RecoveredCommand {
    read_remaining_output(keeper, 0, [0; 2], folder);
    // A keeper that is gone has no program to end.
    keeper.request(END_TAG, KeeperRequest::End { force: false }, END_TIMEOUT_MS).ok();
    reap_keeper(keeper);
    RecoveredCommand {
        exit_code: status.exit.as_ref().map(|exit| exit.code),
        was_running: status.exit.is_none(),
    }
}

/// Ends the program of the keeper in a directory of the home, and removes the directory.
pub(crate) fn end_command(keeper_path: &Path) {
    if !keeper_path.exists() {
        return;
    }
    let keeper_path = KeeperDir::at(keeper_path.to_owned());
    match attach_or_forbid_start(&keeper_path) {
        Some(mut keeper) => {
            keeper.request(END_TAG, KeeperRequest::End { force: false }, END_TIMEOUT_MS).ok();
            reap_keeper(&mut keeper);
            remove_dead_keeper(&keeper);
        }
        None => drop(clean_up_dead_keeper(&keeper_path)),
    }
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
    for (tag, stream) in (FIRST_READ_TAG..).zip(OutputStream::ALL) {
        let offset = &mut reached[stream.index()];
        *offset += folder.file_bytes(file_name(stream));
        loop {
            let range = JobOutputRange { job, stream, offset: *offset, limit: 1 << 20 };
            let Ok(KeeperResponse::Piece(piece)) =
                keeper.request(tag, KeeperRequest::Read(range), START_TIMEOUT_MS)
            else {
                break;
            };
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

const FIRST_READ_TAG: u64 = 10;

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
