//! The keeper process: one loop for a child, its output, its commands and its clients.
//!
//! It has no threads and no async runtime; every wait is one `epoll_wait`. The loss of a client never ends the child.
//! Each part has its own module; this one connects them.

mod clients;
mod commands;
mod end;
mod orders;
mod output;
mod poller;
mod repair;
mod replace;
mod settle;
mod signals;
mod stdin;
mod stop;
mod tracing;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use abide_os::process::{PidFd, ProcessStat};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::process::{Pid, Rlimit, Signal, WaitOptions, kill_process, wait};

use crate::child::{ChildIo, first_lane, spawn_on_pty, spawn_piped, spawn_shell};
use crate::clock::{ticks, unix_micros};
use crate::error::KeeperError;
use crate::group::{self, ChildGroup};
use crate::identity::ProcessIdentity;
use crate::job::ShellJob;
use crate::lane::OutputPipes;
use crate::launch::{FIRST, IdentityRecord, KeeperStartRequest};
use crate::link::FramedSocket;
use crate::place::KeeperDir;
use crate::procs;
use crate::protocol::{
    ChildExit, ChildMode, ExecOutcome, JobId, KeeperOwner, KeeperRefusal, KeeperResponse, KeeperSpec,
    KeeperStatus, PROTOCOL, ShellCommand, SpoolOverflow, TaggedResponse,
};
use crate::script::ShellDriver;
use crate::spin::AdaptiveSpin;
use crate::spool::Spool;
use crate::ticker::PeriodicTimer;

use clients::ClientConnections;
use end::ShutdownProgress;
use poller::{PollSource, Poller};
use repair::StreamRepair;
use signals::KeeperSignals;

/// Runs a keeper until its child has ended and a client has collected the result.
pub fn main() -> Result<(), KeeperError> {
    let (mut link, signals) = detach()?;
    // Prepared before the request arrives, to shorten the start of the child.
    let own = ProcessIdentity::own();
    // A standby keeper waits here until its starter sends a request or exits.
    let Some(KeeperStartRequest { directory, spec }) = link.wait::<KeeperStartRequest>(FOR_EVER_MS)? else {
        return Ok(());
    };
    // The working directory shows operators which directory a keeper belongs to. An error does not affect the keeper.
    rustix::process::chdir(&directory).ok();
    let place = KeeperDir::at(directory);
    // The starter may have died, and its successor may have claimed the directory for no keeper.
    if !place.claim(Some(&own)).unwrap_or(false) {
        return Ok(());
    }
    // A run must not be started twice, even after a power failure. So the claim is made durable before the child
    // starts. Without a sync, only a power failure can start the run twice.
    if spec.overflow == SpoolOverflow::Block {
        place.sync().ok();
    }
    let mut holder = match ChildSupervisor::start(place.clone(), spec, signals, own) {
        Ok(holder) => holder,
        Err(refusal) => {
            // The refusal is sent in any case; a directory that remains is swept later.
            place.remove().ok();
            link.send(&TaggedResponse { tag: FIRST, news: KeeperResponse::Refused(refusal) })?;
            return Ok(());
        }
    };
    holder.clients.add_creator(link, &holder.poller);
    let held = holder.hold();
    // The connections close only with the process, so that a closed connection proves that the keeper is gone.
    std::mem::forget(holder);
    held
}

/// Leaves the session and the terminal of the parent, and takes the inherited socket.
fn detach() -> Result<(FramedSocket, KeeperSignals), KeeperError> {
    let failed = |what: &'static str| move |error: Errno| KeeperError::system(what, error);
    leave_session();
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(failed("cannot be a sub-reaper"))?;
    let channel = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).map_err(failed("no channel"))?;
    let null = File::options().read(true).write(true).open("/dev/null");
    let null = null.map_err(|error| KeeperError::system("cannot open /dev/null", error))?;
    rustix::stdio::dup2_stdin(&null).map_err(failed("cannot leave the standard input"))?;
    let signals =
        KeeperSignals::install().map_err(|error| KeeperError::system("cannot take signals", error))?;
    Ok((FramedSocket::new(channel), signals))
}

