//! Implements the process port on keepers.
//!
//! The name of a process is the name of its keeper's directory. No state is held in memory, so a new daemon finds the
//! processes of an old one.
//!
//! Keepers of runs have a folder of their own, so that no terminal runtime takes one for a session. Earlier versions
//! kept both in the same folder; their processes are found there by name until they have ended.

mod errors;
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
    keeper_dir::{FinalRecord, KeeperDir},
    launch::{
        KeeperConnection, KeeperLauncher, StartupState, clean_up_dead_keeper, create_keepers_dir,
        forbid_start, kill_keeper, recorded_child, resume_keeper, startup_state,
    },
    protocol::{
        ChildExit as KeeperExit, ChildMode, KeeperOwner, KeeperRequest, KeeperResponse, KeeperSpec,
        KeeperStatus, LinkPolicy, SpoolOverflow, TaggedRequest, TaggedResponse,
    },
};
use abide_os::private_file;
use abide_ports::{
    engine::{EngineInstallation, PrivateFile, ProcessSignal, ProcessSpec, ProcessStdin},
    processes::{
        FileIdentity, OutputFollower, OutputOffsets, ProcessLookup, ProcessUnreachable, Processes,
        StartError, StartRequest, StdinWrite,
    },
};
use errors::{not_started_error, start_error, unreachable_error};
use follow::{FileReader, KeeperOutputReader};

use crate::{
    created_dirs::{self, DirPurpose},
    isolation::{IsolationPlan, IsolationSubject, ProgramIsolator},
};

pub use abide_keeper::orphans::adopt_orphans;
pub use outliving::{OutlivingKeepers, OutlivingTask, SessionLostReport, is_noted_state};
pub use standby::StandbyPolicy;

/// Processes supervised by the keepers under one directory.
#[derive(Debug)]
pub struct KeeperProcesses {
    /// The directory of all keepers. Keepers started here are in [`RUN_KEEPERS_FOLDER`] below it.
    pub directory: PathBuf,
    /// Starts this program as a keeper.
    pub launcher: KeeperLauncher,
    /// Environment from which processes get the common variables and those that their engine is passed.
    pub env: Vec<(String, String)>,
    /// `None` in programs that start only checks.
    pub isolator: Option<ProgramIsolator>,
    /// Output kept of each process, in bytes.
    pub retained_output_bytes: u64,
    /// Keepers that are children of this process and must be reaped.
    pub children: Mutex<Vec<Child>>,
    pub standby: StandbyPolicy,
}

/// Folder of the keepers that supervise runs.
pub const RUN_KEEPERS_FOLDER: &str = "runs";

/// Idempotency key of the first input.
const FIRST_INPUT_KEY: u64 = u64::MAX;
/// Status timeout of a keeper that is looked up. A live keeper replies in less than a millisecond, unless the machine
/// is overloaded.
const LOOKUP_TIMEOUT_MS: u64 = 2_000;
/// Timeout of a request to a connected keeper, and of the first reply of a new one.
const REQUEST_TIMEOUT_MS: u64 = 10_000;
/// Timeout for ending a child; longer than the keeper's own escalation of signals.
const END_TIMEOUT_MS: u64 = 30_000;
/// Maximum number of input bytes in one request.
const MAX_INPUT_BYTES: usize = 4 << 20;

impl Processes for KeeperProcesses {
    fn start(&self, name: &str, start: &StartRequest<'_>) -> Result<ProcessBinding, StartError> {
        let started = self.start_or_find(name, start);
        // The standby keeper is started afterwards, so that it does not compete with this start for the CPU.
        self.standby.refill(&self.launcher);
        started
    }

    fn warning(&self, start: &StartRequest<'_>) -> Option<String> {
        self.plan(start).ok()?.warning
    }

    fn find(&self, name: &str) -> ProcessLookup {
        match self.look_up(name) {
            KeeperLookup::Alive(_, status) => ProcessLookup::Found(process_binding(name, &status.child)),
            KeeperLookup::Exited(child, _) => ProcessLookup::Found(process_binding(name, &child)),
            KeeperLookup::Unresponsive => ProcessLookup::Unresponsive,
            KeeperLookup::Lost => ProcessLookup::Lost,
            KeeperLookup::NotStarted | KeeperLookup::Absent => ProcessLookup::NotStarted,
        }
    }

