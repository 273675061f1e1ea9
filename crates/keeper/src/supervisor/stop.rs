//! Stops commands, and recovers or replaces a shell that does not return from one.

use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};

use super::repair::MAX_REPAIRS;
use super::{ChildFd, ChildSupervisor};
use crate::blocked_reads::{InputReadState, inspect_input};
use crate::child::ChildIo;
use crate::clock::boottime_micros;
use crate::process_tree::{self, ProcessKey, SignalDisposition};
use crate::protocol::{ChildExit, JobOutputRange, KeeperRefusal, KeeperResponse, OutputStream};
use crate::shell_driver::{ShellDriver, ShellPosition};
use crate::shell_job::StopStep;

/// Time limit for the start of a shell, in microseconds.
const SHELL_START_TIMEOUT_US: u64 = 10_000_000;
/// Number of consecutive checks with a waiting shell before its report counts as lost.
const MAX_SILENT_CHECKS: u8 = 3;
/// Number of scans for processes started while others were being stopped.
const FREEZE_ROUNDS: usize = 16;
/// The descriptor limit during a stop, on a terminal: the number of standard streams that a shell must be able to
/// restore. On pipes the limit is 0, because the keeper repairs the streams and a program must not start with a
/// free standard descriptor.
const STANDARD_STREAMS: u64 = 3;
/// Minimum interval between two attempts to recall the shell, in microseconds.
const RECALL_INTERVAL_US: u64 = 50_000;
/// How many checks of 200 µs a step waits for processes to end. After that, the shell is handled in the next step.
const MAX_END_CHECKS: usize = 20;
/// After this many unanswered recalls, an interruptible shell gets SIGINT.
const RECALLS_BEFORE_SIGINT: u32 = 3;
/// The reason if the exit code of a command is unknown.
pub(super) const STATUS_UNKNOWN_REASON: &str = "status unknown: the command has ended, but the shell did not report its status; the command may have redefined a builtin";
/// The reason if a command has no exit code although its shell exited with one.
const NOT_STARTED_REASON: &str =
    "the shell ended before it began the command, so the command did not run; create a new session";

impl ChildSupervisor {
    /// Performs one step of the stop sequence.
    ///
    /// All processes are stopped (SIGSTOP) before any is signalled. The processes of the command continue first, with
    /// SIGTERM pending. The shell continues when they have ended, with its own signal pending. Otherwise a shell or
    /// subshell whose child ends first would execute the next word before the signal reaches it.
    pub(super) fn perform_stop_step(&mut self, step: StopStep) {
        let Some(job) = &mut self.job else { return };
        // A command that waits for input reads end-of-file.
        job.input = None;
        if matches!(self.child_io, ChildIo::Pty(_)) && job.pty_start_offset.is_none() {
            // The shell has not read the text yet; the command is stopped when it reports its beginning.
            if step == StopStep::KillShell {
                self.kill_command_and_shell();
            }
            return;
        }
        if job.reported_exit.is_some() {
            return self.stop_remaining_processes(step);
        }
        if job.shell_is_held {
            return self.stop_while_shell_held(step);
        }
        let recalled_recently =
            job.last_recall_at.is_some_and(|at| boottime_micros().saturating_sub(at) < RECALL_INTERVAL_US);
        if self.is_back_without_report() {
            return self.handle_lost_report(ShellPosition::PastAllLines);
        }
        if step == StopStep::Recall && recalled_recently {
            return;
        }
        let frozen = self.freeze();
        // A report written before the freeze ends the command normally.
        self.read_reports();
        let Some(job) = self.job.as_mut().filter(|job| job.reported_exit.is_none()) else {
            return self.thaw(&frozen);
        };
        if step == StopStep::Recall
            && job.recalls > 0
            && frozen.iter().all(|process| process_tree::is_fork_of(process.pid, self.child.pid))
        {
            // The shell is already returning. The frozen processes are substitutions of its trap, if there are any.
            job.last_recall_at = Some(boottime_micros());
            if !frozen.is_empty() {
                return self.thaw(&frozen);
            }
        }
        let frozen_pids: Vec<u32> = frozen.iter().map(|process| process.pid).collect();
        job.was_expanding |=
            self.shell_driver.as_ref().is_some_and(|driver| driver.is_expanding(self.child.pid))
                || process_tree::reads_output_of(self.child.pid, &frozen_pids);
        self.last_directory = process_tree::working_directory(self.child.pid).or(self.last_directory.take());
        match step {
            StopStep::Terminate | StopStep::Recall => self.terminate_processes(&frozen),
            StopStep::Kill | StopStep::KillShell => {
                for process in &frozen {
                    process.signal(Signal::KILL);
                }
            }
        }
        for process in &frozen {
            process.signal(Signal::CONT);
        }
        if step == StopStep::KillShell {
            return self.kill_command_and_shell();
        }
        self.recall_shell_when_alone();
    }

