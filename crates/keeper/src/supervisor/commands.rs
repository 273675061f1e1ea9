//! Starts commands in the shell and processes their reports. Stopping is in `stop`, cleaning up after a command in
//! `repair`.

use std::collections::BTreeSet;
use std::time::Duration;

use abide_os::poll::wait_ready;
use rustix::event::epoll::EventFlags;
use rustix::io::{Errno, write};

use super::clients::ClientConnections;
use super::stop::STATUS_UNKNOWN_REASON;
use super::trace_filter::may_enable_tracing;
use super::{ChildSupervisor, PollSource};
use crate::child::ChildIo;
use crate::client::FIRST_RESPONSE_TAG;
use crate::clock::{boottime_micros, unix_micros};
use crate::process_tree;
use crate::protocol::{
    ChildExit, CommandInput, CommandResult, ExecOutcome, JobOutputRange, KeeperRefusal, KeeperResponse,
    OutputStream, ShellCommand,
};
use crate::shell_driver::{ShellDriver, ShellPosition, ShellReport, ShellReportKind};
use crate::shell_job::{CommandStopReason, ShellJob, StopSequence, StopStep};

/// Interval of checks on a running shell, in microseconds.
pub(super) const CHECK_INTERVAL_US: u64 = 100_000;
/// Maximum number of ended commands whose background processes still hold their output pipes.
const MAX_RETAINED_PIPES: usize = 200;
/// Time without output after which a terminal counts as drained.
const QUIET_PERIOD: Duration = Duration::from_millis(25);
/// The exit code of a stopped command without a status: 128 + SIGTERM.
const STOPPED_EXIT_CODE: i32 = 143;

impl ChildSupervisor {
    /// Called after the start of the child. The creator is notified when the child can be used. For a shell, that is
    /// after its first report.
    pub(super) fn report_started(&mut self) {
        if !matches!(self.child_io, ChildIo::Shell) {
            self.repair.shell_has_reported = true;
            self.repair.needed = false;
            return self.clients.send(
                (ClientConnections::CREATOR_NUMBER, FIRST_RESPONSE_TAG),
                KeeperResponse::Status(Box::new(self.status())),
            );
        }
        if self.advance_prepared_line().and_then(|()| self.start_repair(None)).is_err() {
            self.abandon_shell("the shell could not be started".to_owned());
        }
    }

    pub(super) fn queue_or_start_command(
        &mut self,
        run: ShellCommand,
        client: (u64, u64),
    ) -> Result<(), KeeperRefusal> {
        if self.exit.is_some() || self.shutdown.is_some() {
            return Err(KeeperRefusal::Ended);
        }
        let starting = !self.repair.shell_has_reported && !self.is_replacement;
        if self.job.is_some() || self.queued_command.is_some() || starting {
            return Err(KeeperRefusal::Busy);
        }
        if self.shell_driver.is_none() {
            return Err(KeeperRefusal::Unsupported("this process takes no commands".to_owned()));
        }
        if self.output_pipes.len() > MAX_RETAINED_PIPES {
            return Err(KeeperRefusal::Full(format!(
                "{MAX_RETAINED_PIPES} commands left processes behind that still hold their output"
            )));
        }
        if self.replacement_reason.is_some() {
            // The shell is being replaced; the new one gets this command.
            self.queued_command = Some((run, client));
            return Ok(());
        }
        if matches!(self.child_io, ChildIo::Pty(_)) {
            // A shell without standard streams reports wrong statuses.
            if ["0", "1", "2"].iter().all(|number| !self.descriptors.is_open(number)) {
                self.abandon_shell("the shell has closed its standard streams".to_owned());
                self.queued_command = Some((run, client));
                return Ok(());
            }
            // The streams of a shell on a terminal also belong to its user, so they are not repaired.
            return self.start_job(run, client);
        }
        self.await_restored_streams();
        let plain = matches!(run.input, CommandInput::Nothing);
        if plain && !self.repair.needed && !self.repair.is_running() {
            return self.start_job(run, client);
        }
        let repairing = self.repair.is_running();
        let open = !matches!(run.input, CommandInput::Nothing);
        self.queued_command = Some((run, client));
        if repairing { Ok(()) } else { self.start_repair(open.then_some(())) }
    }

    pub(super) fn advance_prepared_line(&mut self) -> Result<(), KeeperRefusal> {
        let Some(driver) = &mut self.shell_driver else { return Ok(()) };
        driver.next_prepared_line().map(|_| ()).map_err(|error| KeeperRefusal::System(error.to_string()))
    }