/// Leaves the session of the starter, and with it the terminal. The child must not read from that terminal, be stopped
/// by it, or prompt for a password there.
///
/// The keeper was started as the leader of a process group, so that no Ctrl-C reached it. A group leader cannot create
/// a session, so it first moves back into the group of its parent.
fn leave_session() {
    use rustix::process::{getppid, setpgid, setsid};
    // In a pid namespace, the group of the parent is 0 if it was created outside. Then there is no group to move into.
    let group_of = |pid: Pid| {
        let stat = ProcessStat::read(pid.as_raw_nonzero().get().unsigned_abs())?;
        i32::try_from(stat.group).ok().and_then(Pid::from_raw)
    };
    if setsid().is_err()
        && let Some(group) = getppid().and_then(group_of)
        && setpgid(None, Some(group)).is_ok()
    {
        // Without its own session the keeper still works.
        setsid().ok();
    }
}

/// The state of a running keeper.
#[derive(Debug)]
struct ChildSupervisor {
    place: KeeperDir,
    poller: Poller,
    signals: KeeperSignals,
    door: OwnedFd,
    clients: ClientConnections,
    own: ProcessIdentity,
    child: ProcessIdentity,
    /// The pidfd of the child until it is reaped. After that, its pid may belong to another process (SECURITY 11).
    child_fd: ChildFd,
    program: Option<PathBuf>,
    /// The child's control group. None if it has none, or if the keeper is in it too.
    group: Option<ChildGroup>,
    /// Used to restart a shell.
    spec: KeeperSpec,
    /// The working directory of the shell at the last stop.
    last_directory: Option<PathBuf>,
    /// The original descriptor limit of the shell, while it is lowered.
    limit: Option<Rlimit>,
    /// True if the current shell replaced another one.
    is_replacement: bool,
    /// The children of the shell, and of the keeper.
    children: [procs::ChildList; 2],
    descriptors: procs::DescriptorDir,
    hold: ChildIo,
    stdin: stdin::StdinBuffer,
    /// The pending request that waits until the child reads its input again.
    settling: Option<settle::InputWait>,
    prompter: Option<ShellDriver>,
    lanes: BTreeMap<u64, OutputPipes>,
    /// The number of the pipes that the shell currently writes to.
    lane: u64,
    repair: StreamRepair,
    /// The pids that existed before the current command.
    known: Vec<u32>,
    job: Option<ShellJob>,
    waiting: Option<(ShellCommand, (u64, u64))>,
    jobs: JobId,
    spool: Spool,
    last: Option<ExecOutcome>,
    exit: Option<ChildExit>,
    /// When to sync the exit record; None if it is synced.
    sync_exit_at: Option<u64>,
    /// An inotify descriptor that reports the deletion of the directory, once the child has exited.
    vanishing: Option<OwnedFd>,
    ending: Option<ShutdownProgress>,
    /// True while trace output of the keeper's own script lines is discarded.
    muted: bool,
    /// The beginning of a line that may be trace output of the keeper's script.
    unfinished: Vec<u8>,
    /// True if the last `epoll_wait` returned all ready sources. Then pipes without an edge are empty.
    all_edges_taken: bool,
    /// Why the shell could not be started.
    failure: Option<KeeperRefusal>,
    /// Why the shell is being replaced.
    lost: Option<String>,
    owner: KeeperOwner,
    meta: Vec<u8>,
    created_at: u64,
    last_activity_at: u64,
    watch_at: u64,
    ticker: PeriodicTimer,
    spin: AdaptiveSpin,
    buffer: Vec<u8>,
}

/// Pages of the buffer are only committed when data is read into them.
const BUFFER: usize = 256 << 10;
/// How long the keeper polls for the report of a short command, in microseconds.
const LOOK_US: u64 = 100;
const FOR_EVER_MS: u64 = u64::MAX / 4_000;
/// Delay of the exit record's sync while a client is connected, in microseconds.
const EXIT_SYNC_DELAY_US: u64 = 200_000;
/// Maximum number of events for each `epoll_wait`.
const EVENTS: usize = 32;
/// Retry interval for the rest of a long command, in microseconds.
const PUSH: u64 = 500;

