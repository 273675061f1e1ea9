//! Implements the process port on keepers.
//!
//! The name of a process is the name of its keeper's directory. No state is held in memory, so a new daemon finds the
//! processes of an old one.
//!
//! Keepers of runs have a folder of their own, so that no terminal runtime takes one for a session. Earlier versions
//! kept both in the same folder; their processes are found there by name until they have ended.

mod files;
mod follow;
mod outliving;
mod standby;
mod variables;

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Child,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use abide_domain::{
    process::{ExitStatus, ProcessBinding},
    time::Timestamp,
};
use abide_keeper::{
    KeeperError,
    confine::Confinement,
    identity::ProcessIdentity,
    launch::{
        KeeperConnection, KeeperLauncher, StartupState, child, kill, make_folder, prevent, resume, stage,
        sweep,
    },
    place::{FinalRecord, KeeperDir},
    protocol::{
        ChildExit as KeeperExit, ChildMode, KeeperOwner, KeeperRefusal, KeeperRequest, KeeperResponse,
        KeeperSpec, KeeperStatus, SpoolOverflow, TaggedRequest, TaggedResponse,
    },
};
use abide_ports::{
    engine::{EngineInstallation, PrivateFile, ProcessSignal, ProcessSpec, ProcessStdin},
    processes::{
        FileIdentity, OutputFollower, OutputOffsets, ProcessLookup, ProcessStart, ProcessUnreachable,
        Processes, StartError, StdinWrite,
    },
};
use follow::{FileReader, KeeperOutputReader};

use crate::{
    isolation::{IsolationPlan, IsolationSubject, ProgramIsolator},
    made::{self, DirPurpose},
    private,
};

pub(crate) use outliving::OutlivingKeepers;
pub use standby::StandbyPolicy;

/// Processes supervised by the keepers under one directory.
#[derive(Debug)]
pub struct KeeperProcesses {
    /// The directory of all keepers. Keepers started here are in [`RUNS`] below it.
    pub directory: PathBuf,
    /// Starts this program as a keeper.
    pub launcher: KeeperLauncher,
    /// Environment from which processes get the common variables and those that their engine is passed.
    pub env: Vec<(String, String)>,
    /// `None` in programs that start only checks.
    pub isolator: Option<ProgramIsolator>,
    /// Output kept of each process, in bytes.
    pub retention: u64,
    /// Keepers that are children of this process and must be reaped.
    pub children: Mutex<Vec<Child>>,
    pub readiness: StandbyPolicy,
}

/// Folder of the keepers that supervise runs.
pub const RUNS: &str = "runs";

/// Idempotency key of the first input.
const FIRST_INPUT: u64 = u64::MAX;
/// Status timeout of a keeper that is looked up. A live keeper replies in less than a millisecond, unless the machine
/// is overloaded.
const ANSWER_MS: u64 = 2_000;
/// Timeout of a request to a connected keeper, and of the first reply of a new one.
const PATIENCE_MS: u64 = 10_000;
/// Timeout for ending a child; longer than the keeper's own escalation of signals.
const END_MS: u64 = 30_000;
/// Maximum number of input bytes in one request.
const PIECE: usize = 4 << 20;

impl Processes for KeeperProcesses {
    fn start(&self, name: &str, start: &ProcessStart<'_>) -> Result<ProcessBinding, StartError> {
        let started = self.start_or_find(name, start);
        // The standby keeper is started afterwards, so that it does not compete with this start for the CPU.
        self.readiness.refill(&self.launcher);
        started
    }

    fn warning(&self, start: &ProcessStart<'_>) -> Option<String> {
        self.plan(start).ok()?.warning
    }

    fn find(&self, name: &str) -> ProcessLookup {
        match self.look(name) {
            KeeperLookup::Held(_, status) => ProcessLookup::Held(process(name, &status.child)),
            KeeperLookup::Recorded(child, _) => ProcessLookup::Held(process(name, &child)),
            KeeperLookup::Silent => ProcessLookup::Silent,
            KeeperLookup::Gone => ProcessLookup::Gone,
            KeeperLookup::Never | KeeperLookup::Nothing => ProcessLookup::Never,
        }
    }