    fn last_output_at(&self, name: &str) -> Option<Timestamp> {
        // Every output changes the spool files, so this works without a reader. The checkpoint is written by us and
        // does not count.
        let files = fs::read_dir(self.keeper_dir(name).path()).ok()?.filter_map(Result::ok);
        let printed =
            files.filter(|file| !file.file_name().to_string_lossy().starts_with(follow::CHECKPOINT_FILE));
        let changed = printed.filter_map(|file| file.metadata().ok()?.modified().ok()).max()?;
        let since = changed.duration_since(std::time::UNIX_EPOCH).ok()?;
        Some(Timestamp(i64::try_from(since.as_micros()).ok()?))
    }

    fn follow(&self, name: &str, from: OutputOffsets) -> Result<Box<dyn OutputFollower>, ProcessUnreachable> {
        match self.look_up(name) {
            KeeperLookup::Alive(keeper, status) => {
                Ok(Box::new(KeeperOutputReader::new(*keeper, status.protocol, from)?))
            }
            KeeperLookup::Exited(_, record) => Ok(Box::new(
                FileReader::new(&self.keeper_dir(name), Some(record), from).map_err(unreachable_error)?,
            )),
            KeeperLookup::Lost => {
                Ok(Box::new(FileReader::new(&self.keeper_dir(name), None, from).map_err(unreachable_error)?))
            }
            other @ (KeeperLookup::Unresponsive | KeeperLookup::NotStarted | KeeperLookup::Absent) => {
                Err(other.into_error())
            }
        }
    }

    fn output_buffer_bytes(&self) -> u64 {
        self.retained_output_bytes
    }

    fn checkpoint(&self, name: &str) -> Option<Vec<u8>> {
        fs::read(self.keeper_dir(name).path().join(follow::CHECKPOINT_FILE)).ok()
    }

    fn write(&self, name: &str, write: &StdinWrite<'_>) -> Result<(), ProcessUnreachable> {
        let (mut keeper, _) = self.attach(name)?;
        write_input(&mut keeper, write.key, write.bytes, write.close_after)
    }

    fn signal(&self, name: &str, signal: ProcessSignal) -> Result<(), ProcessUnreachable> {
        let (mut keeper, _) = self.attach(name)?;
        let number = match signal {
            ProcessSignal::Interrupt => rustix::process::Signal::INT,
            ProcessSignal::Terminate => rustix::process::Signal::TERM,
        };
        check_response(keeper.request(1, KeeperRequest::Signal(number.as_raw()), REQUEST_TIMEOUT_MS))
    }

    fn terminate(&self, name: &str) -> Result<ExitStatus, ProcessUnreachable> {
        let keeper_dir = self.keeper_dir(name);
        let end_without_keeper = || {
            let run = name.rsplit_once('-').map_or(name, |(run, _)| run);
            let spared = self.outliving_keepers().recorded_dir(run);
            kill_unresponsive(&keeper_dir, spared.as_deref()).map(|()| ExitStatus::Unknown)
        };
        // An agent can stop its keeper with SIGSTOP (SECURITY 10).
        resume_keeper(&keeper_dir);
        let ended = match self.look_up_within(name, REQUEST_TIMEOUT_MS) {
            KeeperLookup::Alive(keeper, status) => {
                // The metadata that the process was started with names the keepers that outlive it.
                let keepers = String::from_utf8(status.meta).unwrap_or_default();
                let but = (!keepers.is_empty()).then_some(KeeperRequest::EndExcept { keepers });
                end_child(*keeper, but.unwrap_or(KeeperRequest::End { force: false }), status.exit)
                    .or_else(|_| end_without_keeper())
            }
            KeeperLookup::Unresponsive => end_without_keeper(),
            KeeperLookup::Exited(..)
            | KeeperLookup::Lost
            | KeeperLookup::NotStarted
            | KeeperLookup::Absent => {
                let recorded = keeper_dir.exit_record();
                if keeper_dir.path().exists() && !clean_up_dead_keeper(&keeper_dir) {
                    Err(unreachable_error("its keeper is still running"))
                } else {
                    Ok(exit_status(recorded))
                }
            }
        };
        self.track_and_reap(None);
        ended
    }

    fn names(&self) -> Vec<String> {
        let former =
            KeeperDir::list(&self.directory).into_iter().filter(|(name, _)| is_run_or_check_name(name));
        let mut names: Vec<String> = KeeperDir::list(&self.run_keepers_folder())
            .into_iter()
            .chain(former)
            .map(|(name, _)| name)
            .collect();
        names.sort();
        names
    }

