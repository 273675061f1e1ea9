//! Runs a command in a tracked shell: its output, exit code and end are known exactly.

use abide_keeper::protocol::{
    CommandInput, ExecOutcome, KeeperRequest, KeeperResponse, ShellCommand, TaggedRequest, TaggedResponse,
};
use abide_terminal::ShellProgram;

use super::call::SessionReply;
use super::found::LiveSession;
use super::talk::keeper_lost;
use crate::tool::recorder::OutputRecorder;
use crate::tool::workbench::StopFlag;

const RUN: u64 = 1;
const INTERRUPT: u64 = 2;
const LOOK_MS: u64 = 50;

/// Told to the model if its command prevented the shell from being stopped.
const SHELL_REPLACED: &str = "the shell could not be stopped and was replaced by a new one in the same directory; its \
     variables, functions and options are lost";

/// Runs a command. The keeper enforces its timeout.
pub(crate) fn run(
    living: &mut LiveSession,
    shell: &ShellProgram,
    command: &str,
    timeout_ms: u64,
    recorder: &mut OutputRecorder,
    stop: &StopFlag,
) -> SessionReply {
    let run = ShellCommand {
        text: shell.command(command, &[]).into_bytes(),
        input: CommandInput::Nothing,
        timeout_ms: Some(timeout_ms),
        keep: 0,
        follow: true,
    };
    let link = &mut living.keeper.link;
    let (mut interrupted, mut is_replaced) = (false, false);
    if link.send(&TaggedRequest { tag: RUN, act: KeeperRequest::Run(run) }).is_err() {
        return keeper_lost();
    }
    loop {
        if !interrupted && stop.is_asked() {
            interrupted = true;
            if link.send(&TaggedRequest { tag: INTERRUPT, act: KeeperRequest::Interrupt }).is_err() {
                return SessionReply { interrupted, ..keeper_lost() };
            }
        }
        let Ok(answer) = link.wait::<TaggedResponse>(LOOK_MS) else {
            return SessionReply { interrupted, ..keeper_lost() };
        };
        match answer {
            Some(TaggedResponse { tag: RUN, news: KeeperResponse::Output(output) }) => {
                recorder.push(output.stream, &output.bytes)
            }
            Some(TaggedResponse { news: KeeperResponse::ShellRestarted(_), .. }) => is_replaced = true,
            Some(TaggedResponse { tag: RUN, news: KeeperResponse::Ended(outcome) }) => {
                let remark = is_replaced.then(|| SHELL_REPLACED.to_owned());
                return SessionReply { remark, ..spoken(outcome, interrupted) };
            }
            Some(TaggedResponse { tag: RUN, news: KeeperResponse::Refused(refusal) }) => {
                return SessionReply { trouble: Some(refusal.to_string()), ..SessionReply::default() };
            }
            Some(_) => {}
            None if link.is_closed() => {
                return SessionReply { interrupted, ..keeper_lost() };
            }
            None => {}
        }
    }
}

fn spoken(outcome: ExecOutcome, interrupted: bool) -> SessionReply {
    SessionReply {
        exit_code: Some(outcome.code),
        ended: outcome.exit.map(|exit| Some(exit.code)),
        timed_out: outcome.timed_out,
        interrupted,
        trouble: outcome.lost,
        remark: None,
        before: String::new(),
    }
}