    fn last_heard(&self, name: &str) -> Option<Timestamp> {
        // Every output changes the spool files, so this works without a reader. The checkpoint is written by us and
        // does not count.
        let files = fs::read_dir(self.place(name).path()).ok()?.filter_map(Result::ok);
        let printed =
            files.filter(|file| !file.file_name().to_string_lossy().starts_with(follow::CHECKPOINT));
        let changed = printed.filter_map(|file| file.metadata().ok()?.modified().ok()).max()?;
        let since = changed.duration_since(std::time::UNIX_EPOCH).ok()?;
        Some(Timestamp(i64::try_from(since.as_micros()).ok()?))
    }

    fn follow(&self, name: &str, from: OutputOffsets) -> Result<Box<dyn OutputFollower>, ProcessUnreachable> {
        match self.look(name) {
            KeeperLookup::Held(keeper, status) => {
                Ok(Box::new(KeeperOutputReader::new(*keeper, status.protocol, from)?))
            }
            KeeperLookup::Recorded(_, record) => {
                Ok(Box::new(FileReader::new(&self.place(name), Some(record), from).map_err(lost)?))
            }
            KeeperLookup::Gone => Ok(Box::new(FileReader::new(&self.place(name), None, from).map_err(lost)?)),
            other @ (KeeperLookup::Silent | KeeperLookup::Never | KeeperLookup::Nothing) => Err(other.lost()),
        }
    }

    fn kept_bytes(&self) -> u64 {
        self.retention
    }

    fn checkpoint(&self, name: &str) -> Option<Vec<u8>> {
        fs::read(self.place(name).path().join(follow::CHECKPOINT)).ok()
    }

    fn write(&self, name: &str, write: &StdinWrite<'_>) -> Result<(), ProcessUnreachable> {
        let (mut keeper, _) = self.attach(name)?;
        write_pieces(&mut keeper, write.key, write.bytes, write.ends)
    }

    fn signal(&self, name: &str, signal: ProcessSignal) -> Result<(), ProcessUnreachable> {
        let (mut keeper, _) = self.attach(name)?;
        let number = match signal {
            ProcessSignal::Interrupt => rustix::process::Signal::INT,
            ProcessSignal::Terminate => rustix::process::Signal::TERM,
        };
        done(keeper.ask(1, KeeperRequest::Signal(number.as_raw()), PATIENCE_MS))
    }

    fn end(&self, name: &str) -> Result<ExitStatus, ProcessUnreachable> {
        let place = self.place(name);
        let end_without_keeper = || {
            let run = name.rsplit_once('-').map_or(name, |(run, _)| run);
            let spared = self.outliving_notes().noted_for(run);
            end_silent(&place, spared.as_deref()).map(|()| ExitStatus::Unseen)
        };
        // An agent can stop its keeper with SIGSTOP (SECURITY 10).
        resume(&place);
        let ended = match self.look_for(name, PATIENCE_MS) {
            KeeperLookup::Held(keeper, status) => {
                // The metadata that the process was started with names the keepers that outlive it.
                let keepers = String::from_utf8(status.meta).unwrap_or_default();
                let but = (!keepers.is_empty()).then_some(KeeperRequest::EndExcept { keepers });
                end(*keeper, but.unwrap_or(KeeperRequest::End { force: false }), status.exit)
                    .or_else(|_| end_without_keeper())
            }
            KeeperLookup::Silent => end_without_keeper(),
            KeeperLookup::Recorded(..) | KeeperLookup::Gone | KeeperLookup::Never | KeeperLookup::Nothing => {
                let recorded = place.exit_record();
                if place.path().exists() && !sweep(&place) {
                    Err(lost("its keeper lives"))
                } else {
                    Ok(exit_of(recorded))
                }
            }
        };
        self.adopt(None);
        ended
    }

    fn names(&self) -> Vec<String> {
        let former = KeeperDir::all(&self.directory).into_iter().filter(|(name, _)| is_of_a_run(name));
        let mut names: Vec<String> =
            KeeperDir::all(&self.folder()).into_iter().chain(former).map(|(name, _)| name).collect();
        names.sort();
        names
    }

    fn files_of(&self, command: &EngineInstallation) -> Option<Vec<FileIdentity>> {
        let inherited = || self.env.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value);
        let path = command.env.get("PATH").or_else(inherited).map_or("", String::as_str);
        files::identities(command, path)
    }
}