impl ChildSupervisor {
    fn start(
        place: KeeperDir,
        spec: KeeperSpec,
        signals: KeeperSignals,
        own: ProcessIdentity,
    ) -> Result<Self, KeeperRefusal> {
        let system = |error: Errno| KeeperRefusal::System(error.to_string());
        let io = |error: std::io::Error| KeeperRefusal::System(error.to_string());
        let spool = Spool::open(place.path(), spec.retention, spec.overflow).map_err(io)?;
        let poller = Poller(epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?);
        let (lane, writers) = first_lane()?;
        let mut prompter = None;
        let door = place.listen().map_err(io)?;
        let group = match &spec.group {
            Some(group) if !spec.is_confined_with_keeper() => ChildGroup::make(group, &own)?,
            Some(_) | None => None,
        };
        // The time is taken before the start, because the child's run time includes its start.
        let now = unix_micros();
        let started = inside(group.as_ref(), &spec, || match &spec.shape {
            ChildMode::Pipes => spawn_piped(&spec, &place, writers),
            ChildMode::Shell(script) => {
                let shell = prompter.insert(ShellDriver::new(script.clone(), false).map_err(io)?);
                shell.begin().map_err(io)?;
                spawn_shell(&spec, shell, writers)
            }
            ChildMode::Pty { rows, cols, script } => {
                drop(writers);
                if let Some(script) = script {
                    prompter = Some(ShellDriver::new(script.clone(), true).map_err(io)?);
                }
                spawn_on_pty(&spec, &place, *rows, *cols)
            }
        });
        let (pid, hold) = started.inspect_err(|_| group.iter().for_each(ChildGroup::remove))?;
        let child_fd = ChildFd::of(pid);
        let child = identity_of_child(pid);
        let entered = || spec.group.as_ref().and_then(|_| group::entered());
        let group_path = group.as_ref().map(|group| group.path().to_owned()).or_else(entered);
        // The child runs and may have deleted the directory. It is supervised anyway.
        IdentityRecord::new(&own, &child, group_path.as_deref()).write(&place).ok();
        poller.add(&signals.child, PollSource::Signals, epoll::EventFlags::IN).map_err(system)?;
        poller.add(&door, PollSource::Door, epoll::EventFlags::IN).map_err(system)?;
        if let Some(prompter) = &prompter {
            poller.add(prompter.reports_on(), PollSource::Reports, epoll::EventFlags::IN).map_err(system)?;
        }
        let ticker = PeriodicTimer::new(commands::WATCH).map_err(system)?;
        poller.add(&ticker, PollSource::Tick, epoll::EventFlags::IN).map_err(system)?;
        let mut holder = Self {
            place,
            poller,
            signals,
            door,
            own,
            child,
            child_fd,
            group,
            hold,
            stdin: stdin::StdinBuffer::default(),
            settling: None,
            prompter,
            spool,
            clients: ClientConnections::default(),
            program: procs::program(pid),
            children: [procs::ChildList::of(pid), procs::ChildList::of(std::process::id())],
            descriptors: procs::DescriptorDir::of(pid),
            lanes: BTreeMap::new(),
            lane: lane.number,
            repair: StreamRepair::first(),
            known: Vec::new(),
            job: None,
            waiting: None,
            jobs: 0,
            last: None,
            exit: None,
            sync_exit_at: None,
            vanishing: None,
            ending: None,
            muted: false,
            unfinished: Vec::new(),
            all_edges_taken: false,
            failure: None,
            lost: None,
            owner: spec.owner.clone(),
            meta: spec.meta.clone(),
            spec,
            last_directory: None,
            limit: None,
            is_replacement: false,
            created_at: now,
            last_activity_at: now,
            watch_at: 0,
            ticker,
            spin: AdaptiveSpin::new(LOOK_US),
            buffer: vec![0; BUFFER],
        };
        holder.spool.begin(0);
        if let ChildIo::Pty(pty) = &holder.hold {
            holder.poller.add(pty, PollSource::Terminal, epoll::EventFlags::IN).map_err(system)?;
        } else {
            holder.add_lane(lane).map_err(system)?;
        }
        Ok(holder)
    }

