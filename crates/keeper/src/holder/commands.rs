//! Starts commands in the shell and processes their reports. Stopping is in `stop`, cleaning up after a command in
//! `repair`.

use std::collections::BTreeSet;

use rustix::event::epoll::EventFlags;
use rustix::io::{Errno, write};

use super::clients::ClientConnections;
use super::stop::STATUS_UNKNOWN;
use super::tracing::mentions_tracing;
use super::{ChildSupervisor, PollSource};
use crate::child::ChildIo;
use crate::clock::{ticks, unix_micros};
use crate::job::{CommandStopReason, ShellJob, StopSequence, StopStep};
use crate::launch::FIRST;
use crate::protocol::{
    ChildExit, CommandInput, CommandResult, ExecOutcome, JobOutputRange, KeeperRefusal, KeeperResponse,
    OutputStream, ShellCommand,
};
use crate::script::{ShellDriver, ShellPosition, ShellReport, ShellReportKind};

/// Interval of checks on a running shell, in microseconds.
pub(super) const WATCH: u64 = 100_000;
/// Maximum number of ended commands whose background processes still hold their output pipes.
const MAX_LANES: usize = 200;
/// The exit code of a stopped command without a status: 128 + SIGTERM.
const STOPPED: i32 = 143;

impl ChildSupervisor {
    /// Called after the start of the child. The creator is notified when the child can be used. For a shell, that is
    /// after its first report.
    pub(super) fn began(&mut self) {
        if !matches!(self.hold, ChildIo::Shell) {
            self.repair.ready = true;
            self.repair.needed = false;
            return self
                .clients
                .tell((ClientConnections::CREATOR, FIRST), KeeperResponse::Status(Box::new(self.status())));
        }
        if self.offer().and_then(|()| self.start_repair(None)).is_err() {
            self.lose("the shell could not be started".to_owned());
        }
    }

    pub(super) fn run(&mut self, run: ShellCommand, from: (u64, u64)) -> Result<(), KeeperRefusal> {
        if self.exit.is_some() || self.ending.is_some() {
            return Err(KeeperRefusal::Ended);
        }
        let starting = !self.repair.ready && !self.is_replacement;
        if self.job.is_some() || self.waiting.is_some() || starting {
            return Err(KeeperRefusal::Busy);
        }
        if self.prompter.is_none() {
            return Err(KeeperRefusal::Unsupported("this process takes no commands".to_owned()));
        }
        if self.lanes.len() > MAX_LANES {
            return Err(KeeperRefusal::Full(format!(
                "{MAX_LANES} commands left processes behind that still hold their output"
            )));
        }
        if self.lost.is_some() {
            // The shell is being replaced; the new one gets this command.
            self.waiting = Some((run, from));
            return Ok(());
        }
        if matches!(self.hold, ChildIo::Pty(_)) {
            // A shell without standard streams reports wrong statuses.
            if ["0", "1", "2"].iter().all(|number| !self.descriptors.is_open(number)) {
                self.lose("the shell has closed its standard streams".to_owned());
                self.waiting = Some((run, from));
                return Ok(());
            }
            // The streams of a shell on a terminal also belong to its user, so they are not repaired.
            return self.start_job(run, from);
        }
        self.settle();
        let plain = matches!(run.input, CommandInput::Nothing);
        if plain && !self.repair.needed && !self.repair.is_running() {
            return self.start_job(run, from);
        }
        let repairing = self.repair.is_running();
        let open = !matches!(run.input, CommandInput::Nothing);
        self.waiting = Some((run, from));
        if repairing { Ok(()) } else { self.start_repair(open.then_some(())) }
    }

    pub(super) fn offer(&mut self) -> Result<(), KeeperRefusal> {
        let Some(prompter) = &mut self.prompter else { return Ok(()) };
        prompter.offer().map(|_| ()).map_err(|error| KeeperRefusal::System(error.to_string()))
    }

