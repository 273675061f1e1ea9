//! Runs a command in a tracked shell: its output, exit code and end are known exactly.

use abide_keeper::launch::{kill_keeper, resume_stopped_keeper};
use abide_keeper::protocol::{
    CommandInput, ExecOutcome, KeeperRequest, KeeperResponse, ShellCommand, TaggedRequest, TaggedResponse,
};
use abide_terminal::ShellProgram;

use super::call::SessionReply;
use super::lookup::LiveSession;
use super::program_input::keeper_lost_reply;
use crate::tool::clock::monotonic_millis;
use crate::tool::recorder::OutputRecorder;
use crate::tool::workbench::StopFlag;

const RUN_TAG: u64 = 1;
const INTERRUPT_TAG: u64 = 2;
const POLL_INTERVAL_MS: u64 = 50;
/// Interval of checks whether a silent keeper is stopped.
const RESUME_INTERVAL_MS: u64 = 1_000;
/// Time for the stop sequence of the keeper after the timeout or an interrupt: SIGTERM, 5 s, SIGKILL, a new shell.
const STOP_GRACE_MS: u64 = 30_000;

/// Told to the model if its command prevented the shell from being stopped.
const SHELL_REPLACED_NOTE: &str = "the shell could not be stopped and was replaced by a new one in the same directory; its \
     variables, functions and options are lost";

/// Runs a command. The keeper enforces its timeout.
pub(crate) fn run_command(
    session: &mut LiveSession,
    shell: &ShellProgram,
    command: &str,
    timeout_ms: u64,
    recorder: &mut OutputRecorder,
    stop: &StopFlag,
) -> SessionReply {
    let request = ShellCommand {
        text: shell.command(command, &[]).into_bytes(),
        input: CommandInput::Nothing,
        timeout_ms: Some(timeout_ms),
        keep: 0,
        follow: true,
    };
    let keeper_dir = session.keeper.keeper_dir.clone();
    let link = &mut session.keeper.socket;
    let (mut interrupted, mut is_replaced) = (false, false);
    let mut watchdog = KeeperWatchdog::new(timeout_ms);
    if link.send(&TaggedRequest { tag: RUN_TAG, act: KeeperRequest::Run(request) }).is_err() {
        return keeper_lost_reply();
    }
    loop {
        if !interrupted && stop.is_set() {
            interrupted = true;
            if link.send(&TaggedRequest { tag: INTERRUPT_TAG, act: KeeperRequest::Interrupt }).is_err() {
                return SessionReply { interrupted, ..keeper_lost_reply() };
            }
        }
        let Ok(answer) = link.wait::<TaggedResponse>(POLL_INTERVAL_MS) else {
            return SessionReply { interrupted, ..keeper_lost_reply() };
        };
        match answer {
            Some(TaggedResponse { tag: RUN_TAG, news: KeeperResponse::Output(output) }) => {
                recorder.push(output.stream, &output.bytes)
            }
            Some(TaggedResponse { news: KeeperResponse::ShellRestarted(_), .. }) => is_replaced = true,
            Some(TaggedResponse { tag: RUN_TAG, news: KeeperResponse::Ended(outcome) }) => {
                let remark = is_replaced.then(|| SHELL_REPLACED_NOTE.to_owned());
                return SessionReply { note: remark, ..session_reply(outcome, interrupted) };
            }
            Some(TaggedResponse { tag: RUN_TAG, news: KeeperResponse::Refused(refusal) }) => {
                return SessionReply { failure: Some(refusal.to_string()), ..SessionReply::default() };
            }
            Some(_) => {}
            None if link.is_closed() => {
                return SessionReply { interrupted, ..keeper_lost_reply() };
            }
            None => match watchdog.check(interrupted) {
                KeeperWatch::Waiting => {}
                KeeperWatch::Resume => resume_stopped_keeper(&keeper_dir),
                KeeperWatch::Overdue => {
                    kill_keeper(&keeper_dir, None);
                    return SessionReply { interrupted, ..keeper_lost_reply() };
                }
            },
        }
    }
}

/// Bounds the wait for a keeper. A command can stop the keeper of its own session, which enforces the timeout.
struct KeeperWatchdog {
    next_resume_ms: u64,
    overdue_ms: u64,
    interrupted: bool,
}

/// The action for a keeper that has not answered.
#[derive(Debug, PartialEq, Eq)]
enum KeeperWatch {
    Waiting,
    /// Continue it if it is stopped.
    Resume,
    /// The keeper has not ended the command in time. It must be killed.
    Overdue,
}

impl KeeperWatchdog {
    fn new(timeout_ms: u64) -> Self {
        let now = monotonic_millis();
        let overdue_ms = now.saturating_add(timeout_ms).saturating_add(STOP_GRACE_MS);
        Self { next_resume_ms: now + RESUME_INTERVAL_MS, overdue_ms, interrupted: false }
    }

    fn check(&mut self, interrupted: bool) -> KeeperWatch {
        let now = monotonic_millis();
        if interrupted && !self.interrupted {
            self.interrupted = true;
            self.overdue_ms = self.overdue_ms.min(now.saturating_add(STOP_GRACE_MS));
        }
        if now >= self.overdue_ms {
            return KeeperWatch::Overdue;
        }
        if now < self.next_resume_ms {
            return KeeperWatch::Waiting;
        }
        self.next_resume_ms = now + RESUME_INTERVAL_MS;
        KeeperWatch::Resume
    }
}

fn session_reply(outcome: ExecOutcome, interrupted: bool) -> SessionReply {
    SessionReply {
        exit_code: Some(outcome.code),
        session_exit: outcome.exit.map(|exit| Some(exit.code)),
        timed_out: outcome.timed_out,
        interrupted,
        failure: outcome.lost,
        note: None,
        earlier_output: String::new(),
    }
}
