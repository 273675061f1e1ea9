//! The keeper process: one loop for a child, its output, its commands and its clients.
//!
//! It has no threads and no async runtime; every wait is one `epoll_wait`. The loss of a client never ends the child.
//! Each part has its own module; this one connects them.

mod child_resume;
mod clients;
mod commands;
mod input_wait;
mod output;
mod poller;
mod repair;
mod replace;
mod requests;
mod shutdown;
mod signals;
mod stdin;
mod stop;
mod trace_filter;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use abide_os::process::{PidFd, ProcessStat};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::process::{Pid, Rlimit, Signal, WaitOptions, kill_process, wait};

use crate::adaptive_spin::AdaptiveSpin;
use crate::child::{ChildIo, first_output_pipes, spawn_on_pty, spawn_piped, spawn_shell};
use crate::client::FIRST_RESPONSE_TAG;
use crate::clock::{boottime_micros, unix_micros};
use crate::control_group::ChildGroup;
use crate::error::KeeperError;
use crate::framed_socket::FramedSocket;
use crate::identity::ProcessIdentity;
use crate::keeper_dir::{FinalRecord, KeeperDir};
use crate::launch::{IdentityRecord, KeeperStartRequest};
use crate::output_pipes::OutputPipes;
use crate::periodic_timer::PeriodicTimer;
use crate::process_tree;
use crate::protocol::{
    ChildExit, ChildMode, ExecOutcome, JobId, KeeperOwner, KeeperRefusal, KeeperResponse, KeeperSpec,
    KeeperStatus, PROTOCOL_VERSION, ShellCommand, SpoolOverflow, TaggedResponse,
};
use crate::shell_driver::ShellDriver;
use crate::shell_job::ShellJob;
use crate::spool::Spool;

use child_resume::ChildResume;
use clients::ClientConnections;
use poller::{EpollSet, PollSource};
use repair::StreamRepair;
use shutdown::ShutdownProgress;
use signals::KeeperSignals;

