//! Implements the process port on keepers.
//!
//! The name of a process is the name of its keeper's directory. No state is held in memory, so a new daemon finds the
//! processes of an old one.
//!
//! Keepers of runs have a folder of their own, so that no terminal runtime takes one for a session. Earlier versions
//! kept both in the same folder; their processes are found there by name until they have ended.

mod connections;
mod errors;
mod files;
mod follow;
mod outliving;
mod standby;
mod variables;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use abide_domain::{
    process::{ExitStatus, ProcessBinding},
    time::Timestamp,
};
use abide_keeper::{
    KeeperError,
    client::{
        EndMode, KeeperConnection, KeeperLookup, KeeperRequests, SharedConnection, UnclaimedPolicy, find,
        kill_unresponsive,
        timeouts::{LOOKUP_TIMEOUT_MS, RESPONSE_TIMEOUT_MS},
    },
    confine::Confinement,
    identity::ProcessIdentity,
    keeper_dir::KeeperDir,
    launch::{
        ChildStart, KeeperLauncher, clean_up_dead_keeper, create_keepers_dir, recorded_child, resume_keeper,
    },
    protocol::{
        ChildExit as KeeperExit, ChildMode, KeeperOwner, KeeperSpec, KeeperStatus, LinkPolicy, SpoolOverflow,
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
use errors::{lookup_error, not_started_error, start_error, unreachable_error};
use follow::{FileReader, KeeperOutputReader};

use crate::{
    created_dirs::{self, DirPurpose},
    isolation::{IsolationPlan, IsolationSubject, ProgramIsolator},
};

pub use abide_keeper::orphans::adopt_orphans;
pub use connections::TrackedKeepers;
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
    /// The keepers that this process uses or started.
    pub keepers: TrackedKeepers,
    pub standby: StandbyPolicy,
}

/// Folder of the keepers that supervise runs.
pub const RUN_KEEPERS_FOLDER: &str = "runs";

/// The first protocol version of keepers that know the keys of accepted input.
const WRITTEN_KEYS_PROTOCOL: u32 = 2;
/// Idempotency key of the first input.
const FIRST_INPUT_KEY: u64 = u64::MAX;
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
        let current =
            self.keepers.connection(name).map(|keeper| (&*keeper).current_status(LOOKUP_TIMEOUT_MS));
        if let Some(Ok(status)) = current {
            return ProcessLookup::Found(process_binding(name, &status.child));
        }
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
        match self.keepers.responsive_connection(name) {
            Ok(Some((keeper, _))) => {
                if let Ok(Some(reader)) = KeeperOutputReader::new(keeper, self.keeper_dir(name), from) {
                    return Ok(Box::new(reader));
                }
            }
            Err(error @ KeeperError::Unresponsive { .. }) => return Err(unreachable_error(error)),
            Ok(None) | Err(_) => {}
        }
        match self.look_up(name) {
            KeeperLookup::Alive(keeper, status) => {
                let keeper = Arc::new(SharedConnection::new(*keeper, *status));
                // A process with two readers has a connection for each. Requests use the first.
                self.keepers.keep(name, &keeper);
                let reader = KeeperOutputReader::new(keeper, self.keeper_dir(name), from)?;
                Ok(Box::new(reader.ok_or_else(|| unreachable_error("its output is being read"))?))
            }
            KeeperLookup::Exited(_, record) => Ok(Box::new(
                FileReader::new(&self.keeper_dir(name), Some(record), from).map_err(unreachable_error)?,
            )),
            KeeperLookup::Lost => {
                Ok(Box::new(FileReader::new(&self.keeper_dir(name), None, from).map_err(unreachable_error)?))
            }
            other @ (KeeperLookup::Unresponsive | KeeperLookup::NotStarted | KeeperLookup::Absent) => {
                Err(lookup_error(&other))
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
        self.with_keeper(name, |keeper| keeper.write_once(write.key, write.bytes, write.close_after))
    }

    fn received_keys(&self, name: &str, keys: &[u64]) -> Result<Vec<u64>, ProcessUnreachable> {
        match self.look_up(name) {
            // Keepers of earlier versions cannot tell. They ignore repeated input.
            KeeperLookup::Alive(_, status) if status.protocol < WRITTEN_KEYS_PROTOCOL => Ok(Vec::new()),
            KeeperLookup::Alive(mut keeper, _) => keeper.find_written(keys).map_err(unreachable_error),
            KeeperLookup::Exited(_, record) => {
                Ok(keys.iter().copied().filter(|key| record.written_keys.contains(key)).collect())
            }
            // Its process has ended with it, so the input is offered to the next one.
            KeeperLookup::Lost | KeeperLookup::NotStarted | KeeperLookup::Absent => Ok(Vec::new()),
            unresponsive @ KeeperLookup::Unresponsive => Err(lookup_error(&unresponsive)),
        }
    }

    fn signal(&self, name: &str, signal: ProcessSignal) -> Result<(), ProcessUnreachable> {
        let number = match signal {
            ProcessSignal::Interrupt => rustix::process::Signal::INT,
            ProcessSignal::Terminate => rustix::process::Signal::TERM,
        };
        self.with_keeper(name, |keeper| keeper.signal_group(number.as_raw()))
    }

    fn terminate(&self, name: &str) -> Result<ExitStatus, ProcessUnreachable> {
        let keeper_dir = self.keeper_dir(name);
        let end_without_keeper = || {
            let run = name.rsplit_once('-').map_or(name, |(run, _)| run);
            let spared = self.outliving_keepers().recorded_dir(run);
            match kill_unresponsive(&keeper_dir, spared.as_deref()) {
                true => Ok(ExitStatus::Unknown),
                false => Err(unreachable_error("its keeper does not answer")),
            }
        };
        if let Some(keeper) = self.keepers.forget(name) {
            let ended = keeper.end(end_mode(keeper.first_status()));
            self.keepers.reap();
            return ended.map(exit_status).or_else(|_| end_without_keeper());
        }
        // An agent can stop its keeper with SIGSTOP (SECURITY 10).
        resume_keeper(&keeper_dir);
        let ended = match find(&keeper_dir, UnclaimedPolicy::Wait, RESPONSE_TIMEOUT_MS) {
            KeeperLookup::Alive(mut keeper, status) => {
                keeper.end(end_mode(&status)).map(exit_status).or_else(|_| end_without_keeper())
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
        self.keepers.reap();
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

    /// Starts a process and writes its first input. Idempotent: an existing process of this name is returned.
    fn start_or_find(&self, name: &str, start: &StartRequest<'_>) -> Result<ProcessBinding, StartError> {
        let (keeper, status) = match self.look_up(name) {
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
        let binding = process_binding(name, &status.child);
        let keeper = Arc::new(SharedConnection::new(keeper, status));
        // A process that exited before it read its input shows the reason in its exit record.
        (&*keeper).write_once(FIRST_INPUT_KEY, bytes, ends).ok();
        self.keepers.keep(name, &keeper);
        Ok(binding)
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
        let started = self.launcher.start_child(self.keeper_dir(name), spec, self.standby.take());
        match started.map_err(start_error)? {
            ChildStart::Started(mut keeper, status) => {
                self.keepers.track(keeper.take_process());
                Ok((*keeper, *status))
            }
            ChildStart::Refused(refusal) => Err(start_error(KeeperError::Refused(refusal))),
            // No response does not prove that nothing was started. Reporting "not started" would start the process
            // twice.
            ChildStart::Unknown(mut keeper) => {
                self.keepers.track(keeper.take_process());
                match self.look_up(name) {
                    KeeperLookup::Alive(keeper, status) => Ok((*keeper, *status)),
                    // The process may have exited already; a retry finds its record.
                    KeeperLookup::Unresponsive | KeeperLookup::Exited(..) => Err(StartError::Unresponsive),
                    KeeperLookup::Lost => Err(StartError::Lost),
                    KeeperLookup::NotStarted | KeeperLookup::Absent => Err(not_started_error()),
                }
            }
        }
    }

    /// Sends a request to the keeper of that name: on the connection that follows its output, or on a new one.
    fn with_keeper(
        &self,
        name: &str,
        request: impl FnOnce(&mut dyn KeeperRequests) -> Result<(), KeeperError>,
    ) -> Result<(), ProcessUnreachable> {
        if let Some(keeper) = self.keepers.connection(name) {
            return request(&mut &*keeper).map_err(unreachable_error);
        }
        match self.look_up(name) {
            KeeperLookup::Alive(mut keeper, _) => request(&mut *keeper).map_err(unreachable_error),
            other @ (KeeperLookup::Exited(..)
            | KeeperLookup::Unresponsive
            | KeeperLookup::Lost
            | KeeperLookup::NotStarted
            | KeeperLookup::Absent) => Err(lookup_error(&other)),
        }
    }

    /// Looks up the keeper of that name, on a new connection.
    fn look_up(&self, name: &str) -> KeeperLookup {
        find(&self.keeper_dir(name), UnclaimedPolicy::Wait, LOOKUP_TIMEOUT_MS)
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

/// How a process with this status is ended. The metadata that it was started with names the keepers that outlive it.
fn end_mode(status: &KeeperStatus) -> EndMode {
    match std::str::from_utf8(&status.meta) {
        Ok("") | Err(_) => EndMode::Graceful,
        Ok(keepers) => EndMode::Except(keepers.to_owned()),
    }
}

fn exit_status(exit: Option<KeeperExit>) -> ExitStatus {
    exit.map_or(ExitStatus::Unknown, |exit| ExitStatus::Code(exit.code))
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