    fn program_files(&self, command: &EngineInstallation) -> Option<Vec<FileIdentity>> {
        let inherited = || self.env.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value);
        let path = command.env.get("PATH").or_else(inherited).map_or("", String::as_str);
        files::identities(command, path)
    }
}

impl KeeperProcesses {
    /// Returns the folder of the keepers that are started here.
    fn run_keepers_folder(&self) -> PathBuf {
        self.directory.join(RUN_KEEPERS_FOLDER)
    }

    fn keeper_dir(&self, name: &str) -> KeeperDir {
        let former = KeeperDir::new(&self.directory, name);
        if is_run_or_check_name(name) && former.path().exists() {
            former
        } else {
            KeeperDir::new(&self.run_keepers_folder(), name)
        }
    }

    /// Takes ownership of a child, and reaps those that have exited.
    fn track_and_reap(&self, child: Option<Child>) {
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        children.extend(child);
        children.retain_mut(|child| child.try_wait().is_ok_and(|status| status.is_none()));
    }

    /// Starts a process and writes its first input. Idempotent: an existing process of this name is returned.
    fn start_or_find(&self, name: &str, start: &StartRequest<'_>) -> Result<ProcessBinding, StartError> {
        let (mut keeper, status) = match self.look_up(name) {
            KeeperLookup::Alive(keeper, status) => (*keeper, *status),
            // The process has exited. Its output and exit status can be read.
            KeeperLookup::Exited(child, _) => return Ok(process_binding(name, &child)),
            KeeperLookup::Unresponsive => return Err(StartError::Unresponsive),
            // The process ran, but its exit was not observed. Its output can be read.
            KeeperLookup::Lost => match recorded_child(&self.keeper_dir(name)) {
                Some(child) => return Ok(process_binding(name, &child)),
                None => return Err(StartError::Lost),
            },
            KeeperLookup::NotStarted => return Err(not_started_error()),
            KeeperLookup::Absent => self.start_new(name, start)?,
        };
        let (bytes, ends) = match &start.spec.stdin {
            ProcessStdin::Complete(bytes) => (bytes, true),
            ProcessStdin::KeptOpen(bytes) => (bytes, false),
        };
        // A process that exited before it read its input shows the reason in its exit record.
        write_input(&mut keeper, FIRST_INPUT_KEY, bytes, ends).ok();
        Ok(process_binding(name, &status.child))
    }

    /// Starts a process that does not exist.
    fn start_new(
        &self,
        name: &str,
        start: &StartRequest<'_>,
    ) -> Result<(KeeperConnection, KeeperStatus), StartError> {
        let noted = write_files(start)
            .and_then(|()| self.record_outliving_keepers(name, start))
            .and_then(|()| create_keepers_dir(&self.run_keepers_folder()));
        noted.map_err(|error| StartError::SystemError(error.to_string()))?;
        let plan = self.plan(start).map_err(StartError::IsolationUnavailable)?;
        let spec = self.spec(name, start, plan.confinement);
        let started = self.launcher.start(self.keeper_dir(name), spec, self.standby.take());
        let mut keeper = started.map_err(start_error)?;
        let status = keeper.status(REQUEST_TIMEOUT_MS);
        self.track_and_reap(keeper.take_process());
        match status {
            Ok(status) => Ok((keeper, status)),
            Err(refused @ KeeperError::Refused(_)) => Err(start_error(refused)),
            // No reply does not prove that nothing was started. Reporting "not started" would start the process twice.
            Err(
                KeeperError::NoKeeper { .. }
                | KeeperError::Unresponsive { .. }
                | KeeperError::Protocol(_)
                | KeeperError::System { .. },
            ) => match self.look_up(name) {
                KeeperLookup::Alive(keeper, status) => Ok((*keeper, *status)),
                // The process may have exited already; a retry finds its record.
                KeeperLookup::Unresponsive | KeeperLookup::Exited(..) => Err(StartError::Unresponsive),
                KeeperLookup::Lost => Err(StartError::Lost),
                KeeperLookup::NotStarted | KeeperLookup::Absent => Err(not_started_error()),
            },
        }
    }