/// Runs a keeper until its child has ended and a client has collected the result.
pub fn main() -> Result<(), KeeperError> {
    let (mut socket, signals) = detach()?;
    // Prepared before the request arrives, to shorten the start of the child.
    let own = ProcessIdentity::own();
    // A standby keeper waits here until its starter sends a request or exits.
    let Some(KeeperStartRequest { directory, spec }) = socket.wait::<KeeperStartRequest>(NO_TIMEOUT_MS)?
    else {
        return Ok(());
    };
    // The working directory shows operators which directory a keeper belongs to. An error does not affect the keeper.
    rustix::process::chdir(&directory).ok();
    let keeper_dir = KeeperDir::at(directory);
    // The starter may have died, and its successor may have claimed the directory for no keeper.
    if !keeper_dir.claim(Some(&own)).unwrap_or(false) {
        return Ok(());
    }
    // A run must not be started twice, even after a power failure. So the claim is made durable before the child
    // starts. Without a sync, only a power failure can start the run twice.
    if spec.overflow == SpoolOverflow::Block {
        keeper_dir.sync().ok();
    }
    let mut supervisor = match ChildSupervisor::start(keeper_dir.clone(), spec, signals, own) {
        Ok(supervisor) => supervisor,
        Err(refusal) => {
            // The refusal is sent in any case; a directory that remains is swept later.
            keeper_dir.remove().ok();
            socket
                .send(&TaggedResponse { tag: FIRST_RESPONSE_TAG, news: KeeperResponse::Refused(refusal) })?;
            return Ok(());
        }
    };
    supervisor.clients.add_creator(socket, &supervisor.poller);
    let result = supervisor.run_loop();
    // The connections close only with the process, so that a closed connection proves that the keeper is gone.
    std::mem::forget(supervisor);
    result
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
    keeper_dir: KeeperDir,
    poller: EpollSet,
    signals: KeeperSignals,
    listener: OwnedFd,
    clients: ClientConnections,
    own_identity: ProcessIdentity,
    child: ProcessIdentity,
    /// The pidfd of the child until it is reaped. After that, its pid may belong to another process (SECURITY 11).
    child_fd: ChildFd,
    child_resume: ChildResume,
    program: Option<PathBuf>,
    /// The child's control group. None if it has none.
    group: Option<ChildGroup>,
    /// Used to restart a shell.
    spec: KeeperSpec,
    /// The working directory of the shell at the last stop.
    last_directory: Option<PathBuf>,
    /// The original descriptor limit of the shell, while it is lowered.
    original_fd_limit: Option<Rlimit>,
    /// True if the current shell replaced another one.
    is_replacement: bool,
    /// The children of the shell, and of the keeper.
    children: [process_tree::ChildList; 2],
    descriptors: process_tree::DescriptorDir,
    child_io: ChildIo,
    stdin: stdin::StdinBuffer,
    /// The pending request that waits until the child reads its input again.
    input_wait: Option<input_wait::InputWait>,
    shell_driver: Option<ShellDriver>,
    output_pipes: BTreeMap<u64, OutputPipes>,
    /// The number of the pipes that the shell currently writes to.
    current_pipes: u64,
    repair: StreamRepair,
    /// The pids that existed before the current command.
    pids_before_command: Vec<u32>,
    job: Option<ShellJob>,
    queued_command: Option<(ShellCommand, (u64, u64))>,
    last_job_id: JobId,
    spool: Spool,
    last_outcome: Option<ExecOutcome>,
    exit: Option<ChildExit>,
    /// When to sync the exit record; None if it is synced.
    sync_exit_at: Option<u64>,
    /// An inotify descriptor that reports the deletion of the directory, once the child has exited.
    deletion_watch: Option<OwnedFd>,
    shutdown: Option<ShutdownProgress>,
    /// True while trace output of the keeper's own script lines is discarded.
    discards_trace: bool,
    /// The beginning of a line that may be trace output of the keeper's script.
    partial_line: Vec<u8>,
    /// True if the last `epoll_wait` returned all ready sources. Then pipes without an edge are empty.
    all_edges_read: bool,
    /// Why the shell could not be started.
    start_failure: Option<KeeperRefusal>,
    /// Why the shell is being replaced.
    replacement_reason: Option<String>,
    owner: KeeperOwner,
    meta: Vec<u8>,
    created_at: u64,
    last_activity_at: u64,
    next_check_at: u64,
    check_timer: PeriodicTimer,
    spin: AdaptiveSpin,
    buffer: Vec<u8>,
}

/// Pages of the buffer are only committed when data is read into them.
const READ_BUFFER_BYTES: usize = 256 << 10;
/// How long the keeper polls for the report of a short command, in microseconds.
const REPORT_SPIN_US: u64 = 100;
const NO_TIMEOUT_MS: u64 = u64::MAX / 4_000;
/// Delay of the exit record's sync while a client is connected, in microseconds.
const EXIT_SYNC_DELAY_US: u64 = 200_000;
/// Maximum number of events for each `epoll_wait`.
const MAX_EPOLL_EVENTS: usize = 32;
/// Retry interval for the rest of a long command, in microseconds.
const COMMAND_WRITE_RETRY_US: u64 = 500;