impl KeeperProcesses {
    /// Returns the folder of the keepers that are started here.
    fn folder(&self) -> PathBuf {
        self.directory.join(RUNS)
    }

    fn place(&self, name: &str) -> KeeperDir {
        let former = KeeperDir::new(&self.directory, name);
        if is_of_a_run(name) && former.path().exists() {
            former
        } else {
            KeeperDir::new(&self.folder(), name)
        }
    }

    /// Takes ownership of a child, and reaps those that have exited.
    fn adopt(&self, child: Option<Child>) {
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        children.extend(child);
        children.retain_mut(|child| child.try_wait().is_ok_and(|status| status.is_none()));
    }

    /// Starts a process and writes its first input. Idempotent: an existing process of this name is returned.
    fn start_or_find(&self, name: &str, start: &ProcessStart<'_>) -> Result<ProcessBinding, StartError> {
        let (mut keeper, status) = match self.look(name) {
            KeeperLookup::Held(keeper, status) => (*keeper, *status),
            // The process has exited. Its output and exit status can be read.
            KeeperLookup::Recorded(child, _) => return Ok(process(name, &child)),
            KeeperLookup::Silent => return Err(StartError::Silent),
            // The process ran, but its exit was not observed. Its output can be read.
            KeeperLookup::Gone => match child(&self.place(name)) {
                Some(child) => return Ok(process(name, &child)),
                None => return Err(StartError::Gone),
            },
            KeeperLookup::Never => return Err(never_began()),
            KeeperLookup::Nothing => self.begin(name, start)?,
        };
        let (bytes, ends) = match &start.launch.stdin {
            ProcessStdin::Whole(bytes) => (bytes, true),
            ProcessStdin::Open(bytes) => (bytes, false),
        };
        // A process that exited before it read its input shows the reason in its exit record.
        write_pieces(&mut keeper, FIRST_INPUT, bytes, ends).ok();
        Ok(process(name, &status.child))
    }

    /// Starts a process that does not exist.
    fn begin(
        &self,
        name: &str,
        start: &ProcessStart<'_>,
    ) -> Result<(KeeperConnection, KeeperStatus), StartError> {
        let noted = write_files(start)
            .and_then(|()| self.note_outliving(name, start))
            .and_then(|()| make_folder(&self.folder()));
        noted.map_err(|error| StartError::System(error.to_string()))?;
        let plan = self.plan(start).map_err(StartError::Isolation)?;
        let spec = self.spec(name, start, plan.confinement);
        let started = self.launcher.start(self.place(name), spec, self.readiness.take());
        let mut keeper = started.map_err(start_error)?;
        let status = keeper.status(PATIENCE_MS);
        self.adopt(keeper.take_process());
        match status {
            Ok(status) => Ok((keeper, status)),
            Err(refused @ KeeperError::Refused(_)) => Err(start_error(refused)),
            // No reply does not prove that nothing was started. Reporting "not started" would start the process twice.
            Err(
                KeeperError::Gone { .. }
                | KeeperError::Silent { .. }
                | KeeperError::Protocol(_)
                | KeeperError::System { .. },
            ) => match self.look(name) {
                KeeperLookup::Held(keeper, status) => Ok((*keeper, *status)),
                // The process may have exited already; a retry finds its record.
                KeeperLookup::Silent | KeeperLookup::Recorded(..) => Err(StartError::Silent),
                KeeperLookup::Gone => Err(StartError::Gone),
                KeeperLookup::Never | KeeperLookup::Nothing => Err(never_began()),
            },
        }
    }

    /// Connects to the keeper of that name, if it is alive and replies.
    fn attach(&self, name: &str) -> Result<(KeeperConnection, KeeperStatus), ProcessUnreachable> {
        match self.look(name) {
            KeeperLookup::Held(keeper, status) => Ok((*keeper, *status)),
            other @ (KeeperLookup::Recorded(..)
            | KeeperLookup::Silent
            | KeeperLookup::Gone
            | KeeperLookup::Never
            | KeeperLookup::Nothing) => Err(other.lost()),
        }
    }

    fn look(&self, name: &str) -> KeeperLookup {
        self.look_for(name, ANSWER_MS)
    }