    /// A step while the shell is held stopped until the processes of the command have ended. New processes are
    /// signalled too.
    fn stop_while_shell_held(&mut self, step: StopStep) {
        let mut remaining = self.command_processes();
        remaining.retain(|process| process.pid != self.child.pid);
        match step {
            StopStep::Terminate | StopStep::Recall => self.terminate_processes(&remaining),
            StopStep::Kill => {
                for process in &remaining {
                    process.signal(Signal::KILL);
                }
            }
            StopStep::KillShell => return self.kill_command_and_shell(),
        }
        self.recall_shell_when_alone();
    }

    fn recall_shell_when_alone(&mut self) {
        let ended = self.await_processes();
        if let Some(job) = &mut self.job {
            job.shell_is_held = !ended;
        }
        if ended {
            self.recall_shell();
        }
    }

    /// Sends SIGTERM to processes that have not received it. A subshell that would survive it is killed, because it
    /// would continue with its next word. A program may use the time to clean up.
    fn terminate_processes(&mut self, frozen: &[ProcessKey]) {
        let shell = self.child.pid;
        let Some(job) = &mut self.job else { return };
        for process in frozen.iter().filter(|process| job.term_sent_to.insert(**process)) {
            let pid = process.pid;
            let survives = process_tree::disposition(pid, Signal::TERM) != SignalDisposition::Default;
            let subshell = pid != shell && survives && process_tree::is_fork_of(pid, shell);
            process.signal(if subshell { Signal::KILL } else { Signal::TERM });
        }
    }

    /// Waits up to 4 ms for the processes of the command to end.
    fn await_processes(&self) -> bool {
        let poll_interval = rustix::event::Timespec { tv_sec: 0, tv_nsec: 200_000 };
        for _ in 0..MAX_END_CHECKS {
            if self.command_processes().iter().all(|process| process.pid == self.child.pid) {
                return true;
            }
            rustix::event::poll(&mut [], Some(&poll_interval)).ok();
        }
        false
    }

    /// Recalls the shell with a signal. A shell that would ignore it and continue with the next word stays stopped.
    fn recall_shell(&mut self) {
        let shell = self.child.pid;
        let Some(job) = self.job.as_mut().filter(|_| self.shell_driver.is_some()) else { return };
        if process_tree::executable(shell) != self.program {
            // The shell has executed another program, which got SIGTERM like any other.
            return self.signal_child(Signal::CONT);
        }
        if process_tree::disposition(shell, Signal::URG) != SignalDisposition::Caught {
            job.shell_ignores_recall = true;
            return self.check_stopped();
        }
        job.recalls += 1;
        job.last_recall_at = Some(boottime_micros());
        self.signal_child(Signal::URG);
        let (Some(job), Some(driver)) = (&mut self.job, &mut self.shell_driver) else { return };
        let is_expanding = std::mem::take(&mut job.was_expanding);
        // A shell that is blocked in opening a FIFO without a writer may never run its trap.
        let is_interruptible = driver.is_interruptible();
        let interrupts = is_interruptible && (is_expanding || job.recalls > RECALLS_BEFORE_SIGINT);
        job.interrupted |= interrupts;
        if matches!(self.child_io, ChildIo::Pty(_)) {
            driver.release_typed_command();
        }
        self.limit_descriptors(is_expanding);
        // All output of the command has arrived. Later output is of the shell: prompts, and messages of its traps.
        match &self.child_io {
            ChildIo::Pty(_) => {
                self.drain_terminal_until_quiet();
                let printed = self.spool.stream_bytes(0)[0];
                if let Some(job) = &mut self.job {
                    job.pty_end_offset.get_or_insert(printed);
                }
            }
            ChildIo::Shell => {
                self.drain_all_pipes();
                if let Some(job) = &mut self.job {
                    job.discards_output = true;
                }
            }
            ChildIo::Pipes(_) => {}
        }
        if interrupts {
            self.signal_child(Signal::INT);
        }
        self.signal_child(Signal::CONT);
    }

