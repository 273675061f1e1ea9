//! Processes held by keepers: the contract of `ports` on the `keeper` crate.
//!
//! Each name is a keeper's directory. Nothing is remembered here, so a new daemon finds what an old one started.
//!
//! Keepers of runs have a folder of their own, so that no terminal runtime ever takes one for a session. Earlier
//! versions kept both side by side; what they started is found there by name until it has ended.

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

/// Processes under one directory of keepers.
#[derive(Debug)]
pub struct KeeperProcesses {
    /// The directory of all keepers. Those that are started here lie in [`RUNS`] below it.
    pub directory: PathBuf,
    /// How this program becomes a keeper.
    pub launcher: KeeperLauncher,
    /// The environment that processes get a part of: what every process gets, and what its engine is passed.
    pub env: Vec<(String, String)>,
    /// How processes are isolated. None in programs that start only checks.
    pub isolator: Option<ProgramIsolator>,
    /// How many bytes of output are kept of each.
    pub retention: u64,
    /// Keepers that are children of this process, to be reaped when they are over.
    pub children: Mutex<Vec<Child>>,
    /// Whether a keeper is kept ready for the next process.
    pub readiness: StandbyPolicy,
}

/// The folder of the keepers that hold runs.
pub const RUNS: &str = "runs";

/// The key of what a process reads first.
const FIRST_INPUT: u64 = u64::MAX;
/// How long a keeper may take to answer when it is looked for. One that lives answers in less than a millisecond, unless
/// the machine is very busy.
const ANSWER_MS: u64 = 2_000;
/// How long a keeper that has answered may take for an order, and a new one for its first answer.
const PATIENCE_MS: u64 = 10_000;
/// How long a keeper may take to end its child: longer than its own ladder.
const END_MS: u64 = 30_000;
/// How many bytes go in one order.
const PIECE: usize = 4 << 20;

