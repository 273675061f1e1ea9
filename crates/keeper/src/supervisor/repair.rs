//! Checks the shell's standard streams after each command, and restores them if the command changed them.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::ChildSupervisor;
use super::clients::ClientConnections;
use super::commands::CHECK_INTERVAL_US;
use crate::client::FIRST_RESPONSE_TAG;
use crate::clock::boottime_micros;
use crate::output_pipes::{OutputPipes, fd_link_target};
use crate::protocol::{CommandInput, KeeperRefusal, KeeperResponse, OutputStream};

/// Number of repairs before the shell is replaced.
pub(super) const MAX_REPAIRS: u8 = 3;
/// The reason for a new shell if new pipes cannot be shared with the present one.
const PIPES_LOST_REASON: &str =
    "a program in the session ended or stopped the process that holds the shell's pipes";
/// Number of checks on a shell that has not restored its output yet. The first `YIELDING_STREAM_CHECKS` checks follow at once, later
/// ones after a pause.
const MAX_STREAM_CHECKS: usize = 20_000;
const YIELDING_STREAM_CHECKS: usize = 4;

/// State of the shell's standard streams and of their repair.
#[derive(Debug)]
pub(super) struct StreamRepair {
    pub(super) needed: bool,
    pub(super) running_since: Option<u64>,
    pub(super) attempts: u8,
    /// Tracing was on; it is enabled again inside the next command.
    pub(super) restores_trace: bool,
    /// The shell was still reporting during the check of its streams.
    pub(super) awaits_report_end: bool,
    /// The shell has reported at least once.
    pub(super) shell_has_reported: bool,
    /// Number of consecutive checks in which the shell waited for input without having reported.
    pub(super) silent_checks: u8,
    pub(super) input: Option<(OwnedFd, OwnedFd)>,
}

/// The targets of the shell's standard streams.
enum StreamPlacement {
    KeeperPipes,
    Redirected,
    /// The shell has temporarily redirected an output to the report pipe, to write its report.
    ReportPipe,
}

impl StreamRepair {
    pub(super) fn initial() -> Self {
        Self {
            needed: true,
            running_since: None,
            attempts: 0,
            restores_trace: false,
            awaits_report_end: false,
            shell_has_reported: false,
            silent_checks: 0,
            input: None,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.running_since.is_some()
    }
}

impl ChildSupervisor {
    /// Redirects the shell's streams to new pipes, so that processes of earlier commands cannot write to the output of
    /// the next one.
    pub(super) fn start_repair(&mut self, input: Option<()>) -> Result<(), KeeperRefusal> {
        let system = |error: Errno| KeeperRefusal::System(error.to_string());
        let io = |error: std::io::Error| KeeperRefusal::System(error.to_string());
        self.drain_all_pipes();
        if self.repair.shell_has_reported {
            let job = self.last_job_id;
            let (pipes, _writers) = OutputPipes::new(self.current_pipes + 1, job).map_err(io)?;
            if self.add_output_pipes(pipes).is_err() {
                self.abandon_shell(PIPES_LOST_REASON.to_owned());
                return Ok(());
            }
        }
        let mut path = "/dev/null".to_owned();
        self.repair.input = None;
        if input.is_some() {
            let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(system)?;
            rustix::io::ioctl_fionbio(&writer, true).map_err(system)?;
            let shared_path = self.shell_driver.as_mut().map(|driver| driver.share_input(&reader));
            match shared_path {
                Some(Ok(shared_path)) => path = shared_path,
                Some(Err(_)) => {
                    self.abandon_shell(PIPES_LOST_REASON.to_owned());
                    return Ok(());
                }
                None => {}
            }
            self.repair.input = Some((reader, writer));
        }
        let (Some(driver), Some(pipes)) =
            (&mut self.shell_driver, self.output_pipes.get(&self.current_pipes))
        else {
            return Ok(());
        };
        let text = driver.repair_text(pipes, &path);
        driver.send_command(text.as_bytes()).map_err(io)?;
        self.repair.running_since = Some(boottime_micros());
        self.repair.silent_checks = 0;
        self.next_check_at = boottime_micros() + CHECK_INTERVAL_US / 2;
        self.check_timer.start();
        Ok(())
    }

