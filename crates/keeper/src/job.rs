//! One command and the ladder by which it is stopped: when its time is over it is asked, then killed, then given up.
//!
//! Pure values: time comes in, steps go out. Signals and pipes are the holder's.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use crate::procs::ProcessKey;
use crate::protocol::JobId;

/// How long a command that was asked to end may take, in microseconds.
pub(crate) const GRACE: u64 = 5_000_000;
/// How long a shell may take to come back after its command's processes were killed, in microseconds.
const LAST_CHANCE: u64 = 1_000_000;
/// How soon a stop is looked at again, in microseconds: at first soon, then at growing intervals.
const FIRST_REMINDER: u64 = 3_000;
const LAST_REMINDER: u64 = 50_000;

/// A command that the shell has been given.
#[derive(Debug)]
pub(crate) struct ShellJob {
    pub(crate) id: JobId,
    /// The client that waits for the result, and the tag of its order.
    pub(crate) client: Option<(u64, u64)>,
    pub(crate) follow: bool,
    pub(crate) started_at: u64,
    pub(crate) started: u64,
    pub(crate) keep: usize,
    pub(crate) kept: [Vec<u8>; 2],
    pub(crate) input: Option<OwnedFd>,
    pub(crate) unsent_input: Vec<u8>,
    pub(crate) input_ends: bool,
    /// Where the job's output begins in a terminal's.
    pub(crate) pty_from: Option<u64>,
    /// Where it ends, if the shell was interrupted.
    pub(crate) pty_to: Option<u64>,
    /// Lines of our own may turn up among its errors.
    pub(crate) may_trace: bool,
    pub(crate) ladder: StopSequence,
    /// The processes that were told to end.
    pub(crate) asked: BTreeSet<ProcessKey>,
    /// Status and flags of a stopped command whose processes have not all ended yet.
    pub(crate) reported: Option<(i32, String)>,
    /// The shell does not react to being called back. It stays stopped until it is replaced.
    pub(crate) shell_is_deaf: bool,
    /// The shell stays stopped until the command's processes have ended.
    pub(crate) shell_is_held: bool,
    /// The shell was expanding a substitution when it was stopped.
    pub(crate) expanding: bool,
    /// When the shell was last called back, and how often.
    pub(crate) called_at: Option<u64>,
    pub(crate) calls: u32,
    /// The shell was sent SIGINT, and may leave the command without a report.
    pub(crate) interrupted: bool,
    /// Something stands between the command and its report.
    pub(crate) broken: bool,
}

/// How far the stopping of a command has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StopSequence {
    deadline: Option<u64>,
    asked: Option<StopProgress>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StopProgress {
    why: CommandStopReason,
    at: u64,
    next: u64,
    interval: u64,
    killed: bool,
}

/// Why a command is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommandStopReason {
    TimedOut,
    Cancelled,
}

/// What the holder has to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopStep {
    /// SIGTERM to the command's processes, and call the shell back.
    Ask,
    /// Call the shell back once more.
    Remind,
    /// SIGKILL to the command's processes, and call the shell back.
    Kill,
    /// SIGKILL to the shell itself, which is then replaced.
    GiveUp,
}

impl StopSequence {
    pub(crate) fn new(started: u64, timeout_ms: Option<u64>) -> Self {
        Self { deadline: timeout_ms.map(|ms| started.saturating_add(ms.saturating_mul(1_000))), asked: None }
    }

    /// Somebody asked for the end. The first reason stays.
    pub(crate) fn cancel(&mut self, now: u64) -> Option<StopStep> {
        self.asked.is_none().then(|| self.ask(now, CommandStopReason::Cancelled))
    }

    fn ask(&mut self, now: u64, why: CommandStopReason) -> StopStep {
        self.asked = Some(StopProgress {
            why,
            at: now,
            next: now + FIRST_REMINDER,
            interval: FIRST_REMINDER,
            killed: false,
        });
        StopStep::Ask
    }

    /// What is due now.
    pub(crate) fn due(&mut self, now: u64) -> Option<StopStep> {
        let Some(asked) = &mut self.asked else {
            return self
                .deadline
                .filter(|deadline| *deadline <= now)
                .map(|_| self.ask(now, CommandStopReason::TimedOut));
        };
        if asked.next > now {
            return None;
        }
        asked.interval = (asked.interval * 2).min(LAST_REMINDER);
        asked.next = now + asked.interval;
        Some(match now.saturating_sub(asked.at) {
            waited if waited >= GRACE + LAST_CHANCE => StopStep::GiveUp,
            waited if waited >= GRACE && !asked.killed => {
                asked.killed = true;
                StopStep::Kill
            }
            // New processes may have been started since; every other time they are looked for again.
            waited if waited >= GRACE => {
                asked.killed = false;
                StopStep::Remind
            }
            _ => StopStep::Remind,
        })
    }

    /// When to ask again.
    pub(crate) fn wakes_at(&self) -> Option<u64> {
        self.asked.map(|asked| asked.next).or(self.deadline)
    }

    pub(crate) fn why(&self) -> Option<CommandStopReason> {
        self.asked.map(|asked| asked.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c5_a_command_is_asked_reminded_killed_and_only_then_given_up() {
        let mut ladder = StopSequence::new(0, Some(1_000));
        let mut steps = Vec::new();
        for now in (0..9_000_000).step_by(50_000) {
            if let Some(step) = ladder.due(now)
                && !steps.iter().any(|(_, earlier)| *earlier == step)
            {
                steps.push((now / 50_000, step));
            }
        }
        assert_eq!(
            steps,
            [(20, StopStep::Ask), (21, StopStep::Remind), (120, StopStep::Kill), (140, StopStep::GiveUp)]
        );
        assert_eq!(ladder.why(), Some(CommandStopReason::TimedOut));
    }

    #[test]
    fn c6_a_cancel_after_the_timeout_does_not_change_the_reason() {
        let mut ladder = StopSequence::new(0, Some(1));
        assert_eq!(ladder.due(2_000), Some(StopStep::Ask));
        assert_eq!(ladder.cancel(3_000), None);
        assert_eq!(ladder.why(), Some(CommandStopReason::TimedOut));
    }
}
