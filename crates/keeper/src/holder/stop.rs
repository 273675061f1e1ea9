//! How a command is stopped, and what is done about a shell that does not come back from one.

use rustix::io::write;
use rustix::process::Signal;

use super::Holder;
use crate::child::Hold;
use crate::clock::ticks;
use crate::job::Step;
use crate::procs;
use crate::protocol::{Exit, News, Range, Refusal, Stream};
use crate::script::Past;

/// How long a shell may take to start, in microseconds.
const START: u64 = 10_000_000;
/// How often in a row a shell has to be seen waiting before its report counts as lost.
const SILENT: u8 = 3;

impl Holder {
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
        let past = self.prompter.as_ref().and_then(|prompter| prompter.is_past(self.child.pid));
        self.repair.silent = if past.is_some() { self.repair.silent + 1 } else { 0 };
        if let Some(past) = past.filter(|_| self.repair.silent >= SILENT) {
            self.heard_nothing(past);
        }
        if self.repair.running_since.is_some_and(|since| ticks().saturating_sub(since) > START) {
            self.lose("the shell does not answer".to_owned());
        }
    }

    /// The shell waits for what comes next: the command is over, but its report has not come and will not.
    pub(super) fn heard_nothing(&mut self, past: Past) {
        self.repair.silent = 0;
        let Some(job) = &self.job else {
            return self.lose("the shell does not answer".to_owned());
        };
        let lost = job.ladder.why().is_none().then(|| {
            "the command is over but the shell did not report its status; a function may stand in for a builtin".to_owned()
        });
        self.finish(143, None, lost);
        if let Some(prompter) = &mut self.prompter {
            prompter.leave_past(past);
        }
        let _noticed_by_silence = self.offer();
        self.repair.needed = true;
    }

    /// Gives the shell up. Its death is heard like any other.
    pub(super) fn lose(&mut self, why: String) {
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
        // What it has not read of its command, it never will.
        if let Some(prompter) = &mut self.prompter {
            prompter.close();
        }
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
            self.end(true, None, None);
        }
    }

    /// The end takes the running command with it.
    pub(super) fn cancel_for_end(&mut self) {
        if let Some(job) = &mut self.job {
            job.ladder.cancel(ticks());
        }
    }
}
