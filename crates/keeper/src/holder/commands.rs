//! Commands in the shell: given, reported, stopped; and the repair of a shell whose own streams a command has moved.

use std::os::fd::OwnedFd;

use rustix::event::epoll::EventFlags;
use rustix::io::{Errno, write};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Signal;

use super::clients::Clients;
use super::{Holder, Source};
use crate::child::Hold;
use crate::clock::{ticks, unix_micros};
use crate::job::{Job, Ladder, Step, Why};
use crate::lane::{Lane, name_of, path_of};
use crate::launch::FIRST;
use crate::procs;
use crate::protocol::{Exit, Input, News, Outcome, Ran, Range, Refusal, Run, Stream};
use crate::script::{Report, Reported};

/// How often a running shell is looked at, in microseconds.
pub(super) const WATCH: u64 = 100_000;
/// How long a shell may take to start, in microseconds.
const START: u64 = 10_000_000;
/// At most this many commands may have left processes behind that still hold their output.
const MAX_LANES: usize = 200;
const MAX_REPAIRS: u8 = 3;
/// How often in a row a shell has to be seen waiting before its report counts as lost.
const SILENT: u8 = 3;
/// How often a shell is looked at that is still putting its output back.
const SETTLE: usize = 2_000;

/// Whether the shell's own streams are where the next command needs them.
#[derive(Debug)]
pub(super) struct Repair {
    needed: bool,
    running_since: Option<u64>,
    tries: u8,
    /// Tracing was on; it is switched on again inside the next command.
    trace: bool,
    /// The shell has answered at least once.
    ready: bool,
    /// The shell was seen waiting for its next line without having reported, this many times in a row.
    silent: u8,
    input: Option<(OwnedFd, OwnedFd)>,
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
    /// The child has been started. Its creator is told when it can be used: a shell, when it has answered.
    pub(super) fn began(&mut self) {
        if !matches!(self.hold, Hold::Shell) {
            self.repair.ready = true;
            self.repair.needed = false;
            return self.clients.tell((Clients::CREATOR, FIRST), News::Status(Box::new(self.status())));
        }
        if self.offer().and_then(|()| self.start_repair(None)).is_err() {
            self.lose("the shell could not be started".to_owned());
        }
    }

    pub(super) fn run(&mut self, run: Run, from: (u64, u64)) -> Result<(), Refusal> {
        if self.exit.is_some() || self.ending.is_some() {
            return Err(Refusal::Ended);
        }
        if self.job.is_some() || self.waiting.is_some() || !self.repair.ready {
            return Err(Refusal::Busy);
        }
        if self.prompter.is_none() {
            return Err(Refusal::Unsupported("this process takes no commands".to_owned()));
        }
        if self.lanes.len() > MAX_LANES {
            return Err(Refusal::Full(format!(
                "{MAX_LANES} commands left processes behind that still hold their output"
            )));
        }
        let plain = matches!(run.input, Input::Nothing) || matches!(self.hold, Hold::Pty(_));
        if plain && !self.repair.needed && !self.repair.is_running() {
            return self.start_job(run, from);
        }
        let repairing = self.repair.is_running();
        let open = !matches!(run.input, Input::Nothing);
        self.waiting = Some((run, from));
        if repairing { Ok(()) } else { self.start_repair(open.then_some(())) }
    }

    fn offer(&mut self) -> Result<(), Refusal> {
        let Some(prompter) = &mut self.prompter else { return Ok(()) };
        prompter.offer().map(|_| ()).map_err(|error| Refusal::System(error.to_string()))
    }

