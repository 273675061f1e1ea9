//! A program that is started for one call, under a keeper, and of which nothing is left afterwards.
//!
//! The keeper outlives us, so whoever comes after a crash can still end it and read what it printed. Not here: programs
//! that stay; those are [`crate::session`].

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

/// What is started and how long it may take.
#[derive(Debug)]
pub struct OneShotCommand<'a> {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// Where it begins.
    pub cwd: PathBuf,
    /// On pipes or on a terminal.
    pub shape: ChildMode,
    /// What it reads.
    pub stdin: Vec<u8>,
    /// When it is stopped.
    pub timeout_ms: u64,
    /// How it is confined ([`KeeperSpec::confinement`]).
    pub confinement: Vec<Vec<u8>>,
    /// Where its keeper lies.
    pub place: &'a Path,
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandEnd {
    /// By itself, or because it was stopped.
    Exit {
        /// 128 + n for death by signal n.
        code: i32,
        /// Its time was over.
        timed_out: bool,
        /// Somebody stopped us.
        interrupted: bool,
    },
    /// It could not be started, and why.
    NotStarted(String),
    /// Its keeper was killed, so nobody knows.
    Lost,
}

/// How long a keeper may take for its first word.
const START_MS: u64 = 20_000;
/// How long a keeper may take to end everything: longer than its own ladder.
const END_MS: u64 = 20_000;
/// How often we look up while nothing happens.
const LOOK_MS: u64 = 50;
/// How many bytes of output a keeper holds on disk. They are for recovery after a crash, and for a program that prints
/// faster than a loaded machine lets us begin to follow it.
const SPOOL: u64 = 64 << 20;

/// The name of the control group in which the tools and sessions of this agent share limits. Those of a run are in the run's.
pub(crate) fn group_name() -> String {
    format!("agent-{}", std::process::id())
}

const FOLLOW: u64 = 1;
const INPUT: u64 = 2;
const END: u64 = 3;

impl OneShotCommand<'_> {
    /// Runs it to its end, records what it prints, and sees to it that nothing of it is left.
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
            // It was started and does not answer: whether its program began is not known.
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

/// Gives it what it reads, takes what it prints until it has ended, and then ends whatever it left behind. A connection
/// that breaks means that the keeper is gone.
fn watch(
    keeper: &mut KeeperConnection,
    input: KeeperRequest,
    recorder: &mut OutputRecorder,
    stop: &StopFlag,
    deadline: u64,
) -> CommandEnd {
    let follow = TaggedRequest { tag: FOLLOW, act: KeeperRequest::FollowClosely { job: 0, from: [0; 2] } };
    // A program that leaves without reading is no trouble of ours.
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
            // A tool can stop its keeper (SECURITY 10).
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

/// Waits until the keeper is gone and takes its exit code, so that no zombie is left.
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
        // Its connections close with it and not before.
        let _gone = process.wait();
        keeper.clear_group();
    }
}

/// Clears away what a keeper left that is gone.
pub(crate) fn clear(keeper: &KeeperConnection) {
    let place = &keeper.place;
    // One that was killed before it recorded its child cannot be told from one that begins, unless its end was seen.
    if place.path().exists() && !sweep(place) && keeper.link.is_closed() {
        place.remove().ok();
    }
}

/// Connects to the keeper in a place, also to one that is only just beginning; none if there is none and never will be.
pub(crate) fn attach(place: &KeeperDir) -> Option<KeeperConnection> {
    let give_up_at = ticks_ms() + START_MS;
    loop {
        if let Ok(keeper) = KeeperConnection::attach(place.clone()) {
            return Some(keeper);
        }
        match stage(place) {
            StartupState::Alive if ticks_ms() < give_up_at && place.path().exists() => {}
            // Told what to hold by somebody who is dead by now, or only meant to be: it must not begin behind our back.
            StartupState::Unclaimed if place.path().exists() => prevent(place),
            StartupState::Alive | StartupState::Unclaimed | StartupState::Dead | StartupState::Never => {
                return None;
            }
        }
        let moment = rustix::event::Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
        let _looked_at_again = rustix::event::poll(&mut [], Some(&moment));
    }
}

/// Ends what an earlier process of ours started for a call, if it still runs, after taking what it has printed into the
/// files of `folder`. Returns its exit code, if it had ended by itself.
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

/// Ends what a keeper holds, after taking what it has printed.
pub(crate) fn end_after(
    keeper: &mut KeeperConnection,
    status: &KeeperStatus,
    folder: &StateSubfolder,
) -> RecoveredCommand {
    take_rest(keeper, 0, [0; 2], folder);
    // One that is gone has nothing to end.
    keeper.ask(END, KeeperRequest::End { force: false }, END_MS).ok();
    reap(keeper);
    RecoveredCommand {
        exit_code: status.exit.as_ref().map(|exit| exit.code),
        was_running: status.exit.is_none(),
    }
}

/// Ends what the keeper in a place of the home holds, and clears the place away.
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

/// Takes what a job has printed and its files lack; `base` is where in the job's streams the files begin. Says how far the
/// streams have come.
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
            // What lies between was dropped; the file goes on with what is there.
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

/// What was found of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecoveredCommand {
    /// How its program ended, if it had.
    pub exit_code: Option<i32>,
    /// It still ran.
    pub was_running: bool,
}

/// Why a program could not be started, for a model and for whoever wrote the tool.
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