    /// The loop.
    fn hold(&mut self) -> Result<(), KeeperError> {
        self.began();
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            events.clear();
            // While a short command runs, the keeper polls for its report, because a wake-up costs more.
            let looking = self.spin.is_looking();
            let timeout = if looking { Some(0) } else { self.sleep_for() };
            let timeout = timeout.map(|micros| Timespec {
                tv_sec: i64::try_from(micros / 1_000_000).unwrap_or(0),
                tv_nsec: i64::try_from(micros % 1_000_000).unwrap_or(0) * 1_000,
            });
            match epoll::wait(&self.poller.0, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(KeeperError::system("cannot wait", error)),
            }
            if looking && events.is_empty() {
                self.spin.saw_nothing();
                continue;
            }
            let sources: Vec<PollSource> =
                events.iter().filter_map(|event| PollSource::unpack(event.data.u64())).collect();
            // Output is processed first, because output before a report belongs to the reported command.
            let (lanes, others): (Vec<_>, Vec<_>) =
                sources.into_iter().partition(|source| matches!(source, PollSource::Lane(..)));
            self.all_edges_taken = events.len() < EVENTS;
            for source in lanes.into_iter().chain(others) {
                self.ready(source);
            }
            self.all_edges_taken = false;
            self.drain_lanes();
            self.push_command();
            self.on_time();
            self.pump();
            if self.is_over() {
                return Ok(());
            }
        }
    }

    fn ready(&mut self, source: PollSource) {
        match source {
            PollSource::Signals => self.reap(),
            PollSource::Door => self.clients.accept(&self.door, &self.poller),
            PollSource::Reports => self.hear_reports(),
            PollSource::Terminal => self.drain_terminal(),
            PollSource::Input => self.push_input(),
            PollSource::Stdin => self.push_stdin(),
            PollSource::Vanishing => self.hear_of_vanishing(),
            PollSource::Tick => {
                let wanted = self.needs_watching();
                self.ticker.tick(wanted);
            }
            PollSource::Lane(number, stream) => {
                if let Some(lane) = self.lanes.get_mut(&number) {
                    lane.ready[stream.index()] = true;
                }
            }
            PollSource::Client(number) => self.hear(number),
        }
    }

    fn needs_watching(&self) -> bool {
        self.job.is_some() || self.repair.is_running()
    }

    /// Time until the next deadline, in microseconds. None waits without a timeout.
    fn sleep_for(&self) -> Option<u64> {
        let now = ticks();
        let pushing = self.prompter.as_ref().is_some_and(ShellDriver::wants_to_write).then_some(now + PUSH);
        let busy = self.lanes.values().any(|lane| lane.ready.contains(&true) && !self.is_held_back(lane.job));
        if busy {
            return Some(0);
        }
        let ladder = self.job.as_ref().and_then(|job| job.ladder.wakes_at());
        let ending = self.ending.as_ref().map(ShutdownProgress::wakes_at);
        let settling = self.settling.as_ref().map(settle::InputWait::wakes_at);
        [ladder, ending, pushing, settling, self.sync_exit_at]
            .into_iter()
            .flatten()
            .min()
            .map(|at| whole_millisecond(at.saturating_sub(now)))
    }

    /// Writes the next part of a command that is longer than the pipe.
    fn push_command(&mut self) {
        if let Some(prompter) = &mut self.prompter {
            // A failed write shows as a missing report.
            prompter.push().ok();
        }
    }

    fn on_time(&mut self) {
        let now = ticks();
        if let Some(step) = self.job.as_mut().and_then(|job| job.ladder.due(now)) {
            self.stop(step);
        }
        if self.needs_watching() && now >= self.watch_at {
            self.watch_at = now + commands::WATCH / 2;
            self.watch();
        }
        self.go_on_settling(now);
        self.end_if_lost();
        self.go_on_ending(now);
        if !self.is_over() {
            self.sync_exit_record(now);
        }
    }

    /// Reaps the child and all orphaned descendants.
    fn reap(&mut self) {
        let mut drop_bytes = [0; 64];
        while let Ok((1.., _)) =
            rustix::net::recv(&self.signals.child, &mut drop_bytes, rustix::net::RecvFlags::DONTWAIT)
        {
        }
        if self.signals.end.swap(false, Ordering::Relaxed) {
            self.end(false, None, None);
        }
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if u32::try_from(pid.as_raw_nonzero().get()).is_ok_and(|pid| pid == self.child.pid) {
                let code =
                    status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal));
                let code = code.unwrap_or(-1);
                self.child_fd = ChildFd::Reaped;
                if !self.wants_replacement() || self.replace_shell(code).is_err() {
                    self.child_ended(code);
                }
            }
        }
        self.check_stopped();
    }

    /// Sends a signal to the child, unless it has been reaped.
    fn signal_child(&self, signal: Signal) {
        match &self.child_fd {
            // A child that changed its user cannot be signalled. Any other error means that it has exited.
            ChildFd::Open(child) => drop(child.signal(signal)),
            ChildFd::Unsupported(child) => drop(kill_process(*child, signal)),
            ChildFd::Reaped => {}
        }
    }

    fn child_ended(&mut self, code: i32) {
        let exit = ChildExit { code, at: unix_micros() };
        self.drain_terminal();
        self.drain_all();
        self.exit = Some(exit.clone());
        if let ChildIo::Pipes(input) = &mut self.hold {
            *input = None;
        }
        self.shell_ended(&exit);
        if self.prompter.is_none() || matches!(self.hold, ChildIo::Pty(_)) {
            let outcome = ExecOutcome {
                job: 0,
                code,
                duration_us: exit.at.saturating_sub(self.created_at),
                timed_out: false,
                cancelled: false,
                exit: Some(exit.clone()),
                lost: None,
            };
            self.spool.end(outcome);
        }
        self.settle_ended(&exit);
        self.clients.tell_all(|| KeeperResponse::Exited(exit.clone()));
        // Connected clients are notified first, because the record is only for later clients.
        self.pump();
        // A full disk loses the record. The exit stays available until this keeper exits.
        self.place.record_exit(&exit, self.spool.printed(0)).ok();
        self.sync_exit_at = Some(ticks() + EXIT_SYNC_DELAY_US);
        self.sync_exit_record(ticks());
        self.watch_place();
    }

    /// Makes the exit record durable: at once if no client is connected, otherwise after [`EXIT_SYNC_DELAY_US`]. A
    /// connected daemon commits the exit itself and collects the keeper before that, so most turns end without a sync
    /// here.
    fn sync_exit_record(&mut self, now: u64) {
        if self.sync_exit_at.is_none_or(|at| now < at && !self.clients.is_empty()) {
            return;
        }
        self.sync_exit_at = None;
        // The output is synced first, because the record states the length of each stream. A failed sync is not
        // retried: a reader compares the length with the data.
        self.spool.sync().and_then(|()| self.place.sync_exit_record()).ok();
    }

    /// Sends followers the output that they have not received yet.
    fn pump(&mut self) {
        let running = self.job.as_ref().map(|job| job.id);
        self.clients.pump(&self.spool, running);
        self.clients.rearm(&self.poller);
    }

    fn status(&self) -> KeeperStatus {
        KeeperStatus {
            keeper: self.own.clone(),
            child: self.child.clone(),
            owner: self.owner.clone(),
            running: self.job.as_ref().map(|job| (job.id, job.started_at)),
            last: self.last.clone(),
            exit: self.exit.clone(),
            jobs: self.jobs,
            created_at: self.created_at,
            last_activity_at: self.last_activity_at,
            meta: self.meta.clone(),
            protocol: PROTOCOL,
        }
    }
}

