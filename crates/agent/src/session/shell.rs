//! Runs a command in a tracked shell: its output, exit code and end are known exactly.

use abide_keeper::protocol::{
    CommandInput, ExecOutcome, KeeperRequest, KeeperResponse, ShellCommand, TaggedRequest, TaggedResponse,
};
use abide_terminal::ShellProgram;

use super::call::SessionReply;
use super::lookup::LiveSession;
use super::program_input::keeper_lost_reply;
use crate::tool::recorder::OutputRecorder;
use crate::tool::workbench::StopFlag;

const RUN_TAG: u64 = 1;
const INTERRUPT_TAG: u64 = 2;
const POLL_INTERVAL_MS: u64 = 50;

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
    let link = &mut session.keeper.socket;
    let (mut interrupted, mut is_replaced) = (false, false);
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
            None => {}
        }
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