impl ChildSupervisor {
    fn start(
        keeper_dir: KeeperDir,
        spec: KeeperSpec,
        signals: KeeperSignals,
        own: ProcessIdentity,
    ) -> Result<Self, KeeperRefusal> {
        let system = |error: Errno| KeeperRefusal::System(error.to_string());
        let io = |error: std::io::Error| KeeperRefusal::System(error.to_string());
        let spool = Spool::open(keeper_dir.path(), spec.retention, spec.overflow).map_err(io)?;
        let poller = EpollSet(epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?);
        let (pipes, writers) = first_output_pipes()?;
        let mut driver = None;
        let listener = keeper_dir.listen().map_err(io)?;
        let group = match &spec.group {
            Some(group) => ChildGroup::create(group, &own)?,
            None => None,
        };
        // The time is taken before the start, because the child's run time includes its start.
        let now = unix_micros();
        let started = run_in_child_group(group.as_ref(), &spec, || match &spec.shape {
            ChildMode::Pipes => spawn_piped(&spec, &keeper_dir, writers),
            ChildMode::Shell(script) => {
                let shell = driver.insert(ShellDriver::new(script.clone(), false).map_err(io)?);
                shell.send_init().map_err(io)?;
                spawn_shell(&spec, &keeper_dir, shell, writers)
            }
            ChildMode::Pty { rows, cols, script } => {
                drop(writers);
                if let Some(script) = script {
                    if !spec.confinement.is_empty() {
                        return Err(KeeperRefusal::Unsupported("a confined shell on a terminal".to_owned()));
                    }
                    driver = Some(ShellDriver::new(script.clone(), true).map_err(io)?);
                }
                spawn_on_pty(&spec, &keeper_dir, *rows, *cols)
            }
        });
        let (pid, hold) = started.inspect_err(|_| group.iter().for_each(ChildGroup::remove))?;
        let child_fd = ChildFd::of(pid);
        let child = identity_of_child(pid);
        let group_path = group.as_ref().map(|group| group.path().to_owned());
        // The child runs and may have deleted the directory. It is supervised anyway.
        IdentityRecord::new(&own, &child, group_path.as_deref()).write(&keeper_dir).ok();
        poller.add(&signals.wakeup, PollSource::Signals, epoll::EventFlags::IN).map_err(system)?;
        poller.add(&listener, PollSource::Listener, epoll::EventFlags::IN).map_err(system)?;
        if let Some(driver) = &driver {
            poller.add(driver.report_fd(), PollSource::Reports, epoll::EventFlags::IN).map_err(system)?;
        }
        let ticker = PeriodicTimer::new(commands::CHECK_INTERVAL_US).map_err(system)?;
        poller.add(&ticker, PollSource::CheckTimer, epoll::EventFlags::IN).map_err(system)?;
        let mut supervisor = Self {
            keeper_dir,
            poller,
            signals,
            listener,
            own_identity: own,
            child,
            child_fd,
            child_resume: ChildResume::default(),
            group,
            child_io: hold,
            stdin: stdin::StdinBuffer::default(),
            input_wait: None,
            shell_driver: driver,
            spool,
            clients: ClientConnections::default(),
            program: process_tree::executable(pid),
            children: [process_tree::ChildList::of(pid), process_tree::ChildList::of(std::process::id())],
            descriptors: process_tree::DescriptorDir::of(pid),
            output_pipes: BTreeMap::new(),
            current_pipes: pipes.number,
            repair: StreamRepair::initial(),
            pids_before_command: Vec::new(),
            job: None,
            queued_command: None,
            last_job_id: 0,
            last_outcome: None,
            exit: None,
            sync_exit_at: None,
            deletion_watch: None,
            shutdown: None,
            discards_trace: false,
            partial_line: Vec::new(),
            all_edges_read: false,
            start_failure: None,
            replacement_reason: None,
            owner: spec.owner.clone(),
            meta: spec.meta.clone(),
            spec,
            last_directory: None,
            original_fd_limit: None,
            is_replacement: false,
            created_at: now,
            last_activity_at: now,
            next_check_at: 0,
            check_timer: ticker,
            spin: AdaptiveSpin::new(REPORT_SPIN_US),
            buffer: vec![0; READ_BUFFER_BYTES],
        };
        supervisor.spool.begin_job(0);
        if let ChildIo::Pty(pty) = &supervisor.child_io {
            supervisor.poller.add(pty, PollSource::Terminal, epoll::EventFlags::IN).map_err(system)?;
        } else {
            supervisor.add_output_pipes(pipes).map_err(system)?;
        }
        Ok(supervisor)
    }