    pub(super) fn start_job(
        &mut self,
        command: ShellCommand,
        client: (u64, u64),
    ) -> Result<(), KeeperRefusal> {
        // Output up to here belongs to earlier commands.
        self.drain_ready_pipes();
        self.discards_trace = false;
        self.last_job_id += 1;
        let id = self.last_job_id;
        let now = boottime_micros();
        if let Some(pipes) = self.output_pipes.get_mut(&self.current_pipes) {
            pipes.job = id;
        }
        self.spool.begin_job(id);
        let (reader, writer) = self.repair.input.take().unzip();
        let (unsent_input, input_ends) = match command.input {
            CommandInput::Nothing => (Vec::new(), true),
            CommandInput::Text(text) => (text, true),
            CommandInput::Open => (Vec::new(), false),
        };
        drop(reader);
        if let Some(writer) = &writer {
            let flags = EventFlags::OUT | EventFlags::ET;
            self.poller
                .add(writer, PollSource::CommandInput, flags)
                .map_err(|error| KeeperRefusal::System(error.to_string()))?;
            // The shell's input is now a pipe, which has to be reset before the next command.
            self.repair.needed = true;
        }
        self.job = Some(ShellJob {
            id,
            client: Some(client),
            follow: command.follow,
            started_unix_us: unix_micros(),
            started_boottime_us: now,
            max_result_bytes: usize::try_from(command.keep).unwrap_or(usize::MAX),
            result_output: [Vec::new(), Vec::new()],
            input: writer,
            unsent_input,
            input_ends,
            pty_start_offset: None,
            pty_start_descriptors: BTreeSet::new(),
            pty_end_offset: None,
            may_trace: self.repair.restores_trace || may_enable_tracing(&command.text),
            stop_sequence: StopSequence::new(now, command.timeout_ms),
            term_sent_to: BTreeSet::new(),
            reported_exit: None,
            shell_ignores_recall: false,
            shell_is_held: false,
            discards_output: false,
            was_expanding: false,
            last_recall_at: None,
            recalls: 0,
            interrupted: false,
            report_is_unreliable: false,
        });
        if matches!(self.child_io, ChildIo::Pty(_)) {
            self.pids_before_command = self.living_children();
        }
        self.next_check_at = now + CHECK_INTERVAL_US / 2;
        self.check_timer.start();
        self.repair.silent_checks = 0;
        if command.follow {
            self.clients.follow(client, id, [0; 2], true);
        }
        self.clients.send_if(command.follow, client, KeeperResponse::Started(id));
        self.send_command_text(command.text)?;
        self.spin.begin_wait();
        self.write_command_input();
        Ok(())
    }

    fn send_command_text(&mut self, text: Vec<u8>) -> Result<(), KeeperRefusal> {
        let io = |error: std::io::Error| KeeperRefusal::System(error.to_string());
        let Some(driver) = &mut self.shell_driver else { return Ok(()) };
        let mut prefix = String::new();
        if let ChildIo::Pty(pty) = &self.child_io {
            if let Some(line) = driver.next_prepared_line().map_err(io)? {
                // A full terminal shows as a missing report.
                write(pty, format!(" {}\r", line.trim_end()).as_bytes()).ok();
            }
            prefix.push_str(&driver.guard_text());
            prefix.push_str(&driver.begin_report_text());
        } else {
            prefix.push_str(&driver.guard_text());
        }
        if std::mem::take(&mut self.repair.restores_trace) {
            prefix.push_str(driver.restore_trace_text());
        }
        let last = self.last_outcome.as_ref().map_or(0, |last| last.code);
        if last != 0 && has_command_words(&text) {
            // Sets `$?` to the status of the last command. In this form it triggers neither `set -e` nor traps.
            prefix.push_str(&format!("(\\exit {last}) 2>/dev/null && \\:; "));
        }
        if prefix.is_empty() {
            return driver.send_command(&text).map_err(io);
        }
        driver.send_command(&[prefix.as_bytes(), &text].concat()).map_err(io)
    }

    pub(super) fn command_input(&mut self, bytes: &[u8], eof: bool) -> Result<(), KeeperRefusal> {
        let job = self.job.as_mut().ok_or(KeeperRefusal::NotRunning)?;
        if job.input.is_none() || job.input_ends {
            return Err(KeeperRefusal::NoInput);
        }
        if job.unsent_input.len() + bytes.len() > crate::protocol::MAX_REQUEST_BYTES {
            return Err(KeeperRefusal::Full(format!(
                "{} bytes of input are not being read",
                job.unsent_input.len()
            )));
        }
        job.unsent_input.extend_from_slice(bytes);
        job.input_ends = eof;
        self.write_command_input();
        Ok(())
    }

