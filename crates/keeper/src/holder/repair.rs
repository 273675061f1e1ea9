//! Checks the shell's standard streams after each command, and restores them if the command changed them.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::ChildSupervisor;
use super::clients::ClientConnections;
use super::commands::WATCH;
use crate::clock::ticks;
use crate::lane::{OutputPipes, name_of, path_of};
use crate::launch::FIRST;
use crate::protocol::{CommandInput, KeeperRefusal, KeeperResponse, OutputStream};

/// Number of repairs before the shell is replaced.
pub(super) const MAX_REPAIRS: u8 = 3;
/// Number of checks on a shell that has not restored its output yet. The first `YIELDS` checks follow at once, later
/// ones after a pause.
const SETTLE: usize = 20_000;
const YIELDS: usize = 4;

/// State of the shell's standard streams and of their repair.
#[derive(Debug)]
pub(super) struct StreamRepair {
    pub(super) needed: bool,
    pub(super) running_since: Option<u64>,
    pub(super) tries: u8,
    /// Tracing was on; it is enabled again inside the next command.
    pub(super) trace: bool,
    /// The shell was still reporting during the check of its streams.
    pub(super) unsettled: bool,
    /// The shell has reported at least once.
    pub(super) ready: bool,
    /// Number of consecutive checks in which the shell waited for input without having reported.
    pub(super) silent: u8,
    pub(super) input: Option<(OwnedFd, OwnedFd)>,
}

/// The targets of the shell's standard streams.
enum StreamPlacement {
    Ours,
    Moved,
    /// The shell has temporarily redirected an output to the report pipe, to write its report.
    Lent,
}

impl StreamRepair {
    pub(super) fn first() -> Self {
        Self {
            needed: true,
            running_since: None,
            tries: 0,
            trace: false,
            unsettled: false,
            ready: false,
            silent: 0,
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
        self.drain_all();
        if self.repair.ready {
            let job = self.jobs;
            let (lane, _writers) = OutputPipes::new(self.lane + 1, job).map_err(io)?;
            self.add_lane(lane).map_err(system)?;
        }
        let mut path = "/dev/null".to_owned();
        self.repair.input = None;
        if input.is_some() {
            let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(system)?;
            rustix::io::ioctl_fionbio(&writer, true).map_err(system)?;
            path = path_of(&reader);
            self.repair.input = Some((reader, writer));
        }
        let (Some(prompter), Some(lane)) = (&mut self.prompter, self.lanes.get(&self.lane)) else {
            return Ok(());
        };
        let text = prompter.repair(lane, &path);
        prompter.give(text.as_bytes()).map_err(io)?;
        self.repair.running_since = Some(ticks());
        self.repair.silent = 0;
        self.watch_at = ticks() + WATCH / 2;
        self.ticker.start();
        Ok(())
    }

    /// After a command: checks whether the shell's streams are unchanged, and whether other processes hold the output
    /// pipes.
    pub(super) fn inspect(&mut self, flags: &str) {
        let here: Vec<u32> = self.living_children();
        self.repair.needed |= here.iter().any(|pid| !self.known.contains(pid));
        self.known = here;
        if flags.contains('x') {
            self.repair.trace = true;
            self.repair.needed = true;
        }
        self.repair.needed |= flags.contains(['e', 'v']);
        if !self.repair.needed {
            match self.streams("/dev/null") {
                StreamPlacement::Ours => {}
                StreamPlacement::Moved => self.repair.needed = true,
                StreamPlacement::Lent => self.repair.unsettled = true,
            }
        }
    }

    /// Before a command: waits until a shell that was still reporting has restored its streams.
    pub(super) fn settle(&mut self) {
        if std::mem::take(&mut self.repair.unsettled) {
            self.repair.needed |= !self.streams_are_ours("/dev/null");
        }
    }

    pub(super) fn living_children(&self) -> Vec<u32> {
        let [shell, own] = &self.children;
        let mut all = shell.now();
        all.extend(own.now().into_iter().filter(|pid| *pid != self.child.pid));
        all
    }

    fn streams_are_ours(&self, input: &str) -> bool {
        let moment = rustix::event::Timespec { tv_sec: 0, tv_nsec: 50_000 };
        for turn in 0..SETTLE {
            match self.streams(input) {
                StreamPlacement::Ours => return true,
                StreamPlacement::Moved => return false,
                StreamPlacement::Lent if turn < YIELDS => rustix::thread::sched_yield(),
                // The shell waits for a processor, so the keeper sleeps instead of yielding.
                StreamPlacement::Lent => drop(rustix::event::poll(&mut [], Some(&moment))),
            }
        }
        false
    }

    fn streams(&self, input: &str) -> StreamPlacement {
        let (Some(lane), Some(prompter)) = (self.lanes.get(&self.lane), &self.prompter) else {
            return StreamPlacement::Moved;
        };
        let leads_to = |number: &str, name: Option<&PathBuf>| {
            name.is_some_and(|name| self.descriptors.lead_to(number, name))
        };
        let ours =
            [leads_to("1", lane.name(OutputStream::Stdout)), leads_to("2", lane.name(OutputStream::Stderr))];
        let report = prompter.report_name();
        if !self.descriptors.lead_to("0", Path::new(input)) {
            return StreamPlacement::Moved;
        }
        match ours {
            [true, true] => StreamPlacement::Ours,
            [false, true] if leads_to("1", report) => StreamPlacement::Lent,
            [true, false] if leads_to("2", report) => StreamPlacement::Lent,
            [false, _] | [true, false] => StreamPlacement::Moved,
        }
    }

    pub(super) fn repaired(&mut self) {
        self.repair.running_since = None;
        let input = match &self.repair.input {
            Some((reader, _)) => name_of(reader),
            None => Some("/dev/null".into()),
        };
        let input = input.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
        let whole = self.streams_are_ours(&input);
        // A failed write shows as a missing report.
        self.offer().ok();
        if !whole {
            self.repair.tries += 1;
            let open = self.repair.input.is_some().then_some(());
            if self.repair.tries >= MAX_REPAIRS || self.start_repair(open).is_err() {
                self.lose("the shell's streams could not be brought back".to_owned());
            }
            return;
        }
        self.repair.tries = 0;
        self.repair.needed = false;
        self.repair.unsettled = false;
        self.known = self.living_children();
        if !self.repair.ready {
            self.repair.ready = true;
            self.drain_all();
            if self.is_replacement {
                return self.start_waiting();
            }
            self.clients
                .tell((ClientConnections::CREATOR, FIRST), KeeperResponse::Status(Box::new(self.status())));
        }
        self.start_waiting();
    }

    /// Sends the shell the command that waited for the repair.
    pub(super) fn start_waiting(&mut self) {
        if let Some((run, from)) = self.waiting.take() {
            if !matches!(run.input, CommandInput::Nothing) && self.repair.input.is_none() {
                self.waiting = Some((run, from));
                // A failed write shows as a missing report.
                self.start_repair(Some(())).ok();
            } else if let Err(refusal) = self.start_job(run, from) {
                self.clients.tell(from, KeeperResponse::Refused(refusal));
            }
        }
    }
}
