//! One command and its stop sequence: at the deadline it gets SIGTERM, then SIGKILL, and finally the shell is killed.
//!
//! Pure values: the time is a parameter, and steps are returned. The holder sends the signals.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use crate::process_tree::ProcessKey;
use crate::protocol::JobId;

/// Grace period between SIGTERM and SIGKILL, in microseconds.
pub(crate) const TERM_GRACE_US: u64 = 5_000_000;
/// Time limit for a shell to return after the processes of its command were killed, in microseconds.
const SHELL_RETURN_TIMEOUT_US: u64 = 1_000_000;
/// The interval of checks during a stop grows from the first to the last value, in microseconds.
const MIN_RECALL_INTERVAL_US: u64 = 3_000;
const MAX_RECALL_INTERVAL_US: u64 = 50_000;

/// A command that was sent to the shell.
#[derive(Debug)]
pub(crate) struct ShellJob {
    pub(crate) id: JobId,
    /// The connection that waits for the result, and the tag of its request.
    pub(crate) client: Option<(u64, u64)>,
    pub(crate) follow: bool,
    pub(crate) started_unix_us: u64,
    pub(crate) started_boottime_us: u64,
    pub(crate) max_result_bytes: usize,
    pub(crate) result_output: [Vec<u8>; 2],
    pub(crate) input: Option<OwnedFd>,
    pub(crate) unsent_input: Vec<u8>,
    pub(crate) input_ends: bool,
    /// Offset in the terminal output at which the output of the job begins.
    pub(crate) pty_start_offset: Option<u64>,
    /// The shell's descriptors when a command on a terminal begins.
    pub(crate) pty_start_descriptors: BTreeSet<(u32, PathBuf)>,
    /// Offset at which it ends, if the shell was interrupted.
    pub(crate) pty_end_offset: Option<u64>,
    /// The keeper's script lines may appear in its stderr.
    pub(crate) may_trace: bool,
    pub(crate) stop_sequence: StopSequence,
    /// The processes that got SIGTERM.
    pub(crate) term_sent_to: BTreeSet<ProcessKey>,
    /// Status and flags of a stopped command of which processes remain.
    pub(crate) reported_exit: Option<(i32, String)>,
    /// The shell ignores the recall signal. It stays stopped until it is replaced.
    pub(crate) shell_ignores_recall: bool,
    /// The shell stays stopped until the processes of the command have ended.
    pub(crate) shell_is_held: bool,
    /// The shell was recalled, so its later output is not the command's.
    pub(crate) discards_output: bool,
    /// The shell was expanding a substitution when it was stopped.
    pub(crate) was_expanding: bool,
    /// Time of the last recall of the shell, and the number of recalls.
    pub(crate) last_recall_at: Option<u64>,
    pub(crate) recalls: u32,
    /// The shell got SIGINT, and may leave the command without a report.
    pub(crate) interrupted: bool,
    /// A redefined builtin makes the report unreliable.
    pub(crate) report_is_unreliable: bool,
}

/// The progress of stopping a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StopSequence {
    deadline: Option<u64>,
    progress: Option<StopProgress>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StopProgress {
    reason: CommandStopReason,
    started_at: u64,
    next_step_at: u64,
    interval_us: u64,
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
    Terminate,
    /// Recalls the shell again.
    Recall,
    /// Sends SIGKILL to the command's processes, and recalls the shell.
    Kill,
    /// Sends SIGKILL to the shell, which is then replaced.
    KillShell,
}

impl StopSequence {
    pub(crate) fn new(started: u64, timeout_ms: Option<u64>) -> Self {
        Self {
            deadline: timeout_ms.map(|ms| started.saturating_add(ms.saturating_mul(1_000))),
            progress: None,
        }
    }

    /// Starts the stop because of a request. An earlier reason is kept.
    pub(crate) fn cancel(&mut self, now: u64) -> Option<StopStep> {
        self.progress.is_none().then(|| self.begin(now, CommandStopReason::Cancelled))
    }

    fn begin(&mut self, now: u64, why: CommandStopReason) -> StopStep {
        self.progress = Some(StopProgress {
            reason: why,
            started_at: now,
            next_step_at: now + MIN_RECALL_INTERVAL_US,
            interval_us: MIN_RECALL_INTERVAL_US,
            killed: false,
        });
        StopStep::Terminate
    }

    /// The step that is due now.
    pub(crate) fn due_step(&mut self, now: u64) -> Option<StopStep> {
        let Some(progress) = &mut self.progress else {
            return self
                .deadline
                .filter(|deadline| *deadline <= now)
                .map(|_| self.begin(now, CommandStopReason::TimedOut));
        };
        if progress.next_step_at > now {
            return None;
        }
        progress.interval_us = (progress.interval_us * 2).min(MAX_RECALL_INTERVAL_US);
        progress.next_step_at = now + progress.interval_us;
        Some(match now.saturating_sub(progress.started_at) {
            waited if waited >= TERM_GRACE_US + SHELL_RETURN_TIMEOUT_US => StopStep::KillShell,
            waited if waited >= TERM_GRACE_US && !progress.killed => {
                progress.killed = true;
                StopStep::Kill
            }
            // Processes may have been started since, so every other step scans again.
            waited if waited >= TERM_GRACE_US => {
                progress.killed = false;
                StopStep::Recall
            }
            _ => StopStep::Recall,
        })
    }

    /// The time of the next step.
    pub(crate) fn wakes_at(&self) -> Option<u64> {
        self.progress.map(|asked| asked.next_step_at).or(self.deadline)
    }

    pub(crate) fn reason(&self) -> Option<CommandStopReason> {
        self.progress.map(|asked| asked.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c5_a_command_gets_sigterm_then_recalls_then_sigkill_before_its_shell_is_killed() {
        let mut ladder = StopSequence::new(0, Some(1_000));
        let mut steps = Vec::new();
        for now in (0..9_000_000).step_by(50_000) {
            if let Some(step) = ladder.due_step(now)
                && !steps.iter().any(|(_, earlier)| *earlier == step)
            {
                steps.push((now / 50_000, step));
            }
        }
        assert_eq!(
            steps,
            [
                (20, StopStep::Terminate),
                (21, StopStep::Recall),
                (120, StopStep::Kill),
                (140, StopStep::KillShell)
            ]
        );
        assert_eq!(ladder.reason(), Some(CommandStopReason::TimedOut));
    }

    #[test]
    fn c6_a_cancel_after_the_timeout_does_not_change_the_reason() {
        let mut ladder = StopSequence::new(0, Some(1));
        assert_eq!(ladder.due_step(2_000), Some(StopStep::Terminate));
        assert_eq!(ladder.cancel(3_000), None);
        assert_eq!(ladder.reason(), Some(CommandStopReason::TimedOut));
    }
}