    /// Looks up the keeper of that name. Waits for one that is starting. A keeper that was never told what to start,
    /// because its daemon died, is prevented from starting anything. A live keeper that does not reply in time is
    /// reported as silent.
    fn look_for(&self, name: &str, answer_ms: u64) -> KeeperLookup {
        let place = self.place(name);
        for looks in 0..STARTING_LOOKS {
            if !place.path().exists() {
                return KeeperLookup::Nothing;
            }
            let attached = KeeperConnection::attach(place.clone())
                .and_then(|mut keeper| keeper.status(answer_ms).map(|status| (keeper, status)));
            match attached {
                Ok((keeper, status)) => return KeeperLookup::Held(Box::new(keeper), Box::new(status)),
                Err(KeeperError::Silent { .. }) => return KeeperLookup::Silent,
                Err(
                    KeeperError::Gone { .. }
                    | KeeperError::Refused(_)
                    | KeeperError::Protocol(_)
                    | KeeperError::System { .. },
                ) => {}
            }
            match stage(&place) {
                StartupState::Alive => {}
                StartupState::Dead => return left_by_the_dead(&place),
                StartupState::Never => return KeeperLookup::Never,
                StartupState::Unclaimed if looks < UNCLAIMED_LOOKS => {}
                StartupState::Unclaimed => prevent(&place),
            }
            pause();
        }
        KeeperLookup::Silent
    }

    /// Records which keepers outlive a run's processes, so that they are ended with the run.
    fn note_outliving(&self, name: &str, start: &ProcessStart<'_>) -> io::Result<()> {
        match (&start.launch.outliving, name.rsplit_once('-')) {
            (Some(directory), Some((run, _))) => self.outliving_notes().note(run, directory),
            (Some(_), None) | (None, _) => Ok(()),
        }
    }

    fn outliving_notes(&self) -> OutlivingKeepers {
        OutlivingKeepers::beside(&self.directory, &self.launcher)
    }

    /// Returns the directory of the keepers that will outlive a process; empty if there will be none.
    fn outliving(&self, launch: &ProcessSpec) -> PathBuf {
        let noted = launch.outliving.as_deref();
        noted.and_then(|noted| self.outliving_notes().directory(noted)).unwrap_or_default()
    }

    /// Decides how a process is isolated.
    fn plan(&self, start: &ProcessStart<'_>) -> Result<IsolationPlan, String> {
        let Some(isolator) = &self.isolator else { return Ok(IsolationPlan::default()) };
        // A program that is installed in the home must stay visible to be executed.
        let program = start.launch.argv.first().map(PathBuf::from).filter(|program| program.is_absolute());
        let shown: Vec<PathBuf> = [PathBuf::from(start.private)].into_iter().chain(program).collect();
        let (isolation, workspace) = (start.isolation, Path::new(start.workspace));
        // Every engine with its own process has its own sandbox.
        isolator.plan(&IsolationSubject { isolation, sandbox: None, workspace, shown: &shown })
    }

    fn spec(&self, name: &str, start: &ProcessStart<'_>, confinement: Option<Confinement>) -> KeeperSpec {
        let launch = start.launch;
        let replaced = |name: &str| {
            launch.without_env.iter().any(|gone| gone == name)
                || launch.env.iter().any(|(set, _)| set == name)
        };
        let inherited = self.env.iter().filter(|(name, _)| variables::is_passed(name, start.pass_env));
        let inherited = inherited.filter(|(name, _)| !replaced(name));
        let mut env: Vec<(String, String)> = inherited.chain(&launch.env).cloned().collect();
        for (name, more) in &launch.appended_env {
            match env.iter_mut().find(|(set, _)| set == name) {
                Some((_, value)) => *value = format!("{value} {more}").trim_start().to_owned(),
                None => env.push((name.clone(), more.clone())),
            }
        }
        if let (Some(_), Some(home)) = (&launch.outliving, self.directory.parent()) {
            // Such a process creates keepers below this home, whatever its engine's settings say about the home.
            env.retain(|(name, _)| name != "ABIDE_HOME");
            env.push(("ABIDE_HOME".to_owned(), home.to_string_lossy().into_owned()));
        }
        KeeperSpec {
            argv: launch.argv.clone(),
            env,
            cwd: start.workspace.into(),
            shape: ChildMode::Pipes,
            retention: self.retention,
            meta: self.outliving(launch).to_string_lossy().into_owned().into_bytes(),
            owner: KeeperOwner::Home,
            // The output of a check is read once, without checkpoints.
            overflow: if name.starts_with(CHECK) { SpoolOverflow::DropOldest } else { SpoolOverflow::Block },
            confinement: confinement.map(|confinement| confinement.encode()).unwrap_or_default(),
            // All processes of a run share its limits.
            group: self
                .launcher
                .groups
                .as_ref()
                .map(|groups| groups.of_child(name.rsplit_once('-').map_or(name, |(run, _)| run))),
        }
    }
}