    /// Points the shell's own streams at a new lane, so that nobody from before can print into the next command.
    fn start_repair(&mut self, input: Option<()>) -> Result<(), Refusal> {
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

    fn start_job(&mut self, run: Run, from: (u64, u64)) -> Result<(), Refusal> {
        // What was printed until now belongs to whoever was there before.
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
            Input::Nothing => (Vec::new(), true),
            Input::Text(text) => (text, true),
            Input::Open => (Vec::new(), false),
        };
        drop(reader);
        if let Some(writer) = &writer {
            let flags = EventFlags::OUT | EventFlags::ET;
            self.poller
                .add(writer, Source::Input, flags)
                .map_err(|error| Refusal::System(error.to_string()))?;
            // The shell's input is a pipe now; the next command must not find it.
            self.repair.needed = true;
        }
        self.job = Some(Job {
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
            may_trace: self.repair.trace || mentions_tracing(&run.text),
            ladder: Ladder::new(now, run.timeout_ms),
        });
        self.watch_at = now + WATCH / 2;
        self.ticker.start();
        self.repair.silent = 0;
        if run.follow {
            self.clients.follow(from, id, [0; 2], true);
        }
        self.clients.tell_if(run.follow, from, News::Started(id));
        self.give(run.text)?;
        self.push_input();
        Ok(())
    }

    fn give(&mut self, text: Vec<u8>) -> Result<(), Refusal> {
        let io = |error: std::io::Error| Refusal::System(error.to_string());
        let Some(prompter) = &mut self.prompter else { return Ok(()) };
        if let Hold::Pty(pty) = &self.hold {
            if let Some(line) = prompter.offer().map_err(io)? {
                let _full_is_noticed_by_silence = write(pty, format!(" {}\r", line.trim_end()).as_bytes());
            }
            let text = [prompter.beginning().into_bytes(), text].concat();
            return prompter.give(&text).map_err(io);
        }
        if std::mem::take(&mut self.repair.trace) {
            let text = [prompter.trace().as_bytes(), &text].concat();
            return prompter.give(&text).map_err(io);
        }
        prompter.give(&text).map_err(io)
    }