    pub(super) fn write_command_input(&mut self) {
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

    pub(super) fn read_reports(&mut self) {
        let Some(driver) = &mut self.shell_driver else { return };
        let reports = driver.read_reports();
        // A report that arrived after the wake-up may be preceded by output that also arrived after it.
        self.all_edges_read &= reports.len() == 1;
        for report in reports {
            self.handle_report(&report);
        }
    }

    fn handle_report(&mut self, report: &ShellReport) {
        let unread = self.shell_driver.as_ref().is_some_and(ShellDriver::is_unread);
        if !self.shell_driver.as_mut().is_some_and(|driver| driver.accept(report)) {
            return;
        }
        match &report.kind {
            // A tracing shell reports the beginning twice.
            ShellReportKind::Began if self.job.as_ref().is_some_and(|job| job.pty_start_offset.is_some()) => {
            }
            ShellReportKind::Began => {
                self.drain_terminal_until_quiet();
                let at = self.spool.stream_bytes(0)[0];
                if let Some(job) = &mut self.job {
                    job.pty_start_offset = Some(at);
                    job.pty_start_descriptors = process_tree::open_descriptors(self.child.pid);
                }
                if self.job.as_ref().is_some_and(|job| job.stop_sequence.reason().is_some()) {
                    return self.perform_stop_step(StopStep::Recall);
                }
                if let Some(driver) = &mut self.shell_driver {
                    driver.release_typed_command();
                }
            }
            ShellReportKind::Broken => {
                if let Some(job) = &mut self.job {
                    job.report_is_unreliable = true;
                }
            }
            ShellReportKind::Ended { .. } if self.repair.is_running() && unread => {
                self.retry_repair(ShellPosition::PastAllLines)
            }
            ShellReportKind::Ended { .. } if self.repair.is_running() => self.finish_repair(),
            ShellReportKind::Ended { code, flags } if self.job.is_some() => {
                self.handle_command_report(*code, flags, unread)
            }
            // A late signal ended the slot before a command arrived.
            ShellReportKind::Ended { .. } => {
                // A failed write shows as a missing report.
                self.advance_prepared_line().ok();
                self.repair.needed = true;
            }
        }
    }

    /// Processes the shell's report for the running command.
    fn handle_command_report(&mut self, code: i32, flags: &str, unread: bool) {
        let Some(job) = &mut self.job else { return };
        if job.stop_sequence.reason().is_some() {
            job.reported_exit = Some((code, flags.to_owned()));
            return self.check_stopped();
        }
        if job.report_is_unreliable {
            // A redefined builtin can falsify any later report, so the shell is replaced.
            self.finish_job(code, None, Some(STATUS_UNKNOWN_REASON.to_owned()));
            return self.abandon_shell("a builtin of the shell was redefined".to_owned());
        }
        if unread {
            return self.handle_lost_report(ShellPosition::PastAllLines);
        }
        self.complete_command(code, flags);
    }

    /// Ends a reported command, and prepares the shell for the next.
    pub(super) fn complete_command(&mut self, code: i32, flags: &str) {
        self.finish_job(code, None, None);
        self.prepare_next_command(flags);
    }

    fn prepare_next_command(&mut self, flags: &str) {
        if matches!(self.child_io, ChildIo::Pty(_)) {
            if let Some(driver) = &mut self.shell_driver {
                driver.release_prompt();
            }
        } else {
            // A failed write shows as a missing report.
            self.advance_prepared_line().ok();
            self.inspect_streams(flags);
        }
    }

    /// Ends the running job and sends its result to the waiting client.
    pub(super) fn finish_job(&mut self, code: i32, exit: Option<ChildExit>, lost: Option<String>) {
        for stream in OutputStream::ALL {
            self.drain_available_output(stream);
        }
        self.flush_partial_line();
        let Some(mut job) = self.job.take() else { return };
        self.spin.on_success();
        if let Some(from) =
            job.pty_start_offset.or(matches!(self.child_io, ChildIo::Pty(_)).then_some(u64::MAX))
        {
            self.copy_terminal_output(&mut job, from);
        }
        let why = job.stop_sequence.reason();
        let outcome = ExecOutcome {
            job: job.id,
            // An interrupted shell has no status of the command.
            code: if why.is_some() && exit.is_none() && code < 128 { STOPPED_EXIT_CODE } else { code },
            duration_us: boottime_micros().saturating_sub(job.started_boottime_us),
            timed_out: why == Some(CommandStopReason::TimedOut),
            cancelled: why == Some(CommandStopReason::Cancelled),
            exit,
            lost,
        };
        self.repair.needed |= why.is_some();
        self.restore_limit();
        self.last_activity_at = unix_micros();
        self.spool.end_job(outcome.clone());
        self.last_outcome = Some(outcome.clone());
        if let Some(client) = job.client.filter(|_| !job.follow) {
            let [stdout, stderr] = std::mem::take(&mut job.result_output);
            let printed = self.spool.stream_bytes(job.id);
            self.clients.send(
                client,
                KeeperResponse::Ran(Box::new(CommandResult { outcome, stdout, stderr, printed })),
            );
        }
    }

    /// Ends a command that was cancelled before it was sent to the shell.
    pub(super) fn cancel_unstarted(&mut self, command: &ShellCommand, client: (u64, u64)) {
        self.last_job_id += 1;
        let id = self.last_job_id;
        let outcome = ExecOutcome {
            job: id,
            code: STOPPED_EXIT_CODE,
            duration_us: 0,
            timed_out: false,
            cancelled: true,
            exit: None,
            lost: None,
        };
        self.spool.begin_job(id);
        self.spool.end_job(outcome.clone());
        self.last_outcome = Some(outcome.clone());
        self.last_activity_at = unix_micros();
        if command.follow {
            self.clients.follow(client, id, [0; 2], true);
            return self.clients.send(client, KeeperResponse::Started(id));
        }
        let result = CommandResult { outcome, stdout: Vec::new(), stderr: Vec::new(), printed: [0; 2] };
        self.clients.send(client, KeeperResponse::Ran(Box::new(result)));
    }

    /// Reads the output that is in the pipe now. Output that other processes write later is not awaited.
    fn drain_available_output(&mut self, stream: OutputStream) {
        let number = self.current_pipes;
        let Some(pipes) = self.output_pipes.get_mut(&number) else { return };
        if self.all_edges_read && !pipes.ready[stream.index()] {
            return;
        }
        let available =
            pipes.reader(stream).and_then(|end| rustix::io::ioctl_fionread(end).ok()).unwrap_or(0);
        pipes.ready[stream.index()] |= available > 0;
        let mut left = usize::try_from(available).unwrap_or(0);
        let before = self.spool.stream_bytes(self.last_job_id)[stream.index()];
        while left > 0 {
            self.drain_pipe(number, stream, 1, true);
            let read_bytes =
                usize::try_from(self.spool.stream_bytes(self.last_job_id)[stream.index()] - before)
                    .unwrap_or(0);
            let lane_done = self.output_pipes.get(&number).is_none_or(|pipes| !pipes.ready[stream.index()]);
            if lane_done || read_bytes >= left {
                left = 0;
            }
        }
    }

    /// Drains the terminal until no output arrives for [`QUIET_PERIOD`]. The kernel forwards terminal output through a queue.
    pub(super) fn drain_terminal_until_quiet(&mut self) {
        for _ in 0..40 {
            if let ChildIo::Pty(pty) = &self.child_io {
                let mut fds = [rustix::event::PollFd::new(pty, rustix::event::PollFlags::IN)];
                if !matches!(wait_ready(&mut fds, QUIET_PERIOD), Ok(1..)) {
                    break;
                }
            }
            self.drain_terminal();
        }
    }

    fn copy_terminal_output(&mut self, job: &mut ShellJob, from: u64) {
        self.drain_terminal_until_quiet();
        let printed = self.spool.stream_bytes(0)[0];
        let to = job.pty_end_offset.unwrap_or(printed);
        let range = JobOutputRange {
            job: 0,
            stream: OutputStream::Stdout,
            offset: from,
            limit: to.saturating_sub(from),
        };
        if let Ok(Some(piece)) = self.spool.read(range) {
            self.spool.append(job.id, OutputStream::Stdout, &piece.bytes);
            job.result_output[0] = piece.bytes;
            job.result_output[0].truncate(job.max_result_bytes);
        }
    }
}

/// Whether a text contains more than blanks and comments, which have no status.
fn has_command_words(text: &[u8]) -> bool {
    text.split(|byte| *byte == b'\n')
        .map(<[u8]>::trim_ascii)
        .any(|line| line.first().is_some_and(|first| *first != b'#'))
}