/// Returns whether a keeper of this name belongs to a run or to a check of an engine. Sessions have other names.
fn is_of_a_run(name: &str) -> bool {
    name.starts_with("run_") || name.starts_with(CHECK)
}

/// Name prefix of the checks of engines.
const CHECK: &str = "check-";

/// Returns what the files of a dead keeper show about its process.
fn left_by_the_dead(place: &KeeperDir) -> KeeperLookup {
    match (child(place), place.final_record()) {
        (Some(child), Some(record)) => KeeperLookup::Recorded(Box::new(child), record),
        (Some(_) | None, _) if place.path().exists() => KeeperLookup::Gone,
        (Some(_) | None, _) => KeeperLookup::Nothing,
    }
}

/// Tells a keeper to end its process. Returns the exit status; `exit` is the one known before.
fn end(
    mut keeper: KeeperConnection,
    how: KeeperRequest,
    mut exit: Option<KeeperExit>,
) -> Result<ExitStatus, ProcessUnreachable> {
    const END: u64 = 1;
    let mut told = keeper.link.send(&TaggedRequest { tag: END, act: how });
    loop {
        let answer = told.and_then(|()| keeper.link.wait::<TaggedResponse>(END_MS));
        told = Ok(());
        match answer {
            Ok(Some(TaggedResponse { news: KeeperResponse::Exited(seen), .. })) => exit = Some(seen),
            Ok(Some(TaggedResponse { tag: END, .. })) => return Ok(exit_of(exit)),
            Ok(Some(_)) => {}
            // A keeper that disconnects before it replies has ended its process.
            Ok(None) if keeper.link.is_closed() => return Ok(exit_of(exit)),
            Err(KeeperError::Gone { .. }) => return Ok(exit_of(exit)),
            Ok(None) => return Err(lost("its keeper does not end it in time")),
            Err(error) => return Err(lost(error)),
        }
    }
}

fn exit_of(exit: Option<KeeperExit>) -> ExitStatus {
    exit.map_or(ExitStatus::Unseen, |exit| ExitStatus::Code(exit.code))
}

/// Ends the process of a keeper that does not reply, without the keeper.
fn end_silent(place: &KeeperDir, spared: Option<&Path>) -> Result<(), ProcessUnreachable> {
    kill(place, spared);
    for _ in 0..DYING_LOOKS {
        if sweep(place) || !place.path().exists() {
            return Ok(());
        }
        pause();
    }
    Err(lost("its keeper does not answer"))
}

/// Ends all keepers in a directory. Returns whether none is left.
pub(crate) fn end_all(directory: &Path) -> bool {
    let mut none_left = true;
    for (_, place) in KeeperDir::all(directory) {
        resume(&place);
        let keeper = KeeperConnection::attach(place.clone()).ok();
        none_left &= match keeper.and_then(|mut keeper| keeper.status(PATIENCE_MS).is_ok().then_some(keeper))
        {
            Some(keeper) => {
                end(keeper, KeeperRequest::End { force: false }, None).is_ok()
                    || end_silent(&place, None).is_ok()
            }
            None => sweep(&place) || end_silent(&place, None).is_ok(),
        };
    }
    none_left
}

/// Result of looking up a keeper.
enum KeeperLookup {
    /// It is alive and replies.
    Held(Box<KeeperConnection>, Box<KeeperStatus>),
    /// It is dead and recorded the exit of its process.
    Recorded(Box<ProcessIdentity>, FinalRecord),
    /// It is alive and does not reply.
    Silent,
    /// It is dead and recorded no exit.
    Gone,
    /// It was created for a process and certainly never started it.
    Never,
    /// There is no keeper of that name.
    Nothing,
}

