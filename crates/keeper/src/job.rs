//! One command and its stop sequence: at the deadline it gets SIGTERM, then SIGKILL, and finally the shell is killed.
//!
//! Pure values: the time is a parameter, and steps are returned. The holder sends the signals.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use crate::procs::ProcessKey;
use crate::protocol::JobId;

/// Grace period between SIGTERM and SIGKILL, in microseconds.
pub(crate) const GRACE: u64 = 5_000_000;
/// Time limit for a shell to return after the processes of its command were killed, in microseconds.
const LAST_CHANCE: u64 = 1_000_000;
/// The interval of checks during a stop grows from the first to the last value, in microseconds.
const FIRST_REMINDER: u64 = 3_000;
const LAST_REMINDER: u64 = 50_000;

/// A command that was sent to the shell.
#[derive(Debug)]
pub(crate) struct ShellJob {
    pub(crate) id: JobId,
    /// The connection that waits for the result, and the tag of its request.
    pub(crate) client: Option<(u64, u64)>,
    pub(crate) follow: bool,
    pub(crate) started_at: u64,
    pub(crate) started: u64,
    pub(crate) keep: usize,
    pub(crate) kept: [Vec<u8>; 2],
    pub(crate) input: Option<OwnedFd>,
    pub(crate) unsent_input: Vec<u8>,
    pub(crate) input_ends: bool,
    /// Offset in the terminal output at which the output of the job begins.
    pub(crate) pty_from: Option<u64>,
    /// Offset at which it ends, if the shell was interrupted.
    pub(crate) pty_to: Option<u64>,
    /// The keeper's script lines may appear in its stderr.
    pub(crate) may_trace: bool,
    pub(crate) ladder: StopSequence,
    /// The processes that got SIGTERM.
    pub(crate) asked: BTreeSet<ProcessKey>,
    /// Status and flags of a stopped command of which processes remain.
    pub(crate) reported: Option<(i32, String)>,
    /// The shell ignores the recall signal. It stays stopped until it is replaced.
    pub(crate) shell_is_deaf: bool,
    /// The shell stays stopped until the processes of the command have ended.
    pub(crate) shell_is_held: bool,
    /// The shell was expanding a substitution when it was stopped.
    pub(crate) expanding: bool,
    /// Time of the last recall of the shell, and the number of recalls.
    pub(crate) called_at: Option<u64>,
    pub(crate) calls: u32,
    /// The shell got SIGINT, and may leave the command without a report.
    pub(crate) interrupted: bool,
    /// A redefined builtin makes the report unreliable.
    pub(crate) broken: bool,
}

/// The progress of stopping a command.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommandStopReason {
    TimedOut,
    Cancelled,
}

/// The next action of the holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopStep {
    /// Sends SIGTERM to the command's processes, and recalls the shell.
    Ask,
    /// Recalls the shell again.
    Remind,
    /// Sends SIGKILL to the command's processes, and recalls the shell.
    Kill,
    /// Sends SIGKILL to the shell, which is then replaced.
    GiveUp,
}

impl StopSequence {
    pub(crate) fn new(started: u64, timeout_ms: Option<u64>) -> Self {
        Self { deadline: timeout_ms.map(|ms| started.saturating_add(ms.saturating_mul(1_000))), asked: None }
    }

    /// Starts the stop because of a request. An earlier reason is kept.
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

    /// The step that is due now.
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
            // Processes may have been started since, so every other step scans again.
            waited if waited >= GRACE => {
                asked.killed = false;
                StopStep::Remind
            }
            _ => StopStep::Remind,
        })
    }

    /// The time of the next step.
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