    /// Connects to the keeper of that name, if it is alive and replies.
    fn attach(&self, name: &str) -> Result<(KeeperConnection, KeeperStatus), ProcessUnreachable> {
        match self.look_up(name) {
            KeeperLookup::Alive(keeper, status) => Ok((*keeper, *status)),
            other @ (KeeperLookup::Exited(..)
            | KeeperLookup::Unresponsive
            | KeeperLookup::Lost
            | KeeperLookup::NotStarted
            | KeeperLookup::Absent) => Err(other.into_error()),
        }
    }

    fn look_up(&self, name: &str) -> KeeperLookup {
        self.look_up_within(name, LOOKUP_TIMEOUT_MS)
    }

    /// Looks up the keeper of that name. Waits for one that is starting. A keeper that was never told what to start,
    /// because its daemon died, is prevented from starting anything. A live keeper that does not reply in time is
    /// reported as unresponsive.
    fn look_up_within(&self, name: &str, answer_ms: u64) -> KeeperLookup {
        let keeper_dir = self.keeper_dir(name);
        for polls in 0..STARTUP_POLLS {
            if !keeper_dir.path().exists() {
                return KeeperLookup::Absent;
            }
            let attached = KeeperConnection::attach(keeper_dir.clone())
                .and_then(|mut keeper| keeper.status(answer_ms).map(|status| (keeper, status)));
            match attached {
                Ok((keeper, status)) => return KeeperLookup::Alive(Box::new(keeper), Box::new(status)),
                Err(KeeperError::Unresponsive { .. }) => return KeeperLookup::Unresponsive,
                Err(
                    KeeperError::NoKeeper { .. }
                    | KeeperError::Refused(_)
                    | KeeperError::Protocol(_)
                    | KeeperError::System { .. },
                ) => {}
            }
            match startup_state(&keeper_dir) {
                StartupState::Alive => {}
                StartupState::Dead => return look_up_dead(&keeper_dir),
                StartupState::Forbidden => return KeeperLookup::NotStarted,
                StartupState::Unclaimed if polls < UNCLAIMED_POLLS => {}
                StartupState::Unclaimed => forbid_start(&keeper_dir),
            }
            sleep_poll_interval();
        }
        KeeperLookup::Unresponsive
    }

    /// Records which keepers outlive a run's processes, so that they are ended with the run.
    fn record_outliving_keepers(&self, name: &str, start: &StartRequest<'_>) -> io::Result<()> {
        match (&start.spec.surviving_keepers_dir, name.rsplit_once('-')) {
            (Some(directory), Some((run, _))) => self.outliving_keepers().record(run, directory),
            (Some(_), None) | (None, _) => Ok(()),
        }
    }

    fn outliving_keepers(&self) -> OutlivingKeepers {
        OutlivingKeepers::for_keepers_dir(&self.directory, &self.launcher)
    }

    /// Returns the directory of the keepers that will outlive a process; empty if there will be none.
    fn outliving_keepers_dir(&self, launch: &ProcessSpec) -> PathBuf {
        let relative_path = launch.surviving_keepers_dir.as_deref();
        relative_path
            .and_then(|relative_path| self.outliving_keepers().resolve_note(relative_path))
            .unwrap_or_default()
    }

    /// Decides how a process is isolated.
    fn plan(&self, start: &StartRequest<'_>) -> Result<IsolationPlan, String> {
        let Some(isolator) = &self.isolator else { return Ok(IsolationPlan::default()) };
        // A program that is installed in the home must stay visible to be executed.
        let program = start.spec.argv.first().map(PathBuf::from).filter(|program| program.is_absolute());
        let shown: Vec<PathBuf> = [PathBuf::from(start.private_dir)].into_iter().chain(program).collect();
        let (isolation, workspace) = (start.isolation, Path::new(start.workspace));
        // Every engine with its own process has its own sandbox.
        isolator.plan(&IsolationSubject { isolation, sandbox: None, workspace, visible_paths: &shown })
    }