impl KeeperLookup {
    fn lost(self) -> ProcessUnreachable {
        lost(match self {
            Self::Silent | Self::Held(..) => "its keeper does not answer",
            Self::Recorded(..) => "it has ended",
            Self::Gone | Self::Never | Self::Nothing => "its keeper is gone",
        })
    }
}

/// Number of polls for a keeper that is starting, their interval, and the number for one that has not claimed its
/// directory.
const STARTING_LOOKS: u32 = 240;
const UNCLAIMED_LOOKS: u32 = 20;
/// Number of polls for the exit of a killed keeper.
const DYING_LOOKS: u32 = 40;
const STARTING_PAUSE: Duration = Duration::from_millis(50);

#[expect(clippy::disallowed_methods, reason = "a keeper that has no socket yet has nothing to wait on")]
fn pause() {
    std::thread::sleep(STARTING_PAUSE);
}

/// Writes input. Long input is split into several requests, each with its own key.
fn write_pieces(
    keeper: &mut KeeperConnection,
    key: u64,
    bytes: &[u8],
    ends: bool,
) -> Result<(), ProcessUnreachable> {
    let pieces: Vec<&[u8]> = if bytes.is_empty() { vec![bytes] } else { bytes.chunks(PIECE).collect() };
    let last = pieces.len() - 1;
    for (number, piece) in pieces.into_iter().enumerate() {
        // Keys are positions or sequence numbers, so their highest bits are free for the piece number.
        let key = key ^ ((number as u64) << 48);
        let act = KeeperRequest::Write { key, bytes: piece.to_vec(), eof: ends && number == last };
        done(keeper.ask(2, act, PATIENCE_MS))?;
    }
    Ok(())
}

fn done(answer: Result<KeeperResponse, KeeperError>) -> Result<(), ProcessUnreachable> {
    if let KeeperResponse::Refused(refusal) = answer.map_err(lost)? { Err(lost(refusal)) } else { Ok(()) }
}

fn write_files(start: &ProcessStart<'_>) -> io::Result<()> {
    make_private(start)?;
    for PrivateFile { path, contents } in &start.launch.files {
        let path = Path::new(start.private).join(path);
        if let Some(folder) = path.parent() {
            private::missing_directories(folder)?;
        }
        private::write(&path, contents.as_bytes())?;
    }
    Ok(())
}

/// Creates the private directory of a run if its process uses it, with the note that retention requires for deletion.
fn make_private(start: &ProcessStart<'_>) -> io::Result<()> {
    let (launch, path) = (start.launch, Path::new(start.private));
    let names_it = |text: &String| text.contains(start.private);
    let is_named = launch.argv.iter().any(names_it) || launch.env.iter().any(|(_, value)| names_it(value));
    let folder = path.parent().filter(|parent| parent.ends_with(DirPurpose::Private.folder()));
    match (folder.and_then(Path::parent), path.file_name().and_then(|run| run.to_str())) {
        (Some(home), Some(run)) if is_named || !launch.files.is_empty() => {
            made::directory(home, DirPurpose::Private, run)
        }
        _ => Ok(()),
    }
}

fn process(name: &str, child: &ProcessIdentity) -> ProcessBinding {
    ProcessBinding {
        keeper: name.to_owned(),
        pid: child.pid,
        start_time: child.start_time,
        boot_id: child.boot_id.clone(),
    }
}

fn never_began() -> StartError {
    StartError::System("its keeper was never told what to hold".to_owned())
}

fn start_error(error: KeeperError) -> StartError {
    match error {
        KeeperError::Refused(KeeperRefusal::Program(program)) => StartError::Program(program),
        KeeperError::Refused(KeeperRefusal::Directory(directory)) => StartError::Directory(directory),
        KeeperError::Silent { .. } => StartError::Silent,
        KeeperError::Refused(_)
        | KeeperError::Gone { .. }
        | KeeperError::Protocol(_)
        | KeeperError::System { .. } => StartError::System(error.to_string()),
    }
}

fn lost(reason: impl ToString) -> ProcessUnreachable {
    ProcessUnreachable { reason: reason.to_string() }
}