impl Processes for KeeperProcesses {
    fn start(&self, name: &str, start: &ProcessStart<'_>) -> Result<ProcessBinding, StartError> {
        let started = self.start_or_find(name, start);
        // Not before: the start of the next keeper would take the processor from this one's.
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
        // Every output changes the spool, so that this outlives whoever listened. A checkpoint is our own doing.
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
        // An agent can stop its keeper (SECURITY 10).
        resume(&place);
        let ended = match self.look_for(name, PATIENCE_MS) {
            KeeperLookup::Held(keeper, status) => {
                // What it was started with says what is to outlive it.
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
    /// The folder of the keepers that are started here.
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

    /// Takes a child to be reaped, and reaps those that are over.
    fn adopt(&self, child: Option<Child>) {
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        children.extend(child);
        children.retain_mut(|child| child.try_wait().is_ok_and(|status| status.is_none()));
    }

    /// Starts a process and gives it what it reads first, unless that was done before.
    fn start_or_find(&self, name: &str, start: &ProcessStart<'_>) -> Result<ProcessBinding, StartError> {
        let (mut keeper, status) = match self.look(name) {
            KeeperLookup::Held(keeper, status) => (*keeper, *status),
            // It ran and is over; its output and its end can be read.
            KeeperLookup::Recorded(child, _) => return Ok(process(name, &child)),
            KeeperLookup::Silent => return Err(StartError::Silent),
            // It ran and was not seen to end; what it printed until then can be read.
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
        // A program that left without reading has its own words for why.
        let _told_by_its_exit = write_pieces(&mut keeper, FIRST_INPUT, bytes, ends);
        Ok(process(name, &status.child))
    }

    /// Starts what is not there.
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
            // It has said nothing. That is not to say that it does nothing: what is told as not started is started again.
            Err(
                KeeperError::Gone { .. }
                | KeeperError::Silent { .. }
                | KeeperError::Protocol(_)
                | KeeperError::System { .. },
            ) => match self.look(name) {
                KeeperLookup::Held(keeper, status) => Ok((*keeper, *status)),
                // It may be over already; when it is started again, its record is found.
                KeeperLookup::Silent | KeeperLookup::Recorded(..) => Err(StartError::Silent),
                KeeperLookup::Gone => Err(StartError::Gone),
                KeeperLookup::Never | KeeperLookup::Nothing => Err(never_began()),
            },
        }
    }

    /// The keeper of that name, if it lives and answers.
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

    /// Looks for the keeper of that name. One that is just being started is waited for. One that has not begun, because
    /// its daemon died before it could be told what to hold, is kept from ever beginning. One that lives and does not
    /// answer in time is given up for now.
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

    /// Leaves word of what outlives a run's processes, for whoever ends it with the run.
    fn note_outliving(&self, name: &str, start: &ProcessStart<'_>) -> io::Result<()> {
        match (&start.launch.outliving, name.rsplit_once('-')) {
            (Some(directory), Some((run, _))) => self.outliving_notes().note(run, directory),
            (Some(_), None) | (None, _) => Ok(()),
        }
    }

    fn outliving_notes(&self) -> OutlivingKeepers {
        OutlivingKeepers::beside(&self.directory, &self.launcher)
    }

    /// Where keepers will lie that outlive a process; empty if there will be none.
    fn outliving(&self, launch: &ProcessSpec) -> PathBuf {
        let noted = launch.outliving.as_deref();
        noted.and_then(|noted| self.outliving_notes().directory(noted)).unwrap_or_default()
    }

    /// How a process is isolated.
    fn plan(&self, start: &ProcessStart<'_>) -> Result<IsolationPlan, String> {
        let Some(isolator) = &self.isolator else { return Ok(IsolationPlan::default()) };
        // A program that lies in the home itself must be seen to be executed.
        let program = start.launch.argv.first().map(PathBuf::from).filter(|program| program.is_absolute());
        let shown: Vec<PathBuf> = [PathBuf::from(start.private)].into_iter().chain(program).collect();
        let (isolation, workspace) = (start.isolation, Path::new(start.workspace));
        // Every engine that runs as a process of its own has a sandbox of its own.
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
            // It makes keepers below this home, whatever its engine's settings say about the user's.
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
            // The output of a check is read once, and nobody takes a checkpoint.
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

/// Whether a keeper of this name belongs to a run or to a check of an engine. Sessions have other names.
fn is_of_a_run(name: &str) -> bool {
    name.starts_with("run_") || name.starts_with(CHECK)
}

/// How the names of checks of an engine begin.
const CHECK: &str = "check-";

/// What can be said of a process whose keeper is dead.
fn left_by_the_dead(place: &KeeperDir) -> KeeperLookup {
    match (child(place), place.final_record()) {
        (Some(child), Some(record)) => KeeperLookup::Recorded(Box::new(child), record),
        (Some(_) | None, _) if place.path().exists() => KeeperLookup::Gone,
        (Some(_) | None, _) => KeeperLookup::Nothing,
    }
}

/// Has a keeper end what it holds, and says how that ended. `exit` is what is known before.
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
            // A keeper that is gone before it can say so has done as it was told.
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

/// Ends what a keeper holds that does not answer, without it.
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

/// Ends every keeper in a directory, and says whether none is left.
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

/// What became of a keeper.
enum KeeperLookup {
    /// It lives and answers.
    Held(Box<KeeperConnection>, Box<KeeperStatus>),
    /// It held this, recorded how that ended, and is dead.
    Recorded(Box<ProcessIdentity>, FinalRecord),
    /// It lives and does not answer.
    Silent,
    /// It held something, and is dead.
    Gone,
    /// It was meant to hold something, and certainly never did.
    Never,
    /// There is none of that name.
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

/// How often, and how far apart, a keeper that is being started is looked for, and one that has not even begun to.
const STARTING_LOOKS: u32 = 240;
const UNCLAIMED_LOOKS: u32 = 20;
/// How often it is looked whether a killed keeper is gone.
const DYING_LOOKS: u32 = 40;
const STARTING_PAUSE: Duration = Duration::from_millis(50);

#[expect(clippy::disallowed_methods, reason = "a keeper that has no socket yet has nothing to wait on")]
fn pause() {
    std::thread::sleep(STARTING_PAUSE);
}

/// Long input goes in several orders, each under a key of its own.
fn write_pieces(
    keeper: &mut KeeperConnection,
    key: u64,
    bytes: &[u8],
    ends: bool,
) -> Result<(), ProcessUnreachable> {
    let pieces: Vec<&[u8]> = if bytes.is_empty() { vec![bytes] } else { bytes.chunks(PIECE).collect() };
    let last = pieces.len() - 1;
    for (number, piece) in pieces.into_iter().enumerate() {
        // Keys are positions or numbers of orders, whose highest bits are free.
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

/// Makes the private directory of a run if its process is told of it, with the note by which retention knows it again.
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
