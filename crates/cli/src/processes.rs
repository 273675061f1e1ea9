//! Processes held by keepers: the contract of `ports` on the `keeper` crate.
//!
//! Each name is a keeper's directory. Nothing is remembered here, so a new daemon finds what an old one started.

mod files;
mod outliving;

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Child,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use abide_domain::{
    process::{Exit, Process},
    time::Timestamp,
};
use abide_keeper::{
    KeeperError,
    identity::ProcessIdentity,
    launch::{Keeper, Launcher, Spare, Stage, prevent, stage, sweep},
    place::Place,
    protocol::{Act, Answer, News, Order, Owner, Refusal, Shape, Spec, Status, Stream},
};
use abide_ports::{
    engine::{Installation, PrivateFile, Signal, Stdin},
    processes::{FileIdentity, Follow, Found, Heard, Lost, Processes, Start, StartError, Write},
};

pub(crate) use outliving::Outliving;

/// Processes under one directory of keepers.
#[derive(Debug)]
pub struct Keepers {
    /// The directory.
    pub directory: PathBuf,
    /// How this program becomes a keeper.
    pub launcher: Launcher,
    /// What every process finds in its environment.
    pub env: Vec<(String, String)>,
    /// How many bytes of output are kept of each.
    pub retention: u64,
    /// Keepers that are children of this process, to be reaped when they are over.
    pub children: Mutex<Vec<Child>>,
    /// Whether a keeper is kept ready for the next process.
    pub readiness: Readiness,
}

/// Whether a keeper is kept ready, so that a turn does not wait for one to start.
#[derive(Debug, Default)]
pub enum Readiness {
    /// For programs that start a few processes and go.
    #[default]
    None,
    /// For the daemon. There is none before the first process was started.
    One(Arc<Mutex<Option<Spare>>>),
}

impl Readiness {
    /// The keeper that is ready, if there is one.
    fn take(&self) -> Option<Spare> {
        match self {
            Self::None => None,
            Self::One(spare) => spare.lock().unwrap_or_else(PoisonError::into_inner).take(),
        }
    }

    /// Makes the next one ready if there is none, while nobody waits for it.
    fn refill(&self, launcher: &Launcher) {
        let Self::One(spare) = self else { return };
        if spare.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
            return;
        }
        let (spare, launcher) = (spare.clone(), launcher.clone());
        let _there_is_none_then = std::thread::Builder::new().name("spare".to_owned()).spawn(move || {
            if let Ok(ready) = launcher.prepare() {
                *spare.lock().unwrap_or_else(PoisonError::into_inner) = Some(ready);
            }
        });
    }
}

/// The key of what a process reads first.
const FIRST_INPUT: u64 = u64::MAX;
/// How long a keeper may take to answer.
const PATIENCE_MS: u64 = 10_000;
/// How long a keeper may take to end its child: longer than its own ladder.
const END_MS: u64 = 30_000;
/// How many bytes go in one order.
const PIECE: usize = 4 << 20;

impl Processes for Keepers {
    fn start(&self, name: &str, start: &Start<'_>) -> Result<Process, StartError> {
        let started = self.start_or_find(name, start);
        // Not before: the start of the next keeper would take the processor from this one's.
        self.readiness.refill(&self.launcher);
        started
    }

    fn find(&self, name: &str) -> Found {
        match self.look(name) {
            Looked::Held(_, status) => Found::Held(process(name, &status.child)),
            Looked::Gone => Found::Gone,
            Looked::Never | Looked::Nothing => Found::Never,
        }
    }

    fn last_heard(&self, name: &str) -> Option<Timestamp> {
        // Every output and nothing else changes the spool, so that this outlives whoever listened.
        let files = fs::read_dir(self.place(name).path()).ok()?;
        let changed = files.filter_map(|file| file.ok()?.metadata().ok()?.modified().ok()).max()?;
        let since = changed.duration_since(std::time::UNIX_EPOCH).ok()?;
        Some(Timestamp(i64::try_from(since.as_micros()).ok()?))
    }

    fn follow(&self, name: &str) -> Result<Box<dyn Follow>, Lost> {
        let (mut keeper, _) = self.attach(name).ok_or_else(|| lost("its keeper is gone"))?;
        let act = Act::Follow { job: 0, from: [0, 0] };
        keeper.link.send(&Order { tag: 1, act }).map_err(lost)?;
        Ok(Box::new(Reader { keeper, next: [0, 0] }))
    }

    fn write(&self, name: &str, write: &Write<'_>) -> Result<(), Lost> {
        let (mut keeper, _) = self.attach(name).ok_or_else(|| lost("its keeper is gone"))?;
        write_pieces(&mut keeper, write.key, write.bytes, write.ends)
    }

    fn signal(&self, name: &str, signal: Signal) -> Result<(), Lost> {
        let (mut keeper, _) = self.attach(name).ok_or_else(|| lost("its keeper is gone"))?;
        let number = match signal {
            Signal::Interrupt => rustix::process::Signal::INT,
            Signal::Terminate => rustix::process::Signal::TERM,
        };
        done(keeper.ask(1, Act::Signal(number.as_raw()), PATIENCE_MS))
    }