    fn run_loop(&mut self) -> Result<(), KeeperError> {
        self.report_started();
        let mut events = Vec::with_capacity(MAX_EPOLL_EVENTS);
        loop {
            events.clear();
            // While a short command runs, the keeper polls for its report, because a wake-up costs more.
            let spinning = self.spin.is_spinning();
            let timeout = if spinning { Some(0) } else { self.poll_timeout_us() };
            let timeout = timeout.map(|micros| Timespec {
                tv_sec: i64::try_from(micros / 1_000_000).unwrap_or(0),
                tv_nsec: i64::try_from(micros % 1_000_000).unwrap_or(0) * 1_000,
            });
            match epoll::wait(&self.poller.0, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(KeeperError::system("cannot wait", error)),
            }
            if spinning && events.is_empty() {
                self.spin.on_miss();
                continue;
            }
            let sources: Vec<PollSource> =
                events.iter().filter_map(|event| PollSource::unpack(event.data.u64())).collect();
            // Output is processed first, because output before a report belongs to the reported command.
            let (pipe_sources, others): (Vec<_>, Vec<_>) =
                sources.into_iter().partition(|source| matches!(source, PollSource::OutputPipe(..)));
            self.all_edges_read = events.len() < MAX_EPOLL_EVENTS;
            for source in pipe_sources.into_iter().chain(others) {
                self.handle_source(source);
            }
            self.all_edges_read = false;
            self.drain_ready_pipes();
            self.write_command();
            self.handle_timers();
            self.send_pending_output();
            if self.is_shut_down() {
                return Ok(());
            }
        }
    }

    fn handle_source(&mut self, source: PollSource) {
        match source {
            PollSource::Signals => self.reap(),
            PollSource::Listener => self.clients.accept(&self.listener, &self.poller),
            PollSource::Reports => self.read_reports(),
            PollSource::Terminal => self.drain_terminal(),
            PollSource::CommandInput => self.write_command_input(),
            PollSource::Stdin => self.flush_stdin(),
            PollSource::DeletionWatch => self.drain_deletion_events(),
            PollSource::CheckTimer => {
                let wanted = self.needs_check();
                self.check_timer.tick(wanted);
            }
            PollSource::OutputPipe(number, stream) => {
                if let Some(lane) = self.output_pipes.get_mut(&number) {
                    lane.ready[stream.index()] = true;
                }
            }
            PollSource::Client(number) => self.serve_client(number),
        }
    }

    fn needs_check(&self) -> bool {
        self.job.is_some() || self.repair.is_running()
    }

    /// Time until the next deadline, in microseconds. None waits without a timeout.
    fn poll_timeout_us(&self) -> Option<u64> {
        let now = boottime_micros();
        let command_retry_at = self
            .shell_driver
            .as_ref()
            .is_some_and(ShellDriver::has_pending_write)
            .then_some(now + COMMAND_WRITE_RETRY_US);
        let busy = self
            .output_pipes
            .values()
            .any(|lane| lane.ready.contains(&true) && !self.is_backpressured(lane.job));
        if busy {
            return Some(0);
        }
        let stop_at = self.job.as_ref().and_then(|job| job.stop_sequence.wakes_at());
        let ending = self.shutdown.as_ref().map(ShutdownProgress::wakes_at);
        let settling = self.input_wait.as_ref().map(input_wait::InputWait::wakes_at);
        let resume_at = self.child_resume.wakes_at();
        [stop_at, ending, command_retry_at, settling, self.sync_exit_at, resume_at]
            .into_iter()
            .flatten()
            .min()
            .map(|at| round_up_to_millisecond(at.saturating_sub(now)))
    }

    /// Writes the next part of a command that is longer than the pipe.
    fn write_command(&mut self) {
        if let Some(prompter) = &mut self.shell_driver {
            // A failed write shows as a missing report.
            prompter.write_pending().ok();
        }
    }

    fn handle_timers(&mut self) {
        let now = boottime_micros();
        if let Some(step) = self.job.as_mut().and_then(|job| job.stop_sequence.due_step(now)) {
            self.perform_stop_step(step);
        }
        if self.needs_check() && now >= self.next_check_at {
            self.next_check_at = now + commands::CHECK_INTERVAL_US / 2;
            self.check_shell();
        }
        self.resume_child(now);
        self.advance_input_wait(now);
        self.shut_down_if_directory_deleted();
        self.advance_shutdown(now);
        if !self.is_shut_down() {
            self.sync_exit_record(now);
        }
    }