    pub(super) fn command_input(&mut self, bytes: &[u8], eof: bool) -> Result<(), Refusal> {
        let job = self.job.as_mut().ok_or(Refusal::NotRunning)?;
        if job.input.is_none() || job.input_ends {
            return Err(Refusal::NoInput);
        }
        if job.unsent_input.len() + bytes.len() > crate::protocol::MAX_ORDER_BYTES {
            return Err(Refusal::Full(format!(
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
                    // Nobody reads any more.
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
        for report in prompter.reports() {
            self.hear_report(&report);
        }
    }

    fn hear_report(&mut self, report: &Report) {
        if !self.prompter.as_mut().is_some_and(|prompter| prompter.accept(report)) {
            return;
        }
        match &report.what {
            Reported::Began => {
                self.settle_terminal();
                let at = self.spool.printed(0)[0];
                if let Some(job) = &mut self.job {
                    job.pty_from = Some(at);
                }
                if let Some(prompter) = &mut self.prompter {
                    prompter.let_begin();
                }
            }
            Reported::Ended { .. } if self.repair.is_running() => self.repaired(),
            Reported::Ended { code, flags } if self.job.is_some() => {
                self.finish(*code, None, None);
                if matches!(self.hold, Hold::Pty(_)) {
                    if let Some(prompter) = &mut self.prompter {
                        prompter.release();
                    }
                } else {
                    let _noticed_by_silence = self.offer();
                    self.inspect(flags);
                }
            }
            // A late signal ended the slot before any command came.
            Reported::Ended { .. } => {
                let _noticed_by_silence = self.offer();
                self.repair.needed = true;
            }
        }
    }

    /// Ends the running job and tells who waits for it.
    fn finish(&mut self, code: i32, exit: Option<Exit>, lost: Option<String>) {
        for stream in Stream::ALL {
            self.take_what_is_there(stream);
        }
        self.take_unfinished();
        let Some(mut job) = self.job.take() else { return };
        if let Some(from) = job.pty_from.or(matches!(self.hold, Hold::Pty(_)).then_some(u64::MAX)) {
            self.take_terminal_output(&mut job, from);
        }
        let why = job.ladder.why();
        let outcome = Outcome {
            job: job.id,
            // A shell that was called back has no status of its own to tell.
            code: if why.is_some() && exit.is_none() && code < 128 { 143 } else { code },
            duration_us: ticks().saturating_sub(job.started),
            timed_out: why == Some(Why::TimedOut),
            cancelled: why == Some(Why::Cancelled),
            exit,
            lost,
        };
        self.repair.needed |= why.is_some();
        self.last_activity_at = unix_micros();
        self.spool.end(outcome.clone());
        self.last = Some(outcome.clone());
        if let Some(client) = job.client.filter(|_| !job.follow) {
            let [stdout, stderr] = std::mem::take(&mut job.kept);
            let printed = self.spool.printed(job.id);
            self.clients.tell(client, News::Ran(Box::new(Ran { outcome, stdout, stderr, printed })));
        }
    }

    /// What the command wrote is in the pipe by now; what others go on writing is not waited for.
    fn take_what_is_there(&mut self, stream: Stream) {
        let number = self.lane;
        let Some(lane) = self.lanes.get_mut(&number) else { return };
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

    /// Takes what the terminal has. It passes bytes on through a queue of the kernel, so it is given a moment to be empty.
    fn settle_terminal(&mut self) {
        let moment = rustix::event::Timespec { tv_sec: 0, tv_nsec: 25_000_000 };
        for _ in 0..40 {
            if let Hold::Pty(pty) = &self.hold {
                let mut fds = [rustix::event::PollFd::new(pty, rustix::event::PollFlags::IN)];
                if !matches!(rustix::event::poll(&mut fds, Some(&moment)), Ok(1..)) {
                    break;
                }
            }
            self.drain_terminal();
        }
    }

    fn take_terminal_output(&mut self, job: &mut Job, from: u64) {
        self.settle_terminal();
        let to = self.spool.printed(0)[0];
        let range = Range { job: 0, stream: Stream::Stdout, offset: from, limit: to.saturating_sub(from) };
        if let Ok(Some(piece)) = self.spool.read(range) {
            self.spool.append(job.id, Stream::Stdout, &piece.bytes);
            job.kept[0] = piece.bytes;
            job.kept[0].truncate(job.keep);
        }
    }

    /// After a command: are the shell's streams still ours, and is the lane ours alone?
    fn inspect(&mut self, flags: &str) {
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

    fn living_children(&self) -> Vec<u32> {
        let [shell, own] = &self.children;
        let mut all = shell.now();
        all.extend(own.now().into_iter().filter(|pid| *pid != self.child.pid));
        all
    }

    fn streams_are_ours(&self, input: &str) -> bool {
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

    fn repaired(&mut self) {
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

    /// Performs one step of the ladder.
    pub(super) fn stop(&mut self, step: Step) {
        let shell = self.child.pid;
        let replaced = procs::program(shell) != self.program;
        let mut command = procs::descendants(shell, &self.known);
        let spared: Vec<u32> = self.known.iter().copied().chain([shell]).collect();
        command.extend(procs::descendants(self.own.pid, &spared));
        if replaced {
            command.push(shell);
        }
        let signal = match step {
            Step::Ask => Some(Signal::TERM),
            Step::Remind => None,
            Step::Kill | Step::GiveUp => Some(Signal::KILL),
        };
        if let Some(signal) = signal {
            for pid in &command {
                procs::signal(*pid, signal);
                procs::signal(*pid, Signal::CONT);
            }
        }
        if let Some(job) = &mut self.job {
            // A command that waits for input finds its end.
            job.input = None;
        }
        if step == Step::GiveUp {
            procs::signal(shell, Signal::KILL);
        } else if let Hold::Pty(pty) = &self.hold {
            let _full_is_retried = write(pty, b"\x03");
        } else {
            // A shell that waits for its child comes back by itself when the child has gone; it is called only if not.
            if signal.is_none() || command.is_empty() {
                procs::signal(shell, Signal::URG);
            }
            procs::signal(shell, Signal::CONT);
        }
    }

    /// Looks after a shell that has not reported yet: it may be stopped, or have lost our line.
    pub(super) fn watch(&mut self) {
        if procs::is_stopped(self.child.pid) {
            procs::signal(self.child.pid, Signal::CONT);
        }
        if self.prompter.as_ref().is_some_and(|prompter| prompter.waits_for_a_line(self.child.pid)) {
            self.repair.silent += 1;
        } else {
            self.repair.silent = 0;
        }
        if self.repair.silent >= SILENT {
            self.heard_nothing();
        }
        if self.repair.running_since.is_some_and(|since| ticks().saturating_sub(since) > START) {
            self.lose("the shell does not answer".to_owned());
        }
    }

    /// The shell waits for its next line: the command is over, but its report has not come and will not.
    fn heard_nothing(&mut self) {
        self.repair.silent = 0;
        let Some(job) = &self.job else {
            return self.lose("the shell does not answer".to_owned());
        };
        let lost = job.ladder.why().is_none().then(|| {
            "the command is over but the shell did not report its status; a function may stand in for a builtin".to_owned()
        });
        self.finish(143, None, lost);
        if let Some(prompter) = &mut self.prompter {
            prompter.leave();
        }
        let _noticed_by_silence = self.offer();
        self.repair.needed = true;
    }

    /// Gives the shell up. Its death is heard like any other.
    fn lose(&mut self, why: String) {
        self.lost = Some(why);
        self.repair.running_since = None;
        for pid in procs::descendants(self.child.pid, &self.known) {
            procs::signal(pid, Signal::KILL);
        }
        procs::signal(self.child.pid, Signal::KILL);
    }

    /// The shell is gone: whoever waits for it is told.
    pub(super) fn shell_ended(&mut self, exit: &Exit) {
        let lost = self.lost.take();
        self.repair.running_since = None;
        if self.job.is_some() {
            self.finish(exit.code, Some(exit.clone()), lost.clone());
        }
        if let Some((_, from)) = self.waiting.take() {
            self.clients.tell(from, News::Refused(Refusal::Ended));
        }
        if !self.repair.ready {
            let printed = self.spool.read(Range { job: 0, stream: Stream::Stderr, offset: 0, limit: 2_000 });
            let printed = printed.ok().flatten().map(|piece| piece.bytes).unwrap_or_default();
            let text = String::from_utf8_lossy(&printed).trim().to_owned();
            let why = lost.unwrap_or(format!("the shell ended at once with status {}", exit.code));
            let why = if text.is_empty() { why } else { format!("{why}: {text}") };
            // Told when everything is gone: who hears that a session failed finds nothing of it.
            self.failure = Some(Refusal::System(why));
            self.end(true, None);
        }
    }

    /// The end takes the running command with it.
    pub(super) fn cancel_for_end(&mut self) {
        if let Some(job) = &mut self.job {
            job.ladder.cancel(ticks());
        }
    }

    /// Our own lines, when a command has switched tracing on, are not the command's output.
    ///
    /// A shell may write such a line word by word, so while tracing is possible a line is judged when it is whole.
    pub(super) fn without_trace(&mut self, stream: Stream, bytes: &[u8]) -> Vec<u8> {
        let tracing = self.job.as_ref().is_some_and(|job| job.may_trace);
        if stream == Stream::Stderr && self.muted {
            return Vec::new();
        }
        if stream != Stream::Stderr || !tracing {
            return bytes.to_vec();
        }
        self.unfinished.extend_from_slice(bytes);
        let whole = self.unfinished.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let rest = self.unfinished.split_off(whole);
        let lines = std::mem::replace(&mut self.unfinished, rest);
        let nonce =
            self.prompter.as_ref().map(|prompter| prompter.nonce().as_bytes().to_vec()).unwrap_or_default();
        let mut kept = Vec::new();
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            self.muted |= line.windows(nonce.len().max(1)).any(|window| window == nonce);
            if !self.muted {
                kept.extend_from_slice(line);
            }
        }
        kept
    }

    /// A last line without an end, which was held back, is output like any other.
    fn take_unfinished(&mut self) {
        let rest = std::mem::take(&mut self.unfinished);
        if !self.muted && !rest.is_empty() {
            self.keep(self.jobs, Stream::Stderr, &rest);
        }
    }
}

/// Whether a command may switch tracing on, going by its words; a sourced file that does so shows some of our lines.
fn mentions_tracing(text: &[u8]) -> bool {
    [&b"set -"[..], b"xtrace", b"setopt"]
        .iter()
        .any(|word| text.windows(word.len()).any(|window| window == *word))
}