    /// Whether an interrupted shell reads its next line. Then it has left the command and will not report it.
    fn is_back_without_report(&self) -> bool {
        let shell = self.child.pid;
        let (Some(job), Some(driver)) = (&self.job, &self.shell_driver) else { return false };
        if job.recalls == 0 || !driver.is_interruptible() {
            return false;
        }
        let is_pending =
            process_tree::is_pending(shell, Signal::INT) || process_tree::is_pending(shell, Signal::URG);
        match &self.child_io {
            _ if is_pending || process_tree::is_stopped(shell) => false,
            ChildIo::Pty(_) => job.interrupted && self.reads_terminal(),
            ChildIo::Shell | ChildIo::Pipes(_) => {
                driver.unreported_position(shell) == Some(ShellPosition::PastAllLines)
            }
        }
    }

    /// Whether a shell on a terminal waits for its next line although it has not begun the command, because it rejected
    /// the typed line. While a command runs, reading the terminal proves nothing, because commands read it too.
    fn is_back_before_command(&self) -> bool {
        self.job.as_ref().is_some_and(|job| job.pty_start_offset.is_none()) && self.reads_terminal()
    }

    fn reads_terminal(&self) -> bool {
        let shell = self.child.pid;
        let Some(terminal) = process_tree::fd_link_target(shell, 0) else { return false };
        let found = inspect_input(self.own_identity.pid, &terminal);
        matches!(found, InputReadState::BlockedInRead(reader) | InputReadState::BlockedInPoll(reader) if reader.thread == shell)
    }

    /// Whether a lower descriptor limit cannot disconnect the shell from its standard streams. On pipes the keeper
    /// restores them. On a terminal, a shell that is redirecting a stream may be unable to restore it.
    fn tolerates_descriptor_limit(&self) -> bool {
        match (&self.child_io, &self.job) {
            // A substitution in PS4 that cannot make a pipe would end bash.
            (ChildIo::Pty(_), Some(job)) if job.may_trace => false,
            (ChildIo::Pty(_), Some(job)) => {
                let before = &job.pty_start_descriptors;
                let terminal = before.iter().find_map(|(number, target)| (*number == 0).then_some(target));
                let mut now = process_tree::open_descriptors(self.child.pid).into_iter();
                now.all(|descriptor| before.contains(&descriptor) || Some(&descriptor.1) == terminal)
            }
            (ChildIo::Pty(_) | ChildIo::Shell | ChildIo::Pipes(_), _) => true,
        }
    }

    /// Lowers the descriptor limit of the shell, so that it can start no program and open no file until its trap runs.
    /// Before that, a shell executes the bodies of traps that the command has set, and the word whose substitution it
    /// expands: `rm -r "/tmp/$(slow)"` must not run. The trap raises the limit as far as necessary. The original limit
    /// is restored after the command.
    ///
    /// Our trap may also change the limit where it is not lowered, so it is recorded in every case.
    fn limit_descriptors(&mut self, is_expanding: bool) {
        let Some(shell) = i32::try_from(self.child.pid).ok().and_then(Pid::from_raw) else { return };
        // Only once per command: a later substitution belongs to the trap, and the limit would not be raised again.
        if self.original_fd_limit.is_some() {
            return;
        }
        let maximum = process_tree::descriptor_limit(self.child.pid);
        let kept = if matches!(self.child_io, ChildIo::Pty(_)) { STANDARD_STREAMS } else { 0 };
        let limit = Rlimit { current: Some(kept), maximum };
        // The shell may have exited. It is stopped, so a limit that is set and reset has no effect.
        let before = prlimit(Some(shell), Resource::Nofile, limit).ok();
        let executes_word = self.shell_driver.as_ref().is_some_and(ShellDriver::executes_word_before_trap);
        let is_lowered = if is_expanding { executes_word } else { self.tolerates_descriptor_limit() };
        if let Some(before) = before.filter(|_| !is_lowered) {
            prlimit(Some(shell), Resource::Nofile, before).ok();
        }
        self.original_fd_limit = before;
    }

    /// Restores the descriptor limit of the shell.
    pub(super) fn restore_limit(&mut self) {
        let Some(limit) = self.original_fd_limit.take() else { return };
        if let Some(shell) = i32::try_from(self.child.pid).ok().and_then(Pid::from_raw) {
            // The shell may have exited.
            prlimit(Some(shell), Resource::Nofile, limit).ok();
        }
    }

