//! Runs a program for one call under a keeper, and leaves no process behind.
//!
//! The keeper outlives this process. After a crash, recovery can still end the program and read its output. Programs
//! that run across calls are in [`crate::session`].

use std::path::{Path, PathBuf};

use abide_keeper::KeeperError;
use abide_keeper::identity::ProcessIdentity;
use abide_keeper::launch::{
    KeeperConnection, KeeperLauncher, StartupState, kill, prevent, resume, stage, sweep,
};
use abide_keeper::place::KeeperDir;
use abide_keeper::protocol::{
    ChildMode, JobId, JobOutputRange, KeeperOwner, KeeperRefusal, KeeperRequest, KeeperResponse, KeeperSpec,
    KeeperStatus, OutputStream, SpoolOverflow, TaggedRequest, TaggedResponse,
};

use super::clock::ticks_ms;
use super::recorder::{OutputRecorder, file_name};
use super::workbench::{StopFlag, ToolError};
use crate::state::StateSubfolder;

/// A program to run, and its limits.
#[derive(Debug)]
pub struct OneShotCommand<'a> {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The complete environment.
    pub env: Vec<(String, String)>,
    pub cwd: PathBuf,
    /// Pipes or a terminal.
    pub shape: ChildMode,
    pub stdin: Vec<u8>,
    pub timeout_ms: u64,
    /// See [`KeeperSpec::confinement`].
    pub confinement: Vec<Vec<u8>>,
    /// The keeper's directory.
    pub place: &'a Path,
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
const START_MS: u64 = 20_000;
/// Timeout for the end of all processes; longer than the keeper's own sequence of signals.
const END_MS: u64 = 20_000;
/// Interval of the polls for timeout and interruption.
const LOOK_MS: u64 = 50;
/// Size of the keeper's spool in bytes. It serves recovery after a crash, and programs that print faster than a loaded
/// machine lets this process start to read.
const SPOOL: u64 = 64 << 20;

/// The name of the control group with the limits of this agent's tools and sessions. Under a daemon, they are in the
/// group of the run.
pub(crate) fn group_name() -> String {
    format!("agent-{}", std::process::id())
}

const FOLLOW: u64 = 1;
const INPUT: u64 = 2;
const END: u64 = 3;

impl OneShotCommand<'_> {
    /// Runs the program to its end, records its output, and ends all processes that it left.
    pub fn run(
        self,
        launcher: &KeeperLauncher,
        recorder: &mut OutputRecorder,
        stop: &StopFlag,
    ) -> Result<CommandEnd, ToolError> {
        let on_terminal = matches!(self.shape, ChildMode::Pty { .. });
        let spec = KeeperSpec {
            argv: self.argv,
            env: self.env,
            cwd: self.cwd,
            shape: self.shape,
            retention: SPOOL,
            meta: Vec::new(),
            owner: KeeperOwner::Process(ProcessIdentity::own()),
            overflow: SpoolOverflow::DropOldest,
            confinement: self.confinement,
            group: launcher.groups.as_ref().map(|groups| groups.of_child(&group_name())),
        };
        let place = KeeperDir::at(self.place.to_owned());
        let mut keeper = launcher.start(place, spec, None)?;
        let ended = match keeper.status(START_MS) {
            Ok(_) => {
                let began = ticks_ms();
                let input = if on_terminal {
                    KeeperRequest::Input { bytes: self.stdin, eof: false }
                } else {
                    KeeperRequest::Write { key: 1, bytes: self.stdin, eof: true }
                };
                let deadline = began.saturating_add(self.timeout_ms);
                watch(&mut keeper, input, recorder, stop, deadline)
            }
            Err(KeeperError::Refused(refusal)) => {
                reap(&mut keeper);
                return Ok(CommandEnd::NotStarted(why_not(&refusal)));
            }
            // The keeper was started and does not respond, so it is unknown whether the program began.
            Err(
                KeeperError::Gone { .. }
                | KeeperError::Silent { .. }
                | KeeperError::Protocol(_)
                | KeeperError::System { .. },
            ) => CommandEnd::Lost,
        };
        reap(&mut keeper);
        clear(&keeper);
        Ok(ended)
    }
}