    /// Reaps the child and all orphaned descendants.
    fn reap(&mut self) {
        let mut drop_bytes = [0; 64];
        while let Ok((1.., _)) =
            rustix::net::recv(&self.signals.wakeup, &mut drop_bytes, rustix::net::RecvFlags::DONTWAIT)
        {
        }
        if self.signals.end_requested.swap(false, Ordering::Relaxed) {
            self.begin_shutdown(false, None, None);
        }
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if u32::try_from(pid.as_raw_nonzero().get()).is_ok_and(|pid| pid == self.child.pid) {
                let code =
                    status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal));
                let code = code.unwrap_or(-1);
                self.child_fd = ChildFd::Reaped;
                if !self.needs_replacement() || self.replace_shell(code).is_err() {
                    self.handle_child_exit(code);
                }
            }
        }
        self.note_child_stop();
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

    fn handle_child_exit(&mut self, code: i32) {
        let exit = ChildExit { code, at: unix_micros() };
        self.drain_terminal();
        self.drain_all_pipes();
        self.exit = Some(exit.clone());
        if let ChildIo::Pipes(input) = &mut self.child_io {
            *input = None;
        }
        self.handle_shell_exit(&exit);
        if self.shell_driver.is_none() || matches!(self.child_io, ChildIo::Pty(_)) {
            let outcome = ExecOutcome {
                job: 0,
                code,
                duration_us: exit.at.saturating_sub(self.created_at),
                timed_out: false,
                cancelled: false,
                exit: Some(exit.clone()),
                lost: None,
            };
            self.spool.end_job(outcome);
        }
        self.finish_input_wait_on_exit(&exit);
        self.clients.broadcast(|| KeeperResponse::Exited(exit.clone()));
        // Connected clients are notified first, because the record is only for later clients.
        self.send_pending_output();
        // A full disk loses the record. The exit stays available until this keeper exits.
        let record = FinalRecord {
            exit,
            printed: Some(self.spool.stream_bytes(0)),
            written_keys: self.stdin.latest_keys(),
        };
        self.keeper_dir.write_exit_record(&record).ok();
        self.sync_exit_at = Some(boottime_micros() + EXIT_SYNC_DELAY_US);
        self.sync_exit_record(boottime_micros());
        self.watch_for_deletion();
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
        self.spool.sync().and_then(|()| self.keeper_dir.sync_exit_record()).ok();
    }

    /// Sends followers the output that they have not received yet.
    fn send_pending_output(&mut self) {
        let running = self.job.as_ref().map(|job| job.id);
        self.clients.send_pending_output(&self.spool, running);
        self.clients.update_watched_events(&self.poller);
    }

    fn status(&self) -> KeeperStatus {
        KeeperStatus {
            keeper: self.own_identity.clone(),
            child: self.child.clone(),
            owner: self.owner.clone(),
            running: self.job.as_ref().map(|job| (job.id, job.started_unix_us)),
            last: self.last_outcome.clone(),
            exit: self.exit.clone(),
            jobs: self.last_job_id,
            created_at: self.created_at,
            last_activity_at: self.last_activity_at,
            meta: self.meta.clone(),
            protocol: PROTOCOL_VERSION,
        }
    }
}

/// Runs `start` in the child's control group, if there is one.
fn run_in_child_group<T>(
    group: Option<&ChildGroup>,
    spec: &KeeperSpec,
    start: impl FnOnce() -> Result<T, KeeperRefusal>,
) -> Result<T, KeeperRefusal> {
    match (group, &spec.group) {
        (Some(group), Some(wanted)) => group.run_inside(wanted.is_required(), start),
        (Some(_) | None, _) => start(),
    }
}

/// Rounds up to whole milliseconds. The kernel truncates a wait to milliseconds, so a shorter one would busy-loop.
fn round_up_to_millisecond(micros: u64) -> u64 {
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