    fn spec(&self, name: &str, start: &StartRequest<'_>, confinement: Option<Confinement>) -> KeeperSpec {
        let launch = start.spec;
        let replaced = |name: &str| {
            launch.removed_env.iter().any(|gone| gone == name)
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
        if let (Some(_), Some(home)) = (&launch.surviving_keepers_dir, self.directory.parent()) {
            // Such a process creates keepers below this home, whatever its engine's settings say about the home.
            env.retain(|(name, _)| name != "ABIDE_HOME");
            env.push(("ABIDE_HOME".to_owned(), home.to_string_lossy().into_owned()));
        }
        let is_check = name.starts_with(CHECK_PREFIX);
        KeeperSpec {
            argv: launch.argv.clone(),
            env,
            cwd: start.workspace.into(),
            shape: ChildMode::Pipes,
            retention: self.retained_output_bytes,
            meta: self.outliving_keepers_dir(launch).to_string_lossy().into_owned().into_bytes(),
            owner: KeeperOwner::Home,
            // The output of a check is read once, without checkpoints.
            overflow: if is_check { SpoolOverflow::DropOldest } else { SpoolOverflow::Block },
            confinement: confinement.map(|confinement| confinement.encode()).unwrap_or_default(),
            // All processes of a run share its limits.
            group: self
                .launcher
                .groups
                .as_ref()
                .map(|groups| groups.child_spec(name.rsplit_once('-').map_or(name, |(run, _)| run))),
            // The workspace of a run was resolved when the run was created.
            cwd_links: if is_check { LinkPolicy::Follow } else { LinkPolicy::Refuse },
        }
    }
}

/// Returns whether a keeper of this name belongs to a run or to a check of an engine. Sessions have other names.
fn is_run_or_check_name(name: &str) -> bool {
    name.starts_with("run_") || name.starts_with(CHECK_PREFIX)
}

/// Name prefix of the checks of engines.
const CHECK_PREFIX: &str = "check-";

/// Returns what the files of a dead keeper show about its process.
fn look_up_dead(keeper_dir: &KeeperDir) -> KeeperLookup {
    match (recorded_child(keeper_dir), keeper_dir.read_exit_record()) {
        (Some(child), Some(record)) => KeeperLookup::Exited(Box::new(child), record),
        (Some(_) | None, _) if keeper_dir.path().exists() => KeeperLookup::Lost,
        (Some(_) | None, _) => KeeperLookup::Absent,
    }
}

/// Tells a keeper to end its process. Returns the exit status; `exit` is the one known before.
fn end_child(
    mut keeper: KeeperConnection,
    how: KeeperRequest,
    mut exit: Option<KeeperExit>,
) -> Result<ExitStatus, ProcessUnreachable> {
    const END: u64 = 1;
    let mut sent = keeper.socket.send(&TaggedRequest { tag: END, act: how });
    loop {
        let answer = sent.and_then(|()| keeper.socket.wait::<TaggedResponse>(END_TIMEOUT_MS));
        sent = Ok(());
        match answer {
            Ok(Some(TaggedResponse { news: KeeperResponse::Exited(seen), .. })) => exit = Some(seen),
            Ok(Some(TaggedResponse { tag: END, .. })) => return Ok(exit_status(exit)),
            Ok(Some(_)) => {}
            // A keeper that disconnects before it replies has ended its process.
            Ok(None) if keeper.socket.is_closed() => return Ok(exit_status(exit)),
            Err(KeeperError::NoKeeper { .. }) => return Ok(exit_status(exit)),
            Ok(None) => return Err(unreachable_error("its keeper does not end it in time")),
            Err(error) => return Err(unreachable_error(error)),
        }
    }
}

fn exit_status(exit: Option<KeeperExit>) -> ExitStatus {
    exit.map_or(ExitStatus::Unknown, |exit| ExitStatus::Code(exit.code))
}

/// Ends the process of a keeper that does not reply, without the keeper.
fn kill_unresponsive(keeper_dir: &KeeperDir, except: Option<&Path>) -> Result<(), ProcessUnreachable> {
    kill_keeper(keeper_dir, except);
    for _ in 0..EXIT_POLLS {
        if clean_up_dead_keeper(keeper_dir) || !keeper_dir.path().exists() {
            return Ok(());
        }
        sleep_poll_interval();
    }
    Err(unreachable_error("its keeper does not answer"))
}

/// Ends all keepers in a directory. Returns whether none is left.
fn end_all_keepers(directory: &Path) -> bool {
    let mut none_left = true;
    for (_, keeper_dir) in KeeperDir::list(directory) {
        resume_keeper(&keeper_dir);
        let keeper = KeeperConnection::attach(keeper_dir.clone()).ok();
        none_left &=
            match keeper.and_then(|mut keeper| keeper.status(REQUEST_TIMEOUT_MS).is_ok().then_some(keeper)) {
                Some(keeper) => {
                    end_child(keeper, KeeperRequest::End { force: false }, None).is_ok()
                        || kill_unresponsive(&keeper_dir, None).is_ok()
                }
                None => clean_up_dead_keeper(&keeper_dir) || kill_unresponsive(&keeper_dir, None).is_ok(),
            };
    }
    none_left
}

/// Result of looking up a keeper.
enum KeeperLookup {
    /// It is alive and replies.
    Alive(Box<KeeperConnection>, Box<KeeperStatus>),
    /// It is dead and recorded the exit of its process.
    Exited(Box<ProcessIdentity>, FinalRecord),
    /// It is alive and does not reply.
    Unresponsive,
    /// It is dead and recorded no exit.
    Lost,
    /// It was created for a process and certainly never started it.
    NotStarted,
    /// There is no keeper of that name.
    Absent,
}

impl KeeperLookup {
    fn into_error(self) -> ProcessUnreachable {
        unreachable_error(match self {
            Self::Unresponsive | Self::Alive(..) => "its keeper does not answer",
            Self::Exited(..) => "it has ended",
            Self::Lost | Self::NotStarted | Self::Absent => "its keeper is gone",
        })
    }
}

/// Number of polls for a keeper that is starting, their interval, and the number for one that has not claimed its
/// directory.
const STARTUP_POLLS: u32 = 240;
const UNCLAIMED_POLLS: u32 = 20;
/// Number of polls for the exit of a killed keeper.
const EXIT_POLLS: u32 = 40;
const POLL_INTERVAL: Duration = Duration::from_millis(50);

#[expect(clippy::disallowed_methods, reason = "a starting keeper has no socket yet that could be waited for")]
fn sleep_poll_interval() {
    std::thread::sleep(POLL_INTERVAL);
}

/// Writes input. Long input is split into several requests, each with its own key.
fn write_input(
    keeper: &mut KeeperConnection,
    key: u64,
    bytes: &[u8],
    ends: bool,
) -> Result<(), ProcessUnreachable> {
    let pieces: Vec<&[u8]> =
        if bytes.is_empty() { vec![bytes] } else { bytes.chunks(MAX_INPUT_BYTES).collect() };
    let last = pieces.len() - 1;
    for (number, piece) in pieces.into_iter().enumerate() {
        // Keys are positions or sequence numbers, so their highest bits are free for the piece number.
        let key = key ^ ((number as u64) << 48);
        let act = KeeperRequest::Write { key, bytes: piece.to_vec(), eof: ends && number == last };
        check_response(keeper.request(2, act, REQUEST_TIMEOUT_MS))?;
    }
    Ok(())
}

fn check_response(answer: Result<KeeperResponse, KeeperError>) -> Result<(), ProcessUnreachable> {
    if let KeeperResponse::Refused(refusal) = answer.map_err(unreachable_error)? {
        Err(unreachable_error(refusal))
    } else {
        Ok(())
    }
}

fn write_files(start: &StartRequest<'_>) -> io::Result<()> {
    create_private_dir(start)?;
    for PrivateFile { relative_path: path, contents } in &start.spec.files {
        let path = Path::new(start.private_dir).join(path);
        if let Some(folder) = path.parent() {
            private_file::create_missing_dirs(folder)?;
        }
        private_file::write(&path, contents.as_bytes())?;
    }
    Ok(())
}

/// Creates the private directory of a run if its process uses it, with the note that retention requires for deletion.
fn create_private_dir(start: &StartRequest<'_>) -> io::Result<()> {
    let (launch, path) = (start.spec, Path::new(start.private_dir));
    let names_it = |text: &String| text.contains(start.private_dir);
    let is_named = launch.argv.iter().any(names_it) || launch.env.iter().any(|(_, value)| names_it(value));
    let folder = path.parent().filter(|parent| parent.ends_with(DirPurpose::Private.folder()));
    match (folder.and_then(Path::parent), path.file_name().and_then(|run| run.to_str())) {
        (Some(home), Some(run)) if is_named || !launch.files.is_empty() => {
            created_dirs::create(home, DirPurpose::Private, run)
        }
        _ => Ok(()),
    }
}

fn process_binding(name: &str, child: &ProcessIdentity) -> ProcessBinding {
    ProcessBinding {
        keeper: name.to_owned(),
        pid: child.pid,
        start_time: child.start_time,
        boot_id: child.boot_id.clone(),
    }
}