/// Sends the input, records the output until the program has ended, and ends the processes that it left. A broken
/// connection means that the keeper is gone.
fn watch(
    keeper: &mut KeeperConnection,
    input: KeeperRequest,
    recorder: &mut OutputRecorder,
    stop: &StopFlag,
    deadline: u64,
) -> CommandEnd {
    let follow = TaggedRequest { tag: FOLLOW, act: KeeperRequest::FollowClosely { job: 0, from: [0; 2] } };
    // The program may exit without reading its input.
    if [follow, TaggedRequest { tag: INPUT, act: input }].iter().any(|order| keeper.link.send(order).is_err())
    {
        return CommandEnd::Lost;
    }
    let (mut timed_out, mut interrupted, mut code) = (false, false, None);
    let mut given_up_at = None;
    let mut seen = [0; 2];
    loop {
        let now = ticks_ms();
        if given_up_at.is_none() && code.is_none() {
            interrupted = stop.is_asked();
            timed_out = now >= deadline && !interrupted;
        }
        if given_up_at.is_none() && (timed_out || interrupted || code.is_some()) {
            given_up_at = Some(now + END_MS);
            // A tool can suspend its keeper with SIGSTOP (SECURITY 10).
            resume(&keeper.place);
            if keeper
                .link
                .send(&TaggedRequest { tag: END, act: KeeperRequest::End { force: false } })
                .is_err()
            {
                break;
            }
        }
        let wait = if given_up_at.is_some() { LOOK_MS } else { deadline.saturating_sub(now).min(LOOK_MS) };
        let Ok(answer) = keeper.link.wait::<TaggedResponse>(wait) else { break };
        match answer {
            Some(TaggedResponse { news: KeeperResponse::Output(output), .. }) => {
                let seen = &mut seen[output.stream.index()];
                recorder.lost(output.stream, output.offset.saturating_sub(*seen));
                *seen = output.offset + output.bytes.len() as u64;
                recorder.push(output.stream, &output.bytes);
            }
            Some(TaggedResponse { tag: FOLLOW, news: KeeperResponse::Ended(outcome) }) => {
                code = Some(outcome.code)
            }
            Some(TaggedResponse { news: KeeperResponse::Exited(exit), .. }) if given_up_at.is_some() => {
                code.get_or_insert(exit.code);
            }
            Some(TaggedResponse { tag: END, .. }) => break,
            Some(_) => {}
            None if keeper.link.is_closed() => break,
            None if given_up_at.is_some_and(|at| now >= at) => break,
            None => {}
        }
    }
    match code {
        Some(code) => CommandEnd::Exit { code, timed_out, interrupted },
        None => {
            if !keeper.link.is_closed() {
                kill(&keeper.place, None);
            }
            CommandEnd::Lost
        }
    }
}

/// Waits until the keeper has exited and reaps it, so that no zombie remains.
pub(crate) fn reap(keeper: &mut KeeperConnection) {
    let give_up_at = ticks_ms() + END_MS;
    while !keeper.link.is_closed() && ticks_ms() < give_up_at {
        if keeper.link.wait::<TaggedResponse>(LOOK_MS).is_err() {
            break;
        }
    }
    if keeper.link.is_closed()
        && let Some(mut process) = keeper.take_process()
    {
        // The keeper's connections close only when it exits, so this does not block.
        process.wait().ok();
        keeper.clear_group();
    }
}

/// Removes the files and processes of a keeper that is gone.
pub(crate) fn clear(keeper: &KeeperConnection) {
    let place = &keeper.place;
    // A keeper that was killed before it recorded its child looks like one that is starting, unless its connection is
    // closed.
    if place.path().exists() && !sweep(place) && keeper.link.is_closed() {
        place.remove().ok();
    }
}