    pub(super) fn start_job(&mut self, run: ShellCommand, from: (u64, u64)) -> Result<(), KeeperRefusal> {
        // Output up to here belongs to earlier commands.
        self.drain_lanes();
        self.muted = false;
        self.jobs += 1;
        let id = self.jobs;
        let now = ticks();
        if let Some(lane) = self.lanes.get_mut(&self.lane) {
            lane.job = id;
        }
        self.spool.begin(id);
        let (reader, writer) = self.repair.input.take().unzip();
        let (unsent_input, input_ends) = match run.input {
            CommandInput::Nothing => (Vec::new(), true),
            CommandInput::Text(text) => (text, true),
            CommandInput::Open => (Vec::new(), false),
        };
        drop(reader);
        if let Some(writer) = &writer {
            let flags = EventFlags::OUT | EventFlags::ET;
            self.poller
                .add(writer, PollSource::Input, flags)
                .map_err(|error| KeeperRefusal::System(error.to_string()))?;
            // The shell's input is now a pipe, which has to be reset before the next command.
            self.repair.needed = true;
        }
        self.job = Some(ShellJob {
            id,
            client: Some(from),
            follow: run.follow,
            started_at: unix_micros(),
            started: now,
            keep: usize::try_from(run.keep).unwrap_or(usize::MAX),
            kept: [Vec::new(), Vec::new()],
            input: writer,
            unsent_input,
            input_ends,
            pty_from: None,
            pty_to: None,
            may_trace: self.repair.trace || mentions_tracing(&run.text),
            ladder: StopSequence::new(now, run.timeout_ms),
            asked: BTreeSet::new(),
            reported: None,
            shell_is_deaf: false,
            shell_is_held: false,
            expanding: false,
            called_at: None,
            calls: 0,
            interrupted: false,
            broken: false,
        });
        if matches!(self.hold, ChildIo::Pty(_)) {
            self.known = self.living_children();
        }
        self.watch_at = now + WATCH / 2;
        self.ticker.start();
        self.repair.silent = 0;
        if run.follow {
            self.clients.follow(from, id, [0; 2], true);
        }
        self.clients.tell_if(run.follow, from, KeeperResponse::Started(id));
        self.give(run.text)?;
        self.spin.expect();
        self.push_input();
        Ok(())
    }

    fn give(&mut self, text: Vec<u8>) -> Result<(), KeeperRefusal> {
        let io = |error: std::io::Error| KeeperRefusal::System(error.to_string());
        let Some(prompter) = &mut self.prompter else { return Ok(()) };
        let mut before = String::new();
        if let ChildIo::Pty(pty) = &self.hold {
            if let Some(line) = prompter.offer().map_err(io)? {
                // A full terminal shows as a missing report.
                write(pty, format!(" {}\r", line.trim_end()).as_bytes()).ok();
            }
            before.push_str(&prompter.guard());
            before.push_str(&prompter.beginning());
        } else {
            before.push_str(&prompter.guard());
        }
        if std::mem::take(&mut self.repair.trace) {
            before.push_str(prompter.trace());
        }
        let last = self.last.as_ref().map_or(0, |last| last.code);
        if last != 0 && has_words(&text) {
            // Sets `$?` to the status of the last command. In this form it triggers neither `set -e` nor traps.
            before.push_str(&format!("(\\exit {last}) 2>/dev/null && \\:; "));
        }
        if before.is_empty() {
            return prompter.give(&text).map_err(io);
        }
        prompter.give(&[before.as_bytes(), &text].concat()).map_err(io)
    }

    pub(super) fn command_input(&mut self, bytes: &[u8], eof: bool) -> Result<(), KeeperRefusal> {
        let job = self.job.as_mut().ok_or(KeeperRefusal::NotRunning)?;
        if job.input.is_none() || job.input_ends {
            return Err(KeeperRefusal::NoInput);
        }
        if job.unsent_input.len() + bytes.len() > crate::protocol::MAX_ORDER_BYTES {
            return Err(KeeperRefusal::Full(format!(
                "{} bytes of input are not being read",
                job.unsent_input.len()
            )));
        }
        job.unsent_input.extend_from_slice(bytes);
        job.input_ends = eof;
        self.push_input();
        Ok(())
    }