    fn end(&self, name: &str) -> Result<(), Lost> {
        let place = self.place(name);
        let ended = match self.attach(name) {
            Some((keeper, status)) => {
                // What it was started with says what is to outlive it.
                let keepers = String::from_utf8(status.meta).unwrap_or_default();
                let but = (!keepers.is_empty()).then_some(Act::EndExcept { keepers });
                end(keeper, but.unwrap_or(Act::End { force: false }))
            }
            None if place.path().exists() && !sweep(&place) => Err(lost("its keeper does not answer")),
            None => Ok(()),
        };
        self.adopt(None);
        ended
    }

    fn names(&self) -> Vec<String> {
        Place::all(&self.directory).into_iter().map(|(name, _)| name).collect()
    }

    fn files_of(&self, command: &Installation) -> Option<Vec<FileIdentity>> {
        let inherited = || self.env.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value);
        let path = command.env.get("PATH").or_else(inherited).map_or("", String::as_str);
        files::identities(command, path)
    }
}

impl Keepers {
    fn place(&self, name: &str) -> Place {
        Place::new(&self.directory, name)
    }

    /// Takes a child to be reaped, and reaps those that are over.
    fn adopt(&self, child: Option<Child>) {
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        children.extend(child);
        children.retain_mut(|child| child.try_wait().is_ok_and(|status| status.is_none()));
    }

    /// Starts a process and gives it what it reads first, unless that was done before.
    fn start_or_find(&self, name: &str, start: &Start<'_>) -> Result<Process, StartError> {
        let (mut keeper, status) = match self.look(name) {
            Looked::Held(keeper, status) => (*keeper, *status),
            Looked::Gone => return Err(StartError::Gone),
            Looked::Never => return Err(never_began()),
            Looked::Nothing => self.begin(name, start)?,
        };
        let (bytes, ends) = match &start.launch.stdin {
            Stdin::Whole(bytes) => (bytes, true),
            Stdin::Open(bytes) => (bytes, false),
        };
        // A program that left without reading has its own words for why.
        let _told_by_its_exit = write_pieces(&mut keeper, FIRST_INPUT, bytes, ends);
        Ok(process(name, &status.child))
    }

    /// Starts what is not there.
    fn begin(&self, name: &str, start: &Start<'_>) -> Result<(Keeper, Status), StartError> {
        let noted = write_files(start).and_then(|()| self.note_outliving(name, start));
        noted.map_err(|error| StartError::System(error.to_string()))?;
        let started = self.launcher.start(self.place(name), self.spec(start), self.readiness.take());
        let mut keeper = started.map_err(start_error)?;
        let status = keeper.status(PATIENCE_MS);
        self.adopt(keeper.take_process());
        match status {
            Ok(status) => Ok((keeper, status)),
            Err(refused @ KeeperError::Refused(_)) => Err(start_error(refused)),
            // It has said nothing. That is not to say that it does nothing: what is told as not started is started again.
            Err(KeeperError::Gone { .. } | KeeperError::Protocol(_) | KeeperError::System { .. }) => {
                match self.look(name) {
                    Looked::Held(keeper, status) => Ok((*keeper, *status)),
                    Looked::Gone => Err(StartError::Gone),
                    Looked::Never | Looked::Nothing => Err(never_began()),
                }
            }
        }
    }

    /// The keeper of that name, if it lives.
    fn attach(&self, name: &str) -> Option<(Keeper, Status)> {
        match self.look(name) {
            Looked::Held(keeper, status) => Some((*keeper, *status)),
            Looked::Gone | Looked::Never | Looked::Nothing => None,
        }
    }

    /// Looks for the keeper of that name. One that is just being started is waited for. One that has not begun, because
    /// its daemon died before it could be told what to hold, is kept from ever beginning.
    fn look(&self, name: &str) -> Looked {
        let place = self.place(name);
        for looks in 0..STARTING_LOOKS {
            if !place.path().exists() {
                return Looked::Nothing;
            }
            if let Ok(mut keeper) = Keeper::attach(place.clone())
                && let Ok(status) = keeper.status(PATIENCE_MS)
            {
                return Looked::Held(Box::new(keeper), Box::new(status));
            }
            match stage(&place) {
                Stage::Alive => {}
                Stage::Dead => return if place.path().exists() { Looked::Gone } else { Looked::Nothing },
                Stage::Never => return Looked::Never,
                Stage::Unclaimed if looks < UNCLAIMED_LOOKS => {}
                Stage::Unclaimed => prevent(&place),
            }
            pause();
        }
        Looked::Gone
    }

    /// Leaves word of what outlives a run's processes, for whoever ends it with the run.
    fn note_outliving(&self, name: &str, start: &Start<'_>) -> io::Result<()> {
        match (&start.launch.outliving, name.rsplit_once('-')) {
            (Some(directory), Some((run, _))) => Outliving::beside(&self.directory).note(run, directory),
            (Some(_), None) | (None, _) => Ok(()),
        }
    }