/// Connects to the keeper in a directory, also while it starts. `None` if there is none and none can start.
pub(crate) fn attach(place: &KeeperDir) -> Option<KeeperConnection> {
    let give_up_at = ticks_ms() + START_MS;
    loop {
        if let Ok(keeper) = KeeperConnection::attach(place.clone()) {
            return Some(keeper);
        }
        match stage(place) {
            StartupState::Alive if ticks_ms() < give_up_at && place.path().exists() => {}
            // No keeper has claimed the directory, and the process that wanted one is gone. A late keeper must not
            // start.
            StartupState::Unclaimed if place.path().exists() => prevent(place),
            StartupState::Alive | StartupState::Unclaimed | StartupState::Dead | StartupState::Never => {
                return None;
            }
        }
        let moment = rustix::event::Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
        // An interrupted wait only makes the next attempt earlier.
        rustix::event::poll(&mut [], Some(&moment)).ok();
    }
}

/// Ends the program that an earlier process started for a call, if it still runs, after copying its output to `folder`.
pub(crate) fn recover(place: &Path, folder: &StateSubfolder) -> Option<RecoveredCommand> {
    if !place.exists() {
        return None;
    }
    let place = KeeperDir::at(place.to_owned());
    let Some(mut keeper) = attach(&place) else {
        sweep(&place);
        return Some(RecoveredCommand { exit_code: None, was_running: false });
    };
    let status = keeper.status(START_MS).ok()?;
    let left = end_after(&mut keeper, &status, folder);
    clear(&keeper);
    Some(left)
}

/// Ends the program of a keeper, after reading its output.
pub(crate) fn end_after(
    keeper: &mut KeeperConnection,
    status: &KeeperStatus,
    folder: &StateSubfolder,
) -> RecoveredCommand {
    take_rest(keeper, 0, [0; 2], folder);
    // A keeper that is gone has no program to end.
    keeper.ask(END, KeeperRequest::End { force: false }, END_MS).ok();
    reap(keeper);
    RecoveredCommand {
        exit_code: status.exit.as_ref().map(|exit| exit.code),
        was_running: status.exit.is_none(),
    }
}

/// Ends the program of the keeper in a directory of the home, and removes the directory.
pub(crate) fn end(place: &Path) {
    if !place.exists() {
        return;
    }
    let place = KeeperDir::at(place.to_owned());
    match attach(&place) {
        Some(mut keeper) => {
            keeper.ask(END, KeeperRequest::End { force: false }, END_MS).ok();
            reap(&mut keeper);
            clear(&keeper);
        }
        None => drop(sweep(&place)),
    }
}

/// Appends the output of a job that its files lack. `base` is the offset of the files in the job's streams. Returns the
/// end of each stream.
pub(crate) fn take_rest(
    keeper: &mut KeeperConnection,
    job: JobId,
    base: [u64; 2],
    folder: &StateSubfolder,
) -> [u64; 2] {
    let mut recorder = OutputRecorder::new(folder, 0);
    let mut reached = base;
    for (tag, stream) in (REST..).zip(OutputStream::ALL) {
        let offset = &mut reached[stream.index()];
        *offset += folder.file_bytes(file_name(stream));
        loop {
            let range = JobOutputRange { job, stream, offset: *offset, limit: 1 << 20 };
            let Ok(KeeperResponse::Piece(piece)) = keeper.ask(tag, KeeperRequest::Read(range), START_MS)
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

const REST: u64 = 10;

/// The recovered state of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecoveredCommand {
    /// `None` if the program had not ended.
    pub exit_code: Option<i32>,
    /// Whether the program still ran.
    pub was_running: bool,
}

/// The reason why a program could not be started, for the model and for the author of the tool.
pub(crate) fn why_not(refusal: &KeeperRefusal) -> String {
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
