//! Replaces a shell that could not be recovered.

use rustix::event::epoll::EventFlags;

use super::poller::PollSource;
use super::repair::StreamRepair;
use super::{ChildFd, ChildSupervisor, identity_of_child, inside};
use crate::child::{ChildIo, spawn_on_pty, spawn_shell};
use crate::group;
use crate::lane::OutputPipes;
use crate::launch::IdentityRecord;
use crate::procs;
use crate::protocol::{ChildMode, KeeperRefusal, KeeperResponse};
use crate::script::ShellDriver;

impl ChildSupervisor {
    /// Whether a new shell continues the session. True if the shell ended because a command was stopped, or because it
    /// could not be recovered. A replacement that never reported is not replaced again.
    pub(super) fn wants_replacement(&self) -> bool {
        let stopped = self.job.as_ref().is_some_and(|job| job.ladder.why().is_some());
        let usable = self.prompter.is_some() && self.repair.ready;
        usable && self.ending.is_none() && (stopped || self.lost.is_some())
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
        self.drain_all();
        let created_in = self.spec.cwd.clone();
        let directory = self.last_directory.take().unwrap_or_else(|| created_in.clone());
        self.spec.cwd = directory;
        let started = self.start_shell().or_else(|_unusable_directory| {
            self.spec.cwd.clone_from(&created_in);
            self.start_shell()
        });
        self.spec.cwd = created_in;
        let StartedShell { pid, hold, lane, prompter } = started?;
        let shell_fd = ChildFd::of(pid);
        let shell = identity_of_child(pid);
        self.is_replacement = true;
        let lost = self.lost.take();
        self.clients.tell_all(|| KeeperResponse::ShellRestarted(shell.clone()));
        // This happens before the new terminal and pipes are installed, because output of the new shell does not belong
        // to this command.
        self.finish(code, None, lost);
        self.child = shell;
        self.child_fd = shell_fd;
        self.program = procs::program(pid);
        self.children[0] = procs::ChildList::of(pid);
        self.descriptors = procs::DescriptorDir::of(pid);
        let entered = || self.spec.group.as_ref().and_then(|_| group::entered());
        let group = self.group.as_ref().map(|group| group.path().to_owned()).or_else(entered);
        IdentityRecord::new(&self.own, &self.child, group.as_deref()).write(&self.place).map_err(io)?;
        self.poller.add(prompter.reports_on(), PollSource::Reports, EventFlags::IN).map_err(system)?;
        self.prompter = Some(prompter);
        self.repair = StreamRepair::first();
        self.known = self.living_children();
        if let ChildIo::Pty(pty) = &hold {
            self.poller.add(pty, PollSource::Terminal, EventFlags::IN).map_err(system)?;
            self.hold = hold;
            self.repair.ready = true;
            self.repair.needed = false;
            self.start_waiting();
            return Ok(());
        }
        if let Some(lane) = lane {
            self.add_lane(lane).map_err(system)?;
        }
        self.offer()?;
        self.start_repair(None)
    }

    fn start_shell(&self) -> Result<StartedShell, KeeperRefusal> {
        let io = |error: std::io::Error| KeeperRefusal::System(error.to_string());
        match &self.spec.shape {
            ChildMode::Pipes => Err(KeeperRefusal::Unsupported("no shell".to_owned())),
            ChildMode::Shell(script) => {
                let mut prompter = ShellDriver::new(script.clone(), false).map_err(io)?;
                prompter.begin().map_err(io)?;
                let (lane, writers) = OutputPipes::new(self.lane + 1, 0).map_err(io)?;
                let spawn = || spawn_shell(&self.spec, &prompter, writers);
                let (pid, hold) = inside(self.group.as_ref(), &self.spec, spawn)?;
                Ok(StartedShell { pid, hold, lane: Some(lane), prompter })
            }
            ChildMode::Pty { rows, cols, script } => {
                let script = script.clone().ok_or(KeeperRefusal::Unsupported("no shell".to_owned()))?;
                let size = match &self.hold {
                    ChildIo::Pty(pty) => rustix::termios::tcgetwinsize(pty).ok(),
                    ChildIo::Pipes(_) | ChildIo::Shell => None,
                };
                let (rows, cols) = size.map_or((*rows, *cols), |size| (size.ws_row, size.ws_col));
                let prompter = ShellDriver::new(script, true).map_err(io)?;
                let spawn = || spawn_on_pty(&self.spec, &self.place, rows, cols);
                let (pid, hold) = inside(self.group.as_ref(), &self.spec, spawn)?;
                Ok(StartedShell { pid, hold, lane: None, prompter })
            }
        }
    }
}

/// The result of starting a shell.
struct StartedShell {
    pid: u32,
    hold: ChildIo,
    lane: Option<OutputPipes>,
    prompter: ShellDriver,
}