    pub(super) fn push_input(&mut self) {
        let Some(job) = &mut self.job else { return };
        let Some(input) = &job.input else { return };
        while !job.unsent_input.is_empty() {
            match write(input, &job.unsent_input) {
                Ok(count) => drop(job.unsent_input.drain(..count)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    // The reader has closed the pipe.
                    job.unsent_input = Vec::new();
                    job.input = None;
                    return;
                }
            }
        }
        if job.input_ends {
            job.input = None;
        }
    }

    pub(super) fn hear_reports(&mut self) {
        let Some(prompter) = &mut self.prompter else { return };
        let reports = prompter.reports();
        // A report that arrived after the wake-up may be preceded by output that also arrived after it.
        self.all_edges_taken &= reports.len() == 1;
        for report in reports {
            self.hear_report(&report);
        }
    }

    fn hear_report(&mut self, report: &ShellReport) {
        let unread = self.prompter.as_ref().is_some_and(ShellDriver::is_unread);
        if !self.prompter.as_mut().is_some_and(|prompter| prompter.accept(report)) {
            return;
        }
        match &report.what {
            // A tracing shell reports the beginning twice.
            ShellReportKind::Began if self.job.as_ref().is_some_and(|job| job.pty_from.is_some()) => {}
            ShellReportKind::Began => {
                self.settle_terminal();
                let at = self.spool.printed(0)[0];
                if let Some(job) = &mut self.job {
                    job.pty_from = Some(at);
                }
                if self.job.as_ref().is_some_and(|job| job.ladder.why().is_some()) {
                    return self.stop(StopStep::Remind);
                }
                if let Some(prompter) = &mut self.prompter {
                    prompter.let_begin();
                }
            }
            ShellReportKind::Broken => {
                if let Some(job) = &mut self.job {
                    job.broken = true;
                }
            }
            ShellReportKind::Ended { .. } if self.repair.is_running() && unread => {
                self.rescue(ShellPosition::All)
            }
            ShellReportKind::Ended { .. } if self.repair.is_running() => self.repaired(),
            ShellReportKind::Ended { code, flags } if self.job.is_some() => {
                self.reported(*code, flags, unread)
            }
            // A late signal ended the slot before a command arrived.
            ShellReportKind::Ended { .. } => {
                // A failed write shows as a missing report.
                self.offer().ok();
                self.repair.needed = true;
            }
        }
    }

    /// Processes the shell's report for the running command.
    fn reported(&mut self, code: i32, flags: &str, unread: bool) {
        let Some(job) = &mut self.job else { return };
        if job.ladder.why().is_some() {
            job.reported = Some((code, flags.to_owned()));
            return self.check_stopped();
        }
        if job.broken {
            // A redefined builtin can falsify any later report, so the shell is replaced.
            self.finish(code, None, Some(STATUS_UNKNOWN.to_owned()));
            return self.lose("something stands in for a builtin of the shell".to_owned());
        }
        if unread {
            return self.heard_nothing(ShellPosition::All);
        }
        self.complete(code, flags);
    }

    /// Ends a reported command, and prepares the shell for the next.
    pub(super) fn complete(&mut self, code: i32, flags: &str) {
        self.finish(code, None, None);
        self.go_on(flags);
    }

    fn go_on(&mut self, flags: &str) {
        if matches!(self.hold, ChildIo::Pty(_)) {
            if let Some(prompter) = &mut self.prompter {
                prompter.release();
            }
        } else {
            // A failed write shows as a missing report.
            self.offer().ok();
            self.inspect(flags);
        }
    }

    /// Ends the running job and sends its result to the waiting client.
    pub(super) fn finish(&mut self, code: i32, exit: Option<ChildExit>, lost: Option<String>) {
        for stream in OutputStream::ALL {
            self.take_what_is_there(stream);
        }
        self.take_unfinished();
        let Some(mut job) = self.job.take() else { return };
        self.spin.came();
        if let Some(from) = job.pty_from.or(matches!(self.hold, ChildIo::Pty(_)).then_some(u64::MAX)) {
            self.take_terminal_output(&mut job, from);
        }
        let why = job.ladder.why();
        let outcome = ExecOutcome {
            job: job.id,
            // An interrupted shell has no status of the command.
            code: if why.is_some() && exit.is_none() && code < 128 { STOPPED } else { code },
            duration_us: ticks().saturating_sub(job.started),
            timed_out: why == Some(CommandStopReason::TimedOut),
            cancelled: why == Some(CommandStopReason::Cancelled),
            exit,
            lost,
        };
        self.repair.needed |= why.is_some();
        self.restore_limit();
        self.last_activity_at = unix_micros();
        self.spool.end(outcome.clone());
        self.last = Some(outcome.clone());
        if let Some(client) = job.client.filter(|_| !job.follow) {
            let [stdout, stderr] = std::mem::take(&mut job.kept);
            let printed = self.spool.printed(job.id);
            self.clients.tell(
                client,
                KeeperResponse::Ran(Box::new(CommandResult { outcome, stdout, stderr, printed })),
            );
        }
    }