    /// A step after the shell has returned, while processes of the command remain. New processes are signalled too.
    fn stop_remaining_processes(&mut self, step: StopStep) {
        let remaining = self.command_processes();
        match step {
            StopStep::Terminate | StopStep::Recall => self.terminate_processes(&remaining),
            StopStep::Kill => {
                for process in &remaining {
                    process.signal(Signal::KILL);
                }
            }
            // A process that survives SIGKILL is blocked in the kernel.
            StopStep::KillShell => return self.complete_stop(),
        }
        self.check_stopped();
    }

    /// Completes the stop if all processes of the command have ended.
    pub(super) fn check_stopped(&mut self) {
        let Some(job) = &self.job else { return };
        if !(job.reported_exit.is_some() || job.shell_ignores_recall) || !self.command_processes().is_empty()
        {
            return;
        }
        self.complete_stop();
    }

    fn complete_stop(&mut self) {
        match self.job.as_mut().and_then(|job| job.reported_exit.take()) {
            Some((code, flags)) => self.complete_command(code, &flags),
            None => self.kill_command_and_shell(),
        }
    }

    /// Kills the shell. Its exit starts a replacement.
    fn kill_command_and_shell(&mut self) {
        for process in self.command_processes() {
            process.signal(Signal::KILL);
        }
        self.signal_child(Signal::KILL);
    }

    /// The processes of the running command: all descendants of the shell and the keeper that did not exist before it.
    /// The shell is included if it executed another program.
    pub(super) fn command_processes(&self) -> Vec<ProcessKey> {
        let shell = self.child.pid;
        if matches!(self.child_fd, ChildFd::Reaped) {
            return process_tree::descendants(self.own_identity.pid, &self.pids_before_command);
        }
        let mut command = process_tree::descendants(shell, &self.pids_before_command);
        let excluded_pids: Vec<u32> = self.pids_before_command.iter().copied().chain([shell]).collect();
        command.extend(process_tree::descendants(self.own_identity.pid, &excluded_pids));
        if process_tree::executable(shell).is_some_and(|program| Some(program) != self.program) {
            command.extend(ProcessKey::of(shell));
        }
        command
    }

    /// Stops the shell and the processes of the command, repeatedly until no new process appears.
    fn freeze(&self) -> Vec<ProcessKey> {
        self.signal_child(Signal::STOP);
        process_tree::await_stopped(self.child.pid);
        let mut frozen: Vec<ProcessKey> = Vec::new();
        for _ in 0..FREEZE_ROUNDS {
            let mut fresh = self.command_processes();
            fresh.retain(|process| !frozen.contains(process));
            if fresh.is_empty() {
                break;
            }
            for process in &fresh {
                process.signal(Signal::STOP);
            }
            for process in &fresh {
                process_tree::await_stopped(process.pid);
            }
            frozen.extend(fresh);
        }
        frozen
    }

    fn thaw(&self, frozen: &[ProcessKey]) {
        for process in frozen {
            process.signal(Signal::CONT);
        }
        self.signal_child(Signal::CONT);
    }

    /// Whether the shell stays stopped, because of the stop of a command.
    pub(super) fn holds_shell(&self) -> bool {
        self.job.as_ref().is_some_and(|job| job.shell_ignores_recall || job.shell_is_held)
    }

    /// Checks on a shell that has not reported: it may be stopped, or may have lost the keeper's line.
    pub(super) fn check_shell(&mut self) {
        if !self.holds_shell() && process_tree::is_stopped(self.child.pid) {
            self.signal_child(Signal::CONT);
        }
        let position = match &self.child_io {
            ChildIo::Pty(_) => self.is_back_before_command().then_some(ShellPosition::PastAllLines),
            ChildIo::Shell | ChildIo::Pipes(_) => {
                self.shell_driver.as_ref().and_then(|driver| driver.unreported_position(self.child.pid))
            }
        };
        self.repair.silent_checks = if position.is_some() { self.repair.silent_checks + 1 } else { 0 };
        if let Some(position) = position.filter(|_| self.repair.silent_checks >= MAX_SILENT_CHECKS) {
            self.handle_lost_report(position);
        }
        if self
            .repair
            .running_since
            .is_some_and(|since| boottime_micros().saturating_sub(since) > SHELL_START_TIMEOUT_US)
        {
            self.abandon_shell("the shell does not answer".to_owned());
        }
    }

