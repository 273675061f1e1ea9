//! The shell's own streams: after each command it is looked whether they are still ours, and if not they are brought back.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::Holder;
use super::clients::Clients;
use super::commands::WATCH;
use crate::clock::ticks;
use crate::lane::{Lane, name_of, path_of};
use crate::launch::FIRST;
use crate::procs;
use crate::protocol::{Input, News, Refusal, Stream};

const MAX_REPAIRS: u8 = 3;
/// How often a shell is looked at that is still putting its output back.
const SETTLE: usize = 2_000;

/// Whether the shell's own streams are where the next command needs them.
#[derive(Debug)]
pub(super) struct Repair {
    pub(super) needed: bool,
    pub(super) running_since: Option<u64>,
    pub(super) tries: u8,
    /// Tracing was on; it is switched on again inside the next command.
    pub(super) trace: bool,
    /// The shell has answered at least once.
    pub(super) ready: bool,
    /// The shell was seen waiting for its next line without having reported, this many times in a row.
    pub(super) silent: u8,
    pub(super) input: Option<(OwnedFd, OwnedFd)>,
}

impl Repair {
    pub(super) fn first() -> Self {
        Self {
            needed: true,
            running_since: None,
            tries: 0,
            trace: false,
            ready: false,
            silent: 0,
            input: None,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.running_since.is_some()
    }
}

impl Holder {
    /// Points the shell's own streams at a new lane, so that nobody from before can print into the next command.
    pub(super) fn start_repair(&mut self, input: Option<()>) -> Result<(), Refusal> {
        let system = |error: Errno| Refusal::System(error.to_string());
        let io = |error: std::io::Error| Refusal::System(error.to_string());
        self.drain_all();
        if self.repair.ready {
            let job = self.jobs;
            let (lane, _writers) = Lane::new(self.lane + 1, job).map_err(io)?;
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

    /// After a command: are the shell's streams still ours, and is the lane ours alone?
    pub(super) fn inspect(&mut self, flags: &str) {
        let here: Vec<u32> = self.living_children();
        if here.iter().any(|pid| !self.known.contains(pid)) || !self.streams_are_ours("/dev/null") {
            self.repair.needed = true;
        }
        self.known = here;
        if flags.contains('x') {
            self.repair.trace = true;
            self.repair.needed = true;
        }
        self.repair.needed |= flags.contains('v');
    }

    pub(super) fn living_children(&self) -> Vec<u32> {
        let [shell, own] = &self.children;
        let mut all = shell.now();
        all.extend(own.now().into_iter().filter(|pid| *pid != self.child.pid));
        all
    }

    pub(super) fn streams_are_ours(&self, input: &str) -> bool {
        let Some(lane) = self.lanes.get(&self.lane) else { return false };
        let Some(prompter) = &self.prompter else { return false };
        let found = |number| procs::descriptor(self.child.pid, number);
        let mut out = found(1);
        // To report, the shell has lent its output to the report pipe; a moment later it takes it back.
        for _ in 0..SETTLE {
            if out.as_ref() != prompter.report_name() {
                break;
            }
            rustix::thread::sched_yield();
            out = found(1);
        }
        out.as_ref() == lane.name(Stream::Stdout)
            && found(2).as_ref() == lane.name(Stream::Stderr)
            && found(0).is_some_and(|path| path.as_os_str() == input)
    }

    pub(super) fn repaired(&mut self) {
        self.repair.running_since = None;
        let input = match &self.repair.input {
            Some((reader, _)) => name_of(reader),
            None => Some("/dev/null".into()),
        };
        let input = input.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
        let whole = self.streams_are_ours(&input);
        let _noticed_by_silence = self.offer();
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
        self.known = self.living_children();
        if !self.repair.ready {
            self.repair.ready = true;
            self.drain_all();
            self.clients.tell((Clients::CREATOR, FIRST), News::Status(Box::new(self.status())));
        }
        if let Some((run, from)) = self.waiting.take() {
            if !matches!(run.input, Input::Nothing) && self.repair.input.is_none() {
                self.waiting = Some((run, from));
                let _noticed_by_silence = self.start_repair(Some(()));
            } else if let Err(refusal) = self.start_job(run, from) {
                self.clients.tell(from, News::Refused(refusal));
            }
        }
    }
}