    fn spec(&self, start: &Start<'_>) -> Spec {
        let launch = start.launch;
        let replaced = |name: &str| {
            launch.without_env.iter().any(|gone| gone == name)
                || launch.env.iter().any(|(set, _)| set == name)
        };
        let inherited = self.env.iter().filter(|(name, _)| !replaced(name));
        Spec {
            argv: launch.argv.clone(),
            env: inherited.chain(&launch.env).cloned().collect(),
            cwd: start.workspace.to_owned(),
            shape: Shape::Pipes,
            retention: self.retention,
            meta: launch.outliving.clone().unwrap_or_default().into_bytes(),
            owner: Owner::Home,
        }
    }
}

/// Has a keeper end what it holds.
fn end(mut keeper: Keeper, how: Act) -> Result<(), Lost> {
    // A keeper that is gone before it can say so has done as it was told.
    match keeper.ask(1, how, END_MS) {
        Ok(_) | Err(KeeperError::Gone { .. }) => Ok(()),
        Err(error) => Err(lost(error)),
    }
}

/// Ends every keeper in a directory, and says whether none is left.
pub(crate) fn end_all(directory: &Path) -> bool {
    let mut none_left = true;
    for (_, place) in Place::all(directory) {
        let keeper = Keeper::attach(place.clone()).ok();
        none_left &= match keeper.and_then(|mut keeper| keeper.status(PATIENCE_MS).is_ok().then_some(keeper))
        {
            Some(keeper) => end(keeper, Act::End { force: false }).is_ok(),
            None => sweep(&place),
        };
    }
    none_left
}

/// What became of a keeper.
enum Looked {
    /// It lives and answers.
    Held(Box<Keeper>, Box<Status>),
    /// It held something, and is dead.
    Gone,
    /// It was meant to hold something, and certainly never did.
    Never,
    /// There is none of that name.
    Nothing,
}

/// How often, and how far apart, a keeper that is being started is looked for, and one that has not even begun to.
const STARTING_LOOKS: u32 = 240;
const UNCLAIMED_LOOKS: u32 = 20;
const STARTING_PAUSE: Duration = Duration::from_millis(50);

#[expect(clippy::disallowed_methods, reason = "a keeper that has no socket yet has nothing to wait on")]
fn pause() {
    std::thread::sleep(STARTING_PAUSE);
}

/// Reads one process.
#[derive(Debug)]
struct Reader {
    keeper: Keeper,
    /// The next byte of each stream.
    next: [u64; 2],
}

impl Follow for Reader {
    fn next(&mut self, patience: Option<Duration>) -> Result<Heard, Lost> {
        let milliseconds = patience.map_or(u64::MAX / 2_000, |patience| patience.as_millis() as u64);
        loop {
            match self.keeper.link.wait::<Answer>(milliseconds).map_err(lost)? {
                None if self.keeper.link.is_closed() => return Err(lost("its keeper is gone")),
                None => return Ok(Heard::Nothing),
                Some(Answer { news: News::Output(output), .. }) => {
                    let next = &mut self.next[output.stream.index()];
                    if output.offset != *next {
                        return Err(lost("its first output is no longer kept"));
                    }
                    *next += output.bytes.len() as u64;
                    return Ok(match output.stream {
                        Stream::Stdout => Heard::Stdout(output.bytes),
                        Stream::Stderr => Heard::Stderr(output.bytes),
                    });
                }
                Some(Answer { news: News::Ended(outcome), .. }) => {
                    return Ok(Heard::Exited(Exit::Code(outcome.code)));
                }
                Some(_) => {}
            }
        }
    }
}

/// Long input goes in several orders, each under a key of its own.
fn write_pieces(keeper: &mut Keeper, key: u64, bytes: &[u8], ends: bool) -> Result<(), Lost> {
    let pieces: Vec<&[u8]> = if bytes.is_empty() { vec![bytes] } else { bytes.chunks(PIECE).collect() };
    let last = pieces.len() - 1;
    for (number, piece) in pieces.into_iter().enumerate() {
        // Keys are positions or numbers of orders, whose highest bits are free.
        let key = key ^ ((number as u64) << 48);
        let act = Act::Write { key, bytes: piece.to_vec(), eof: ends && number == last };
        done(keeper.ask(2, act, PATIENCE_MS))?;
    }
    Ok(())
}

fn done(answer: Result<News, KeeperError>) -> Result<(), Lost> {
    if let News::Refused(refusal) = answer.map_err(lost)? { Err(lost(refusal)) } else { Ok(()) }
}

fn write_files(start: &Start<'_>) -> io::Result<()> {
    for PrivateFile { path, contents } in &start.launch.files {
        let path = Path::new(start.private).join(path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, contents)?;
    }
    Ok(())
}

fn process(name: &str, child: &ProcessIdentity) -> Process {
    Process {
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
        KeeperError::Refused(Refusal::Program(program)) => StartError::Program(program),
        KeeperError::Refused(Refusal::Directory(directory)) => StartError::Directory(directory),
        KeeperError::Refused(_)
        | KeeperError::Gone { .. }
        | KeeperError::Protocol(_)
        | KeeperError::System { .. } => StartError::System(error.to_string()),
    }
}

fn lost(reason: impl ToString) -> Lost {
    Lost { reason: reason.to_string() }
}