/// Runs `start` in the child's control group, if there is one.
fn inside<T>(
    group: Option<&ChildGroup>,
    spec: &KeeperSpec,
    start: impl FnOnce() -> Result<T, KeeperRefusal>,
) -> Result<T, KeeperRefusal> {
    match (group, &spec.group) {
        (Some(group), Some(wanted)) => group.inside(wanted.is_required(), start),
        (Some(_) | None, _) => start(),
    }
}

/// Rounds up to whole milliseconds. The kernel truncates a wait to milliseconds, so a shorter one would busy-loop.
fn whole_millisecond(micros: u64) -> u64 {
    micros.div_ceil(1_000).max(1) * 1_000
}

/// The means to signal the child.
#[derive(Debug)]
enum ChildFd {
    Open(PidFd),
    /// The kernel has no pidfds. The pid stays valid until the keeper reaps the child.
    Unsupported(Pid),
    Reaped,
}

impl ChildFd {
    /// The child must have been started by this process and not yet reaped.
    fn of(pid: u32) -> Self {
        let raw = || i32::try_from(pid).ok().and_then(Pid::from_raw).map(Self::Unsupported);
        PidFd::of_child(pid).map(Self::Open).or_else(raw).unwrap_or(Self::Reaped)
    }
}

/// The identity of a child that may already be a zombie. Its pid is valid until it is reaped.
fn identity_of_child(pid: u32) -> ProcessIdentity {
    ProcessIdentity::of(pid).unwrap_or(ProcessIdentity { pid, start_time: 0, boot_id: String::new() })
}