    /// Ends a command that was cancelled before it was sent to the shell.
    pub(super) fn cancel_unstarted(&mut self, run: &ShellCommand, from: (u64, u64)) {
        self.jobs += 1;
        let id = self.jobs;
        let outcome = ExecOutcome {
            job: id,
            code: STOPPED,
            duration_us: 0,
            timed_out: false,
            cancelled: true,
            exit: None,
            lost: None,
        };
        self.spool.begin(id);
        self.spool.end(outcome.clone());
        self.last = Some(outcome.clone());
        self.last_activity_at = unix_micros();
        if run.follow {
            self.clients.follow(from, id, [0; 2], true);
            return self.clients.tell(from, KeeperResponse::Started(id));
        }
        let ran = CommandResult { outcome, stdout: Vec::new(), stderr: Vec::new(), printed: [0; 2] };
        self.clients.tell(from, KeeperResponse::Ran(Box::new(ran)));
    }

    /// Reads the output that is in the pipe now. Output that other processes write later is not awaited.
    fn take_what_is_there(&mut self, stream: OutputStream) {
        let number = self.lane;
        let Some(lane) = self.lanes.get_mut(&number) else { return };
        if self.all_edges_taken && !lane.ready[stream.index()] {
            return;
        }
        let there = lane.end(stream).and_then(|end| rustix::io::ioctl_fionread(end).ok()).unwrap_or(0);
        lane.ready[stream.index()] |= there > 0;
        let mut left = usize::try_from(there).unwrap_or(0);
        let before = self.spool.printed(self.jobs)[stream.index()];
        while left > 0 {
            self.drain(number, stream, 1, true);
            let taken = usize::try_from(self.spool.printed(self.jobs)[stream.index()] - before).unwrap_or(0);
            let lane_done = self.lanes.get(&number).is_none_or(|lane| !lane.ready[stream.index()]);
            if lane_done || taken >= left {
                left = 0;
            }
        }
    }

    /// Drains the terminal until no output arrives for 25 ms. The kernel forwards terminal output through a queue.
    pub(super) fn settle_terminal(&mut self) {
        let moment = rustix::event::Timespec { tv_sec: 0, tv_nsec: 25_000_000 };
        for _ in 0..40 {
            if let ChildIo::Pty(pty) = &self.hold {
                let mut fds = [rustix::event::PollFd::new(pty, rustix::event::PollFlags::IN)];
                if !matches!(rustix::event::poll(&mut fds, Some(&moment)), Ok(1..)) {
                    break;
                }
            }
            self.drain_terminal();
        }
    }

    fn take_terminal_output(&mut self, job: &mut ShellJob, from: u64) {
        self.settle_terminal();
        let printed = self.spool.printed(0)[0];
        let to = job.pty_to.unwrap_or(printed);
        let range = JobOutputRange {
            job: 0,
            stream: OutputStream::Stdout,
            offset: from,
            limit: to.saturating_sub(from),
        };
        if let Ok(Some(piece)) = self.spool.read(range) {
            self.spool.append(job.id, OutputStream::Stdout, &piece.bytes);
            job.kept[0] = piece.bytes;
            job.kept[0].truncate(job.keep);
        }
    }
}

/// Whether a text contains more than blanks and comments, which have no status.
fn has_words(text: &[u8]) -> bool {
    text.split(|byte| *byte == b'\n')
        .map(<[u8]>::trim_ascii)
        .any(|line| line.first().is_some_and(|first| *first != b'#'))
}
