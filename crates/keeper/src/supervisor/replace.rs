//! Replaces a shell that could not be recovered.

use rustix::event::epoll::EventFlags;

use super::poller::PollSource;
use super::repair::StreamRepair;
use super::{ChildFd, ChildSupervisor, identity_of_child, run_in_child_group};
use crate::child::{ChildIo, spawn_on_pty, spawn_shell};
use crate::launch::IdentityRecord;
use crate::output_pipes::OutputPipes;
use crate::process_tree;
use crate::protocol::{ChildMode, KeeperRefusal, KeeperResponse};
use crate::shell_driver::ShellDriver;

impl ChildSupervisor {
    /// Whether a new shell continues the session. True if the shell ended because a command was stopped, or because it
    /// could not be recovered. A replacement that never reported is not replaced again.
    pub(super) fn needs_replacement(&self) -> bool {
        let stopped = self.job.as_ref().is_some_and(|job| job.stop_sequence.reason().is_some());
        let usable = self.shell_driver.is_some() && self.repair.shell_has_reported;
        usable && self.shutdown.is_none() && (stopped || self.replacement_reason.is_some())
    }

    /// Starts a new shell in the directory of the old one, with the initial environment of the session. Background jobs
    /// stay alive, except on a terminal, which closes with its shell.
    pub(super) fn replace_shell(&mut self, code: i32) -> Result<(), KeeperRefusal> {
        let io = |error: std::io::Error| KeeperRefusal::System(error.to_string());
        let system = |error: rustix::io::Errno| KeeperRefusal::System(error.to_string());
        for process in self.command_processes() {
            process.signal(rustix::process::Signal::KILL);
        }
        self.drain_terminal();
        self.drain_all_pipes();
        let initial_cwd = self.spec.cwd.clone();
        let directory = self.last_directory.take().unwrap_or_else(|| initial_cwd.clone());
        self.spec.cwd = directory;
        let started = self.start_shell().or_else(|_unusable_directory| {
            self.spec.cwd.clone_from(&initial_cwd);
            self.start_shell()
        });
        self.spec.cwd = initial_cwd;
        let StartedShell { pid, child_io: hold, pipes, driver } = started?;
        let shell_fd = ChildFd::of(pid);
        let shell = identity_of_child(pid);
        self.is_replacement = true;
        let reason = self.replacement_reason.take();
        self.clients.broadcast(|| KeeperResponse::ShellRestarted(shell.clone()));
        // This happens before the new terminal and pipes are installed, because output of the new shell does not belong
        // to this command.
        self.finish_job(code, None, reason);
        self.child = shell;
        self.child_fd = shell_fd;
        self.program = process_tree::executable(pid);
        self.children[0] = process_tree::ChildList::of(pid);
        self.descriptors = process_tree::DescriptorDir::of(pid);
        let group = self.group.as_ref().map(|group| group.path().to_owned());
        IdentityRecord::new(&self.own_identity, &self.child, group.as_deref())
            .write(&self.keeper_dir)
            .map_err(io)?;
        self.poller.add(driver.report_fd(), PollSource::Reports, EventFlags::IN).map_err(system)?;
        self.shell_driver = Some(driver);
        self.repair = StreamRepair::initial();
        self.pids_before_command = self.living_children();
        if let ChildIo::Pty(pty) = &hold {
            self.poller.add(pty, PollSource::Terminal, EventFlags::IN).map_err(system)?;
            self.child_io = hold;
            self.repair.shell_has_reported = true;
            self.repair.needed = false;
            self.start_queued_command();
            return Ok(());
        }
        if let Some(pipes) = pipes {
            self.add_output_pipes(pipes).map_err(system)?;
        }
        self.advance_prepared_line()?;
        self.start_repair(None)
    }

    fn start_shell(&self) -> Result<StartedShell, KeeperRefusal> {
        let io = |error: std::io::Error| KeeperRefusal::System(error.to_string());
        match &self.spec.shape {
            ChildMode::Pipes => Err(KeeperRefusal::Unsupported("no shell".to_owned())),
            ChildMode::Shell(script) => {
                let mut driver = ShellDriver::new(script.clone(), false).map_err(io)?;
                driver.send_init().map_err(io)?;
                let (pipes, writers) = OutputPipes::new(self.current_pipes + 1, 0).map_err(io)?;
                let spawn = || spawn_shell(&self.spec, &self.keeper_dir, &mut driver, writers);
                let (pid, hold) = run_in_child_group(self.group.as_ref(), &self.spec, spawn)?;
                Ok(StartedShell { pid, child_io: hold, pipes: Some(pipes), driver })
            }
            ChildMode::Pty { rows, cols, script } => {
                let script = script.clone().ok_or(KeeperRefusal::Unsupported("no shell".to_owned()))?;
                let size = match &self.child_io {
                    ChildIo::Pty(pty) => rustix::termios::tcgetwinsize(pty).ok(),
                    ChildIo::Pipes(_) | ChildIo::Shell => None,
                };
                let (rows, cols) = size.map_or((*rows, *cols), |size| (size.ws_row, size.ws_col));
                let driver = ShellDriver::new(script, true).map_err(io)?;
                let spawn = || spawn_on_pty(&self.spec, &self.keeper_dir, rows, cols);
                let (pid, hold) = run_in_child_group(self.group.as_ref(), &self.spec, spawn)?;
                Ok(StartedShell { pid, child_io: hold, pipes: None, driver })
            }
        }
    }
}

/// The result of starting a shell.
struct StartedShell {
    pid: u32,
    child_io: ChildIo,
    pipes: Option<OutputPipes>,
    driver: ShellDriver,
}