    /// Handles a lost report: the shell waits for its next line, so the command has ended without one.
    pub(super) fn handle_lost_report(&mut self, position: ShellPosition) {
        self.repair.silent_checks = 0;
        let Some(job) = self.job.as_mut().filter(|_| !self.repair.is_running()) else {
            return self.retry_repair(position);
        };
        if job.stop_sequence.reason().is_some() {
            job.reported_exit = Some((143, String::new()));
            if let Some(driver) = &mut self.shell_driver {
                driver.leave_lines_before(position);
            }
            return self.check_stopped();
        }
        self.finish_job(143, None, Some(STATUS_UNKNOWN_REASON.to_owned()));
        if matches!(self.child_io, ChildIo::Pty(_)) {
            // The streams of a shell on a terminal cannot be repaired, so the shell is replaced.
            return self.abandon_shell("the shell did not report its command".to_owned());
        }
        if let Some(driver) = &mut self.shell_driver {
            driver.leave_lines_before(position);
        }
        // A failed write shows as a missing report.
        self.advance_prepared_line().ok();
        self.repair.needed = true;
    }

    /// Retries an unreported repair, after removing functions that hide builtins.
    pub(super) fn retry_repair(&mut self, position: ShellPosition) {
        self.repair.attempts += 1;
        let input = self.repair.input.is_some().then_some(());
        if !self.repair.shell_has_reported || self.repair.attempts >= MAX_REPAIRS {
            return self.abandon_shell("the shell does not answer".to_owned());
        }
        if let Some(driver) = &mut self.shell_driver {
            driver.leave_lines_before(position);
        }
        if self.advance_prepared_line().and_then(|()| self.start_repair(input)).is_err() {
            self.abandon_shell("the shell does not answer".to_owned());
        }
    }

    /// Kills the shell. If it had reported before, a new one replaces it.
    pub(super) fn abandon_shell(&mut self, reason: String) {
        self.replacement_reason = Some(reason);
        self.repair.running_since = None;
        for process in process_tree::descendants(self.child.pid, &self.pids_before_command) {
            process.signal(Signal::KILL);
        }
        self.signal_child(Signal::KILL);
    }

    /// Handles the exit of the shell, and notifies the waiting clients.
    pub(super) fn handle_shell_exit(&mut self, exit: &ChildExit) {
        let reason = self.replacement_reason.take();
        self.repair.running_since = None;
        let has_begun = match &self.child_io {
            ChildIo::Pty(_) => self.job.as_ref().is_some_and(|job| job.pty_start_offset.is_some()),
            ChildIo::Shell | ChildIo::Pipes(_) => {
                !self.shell_driver.as_ref().is_some_and(ShellDriver::is_unread)
            }
        };
        // The shell will not read the rest of its command.
        if let Some(driver) = &mut self.shell_driver {
            driver.close();
        }
        if let Some(job) = &self.job {
            // The exit code of the shell is not the status of a command that never ran.
            let is_stopped = job.stop_sequence.reason().is_some();
            let not_started = (!has_begun && !is_stopped).then(|| NOT_STARTED_REASON.to_owned());
            self.finish_job(exit.code, Some(exit.clone()), reason.clone().or(not_started));
        }
        if let Some((_, from)) = self.queued_command.take() {
            self.clients.send(from, KeeperResponse::Refused(KeeperRefusal::Ended));
        }
        if !self.repair.shell_has_reported && !self.is_replacement {
            let printed = self.spool.read(JobOutputRange {
                job: 0,
                stream: OutputStream::Stderr,
                offset: 0,
                limit: 2_000,
            });
            let printed = printed.ok().flatten().map(|piece| piece.bytes).unwrap_or_default();
            let text = String::from_utf8_lossy(&printed).trim().to_owned();
            let why = reason.unwrap_or(format!("the shell ended at once with status {}", exit.code));
            let why = if text.is_empty() { why } else { format!("{why}: {text}") };
            // The client is notified after the cleanup, so that it finds no trace of the failed session.
            self.start_failure = Some(KeeperRefusal::System(why));
            self.begin_shutdown(true, None, None);
        }
    }

    /// Cancels the running command because of the shutdown.
    pub(super) fn cancel_for_shutdown(&mut self) {
        if let Some(job) = &mut self.job {
            job.stop_sequence.cancel(boottime_micros());
        }
    }
}