    /// After a command: checks whether the shell's streams are unchanged, and whether other processes hold the output
    /// pipes.
    pub(super) fn inspect_streams(&mut self, flags: &str) {
        let living_pids: Vec<u32> = self.living_children();
        self.repair.needed |= living_pids.iter().any(|pid| !self.pids_before_command.contains(pid));
        self.pids_before_command = living_pids;
        if flags.contains('x') {
            self.repair.restores_trace = true;
            self.repair.needed = true;
        }
        self.repair.needed |= flags.contains(['e', 'v']);
        if !self.repair.needed {
            match self.stream_placement("/dev/null") {
                StreamPlacement::KeeperPipes => {}
                StreamPlacement::Redirected => self.repair.needed = true,
                StreamPlacement::ReportPipe => self.repair.awaits_report_end = true,
            }
        }
    }

    /// Before a command: waits until a shell that was still reporting has restored its streams.
    pub(super) fn await_restored_streams(&mut self) {
        if std::mem::take(&mut self.repair.awaits_report_end) {
            self.repair.needed |= !self.await_keeper_pipes("/dev/null");
        }
    }

    pub(super) fn living_children(&self) -> Vec<u32> {
        let [shell, own] = &self.children;
        let mut all = shell.pids();
        all.extend(own.pids().into_iter().filter(|pid| *pid != self.child.pid));
        all
    }

    fn await_keeper_pipes(&self, input: &str) -> bool {
        let pause = rustix::event::Timespec { tv_sec: 0, tv_nsec: 50_000 };
        for turn in 0..MAX_STREAM_CHECKS {
            match self.stream_placement(input) {
                StreamPlacement::KeeperPipes => return true,
                StreamPlacement::Redirected => return false,
                StreamPlacement::ReportPipe if turn < YIELDING_STREAM_CHECKS => rustix::thread::sched_yield(),
                // The shell waits for a processor, so the keeper sleeps instead of yielding.
                StreamPlacement::ReportPipe => drop(rustix::event::poll(&mut [], Some(&pause))),
            }
        }
        false
    }

    fn stream_placement(&self, input: &str) -> StreamPlacement {
        let (Some(pipes), Some(driver)) = (self.output_pipes.get(&self.current_pipes), &self.shell_driver)
        else {
            return StreamPlacement::Redirected;
        };
        let leads_to = |number: &str, name: Option<&PathBuf>| {
            name.is_some_and(|name| self.descriptors.has_target(number, name))
        };
        let on_keeper_pipes = [
            leads_to("1", pipes.link_target(OutputStream::Stdout)),
            leads_to("2", pipes.link_target(OutputStream::Stderr)),
        ];
        let report = driver.report_link_target();
        if !self.descriptors.has_target("0", Path::new(input)) {
            return StreamPlacement::Redirected;
        }
        match on_keeper_pipes {
            [true, true] => StreamPlacement::KeeperPipes,
            [false, true] if leads_to("1", report) => StreamPlacement::ReportPipe,
            [true, false] if leads_to("2", report) => StreamPlacement::ReportPipe,
            [false, _] | [true, false] => StreamPlacement::Redirected,
        }
    }

    pub(super) fn finish_repair(&mut self) {
        self.repair.running_since = None;
        let input = match &self.repair.input {
            Some((reader, _)) => fd_link_target(reader),
            None => Some("/dev/null".into()),
        };
        let input = input.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
        let is_restored = self.await_keeper_pipes(&input);
        // A failed write shows as a missing report.
        self.advance_prepared_line().ok();
        if !is_restored {
            self.repair.attempts += 1;
            let open = self.repair.input.is_some().then_some(());
            if self.repair.attempts >= MAX_REPAIRS || self.start_repair(open).is_err() {
                self.abandon_shell("the shell's streams could not be brought back".to_owned());
            }
            return;
        }
        self.repair.attempts = 0;
        self.repair.needed = false;
        self.repair.awaits_report_end = false;
        self.pids_before_command = self.living_children();
        if !self.repair.shell_has_reported {
            self.repair.shell_has_reported = true;
            self.drain_all_pipes();
            if self.is_replacement {
                return self.start_queued_command();
            }
            self.clients.send(
                (ClientConnections::CREATOR_NUMBER, FIRST_RESPONSE_TAG),
                KeeperResponse::Status(Box::new(self.status())),
            );
        }
        self.start_queued_command();
    }

    /// Sends the shell the command that waited for the repair.
    pub(super) fn start_queued_command(&mut self) {
        if let Some((command, from)) = self.queued_command.take() {
            if !matches!(command.input, CommandInput::Nothing) && self.repair.input.is_none() {
                self.queued_command = Some((command, from));
                // A failed write shows as a missing report.
                self.start_repair(Some(())).ok();
            } else if let Err(refusal) = self.start_job(command, from) {
                self.clients.send(from, KeeperResponse::Refused(refusal));
            }
        }
    }
}
